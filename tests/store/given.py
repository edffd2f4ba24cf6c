"""What the store tests begin with: a time, messages, and a small pass without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.message import SubQueue, table_schema
from airflow_poison.core.store.seam import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_poison.core.store.seam import Claim, Manifest, QueueTable, Sent

NOW = datetime(2013, 1, 1, tzinfo=UTC)
LEASE = timedelta(minutes=10)
LATER = NOW + timedelta(minutes=30)
CONTROL = Control(policy={"system": "msmq4", "receive_retry_count": 5})


def batch(*bodies: bytes, **columns: Sequence[object]) -> pa.RecordBatch:
    """A batch of messages with these bodies and further columns."""
    return pa.record_batch({"body": pa.array(list(bodies), pa.binary()), **{name: pa.array(values) for name, values in columns.items()}})


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
    count = rows.num_rows
    cells = {
        "sub_queue": pa.array([place] * count, pa.string()),
        "move_count": pa.array([move_count] * count, pa.int32()),
        "due_at": pa.array([due_at] * count, pa.timestamp("us", tz="UTC")),
    }
    for name, values in cells.items():
        rows = rows.set_column(rows.schema.get_field_index(name), table_schema().field(name), values)
    return rows


def seal(queue: QueueTable, claimed: Claim, result: Mapping[str, object] | None = None) -> Manifest:
    return queue.seal(claimed, lambda _: result or {})


def park_all(queue: QueueTable, key: str = "park", due_at: datetime = LATER) -> None:
    """A pass in which every message fails and is parked."""
    claimed = claim(queue, key)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", due_at=due_at))
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def outcome_of_a_third(rows: pa.Table) -> pa.Table:
    """Every third message fails and is parked; the others are settled and leave no row."""
    third = pc.equal(pc.subtract(rows["lookup_id"], pc.multiply(pc.divide(rows["lookup_id"], 3), 3)), 0)
    return put(rows.filter(third), "retry", due_at=LATER)


def all_rows(queue: QueueTable) -> list[dict[str, object]]:
    """Every message of the queue, by lookup id."""
    rows = [row for file in queue.snapshot().files for row in queue.read(file).to_pylist()]
    return sorted(rows, key=lambda row: row["lookup_id"])


def ids(queue: QueueTable, place: SubQueue | None = None) -> list[int]:
    files = [file for file in queue.snapshot().files if place is None or file.sub_queue == place]
    return sorted(number for file in files for number in queue.read(file)["lookup_id"].to_pylist() if number is not None)


def totals(found: Iterable[object]) -> int:
    return sum(1 for _ in found)
