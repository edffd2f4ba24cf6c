"""Where the demo keeps its things, and the environment of the Airflow that it starts."""

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
    from collections.abc import Iterator

CLONE = Path(__file__).resolve().parents[2]
MARK = "POISON_DEMO"
"""Every process of a demo has this variable in its environment; its value is that demo's own."""


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of the demo; everything it writes is below it.

    :param home: AIRFLOW_HOME.
    """

    home: Path = CLONE / ".demo"

    @property
    def logs(self) -> Path:
        """Logs of the services; task logs are beside them, in the folder of their DAG."""
        return self.home / "logs"

    @property
    def flights(self) -> Path:
        """The folder of the DAG's own files."""
        return self.home / "flights"

    @property
    def alerts(self) -> Path:
        """What was alerted, a line each."""
        return self.flights / "alerts.jsonl"

    def shown(self, path: Path | str) -> str:
        """Return a path as the reader of a terminal in the clone would type it."""
        path = Path(str(path).removeprefix("file://"))
        return str(path.relative_to(self.home.parent)) if path.is_relative_to(self.home.parent) else str(path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder, or raise DemoError when another demo does."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.home / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise DemoError(f"A demo is already running here (process {lock.read().strip()}). Wait for its end, or press Ctrl-C there.") from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def mark(self) -> str:
        """Return what marks the processes of the demos in this folder; the same for all of them, so that one can end what a killed one left."""
        return self._secrets()["mark"]

    def environment(self, port: int, delay: float, every: int) -> dict[str, str]:
        """Return the environment of the services.

        :param delay: the retry cycle delay in seconds.
        :param every: use every n-th flight.
        """
        keys = self._secrets()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "FLIGHTS_"))}
        settings = {
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API__SECRET_KEY": keys["api"],
            "API_AUTH__JWT_SECRET": keys["jwt"],
            "CORE__DAGS_FOLDER": str(CLONE / "dags"),
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "CORE__FERNET_KEY": "",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": "2",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",  # it listens on loopback only
            "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        return {
            **inherited,
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_HOME": str(self.home),
            "FLIGHTS_HOME": str(self.flights),
            "FLIGHTS_RETRY_CYCLE_DELAY": f"{delay:g}",
            "FLIGHTS_EVERY": str(every),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            MARK: keys["mark"],
        }

    def _secrets(self) -> dict[str, str]:
        """Return this folder's keys, made on first use and readable by nobody else."""
        path = self.home / "keys.json"
        if not path.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({name: secrets.token_urlsafe(48) for name in ("api", "jwt", "mark")}, file)
        return dict(json.loads(path.read_text()))


def free_port(wanted: int = 0) -> int:
    """Return a port of 127.0.0.1 that nobody listens on. Raises DemoError when the wanted one is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise DemoError(
                f"Port {wanted} of 127.0.0.1 is taken ({error.strerror}). Choose another, or leave it out: any free one is taken."
            ) from None
        return int(probe.getsockname()[1])
