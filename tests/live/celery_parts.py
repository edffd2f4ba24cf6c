"""What Airflow's CeleryExecutor needs besides Airflow: packages, a PostgreSQL and a Redis on loopback, and workers that share no folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.live.live_airflow import CLONE, END_SECONDS
from tools.airflow.home import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGES = ("apache-airflow-providers-celery", "celery<5.7", "redis", "asyncpg")
"""No other test needs them, so they are not in the lock. Celery 5.7 lacks a function that Airflow's provider imports (3.26)."""
USER = "postgres"
LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0


def program(name: str) -> str:
    """Return the path of a server's program; empty: it is not on this machine. Debian does not put those of PostgreSQL into the path."""
    own = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))[-1:]
    return shutil.which(name, path=os.pathsep.join([*own, os.environ["PATH"]])) or ""


def install(folder: Path) -> None:
    """Install the packages into a folder, with what they need and this environment does not have, of the versions that go with it."""
    done = folder / "installed"
    if done.exists() and done.read_text() == str(PACKAGES):
        return
    uv = shutil.which("uv") or str(CLONE / ".tools" / "bin" / "uv")
    command = [uv, "pip", "install", "--python", sys.executable]
    planned = subprocess.run(
        [*command, "--dry-run", "--constraints", str(CLONE / "requirements.lock"), *PACKAGES], capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    missing = re.findall(r"^ \+ (\S+==\S+)", planned.stderr, re.MULTILINE)
    assert missing, planned.stderr
    subprocess.run([*command, "--quiet", "--no-deps", "--upgrade", "--target", str(folder), *missing], check=True)
    done.write_text(str(PACKAGES))


@contextlib.contextmanager
def redis() -> Iterator[int]:
    """Run a Redis that keeps all in memory; its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--bind", LOOPBACK, "--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                yield port
            finally:
                server.terminate()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run a PostgreSQL with an empty database; its address. It refuses to run as root, so then another user does."""
    user = USER if os.geteuid() == 0 else None
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="airflow-poison-postgres-"))
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "TZ": "UTC"}
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = str(folder / "data")
        made = [program("initdb"), "--auth=trust", "--username=airflow", "--no-sync", "--encoding=UTF8", f"--pgdata={data}"]
        subprocess.run(made, user=user, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        settings = ["-D", data, "-p", str(port), "-h", LOOPBACK, "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=200"]
        with subprocess.Popen([program("postgres"), *settings], user=user, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as server:
            try:
                _until_it_answers(server, port)
                yield f"airflow@{LOOPBACK}:{port}/postgres"
            finally:
                server.send_signal(signal.SIGINT)  # without waiting for those who are connected
    finally:
        shutil.rmtree(folder)


def _until_it_answers(server: subprocess.Popen[bytes], port: int) -> None:
    import socket

    deadline = time.monotonic() + START_SECONDS
    while True:
        assert server.poll() is None, "the server has ended"
        try:
            socket.create_connection((LOOPBACK, port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)
        else:
            return


@dataclass(eq=False)
class Worker:
    """A Celery worker as on a machine of its own.

    :param name: of its folder, and of itself.
    :param folder: with its HOME, its AIRFLOW_HOME (with a copy of the DAG files) and its TMPDIR.
    :param environment: of all processes of the Airflow.
    """

    name: str
    folder: Path
    environment: Mapping[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def home(self) -> Path:
        """Its HOME."""
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        """Its TMPDIR, where this package keeps what a node keeps."""
        return self.folder / "tmp"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "log"

    def start(self, dags: Path) -> None:
        """Start it."""
        for folder in (self.home, self.temporary):
            folder.mkdir(parents=True)
        airflow_home = self.folder / "airflow"
        shutil.copytree(dags, airflow_home / "dags")
        own = {"HOME": self.home, "TMPDIR": self.temporary, "AIRFLOW_HOME": airflow_home, "AIRFLOW__CORE__DAGS_FOLDER": airflow_home / "dags"}
        command = ["-m", "airflow", "celery", "worker", "--skip-serve-logs", "--concurrency", "1", "--celery-hostname", f"{self.name}@{self.name}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                env={**self.environment, **{name: str(value) for name, value in own.items()}},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def lose(self) -> None:
        """Kill all that runs on it, at once, and remove its TMPDIR: as a machine goes with its disk."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # it starts no others in the place of those that go first
        while found := self._running():
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.poll()
            psutil.wait_procs(found, END_SECONDS)
        self._process.wait()
        shutil.rmtree(self.temporary)

    def end(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self.temporary.exists():
            self.lose()

    def _running(self) -> list[psutil.Process]:
        """Return its processes: what the worker has started, and what has its HOME; those that set a title lose their environment by that."""
        assert self._process is not None
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self._process.pid)
            found = [worker, *worker.children(recursive=True)]
        found += [process for process in psutil.process_iter() if process not in found and self._has_home(process)]
        return [process for process in found if _lives(process)]

    def _has_home(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("HOME") == str(self.home))
        except (psutil.Error, OSError):
            return False


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
