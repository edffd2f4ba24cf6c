"""A queue with its policy and its handler, as a driver gets it; and what the handler does beside what ``Unruly`` does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
import pyarrow as pa

from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import Stop, stoppable
from airflow_poison.passes.send import send
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from tests.given.drivers import POLICY, Ahead
from tests.spark.places.place import session
from tests.spark.unruly import Unruly

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.delivery.handlers import HandlerLike
    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.rules.outage import Outage
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

PATIENCE_SECONDS = 120.0
MESSAGES = 300
BAD = range(7, MESSAGES, 10)


def bodies(**others: int) -> list[str]:
    """Every tenth message fails always; the others succeed, but those that are named."""
    found = ["bad" if number in BAD else "good" for number in range(1, MESSAGES + 1)]
    for word, number in others.items():
        found[number - 1] = word
    return found


@dataclass(frozen=True)
class Sited(Unruly):
    """A handler that also kills its driver, once, or lingers until it may go on."""

    def __call__(self, message: Message) -> None:
        match message.text.split()[0]:
            case "driver":
                self._write("call", message)
                if self._first(message):
                    os.kill(int(Path(f"{self.calls}.driver").read_text()), signal.SIGKILL)
                self._write("done", message)
            case "linger":
                self._write("call", message)
                Path(f"{self.calls}.lingers-{os.getpid()}").touch()
                until = time.monotonic() + PATIENCE_SECONDS
                while not Path(f"{self.calls}.go").exists() and time.monotonic() < until:
                    time.sleep(0.02)
                self._write("done", message)
            case _:
                super().__call__(message)


@dataclass(frozen=True)
class Returning(Sited):
    """One whose rows land."""

    def __call__(self, message: Message) -> dict[str, object]:  # type: ignore[override]
        super().__call__(message)
        return {"id": message.lookup_id, "text": message.text}


@dataclass(frozen=True)
class Task:
    """A receive task of one queue.

    :param root: of the store.
    :param named: a handler; None: ``Sited``.
    :param written_to: where calls are written down; empty: beside the store.
    """

    root: str
    policy: Policy = POLICY
    named: HandlerLike | None = None
    lease: timedelta = timedelta(minutes=2)
    options: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()
    written_to: str = ""
    outage: Outage | None = None
    store: QueueStore = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", open_store(self.root, self.options, durable=False))

    @property
    def handler(self) -> HandlerLike:
        """What is called with each message."""
        return self.named or Sited(self.calls_file)

    @property
    def calls_file(self) -> str:
        """Where the calls are written down."""
        return self.written_to or f"{self.root}.calls"

    def table(self) -> QueueTable:
        """Open the queue."""
        return declare(self.store, "orders", self.policy, SystemClock())

    def sent(self, bodies: Sequence[str], priorities: Sequence[int] | None = None, groups: Sequence[str] | None = None) -> Self:
        """Send messages; their lookup ids begin with 1."""
        columns: dict[str, pa.Array] = {"body": pa.array([body.encode() for body in bodies], pa.binary())}  # type: ignore[type-arg]
        if priorities is not None:
            columns["priority"] = pa.array(priorities, pa.int32())
        if groups is not None:
            columns["group_id"] = pa.array(groups)
        send(self.table(), [pa.RecordBatch.from_pydict(columns)], key="all", clock=SystemClock())
        return self

    def a_pass(self, *, late: bool = False) -> ReceivePass:
        """A pass over the queue, in a driver."""
        return ReceivePass(
            table=self.table(),
            policy=self.policy,
            handler=self.handler,
            engine=lambda: SparkEngine(session()),
            clock=Ahead() if late else SystemClock(),
            lease=self.lease,
            store=self.store,
            outputs=self.outputs,
            outage=self.outage,
        )

    def receive(self, key: str, *, late: bool = False) -> ReceiveResult:
        """Receive once, in a driver.

        :param late: half an hour from now.
        """
        Path(f"{self.calls_file}.driver").write_text(str(os.getpid()))
        return self.a_pass(late=late).run(key)

    def receive_until_stopped(self, key: str) -> ReceiveResult:
        """Receive, and stop when a handler lingers, as ``on_kill`` does."""
        stop = Stop()

        def ask() -> None:
            self.until_lingering()
            stop.ask()

        threading.Thread(target=ask, daemon=True).start()
        return stoppable(self.a_pass(), stop).run(key)

    def until_lingering(self) -> list[int]:
        """Wait until a handler lingers; return the processes that do."""
        here, until = Path(self.calls_file), time.monotonic() + PATIENCE_SECONDS
        while not (found := [int(path.name.rpartition("-")[2]) for path in here.parent.glob(f"{here.name}.lingers-*")]):
            assert time.monotonic() < until, "no handler lingers"
            time.sleep(0.05)
        return found

    def go_on(self) -> None:
        """Let those that linger go on, and those to come."""
        Path(f"{self.calls_file}.go").touch()

    def calls(self, what: str = "call") -> Counter[int]:
        """How often each message was delivered (or, with ``done``, succeeded)."""
        return Counter(self.order(what))

    def order(self, what: str = "call") -> list[int]:
        """The messages in the order in which they were delivered."""
        lines = [line.split() for line in Path(self.calls_file).read_text().splitlines()]
        return [int(line[1]) for line in lines if line[0] == what]

    def rows(self) -> dict[int, dict[str, object]]:
        """The messages in the queue; fails when one is there twice."""
        table = self.table()
        rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        found = {row["lookup_id"]: row for row in rows}
        assert len(found) == len(rows), "a message is in the queue twice"
        return found


def until_gone(processes: Sequence[int]) -> None:
    """Wait until processes have ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while any(map(psutil.pid_exists, processes)):
        assert time.monotonic() < until, f"still there: {processes}"
        time.sleep(0.05)


def cycles(number: int) -> Msmq4:
    """A policy with so many retry cycles, each due at once."""
    return replace(POLICY, max_retry_cycles=number, retry_cycle_delay=timedelta(0))


def what_this_process_has() -> tuple[list[str], list[str]]:
    """Return the names of a driver's child processes, and which of the other kind's libraries it has imported."""
    others = ("grpc", "pyspark.sql.connect.session", "pyspark.sql.connect")
    return [child.name() for child in psutil.Process().children(recursive=True)], [name for name in others if name in sys.modules]


def gateway_is_there() -> bool:
    """Whether Py4J has been started in a driver."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None
