"""Counts never fall, except where the specification sets them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.rules import SYSTEMS
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.simulation.scripted_host import as_span
from airflow_poison.rules.websphere_mq import WebSphereMqSettings
from airflow_poison.values.events import EventType
from tests.given.examples import examples
from tests.unit.properties.formulas import NOT_HARDENED
from tests.unit.properties.scripts import replays
from tests.unit.properties.systems import settings_of

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow_poison.rules.policy import Policy
    from airflow_poison.rules.simulation.replay import Replay
    from airflow_poison.rules.simulation.scripted_host import Script

    Replayed = tuple[Policy, Script, Replay]

NOT_STORED = {EventType.DELIVERED, EventType.COMMITTED}
"""Events with the counts that a handler saw, which are not always what the queue keeps (WCF-44, M3-7)."""


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_wcf_14_dmp_4_19_wmq_9_zos_5_counts_fall_only_at_moves_and_where_they_are_only_in_memory(system: str, data: st.DataObject) -> None:
    policy, script, result = data.draw(replays(settings_of(system)))
    lost_at = _losses(policy, script)

    seen: dict[int, tuple[int, int, timedelta]] = {}
    for event in result.events:
        if event.lookup_id is None or event.type in NOT_STORED:
            continue
        abort_count, move_count, before = seen.get(event.lookup_id, (0, 0, result.elapsed * 0))
        at = event.at - result.started
        assert event.move_count >= move_count
        assert event.abort_count >= abort_count or event.move_count > move_count or any(before <= lost <= at for lost in lost_at)
        seen[event.lookup_id] = (event.abort_count, event.move_count, at)


def _losses(policy: Policy, script: Script) -> list[timedelta]:
    """When counts that are only in memory are lost: at restarts of the broker (DMP-19, ZOS-5, ZOS-6, ZOS-9)."""
    volatile = (isinstance(policy, DefaultMessaging) and not policy.persist_redelivery_count) or (
        isinstance(policy, WebSphereMqSettings) and policy.zos and not policy.shared_queue and policy.harden_get_backout in NOT_HARDENED
    )
    return [as_span(action.at) for action in script.actions if volatile and action.verb == "restart_broker"]


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_every_rollback_is_counted_once(system: str, data: st.DataObject) -> None:
    policy, script, result = data.draw(replays(settings_of(system)))
    with_receive_context = isinstance(policy, Msmq4) and policy.receive_context
    lost_at = _losses(policy, script)

    counts: dict[int, int] = {}
    for event in result.events:
        if event.lookup_id is None:
            continue
        if event.type is EventType.ROLLED_BACK and event.details["error"] != "unprocessable" and not with_receive_context and not lost_at:
            assert event.abort_count == counts.get(event.lookup_id, 0) + 1
        if event.type not in NOT_STORED:
            counts[event.lookup_id] = event.abort_count


@settings(max_examples=examples(60))
@given(replays(settings_of("Msmq4", receive_context=False, exactly_once=True)))
def test_wcf_14_17_a_message_has_two_moves_for_each_cycle_that_lies_behind_it(replayed: Replayed) -> None:
    _, _, result = replayed

    for message in result.messages:
        told = [event.type for event in result.events if event.details.get("message") == message.name]
        moves = sum(event in {EventType.MOVED_RETRY, EventType.RETURNED, EventType.MOVED_POISON} for event in told)
        assert message.counts.move_count == moves
