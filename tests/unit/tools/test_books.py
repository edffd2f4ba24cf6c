"""The demo's books: they add up, or say where they do not."""

from __future__ import annotations

from dataclasses import replace

from tools.demo.account import Depth, Pass, Taken, keep_books

FIRST = Pass(received=10, settled=7, parked=3, poisoned=0, rest=0, attempts=25, seconds=2.0, took=True)
SECOND = Pass(received=3, settled=1, parked=0, poisoned=2, rest=0, attempts=13, seconds=1.0)
HISTORY = [Depth(), Depth(10, at=100.0), Depth(10), Depth(0, 3, at=100.5), Depth(3), Depth(3), Depth(0, 0, 2)]
TAKEN = [Taken(version=1, read=50, landed=38, filtered=2, messages=10)]


def test_each_cycle_is_held_against_the_table_right_after_it() -> None:
    books = keep_books(TAKEN, [FIRST, SECOND], HISTORY)
    assert [(cycle.settled, cycle.depth, cycle.total) for cycle in books.cycles] == [(7, Depth(0, 3), 10), (8, Depth(0, 0, 2), 10)]
    assert books.faults() == []
    assert (books.settled, books.attempts, books.seconds) == (8, 38, 1.5)
    assert (books.read, books.landed, books.filtered, books.messages) == (50, 38, 2, 10)
    assert books.in_place == 1.5, "of the first pass, without the half second from the commit of what landed to its end"


def test_a_lost_message_is_found_in_the_cycle_that_lost_it_and_in_the_sum() -> None:
    faults = keep_books(TAKEN, [replace(FIRST, settled=6), SECOND], HISTORY).faults()
    assert "after cycle 1, 10 had become messages, and 9 are accounted for" in faults[0]
    assert "the table holds 2" in faults[-1]


def test_a_pass_that_also_finished_a_killed_one_stands_behind_both_commits() -> None:
    both = Pass(received=13, settled=8, parked=3, poisoned=2, rest=0, attempts=38, seconds=3.0, claims=2)
    books = keep_books(TAKEN, [both], HISTORY)
    assert [cycle.depth for cycle in books.cycles] == [Depth(0, 0, 2)]
    assert books.faults() == []


def test_messages_that_left_in_another_way_are_a_fault() -> None:
    lost = replace(FIRST, settled=6, rest=1)
    assert any("lost 1 messages to another end" in fault for fault in keep_books(TAKEN, [lost, SECOND], HISTORY).faults())


def test_a_pass_that_no_version_of_the_table_shows_is_a_fault() -> None:
    assert keep_books(TAKEN, [FIRST, SECOND], HISTORY[:4]).faults()


def test_rows_that_were_read_and_are_nowhere_are_a_fault() -> None:
    [fault] = keep_books([replace(TAKEN[0], landed=37)], [FIRST, SECOND], HISTORY).faults()
    assert fault == "50 were read, and 37 landed, 2 were filtered and 10 became messages"


def test_what_is_taken_later_is_not_expected_earlier() -> None:
    later = Pass(received=5, settled=5, parked=0, poisoned=0, rest=0, attempts=5, seconds=1.0)
    taken = [*TAKEN, Taken(version=7, read=6, landed=1, filtered=0, messages=5)]
    assert keep_books(taken, [FIRST, SECOND, later], [*HISTORY, Depth(5, 0, 2), Depth(0, 0, 2)]).faults() == []
