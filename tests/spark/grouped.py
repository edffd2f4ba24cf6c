"""A handler that writes every call down, with its group and its task, and does what the body says."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.values.message import Message

PATIENCE_SECONDS = 60.0


class Delivery(NamedTuple):
    """One call of the handler.

    :param task: the process above its own, of which each task at work has one.
    """

    group: str
    number: int
    abort_count: int
    task: int


@dataclass(frozen=True)
class Grouped:
    """A handler.

    :param root: the folder of the store; calls are written beside it.
    """

    root: str

    def __call__(self, message: Message) -> None:
        with self._calls.open("a") as file:
            file.write(f"{message.group_id} {message.lookup_id} {message.abort_count} {os.getppid()}\n")
        match message.text:
            case "twice" if message.abort_count < 2:
                raise ValueError("not yet")
            case "never":
                raise ValueError("never")
            case "poison":
                if message.abort_count == 4:
                    _wait(lambda: any(call.number != message.lookup_id for call in self.deliveries()))
                raise ValueError("never")
            case "until-halted":
                _wait(lambda: any(Path(self.root).rglob("halted")))  # a task has told the others that its endpoint has halted

    def deliveries(self) -> list[Delivery]:
        """Return the calls, in order."""
        lines = [line.split() for line in self._calls.read_text().splitlines()] if self._calls.exists() else []
        return [Delivery(group, int(number), int(aborts), int(task)) for group, number, aborts, task in lines]

    @property
    def _calls(self) -> Path:
        return Path(f"{self.root}.calls")


def _wait(happened: Callable[[], bool]) -> None:
    overdue = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > overdue:
            raise TimeoutError("it has not happened")
        time.sleep(0.01)
