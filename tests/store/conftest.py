"""The stores under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values import fault_points
from tests.given.points import AtPoint
from tests.given.stores import new_objects
from tests.given.tables import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.objects import Objects
    from airflow_poison.store.queue_table import QueueTable


@pytest.fixture(params=["memory", "delta", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    """Each store that stands behind the seam."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "bucket":
        return bucket_store(tmp_path)
    return DeltaStore(str(tmp_path / "store"), durable=False)


def bucket_store(folder: Path, objects: Objects | None = None) -> BucketStore:
    """Return a store in an object store, in a new one where none is given, with a node's folder of its own."""
    return BucketStore("", node=folder / "node", objects=objects or new_objects())


@pytest.fixture
def queue(store: QueueStore) -> QueueTable:
    """An empty queue of each store."""
    return store.create("orders", CONTROL)


@pytest.fixture
def delta_root(tmp_path: Path) -> str:
    """Where a Delta store lies."""
    return str(tmp_path / "store")


@pytest.fixture
def delta_queue(delta_root: str) -> QueueTable:
    """An empty queue of a durable Delta store."""
    return DeltaStore(delta_root).create("orders", CONTROL)


@pytest.fixture
def at_point() -> Iterator[AtPoint]:
    """Calls something when the protocol reaches a point, once."""
    hook = AtPoint()
    fault_points.install(hook)
    yield hook
    fault_points.install(None)
