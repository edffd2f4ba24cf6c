"""A halted endpoint delivers nothing more; what was in flight when it halted still ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.rules import SYSTEMS
from airflow_poison.values.events import EventType
from tests.given.examples import examples
from tests.unit.properties.scripts import replays
from tests.unit.properties.systems import settings_of

if TYPE_CHECKING:
    from airflow_poison.rules.simulation.replay import Replay
    from airflow_poison.values.events import Event

HALTS = {EventType.QUEUE_DISABLED, EventType.STOPPED, EventType.FAULTED}
STARTS = {EventType.QUEUE_ENABLED, EventType.STARTED}
RESULTS = {EventType.COMMITTED, EventType.ROLLED_BACK}


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(50))
@given(data=st.data())
def test_sb_13_18_wcf_21_wmq_15_20_lp_6_a_halted_endpoint_delivers_nothing_but_what_was_in_flight(system: str, data: st.DataObject) -> None:
    policy, _, result = data.draw(replays(settings_of(system)))

    for after in _after_halts(result):
        told = [event.type for event in after]
        assert EventType.DELIVERED not in told
        assert not set(told) & {EventType.RETURNED, EventType.MOVED_RETRY, *HALTS}
        assert sum(event in RESULTS for event in told) <= max(policy.server_sessions - 1, 0) + policy.early_hand_out


def _after_halts(result: Replay) -> list[list[Event]]:
    """Return the events behind each halt, up to the next start."""
    found: list[list[Event]] = []
    halted = False
    for event in result.events:
        if event.type in STARTS:
            halted = False
        if halted:
            found[-1].append(event)
        if event.type in HALTS and not halted:
            halted = True
            found.append([])
    return found
