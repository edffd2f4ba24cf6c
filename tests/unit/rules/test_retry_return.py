"""What leaves the retry sub-queue, when, and with which counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.decisions import Counts, Returning, ReturnOrder, WaitingInRetry, moved, returning
from tests.unit.rules.entries import NOW


def waiting(lookup_id: int, minutes: float, priority: int = 0) -> WaitingInRetry:
    return WaitingInRetry(lookup_id, NOW + timedelta(minutes=minutes), priority)


@pytest.mark.parametrize("order", ReturnOrder)
def test_wcf_30_a_message_returns_when_it_is_due_and_not_earlier(order: ReturnOrder) -> None:
    message = [waiting(1, 30)]
    due = NOW + timedelta(minutes=30)

    assert returning(message, due - timedelta(microseconds=1), order).lookup_ids == ()
    assert returning(message, due, order) == Returning((1,))


def test_wcf_32_by_due_time_everything_due_returns_in_the_order_due_time_then_lookup_id() -> None:
    look = returning(
        [waiting(4, 10), waiting(2, 20), waiting(3, 10), waiting(1, 30), waiting(5, 25)], NOW + timedelta(minutes=20), ReturnOrder.DUE_TIME
    )

    assert look == Returning((3, 4, 2), next_at=NOW + timedelta(minutes=25))


def test_wcf_31_32_an_early_head_delays_the_messages_behind_it() -> None:
    messages = [waiting(1, 30), waiting(2, 10)]

    look = returning(messages, NOW + timedelta(minutes=10), ReturnOrder.HEAD_TIMER)
    assert look == Returning((), peeked=1, next_at=NOW + timedelta(minutes=30))

    assert returning(messages, NOW + timedelta(minutes=30), ReturnOrder.HEAD_TIMER, look.peeked).lookup_ids == (1, 2)


def test_wcf_31_the_timer_moves_exactly_the_message_that_it_peeked_and_then_looks_at_the_next() -> None:
    # Given that 5 was peeked, and 3 has come in front of it with a later due time
    messages = [waiting(5, 10), waiting(3, 40), waiting(4, 5)]

    look = returning(messages, NOW + timedelta(minutes=10), ReturnOrder.HEAD_TIMER, peeked=5)

    assert look == Returning((5,), peeked=3, next_at=NOW + timedelta(minutes=40))


def test_wcf_31_the_head_is_the_message_of_highest_priority() -> None:
    look = returning([waiting(1, 10), waiting(2, 30, priority=7)], NOW + timedelta(minutes=10), ReturnOrder.HEAD_TIMER)

    assert look.peeked == 2


def test_wcf_31_an_empty_sub_queue_needs_no_timer() -> None:
    assert returning([], NOW, ReturnOrder.HEAD_TIMER, peeked=3) == Returning(())
    assert returning([], NOW, ReturnOrder.DUE_TIME) == Returning(())


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 9)), st.integers(0, 9), st.sampled_from(ReturnOrder), st.none() | st.integers(1, 9))
def test_wcf_32_never_earlier_than_due_and_by_due_time_all_of_them(due: dict[int, int], minutes: int, order: ReturnOrder, peeked: int | None) -> None:
    look = returning([waiting(*message) for message in due.items()], NOW + timedelta(minutes=minutes), order, peeked)

    overdue = {lookup_id for lookup_id, at in due.items() if at <= minutes}
    assert set(look.lookup_ids) <= overdue
    assert len(set(look.lookup_ids)) == len(look.lookup_ids)
    assert order is ReturnOrder.HEAD_TIMER or set(look.lookup_ids) == overdue
    assert (look.next_at is None) == (set(look.lookup_ids) == set(due))


def test_wcf_14_28_a_return_and_a_put_back_are_moves() -> None:
    assert moved(Counts(0, 1)) == Counts(0, 2)
    assert moved(Counts(0, 5)) == Counts(0, 6)
    assert moved(Counts(3, 5)) == Counts(0, 6)
