"""Stores: a set of queues under one root, what it can do, how one is opened, and which names queues can have.

Three stores stand behind ``QueueStore``, under one conformance suite: ``delta`` (queue tables in Delta Lake format in a folder), ``bucket`` (the same
in an object store) and ``memory`` (for tests and simulation).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from airflow_poison.values.errors import QueueNameError, QueueNotFoundError

if TYPE_CHECKING:
    from airflow_poison.store.control import Control
    from airflow_poison.store.memory import MemoryStore
    from airflow_poison.store.queue_table import QueueTable

__all__ = ["MAX_NAME", "QueueStore", "check_name", "open_store"]

MEMORY = "memory://"
OBJECT_STORES = {"s3://": "S3", "s3a://": "S3", "gs://": "Google Cloud Storage", "az://": "Azure", "abfs://": "Azure", "abfss://": "Azure"}
"""How the URIs of object stores begin, and whose they are; a bucket of S3 may be named as Hadoop does."""
MAX_NAME = 100
_ALLOWED = re.compile(r"_?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_TAKEN = frozenset({"_delta_log"})  # a folder of this name would make the store's root look like a table
_logger = logging.getLogger(__name__)
_warned: set[str] = set()
_shared: dict[str, MemoryStore] = {}
_lock = Lock()


class QueueStore(Protocol):
    """A set of queues under one root. What a store does not say is as it is here."""

    @property
    def uri(self) -> str:
        """The root."""

    @property
    def is_folder(self) -> bool:
        """Whether each queue is a folder below the root that everybody who uses the store sees."""
        return False

    @property
    def requests_a_minute(self) -> int | None:
        """How many looks at queues a minute are worth what their requests cost; None: a look costs none."""
        return None

    @property
    def missing_reason(self) -> str:
        """That the root does not exist, and what to do, in words; empty when it does. That a store was never used is no error."""
        return ""

    def create(self, name: str, control: Control) -> QueueTable:
        """Make a queue, or return it when it exists already (whatever its control row says). Raises QueueNameError."""

    def open(self, name: str, *, read_only: bool = False) -> QueueTable:
        """Return a queue. Raises QueueNotFoundError, NewerFormatError, StoreUnreachableError.

        :param read_only: write nothing, also where a damaged checkpoint could be set aside: it is then an error.
        """

    def names(self) -> Sequence[str]:
        """Return the queues' names, sorted."""

    def others(self) -> Sequence[str]:
        """Return the names of Delta tables beside the queues that are none, sorted; nothing where only queues are listed."""
        return []

    def copied(self, name: str) -> AbstractContextManager[str]:
        """Yield a folder that has all of a queue's table, as it is now: the table itself where that is a folder, else a copy for a while."""

    def unkept(self, name: str) -> str:  # noqa: ARG002  (the simplest answer)
        """Return what a queue needs and the store lacks, in words; empty: nothing."""
        return ""

    def sweep(self, safe_age: timedelta) -> Sequence[str]:  # noqa: ARG002  (the simplest answer)
        """Remove what killed makers of queues have left beside the queues, where nothing has happened for so long, and return its names.

        Nothing where a queue is made by one request: the cleaning of the queue finds what its killed maker has left.
        """
        return []

    def options_for(self, uri: str) -> Mapping[str, str]:  # noqa: ARG002  (the simplest answer)
        """Return the storage options for a table elsewhere: the store's own where that table is in an object store that they are for, else none."""
        return {}


def object_store_of(uri: str) -> str:
    """Return whose object store a URI is in: ``S3``, ``Google Cloud Storage`` or ``Azure``; empty: it is in none."""
    return next((name for scheme, name in OBJECT_STORES.items() if uri.startswith(scheme)), "")


def open_store(uri: str, storage_options: Mapping[str, str] | None = None, *, durable: bool = True) -> QueueStore:
    """Return the store at a root.

    :param uri: a path, a ``file://`` URI, ``s3://bucket/prefix`` (``gs://``, ``abfss://``), or ``memory://<name>`` for a store that this process
        shares by name.
    :param storage_options: of an object store: its endpoint and credentials, as Delta Lake's writers name them. A folder's are for outputs.
    :param durable: force every commit to disk before it is acknowledged. False is faster, and warned of once: a loss of power may then take
        acknowledged messages, or leave a table that has to be restored. The death of processes takes nothing either way.
    :raises StoreUnreachableError: for every other kind of URI.
    """
    if object_store_of(uri):
        from airflow_poison.store.bucket_store import BucketStore

        return BucketStore(uri, storage_options)
    if not uri.startswith(MEMORY):
        if not durable:
            _warn_once(uri)
        from airflow_poison.store.delta_store import DeltaStore

        return DeltaStore(uri, storage_options, durable)
    from airflow_poison.store.memory import MemoryStore

    name = uri.removeprefix(MEMORY)
    with _lock:
        return _shared.setdefault(name, _shared.get(name) or MemoryStore(name))


def _warn_once(uri: str) -> None:
    with _lock:
        if uri in _warned:
            return
        _warned.add(uri)
    _logger.warning("The store %s is opened with durable=False: after a loss of power, messages that were acknowledged may be gone.", uri)


def no_such_queue(store: QueueStore, name: str) -> QueueNotFoundError:
    """Return the error for a queue that is not there, with those that are."""
    if store.missing_reason:
        return QueueNotFoundError(f"There is no queue {name!r}: {store.missing_reason}.")
    known = ", ".join(store.names()) or "none yet"
    return QueueNotFoundError(
        f"There is no queue {name!r} in {store.uri}. Queues there: {known}. Create it, or correct the name or the store's root."
    )


def no_queue(name: str, uri: str) -> QueueNameError:
    """Return the error for a Delta table of others that lies where a queue of a name would be."""
    return QueueNameError(
        f"{name!r} in {uri} is a Delta table, but no queue: an output, for example. Use another name for the queue, or move the table out of the "
        "store's root."
    )


def is_name(name: str) -> bool:
    """Whether a name can be a queue's."""
    try:
        check_name(name)
    except QueueNameError:
        return False
    return True


def check_name(name: str) -> str:
    """Return the name when it can be a queue's. Raises QueueNameError.

    A name is also a folder's; and ``;`` separates a queue from its sub-queue (``orders;retry``), so neither that nor ``/`` is allowed.
    Names of the system's own queues begin with ``_`` (``_SYSTEM.Exception.Destination.ME1``, spec DMP-6).
    """
    if not isinstance(name, str) or len(name) > MAX_NAME or not _ALLOWED.fullmatch(name) or name in _TAKEN:
        message = (
            f"{name!r} cannot be a queue's name: use 1 to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit, or with one '_' before it."
        )
        if isinstance(name, str) and ";" in name:
            queue = name.partition(";")[0]
            message += f" Name the queue alone, {queue!r}: --sub-queue shows its sub-queues, and the policy PoisonSubQueue receives from poison."
        raise QueueNameError(message)
    return name
