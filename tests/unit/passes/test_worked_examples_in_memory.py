"""Every worked example that needs no host machinery, through real passes over the memory store, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.engines import LocalEngine
from airflow_poison.store.memory import MemoryStore
from tests.conformance.agreement import ON_TABLES, assert_as_the_example_says, keeps_order
from tests.conformance.passes import Player

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.examples.shape import Example


@pytest.mark.parametrize("example", ON_TABLES, ids=lambda example: example.id)
def test_worked_example_on_the_memory_store(example: Example, tmp_path: Path) -> None:
    played = Player(example, MemoryStore(), LocalEngine, tmp_path, isolation="none").play()

    assert_as_the_example_says(example, played, in_order=keeps_order(example))
