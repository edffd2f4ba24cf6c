"""Messages that kill whatever holds them, every time, each in its own way; and the driver process that Airflow would start again."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import psutil

from tests.given.drivers import Work, receive_and_tell, told
from tests.spark.unruly import Unruly, is_daemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.values.message import Message

MOST_PASSES = 12


def eat_memory() -> None:
    """Fill what a limit leaves, and give up as C libraries do."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    eaten = []
    try:
        while True:
            eaten.append(bytearray(8 << 20))
    except MemoryError:
        os.abort()


def kill_worker() -> None:
    """Kill the Python worker of Spark that this process belongs to."""
    next(process for process in psutil.Process().parents() if is_daemon(process)).kill()
    Event().wait()


def kill_jvm() -> None:
    """Kill the executor; where Spark is local, it is also the driver's JVM."""
    next(process for process in psutil.Process().parents() if process.name() == "java").kill()
    Event().wait()


def kill_task() -> None:
    """Kill the process group of the driver, as Airflow does to a task that is marked as failed."""
    above = psutil.Process().parents()
    jvm = next(number for number, process in enumerate(above) if process.name() == "java")
    os.killpg(os.getpgid(above[jvm + 1].pid), signal.SIGKILL)
    Event().wait()


DEEDS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "memory": eat_memory,
    "hang": lambda: Event().wait(),
    "worker": kill_worker,
    "jvm": kill_jvm,
    "task": kill_task,
}


@dataclass(frozen=True)
class Culprits(Unruly):
    """A handler to which a message's first word is an order, at every delivery."""

    def __call__(self, message: Message) -> None:
        deed = DEEDS.get(message.text)
        self._write("call", message)
        if deed is not None:
            sys.stderr.write(f"{message.text}: the last words of message {message.lookup_id}\n")
            deed()
        self._write("done", message)


@dataclass(frozen=True)
class Dangerous(Work):
    """A queue with such messages."""

    @property
    def handler(self) -> Unruly:
        """The handler; its calls are written beside the store."""
        return Culprits(f"{self.root}.calls")

    def receive(self, key: str) -> tuple[dict[str, object], list[dict[str, object]]]:
        """Start drivers with the same key, one after the other, until one ends well; return what it says, and what the others said."""
        failed: list[dict[str, object]] = []
        for _ in range(MOST_PASSES):
            command = [sys.executable, "-m", "tests.spark.culprits", self.root, key]
            driver = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # a group of its own, which is killed
            )
            said = told(driver)
            if "received" in said:
                return dict(said), failed
            failed.append({**said, "status": driver.returncode})
        raise AssertionError(f"{MOST_PASSES} drivers have died: {failed}")


if __name__ == "__main__":
    receive_and_tell(Dangerous(sys.argv[1]), sys.argv[2])
