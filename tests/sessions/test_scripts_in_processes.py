"""The main worked examples, and varied scripts with crashes: passes over the memory store, each handler in a child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.engines import LocalEngine
from airflow_poison.rules import SYSTEMS
from airflow_poison.store.memory import MemoryStore
from tests.conformance.agreement import assert_agree, assert_as_the_example_says, keeps_order, replayed
from tests.conformance.main_examples import MAIN
from tests.conformance.passes import Player
from tests.unit.properties.varied import varied_examples

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.examples.shape import Example
    from tests.conformance.played import Played


def played(example: Example, folder: Path) -> Played:
    folder.mkdir(exist_ok=True)
    return Player(example, MemoryStore(), LocalEngine, folder, isolation="process").play()


def one_at_a_time(example: Example) -> bool:
    """Several sessions write their calls side by side."""
    return keeps_order(example) and example.policy.server_sessions == 1


@pytest.mark.parametrize("example", MAIN, ids=lambda example: example.id)
def test_worked_example_in_child_processes(example: Example, tmp_path: Path) -> None:
    assert_as_the_example_says(example, played(example, tmp_path), in_order=one_at_a_time(example))


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_child_processes_do_what_the_replay_does(system: str, tmp_path: Path) -> None:
    for number, example in enumerate(varied_examples(system, most=4, in_tasks=True, most_passes=6)):
        assert_agree(replayed(example), played(example, tmp_path / str(number)), in_order=one_at_a_time(example))
