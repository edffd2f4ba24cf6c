"""Versions of a Delta table in memory, and data files as the log's actions.

delta-rs brings a loaded table up to date *in place*. So a loaded table belongs to one version's state alone, as long as anybody has that state:
one that moved on under somebody's feet would let a commit through that was planned on an older version. Only when nobody has the state any more
does the next read get its table; threads and nested reads find none then, and load their own.
"""

from __future__ import annotations

import json
import time
import weakref
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.core.message import CONVERSATION, OUTBOX, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.core.store.delta.entries import entry_path
from airflow_poison.core.store.files import DataFile

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@dataclass(frozen=True, slots=True)
class EntryMark:
    """What tells a version's entry in the log from another one that took its place (a torn one was taken away, a backup put back)."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, root: str, version: int) -> EntryMark | None:
        """Return the mark of an entry; None when it is not there: cleaned up behind a checkpoint."""
        try:
            found = entry_path(root, version).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(slots=True)
class Loaded:
    """A loaded table.

    :param entry: the mark of its version's entry, looked at right after it was loaded.
    :param files: the live files, when somebody has asked for them.
    """

    table: DeltaTable
    entry: EntryMark | None
    files: tuple[DataFile, ...] | None = None


class DeltaState:
    """One version of a Delta table.

    :ivar damaged: behind it in the log lies what does not count, in the way of the next commit.
    """

    def __init__(self, loaded: Loaded, *, damaged: bool = False) -> None:
        self._loaded = loaded
        self.version: int = loaded.table.version()
        self.damaged = damaged

    @property
    def table(self) -> DeltaTable:
        """What delta-rs has loaded; it stays at this version as long as the state is used."""
        return self._loaded.table

    @property
    def has_entry(self) -> bool:
        """Whether the log had the version's own entry when it was loaded."""
        return self._loaded.entry is not None

    @property
    def is_empty(self) -> bool:
        """Whether the version's entry has no content: delta-rs takes it for a version in which nothing happened."""
        return self._loaded.entry is not None and self._loaded.entry.size == 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Every live file; listed when first asked for (a send never asks)."""
        if self._loaded.files is None:
            self._loaded.files = files_of(self.table)
        return self._loaded.files

    def paths(self, sub_queue: str) -> Sequence[str]:
        """Return the paths of the live files of one partition; the log picks them, so a table of many files costs no more."""
        uris = self.table.file_uris(file_pruning_predicate=f"sub_queue = '{sub_queue}'")
        return [uri[uri.rindex(f"sub_queue={sub_queue}/") :] for uri in uris]

    def number(self, name: str) -> int | None:
        """Return the version of an application transaction."""
        return self.table.transaction_version(name)


class Looks:
    """Looks at the newest version of one table. Used by several threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._idle: deque[Loaded] = deque(maxlen=1)

    def newest(self) -> DeltaState:
        """Return the newest version, from the last look where that still holds. Raises DeltaError, OSError."""
        return self._state(self._brought_up_to_date() or self._afresh())

    def _state(self, loaded: Loaded) -> DeltaState:
        state = DeltaState(loaded)
        weakref.finalize(state, self._idle.append, loaded).atexit = False
        return state

    def _brought_up_to_date(self) -> Loaded | None:
        """Return the idle table at the newest version; None when there is none, or when what it rests on is not as it was.

        Raises DeltaError for a torn entry, a log that was shortened at this moment, an older copy: the whole log, looked at next, tells which.
        """
        try:
            loaded = self._idle.pop()
        except IndexError:
            return None
        before = loaded.table.version()
        if loaded.entry is None or EntryMark.of(self._root, before) != loaded.entry:
            return None
        loaded.table.update_incremental()
        after = loaded.table.version()
        return loaded if after == before else Loaded(loaded.table, EntryMark.of(self._root, after))

    def _afresh(self) -> Loaded:
        from deltalake import DeltaTable

        table = DeltaTable(self._root)
        return Loaded(table, EntryMark.of(self._root, table.version()))


# Data files as actions of the log -------------------------------------------------------------------------------------


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
            least["enqueued_at"] = _instant_text(file.min_enqueued_at)
        if file.min_due_at is not None and file.max_due_at is not None:
            least["due_at"], greatest["due_at"] = _instant_text(file.min_due_at), _instant_text(file.max_due_at)
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": greatest, "nullCount": {}})


def _instant_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the machine's time: retention of removed files and of numbers is a matter of the disk, not of the queue's clock."""
    return time.time_ns() // 1_000_000
