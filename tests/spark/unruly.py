"""A handler that does what the first word of a message says, also to the processes above it; each call goes into a file."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


def is_daemon(process: psutil.Process) -> bool:
    """Whether Spark's Python workers are forked from a process: ours on this machine, Spark's own on a cluster."""
    return any(name in process.cmdline() for name in ("airflow_poison.spark.daemon", "pyspark.daemon"))


@dataclass(frozen=True)
class Unruly:
    """A handler.

    :param calls: the file; ``<what> <lookup id> <abort count>`` a line.
    """

    calls: str

    def __call__(self, message: Message) -> None:
        self._write("call", message)
        match message.text.split()[0]:
            case "bad":
                raise ValueError(message.text)
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                Event().wait()
            case "print":
                print("something", "to say" * 1_000)  # noqa: T201  (what it is for)
                sys.stderr.write("and to complain\n")
            case "worker" | "jvm" | "all" | "stop" if self._first(message):
                self._strike(message.text.split()[0])
        self._write("done", message)

    def _write(self, what: str, message: Message) -> None:
        with Path(self.calls).open("a") as file:
            file.write(f"{what} {message.lookup_id} {message.abort_count}\n")

    def _first(self, message: Message) -> bool:
        try:
            Path(f"{self.calls}.struck-{message.lookup_id}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @staticmethod
    def _strike(at: str) -> None:
        """Kill or stop processes above this one; the driver first, so that it can do nothing about it."""
        above = psutil.Process().parents()
        jvm = next(number for number, process in enumerate(above) if process.name() == "java")
        worker = next(number for number, process in enumerate(above) if is_daemon(process))
        if at == "stop":
            above[jvm + 1].suspend()
            return
        struck = {"worker": [above[worker]], "jvm": [above[jvm]], "all": [*reversed(above[: jvm + 2]), psutil.Process()]}[at]
        for process in struck:
            process.kill()
        Event().wait()  # until the death of the others reaches it
