"""From a store's URI to the store."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from airflow_poison.core.store.delta.store import DeltaStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.store.memory import MemoryStore
    from airflow_poison.core.store.seam import QueueStore

MEMORY = "memory://"
_shared: dict[str, MemoryStore] = {}
_lock = Lock()


def open_store(uri: str, storage_options: Mapping[str, str] | None = None) -> QueueStore:
    """Return the store at a root.

    :param uri: a path, a ``file://`` URI, or ``memory://<name>`` for a store that this process shares by name.
    :param storage_options: passed on to the store.
    :raises StoreUnreachableError: for every other kind of URI.
    """
    if not uri.startswith(MEMORY):
        return DeltaStore(uri, storage_options)
    from airflow_poison.core.store.memory import MemoryStore

    name = uri.removeprefix(MEMORY)
    with _lock:
        return _shared.setdefault(name, _shared.get(name) or MemoryStore(name))
