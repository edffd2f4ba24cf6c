"""The stores that unit tests of verbs use."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

import obstore.store

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.memory import MemoryStore
from airflow_poison.store.objects import Objects
from tools.servers import azure

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore

STORES = os.environ.get("POISON_STORES", "delta").split(",")
"""Their names: a folder, ``memory`` (so in ``make test``), ``bucket`` (in ``make live``). All of them are in each run of tests/store."""


def local_store(name: str, folder: Path) -> QueueStore:
    """Return a new store of this name."""
    return MemoryStore() if name == "memory" else DeltaStore(str(folder / "store"), durable=False)


def new_objects() -> Objects:
    """Return an empty object store: of this process; where ``POISON_BUCKETS=azure``, a container of a server."""
    if os.environ.get("POISON_BUCKETS") != "azure":
        return Objects("bucket://memory", obstore.store.MemoryStore())
    name = f"c{uuid4().hex}"
    azure.make_container(_azure(), name)
    return Objects.at(f"az://{name}", azure.options(_azure()))


@cache
def _azure() -> str:
    ending = ExitStack()
    atexit.register(ending.close)
    return ending.enter_context(azure.running())
