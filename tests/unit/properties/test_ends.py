"""Nothing is both settled and kept: each message ends once, and the events say where."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.rules import SYSTEMS
from airflow_poison.rules.decisions import Halted
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.unit.properties.scripts import replays
from tests.unit.properties.systems import settings_of

HALTS = {EventType.QUEUE_DISABLED: Halted.DISABLED, EventType.STOPPED: Halted.STOPPED, EventType.FAULTED: Halted.FAULTED}
STARTS = {EventType.QUEUE_ENABLED, EventType.STARTED}
SENT = {EventType.REQUEUED, EventType.DEAD_LETTERED, EventType.EXCEPTIONED}
LEAVES = {EventType.COMMITTED, EventType.DROPPED, EventType.REJECTED} | SENT
KEPT = {place.value for place in SubQueue} | {"retry1", "retry2", "retry3", "not_arrived"}
ENDING = {"processed": {EventType.COMMITTED}, "lost": {EventType.COMMITTED}, "dropped": {EventType.DROPPED}}
ENDING["dead_letter"] = {EventType.REJECTED, EventType.DROPPED}


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_wcf_8_dmp_2_wmq_10_a_message_leaves_its_queue_once_or_not_at_all(system: str, data: st.DataObject) -> None:
    _, _, result = data.draw(replays(settings_of(system)))

    left = Counter(event.details["message"] for event in result.events if event.type in LEAVES)
    for message in result.messages:
        assert left[message.name] == (message.place not in KEPT)


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_every_end_is_told_by_the_last_event_of_its_message(system: str, data: st.DataObject) -> None:
    _, _, result = data.draw(replays(settings_of(system)))

    for message in result.messages:
        told = [event for event in result.events if event.details.get("message") == message.name and event.type is not EventType.DELIVERED]
        if message.place in KEPT:
            assert not told or told[-1].type not in LEAVES
        else:
            assert told[-1].type in ENDING.get(message.place, SENT)
            assert told[-1].type not in SENT or told[-1].details["place"] == message.place
        if message.place.startswith("retry"):
            assert told[-1].type is EventType.MOVED_RETRY


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_every_delivery_ends_once(system: str, data: st.DataObject) -> None:
    _, _, result = data.draw(replays(settings_of(system)))

    for message in result.messages:
        told = Counter(event.type for event in result.events if event.details.get("message") == message.name)
        calls = [call.outcome for call in result.deliveries if call.message == message.name]
        uncounted = sum(outcome in {"postpone", "savepoint"} for outcome in calls)
        assert told[EventType.DELIVERED] == message.deliveries == len(calls)
        assert told[EventType.DELIVERED] <= told[EventType.COMMITTED] + told[EventType.ROLLED_BACK] + uncounted


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_message_is_processed_only_when_its_last_delivery_succeeded(system: str, data: st.DataObject) -> None:
    policy, _, result = data.draw(replays(settings_of(system)))

    for message in result.messages:
        calls = [call.outcome for call in result.deliveries if call.message == message.name]
        assert message.place != "processed" or calls[-1] == "ok"
        assert message.place != "lost" or not (getattr(policy, "exactly_once", True) and getattr(policy, "transaction_scope_required", True))


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_the_endpoint_is_halted_when_its_last_halt_was_followed_by_no_start(system: str, data: st.DataObject) -> None:
    policy, script, result = data.draw(replays(settings_of(system)))

    told = [event.type for event in result.events if event.type in HALTS | dict.fromkeys(STARTS)]
    by_hand = any(action.verb == "disable" for action in script.actions)
    if not by_hand and told:
        assert result.halted == HALTS.get(told[-1])
    if not by_hand and not told:
        assert result.halted == policy.starts_halted
