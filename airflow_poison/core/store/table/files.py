"""Data files: write one, read one, say what its footer says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.schema import message_schema, table_schema
from airflow_poison.core.store.files import DataFile
from airflow_poison.core.store.table.layout import new_path, partition_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    Bound = int | datetime | None

GROUP_ROWS = 10_000
"""Rows of a row group: whoever looks for a few rows reads no more than the groups that hold them."""


def write(root: str, path: str, table: pa.Table) -> DataFile:
    """Write the columns of ``message_schema()`` as a new file and describe it. Not yet durable: the commit makes it so."""
    import pyarrow.parquet as pq

    target = Path(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.select(message_schema().names), target, row_group_size=GROUP_ROWS)
    return describe(root, path)


def write_new(root: str, sub_queue: str, move_count: int, table: pa.Table, prefix: str = "") -> DataFile:
    """Write a new file under a new name."""
    return write(root, new_path(sub_queue, move_count, prefix), table)


def renamed(root: str, file: DataFile, place: str | None = None, prefix: str = "") -> DataFile:
    """Give a file that no version names yet a new name, in the same partition or another sub-queue's. Raises TableChangedError when it is gone.

    Each try of a commit does so after it has loaded the version that it builds on: so a file that the try adds was not there under that name
    before, and whoever cleans up (``cleaning``) can never have it in a list that is older than the version.
    """
    path = new_path(place or file.sub_queue, file.move_count, prefix)
    target = Path(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        Path(root, file.path).rename(target)
    except FileNotFoundError as error:
        raise TableChangedError(gone(root, file.path)) from error
    return replace(file, path=path, sub_queue=place or file.sub_queue)


def one_row(sub_queue: str, move_count: int = 0, **cells: object) -> pa.Table:
    """Return a table of one row; columns that are not given are null."""
    import pyarrow as pa

    row = {**cells, "sub_queue": sub_queue, "move_count": move_count}
    return pa.Table.from_pylist([row], schema=table_schema())


def read_columns(root: str, path: str, names: Sequence[str]) -> pa.Table:
    """Return columns of a file as they are. Does not import pandas. Raises TableChangedError when the file is gone or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(Path(root, path)) as parquet:
            return parquet.read(list(names))
    except FileNotFoundError as error:
        raise TableChangedError(gone(root, path)) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise TableChangedError(damaged(root, path, error)) from error


def read(root: str, file: DataFile) -> pa.Table:
    """Return the rows of a file with the columns of ``table_schema()``. Raises TableChangedError when it is gone."""
    return placed(file, read_columns(root, file.path, message_schema().names))


def placed(file: DataFile, rows: pa.Table) -> pa.Table:
    """Return rows of a file with the columns of ``table_schema()``."""
    import pyarrow as pa

    table = rows.select(message_schema().names).cast(message_schema())
    table = table.append_column("sub_queue", pa.repeat(pa.scalar(file.sub_queue, pa.string()), table.num_rows))
    return table.append_column("move_count", pa.repeat(pa.scalar(file.move_count, pa.int32()), table.num_rows))


def gone(root: str, path: str) -> str:
    """Return the words for a file that should be there and is not."""
    return (
        f"The file {path} of the queue table {root} is gone, and no verb of this package removed it. Restore it from a backup, "
        "or find what deletes files there (VACUUM with a short retention, a cleaning job) and stop that."
    )


def damaged(root: str, path: str, why: object) -> str:
    """Return the words for a file that cannot be read, or is not what it was."""
    cause = next(iter(str(why).strip().splitlines()), type(why).__name__)[:200].rstrip(".")
    return (
        f"The file {path} of the queue table {root} is damaged or cannot be read: {cause}. "
        "Nothing was changed. Put it back from a backup; if others cannot be read either, look at the disk and at this user's rights."
    )


def describe(root: str, path: str, partition: tuple[str, int] | None = None) -> DataFile:
    """Return what the footer of a file says.

    :param partition: its sub-queue and move count when its path does not say them.
    """
    import pyarrow.parquet as pq

    place = partition or partition_of(path)
    assert place is not None, path
    target = Path(root, path)
    with pq.ParquetFile(target) as parquet:
        lookup, priority = _bounds(parquet, "lookup_id"), _bounds(parquet, "priority")
        enqueued, due = _bounds(parquet, "enqueued_at"), _bounds(parquet, "due_at")
        rows = parquet.metadata.num_rows
    return DataFile(
        path=path,
        sub_queue=place[0],
        move_count=place[1],
        rows=rows,
        size=target.stat().st_size,
        min_lookup_id=cast("int", lookup[0] or 0),
        max_lookup_id=cast("int", lookup[1] or 0),
        min_priority=cast("int", priority[0] or 0),
        max_priority=cast("int", priority[1] or 0),
        min_enqueued_at=cast("datetime | None", enqueued[0]),
        min_due_at=cast("datetime | None", due[0]),
        max_due_at=cast("datetime | None", due[1]),
    )


def _bounds(parquet: pq.ParquetFile, column: str) -> tuple[Bound, Bound]:
    """Return the least and the greatest value of a column, from the footer where it has them, else from the rows."""
    metadata = parquet.metadata
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if column not in names:
        return None, None
    index = names.index(column)
    lows: list[Bound] = []
    highs: list[Bound] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            lows.append(statistics.min)
            highs.append(statistics.max)
        elif statistics is None or statistics.null_count != chunk.num_values:
            return _bounds_of_rows(parquet, column)
    return min(lows, default=None), max(highs, default=None)  # type: ignore[type-var]  # one column has one type


def _bounds_of_rows(parquet: pq.ParquetFile, column: str) -> tuple[Bound, Bound]:
    """Return the bounds of a column whose writer kept none (Spark's INT96 timestamps)."""
    import pyarrow.compute as pc

    values = parquet.read([column]).column(column)
    kept = values.cast(message_schema().field(column).type)
    return pc.min(kept).as_py(), pc.max(kept).as_py()
