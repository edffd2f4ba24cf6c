"""Row groups: the rows of a data file that are wanted, read without the rest of the file.

Statistics say which row groups can hold them. Of those, the columns that decide are read; all columns only of the rows that were chosen, in portions.
So neither the memory nor the time that a look takes grows with the bodies of a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_poison.store import data_files
from airflow_poison.store.data_files import placed
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_poison.store.disk import Folder
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import Table

PORTION_ROWS = 1_024
"""So many rows are in memory while chosen ones are taken out of a row group."""
_BUFFER_BYTES = 1024 * 1024
_BATCH_BYTES = 32 * 1024 * 1024
PLACE = ("row_group", "row")
"""The columns that say where a row is."""
_GROUP, _ROW = PLACE
_RECEIVE_COLUMNS = ("priority", "lookup_id")
_RECEIVE_ORDER: Final[list[tuple[str, Literal["ascending", "descending"]]]] = [("priority", "descending"), ("lookup_id", "ascending")]


class RowGroups:
    """The row groups of an open file."""

    def __init__(self, parquet: pq.ParquetFile) -> None:
        self._parquet = parquet
        self._metadata = parquet.metadata
        self._index = {self._metadata.schema.column(index).path: index for index in range(self._metadata.num_columns)}

    def __len__(self) -> int:
        return int(self._metadata.num_row_groups)

    def rows(self, group: int) -> int:
        """Return how many rows a group has."""
        return int(self._metadata.row_group(group).num_rows)

    def bounds(self, group: int, column: str) -> tuple[Any, Any] | None:
        """Return the least and the greatest value of a column in a group; None where its writer kept none, or it has no value."""
        statistics = self._statistics(group, column)
        return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None

    def latest(self, group: int, column: str) -> float | None:
        """Return the greatest instant of a column in a group, in seconds since 1970, as it is kept: in microseconds. None: its writer kept none."""
        statistics = self._statistics(group, column)
        raw: Any = statistics.max_raw if statistics is not None and statistics.has_min_max else None
        return None if raw is None else raw / 1e6

    def is_all(self, group: int, column: str, value: object) -> bool:
        """Whether statistics say that a column of a group has this one value in every row."""
        statistics = self._statistics(group, column)
        return statistics is not None and statistics.null_count == 0 and self.bounds(group, column) == (value, value)

    def may_hold(self, group: int, column: str, values: Collection[Any]) -> bool:
        """Whether statistics allow a group to have one of these values in a column."""
        bounds = self.bounds(group, column)
        return bounds is None or any(bounds[0] <= value <= bounds[1] for value in values)

    def columns(self, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Return narrow columns of groups, with the place of each row for ``take``."""
        rows = pa.concat_tables([self._nothing(names), *(self._parquet.read_row_group(group, list(names)).select(list(names)) for group in groups)])
        places = [(group, self.rows(group)) for group in groups]
        numbers = pa.chunked_array([pa.array(range(count), pa.int32()) for _, count in places], pa.int32())
        within = pa.chunked_array([pa.repeat(pa.scalar(group, pa.int32()), count) for group, count in places], pa.int32())
        return rows.append_column(_GROUP, within).append_column(_ROW, numbers)

    def batches(self, groups: Sequence[int], names: Sequence[str], rows: int = 64 * PORTION_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield columns of groups in their order, at most so many rows at a time."""
        yield from self._parquet.iter_batches(rows, row_groups=list(groups), columns=list(names))

    def take(self, places: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of the rows at these places of ``columns``, in the order of the file."""
        return pa.concat_tables([self._nothing(names), *self.portions(places, names)])

    def portions(self, places: pa.Table, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield what ``take`` returns in portions that are small, whatever the number of rows."""
        wanted: dict[int, list[int]] = {}
        for group, row in zip(places[_GROUP].to_pylist(), places[_ROW].to_pylist(), strict=True):
            wanted.setdefault(group or 0, []).append(row or 0)
        for group in sorted(wanted):
            yield from self._taken(group, sorted(wanted[group]), names)

    def _taken(self, group: int, rows: Sequence[int], names: Sequence[str]) -> Iterator[pa.Table]:
        begin = done = 0
        for batch in self._parquet.iter_batches(PORTION_ROWS, row_groups=[group], columns=list(names)):
            end = done
            while end < len(rows) and rows[end] < begin + batch.num_rows:
                end += 1
            if end > done:
                yield pa.Table.from_batches([batch.take(pa.array([row - begin for row in rows[done:end]]))]).select(list(names))
            begin, done = begin + batch.num_rows, end
            if done == len(rows):
                return

    def _nothing(self, names: Sequence[str]) -> pa.Table:
        return pa.Table.from_batches([], self._parquet.schema_arrow).select(list(names))

    def _statistics(self, group: int, column: str) -> pq.Statistics | None:
        index = self._index.get(column)
        return None if index is None else self._metadata.row_group(group).column(index).statistics


@contextmanager
def open_row_groups(folder: Folder, path: str) -> Iterator[RowGroups]:
    """Open a file to read some of its rows. Raises TableChangedError when it is gone or damaged."""
    with data_files.opened(folder, path, buffer_size=_BUFFER_BYTES) as parquet:
        yield RowGroups(parquet)


def first(table: Table, file: DataFile, limit: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the first rows of a file, highest priority first, then lowest lookup id; row groups behind them are not read.

    :param columns: ``lookup_id`` and ``priority`` among them; None: as in ``table_schema()``.
    """
    with open_row_groups(table.folder, file.path) as groups:
        best = groups.columns([], _RECEIVE_COLUMNS)
        for key, group in sorted((_first_key(groups, group), group) for group in range(len(groups))):
            if best.num_rows >= limit and key > _key(best.slice(limit - 1).to_pylist()[0]):
                break
            best = pa.concat_tables([best, groups.columns([group], _RECEIVE_COLUMNS)]).sort_by(_RECEIVE_ORDER).slice(0, limit)
        return _taken(file, groups, best, columns).sort_by(_RECEIVE_ORDER)


def streamed(parquet: pq.ParquetFile, rows: int, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in its order, some at a time. Memory holds one row group: Arrow would keep what it has read of all.

    :param rows: of a batch, at most; fewer where they are large.
    """
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        fit = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
        yield from parquet.iter_batches(max(1, min(rows, fit)), row_groups=[number], use_threads=use_threads)


def batches(table: Table, file: DataFile, rows: int) -> Iterator[pa.Table]:
    """Yield a file's rows with the columns of ``table_schema()``, in its order and in portions of so many, which alone are in memory."""
    names = message_schema().names
    with data_files.opened(table.folder, file.path, buffer_size=_BUFFER_BYTES) as parquet:
        for batch in parquet.iter_batches(rows, columns=names):
            yield placed(file, pa.Table.from_batches([batch]))


def select(table: Table, file: DataFile, lookup_ids: Collection[int], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file with these lookup ids, in its order; row groups that cannot hold them are not read. Columns as in ``first``."""
    wanted = sorted(number for number in lookup_ids if abs(number) < 2**63)  # people type longer ones, too
    with open_row_groups(table.folder, file.path) as groups:
        parts = [groups.columns([], ["lookup_id"])]
        for group in range(len(groups)):
            if groups.may_hold(group, "lookup_id", wanted):
                keys = groups.columns([group], ["lookup_id"])
                parts.append(keys.filter(pc.is_in(keys["lookup_id"], pa.array(wanted, pa.int64()))))
        return _taken(file, groups, pa.concat_tables(parts), columns)


def _taken(file: DataFile, groups: RowGroups, places: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return placed(file, groups.take(places, message_schema().names)) if columns is None else groups.take(places, columns)


def _first_key(groups: RowGroups, group: int) -> tuple[float, float]:
    """Return the least key that a row of a group can have; before all others where statistics do not say."""
    priority, lookup_id = (groups.bounds(group, name) for name in _RECEIVE_COLUMNS)
    return (-inf if priority is None else -priority[1], -inf if lookup_id is None else lookup_id[0])


def _key(row: dict[str, Any]) -> tuple[float, float]:
    return (-(row["priority"] or 0), row["lookup_id"] or 0)
