"""Processes that take a source into a queue and receive from it, through the command line, and are killed at random."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.passes.take import positions
from airflow_poison.store import open_store
from airflow_poison.values.schema import SubQueue
from tools.demo_sources.feeds import COLUMNS, OUTPUT, land

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_poison.store.queue_table import QueueTable
    from tools.demo_sources.feeds import Feed, Filling

CLONE = Path(__file__).resolve().parents[2]
POLICY = ("--system", "Msmq4", "--set", "receive_retry_count=0", "max_retry_cycles=0", "receive_error_handling=Move")
TAKERS, LIVES_OF_TAKERS, LIVES_OF_RECEIVERS = 2, (0.5, 4.0), (4.0, 20.0)
"""How many take at the same time, and how many seconds those live that are killed."""
CHANCE = 0.7
"""That one is killed after the first kill, until so many were as shall be: some come to their end in between."""
FAILURES = 3
"""So many processes that end with an error, and not by a kill, are too many."""
LOOK, TELL = 0.2, 5.0


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@dataclass
class Worker:
    """A process that is run again until it has nothing to do any more. After a kill it is run with the same key, as Airflow's retries are.

    :param command: its command line, by key.
    :param is_done: told what a process of it has printed that ended well.
    :param lives: of those that are killed.
    """

    name: str
    command: Callable[[str], Sequence[str]]
    environment: Mapping[str, str]
    logs: Path
    is_done: Callable[[Worker, str], bool]
    lives: tuple[float, float]
    kills: int
    draw: random.Random
    number: int = 1
    killed: int = 0
    failed: int = 0
    done: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    dies_at: float | None = None

    def step(self) -> None:
        """Start, kill or note the end of the process. Raises DemoError."""
        if self.done:
            return
        if self.process is None:
            self._start()
        elif os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            self._ended(self.end())
        elif self.dies_at is not None and time.monotonic() > self.dies_at:
            self.end()
            self.killed += 1

    def end(self) -> int:
        """Kill the process and what it has started; return its exit code."""
        if self.process is None:
            return 0
        os.killpg(self.process.pid, signal.SIGKILL)  # nobody has waited for it yet, so the number is still its own
        code = self.process.wait()
        self.process = None
        return code

    @property
    def key(self) -> str:
        """What its process is run with."""
        return f"{self.name}-{self.number}"

    @property
    def _said(self) -> Path:
        return self.logs / f"{self.key}.json"

    def _start(self) -> None:
        with self._said.open("wb") as out, self._said.with_suffix(".log").open("ab") as errors:
            command = [sys.executable, "-m", "airflow_poison", *self.command(self.key), "--output", "json"]
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(
                command, cwd=CLONE, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment, start_new_session=True
            )
        dies = self.killed < self.kills and (not self.killed or self.draw.random() < CHANCE)
        self.dies_at = time.monotonic() + self.draw.uniform(*self.lives) if dies else None

    def _ended(self, code: int) -> None:
        if code:
            self.failed += 1
            if self.failed > FAILURES:
                raise DemoError(f"{self.name} has failed {self.failed} times, the last time with {code}; see {self._said.with_suffix('.log')}")
            return
        self.done = self.is_done(self, self._said.read_text())
        self.number += 1


def play(feed: Feed, folder: Path, filling: Filling, *, kills: int, limit: int, draw: random.Random) -> Iterator[str]:
    """Take a feed and receive it, with so many kills of those who take, and a third of them of those who receive. Yields how far it is.

    :param limit: what is taken at once, at most.
    Raises DemoError.
    """
    where, logs = ("--store", str(folder / "store")), folder / "logs"
    logs.mkdir(parents=True)
    store = open_store(str(folder / "store"))
    began_whole: dict[str, bool] = {}

    def taking(key: str) -> list[str]:
        began_whole[key] = filling.is_whole()
        return ["send", feed.queue, *where, "--source", feed.source, "--max-messages", str(limit), "--send-key", key, *POLICY]

    def receiving(key: str) -> list[str]:
        said = ("--transform", f"{land.__module__}:{land.__qualname__}", "--schema", COLUMNS, "--spark", "local[2]", "--run-key", key)
        return ["receive", feed.queue, *where, *said, "--output-table", str(folder / "landed"), "--output-schema", OUTPUT]

    def all_taken(taker: Worker, said: str) -> bool:
        result = json.loads(said)
        return began_whole[taker.key] and not result["what"] and not result["repeated"] and taker.killed >= taker.kills

    environment = filling.environment
    takers = [Worker(f"take-{number}", taking, environment, logs, all_taken, LIVES_OF_TAKERS, -(-kills // TAKERS), draw) for number in range(TAKERS)]

    def all_received(_worker: Worker, _said: str) -> bool:
        return all(taker.done for taker in takers) and _is_empty(table)

    receiver = Worker("receive", receiving, environment, logs, all_received, LIVES_OF_RECEIVERS, max(1, kills // 3), draw)
    workers, told = list(takers), time.monotonic()
    try:
        while not all(worker.done for worker in workers):
            for worker in workers:
                worker.step()
            if receiver not in workers and feed.queue in store.names():
                table = store.open(feed.queue)
                workers.append(receiver)
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                yield _seen(table, takers, receiver) if receiver in workers else "the queue is not there yet"
            time.sleep(LOOK)
        yield _seen(table, takers, receiver)
    finally:
        for worker in workers:
            worker.end()


def _is_empty(table: QueueTable) -> bool:
    snapshot = table.snapshot()
    return not snapshot.landings and not any(file.sub_queue == SubQueue.MAIN for file in snapshot.files)


def _seen(table: QueueTable, takers: Sequence[Worker], receiver: Worker) -> str:
    snapshot = table.snapshot()
    rows = {place: sum(file.rows for file in snapshot.files if file.sub_queue == place) for place in (SubQueue.MAIN, SubQueue.POISON)}
    taken = sum(each.messages for each in positions(table, snapshot))
    return (
        f"{taken:,} taken, {taken - sum(rows.values()):,} settled, {rows[SubQueue.MAIN]:,} wait, {rows[SubQueue.POISON]:,} in poison; killed: "
        f"{sum(taker.killed for taker in takers)} takers, {receiver.killed} receivers"
    )
