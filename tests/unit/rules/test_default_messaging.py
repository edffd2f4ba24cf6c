"""The decisions of DefaultMessaging, one rule each."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Halted, Return
from airflow_poison.rules.default_messaging import SEQUENTIAL_FAILURES, DefaultMessaging, DefaultMessagingReceiver, Reliability, named
from airflow_poison.rules.policy import FIRST, Access, Opening, Restart
from airflow_poison.values.errors import ConfigurationWarning
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, RAISED, Message, message

SYSTEM = "_SYSTEM.Exception.Destination.ME1"
DEFAULTS = DefaultMessaging()
KEPT = DefaultMessaging(exception_destination="None")
SPECIFIED = DefaultMessaging(exception_destination="errQ")
UNPROCESSABLE = Failure(FailureKind.UNPROCESSABLE)
UNREADABLE = Failure(FailureKind.UNREADABLE)


def last_rollback(policy: DefaultMessaging, opening: Opening = FIRST, **properties: str) -> Return | Dispose | Block | Halt:
    """The decision on the rollback that reaches max_failed_deliveries."""
    entry = Message(Counts(policy.max_failed_deliveries - 1), properties=properties)
    return policy.open(opening).after_rollback(entry, RAISED, NOW)


def lenient(**settings: Any) -> DefaultMessaging:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        return DefaultMessaging(**settings)


# Counting and comparing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2**40])
def test_dmp_1_only_the_application_can_tell_every_message_is_handed_to_it(size: int) -> None:
    assert DEFAULTS.unreadable(message(size=size)) is None
    assert DEFAULTS.open().before(message(size=size), NOW) == Deliver(Counts())


def test_dmp_2_a_rollback_leaves_the_message_at_its_origin() -> None:
    assert DEFAULTS.open().after_rollback(message(), RAISED, NOW) == Return(Counts(1))


def test_dmp_2_a_handler_can_have_the_message_moved_without_retries() -> None:
    receiver = DEFAULTS.open()

    assert receiver.after_rollback(message(), UNPROCESSABLE, NOW) == Return(Counts(1))
    decision = receiver.give_up(message(1), UNPROCESSABLE, NOW)
    assert isinstance(decision, Dispose)
    assert (decision.how, decision.destination, decision.events) == (Disposition.SEND, SYSTEM, (EventType.EXCEPTIONED,))


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        pytest.param({"max_failed_deliveries": 9}, Return, id="DMP-3 maximum failed deliveries"),
        pytest.param({"exception_destination": "None"}, Block, id="DMP-3 exception destination"),
        pytest.param({}, Dispose, id="DMP-3 redelivery count"),
    ],
)
def test_dmp_3_three_properties_decide(changed: dict[str, Any], decision: type) -> None:
    assert isinstance(DefaultMessaging(**changed).open().after_rollback(message(4), RAISED, NOW), decision)
    assert isinstance(DefaultMessaging(**changed).open().after_rollback(message(0), RAISED, NOW), Return)


@given(st.integers(0, 2147483647), st.integers(0, 9))
def test_dmp_4_a_rollback_raises_the_redelivery_count_by_1_and_a_delivery_does_not(count: int, move_count: int) -> None:
    receiver = DEFAULTS.open()
    delivered = receiver.before(message(count, move_count), NOW)
    rolled_back = receiver.after_rollback(message(count, move_count), RAISED, NOW)

    assert delivered == Deliver(Counts(count, move_count))
    assert rolled_back.counts == Counts(min(count + 1, 2147483647), move_count)


@pytest.mark.parametrize("count", range(5))
def test_dmp_5_dmp_8_the_fifth_rollback_moves_it_at_once(count: int) -> None:
    decision = DEFAULTS.open().after_rollback(message(count), RAISED, NOW)

    assert isinstance(decision, Dispose if count == 4 else Return)


@given(st.integers(0, 50), st.integers(0, 60))
def test_dmp_7_the_count_is_compared_after_it_has_been_raised(most: int, count: int) -> None:
    decision = DefaultMessaging(max_failed_deliveries=most).open().after_rollback(message(count), RAISED, NOW)

    assert isinstance(decision, Dispose) == (count + 1 >= most)


def test_dmp_7_no_count_keeps_a_message_from_being_delivered() -> None:
    assert DEFAULTS.open().before(message(99), NOW) == Deliver(Counts(99))


def test_dmp_13_a_maximum_of_0_behaves_like_1() -> None:
    none, one = (DefaultMessaging(max_failed_deliveries=most) for most in (0, 1))

    assert isinstance(none.open().after_rollback(message(), RAISED, NOW), Dispose)
    assert none.open().after_rollback(message(), RAISED, NOW) == one.open().after_rollback(message(), RAISED, NOW)


# Where it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "destination", "must_exist"),
    [
        pytest.param(DEFAULTS, SYSTEM, (), id="DMP-6 System"),
        pytest.param(DefaultMessaging(messaging_engine="n1.s1-bus"), "_SYSTEM.Exception.Destination.n1.s1-bus", (), id="DMP-6 engine"),
        pytest.param(SPECIFIED, "errQ", ("errQ",), id="DMP-6 Specify"),
        pytest.param(DefaultMessaging(exception_destination=SYSTEM), SYSTEM, (), id="DMP-6 Specify the engine's"),
    ],
)
def test_dmp_6_the_exception_destination(policy: DefaultMessaging, destination: str, must_exist: tuple[str, ...]) -> None:
    decision = last_rollback(policy)

    assert isinstance(decision, Dispose)
    assert (decision.how, decision.destination, decision.events) == (Disposition.SEND, destination, (EventType.EXCEPTIONED,))
    assert decision.details == {}
    assert policy.destinations == must_exist


def test_dmp_6_none_keeps_the_message_where_it_is() -> None:
    assert isinstance(last_rollback(KEPT), Block)
    assert KEPT.destinations == ()


def test_dmp_17_the_engine_s_queue_stands_in_for_one_that_is_missing() -> None:
    decision = last_rollback(SPECIFIED, Opening(access={"errQ": Access.MISSING}))

    assert isinstance(decision, Dispose)
    assert (decision.destination, decision.events) == (SYSTEM, (EventType.EXCEPTIONED,))
    assert decision.details["warning"].startswith("CWSIP0291")
    assert "errQ" in decision.details["warning"]


@pytest.mark.parametrize(
    ("policy", "access"),
    [
        pytest.param(SPECIFIED, {"errQ": Access.DENIED}, id="specified"),
        pytest.param(DEFAULTS, {SYSTEM: Access.DENIED}, id="the engine's"),
        pytest.param(SPECIFIED, {"errQ": Access.MISSING, SYSTEM: Access.DENIED}, id="the stand-in"),
    ],
)
def test_dmp_17_without_authority_the_destination_is_blocked_until_a_restart(policy: DefaultMessaging, access: dict[str, Access]) -> None:
    decision = last_rollback(policy, Opening(access=access))

    assert isinstance(decision, Block)
    assert (decision.until, decision.whole_queue, decision.events, decision.counts) == (None, True, (EventType.BLOCKED,), Counts(5))
    assert decision.details["warning"].startswith("CWSIP0313")


@pytest.mark.parametrize("policy", [SPECIFIED, DEFAULTS])
def test_dmp_17_a_failure_to_send_is_retried_later(policy: DefaultMessaging) -> None:
    decision = last_rollback(policy, Opening(access={"errQ": Access.MISSING, SYSTEM: Access.MISSING}))

    assert isinstance(decision, Block)
    assert decision.until == NOW + timedelta(seconds=5)
    assert decision.details["warning"].startswith("CWSIP0291")


def test_dmp_17_what_cannot_be_sent_blocks_only_itself_when_destinations_are_not_blocked() -> None:
    decision = last_rollback(replace(SPECIFIED, destination_blocked=False), Opening(access={"errQ": Access.DENIED}))

    assert isinstance(decision, Block)
    assert not decision.whole_queue


# Waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "wait"),
    [
        pytest.param({}, 5000, id="DMP-9"),
        pytest.param({"blocked_retry_interval": timedelta(seconds=7)}, 7000, id="DMP-9 engine"),
        pytest.param({"override_blocked_retry_timeout": True, "blocked_retry_timeout": 10000}, 10000, id="DMP-10"),
        pytest.param({"override_blocked_retry_timeout": True, "blocked_retry_timeout": 0}, 0, id="DMP-10 at once"),
        pytest.param({"override_blocked_retry_timeout": True}, None, id="DMP-10 never"),
        pytest.param({"blocked_retry_timeout": 10000}, 5000, id="DMP-11"),
        pytest.param({"blocked_retry_timeout": -1}, 5000, id="DMP-11 -1"),
        pytest.param({"override_blocked_retry_timeout": True, "negative_timeout": "engine_default"}, 5000, id="DMP-15"),
    ],
)
def test_dmp_9_10_11_15_how_long_a_message_waits(settings: dict[str, Any], wait: int | None) -> None:
    policy = lenient(exception_destination="None", **settings)

    until = None if wait is None else NOW + timedelta(milliseconds=wait)
    assert last_rollback(policy) == Block(Counts(5), until, (EventType.BLOCKED,), whole_queue=True, details={"obstacle": policy.obstacle})


@given(st.integers(4, 2147483646))
def test_dmp_12_with_none_the_count_keeps_growing_and_each_further_failure_waits_again(count: int) -> None:
    decision = KEPT.open().after_rollback(message(count), RAISED, NOW)

    assert decision == Block(Counts(count + 1), NOW + timedelta(seconds=5), (EventType.BLOCKED,), details={"obstacle": KEPT.obstacle})


@pytest.mark.parametrize(
    ("settings", "whole"),
    [
        pytest.param({}, True, id="DMP-14"),
        pytest.param({"destination_blocked": False}, False, id="DMP-14 off"),
        pytest.param({"destination_blocked": False, "strict_message_ordering": True}, True, id="DMP-20 nobody overtakes"),
    ],
)
def test_dmp_14_the_whole_destination_waits_or_the_message_alone(settings: dict[str, Any], whole: bool) -> None:  # noqa: FBT001
    policy = replace(KEPT, **settings)
    decision = last_rollback(policy)

    assert isinstance(decision, Block)
    assert decision.whole_queue is whole
    assert (policy.halting, policy.stateless) == (whole, not whole)


# Discards ---------------------------------------------------------------------------------------------------------

ASSURED = lenient(exception_discard_reliability="assured_persistent")


@pytest.mark.parametrize("limit", Reliability)
@pytest.mark.parametrize("level", Reliability)
def test_dmp_16_a_message_at_or_below_the_discard_reliability_is_discarded(level: Reliability, limit: Reliability) -> None:
    decision = last_rollback(lenient(exception_discard_reliability=limit), reliability=level)

    assert isinstance(decision, Dispose)
    discarded = decision.how is Disposition.DROP
    assert discarded == (list(Reliability).index(level) <= list(Reliability).index(limit))
    assert decision.events == ((EventType.DROPPED,) if discarded else (EventType.EXCEPTIONED,))


@pytest.mark.parametrize("properties", [{}, {"reliability": ""}, {"reliability": "very"}, {"Reliability": "best_effort_nonpersistent"}])
def test_dmp_16_a_message_that_names_no_reliability_is_never_discarded_for_it(properties: dict[str, str]) -> None:
    decision = last_rollback(ASSURED, FIRST, **properties)

    assert isinstance(decision, Dispose)
    assert decision.how is Disposition.SEND


@pytest.mark.parametrize("name", ["BestEffortNonPersistent", "BEST_EFFORT_NONPERSISTENT", "best_effort_nonpersistent"])
def test_dmp_16_a_reliability_is_known_in_all_its_spellings(name: str) -> None:
    assert named(name) is Reliability.BEST_EFFORT_NONPERSISTENT
    assert named("besteffort") is None


def test_dmp_16_messages_of_a_temporary_destination_are_discarded() -> None:
    decision = last_rollback(lenient(temporary_destination=True), reliability="assured_persistent")

    assert isinstance(decision, Dispose)
    assert (decision.how, decision.to_dead_letter, decision.details) == (Disposition.DROP, False, {"reason": "the destination is temporary"})


@pytest.mark.parametrize(("asked", "how"), [("MQRO_DISCARD_MSG", "drop"), ("134217728", "drop"), ("MQRO_NONE", "send"), ("0", "send")])
def test_dmp_16_a_sender_can_ask_for_the_discard(asked: str, how: str) -> None:
    decision = last_rollback(DEFAULTS, JMS_IBM_Report_Discard_Msg=asked)

    assert isinstance(decision, Dispose)
    assert decision.how == how


@pytest.mark.parametrize("settings", [{}, {"temporary_destination": True}, {"exception_discard_reliability": "assured_persistent"}])
def test_dmp_16_nothing_is_discarded_where_nothing_would_go_to_an_exception_destination(settings: dict[str, Any]) -> None:
    policy = lenient(exception_destination="None", **settings)

    assert isinstance(last_rollback(policy, reliability="best_effort_nonpersistent"), Block)
    assert not policy.reads_properties


def test_dmp_16_a_discard_needs_no_usable_exception_destination() -> None:
    decision = last_rollback(DEFAULTS, Opening(access={SYSTEM: Access.DENIED}), reliability="best_effort_nonpersistent")

    assert isinstance(decision, Dispose)
    assert DEFAULTS.reads_properties


# Headers ----------------------------------------------------------------------------------------------------------


def test_dmp_18_an_exceptioned_message_says_why_when_and_where() -> None:
    decision = last_rollback(DEFAULTS, Opening(queue="orders"))

    assert isinstance(decision, Dispose)
    assert decision.headers == {
        "JMS_IBM_ExceptionReason": "SIRC0035",
        "JMS_IBM_ExceptionTimestamp": "1357041600700",
        "JMS_IBM_ExceptionMessage": "SIRC0035: the message was rolled back 5 times and has reached the maximum of failed deliveries of orders.",
        "JMS_IBM_ExceptionProblemDestination": "orders",
    }


def test_dmp_18_a_queue_s_message_names_no_subscription() -> None:
    decision = last_rollback(DEFAULTS)

    assert isinstance(decision, Dispose)
    assert "JMS_IBM_ExceptionProblemSubscription" not in decision.headers


def test_dmp_18_the_headers_are_those_of_the_exception_destination_whichever_it_is() -> None:
    missing = Opening(access={"errQ": Access.MISSING})
    specified, stand_in, system = last_rollback(SPECIFIED), last_rollback(SPECIFIED, missing), last_rollback(DEFAULTS)

    assert isinstance(specified, Dispose)
    assert isinstance(stand_in, Dispose)
    assert isinstance(system, Dispose)
    assert specified.headers == stand_in.headers == system.headers


@pytest.mark.parametrize(("failure", "reason"), [(UNPROCESSABLE, "SIRC0101"), (UNREADABLE, "SIRC0105")])
def test_dmp_18_a_message_that_was_given_up_has_another_reason(failure: Failure, reason: str) -> None:
    decision = DEFAULTS.open().give_up(message(), failure, NOW)

    assert isinstance(decision, Dispose)
    assert decision.headers["JMS_IBM_ExceptionReason"] == reason
    assert decision.headers["JMS_IBM_ExceptionMessage"].startswith(f"{reason}: ")
    assert decision.counts == Counts()


def test_dmp_18_a_discarded_message_gets_no_headers() -> None:
    decision = last_rollback(DEFAULTS, reliability="best_effort_nonpersistent")

    assert isinstance(decision, Dispose)
    assert decision.headers == {}


# Restarts ---------------------------------------------------------------------------------------------------------


def test_dmp_19_a_restart_of_the_messaging_engine_sets_the_count_to_0_unless_it_is_persisted() -> None:
    persisted = replace(DEFAULTS, persist_redelivery_count=True)

    assert DEFAULTS.counts_after(Counts(4, 2), Restart.BROKER) == Counts(0, 2)
    assert persisted.counts_after(Counts(4, 2), Restart.BROKER) == Counts(4, 2)


@pytest.mark.parametrize("restart", [Restart.ENDPOINT, Restart.SERVER])
def test_dmp_19_other_restarts_keep_it(restart: Restart) -> None:
    assert DEFAULTS.counts_after(Counts(4, 2), restart) == Counts(4, 2)


# Strict ordering and the automatic stop ---------------------------------------------------------------------------


def stopping(after: int, **settings: Any) -> DefaultMessaging:
    return lenient(auto_stop_sequential_message_failure=after, **settings)


def test_dmp_20_strict_ordering_takes_one_message_at_a_time_and_keeps_one_order() -> None:
    strict, loose = (lenient(strict_message_ordering=strict, max_concurrency=5) for strict in (True, False))

    assert (strict.server_sessions, strict.open().batch_size(), strict.halting) == (1, 1, True)
    assert (loose.server_sessions, loose.halting, loose.stateless) == (5, False, True)


@pytest.mark.parametrize(
    ("settings", "given", "threshold"),
    [
        ({}, 0, 0),
        ({}, 3, 3),
        pytest.param({"strict_message_ordering": True}, 0, 0, id="DMP-20 strict, not modelled"),
        pytest.param({"strict_message_ordering": True}, 3, 1, id="DMP-20 CWSIV0906"),
        pytest.param({"exception_destination": "None"}, 0, 0, id="DMP-20 None, not modelled"),
        pytest.param({"exception_destination": "None"}, 3, 1, id="DMP-20 CWSIV0907"),
    ],
)
def test_dmp_20_the_automatic_stop_is_off_by_default_and_forced_to_1(settings: dict[str, Any], given: int, threshold: int) -> None:
    policy = stopping(given, **settings)

    assert DEFAULTS.stop_threshold == 0
    assert policy.stop_threshold == threshold
    assert policy.halting or not threshold
    assert not (policy.stateless and threshold)


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"strict_message_ordering": True}, "CWSIV0906"), ({"exception_destination": "None"}, "CWSIV0907")],
)
@pytest.mark.parametrize("given", [1, 3])
def test_dmp_20_the_first_failure_stops_the_endpoint_and_the_message_stays(settings: dict[str, Any], code: str, given: int) -> None:
    decision = stopping(given, **settings).open().after_rollback(message(2), RAISED, NOW)

    assert isinstance(decision, Halt)
    assert (decision.how, decision.counts, decision.events) == (Halted.STOPPED, Counts(3), (EventType.STOPPED,))
    assert decision.details["warning"].startswith(code)


def test_dmp_20_a_limit_of_3_stops_at_the_third_rollback_in_a_row() -> None:
    receiver = stopping(3).open()
    decisions = [receiver.after_rollback(message(), RAISED, NOW) for _ in range(3)]

    assert decisions[:2] == [Return(Counts(1))] * 2
    assert decisions[2] == Halt(Halted.STOPPED, Counts(1), (EventType.STOPPED,), {"reason": "sequential message failures: 3"})


def test_dmp_20_a_commit_ends_the_sequence() -> None:
    receiver = stopping(2).open()
    receiver.after_rollback(message(), RAISED, NOW)
    receiver.transaction_committed([message()])

    assert receiver.after_rollback(message(), RAISED, NOW) == Return(Counts(1))


def test_dmp_20_the_sequence_goes_on_in_the_next_pass() -> None:
    first = stopping(2).open()
    first.after_rollback(message(), RAISED, NOW)
    second = stopping(2).open(Opening(counters=first.counters()))

    assert first.counters() == {SEQUENTIAL_FAILURES: 1}
    assert isinstance(second.after_rollback(message(), RAISED, NOW), Halt)


def test_dmp_20_a_stop_ends_the_sequence() -> None:
    receiver = stopping(1).open()
    receiver.after_rollback(message(), RAISED, NOW)

    assert receiver.counters() == {}


@pytest.mark.parametrize("restart", Restart)
def test_dmp_20_every_start_and_restart_begins_a_new_sequence(restart: Restart) -> None:
    assert DEFAULTS.counters_after({SEQUENTIAL_FAILURES: 2}, restart) == {}
    assert DEFAULTS.counters_when_enabled({SEQUENTIAL_FAILURES: 2}, starts=False) == {}


def test_dmp_20_what_is_in_flight_at_a_stop_neither_stops_again_nor_begins_a_sequence() -> None:
    receiver = stopping(1).open()
    receiver.after_rollback(message(), RAISED, NOW)

    assert receiver.after_rollback(message(2), RAISED, NOW) == Return(Counts(3))
    assert isinstance(receiver.after_rollback(message(4), RAISED, NOW), Dispose)
    assert receiver.counters() == {}


def test_dmp_20_the_last_rollback_of_a_message_moves_it_and_stops_the_endpoint_before_the_next_delivery() -> None:
    receiver = stopping(1).open()

    assert isinstance(receiver.after_rollback(message(4), RAISED, NOW), Dispose)
    assert receiver.counters() == {SEQUENTIAL_FAILURES: 1}
    stop = receiver.before(message(2, 1), NOW)
    assert isinstance(stop, Halt)
    assert stop.counts == Counts(2, 1)
    assert receiver.counters() == {}


def test_dmp_20_a_success_in_flight_does_not_call_a_stop_off() -> None:
    receiver = stopping(1).open()
    receiver.after_rollback(message(4), RAISED, NOW)
    receiver.transaction_committed([message()])

    assert isinstance(receiver.before(message(), NOW), Halt)


def test_dmp_20_a_stop_that_is_due_comes_in_the_next_pass_when_nothing_is_left_in_this_one() -> None:
    policy = stopping(1)
    first = policy.open()
    first.after_rollback(message(4), RAISED, NOW)

    assert isinstance(policy.open(Opening(counters=first.counters())).before(message(), NOW), Halt)
    assert isinstance(DEFAULTS.open(Opening(counters=first.counters())).before(message(), NOW), Deliver)


def test_dmp_20_without_an_exception_destination_the_endpoint_stops_instead_of_waiting() -> None:
    decision = stopping(1, exception_destination="None").open().after_rollback(message(4), RAISED, NOW)

    assert isinstance(decision, Halt)
    assert decision.counts == Counts(5)


def test_dmp_20_a_stop_tells_also_why_the_message_could_not_be_sent() -> None:
    policy = stopping(1, strict_message_ordering=True)
    decision = last_rollback(policy, Opening(access={SYSTEM: Access.DENIED}))

    assert isinstance(decision, Halt)
    assert "CWSIV0906" in decision.details["warning"]
    assert "CWSIP0313" in decision.details["warning"]


def test_dmp_20_an_unprocessable_message_is_a_failure_like_any_other() -> None:
    moved, kept = stopping(1).open(), stopping(1, exception_destination="None").open()
    for receiver in (moved, kept):
        assert receiver.after_rollback(message(), UNPROCESSABLE, NOW) == Return(Counts(1))

    assert isinstance(moved.give_up(message(1), UNPROCESSABLE, NOW), Dispose)
    assert isinstance(moved.before(message(), NOW), Halt)
    assert isinstance(kept.give_up(message(1), UNPROCESSABLE, NOW), Halt)


def test_a_receiver_that_never_stops_leaves_nothing_behind() -> None:
    receiver = DEFAULTS.open(Opening(counters={SEQUENTIAL_FAILURES: 1}))
    assert receiver.counters() == {}

    receiver.after_rollback(message(), RAISED, NOW)
    assert receiver.counters() == {}
    assert DEFAULTS.halts_as is Halted.STOPPED


def test_a_receiver_is_carried_with_its_sequence() -> None:
    receiver = stopping(2).open(Opening(queue="orders"))
    receiver.after_rollback(message(), RAISED, NOW)
    carried: DefaultMessagingReceiver = pickle.loads(pickle.dumps(receiver))

    assert isinstance(carried.after_rollback(message(), RAISED, NOW), Halt)
