"""Nothing is both settled and kept: each message ends once, and the events say where."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given, settings

from airflow_poison.core.events import EventType
from airflow_poison.core.message import SubQueue
from airflow_poison.core.policies.decisions import Halted
from tests.unit.properties.scripts import replays
from tests.unit.properties.systems import policies

if TYPE_CHECKING:
    from airflow_poison.core.delivery.replayed import Replay
    from airflow_poison.core.delivery.script import Script
    from airflow_poison.core.policies.seam import Policy

    Replayed = tuple[Policy, Script, Replay]

HALTS = {EventType.QUEUE_DISABLED: Halted.DISABLED, EventType.STOPPED: Halted.STOPPED, EventType.FAULTED: Halted.FAULTED}
STARTS = {EventType.QUEUE_ENABLED, EventType.STARTED}
SENT = {EventType.REQUEUED, EventType.DEAD_LETTERED, EventType.EXCEPTIONED}
LEAVES = {EventType.COMMITTED, EventType.DROPPED, EventType.REJECTED} | SENT
KEPT = {place.value for place in SubQueue} | {"retry1", "retry2", "retry3", "not_arrived"}
ENDING = {"processed": {EventType.COMMITTED}, "lost": {EventType.COMMITTED}, "dropped": {EventType.DROPPED}}
ENDING["dead_letter"] = {EventType.REJECTED, EventType.DROPPED}


@settings(max_examples=60, deadline=None)
@given(replays(policies()))
def test_wcf_8_dmp_2_wmq_10_a_message_leaves_its_queue_once_or_not_at_all(replayed: Replayed) -> None:
    _, _, result = replayed

    left = Counter(event.details["message"] for event in result.events if event.type in LEAVES)
    for message in result.messages:
        assert left[message.name] == (message.place not in KEPT)


@settings(max_examples=60, deadline=None)
@given(replays(policies()))
def test_every_end_is_told_by_the_last_event_of_its_message(replayed: Replayed) -> None:
    _, _, result = replayed

    for message in result.messages:
        told = [event for event in result.events if event.details.get("message") == message.name and event.type is not EventType.DELIVERED]
        if message.place in KEPT:
            assert not told or told[-1].type not in LEAVES
        else:
            assert told[-1].type in ENDING.get(message.place, SENT)
            assert told[-1].type not in SENT or told[-1].details["place"] == message.place
        if message.place.startswith("retry"):
            assert told[-1].type is EventType.MOVED_RETRY


@settings(max_examples=60, deadline=None)
@given(replays(policies()))
def test_every_delivery_ends_once(replayed: Replayed) -> None:
    _, _, result = replayed

    for message in result.messages:
        told = Counter(event.type for event in result.events if event.details.get("message") == message.name)
        calls = [call.outcome for call in result.deliveries if call.message == message.name]
        uncounted = sum(outcome in {"postpone", "savepoint"} for outcome in calls)
        assert told[EventType.DELIVERED] == message.deliveries == len(calls)
        assert told[EventType.DELIVERED] <= told[EventType.COMMITTED] + told[EventType.ROLLED_BACK] + uncounted


@settings(max_examples=60, deadline=None)
@given(replays(policies()))
def test_a_message_is_processed_only_when_its_last_delivery_succeeded(replayed: Replayed) -> None:
    policy, _, result = replayed

    for message in result.messages:
        calls = [call.outcome for call in result.deliveries if call.message == message.name]
        assert message.place != "processed" or calls[-1] == "ok"
        assert message.place != "lost" or not (getattr(policy, "exactly_once", True) and getattr(policy, "transaction_scope_required", True))


@settings(max_examples=60, deadline=None)
@given(replays(policies()))
def test_the_endpoint_is_halted_when_its_last_halt_was_followed_by_no_start(replayed: Replayed) -> None:
    policy, script, result = replayed

    told = [event.type for event in result.events if event.type in HALTS | dict.fromkeys(STARTS)]
    by_hand = any(action.verb == "disable" for action in script.actions)
    if not by_hand and told:
        assert result.halted == HALTS.get(told[-1])
    if not by_hand and not told:
        assert result.halted == policy.starts_halted
