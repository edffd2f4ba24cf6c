"""What replays show of z/OS (ZOS), where a backed-out message is counted in memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Counts
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.unit.delivery.websphere_mq import NEVER_STOPS, specification, starts


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 5))
def test_zos_7_restarts_add_the_rollbacks_that_they_lose(rollbacks: list[int], threshold: int) -> None:
    # Given restarts of the queue manager, each after some rollbacks of the copy then in memory, below the threshold
    lost = [count for count in rollbacks if count < threshold]
    at = [10 * sum(lost[: number + 1]) for number in range(len(lost))]
    script = Script("rb(10)*", actions=[Action(seconds, "restart_broker") for seconds in at])

    copied = replay(specification(**NEVER_STOPS, zos=True, backout_threshold=threshold), script)
    hardened = replay(specification(**NEVER_STOPS, zos=True, backout_threshold=threshold, HARDENBO="YES"), script)

    assert len(copied.deliveries) == threshold + sum(lost)
    assert len(hardened.deliveries) == threshold
    assert copied.message().place == hardened.message().place == "B.Q"


def test_zos_7_with_restarts_always_before_the_limit_there_is_no_bound() -> None:
    restarts = [Action(20 * number, "restart_broker") for number in range(1, 50)]

    result = replay(specification(**NEVER_STOPS, zos=True, backout_threshold=3), Script("rb(10)*98 ok", actions=restarts))

    assert (len(result.deliveries), result.message().place) == (99, "processed")
    assert max(call.counts.abort_count for call in result.deliveries) == 1


def test_zos_6_a_hardened_count_survives_the_queue_manager() -> None:
    policy = specification(**NEVER_STOPS, zos=True, backout_threshold=5, harden_get_backout=True)

    result = replay(policy, Script("rb(10)*", actions=[Action(20, "restart_broker")]))

    assert [call.counts.abort_count for call in result.deliveries] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("option", "stopped"), [("kept", True), ("reset", False)], ids=["ZOS-8", "ZOS-8 item 24 reset"])
def test_extra_deliveries_can_stop_the_endpoint(option: str, stopped: bool) -> None:  # noqa: FBT001
    # Given N 6 > BOTHRESH 5, and a restart of the queue manager that costs two more deliveries
    policy = specification(zos=True, failure_delivery_count=6, backout_threshold=5, counter_over_broker_restart=option)

    result = replay(policy, Script("rb(10)*", actions=[Action(20, "restart_broker")]))

    assert result.story() == (["STOPPED"] if stopped else ["REQUEUED"])


def test_zos_2_on_success_the_copy_and_the_stored_message_are_removed() -> None:
    result = replay(specification(zos=True, failure_delivery_count=9), Script("rb ok", actions=[Action(10, "restart_broker")]))

    assert (result.message().place, len(result.deliveries)) == ("processed", 2)


def test_zos_e8_the_stored_count_stays_0() -> None:
    policy = specification(zos=True)

    result = replay(policy, Script("rb*", actions=[Action(10, "restart_broker"), *starts(10)]))

    assert Counter(result.story()) == {"STOPPED": 2, "STARTED": 1}
    assert policy.stored_backout_count(result.message().counts) == 0


def test_zos_9_the_count_stops_at_255_so_that_a_higher_threshold_is_never_reached() -> None:
    result = replay(specification(**NEVER_STOPS, zos=True, backout_threshold=256), "rb*", most_receives=400)

    assert result.endless
    assert result.message().counts == Counts(255)


def test_zos_5_a_copy_that_is_being_delivered_is_lost_with_its_rollback() -> None:
    script = Script(Scripted("p", "ok(10)"), actions=[Action(5, "restart_broker")])

    result = replay(ActivationSpecification(max_server_sessions=1, failure_delivery_count=3, zos=True), script)

    assert [call.counts.abort_count for call in result.deliveries] == [0, 0]
