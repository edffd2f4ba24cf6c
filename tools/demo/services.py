"""The demo's Airflow: its processes are started here, each in a session of its own, and all of them end with the demo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

from tools.demo.place import MARK, DemoError, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SESSIONS = "sessions.json"
CLOCK_SECONDS = 2.0
PATIENCE = 15.0
"""Seconds that a process is given to end by itself."""


class Services:
    """A scheduler, a DAG processor and an API server (tasks talk to it), until ``stop``."""

    def __init__(self, place: Place, environment: Mapping[str, str], port: int) -> None:
        self._place, self._environment, self._port = place, dict(environment), port
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Make or upgrade the metadata database. Raises DemoError."""
        log = self._place.logs / "db-migrate.log"
        with log.open("ab") as file:
            code = subprocess.call(self._command("db", "migrate"), env=self._environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        if code:
            raise DemoError(f"Airflow could not make its database (exit code {code}). See {self._place.shown(log)}.")

    def start(self) -> None:
        """Start the three processes."""
        self._start("api-server", "api-server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1")
        self._start("scheduler", "scheduler", "--skip-serve-logs")
        self._start("dag-processor", "dag-processor")

    def check(self) -> None:
        """Raise DemoError when one of them has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                log = self._place.logs / f"{name}.log"
                raise DemoError(f"Airflow's {name} has ended with exit code {process.returncode}. See {self._place.shown(log)}.\n{_tail(log)}")

    def stop(self) -> None:
        """End all of them, and what they started."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        _wait_until(lambda: all(process.poll() is not None for process in self._running.values()), PATIENCE)
        end_left_over(self._place)
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def _start(self, name: str, *arguments: str) -> None:
        with (self._place.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._command(*arguments),
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends these in order
            )
        _note_session(self._place, self._running[name].pid)

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]


@contextlib.contextmanager
def running(services: Services) -> Iterator[Services]:
    """Start the services and stop them whatever happens; a second Ctrl-C does not cut that short."""
    try:
        services.start()
        yield services
    finally:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        services.stop()
        signal.signal(signal.SIGINT, previous)


def end_left_over(place: Place) -> int:
    """End what the demo of this folder has started (this one, or one that was killed); return how many processes there were."""
    mark, sessions = place.mark(), _sessions(place)
    found = [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_ours(process, mark, sessions)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=PATIENCE)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE)
    return len(found)


def _is_ours(process: psutil.Process, mark: str, sessions: frozenset[int]) -> bool:
    """Return whether a living process carries our mark or is in a session of ours (Airflow's processes write titles over their environment)."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return os.getsid(process.pid) in sessions or process.environ().get(MARK) == mark
    return False


def _note_session(place: Place, leader: int) -> None:
    """Write down a session that was just started, with what tells it from a later one of the same number."""
    path = place.home / SESSIONS
    noted = json.loads(path.read_text()) if path.exists() else []
    noted.append({"leader": leader, "started": psutil.Process(leader).create_time(), "boot": psutil.boot_time()})
    path.write_text(json.dumps(noted[-30:]))


def _sessions(place: Place) -> frozenset[int]:
    """Return the sessions written down whose number cannot have passed to others: a number is not given again while its session has members."""
    path = place.home / SESSIONS
    noted = json.loads(path.read_text()) if path.exists() else []
    return frozenset(entry["leader"] for entry in noted if abs(entry["boot"] - psutil.boot_time()) < CLOCK_SECONDS and _leads(entry))


def _leads(noted: Mapping[str, float]) -> bool:
    """Whether the leader is the one written down, or is gone."""
    try:
        return bool(abs(psutil.Process(int(noted["leader"])).create_time() - noted["started"]) < CLOCK_SECONDS)
    except psutil.NoSuchProcess:
        return True


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _tail(log: os.PathLike[str], lines: int = 8) -> str:
    with open(log, errors="replace") as file:  # noqa: PTH123
        return "".join(file.readlines()[-lines:])
