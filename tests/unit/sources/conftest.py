"""An empty queue on each store of the passes' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.given.passes import Queue, a_queue
from tests.unit.passes.conftest import at_point, store

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore

__all__ = ["at_point", "store"]


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    return a_queue(store, tmp_path)
