"""Every worked example of the conformance data, through the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.rules.simulation.replay import replay
from airflow_poison.values.events import ROUTINE
from tests.conformance.examples import EXAMPLES

if TYPE_CHECKING:
    from airflow_poison.rules.simulation.replay import Replay
    from tests.conformance.examples.shape import Calls, Example, Story


def story_of(result: Replay) -> Story:
    return tuple(
        ((event.at - result.started).total_seconds(), event.details.get("message", ""), str(event.type))
        for event in result.events
        if event.type not in ROUTINE
    )


def calls_of(result: Replay) -> Calls:
    return tuple((call.at.total_seconds(), call.message, call.counts.abort_count, call.counts.move_count) for call in result.deliveries)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_worked_example(example: Example) -> None:
    result = replay(example.policy, example.script, access=example.access)

    assert story_of(result) == example.story
    if example.calls is not None:
        assert calls_of(result) == example.calls
    if example.deliveries is not None:
        assert len(result.deliveries) == example.deliveries
    if example.receives is not None:
        assert result.receives == example.receives
    if example.elapsed is not None:
        assert result.elapsed.total_seconds() == example.elapsed
    assert result.exceptions == example.exceptions
    if example.halted is not None:
        assert result.halted == example.halted
    if example.counters is not None:
        assert dict(result.counters) == dict(example.counters)
    for name, end in example.ends.items():
        message = result.message(name)
        assert message.place == end.place
        assert end.abort_count in {None, message.counts.abort_count}
        assert end.move_count in {None, message.counts.move_count}
