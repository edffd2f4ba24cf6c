"""The demo's books: they add up, or say where they do not."""

from __future__ import annotations

from dataclasses import replace

from tools.demo.account import Depth, Pass, keep_books

FIRST = Pass(received=10, settled=7, parked=3, poisoned=0, rest=0, attempts=25, seconds=2.0, sent=10)
SECOND = Pass(received=3, settled=1, parked=0, poisoned=2, rest=0, attempts=13, seconds=1.0, sent=10)
HISTORY = [Depth(), Depth(10), Depth(10), Depth(0, 3), Depth(3), Depth(3), Depth(0, 0, 2)]


def test_each_cycle_is_held_against_the_table_right_after_it() -> None:
    books = keep_books(10, [FIRST, SECOND], HISTORY)
    assert [(cycle.settled, cycle.depth, cycle.total) for cycle in books.cycles] == [(7, Depth(0, 3), 10), (8, Depth(0, 0, 2), 10)]
    assert books.faults() == []
    assert (books.settled, books.attempts, books.seconds) == (8, 38, 3.0)


def test_a_lost_message_is_found_in_the_cycle_that_lost_it_and_in_the_sum() -> None:
    faults = keep_books(10, [replace(FIRST, settled=6), SECOND], HISTORY).faults()
    assert "after cycle 1, 10 were sent, and 9 are accounted for" in faults[0]
    assert "the table holds 2" in faults[-1]


def test_a_pass_that_also_finished_a_killed_one_stands_behind_both_commits() -> None:
    both = Pass(received=13, settled=8, parked=3, poisoned=2, rest=0, attempts=38, seconds=3.0, sent=10, claims=2)
    books = keep_books(10, [both], HISTORY)
    assert [cycle.depth for cycle in books.cycles] == [Depth(0, 0, 2)]
    assert books.faults() == []


def test_messages_that_left_in_another_way_are_a_fault() -> None:
    lost = replace(FIRST, settled=6, rest=1)
    assert any("lost 1 messages to another end" in fault for fault in keep_books(10, [lost, SECOND], HISTORY).faults())


def test_a_pass_that_no_version_of_the_table_shows_is_a_fault() -> None:
    assert keep_books(10, [FIRST, SECOND], HISTORY[:4]).faults()


def test_what_is_sent_later_is_not_expected_earlier() -> None:
    later = Pass(received=5, settled=5, parked=0, poisoned=0, rest=0, attempts=5, seconds=1.0, sent=15)
    assert keep_books(15, [FIRST, SECOND, later], [*HISTORY, Depth(5, 0, 2), Depth(0, 0, 2)]).faults() == []
