"""The entries of a Delta log: what one says, reading and acknowledging them, and the newest version of the table in memory.

Each acknowledged commit has a mark outside the log, with a copy of the entry. The mark is written after the entry was forced to disk and before the
commit is acknowledged. So a damaged entry without a mark was never acknowledged (a loss of power cut it short). A damaged entry with a mark was
acknowledged, and only damage from outside can have changed it. The mark is the *name* of a file, which contains version, size and checksum of the
entry; the content of the file is a copy that a repair can put back.

delta-rs updates a loaded table *in place*. So a loaded table belongs to the state of one version while that state is referenced, because an update
would let a commit through that was planned on an older version. The next read reuses the table only after the state was released; until then,
other threads and nested reads load a table of their own.
"""

from __future__ import annotations

import json
import os
import re
import time
import weakref
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_poison.store import disk
from airflow_poison.store.files import Commit, DataFile
from airflow_poison.values.clock import EPOCH
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake, pa, pq
from airflow_poison.values.schema import CONVERSATION, LANDING, OUTBOX, PLAN, TRANSMISSION_QUEUE, SubQueue

WITH_STATISTICS = frozenset({*(place.value for place in SubQueue), OUTBOX, CONVERSATION, LANDING, PLAN, TRANSMISSION_QUEUE})


def actions(content: bytes, *kinds: str) -> Iterator[tuple[str, Any]]:
    """Yield the actions of an entry, each with its kind (``add``, ``remove``, ``txn``, ``commitInfo`` …), in their order.

    :param kinds: only these; lines without their names are not parsed. None: all.
    Raises ValueError for a line that is not one JSON object.
    """
    names = [f'"{kind}"'.encode() for kind in kinds]
    for line in content.splitlines():
        if names and not any(name in line for name in names):
            continue
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"{line[:40]!r} is not an action")  # noqa: TRY004  (what json.loads raises, too)
        yield from ((kind, what) for kind, what in found.items() if not kinds or kind in kinds)


def details_of(info: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the details of a commit of ours from its ``commitInfo``; None for a commit of another writer."""
    try:
        details = json.loads(str(info.get("userMetadata") or "null"))
    except ValueError:
        return None
    return details if isinstance(details, dict) and {"operation", "mark"} <= details.keys() else None


def entry_of(commit: Commit, mark: str) -> bytes:
    """Return the entry that makes a commit, as delta-rs writes it.

    :param mark: what no other commit has. With it stands the number of actions, which says when some of them are missing.
    """
    numbers: list[dict[str, object]] = [{"appId": name, "version": number, "lastUpdated": now_ms()} for name, number in commit.numbers.items()]
    numbers += [{"appId": name, "version": number} for name, number in commit.lasting.items()]
    change = commit.data_change
    gone = [{**_place(file), "deletionTimestamp": now_ms(), "dataChange": change, "extendedFileMetadata": True} for file in commit.remove]
    come = [{**_place(file), "modificationTime": now_ms(), "dataChange": change, "stats": statistics_of(file)} for file in commit.add]
    parts = [{kind: each} for kind, them in (("txn", numbers), ("remove", gone), ("add", come)) for each in them]
    info = {
        "timestamp": now_ms(),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "airflow-poison",
        "userMetadata": json.dumps({**commit.details, "operation": commit.operation, "mark": mark, "actions": len(parts)}),
    }
    return b"".join(json.dumps(part).encode() + b"\n" for part in ({"commitInfo": info}, *parts))


def _place(file: DataFile) -> dict[str, object]:
    return {"path": file.path, "partitionValues": {"sub_queue": file.sub_queue, "move_count": str(file.move_count)}, "size": file.size}


def statistics_of(file: DataFile) -> str:
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


LOG = "_delta_log"
FOLDER = "_acknowledged"
HINT = "_last_checkpoint"
KEPT = 40  # marks; more than there are entries since the last checkpoint, which are those that a reader takes from the log
ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_PART = re.compile(r"\d{20}\.checkpoint\.\d{10}\.(\d{10})\.parquet")
_MARK = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{8})\.json")
READS = 4
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


def names(folder: str | Path) -> list[str]:
    """Return the names in a folder, nothing else is asked; none when it is not there."""
    try:
        return os.listdir(folder)  # noqa: PTH208  (names only; asked at every look)
    except (FileNotFoundError, NotADirectoryError):
        return []


def entry_path(root: str, version: int) -> Path:
    """Return where a version's commit lies."""
    return Path(root, LOG, f"{version:020d}.json")


def commit_info(path: Path) -> Mapping[str, object] | None:
    """Return what a commit says of itself; empty where that cannot be read, None when its entry was cleaned up."""
    content = read_entry(path)
    try:
        return None if content is None else next((info for _, info in actions(content, "commitInfo")), {})
    except ValueError:
        return {}


# Marks of acknowledged versions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledged version.

    :param size: bytes of its entry in the log; ``checksum``: their CRC-32.
    """

    version: int
    size: int
    checksum: int

    @property
    def name(self) -> str:
        """The name of its mark."""
        return f"{self.version:020d}-{self.size}-{self.checksum:08x}.json"

    def copy(self, root: str) -> bytes | None:
        """Return the copy of the entry; None when it is not whole: its writer died, or the disk was full."""
        return self.content(Path(root, FOLDER, self.name))

    def content(self, path: Path) -> bytes | None:
        """Return what a file holds when it is this entry; None otherwise."""
        found = read_entry(path)
        return found if found is not None and self.is_of(found) else None

    def is_of(self, entry: bytes) -> bool:
        """Whether an entry with this content is the one that was acknowledged."""
        return (len(entry), zlib.crc32(entry)) == (self.size, self.checksum)


def read_marks(root: str) -> dict[int, Acknowledged]:
    """Return the marks by version, oldest first; empty when a release without marks made the table, or the marks were removed."""
    matches = (_MARK.fullmatch(name) for name in sorted(names(Path(root, FOLDER))))
    found = (Acknowledged(int(match[1]), int(match[2]), int(match[3], 16)) for match in matches if match)
    return {each.version: each for each in found}


def note(root: str, version: int, content: bytes, *, durable: bool) -> None:
    """Mark a version whose entry, with this content, is on disk, and remove marks that are too old to be needed. Raises OSError."""
    mark = Acknowledged(version, len(content), zlib.crc32(content))
    folder = Path(root, FOLDER)
    known = read_marks(root)
    if known.get(version) != mark:
        _write(folder, mark, content, durable=durable)
        reach("store.log.before_mark_is_synced")
        if durable:
            disk.sync(folder)
        if version in known:  # of entries that a restored backup or a repair has replaced; several, where a repair was killed here
            for former in folder.glob(f"{version:020d}-*.json"):
                if former.name != mark.name:
                    former.unlink(missing_ok=True)
    for old in [*known.values()][:-KEPT]:
        (folder / old.name).unlink(missing_ok=True)


def _write(folder: Path, mark: Acknowledged, content: bytes, *, durable: bool) -> None:
    """Write a mark. Its name has to be there; a copy for which the disk has no room is left out."""
    try:
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        folder.mkdir(exist_ok=True)
        if durable:
            disk.sync(folder.parent)
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file, suppress(OSError):
        file.write(content)


def acknowledge(root: str, version: int, mark: str = "", *, durable: bool) -> None:
    """Force the log up to a version to disk, and mark what has no mark yet: from now on it counts, whatever becomes of its entries.

    Writers of earlier entries may have died before they marked them, or be strangers, who mark and sync nothing.

    :param mark: the mark that the commit of this version must have; empty accepts any writer. Raises TableChangedError when it is not.
    """
    marks = read_marks(root)
    last = max(marks, default=-1)
    fresh = range(max(last, version - KEPT) + 1, version + 1)
    if durable and fresh:
        for number in fresh:
            disk.sync_if_there(entry_path(root, number))
        disk.sync(Path(root, LOG))
    for number in fresh:
        content = read_entry(entry_path(root, number))
        if content is not None and is_complete(content):
            note(root, number, content, durable=durable)
        elif content is not None or (marks and number > _oldest(root)):  # else a checkpoint may stand for what is not there
            raise _replaced(root, number)
    entry = read_entry(entry_path(root, version))
    known = marks.get(version)
    if (mark and (entry is None or mark.encode() not in entry)) or (known is not None and entry is not None and not known.is_of(entry)):
        raise _replaced(root, version)


def _replaced(root: str, version: int) -> TableChangedError:
    return TableChangedError(
        f"The entry of version {version} in the log of the queue table {root} is not what was written: somebody has changed, removed or "
        "replaced it at this moment. Find who changes files there; look at the table with 'airflow poison check', and run the task again."
    )


def _oldest(root: str) -> int:
    """Return the oldest version of which the log has an entry: a checkpoint stands for what was before it."""
    return min(versions(Path(root, LOG)), default=0)


def versions(log: Path, pattern: re.Pattern[str] = ENTRY) -> list[int]:
    """Return the versions of which a log has an entry (or what else the pattern says), sorted."""
    return sorted(int(match[1]) for name in names(log) if (match := pattern.fullmatch(name)))


def is_readable(entry: Path) -> bool:
    """Whether every line of an entry is an action, and a commit of ours has all of its lines."""
    content = read_entry(entry)
    return content is not None and is_complete(content)


def read_entry(entry: Path) -> bytes | None:
    """Return what an entry holds; None when it is not there."""
    try:
        return entry.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_complete(content: bytes) -> bool:
    """Whether every line of an entry is an action, and a commit of ours has all of its lines."""
    try:
        found = list(actions(content))
        info: Mapping[str, object] = next((what for kind, what in found if kind == "commitInfo"), {})
        expected: Any = (details_of(info) or {}).get("actions", 0)
        return len(found) > int(expected)
    except (ValueError, AttributeError, TypeError):
        return False


def checkpoints(log: Path) -> dict[int, list[Path]]:
    """Return the files of each checkpoint by version, in order: several where another writer has made it."""
    found = defaultdict[int, list[Path]](list)
    for name in sorted(names(log)):
        if match := CHECKPOINT.fullmatch(name):
            found[int(match[1])].append(log / name)
    return dict(found)


def is_whole(checkpoint: Sequence[Path]) -> bool:
    """Whether all parts of a checkpoint are there, and all of them can be read. Raises FileNotFoundError, and OSError for a disk that fails."""
    parts = [_PART.fullmatch(path.name) for path in checkpoint]
    return any(part is None or int(part[1]) == len(parts) for part in parts) and all(map(_is_readable_parquet, checkpoint))


def _is_readable_parquet(path: Path) -> bool:
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(use_threads=False):
                pass
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        return False
    return True


def remains(place: Path) -> bool:
    """Whether a folder without a log has been a queue table."""
    return any(name.startswith("sub_queue=") or name == FOLDER for name in names(place))


# Versions in memory ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryFingerprint:
    """Identity of a log entry's file; it changes when the file is replaced (a torn entry removed, a backup restored)."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, root: str, version: int) -> EntryFingerprint | None:
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
    :param files: the live files, once they were read.
    """

    table: deltalake.DeltaTable
    entry: EntryFingerprint | None
    files: tuple[DataFile, ...] | None = None


class DeltaState:
    """One version of a Delta table.

    :ivar damaged: behind it in the log lies what does not count, in the way of the next commit.
    :ivar table: what delta-rs has loaded; it stays at this version as long as the state is used.
    :ivar has_entry: the log had the version's own entry when it was loaded.
    :ivar is_empty: that entry has no content: delta-rs takes it for a version in which nothing happened.
    """

    def __init__(self, loaded: Loaded, *, damaged: bool = False) -> None:
        self._loaded, self.table, self.damaged = loaded, loaded.table, damaged
        self.version: int = loaded.table.version()
        self.has_entry = loaded.entry is not None
        self.is_empty = loaded.entry is not None and loaded.entry.size == 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Every live file; listed when first asked for (a send never asks)."""
        if self._loaded.files is None:
            self._loaded.files = files_of(self.table)
        return self._loaded.files

    def paths(self, sub_queue: str) -> Sequence[str]:
        uris = self.table.file_uris(file_pruning_predicate=f"sub_queue = '{sub_queue}'")
        return [uri[uri.rindex(f"sub_queue={sub_queue}/") :] for uri in uris]

    def number(self, name: str) -> int | None:
        return self.table.transaction_version(name)


class Reader:
    """Reads the newest version of one table from its log. Used by several threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._idle: deque[Loaded] = deque(maxlen=1)

    def read(self) -> DeltaState | None:
        """Return what is there now; None when it, or an entry that it rests on, is not what was committed. Writes nothing. Raises DeltaError.

        delta-rs takes an emptied entry for a version in which nothing happened. So each entry has to be the same before and after it was read: a
        repair may have put it back meanwhile. Only a table that counts is gone on with.
        """
        marks = read_marks(self._root)  # before the look: what is marked then is there
        before = {version: EntryFingerprint.of(self._root, version) for version in marks}
        loaded = self._newest(max(marks, default=-1))
        state = DeltaState(loaded)
        if self._counts(state, marks, before):
            weakref.finalize(state, self._idle.append, loaded).atexit = False
            return state
        return None

    def _counts(self, state: DeltaState, marks: Mapping[int, Acknowledged], before: Mapping[int, EntryFingerprint | None]) -> bool:
        last = max(marks, default=-1)
        if state.is_empty or state.version < last:
            return False
        if state.version > last and marks:  # not acknowledged yet
            fresh = range(max(last + 1, _oldest(self._root)), state.version + 1)
            if not (state.has_entry and all(is_readable(entry_path(self._root, each)) for each in fresh)):
                return False
        for version, mark in marks.items():
            now = EntryFingerprint.of(self._root, version)
            if now is not None and (now.size != mark.size or now != before[version]):  # None: cleaned up
                return False
        return True

    def _newest(self, marked: int) -> Loaded:
        """Load what is there now; again where the last look cannot be gone on from, or the log was shortened meanwhile. Raises DeltaError.

        :param marked: the last version that is acknowledged.
        """
        for more in reversed(range(READS)):
            try:
                return self._brought_up_to_date(marked) or self._afresh()
            except deltalake.exceptions.DeltaError:
                if not more:
                    raise
        raise AssertionError  # pragma: no cover  (the last look raises or returns)

    def _brought_up_to_date(self, marked: int) -> Loaded | None:
        """Return the idle table at the newest version; None when there is none, or when what it rests on is not as it was.

        Raises DeltaError for a torn entry, a log shortened meanwhile, or an older copy; the caller then reads the whole log to find the cause.
        """
        try:
            loaded = self._idle.pop()
        except IndexError:
            return None
        before = loaded.table.version()
        if loaded.entry is None or EntryFingerprint.of(self._root, before) != loaded.entry:
            return None
        if marked <= before and not entry_path(self._root, before + 1).exists():  # delta-rs lists the log to say the same
            return loaded
        loaded.table.update_incremental()
        after = loaded.table.version()
        return loaded if after == before else Loaded(loaded.table, EntryFingerprint.of(self._root, after))

    def _afresh(self) -> Loaded:
        table = deltalake.DeltaTable(self._root)
        return Loaded(table, EntryFingerprint.of(self._root, table.version()))


def files_of(table: deltalake.DeltaTable) -> tuple[DataFile, ...]:
    """Return the live files, from the log alone. Does not import pandas: ``pa.table(...)`` of the same actions would (up to 10 s)."""
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    columns = [_values(actions.column(name)) for name in _COLUMNS.values()]
    return tuple(_file(dict(zip(_COLUMNS, cells, strict=True))) for cells in zip(*columns, strict=True))


def _values(column: pa.ChunkedArray[Any]) -> list[object]:
    """Return a column as Python values; instants by way of their numbers, because Arrow's own conversion imports pandas."""
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    numbers = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if number is None else EPOCH + timedelta(microseconds=number) for number in numbers]


def _file(cells: dict[str, object]) -> DataFile:
    """Return a file; numbers without a statistic (rows that are not messages) are 0."""
    numbers = ("move_count", "rows", "size", "min_lookup_id", "max_lookup_id", "min_priority", "max_priority")
    return DataFile(**{**cells, **{name: cells[name] or 0 for name in numbers}})  # type: ignore[arg-type]  # the schema has these types
