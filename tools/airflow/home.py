"""The folder of an Airflow, and the environment of its processes."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MARK = "POISON_AIRFLOW"
"""Every process of an Airflow has this variable in its environment; its value is that home's own."""


class AirflowError(Exception):
    """An Airflow cannot be started or go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of an Airflow; everything it writes is below it.

    :param path: AIRFLOW_HOME.
    """

    path: Path

    @property
    def logs(self) -> Path:
        """Logs of the services; task logs are beside them, in the folder of their DAG."""
        return self.path / "logs"

    def shown(self, path: Path | str) -> str:
        """Return a path as the reader of a terminal beside the home would type it."""
        path = Path(str(path).removeprefix("file://"))
        return str(path.relative_to(self.path.parent)) if path.is_relative_to(self.path.parent) else str(path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder, or raise AirflowError when another process does."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise AirflowError(f"One is already running here (process {lock.read().strip()}). Wait for its end, or press Ctrl-C there.") from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def mark(self) -> str:
        """Return what marks the processes of this home; always the same, so that a later start can end what a killed one left."""
        return self._secrets()["mark"]

    def environment(self, port: int, settings: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the services: nothing of the reader's own Airflow, only loopback.

        :param port: where the API server listens.
        :param settings: Airflow's settings, as ``SECTION__KEY``; they win over those below.
        :param others: further variables.
        """
        keys = self._secrets()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        own = {
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API__SECRET_KEY": keys["api"],
            "API_AUTH__JWT_SECRET": keys["jwt"],
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "CORE__FERNET_KEY": "",
            "CORE__LOAD_EXAMPLES": "False",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        return {
            **inherited,
            **{f"AIRFLOW__{name}": value for name, value in {**own, **settings}.items()},
            "AIRFLOW_HOME": str(self.path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **others,
            MARK: keys["mark"],
        }

    def _secrets(self) -> dict[str, str]:
        """Return this folder's keys, made on first use and readable by nobody else."""
        path = self.path / "keys.json"
        if not path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({name: secrets.token_urlsafe(48) for name in ("api", "jwt", "mark")}, file)
        return dict(json.loads(path.read_text()))


def free_port(wanted: int = 0) -> int:
    """Return a port of 127.0.0.1 that nobody listens on. Raises AirflowError when the wanted one is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise AirflowError(
                f"Port {wanted} of 127.0.0.1 is taken ({error.strerror}). Choose another, or leave it out: any free one is taken."
            ) from None
        return int(probe.getsockname()[1])
