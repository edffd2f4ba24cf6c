"""The store of queue tables in Delta format: a folder with a table for each queue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from airflow_poison.core.errors import QueueNotFoundError, StoreUnreachableError
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta import creation
from airflow_poison.core.store.delta.log import LOG, DeltaLog
from airflow_poison.core.store.names import check_name
from airflow_poison.core.store.seam import FORMAT_VERSION
from airflow_poison.core.store.table import presence, upgrading
from airflow_poison.core.store.table.base import Table
from airflow_poison.core.store.table.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_poison.core.store.seam import Control


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

    def create(self, name: str, control: Control, now: datetime) -> Queue:
        """Make a queue, or return it when it exists already. Raises QueueNameError, StoreUnreachableError."""
        del now
        place = self._root / check_name(name)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not (place / LOG).is_dir():
                creation.create(self._root, name, control, durable=self._durable)
            if self._durable:  # an existing one, too: whoever made it may have died before it was on disk
                durability.sync_ancestors(self._root)
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("written", error)) from error
        return self.open(name)

    def open(self, name: str) -> Queue:
        """Return a queue; a table of an earlier format is upgraded first, in one commit.

        Raises QueueNameError, QueueNotFoundError, NewerFormatError, StoreUnreachableError; TableChangedError when somebody else has committed to
        the table, or when a file of messages is gone or has another size than the log says.
        """
        place = self._root / check_name(name)
        if not (place / LOG).is_dir():
            known = ", ".join(self.names()) or "none yet"
            message = f"There is no queue {name!r} in {self.uri}. Queues there: {known}. Create it, or correct the name or the store's root."
            raise QueueNotFoundError(message)
        table = Table(name, str(place), DeltaLog(str(place), durable=self._durable), self._durable)
        view = table.view()
        presence.check_there(table.root, (*view.snapshot.files, *view.snapshot.outbox))
        if view.snapshot.control.format_version < FORMAT_VERSION:
            upgrading.upgrade(table)
        return Queue(table)

    def names(self) -> Sequence[str]:
        """Return the queues' names, sorted. Raises StoreUnreachableError."""
        try:
            return sorted(path.name for path in self._root.iterdir() if not path.name.startswith(".") and (path / LOG).is_dir())
        except FileNotFoundError as error:
            if self._root.is_symlink() or not _could_be_made(self._root):
                raise StoreUnreachableError(self._unreachable("read", error)) from error
            return []
        except OSError as error:
            raise StoreUnreachableError(self._unreachable("read", error)) from error

    def _unreachable(self, done: str, error: OSError) -> str:
        return (
            f"The store {self.uri} cannot be {done}: {error.strerror or error}. "
            "Check that the folder is mounted and that this user may read and write it, or correct the root in the connection."
        )


def local_path(uri: str) -> Path:
    """Return the absolute path that a root URI names. Raises StoreUnreachableError for anything that is no file system."""
    parts = urlsplit(uri)
    if "://" not in uri and parts.scheme != "file":
        return Path(uri).expanduser().absolute()
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return Path(unquote(parts.path)).absolute()
    message = (
        f"The store {uri!r} is not supported: this version keeps queue tables on local or shared file systems only. "
        "Use a path or a file:// URI of a folder that the driver and the executors see (a local disk, NFS, a mounted volume)."
    )
    raise StoreUnreachableError(message)


def _could_be_made(root: Path) -> bool:
    """Whether the nearest existing parent of a missing root is a folder."""
    return next(parent for parent in root.parents if parent.exists()).is_dir()
