"""Reading a Delta log: versions of a table in memory, the newest that counts, and data files as the log's actions.

delta-rs brings a loaded table up to date *in place*. So a loaded table belongs to one version's state alone, as long as anybody has that state:
one that moved on under somebody's feet would let a commit through that was planned on an older version. Only when nobody has the state any more
does the next read get its table; threads and nested reads find none then, and load their own.
"""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import CheckpointDamagedError, StoreUnreachableError, TableChangedError
from airflow_poison.core.schema import CONVERSATION, OUTBOX, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.core.store.delta import entries, repair
from airflow_poison.core.store.delta.entries import LOG, entry_path
from airflow_poison.core.store.files import DataFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction, Transaction

    from airflow_poison.core.store.delta.entries import Acknowledged
    from airflow_poison.core.store.log import Commit

_READS = 4
_logger = logging.getLogger(__name__)
_warned: set[tuple[str, int]] = set()
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
WITH_STATISTICS = frozenset({*(place.value for place in SubQueue), OUTBOX, CONVERSATION, TRANSMISSION_QUEUE})


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
            found = os.stat(f"{root}/{LOG}/{version:020d}.json")  # noqa: PTH116  (asked twice at every read)
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


class Reader:
    """Reads the newest version of one table from its log. Used by several threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._idle: deque[Loaded] = deque(maxlen=1)

    def newest(self) -> DeltaState:
        """Return the newest version that counts, whoever made it. Writes nothing.

        What a loss of power left of later commits, which nobody was told of, does not count; the next commit sets it aside.
        Raises TableChangedError when acknowledged commits are damaged or gone, CheckpointDamagedError when only a checkpoint is.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        cause = ""
        for _ in range(_READS):
            marks = entries.read_marks(self._root)  # before the look: what is marked then is there
            try:
                state = self._read()
                if self._counts(state, marks):
                    return state
            except (TableNotFoundError, DeltaError) as error:
                cause = first_line(error)
            except OSError as error:
                raise StoreUnreachableError(self._unreadable(error)) from error
            found = entries.diagnose(self._root)
            if found.harmless:
                with suppress(DeltaError):
                    return self._before_what_does_not_count(found)
            if found.lost or found.unmarked:
                raise TableChangedError(repair.told(self._root, found, cause))
        error_of = CheckpointDamagedError if found.shortcuts else TableChangedError
        raise error_of(repair.told(self._root, found, cause))

    def _counts(self, state: DeltaState, marks: Mapping[int, Acknowledged]) -> bool:
        """Whether a version and the entries that it rests on are what was committed."""
        last = max(marks, default=-1)
        if state.version > last:  # nobody was told of it yet, or the table has no marks
            fresh = range(last + 1, state.version + 1)
            whole = (
                state.has_entry and all(entries.is_readable(entry_path(self._root, version)) for version in fresh) if marks else not state.is_empty
            )
            if not whole:
                return False
        return state.version >= last and entries.have_their_sizes(self._root, marks)

    def _before_what_does_not_count(self, found: entries.Diagnosis) -> DeltaState:
        """Return the last version that counts. Raises DeltaError."""
        from deltalake import DeltaTable

        if (self._root, found.version) not in _warned:
            _warned.add((self._root, found.version))
            names = ", ".join(path.name for path in (*found.torn, *found.shortcuts))
            _logger.warning("%s in the log of %s is cut short and was never acknowledged: it does not count", names, self._root)
        return DeltaState(Loaded(DeltaTable(self._root, version=found.version), EntryMark.of(self._root, found.version)), damaged=True)

    def _read(self) -> DeltaState:
        """Load what is there now. Who cannot go on from the last look, or was slow while the log was shortened, looks again. Raises DeltaError."""
        from deltalake.exceptions import DeltaError

        for more in reversed(range(_READS)):
            try:
                loaded = self._brought_up_to_date() or self._afresh()
            except DeltaError:
                if not more:
                    raise
            else:
                state = DeltaState(loaded)
                weakref.finalize(state, self._idle.append, loaded).atexit = False
                return state
        raise AssertionError  # pragma: no cover  (the last look raises or returns)

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

    def _unreadable(self, error: OSError) -> str:
        cause = " ".join(str(error).split())
        return (
            f"The log of the queue table {self._root} cannot be read: {cause}. Check that the folder is mounted and that this user may read and "
            "write all of it, then run the task again; nothing was committed."
        )


def first_line(error: Exception) -> str:
    """Return what an error of delta-rs says first, without a full stop."""
    return str(error).strip().partition("\n")[0].rstrip(".")


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


def actions_of(commit: Commit) -> list[AddAction | RemoveAction]:
    """Return the actions that make files part of the table, and those that take files out of it."""
    from deltalake.transaction import AddAction, RemoveAction

    change = commit.data_change
    return [
        *(AddAction(file.path, file.size, _partition(file), now_ms(), change, _statistics(file)) for file in commit.add),
        *(RemoveAction(file.path, change, now_ms(), file.size, _partition(file)) for file in commit.remove),
    ]


def transactions_of(commit: Commit) -> list[Transaction]:
    """Return the numbers that a commit sets; those without a time never expire."""
    from deltalake.transaction import Transaction

    numbers = [Transaction(name, number, now_ms()) for name, number in commit.numbers.items()]
    return numbers + [Transaction(name, number) for name, number in commit.lasting.items()]


def _partition(file: DataFile) -> dict[str, str | None]:
    return {"sub_queue": file.sub_queue, "move_count": str(file.move_count)}


def _statistics(file: DataFile) -> str:
    """Return Delta's statistics of a file. Events, claims and control rows get their number only: their columns mean other things."""
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    if file.sub_queue in WITH_STATISTICS:
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
