"""From a store's URI to the store."""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING

from airflow_poison.core.store.delta.store import DeltaStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.store.memory import MemoryStore
    from airflow_poison.core.store.seam import QueueStore

MEMORY = "memory://"
log = logging.getLogger(__name__)
_warned: set[str] = set()
_shared: dict[str, MemoryStore] = {}
_lock = Lock()


def open_store(uri: str, storage_options: Mapping[str, str] | None = None, *, durable: bool = True) -> QueueStore:
    """Return the store at a root.

    :param uri: a path, a ``file://`` URI, or ``memory://<name>`` for a store that this process shares by name.
    :param storage_options: passed on to the store.
    :param durable: force every commit to disk before it is acknowledged. False is faster, and warned of once: a loss of power may then take
        acknowledged messages, or leave a table that has to be restored. The death of processes takes nothing either way.
    :raises StoreUnreachableError: for every other kind of URI.
    """
    if not uri.startswith(MEMORY):
        if not durable:
            _warn_once(uri)
        return DeltaStore(uri, storage_options, durable)
    from airflow_poison.core.store.memory import MemoryStore

    name = uri.removeprefix(MEMORY)
    with _lock:
        return _shared.setdefault(name, _shared.get(name) or MemoryStore(name))


def _warn_once(uri: str) -> None:
    with _lock:
        if uri in _warned:
            return
        _warned.add(uri)
    log.warning("The store %s is opened with durable=False: after a loss of power, messages that were acknowledged may be gone.", uri)
