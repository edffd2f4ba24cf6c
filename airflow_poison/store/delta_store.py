"""The store of queue tables in Delta format: a folder with a table for each queue."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from airflow_poison.store import OBJECT_STORES, QueueStore, check_name, data_files, disk, is_name, no_queue, no_such_queue, object_store_of
from airflow_poison.store.data_files import CONTROL
from airflow_poison.store.delta_log import CHECKPOINT_INTERVAL, PARTITION_BY, DeltaLog
from airflow_poison.store.disk import POSIX, LocalFolder, why
from airflow_poison.store.entries import LOG, remains
from airflow_poison.store.files import Commit
from airflow_poison.store.queue_table import QueueTable, with_named_errors
from airflow_poison.store.stage import remove_tree
from airflow_poison.values.errors import CheckpointDamagedError, QueueNameError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake
from airflow_poison.values.schema import table_schema

if TYPE_CHECKING:
    from airflow_poison.store.control import Control

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
    def absence(self) -> str:
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
            there = sorted(path for path in self._root.iterdir() if not path.name.startswith(".") and (path / LOG).is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("read", error)) from error
        return [path.name for path in there if not _is_queue(path)]

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
