"""The processes of an Airflow: each is started here in a session of its own, and all of them end with their starter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.airflow.home import MARK, AirflowError, Home
from tools.airflow.left_over import PATIENCE, end_left_over, note_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CLONE = Path(__file__).resolve().parents[2]
PARTS = ("api-server", "scheduler", "dag-processor")
WITH_TRIGGERER = (*PARTS, "triggerer")


class Services:
    """A scheduler, a DAG processor, an API server (tasks talk to it) and, where it is asked for, a triggerer, until ``stop``.

    :param home: the folder of the Airflow.
    :param environment: of every process.
    :param port: of the API server on 127.0.0.1.
    :param parts: which processes there are.
    """

    def __init__(self, home: Home, environment: Mapping[str, str], port: int, parts: Sequence[str] = PARTS) -> None:
        self._home, self._environment, self._parts = home, dict(environment), tuple(parts)
        # The log servers of the scheduler and the triggerer would listen on every address of the machine.
        self._commands = {
            "api-server": ("api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            "scheduler": ("scheduler", "--skip-serve-logs"),
            "dag-processor": ("dag-processor",),
            "triggerer": ("triggerer", "--skip-serve-logs"),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by part."""
        return {name: process.pid for name, process in self._running.items()}

    def prepare(self) -> None:
        """Make or upgrade the metadata database. Raises AirflowError."""
        self._home.logs.mkdir(parents=True, exist_ok=True)
        log = self._home.logs / "db-migrate.log"
        with log.open("ab") as file:
            code = subprocess.call(_airflow("db", "migrate"), env=self._environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        if code:
            raise AirflowError(f"Airflow could not make its database (exit code {code}). See {self._home.shown(log)}.")

    def start(self) -> None:
        """Start all parts, and what ends them when this process is killed."""
        self._guard = start_guard(self._home, self._environment)
        for part in self._parts:
            self.start_one(part)

    def start_one(self, part: str) -> None:
        """Start one part, after ``start``."""
        with (self._home.logs / f"{part}.log").open("ab") as log:
            process = subprocess.Popen(
                _airflow(*self._commands[part]),
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the starter alone, which then ends these in order
            )
        self._running[part] = process
        note = note_session(self._home, process.pid)
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.write(json.dumps(note).encode() + b"\n")
        self._guard.stdin.flush()

    def kill(self, part: str, number: int, *, whole: bool = False) -> None:
        """Send a signal to a part and wait for its end.

        :param whole: to all processes of its session, as when its machine dies; with the scheduler's die the tasks that run.
        """
        process = self._running.pop(part)
        with contextlib.suppress(ProcessLookupError):
            if whole:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        process.wait(PATIENCE)

    def check(self) -> None:
        """Raise AirflowError when one of them has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                log = self._home.logs / f"{name}.log"
                raise AirflowError(f"Airflow's {name} has ended with exit code {process.returncode}. See {self._home.shown(log)}.\n{_tail(log)}")

    def stop(self) -> None:
        """End all of them, and what they started."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        _wait_until(lambda: all(process.poll() is not None for process in self._running.values()), PATIENCE)
        end_left_over(self._home)
        for process in self._running.values():
            process.wait()
        self._running.clear()
        if self._guard is not None:
            self._guard.communicate()


def start_guard(home: Home, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start what ends all processes of a home when this process is gone; it stands guard when this returns, until its input is closed."""
    environment = {name: value for name, value in environment.items() if name != MARK}
    command = [sys.executable, "-m", "tools.airflow.guard", str(home.path)]
    guard = subprocess.Popen(command, cwd=CLONE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert guard.stdout is not None
    guard.stdout.readline()
    return guard


@contextlib.contextmanager
def running(services: Services) -> Iterator[Services]:
    """Start the services and stop them whatever happens; a second Ctrl-C does not cut that short."""
    try:
        services.start()
        yield services
    finally:
        with uninterrupted():
            services.stop()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C not cut this block short."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _tail(log: Path, lines: int = 8) -> str:
    with log.open(errors="replace") as file:
        return "".join(file.readlines()[-lines:])
