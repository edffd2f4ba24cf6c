"""Queue tables in Delta format: a store is a folder with a table for each queue, whose log decides which of its files count.

``DeltaLog`` loads the newest version and commits the next one by compare-and-swap. An entry is created and never replaced. delta-rs does not write
entries, because the retries of delta-rs accept stale removes, and messages would be delivered twice. After a lost race the caller of ``commit`` reads
the new version and decides again.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from airflow_poison.store import (
    OBJECT_STORES,
    QueueStore,
    check_name,
    checkpoints,
    data_files,
    disk,
    entries,
    is_name,
    log_damage,
    no_queue,
    no_such_queue,
    object_store_of,
)
from airflow_poison.store.data_files import CONTROL
from airflow_poison.store.disk import POSIX, LocalFolder, why
from airflow_poison.store.entries import (
    LOG,
    DeltaState,
    EntryFingerprint,
    Loaded,
    Reader,
    acknowledge,
    details_of,
    entry_of,
    entry_path,
    files_of,
    remains,
)
from airflow_poison.store.files import SEQUENCE, Commit, DataFile, LogState, Shortened
from airflow_poison.store.queue_table import QueueTable, with_named_errors
from airflow_poison.store.stage import remove_tree
from airflow_poison.values.errors import CheckpointDamagedError, QueueNameError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake
from airflow_poison.values.schema import table_schema
from airflow_poison.values.texts import first_line, is_utf8

if TYPE_CHECKING:
    from airflow_poison.store.control import Control


log = logging.getLogger(__name__)
_warned: set[tuple[str, int]] = set()
PARTITION_BY = ["sub_queue", "move_count"]
CHECKPOINT_INTERVAL = 20  # versions; without checkpoints an open becomes slow (47 ms at 3,000 versions)
PROPERTIES = {
    "delta.targetFileSize": "1",  # delta-rs and JVM compaction find nothing to join
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.enableExpiredLogCleanup": "false",  # maintenance cleans up, after it has forced the checkpoint to disk
    "delta.deletedFileRetentionDuration": "interval 7 days",  # must be longer than the longest pass
    "delta.setTransactionRetentionDuration": "interval 30 days",  # how long send and run keys are remembered
}
_BESIDE, _GONE = ".new-", ".gone"
CONSTRAINT = {"queue_verbs_only": "lookup_id < -9000000000000000000"}  # no row can pass it: writers that check constraints are refused
_GUARD = next(iter(CONSTRAINT)).encode()
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f\ud800-\udfff]")


@with_named_errors
class DeltaStore(QueueStore):
    """Queues below a folder of a local or shared file system.

    :param root_uri: a path or a ``file://`` URI; made when it is missing and a queue is created.
    :param storage_options: for outputs in an object store; a file system needs none.
    :param durable: force every commit to disk before it is acknowledged. Switch it off for tests only.
    """

    is_folder = True

    def __init__(self, root_uri: str, storage_options: Mapping[str, str] | None = None, durable: bool = True) -> None:  # noqa: FBT001, FBT002
        self._root = local_path(root_uri)
        self._storage_options = dict(storage_options or {})
        self._durable = durable

    def __repr__(self) -> str:
        return f"DeltaStore({self.uri!r})"

    @property
    def uri(self) -> str:
        return str(self._root)

    @property
    def missing_reason(self) -> str:
        try:
            self._root.stat()
        except FileNotFoundError:
            pass
        except OSError:  # reading it raises the error
            return ""
        else:
            return ""
        return (
            f"the store's folder {self.uri} does not exist. The first send makes it; if it was there before, mount it on this machine, or correct "
            "the store's root"
        )

    def create(self, name: str, control: Control) -> QueueTable:
        check_name(name)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not self._is_there(name):
                _create(self._root, name, control, durable=self._durable)
            if self._durable:  # an existing one, too: its maker may have died before it was on disk
                disk.sync_ancestors(self._root)
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("written", error)) from error
        return self.open(name)

    def open(self, name: str, *, read_only: bool = False) -> QueueTable:
        """Return a queue.

        :param read_only: write nothing; a damaged checkpoint, which is set aside otherwise, is then an error.
        Raises QueueNameError, QueueNotFoundError, NewerFormatError, StoreUnreachableError; TableChangedError when another program has committed to
        the table, or when a file of messages is gone or has another size than the log says.
        """
        place = self._root / check_name(name)
        if not self._is_there(name):
            raise no_such_queue(self, name)
        log = DeltaLog(str(place), durable=self._durable)
        table = QueueTable(name, LocalFolder(str(place), self._durable), log)
        try:
            view = table.view()
        except CheckpointDamagedError:
            if read_only:
                raise
            log.set_aside()
            view = table.view()
        snapshot = view.snapshot
        data_files.check_there(table.folder, (*snapshot.files, *snapshot.outbox, *snapshot.conversations, *snapshot.transmissions))
        return table

    def names(self) -> Sequence[str]:
        try:
            return sorted(name for name in os.listdir(self._root) if not name.startswith(".") and _is_queue(self._root / name))  # noqa: PTH208
        except FileNotFoundError as error:
            if self._root.is_symlink() or not _could_be_made(self._root):
                raise StoreUnreachableError(self._unreachable("read", error)) from error
            return []
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("read", error)) from error

    def others(self) -> Sequence[str]:
        """Return the names of Delta tables in the root that are no queues, sorted: outputs, for example. Raises StoreUnreachableError."""
        try:
            there = sorted(path for path in self._root.iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("read", error)) from error
        return [path.name for path in there if not _is_queue(path) and os.path.isdir(path / LOG)]  # noqa: PTH112  (pathlib raises without rights)

    def copied(self, name: str) -> AbstractContextManager[str]:
        return nullcontext(str(self._root / name))

    def sweep(self, safe_age: timedelta) -> Sequence[str]:
        """Remove what ``left_over`` finds and return the names. Each is put aside first: a maker that wakes up finds all of it or nothing."""
        gone = []
        for folder in left_over(self._root, safe_age.total_seconds()):
            aside = folder if folder.name.endswith(_GONE) else folder.with_name(folder.name + _GONE)
            with suppress(FileNotFoundError):
                folder.rename(aside)
                remove_tree(aside)
                gone.append(folder.name)
        return gone

    def options_for(self, uri: str) -> Mapping[str, str]:
        return self._storage_options if object_store_of(uri) else {}

    def _is_there(self, name: str) -> bool:
        """Whether there is a queue of this name.

        Raises QueueNameError where the file system takes it for another one's, or where it is a table that is no queue, TableChangedError where only
        the log is gone.
        """
        if not (self._root / name / LOG).is_dir():
            if remains(self._root / name):
                raise TableChangedError(
                    f"The queue table {self._root / name} has lost its log: there is no folder {LOG}, and there are files of messages. Nothing was "
                    f"done. Restore {LOG} from a backup. Or, to begin with an empty queue, move the whole folder {name!r} away first."
                )
            return False
        if not _is_queue(self._root / name):
            raise no_queue(name, self.uri)
        if name not in os.listdir(self._root):  # noqa: PTH208  (names only; asked at every opening)
            raise QueueNameError(
                f"{name!r} is the name of another queue to the file system of {self.uri}, which does not tell upper case from lower case, or drops "
                f"a dot at the end. Queues there: {', '.join(self.names())}. Use the name as it stands there, or another one."
            )
        return True

    def _unreachable(self, done: str, error: OSError) -> str:
        return f"The store {self.uri} cannot be {done}: {why(error)}. Or correct the root in the connection."


def local_path(uri: str) -> Path:
    """Return the absolute path that a root URI names. Raises StoreUnreachableError for anything that is no file system."""
    path = _file_path(uri) if uri.startswith("file:") else None if "://" in uri else uri
    if path is not None:
        return _readable(Path(path).expanduser().absolute())
    message = (
        f"The store {uri!r} is not supported. Use a path or a file:// URI of a folder that the driver and the executors see, {POSIX}; or an object "
        f"store: {', '.join(OBJECT_STORES)}."
    )
    raise StoreUnreachableError(message)


def _readable(root: Path) -> Path:
    """Return a path that every library below us reads alike. Raises StoreUnreachableError."""
    found = _MISREAD.search(str(root))
    if found is not None:
        raise StoreUnreachableError(
            f"The store {str(root)!r} cannot be opened: delta-rs misreads {found[0]!r} in a path. Use a folder whose path has no backslash, no "
            "control character, and no '%' before two hexadecimal digits."
        )
    return root


def _file_path(uri: str) -> str | None:
    """Return the path of a ``file:`` URI, which has neither a query nor a fragment: ``?`` and ``#`` are characters of a name."""
    rest = uri.removeprefix("file:")
    if not rest.startswith("//"):
        return unquote(rest)
    host, slash, path = rest[2:].partition("/")
    return unquote(f"{slash}{path}") if host in {"", "localhost"} else None


def _is_queue(place: Path) -> bool:
    """Whether a folder is a queue's, also a damaged one's: it has files of messages, or its log has what guards a queue."""
    try:
        if remains(place):
            return True
        entries = sorted((place / LOG).glob("*.json"))
    except OSError:  # opening it says what is wrong; what cannot be a queue's name is none
        return is_name(place.name)
    return any(map(_guards_a_queue, entries))


def _guards_a_queue(entry: Path) -> bool:
    try:
        return _GUARD in entry.read_bytes()
    except OSError:
        return True


def _could_be_made(root: Path) -> bool:
    return next(parent for parent in root.parents if parent.exists()).is_dir()


def _create(root: Path, name: str, control: Control, *, durable: bool) -> None:
    """Make the table ``root/name`` beside its place, whole, and then by one rename, so that half of one is never seen.

    Nothing happens when another process has made it meanwhile. What is in it is on disk then; its own name in ``root`` is for the caller to sync.
    Raises OSError.
    """
    beside = root / f"{_BESIDE}{uuid4().hex}"
    beside.mkdir(parents=True)
    try:
        make_table(str(beside), control, durable=durable)
        if durable:
            disk.sync_files(str(beside), [str(path.relative_to(beside)) for path in beside.rglob("*.json")])
        reach("store.create.before_rename")
        _take_place(beside, root / name)
    finally:
        remove_tree(beside)


def make_table(root: str, control: Control, *, durable: bool = False) -> None:
    """Make a queue table in an empty folder of this process alone."""
    table = deltalake.DeltaTable.create(root, schema=table_schema(), partition_by=PARTITION_BY, configuration=PROPERTIES)
    table.alter.add_constraint(CONSTRAINT)
    log = DeltaLog(root, durable=durable)
    row = data_files.write_new(LocalFolder(root), CONTROL, 0, data_files.control_to_row(control))
    log.commit(log.load(), Commit("create", add=[row]))


def left_over(root: Path, safe_age: float) -> Iterator[Path]:
    """Yield folders of queues whose making was killed.

    :param safe_age: how many seconds ago anything happened in them, at least.
    """
    for folder in sorted(root.glob(f"{_BESIDE}*")):
        with suppress(FileNotFoundError):  # its maker, or another cleaner
            if time.time() - folder.stat().st_mtime >= safe_age:
                yield folder


def _take_place(beside: Path, place: Path) -> None:
    try:
        beside.rename(place)
    except OSError:
        if not (place / LOG).is_dir():
            raise


class DeltaLog:
    """The log of the table at ``root``.

    :param durable: force each commit to disk before it is acknowledged (delta-rs itself never does).
    :param uri: what errors call the table; empty: ``root``.
    """

    def __init__(self, root: str, *, durable: bool, uri: str = "") -> None:
        self._root, self._uri = root, uri or root
        self._durable = durable
        self._reader = Reader(root)
        self._known = -1  # every version up to this one was looked at

    def identity(self) -> str:
        return str(self.newest().table.metadata().id)

    def load(self) -> DeltaState:
        """Return the newest version. Raises TableChangedError when it cannot be read, and when a foreign commit changed the table."""
        known = self._known  # before the look: other threads go on meanwhile
        state = self.newest()
        if state.version != known:
            self._refuse_foreign(state, known)
        return state

    def newest(self) -> DeltaState:
        """Return the newest valid version, own or foreign. Writes nothing.

        Unacknowledged commits that a loss of power cut short are ignored; the next commit sets them aside.
        Raises TableChangedError when acknowledged commits are damaged or gone, CheckpointDamagedError when only a checkpoint is.
        """
        cause = ""
        for _ in range(entries.READS):
            try:
                state = self._reader.read()
                if state is not None:
                    return state
            except (deltalake.exceptions.TableNotFoundError, deltalake.exceptions.DeltaError) as error:
                cause = first_line(error)
            except OSError as error:
                raise StoreUnreachableError(f"The log of the queue table {self._uri} cannot be read: {self._why(error)}") from error
            found = log_damage.diagnose(self._root)
            if found.harmless:
                with suppress(deltalake.exceptions.DeltaError):
                    return self._before_what_does_not_count(found)
            if found.lost or found.unmarked:
                raise TableChangedError(log_damage.damage_text(self._uri, found, cause))
        error_of = CheckpointDamagedError if found.shortcuts and found.begins else TableChangedError
        raise error_of(log_damage.damage_text(self._uri, found, cause))

    def _why(self, error: OSError) -> str:
        """Return why the log cannot be read, and what to do about it."""
        log = Path(self._root, entries.LOG)
        strangers = [name for name in entries.names(log) if not is_utf8(name)]
        if strangers:
            return f"a file in {log} has a name that is no UTF-8, {strangers[0]!r}. Move it away, then run the task again; nothing was committed."
        return f"{why(error)}; nothing was committed."

    def _before_what_does_not_count(self, found: log_damage.Diagnosis) -> DeltaState:
        """Return the last version that counts. Raises DeltaError."""
        if (self._root, found.version) not in _warned:
            _warned.add((self._root, found.version))
            names = ", ".join(path.name for path in (*found.torn, *found.shortcuts))
            log.warning(
                "%s in the log of %s is damaged or was never acknowledged: it does not count, and no commit that counts is lost", names, self._uri
            )
        table = deltalake.DeltaTable(self._root, version=found.version)
        return DeltaState(Loaded(table, EntryFingerprint.of(self._root, found.version)), damaged=True)

    def mark(self, version: int) -> Hashable | None:
        return None if entry_path(self._root, version + 1).exists() else EntryFingerprint.of(self._root, version)

    def set_aside(self) -> None:
        """Move incomplete, unacknowledged entries out of the log: see ``log_damage.set_aside``. Raises OSError."""
        for name in log_damage.set_aside(self._root, durable=self._durable):
            log.warning(
                "%s was taken out of the log of %s: it is damaged, or was never acknowledged. A copy is in %s", name, self._uri, log_damage.ASIDE
            )

    def commit(self, base: LogState, commit: Commit) -> bool:
        assert isinstance(base, DeltaState)
        self._check_present(commit)
        if max(entries.read_marks(self._root), default=-1) > base.version:
            return False  # also when the entry was deleted: its version must not be used again
        if base.damaged:
            self.set_aside()
        if self._durable:
            disk.sync_files(self._root, [file.path for file in commit.add])
        acknowledge(self._root, base.version, durable=self._durable)  # what a commit rests on can be put back, too
        mark = uuid4().hex
        before, place, entry = entry_path(self._root, base.version), entry_path(self._root, base.version + 1), entry_of(commit, mark)
        reach(f"store.{commit.operation}.before_commit")
        self._check_not_shortened(base, before)
        try:
            disk.create(place, entry)
        except OSError as error:
            if not self._is_ours(base.version + 1, mark, error):
                return False
        self._check_not_shortened(base, before)
        acknowledge(self._root, base.version + 1, mark, durable=self._durable)
        self._known = max(self._known, base.version + 1)
        reach(f"store.{commit.operation}.after_commit")
        self._checkpoint(base.version + 1)
        return True

    def confirm(self, state: LogState) -> None:
        acknowledge(self._root, state.version, durable=self._durable)

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        try:
            return entries.files_of(deltalake.DeltaTable(self._root, version=version))
        except deltalake.exceptions.DeltaError:
            return None

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details of a commit: empty for a foreign or damaged commit, None when the entry was cleaned up."""
        info = entries.commit_info(entry_path(self._root, version))
        return None if info is None else details_of(info) or {}

    def removals(self) -> Mapping[str, float]:
        return checkpoints.removals(self._root)

    def shorten(self, retention: timedelta) -> Shortened:
        state = self.newest()
        if state.damaged:
            self.set_aside()
        return checkpoints.shorten(self._root, state.version, retention, durable=self._durable)

    def _check_not_shortened(self, base: DeltaState, entry: Path) -> None:
        """Refuse a commit at a version that log cleanup has already removed, because no reader would see the commit.

        Log cleanup removes the oldest entries first. While the entry of ``base`` exists, the next version was not cleaned up. Only a process that
        was suspended for longer than the retention can be too late.
        """
        if base.has_entry and not entry.exists() and Path(self._root, LOG).is_dir():
            raise TableChangedError(shortened_text(self._uri, base.version))

    def _refuse_foreign(self, state: DeltaState, known: int) -> None:
        """Raise TableChangedError when the table differs from what the package has last left: see ``find_foreign``. Costs one short read."""
        if state.version < known:
            message = (
                f"The queue table {self._uri} was at version {known} and is at {state.version} now: somebody put an older copy there, or "
                f"removed commits from {LOG}. Nothing was committed by this verb. Put the newer one back from a backup; or look at what is there "
                "with 'airflow poison check', and run the task again."
            )
            raise TableChangedError(message)
        if state.version > known:
            hands = find_foreign(self._root, state.version, known)
            if hands is not None and (what := self._foreign_changes(hands, state)):
                raise TableChangedError(foreign_text(self._uri, hands, what))
            self._known = max(self._known, state.version)

    def _foreign_changes(self, hands: ForeignHands, state: DeltaState) -> Sequence[str]:
        """Return the changes of foreign commits; empty when they were undone or have no effect."""
        if hands.last_own is None:
            return ["changed what is not known any more"]
        try:
            return list(foreign_changes(deltalake.DeltaTable(self._root, version=hands.last_own), state.table))
        except deltalake.exceptions.DeltaError as error:
            return [f"changed what is not known any more ({first_line(error)})"]

    def _check_present(self, commit: Commit) -> None:
        """Refuse a commit that adds a missing file, for example one that a foreign VACUUM removed. Raises TableChangedError."""
        for file in commit.add:
            if not Path(self._root, file.path).is_file():
                message = (
                    f"{file.path} was to become part of the queue table {self._uri} and has been removed by somebody else just before. "
                    "Nothing was committed. Find what deletes files there (VACUUM with a short retention, a cleaning job) and stop that."
                )
                raise TableChangedError(message)

    def _is_ours(self, version: int, mark: str, error: Exception) -> bool:
        """Distinguish a lost race from an unwritable disk. A commit that succeeded but returned an error (NFS sends a request twice) is ours."""
        found = self.details(version)
        if found is None:
            message = f"The log of the queue table {self._uri} cannot be written, so nothing was committed: {why(error)}."
            raise StoreUnreachableError(message) from error
        return found.get("mark") == mark

    def _checkpoint(self, version: int) -> None:
        """Keep opening cheap. Only a shortcut for readers: the commit counts without it, and a damaged one is set aside by ``repair``."""
        if version % CHECKPOINT_INTERVAL:
            return
        try:
            checkpoints.make(self._root, version, durable=self._durable)
        except (deltalake.exceptions.DeltaError, TableChangedError, OSError) as error:
            log.warning("The checkpoint of version %d of %s could not be written; opening stays slower until the next: %s", version, self._uri, error)


def shortened_text(uri: str, base: int) -> str:
    """Return the words for a commit that came when the log had been cut behind the version that it was built on."""
    return (
        f"The log of the queue table {uri} was shortened beyond version {base} while this process stood still: whether its change counts is not "
        "known. Run the task again: what was done before is not done twice. Keep maintenance's retention longer than any process may stand still."
    )


# Foreign commits ------------------------------------------------------------------------------------------------------
#
# A commit of the package carries a mark, and its writer has checked every earlier version. If the newest version is ours, there is no foreign
# commit; otherwise walk back to the last version that is ours. Foreign commits that were undone (a RESTORE of that version) or that change
# nothing (the notes of a VACUUM, a description) raise no error.


@dataclass(frozen=True, slots=True)
class ForeignHands:
    """Foreign commits since our last version.

    :param commits: texts, oldest first: version, operation (``DELETE``, ``OPTIMIZE``, ``RESTORE``), ``engineInfo`` of the writer.
    :param last_own: our last version before them; None when the log no longer has it.
    """

    commits: Sequence[str]
    last_own: int | None


def find_foreign(root: str, version: int, trusted: int) -> ForeignHands | None:
    """Return the foreign commits after ``trusted``, up to ``version``, since our last commit; None when there are none.

    A table without a version of ours is still being created.
    """
    commits: list[str] = []
    for number in range(version, trusted, -1):
        info = entries.commit_info(entry_path(root, number))
        if info is None:  # cleaned up behind a checkpoint
            return ForeignHands(commits[::-1], None) if commits else None
        if details_of(info) is not None:
            return ForeignHands(commits[::-1], number) if commits else None
        words = (str(info.get("operation", "")), str(info.get("engineInfo", "")))
        commits.append(f"version {number} ({', '.join(filter(None, words))})")
    return ForeignHands(commits[::-1], trusted) if commits and trusted >= 0 else None


def foreign_changes(before: deltalake.DeltaTable, after: deltalake.DeltaTable) -> Iterator[str]:
    """Yield a text for each relevant difference between two versions."""
    then, now = set(files_of(before)), set(files_of(after))
    for verb, found in (("removed", then - now), ("added", now - then)):
        for place in sorted({file.sub_queue for file in found}):
            here = [file for file in found if file.sub_queue == place]
            yield f"{verb} {len(here)} file(s) with {sum(file.rows for file in here)} row(s) of {place!r}, such as {min(file.path for file in here)}"
    if before.schema().to_json() != after.schema().to_json() or before.metadata().partition_columns != after.metadata().partition_columns:
        yield "changed the columns"
    old, new = before.metadata().configuration, after.metadata().configuration
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        yield f"changed the table's properties {', '.join(changed)}"
    if before.protocol() != after.protocol():
        yield "changed the protocol"
    if before.transaction_version(SEQUENCE) != after.transaction_version(SEQUENCE):
        yield "changed the last lookup id"


def foreign_text(root: str, hands: ForeignHands, what: Sequence[str]) -> str:
    """Return the error message for foreign commits."""
    who = ", ".join(hands.commits[:3]) + (", …" if len(hands.commits) > 3 else "")  # noqa: PLR2004
    since = "an unknown version" if hands.last_own is None else f"version {hands.last_own}"
    undo = "" if hands.last_own is None else f"RESTORE the table to version {hands.last_own}, or let 'airflow poison check --repair' do it; or "
    return (
        f"Somebody else has committed to the queue table {root}: {who}. Expected: commits of airflow-poison alone. Since {since}, the last of ours, "
        f"that {'; '.join(what)}. Nothing was committed by this verb. Find who writes there and stop that. Then {undo}"
        "go on with the table as it is: 'airflow poison check --accept'."
    )
