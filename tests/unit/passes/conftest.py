"""A queue in each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.core import fault_points
from airflow_poison.core.store.delta.store import DeltaStore
from airflow_poison.core.store.memory import MemoryStore
from tests.store.points import AtPoint
from tests.unit.passes.given import Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.core.store.seam import QueueStore


@pytest.fixture(params=["memory", "delta"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return MemoryStore() if request.param == "memory" else DeltaStore(str(tmp_path / "store"), durable=False)


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    return a_queue(store, tmp_path)


@pytest.fixture
def at_point() -> Iterator[AtPoint]:
    """Calls something when a pass reaches a point, once."""
    hook = AtPoint()
    fault_points.install(hook)
    yield hook
    fault_points.install(None)
