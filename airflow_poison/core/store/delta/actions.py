"""Data files as Delta's actions, and back: what the log's statistics say about a file."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.core.schema import CONVERSATION, OUTBOX, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.core.store.files import DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

PARTITION_BY = ["sub_queue", "move_count"]
_COLUMNS = {
    "path": "path",
    "sub_queue": "partition.sub_queue",
    "move_count": "partition.move_count",
    "rows": "num_records",
    "size": "size_bytes",
    "min_lookup_id": "min.lookup_id",
    "max_lookup_id": "max.lookup_id",
    "min_priority": "min.priority",
    "max_priority": "max.priority",
    "min_enqueued_at": "min.enqueued_at",
    "min_due_at": "min.due_at",
    "max_due_at": "max.due_at",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITH_STATISTICS = frozenset({*(place.value for place in SubQueue), OUTBOX, CONVERSATION, TRANSMISSION_QUEUE})


def files_of(table: DeltaTable) -> tuple[DataFile, ...]:
    """Return the live files, from the log alone. Does not import pandas: ``pa.table(...)`` of the same actions would (up to 10 s)."""
    import pyarrow as pa

    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    columns = [_values(actions.column(name)) for name in _COLUMNS.values()]
    return tuple(_file(dict(zip(_COLUMNS, cells, strict=True))) for cells in zip(*columns, strict=True))


def _values(column: pa.ChunkedArray[Any]) -> list[object]:
    """Return a column as Python values; instants by way of their numbers, because Arrow's own conversion imports pandas."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    numbers = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if number is None else _EPOCH + timedelta(microseconds=number) for number in numbers]


def _file(cells: dict[str, object]) -> DataFile:
    """Return a file; numbers without a statistic (rows that are not messages) are 0."""
    numbers = ("move_count", "rows", "size", "min_lookup_id", "max_lookup_id", "min_priority", "max_priority")
    return DataFile(**{**cells, **{name: cells[name] or 0 for name in numbers}})  # type: ignore[arg-type]  # the schema has these types


def add(file: DataFile, *, data_change: bool) -> AddAction:
    """Return the action that makes a file part of the table."""
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size, _partition(file), now_ms(), data_change, _statistics(file))


def remove(file: DataFile, *, data_change: bool) -> RemoveAction:
    """Return the action that takes a file out of the table."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, data_change, now_ms(), file.size, _partition(file))


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"sub_queue": file.sub_queue, "move_count": str(file.move_count)}


def _statistics(file: DataFile) -> str:
    """Return Delta's statistics of a file. Events, claims and control rows get their number only: their columns mean other things."""
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    if file.sub_queue in _WITH_STATISTICS:
        least |= {"lookup_id": file.min_lookup_id, "priority": file.min_priority}
        greatest |= {"lookup_id": file.max_lookup_id, "priority": file.max_priority}
        if file.min_enqueued_at is not None:
            least["enqueued_at"] = _instant(file.min_enqueued_at)
        if file.min_due_at is not None and file.max_due_at is not None:
            least["due_at"], greatest["due_at"] = _instant(file.min_due_at), _instant(file.max_due_at)
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": greatest, "nullCount": {}})


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the machine's time: retention of removed files and of numbers is a matter of the disk, not of the queue's clock."""
    return time.time_ns() // 1_000_000
