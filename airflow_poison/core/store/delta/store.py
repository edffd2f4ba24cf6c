"""The store of queue tables in Delta format: a folder with a table for each queue."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_poison.core.errors import CheckpointDamagedError, QueueNameError, QueueNotFoundError, StoreUnreachableError, TableChangedError
from airflow_poison.core.store import durability
from airflow_poison.core.store.control import FORMAT_VERSION
from airflow_poison.core.store.delta import creation, repair
from airflow_poison.core.store.delta.log import LOG, DeltaLog
from airflow_poison.core.store.names import check_name
from airflow_poison.core.store.table import presence, upgrading
from airflow_poison.core.store.table.base import Table
from airflow_poison.core.store.table.queue import Queue
from airflow_poison.core.store.unreachable import POSIX, seam, why

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_poison.core.store.control import Control


_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f\ud800-\udfff]")


@seam
class DeltaStore:
    """Queues below a folder of a local or shared file system.

    :param root_uri: a path or a ``file://`` URI; made when it is missing and a queue is created.
    :param storage_options: kept for stores elsewhere; a file system needs none.
    :param durable: force every commit to disk before it is acknowledged. Switch it off for tests only.
    """

    def __init__(self, root_uri: str, storage_options: Mapping[str, str] | None = None, durable: bool = True) -> None:  # noqa: FBT001, FBT002
        self._root = local_path(root_uri)
        self._storage_options = dict(storage_options or {})
        self._durable = durable

    def __repr__(self) -> str:
        return f"DeltaStore({self.uri!r})"

    @property
    def uri(self) -> str:
        """The root's path."""
        return str(self._root)

    @property
    def absence(self) -> str:
        """That the root does not exist, and what to do, in words; empty when it does."""
        try:
            self._root.stat()
        except FileNotFoundError:
            pass
        except OSError:  # who reads it is told why that cannot be done
            return ""
        else:
            return ""
        return (
            f"the store's folder {self.uri} does not exist. The first send makes it; if it was there before, mount it on this machine, or correct "
            "the store's root"
        )

    def create(self, name: str, control: Control, now: datetime) -> Queue:
        """Make a queue, or return it when it exists already. Raises QueueNameError, StoreUnreachableError."""
        del now
        check_name(name)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not self._is_there(name):
                creation.create(self._root, name, control, durable=self._durable)
            if self._durable:  # an existing one, too: whoever made it may have died before it was on disk
                durability.sync_ancestors(self._root)
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("written", error)) from error
        return self.open(name)

    def open(self, name: str, *, upgrade: bool = True) -> Queue:
        """Return a queue; a table of an earlier format is upgraded first, in one commit.

        :param upgrade: False: leave the table as it is, for those who only read; a damaged checkpoint is then an error, too.
        Raises QueueNameError, QueueNotFoundError, NewerFormatError, StoreUnreachableError; TableChangedError when somebody else has committed to
        the table, or when a file of messages is gone or has another size than the log says.
        """
        place = self._root / check_name(name)
        if not self._is_there(name):
            known = ", ".join(self.names()) or "none yet"
            if self.absence:
                raise QueueNotFoundError(f"There is no queue {name!r}: {self.absence}.")
            message = f"There is no queue {name!r} in {self.uri}. Queues there: {known}. Create it, or correct the name or the store's root."
            raise QueueNotFoundError(message)
        log = DeltaLog(str(place), durable=self._durable)
        table = Table(name, str(place), log, self._durable)
        try:
            view = table.view()
        except CheckpointDamagedError:
            if not upgrade:
                raise
            log.set_aside()
            view = table.view()
        snapshot = view.snapshot
        presence.check_there(table.root, (*snapshot.files, *snapshot.outbox, *snapshot.conversations, *snapshot.transmissions))
        if upgrade and snapshot.control.format_version < FORMAT_VERSION:
            upgrading.upgrade(table)
        return Queue(table)

    def names(self) -> Sequence[str]:
        """Return the queues' names, sorted. Raises StoreUnreachableError."""
        try:
            return sorted(
                path.name for path in self._root.iterdir() if not path.name.startswith(".") and ((path / LOG).is_dir() or repair.remains(path))
            )
        except FileNotFoundError as error:
            if self._root.is_symlink() or not _could_be_made(self._root):
                raise StoreUnreachableError(self._unreachable("read", error)) from error
            return []
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("read", error)) from error

    def _is_there(self, name: str) -> bool:
        """Whether there is a queue of this name.

        Raises QueueNameError where the file system takes it for another one's, TableChangedError where only the log is gone.
        """
        if not (self._root / name / LOG).is_dir():
            if repair.remains(self._root / name):
                raise TableChangedError(
                    f"The queue table {self._root / name} has lost its log: there is no folder {LOG}, and there are files of messages. Nothing was "
                    f"done. Restore {LOG} from a backup. Or, to begin with an empty queue, move the whole folder {name!r} away first."
                )
            return False
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
        f"The store {uri!r} is not supported: this version keeps queue tables on local or shared file systems only. "
        f"Use a path or a file:// URI of a folder that the driver and the executors see, {POSIX}."
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


def _could_be_made(root: Path) -> bool:
    """Whether the nearest existing parent of a missing root is a folder."""
    return next(parent for parent in root.parents if parent.exists()).is_dir()
