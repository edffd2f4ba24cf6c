"""The decisions of an activation specification, one rule each."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Halted, Return
from airflow_poison.rules.policy import Opening, Restart
from airflow_poison.rules.websphere_mq import StopRule, first_stop, stops
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, RAISED, Message, message

if TYPE_CHECKING:
    from airflow_poison.rules.activation_specification import ActivationSpecificationReceiver

UNPROCESSABLE = Failure(FailureKind.UNPROCESSABLE)
UNREADABLE = Failure(FailureKind.UNREADABLE)


def specification(**settings: Any) -> ActivationSpecification:
    return ActivationSpecification.from_dict({"failure_delivery_count": 3, "max_server_sessions": 1} | settings)


def roll_back(receiver: ActivationSpecificationReceiver, times: int) -> list[Return | Halt]:
    return [receiver.after_rollback(message(), RAISED, NOW) for _ in range(times)]


def counter(receiver: ActivationSpecificationReceiver) -> int:
    return receiver.counters()["sequential_failures"]


def test_wmq_4_the_counter_rises_at_each_rollback_and_a_success_sets_it_to_0() -> None:
    receiver = specification(failure_delivery_count=9).open()

    roll_back(receiver, 4)
    assert counter(receiver) == 4

    receiver.transaction_committed([message()])
    assert counter(receiver) == 0

    roll_back(receiver, 1)
    assert counter(receiver) == 1


def test_wmq_4_wmq_21_with_stop_not_ticked_there_is_no_counter_and_no_stop() -> None:
    policy = specification(stop_endpoint_if_delivery_fails=False, failure_delivery_count=0)
    receiver = policy.open()

    assert all(isinstance(decision, Return) for decision in roll_back(receiver, 50))
    assert receiver.counters() == {}
    assert policy.stateless
    assert not policy.halting


def test_wmq_4_with_stop_ticked_a_decision_depends_on_other_messages() -> None:
    assert specification().halting
    assert not specification().stateless
    assert specification().halts_as is Halted.STOPPED


@pytest.mark.parametrize(
    ("rule", "limit", "count"),
    [
        pytest.param("reaches", 0, 1, id="WMQ-6"),
        pytest.param("reaches", 1, 1, id="WMQ-7 N 1"),
        pytest.param("reaches", 3, 3, id="WMQ-5"),
        pytest.param("more_than", 0, 1, id="WMQ-28 first failure"),
        pytest.param("more_than", 1, 2, id="WMQ-28 second failure"),
        pytest.param("more_than", 3, 4, id="WMQ-28 one failure later"),
        pytest.param("equals", 3, 3, id="WMQ-5 step form"),
    ],
)
def test_the_endpoint_stops_at_the_first_failure_that(rule: str, limit: int, count: int) -> None:
    receiver = specification(stop_rule=rule, failure_delivery_count=limit).open()

    *before, last = roll_back(receiver, count)

    assert all(isinstance(decision, Return) for decision in before)
    assert isinstance(last, Halt)
    assert (last.how, last.events) == (Halted.STOPPED, (EventType.STOPPED,))


@given(st.sampled_from(StopRule), st.integers(0, 12), st.integers(1, 40))
def test_wmq_7_28_the_rules_as_formulas(rule: StopRule, limit: int, count: int) -> None:
    meant = {StopRule.REACHES: count >= max(limit, 1), StopRule.MORE_THAN: count > limit, StopRule.EQUALS: count == limit}[rule]

    assert stops(rule, count, limit) is meant
    assert first_stop(rule, limit) == next((first for first in range(1, 20) if stops(rule, first, limit)), None)


@given(st.lists(st.sampled_from(["rb", "ok", "requeue"]), max_size=40), st.integers(0, 6))
def test_wmq_7_14_the_endpoint_stops_when_the_failures_since_the_last_success_reach_the_limit(outcomes: list[str], limit: int) -> None:
    receiver, failures = specification(failure_delivery_count=limit, backout_threshold=5).open(), 0

    for outcome in outcomes:
        if outcome == "requeue":
            assert isinstance(receiver.before(message(5), NOW), Dispose)
            continue
        if outcome == "ok":
            receiver.transaction_committed([message()])
            failures = 0
            continue
        (decision,) = roll_back(receiver, 1)
        failures += 1
        assert isinstance(decision, Halt) is (failures >= max(limit, 1))
        if isinstance(decision, Halt):
            return


def test_wmq_8_the_next_endpoint_goes_on_counting_and_stops_again() -> None:
    first = specification(failure_delivery_count=0).open()
    roll_back(first, 1)

    second = specification(failure_delivery_count=0).open(Opening(counters=first.counters()))
    (decision,) = roll_back(second, 1)

    assert counter(second) == 2
    assert isinstance(decision, Halt)


def test_wmq_8_with_plain_equality_such_an_endpoint_never_stops_again() -> None:
    receiver = specification(stop_rule="equals", failure_delivery_count=2).open(Opening(counters={"sequential_failures": 2}))

    assert all(isinstance(decision, Return) for decision in roll_back(receiver, 50))


@pytest.mark.parametrize(("reset", "left"), [(True, {}), (False, {"sequential_failures": 2})])
def test_wmq_8_a_start_is_where_reset_on_start_begins_at_0_and_a_pass_is_none(reset: bool, left: dict[str, int]) -> None:  # noqa: FBT001
    policy, found = specification(reset_on_start=reset), {"sequential_failures": 2}

    assert policy.counters_when_enabled(found, starts=True) == left
    assert policy.counters_when_enabled(found, starts=False) == found  # it was ON
    assert policy.counters_after(found, Restart.ENDPOINT) == left
    assert counter(policy.open(Opening(counters=found))) == 2


@pytest.mark.parametrize(
    ("restart", "option", "left"),
    [
        pytest.param(Restart.ENDPOINT, "kept", 2, id="WMQ-8"),
        pytest.param(Restart.SERVER, "kept", 0, id="WMQ-8 section 11.1 server"),
        pytest.param(Restart.BROKER, "kept", 2, id="ZOS-8"),
        pytest.param(Restart.BROKER, "reset", 0, id="ZOS-8 item 24 reset"),
        pytest.param(Restart.ENDPOINT, "reset", 2, id="WMQ-8 item 24 is about the broker"),
    ],
)
def test_what_a_restart_leaves_of_the_counter(restart: Restart, option: str, left: int) -> None:
    policy = specification(counter_over_broker_restart=option)

    counters = policy.counters_after({"sequential_failures": 2}, restart)

    assert counter(policy.open(Opening(counters=counters))) == left


def test_wmq_9_a_rejected_delivery_raises_the_redelivery_count_by_1() -> None:
    receiver = specification(stop_endpoint_if_delivery_fails=False).open()

    assert receiver.before(message(2), NOW) == Deliver(Counts(2))
    assert receiver.after_rollback(message(2), RAISED, NOW) == Return(Counts(3))


def test_wmq_12_the_stop_check_follows_the_raised_count() -> None:
    decision = specification(failure_delivery_count=0, backout_threshold=1).open().after_rollback(message(), RAISED, NOW)

    assert isinstance(decision, Halt)
    assert decision.counts == Counts(1)


def test_wmq_12_a_rollback_that_reaches_the_threshold_requeues_at_the_next_detection_only() -> None:
    receiver = specification(failure_delivery_count=9, backout_threshold=1).open()

    decision = receiver.after_rollback(message(), RAISED, NOW)

    assert decision == Return(Counts(1))
    assert isinstance(receiver.before(message(1), NOW), Dispose)


@pytest.mark.parametrize(("resets", "left"), [(False, 2), (True, 0)], ids=["WMQ-14", "WMQ-14 item 21"])
def test_a_requeue_is_no_delivery(resets: bool, left: int) -> None:  # noqa: FBT001  (a parameter of the test)
    receiver = specification(backout_threshold=1, requeue_resets_counter=resets).open()
    roll_back(receiver, 2)

    receiver.before(message(1), NOW)

    assert counter(receiver) == left


def test_wmq_20_what_was_handed_out_still_counts_but_does_not_stop_twice() -> None:
    receiver = specification(failure_delivery_count=3).open()

    decisions = roll_back(receiver, 5)

    assert [type(decision) for decision in decisions] == [Return, Return, Halt, Return, Return]
    assert all(decision.counts == Counts(1) for decision in decisions)
    assert counter(receiver) == 5


def test_wmq_20_a_success_after_the_stop_still_sets_the_counter_to_0() -> None:
    receiver = specification(failure_delivery_count=3).open()
    roll_back(receiver, 4)

    assert receiver.transaction_committed([message()]) is None  # type: ignore[func-returns-value]  # the seam allows a Halt
    assert counter(receiver) == 0


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.TIMEOUT, FailureKind.CRASH], ids=lambda kind: f"WMQ-26 {kind}")
def test_a_failed_delivery_counts_whatever_failed(kind: FailureKind) -> None:
    receiver = specification().open()

    assert receiver.after_rollback(message(1), Failure(kind), NOW) == Return(Counts(2))
    assert counter(receiver) == 1


def test_an_unprocessable_message_is_no_rollback_and_goes_where_a_requeue_would_go() -> None:
    receiver = specification(backout_requeue_queue="B.Q").open()

    returned = receiver.after_rollback(message(1), UNPROCESSABLE, NOW)
    decision = receiver.give_up(message(1), UNPROCESSABLE, NOW)

    assert returned == Return(Counts(1))
    assert counter(receiver) == 0
    assert isinstance(decision, Dispose)
    assert (decision.how, decision.destination, decision.events) == (Disposition.SEND, "B.Q", (EventType.REQUEUED,))


def test_wmq_24_an_unreadable_message_has_its_own_reason() -> None:
    decision = specification(backout_requeue_queue="B.Q").open().give_up(message(), UNREADABLE, NOW)

    assert not isinstance(decision, Block)
    assert decision.details["reason"] == "2364 MQRC_JMS_FORMAT_ERROR"


def test_wmq_28_the_stop_names_its_message() -> None:
    receiver = specification(failure_delivery_count=2).open(Opening(queue="orders"))

    _, decision = roll_back(receiver, 2)

    assert isinstance(decision, Halt)
    assert decision.details["code"] == "CWWMQ0007W"
    assert decision.details["sequential_failures"] == "2"
    assert "orders" in decision.details["text"]


def test_the_counter_stops_at_the_largest_number() -> None:
    receiver = specification(stop_rule="equals").open(Opening(counters={"sequential_failures": 2147483647}))

    roll_back(receiver, 1)

    assert counter(receiver) == 2147483647


def test_a_receiver_travels_with_its_memory() -> None:
    receiver = specification(failure_delivery_count=2).open()
    roll_back(receiver, 2)

    copy = pickle.loads(pickle.dumps(receiver))

    assert counter(copy) == 2
    assert isinstance(copy.after_rollback(Message(), RAISED, NOW), Return)
