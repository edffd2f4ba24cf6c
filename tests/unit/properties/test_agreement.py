"""Whatever the script: real passes on the memory store do what the replay does."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.passes.engines import LocalEngine
from airflow_poison.rules import SYSTEMS
from airflow_poison.store.memory import MemoryStore
from tests.conformance.agreement import assert_agree, keeps_order, replayed
from tests.conformance.passes import Player
from tests.given.examples import examples
from tests.unit.properties.table_scripts import table_examples
from tests.unit.properties.varied import varied_examples

if TYPE_CHECKING:
    from tests.conformance.examples.shape import Example
    from tests.conformance.played import Played


def played(example: Example) -> Played:
    with TemporaryDirectory() as folder:
        return Player(example, MemoryStore(), LocalEngine, Path(folder), isolation="none").play()


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_passes_on_the_memory_store_do_what_the_replay_does_in_varied_scripts(system: str) -> None:
    for example in varied_examples(system, most=12):
        assert_agree(replayed(example), played(example), in_order=keeps_order(example))


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_passes_on_the_memory_store_do_what_the_replay_does_in_any_script(system: str, data: st.DataObject) -> None:
    example: Example = data.draw(table_examples(system))

    assert_agree(replayed(example), played(example), in_order=keeps_order(example))
