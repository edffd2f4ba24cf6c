"""The order in which messages are received: chosen each time anew, and sorted."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR
from airflow_poison.dialogs.transaction import Place, WaitingMessages, overtaking_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

TYPES = {"T": DIALOG_TIMER, "E": ERROR, "end": END_DIALOG}


def arrivals(text: str, **priorities: int) -> list[WaitingMessages]:
    """Return messages in the order of their arrival, from words like ``d1.a`` or ``g/d1.T`` (group, dialog, kind)."""
    rows = []
    for lookup_id, word in enumerate(text.split(), start=1):
        place, _, kind = word.partition(".")
        group, _, handle = place.rpartition("/")
        rows.append(WaitingMessages(lookup_id, handle, group or handle, TYPES.get(kind, "//message"), priorities.get(handle, 5)))
    return rows


def received(text: str, locked: tuple[str, ...] = (), **priorities: int) -> str:
    """Return the words in the order in which they are received; both ways of finding it agree."""
    words, rows = text.split(), arrivals(text, **priorities)
    order = receive_order(rows, locked)
    assert [lookup_id for lookup_id in by_sorting(rows) if rows[lookup_id - 1].group not in locked] == order
    return " ".join(words[lookup_id - 1] for lookup_id in order)


def receive_order(rows: Iterable[WaitingMessages], locked: Collection[str] = frozenset()) -> list[int]:
    """Return the lookup ids in the order in which one RECEIVE TOP(1) after the other takes them, each committed before the next.

    It chooses as the manual says, each time anew; engines sort instead: ``by_sorting``.

    :param locked: conversation groups that other sessions hold: RECEIVE skips them (spec SB-47).
    """
    waiting = [row for row in rows if lock(row) not in locked]
    order = []
    while waiting:
        received = next_received(waiting)
        order.append(received.lookup_id)
        waiting.remove(received)
    return order


def next_received(waiting: list[WaitingMessages]) -> WaitingMessages:
    """Return the next message: of the first group, in it of the first conversation, in it the first (spec SB-48).

    First is the group with the conversation of the highest priority, among equals the one whose such conversation has the oldest message;
    likewise the conversation in the group (section 11.1).
    """
    group = min(apart(waiting, lock), key=lambda rows: min(map(rank, apart(rows, handle))))
    conversation = min(apart(group, handle), key=rank)
    return min(conversation, key=lambda row: (row.precedence, row.lookup_id))


def rank(conversation: list[WaitingMessages]) -> tuple[int, int]:
    return -max(row.priority for row in conversation), min(row.lookup_id for row in conversation)


def handle(row: WaitingMessages) -> str | None:
    return row.handle


def lock(row: WaitingMessages) -> str | None:
    """Return the group that a receive of it locks (spec SB-47); None: nothing else is in it."""
    return row.handle if row.group is None else row.group


def apart(rows: Iterable[WaitingMessages], what: Callable[[WaitingMessages], str | None]) -> list[list[WaitingMessages]]:
    """Return rows by lock or by handle; those without one are each by itself."""
    found: dict[object, list[WaitingMessages]] = defaultdict(list)
    for row in rows:
        name = what(row)
        found[row.lookup_id if name is None else name].append(row)
    return list(found.values())


def by_sorting(rows: list[WaitingMessages]) -> list[int]:
    """Return the order that an engine finds: it sorts, and knows of the exceptions."""
    known = overtaking_messages(rows)

    def key(row: WaitingMessages) -> tuple[int, int, int, int]:
        anchor, precedence = known.get(row.lookup_id, Place(row.lookup_id, 2))
        return -row.priority, anchor, precedence, row.lookup_id

    return [row.lookup_id for row in sorted(rows, key=key)]


@pytest.mark.parametrize(
    ("arrived", "expected"),
    [
        pytest.param("d1.a d1.E d1.b d1.T", "d1.T d1.E d1.a d1.b", id="SB-E6 SB-41 timer, error, rest"),
        pytest.param("d1.a d1.end d1.T", "d1.T d1.a d1.end", id="SB-E6 SB-42 EndDialog has no precedence"),
        pytest.param("d1.E d1.T", "d1.T d1.E", id="SB-E6 SB-41 error first, timer received first"),
        pytest.param("d1.T d1.E", "d1.T d1.E", id="SB-41 timer first"),
        pytest.param("d1.a d1.b d1.end", "d1.a d1.b d1.end", id="SB-E6 SB-42 arrival order"),
        pytest.param("d2.z d1.a d1.T", "d2.z d1.T d1.a", id="SB-E6 SB-46 not before another dialog"),
        pytest.param("d1.a d2.z d1.T", "d1.T d1.a d2.z", id="SB-46 with its dialog before a younger one"),
        pytest.param("d1.E d2.z d1.a", "d1.E d2.z d1.a", id="SB-46 an error that is the oldest"),
        pytest.param("d1.T d2.z d1.E", "d1.T d2.z d1.E", id="SB-46 the timer is gone when the error's turn comes"),
        pytest.param("d1.T d2.z d1.T d1.E d1.a", "d1.T d2.z d1.T d1.E d1.a", id="SB-46 two timers"),
        pytest.param("d1.E d2.z d1.T", "d1.T d1.E d2.z", id="SB-46 the error still waits when the timer's turn comes"),
        pytest.param("d1.end d1.E d1.a", "d1.E d1.end d1.a", id="SB-41 an error before EndDialog"),
    ],
)
def test_the_order_of_receives(arrived: str, expected: str) -> None:
    assert received(arrived) == expected


def test_sb_41_the_order_of_arrival_of_timer_and_error_does_not_matter() -> None:
    for order in permutations(["d1.T", "d1.E", "d1.a"]):
        assert received(" ".join(order)) == "d1.T d1.E d1.a"


def test_sb_47_locked_groups_are_skipped() -> None:
    assert received("g1/d1.a g2/d2.b g1/d3.T g2/d2.T", locked=("g1",)) == "g2/d2.T g2/d2.b"
    assert received("g1/d1.a", locked=("g1",)) == ""


def test_sb_48_the_group_of_the_conversation_with_the_highest_priority_comes_first() -> None:
    assert received("g1/d1.a g2/d2.b g2/d3.c", d3=9) == "g2/d3.c g1/d1.a g2/d2.b"


def test_sb_48_inside_a_group_priority_counts_before_precedence() -> None:
    assert received("g/d1.T g/d2.a", d2=6) == "g/d2.a g/d1.T"


def test_sb_48_section_11_1_conversations_of_equal_priority_in_a_group_the_one_with_the_oldest_message_first() -> None:
    assert received("g/d1.a g/d2.b g/d1.T g/d2.c") == "g/d1.T g/d1.a g/d2.b g/d2.c"


def test_sb_48_section_11_1_groups_of_equal_priority_the_one_whose_first_conversation_has_the_oldest_message() -> None:
    assert received("g1/low.a g2/d2.b g1/d1.c", low=1) == "g2/d2.b g1/d1.c g1/low.a"


def test_a_message_of_no_conversation_overtakes_nothing() -> None:
    rows = [
        WaitingMessages(1),
        WaitingMessages(2, None, None, ERROR),
        WaitingMessages(3, None, "g", DIALOG_TIMER),
        WaitingMessages(4, "d", None, ERROR),
    ]

    assert receive_order(rows) == by_sorting(rows) == [1, 2, 3, 4]
    assert overtaking_messages(rows) == {4: Place(4, 1)}


def test_sb_35_both_prints_of_a_system_message_type_have_precedence() -> None:
    rows = [
        WaitingMessages(1, "d"),
        WaitingMessages(2, "d", "d", ERROR.replace("https:", "http:")),
        WaitingMessages(3, "d", "d", DIALOG_TIMER.replace("https:", "http:")),
    ]

    assert receive_order(rows) == by_sorting(rows) == [3, 2, 1]


def test_sb_49_the_exceptions_name_the_oldest_message_that_still_waits() -> None:
    assert overtaking_messages(arrivals("d1.T d2.z d1.E d1.a d1.end d1.T")) == {1: Place(1, 0), 6: Place(3, 0), 3: Place(3, 1)}


@st.composite
def queues(draw: st.DrawFn) -> list[WaitingMessages]:
    """Return messages of a few dialogs in fewer groups; a dialog has one group and one priority."""
    dialogs = draw(st.lists(st.tuples(st.sampled_from(["g1", "g2", "g3"]), st.sampled_from([1, 5, 9])), min_size=1, max_size=5))
    kinds = st.sampled_from([DIALOG_TIMER, ERROR, END_DIALOG, "//message", "//message", None])
    chosen = draw(st.lists(st.tuples(st.integers(-1, len(dialogs) - 1), kinds), max_size=14))
    numbers = draw(st.lists(st.integers(1, 40), min_size=len(chosen), max_size=len(chosen), unique=True))
    rows = []
    for lookup_id, (dialog, kind) in zip(numbers, chosen, strict=True):
        group, priority = dialogs[dialog]
        rows.append(
            WaitingMessages(lookup_id, None, None, kind, priority) if dialog < 0 else WaitingMessages(lookup_id, f"d{dialog}", group, kind, priority)
        )
    return rows


@given(queues(), st.sets(st.sampled_from(["g1", "g2", "g3"])))
def test_sb_41_46_48_sorting_is_choosing_each_time_anew(rows: list[WaitingMessages], locked: set[str]) -> None:
    groups = {row.lookup_id: row.group for row in rows}

    assert [lookup_id for lookup_id in by_sorting(rows) if groups[lookup_id] not in locked] == receive_order(rows, locked)


@given(queues())
def test_sb_3_after_a_rollback_the_same_message_comes_again(rows: list[WaitingMessages]) -> None:
    """Whatever has been received, the order of the rest stays: exceptions computed once hold for the whole pass."""
    order = receive_order(rows)

    for received_so_far in range(len(order)):
        rest = [row for row in rows if row.lookup_id not in order[:received_so_far]]
        assert receive_order(rest) == order[received_so_far:]
