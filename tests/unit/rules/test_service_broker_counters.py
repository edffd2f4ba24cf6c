"""The counters of consecutive rollbacks: transactions of one queue and of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.queue_disabling import Disables, ReceivedGroup, RollbackCounters, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

Q = ReceivedGroup("Q", "g1")
Q2 = ReceivedGroup("Q", "g2")
R = ReceivedGroup("R", "g3")
OFF = ReceivedGroup("Off", "g4", poison_message_handling=False)


def after(*scripts: tuple[Sequence[ReceivedGroup], str], counters: RollbackCounters | None = None) -> tuple[RollbackCounters, list[tuple[str, ...]]]:
    """Play transactions: what each received, and its outcomes; return the queues that each rollback disabled."""
    counters = counters or RollbackCounters()
    disabled = []
    for received, outcomes in scripts:
        for outcome in outcomes.split():
            if outcome == "rb":
                disabled.append(counters.rolled_back(received))
            else:
                counters.committed(received)
    return counters, disabled


def test_sb_4_10_the_fifth_rollback_disables_the_queue_and_the_fourth_does_not() -> None:
    counters, disabled = after(([Q], "rb rb rb rb rb"))

    assert disabled == [(), (), (), (), ("Q",)]
    assert counters.count(Q) == 5


def test_sb_4_every_queue_that_the_transaction_received_from_is_disabled() -> None:
    _, disabled = after(([Q, R], "rb rb rb rb rb"))

    assert disabled[-1] == ("Q", "R")


def test_sb_5_a_queue_is_named_once_however_much_was_received_from_it() -> None:
    _, disabled = after(([Q, Q2, Q, R], "rb rb rb rb rb"))

    assert disabled == [(), (), (), (), ("Q", "R")]


def test_sb_6_7_e2_only_rollbacks_in_a_row_count() -> None:
    counters, disabled = after(([Q], "rb rb rb rb ok rb rb rb rb"))
    assert (counters.count(Q), set(disabled)) == (4, {()})

    assert counters.rolled_back([Q]) == ("Q",)


def test_sb_7_one_counter_a_queue_counts_the_rollbacks_of_any_message() -> None:
    _, disabled = after(([Q], "rb rb rb"), ([Q2], "rb rb"))

    assert disabled[-1] == ("Q",)


def test_sb_7_e3_a_commit_of_another_group_resets_the_queue_and_not_the_group() -> None:
    of_queue, never = after(*[step for _ in range(5) for step in (([Q], "rb"), ([Q2], "ok"))])
    of_group, disabled = after(
        *[step for _ in range(5) for step in (([Q], "rb"), ([Q2], "ok"))], counters=RollbackCounters(scope=Scope.CONVERSATION_GROUP)
    )

    assert (of_queue.count(Q), set(never)) == (0, {()})
    assert (of_group.count(Q), of_group.count(Q2), disabled) == (5, 0, [(), (), (), (), ("Q",)])


def test_sb_7_a_group_of_one_queue_is_not_that_group_of_another() -> None:
    counters, _ = after(
        ([ReceivedGroup("Q", "g")], "rb rb"), ([ReceivedGroup("R", "g")], "rb"), counters=RollbackCounters(scope=Scope.CONVERSATION_GROUP)
    )

    assert counters.counts == {("Q", "g"): 2, ("R", "g"): 1}


def test_sb_7_11_a_queue_without_poison_handling_is_neither_counted_nor_disabled() -> None:
    counters, disabled = after(([OFF], "rb rb rb rb rb rb rb"), ([OFF, Q], "rb rb rb rb rb"))

    assert disabled[-1] == ("Q",)
    assert counters.counts == {("Q", ""): 5}


def test_sb_7_switching_poison_handling_off_forgets_the_counters_of_that_queue() -> None:
    counters, _ = after(([Q, R], "rb rb rb"))
    counters.not_handled("Q")

    assert counters.counts == {("R", ""): 3}


def test_sb_7_e5_set_to_on_starts_anew() -> None:
    counters, _ = after(([Q], "rb rb rb rb"))
    counters.enabled("Q")

    _, disabled = after(([Q], "rb rb rb rb"), counters=counters)
    assert (counters.count(Q), set(disabled)) == (4, {()})


def test_sb_24_a_queue_that_is_on_again_is_disabled_again_by_five_more() -> None:
    counters, _ = after(([Q], "rb rb rb rb rb"))
    counters.enabled("Q")

    _, disabled = after(([Q], "rb rb rb rb rb"), counters=counters)
    assert disabled == [(), (), (), (), ("Q",)]


def test_sb_8_e5_a_transaction_that_received_nothing_counts_nothing() -> None:
    counters, disabled = after(([Q], "rb rb"), ([], "rb rb rb rb rb rb rb"), ([], "ok"))

    assert (counters.count(Q), set(disabled)) == (2, {()})


def test_sb_8_a_rollback_to_a_savepoint_is_a_commit_like_any_other() -> None:
    counters, _ = after(([Q], "rb rb rb"), ([Q], "ok"), ([Q], "rb"))

    assert counters.count(Q) == 1


def test_sb_8_several_messages_of_one_transaction_count_once() -> None:
    counters, _ = after(([Q, Q, Q2], "rb rb"))

    assert counters.counts == {("Q", ""): 2}


@pytest.mark.parametrize(
    ("disables", "expected"),
    [
        pytest.param(Disables.ALL_RECEIVED, ("Q", "R"), id="SB-9 all received"),
        pytest.param(Disables.AT_LIMIT, ("Q",), id="SB-9 at limit"),
    ],
)
def test_sb_9_a_queue_with_a_lower_counter_goes_with_one_at_the_limit(disables: Disables, expected: tuple[str, ...]) -> None:
    counters, _ = after(([Q], "rb rb rb rb"), counters=RollbackCounters(disables=disables))

    assert counters.rolled_back([Q, R, OFF]) == expected
    assert counters.count(R) == 1


def test_sb_9_only_queues_of_this_transaction_are_disabled() -> None:
    counters, _ = after(([Q, R], "rb rb rb rb"))

    assert counters.rolled_back([Q]) == ("Q",)
    assert counters.rolled_back([R]) == ("R",)


def test_sb_9_a_transaction_still_open_when_its_queue_was_disabled_counts_and_disables_nothing_more() -> None:
    counters, _ = after(([Q], "rb rb rb rb rb"))

    assert counters.rolled_back([Q, R]) == ()
    assert (counters.count(Q), counters.count(R)) == (6, 1)


def test_sb_9_a_queue_that_is_off_already_is_not_disabled_again() -> None:
    counters, _ = after(([Q], "rb rb rb rb rb"), ([R], "rb rb rb rb"))

    assert counters.rolled_back([Q, R]) == ("R",)


def test_sb_4_a_limit_that_was_lowered_is_reached_by_the_next_rollback() -> None:
    counters = RollbackCounters(limit=3, counts={("Q", ""): 4})

    assert counters.rolled_back([Q]) == ("Q",)


@given(st.lists(st.sampled_from(["rb", "ok", "on"]), max_size=60), st.integers(1, 6))
def test_sb_7_10_disabled_exactly_when_the_last_so_many_were_rollbacks(history: list[str], limit: int) -> None:
    counters, row = RollbackCounters(limit=limit), 0
    for step in history:
        row = row + 1 if step == "rb" else 0
        if step == "rb":
            assert (counters.rolled_back([Q]) == ("Q",)) == (row == limit)
        elif step == "ok":
            counters.committed([Q])
            counters.disabled.clear()
        else:
            counters.enabled("Q")
        assert counters.count(Q) == row
