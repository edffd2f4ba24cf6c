"""A queue in each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.memory import MemoryStore
from tests.given.tables import CONTROL, NOW

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


@pytest.fixture(params=["memory", "delta"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return MemoryStore() if request.param == "memory" else DeltaStore(str(tmp_path / "store"), durable=False)


@pytest.fixture
def queue(store: QueueStore) -> QueueTable:
    return store.create("orders", CONTROL, NOW)
