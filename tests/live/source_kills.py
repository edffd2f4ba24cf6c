"""Two takers of one source that race and are killed at random, while a test lets records come in."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import take
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.sources.source import Source
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.schema import SubQueue

ROOT = Path(__file__).resolve().parents[2]
KILLS = 40
_numbers = count()


def a_table(folder: Path) -> QueueTable:
    """Return a new queue on a disk."""
    return declare(open_store(str(folder / "store")), "taken", Msmq4(), SystemClock())


def taken(table: QueueTable, source: Source, **how: Any) -> int:
    """Take once; how many messages were sent."""
    return take(table, source, key=f"take-{next(_numbers)}", clock=SystemClock(), **how).sent


def rows(table: QueueTable, place: SubQueue | None = None) -> list[dict[str, Any]]:
    """Return all messages, in order.

    :param place: those of this sub-queue.
    """
    found = [row for file in table.snapshot().files if place in {None, file.sub_queue} for row in table.read(file).to_pylist()]
    return sorted(found, key=lambda row: int(row["lookup_id"]))


def bodies(table: QueueTable) -> list[Any]:
    """Return the bodies of all messages, as JSON says, in order."""
    there = rows(table)
    assert [row["reason"] for row in there if row["reason"] is not None] == []
    return [json.loads(row["body"]) for row in there]


@dataclass
class Takers:
    """Two processes that take."""

    folder: Path
    source: Source
    spark: str
    log: Path = field(init=False)
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.folder / "errors"
        (self.folder / "source").write_bytes(pickle.dumps(self.source))

    def start(self) -> None:
        """Start one more."""
        command = [sys.executable, "-m", "tests.live.source_taker", str(self.folder / "store"), "taken", str(self.folder / "source"), self.spark]
        with self.log.open("a") as errors:
            self._processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True))

    def kill(self, after: float) -> None:
        """Kill the older one, some seconds after it has begun to take."""
        process = self._processes.pop(0)
        assert process.stdout is not None
        assert process.stdout.readline() == "takes\n", self.log.read_text()
        time.sleep(after)
        _killed(process)

    def end(self) -> None:
        """Kill all."""
        for process in self._processes:
            _killed(process)


def _killed(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def killed(folder: Path, source: Source, arrive: Callable[[int], None], *, kills: int = KILLS, spark: str = "") -> QueueTable:
    """Let two takers race, and kill one of them again and again; the queue with all that was there to take.

    :param arrive: lets records come in; called before each kill with its number.
    :param spark: settings of the takers' Spark, as JSON; none: they read themselves.
    """
    table, draw = a_table(folder), random.Random(11)
    takers = Takers(folder, source, spark)
    try:
        takers.start()
        takers.start()
        for number in range(kills):
            arrive(number)
            takers.kill(draw.uniform(0, 0.6))
            takers.start()
    finally:
        takers.end()
    assert "Traceback" not in takers.log.read_text()
    while taken(table, source):
        pass
    lookup_ids = [row["lookup_id"] for row in rows(table)]
    assert lookup_ids == list(range(1, len(lookup_ids) + 1))
    return table
