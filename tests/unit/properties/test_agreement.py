"""Whatever the script: real passes on the memory store do what the replay does."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.core.passes.engine import LocalEngine
from airflow_poison.core.policies import SYSTEMS
from airflow_poison.core.store.memory import MemoryStore
from tests.conformance.agreement import assert_agree, keeps_order, replayed
from tests.conformance.passes import Player
from tests.unit.properties.table_scripts import table_examples

if TYPE_CHECKING:
    from tests.conformance.examples.shape import Example


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_passes_on_the_memory_store_do_what_the_replay_does(system: str, data: st.DataObject) -> None:
    example: Example = data.draw(table_examples(system))

    with TemporaryDirectory() as folder:
        played = Player(example, MemoryStore(), LocalEngine, Path(folder), isolation="none").play()

    assert_agree(replayed(example), played, in_order=keeps_order(example))
