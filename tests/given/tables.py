"""What the store tests begin with: a time, messages, and a small pass without Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.store.control import Control
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.schema import SubQueue, table_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.store.files import Claim, Manifest, Sent
    from airflow_poison.store.queue_table import QueueTable

NOW = datetime(2013, 1, 1, tzinfo=UTC)
LEASE = timedelta(minutes=10)
LATER = NOW + timedelta(minutes=30)
CONTROL = Control(policy={"system": "msmq4", "receive_retry_count": 5})


def batch(*bodies: bytes, **columns: list[int] | list[str | None] | list[int | None]) -> pa.RecordBatch:
    """A batch of messages with these bodies and further columns."""
    return pa.record_batch({"body": list(bodies), **columns})


def numbered(count: int, start: int = 0) -> pa.RecordBatch:
    return batch(*(str(number).encode() for number in range(start, start + count)))


def send(queue: QueueTable, count: int, key: str = "first") -> Sent:
    return queue.append([numbered(count)], key, NOW)


def claim(queue: QueueTable, key: str = "run", messages: int = 1_000_000) -> Claim:
    claimed = queue.claim(key, lease=LEASE, now=NOW, max_messages=messages)
    assert claimed is not None
    return claimed


def rows_of(queue: QueueTable, claimed: Claim) -> pa.Table:
    return pa.concat_tables([queue.read(file) for file in claimed.files])


def put(rows: pa.Table, place: str, move_count: int = 1, due_at: datetime | None = None) -> pa.Table:
    """The same messages as outcome rows that go to another sub-queue."""
    cells = {"sub_queue": place, "move_count": move_count, "due_at": due_at}
    return pa.Table.from_pylist([row | cells for row in rows.to_pylist()], schema=table_schema())


def seal(queue: QueueTable, claimed: Claim, result: Mapping[str, object] | None = None) -> Manifest:
    return queue.seal(claimed, lambda _: result or {})


def copied(queue: QueueTable, root: str, *, durable: bool = True) -> QueueTable:
    """A copy of a queue with a history, alone in a store of its own: to make it again takes longer."""
    table = Path(queue.root)
    shutil.copytree(table, Path(root, table.name))
    return DeltaStore(root, durable=durable).open(table.name)


def park_all(queue: QueueTable, key: str = "park", due_at: datetime = LATER) -> None:
    """A pass in which every message fails and is parked."""
    claimed = claim(queue, key)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", due_at=due_at))
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def outcome_of_a_third(rows: pa.Table) -> pa.Table:
    """Every third message fails and is parked; the others are settled and leave no row."""
    failed = [index for index, number in enumerate(rows["lookup_id"].to_pylist()) if number is not None and number % 3 == 0]
    return put(rows.take(failed), "retry", due_at=LATER)


def all_rows(queue: QueueTable) -> list[dict[str, object]]:
    """Every message of the queue, by lookup id."""
    rows = [row for file in queue.snapshot().files for row in queue.read(file).to_pylist()]
    return sorted(rows, key=lambda row: row["lookup_id"])


def ids(queue: QueueTable, place: SubQueue | None = None) -> list[int]:
    files = [file for file in queue.snapshot().files if place is None or file.sub_queue == place]
    return sorted(number for file in files for number in queue.read(file)["lookup_id"].to_pylist() if number is not None)


def places(table: QueueTable) -> dict[str, int]:
    """Return how many messages each sub-queue has."""
    found = Counter[str]()
    for file in table.snapshot().files:
        found[file.sub_queue] += file.rows
    return dict(found)
