"""The decisions of Msmq4, one rule each."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Disposition, Halt, Halted, Park, Return, aborted, moved
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.errors import ConfigurationWarning
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, RAISED, message

MOVE = Msmq4(receive_retry_count=2, max_retry_cycles=1, receive_error_handling="Move")


def test_wcf_14_an_abort_raises_the_abort_count_and_a_move_sets_it_to_0() -> None:
    assert aborted(Counts(3, 4)) == Counts(4, 4)
    assert moved(Counts(3, 4)) == Counts(0, 5)
    assert aborted(Counts(2147483647, 0)).abort_count == 2147483647
    assert MOVE.open().after_rollback(message(3, 4), RAISED, NOW) == Return(Counts(4, 4))


@pytest.mark.parametrize("abort_count", [0, 1, 2])
@pytest.mark.parametrize("move_count", [0, 2, 4, 9])
def test_wcf_15_a_message_with_attempts_left_is_delivered(abort_count: int, move_count: int) -> None:
    decision = MOVE.open().before(message(abort_count, move_count), NOW)

    assert decision == Deliver(Counts(abort_count, move_count))


def test_wcf_16_30_with_a_cycle_left_it_is_parked_for_the_delay_from_whole_seconds() -> None:
    decision = MOVE.open().before(message(3, 0), NOW)

    due = NOW.replace(microsecond=0) + timedelta(minutes=30)
    assert decision == Park(Counts(0, 1), due, "retry", (EventType.POISON_EXCEPTION, EventType.MOVED_RETRY))


@pytest.mark.parametrize(
    ("move_count", "parked"),
    [(0, True), (1, True), (2, False), (3, False), (6, False)],
    ids=["WCF-16 MC 0", "WCF-16 MC 1", "WCF-16 MC 2", "WCF-16 MC 3", "WCF-28 MC 6"],
)
def test_wcf_16_the_cycle_is_half_the_move_count(move_count: int, parked: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    decision = MOVE.open().before(message(3, move_count), NOW)

    assert isinstance(decision, Park if parked else Dispose)


@pytest.mark.parametrize("move_count", range(4))
def test_wcf_20_one_retry_sub_queue_or_one_for_each_cycle(move_count: int) -> None:
    one = Msmq4(receive_retry_count=0, max_retry_cycles=2).open().before(message(1, move_count), NOW)
    each = Msmq4(receive_retry_count=0, max_retry_cycles=2, retry_subqueues="per_cycle").open().before(message(1, move_count), NOW)

    assert isinstance(one, Park)
    assert one.place == "retry"
    assert each == replace(one, place=f"retry{move_count // 2 + 1}")


FINAL = [
    pytest.param("Fault", Halt(Halted.FAULTED, Counts(4, 2), (EventType.POISON_EXCEPTION, EventType.FAULTED)), id="WCF-21"),
    pytest.param("Drop", Dispose(Disposition.DROP, Counts(3, 2), (EventType.POISON_EXCEPTION, EventType.DROPPED)), id="WCF-22"),
    pytest.param(
        "Reject",
        Dispose(Disposition.REJECT, Counts(3, 2), (EventType.POISON_EXCEPTION, EventType.REJECTED), to_dead_letter=True),
        id="WCF-23",
    ),
    pytest.param("Move", Dispose(Disposition.MOVE_TO_POISON, Counts(0, 3), (EventType.POISON_EXCEPTION, EventType.MOVED_POISON)), id="WCF-24"),
]


@pytest.mark.parametrize(("handling", "decision"), FINAL)
def test_wcf_16_18_without_a_cycle_left_the_final_disposition_follows_the_exception(handling: str, decision: Dispose | Halt) -> None:
    policy = replace(MOVE, receive_error_handling=handling)

    assert policy.open().before(message(3, 2), NOW) == decision


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (0, True), (1, False)])
def test_wcf_22_a_drop_after_the_time_to_live_reaches_the_dead_letter_queue(seconds: int, expired: bool) -> None:  # noqa: FBT001
    policy = replace(MOVE, receive_error_handling="Drop")
    decision = policy.open().before(message(3, 2, expires_at=NOW + timedelta(seconds=seconds)), NOW)

    assert isinstance(decision, Dispose)
    assert (decision.how, decision.to_dead_letter) == (Disposition.DROP, expired)


@pytest.mark.parametrize(("handling", "visible"), [("Drop", False), ("Reject", True), ("Move", False)])
def test_wcf_13_the_sender_sees_nothing_but_a_reject_and_a_late_drop(handling: str, visible: bool) -> None:  # noqa: FBT001
    decision = replace(MOVE, receive_error_handling=handling).open().before(message(3, 2), NOW)

    assert isinstance(decision, Dispose)
    assert decision.to_dead_letter is visible


@given(st.integers(0, 2147483647), st.integers(0, 100))
def test_wcf_11_e11_the_largest_retry_count_means_never_poison(abort_count: int, move_count: int) -> None:
    for receive_context in (False, True):
        policy = Msmq4(receive_retry_count=2147483647, receive_context=receive_context)
        assert isinstance(policy.open().before(message(abort_count, move_count), NOW), Deliver)


def test_wcf_11_one_less_than_the_largest_is_a_limit() -> None:
    assert isinstance(Msmq4(receive_retry_count=2147483646).open().before(message(2147483647), NOW), Park)


def test_wcf_12_without_exactly_once_there_is_no_poison_handling() -> None:
    with pytest.warns(ConfigurationWarning):
        policy = Msmq4(exactly_once=False, receive_retry_count=0)

    assert policy.open().before(message(9, 9), NOW) == Deliver(Counts(9, 9), at_most_once=True)
    assert not policy.halting
    assert policy.open().give_up(message(), RAISED, NOW) == Dispose(Disposition.DROP, Counts(), (EventType.DROPPED,))


def test_wcf_37_without_transaction_scope_the_message_is_consumed_before_the_call() -> None:
    with pytest.warns(ConfigurationWarning):
        policy = Msmq4(transaction_scope_required=False)

    assert policy.open().before(message(), NOW) == Deliver(Counts(), at_most_once=True)


def test_wcf_29_a_message_above_the_size_limit_cannot_be_handed_over() -> None:
    policy = Msmq4(max_received_message_size=10)

    assert policy.unreadable(message(size=10)) is None
    assert "11 bytes" in (policy.unreadable(message(size=11)) or "")
    assert Msmq4().unreadable(message(size=2**40)) is None


@pytest.mark.parametrize(("handling", "how"), [("Move", Disposition.MOVE_TO_POISON), ("Drop", Disposition.DROP), ("Reject", Disposition.REJECT)])
def test_wcf_29_giving_up_is_the_final_disposition_at_once(handling: str, how: Disposition) -> None:
    unreadable = Failure(FailureKind.UNREADABLE)
    decision = Msmq4(receive_error_handling=handling).open().give_up(message(), unreadable, NOW)

    assert isinstance(decision, Dispose)
    assert decision.how is how


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(0, "deliver"), (2, "deliver"), (4, "retry"), (7, "deliver"), (9, "deliver"), (11, "final"), (14, "final")],
)
def test_wcf_44_e10_with_a_receive_context_the_move_count_counts_attempts(stored: int, expected: str) -> None:
    # Given RRC 1, MRC 1: m = 5, so a receive that sees 5 ends cycle 0 and one that sees 12 ends cycle 1
    receiver = Msmq4(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Move", receive_context=True).open()

    decision = receiver.before(message(0, stored), NOW)

    seen = Counts(0, stored + 1)
    match expected:
        case "deliver":
            assert decision == Deliver(seen)
        case "retry":
            assert isinstance(decision, Park)
            assert decision.counts == Counts(0, stored + 2)
        case _:
            assert isinstance(decision, Dispose)
            assert decision.counts == Counts(0, stored + 2)


def test_wcf_44_an_abandon_is_a_move_back() -> None:
    receiver = Msmq4(receive_context=True).open()

    assert receiver.after_rollback(message(0, 3), RAISED, NOW) == Return(Counts(0, 4))
    assert receiver.after_failed_move(message(0, 4)) == Counts(0, 4)


def test_wcf_28_44_put_back_in_receive_context_mode_gets_no_delivery() -> None:
    # Given the end of the example with RRC 1, MRC 1: MC 13 in poison, 14 after the put-back
    receiver = Msmq4(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Move", receive_context=True).open()

    assert isinstance(receiver.before(message(0, 14), NOW), Dispose)


def test_wcf_19_a_move_is_tried_50_times_100_ms_apart_and_its_abort_counts() -> None:
    receiver = MOVE.open()

    assert (receiver.move_attempts, receiver.move_interval) == (50, timedelta(milliseconds=100))
    assert receiver.after_failed_move(message(3, 0)) == Counts(4, 0)


def test_wcf_42_the_batch_falls_back_to_one_until_twice_its_size_has_committed() -> None:
    receiver = Msmq4(max_batch_size=3).open()
    assert receiver.batch_size() == 3

    receiver.transaction_aborted(became_poison=False)
    for _ in range(5):
        receiver.transaction_committed([])
        assert receiver.batch_size() == 1
    receiver.transaction_aborted(became_poison=False)
    receiver.transaction_committed([])

    assert receiver.batch_size() == 3


@pytest.mark.parametrize(("fallback", "size"), [("first_abort", 1), ("when_poison", 4)])
def test_wcf_40_which_abort_falls_back_is_a_choice(fallback: str, size: int) -> None:
    receiver = Msmq4(max_batch_size=4, batch_fallback=fallback).open()

    receiver.transaction_aborted(became_poison=False)
    assert receiver.batch_size() == size

    receiver.transaction_aborted(became_poison=True)
    assert receiver.batch_size() == 1


@pytest.mark.parametrize(("seconds", "due"), [(47.9, False), (48, False), (48.1, True)])
def test_wcf_42_a_batch_commits_after_80_percent_of_the_timeout(seconds: float, due: bool) -> None:  # noqa: FBT001
    assert Msmq4(max_batch_size=4).open().commit_due(timedelta(seconds=seconds)) is due


@pytest.mark.parametrize("size", [0, 1])
def test_wcf_40_a_batch_of_0_or_1_is_none(size: int) -> None:
    receiver = Msmq4(max_batch_size=size).open()

    receiver.transaction_aborted(became_poison=True)
    receiver.transaction_committed([])

    assert receiver.batch_size() == 1


def test_a_receiver_travels_with_its_memory() -> None:
    receiver = Msmq4(max_batch_size=3).open()
    receiver.transaction_aborted(became_poison=True)

    assert pickle.loads(pickle.dumps(receiver)).batch_size() == 1


@given(st.integers(0, 6), st.integers(0, 3), st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_wcf_14_counts_never_fall_but_the_abort_count_at_moves(rrc: int, mrc: int, abort_count: int, move_count: int, context: bool) -> None:  # noqa: FBT001
    with warnings.catch_warnings(action="ignore"):
        policy = Msmq4(receive_retry_count=rrc, max_retry_cycles=mrc, receive_error_handling="Move", receive_context=context)
    receiver, stored = policy.open(), message(abort_count, move_count)

    for decision in (receiver.before(stored, NOW), receiver.after_rollback(stored, RAISED, NOW), receiver.give_up(stored, RAISED, NOW)):
        assert decision.counts.move_count >= move_count
        assert decision.counts.abort_count >= abort_count or decision.counts.move_count > move_count
