"""The stores that unit tests of verbs use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore

STORES = os.environ.get("POISON_STORES", "delta").split(",")
"""Their names: a folder; in ``make live`` also memory and an object store. All of them are in each run of tests/store."""


def local_store(name: str, folder: Path) -> QueueStore:
    """Return a new store of this name."""
    return MemoryStore() if name == "memory" else DeltaStore(str(folder / "store"), durable=False)
