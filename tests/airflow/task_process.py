"""A receive task in a process of its own, as Airflow starts one for each try: the same task instance, whoever starts it and however often."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tests.given import forked

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.values.message import Message

PAUSE = 0.02


@dataclass(frozen=True)
class Writes:
    """A handler that writes down who was delivered, and does what a message says once.

    :param calls: the file; ``<what> <lookup id>`` a line.
    """

    calls: str

    def __call__(self, message: Message) -> None:
        self._write("call", message)
        if message.text == "worker vanishes" and not Path(f"{self.calls}.vanished").exists():
            Path(f"{self.calls}.vanished").touch()
            import psutil

            psutil.Process().parents()[1].kill()  # above the zygote is the task
            Event().wait()
        if message.text == "meet":
            while len(list(Path(self.calls).parent.glob("*.claimed"))) < 2:
                time.sleep(PAUSE)
        time.sleep(PAUSE)
        self._write("done", message)

    def _write(self, what: str, message: Message) -> None:
        with Path(self.calls).open("a") as file:
            file.write(f"{what} {message.lookup_id}\n")


def start(calls: Path, run_id: str) -> forked.Started:
    """Start a try of the task instance; it finds the connection in the environment."""
    return forked.Started(main, str(calls), run_id)


def called(calls: Path, what: str = "call") -> Counter[int]:
    """How often each message was delivered (or, with ``done``, succeeded)."""
    lines = [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []
    return Counter(int(line[1]) for line in lines if line[0] == what)


def main(calls: str, run_id: str) -> None:
    """Run one try."""
    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.operators.receive import QueueReceiveOperator
    from airflow_poison.passes.engines import LocalEngine
    from airflow_poison.values.fault_points import install

    QueueHook.engine = lambda _self, *_: LocalEngine()  # type: ignore[assignment, method-assign]
    instance = SimpleNamespace(dag_id="shop", run_id=run_id, task_id="receive", map_index=-1, xcom_push=lambda **_: None)
    task = QueueReceiveOperator(task_id="receive", queue_name="orders", handler=Writes(calls))
    install(lambda point: Path(f"{calls}-{os.getpid()}.claimed").touch() if point == "pass.receive.before_delivery" else None)
    numbers = cast("dict[str, Any]", task.execute(cast("Context", {"ti": instance})))
    sys.stdout.write(f"\nreceived {numbers['received']} settled {numbers['settled']} crashes {numbers['crashes']}\n")
