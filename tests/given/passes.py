"""What the tests of whole passes begin with: a queue, messages whose body says what the handler does, and a pass in this process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.failures import Postpone, Unprocessable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.delivery.handlers import Batching
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.passes.engines import Engine
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from airflow_poison.values.schema import SubQueue

LEASE = timedelta(minutes=2)
NO_RETRY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


class BadMessageError(Exception):
    """What the handler raises for a message that says ``bad``."""


@dataclass(frozen=True)
class Handler:
    """Does what the first word of the body says, and writes each call and each success into a file.

    :param deadly: what a message that says ``kill`` does to the process; False: it is an ordinary success now.
    """

    calls: str
    deadly: bool = True

    def __call__(self, message: Message) -> None:
        """Be called with a message."""
        self._write("call", message)
        match message.text.split()[0]:
            case "bad":
                raise BadMessageError(message.text)
            case "later":
                raise Postpone(timedelta(0))
            case "never":
                raise Unprocessable
            case "kill" if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                self._write("done", message)

    def _write(self, what: str, message: Message) -> None:
        with Path(self.calls).open("a") as file:
            file.write(f"{what} {message.lookup_id} {message.abort_count} {message.move_count}\n")


def calls(handler: Handler, what: str = "call") -> Counter[int]:
    """How often each message was delivered (or, with ``done``, succeeded)."""
    path = Path(handler.calls)
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(int(line[1]) for line in lines if line[0] == what)


def one_each(first: int, last: int) -> Counter[int]:
    """Every message of a range once."""
    return Counter(range(first, last + 1))


@dataclass(frozen=True)
class Queue:
    """A queue with everything that a pass over it needs."""

    store: QueueStore
    table: QueueTable
    policy: Policy
    handler: Handler
    clock: VirtualClock
    engine: Callable[[], Engine] = LocalEngine
    batching: Batching | None = None

    def having(self, **changes: object) -> Queue:
        """The same queue with other parts."""
        return replace(self, **changes)  # type: ignore[arg-type]  # the names are the fields'

    def sent(self, *bodies: str | bytes, expires: timedelta | None = None, properties: dict[str, str] | None = None, key: str = "") -> Queue:
        """Send messages; their lookup ids go on from the last one's."""
        number = self.table.snapshot().version
        columns: dict[str, pa.Array[Any]] = {"body": pa.array([body.encode() if isinstance(body, str) else body for body in bodies], pa.binary())}
        if expires is not None:
            columns["expires_at"] = pa.array([self.clock.now() + expires] * len(bodies), pa.timestamp("us", tz="UTC"))
        if properties is not None:
            columns["properties"] = pa.array([list(properties.items())] * len(bodies), pa.map_(pa.string(), pa.string()))
        send(self.table, [pa.RecordBatch.from_pydict(columns)], key=key or f"send-{number}", clock=self.clock)
        return self

    def receive(self, key: str = "run", **changes: object) -> ReceiveResult:
        """Receive once, in this process."""
        return self.a_pass(**changes).run(key)

    def a_pass(self, **changes: object) -> ReceivePass:
        plain = ReceivePass(
            table=self.table,
            policy=self.policy,
            handler=self.handler,
            engine=self.engine,
            clock=self.clock,
            isolation="none",
            lease=LEASE,
            store=self.store,
            batching=self.batching,
        )
        return replace(plain, **changes)  # type: ignore[arg-type]  # the names are the fields'

    def rows(self, place: SubQueue | None = None) -> dict[int, dict[str, object]]:
        """The messages that are in the queue, by lookup id."""
        return rows_of(self.table, place)

    def counts(self, lookup_id: int) -> tuple[object, object]:
        """Abort count and move count of a message in the queue."""
        row = self.rows()[lookup_id]
        return row["abort_count"], row["move_count"]

    def happened(self) -> list[tuple[str, int | None]]:
        """Every recorded event."""
        return [(event.type.value, event.lookup_id) for event in self.table.events()]


def rows_of(table: QueueTable, place: SubQueue | None = None) -> dict[int, dict[str, object]]:
    """The messages of a queue by lookup id; fails when one is there twice."""
    files = [file for file in table.snapshot().files if place is None or file.sub_queue == place]
    rows = [row for file in files for row in table.read(file).to_pylist()]
    found = {row["lookup_id"]: row for row in rows}
    assert len(found) == len(rows), "a message is in the queue twice"
    return found


def bodies(table: QueueTable) -> list[str]:
    """The bodies of a queue's messages, sorted."""
    return sorted(row["body"].decode() for row in rows_of(table).values())  # type: ignore[attr-defined]  # bytes


def needs_processes(store: QueueStore) -> None:
    """Leave a test out where no other process can use the store: an object store in this process's memory."""
    if isinstance(store, BucketStore) and store.uri.startswith("bucket://"):
        pytest.skip("another process cannot use this object store; tests/store/s3 has processes on one that they can")


def a_queue(store: QueueStore, folder: Path, policy: Policy = NO_RETRY) -> Queue:
    """An empty queue."""
    clock = VirtualClock()
    return Queue(store, declare(store, "orders", policy, clock), policy, Handler(str(folder / "calls")), clock)


class NoEngine:
    """An engine that must not be asked for."""

    def __call__(self) -> Engine:
        raise AssertionError("an engine was made although there was nothing to deliver")


class DyingEngine(LocalEngine):
    """Delivers everything, then dies before its outcome is staged."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        super().run(table, claim, job, keep_alive=keep_alive)
        raise DiedError


class DiedError(BaseException):
    """Stands for the death of the process: nothing of ours catches it."""
