"""A queue in each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.given.stores import STORES, local_store
from tests.given.tables import CONTROL

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return local_store(request.param, tmp_path)


@pytest.fixture
def queue(store: QueueStore) -> QueueTable:
    return store.create("orders", CONTROL)
