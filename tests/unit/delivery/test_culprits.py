"""The search for culprits: it finds those that fail alone, all or one, and no other message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.delivery.culprits import Failed, OrderedSearch, all_culprits, failing_pieces, one_culprit
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.delivery.culprits import Rows

BAD = Failure(FailureKind.EXCEPTION, "CAST_INVALID_INPUT", "bad")


class Trials:
    """Tries sets, of which those fail that have a bad row; the first bad one is its suspect, where ``marks`` says so."""

    def __init__(self, bad: set[int], *, marks: bool = False, together: int = 10**6) -> None:
        self.bad, self.marks, self.together = bad, marks, together
        self.rounds: list[int] = []
        self.sizes: list[int] = []

    def one(self, rows: Rows) -> Failed | None:
        self.sizes.append(len(rows))
        bad = [row for row in rows.tolist() if row in self.bad]
        if bad:
            return Failed(BAD, bad[:1] if self.marks else ())
        return Failed(BAD) if len(rows) > self.together else None

    def each(self, sets: Sequence[Rows]) -> list[Failed | None]:
        self.rounds.append(len(sets))
        return [self.one(rows) for rows in sets]


@given(bad=st.sets(st.integers(0, 199), max_size=20), parts=st.integers(1, 70), ways=st.integers(2, 70), marks=st.booleans())
def test_all_that_fail_alone_are_found_and_no_others(bad: set[int], parts: int, ways: int, marks: bool) -> None:  # noqa: FBT001
    found = all_culprits(np.array_split(np.arange(200), parts), Trials(bad, marks=marks).each, ways=ways, most=1_000)

    assert found == dict.fromkeys(bad, BAD)


@given(bad=st.sets(st.integers(0, 199), min_size=1, max_size=20), ways=st.integers(2, 16), marks=st.booleans())
def test_one_that_fails_alone_is_found(bad: set[int], ways: int, marks: bool) -> None:  # noqa: FBT001
    found = one_culprit(np.arange(200), Trials(bad, marks=marks).one, ways=ways)

    assert len(found) == 1
    assert found.keys() <= bad


@given(
    number=st.integers(1, 300),
    bad=st.sets(st.integers(0, 299), max_size=12),
    together=st.sampled_from([2, 40, 10**6]),
    most=st.sampled_from([1, 9, 1_000]),
)
def test_each_row_has_succeeded_once_or_is_in_a_piece_that_fails(number: int, bad: set[int], together: int, most: int) -> None:
    trials, landed = Trials(bad, together=together), list[int]()

    def fails(first: int, end: int) -> bool:
        failed = trials.one(np.arange(first, end)) is not None
        landed.extend(() if failed else range(first, end))
        return failed

    pieces = failing_pieces(number, fails, most=most)

    left = [row for first, end in pieces for row in range(first, end)]
    assert sorted(landed + left) == list(range(number))
    assert {row for row in bad if row < number} <= {*left}
    if most == 1_000 and together > 2 and len(bad) < 4 and number > 50:
        assert {*left} <= bad, "each row by itself was tried"


def test_the_search_for_pieces_ends_where_almost_all_fail_and_when_it_has_tried_enough() -> None:
    many, some = Trials({*range(0, 10_000, 100)}), Trials({*range(0, 10_000, 1_000)})

    assert failing_pieces(10_000, lambda first, end: many.one(np.arange(first, end)) is not None, most=1_000) == [
        (first, first + 625) for first in range(0, 10_000, 625)
    ]
    assert len(many.sizes) == 30
    pieces = failing_pieces(10_000, lambda first, end: some.one(np.arange(first, end)) is not None, most=40)
    assert (len(pieces), len(some.sizes)) == (10, 44)


@pytest.mark.parametrize("ways", [2, 16])
def test_where_rows_fail_only_together_none_is_found(ways: int) -> None:
    trials = Trials(set(), together=3)

    assert all_culprits([np.arange(200)], trials.each, ways=ways, most=1_000) == {}
    assert one_culprit(np.arange(200), trials.one, ways=ways) == {}
    assert min(trials.sizes) == 1


def test_the_search_for_all_ends_when_so_many_are_found() -> None:
    trials = Trials(set(range(0, 200, 2)))

    found = all_culprits(np.array_split(np.arange(200), 10), trials.each, ways=20, most=5)

    assert len(found) >= 5
    assert max(trials.rounds) == 5, "no more sets at once than culprits are missing"
    assert len(trials.rounds) < 10


def test_ten_of_twenty_thousand_are_found_in_few_rounds_with_marks_and_in_three_without() -> None:
    bad = {*range(7, 20_000, 2_000)}
    with_marks, without = Trials(bad, marks=True), Trials(bad)

    assert {*all_culprits(np.array_split(np.arange(20_000), 64), with_marks.each, ways=64, most=1_000)} == bad
    assert {*all_culprits(np.array_split(np.arange(20_000), 64), without.each, ways=64, most=1_000)} == bad
    assert (with_marks.rounds, len(without.rounds)) == ([64, 20], 3)


def test_where_all_fail_a_search_with_suspects_does_not_take_them_one_by_one() -> None:
    trials = Trials({*range(1_000)}, marks=True)

    assert len(all_culprits(np.array_split(np.arange(1_000), 8), trials.each, ways=8, most=10_000)) == 1_000
    assert len(trials.rounds) <= 8


def test_the_part_that_is_left_is_cut_untried() -> None:
    trials = Trials({199})

    one_culprit(np.arange(200), trials.one, ways=2)

    assert trials.sizes == [100, 50, 25, 13, 6, 3, 2, 1]


class Turns:
    """Rows whose turns come in their order: so many together as the search says, each until it has succeeded or failed alone."""

    def __init__(self, trials: Trials, number: int, most: int) -> None:
        self.charged: list[int] = []
        self.succeeded: list[int] = []
        self.unstable: list[list[int]] = []
        search = OrderedSearch(lambda rows, _error: self.unstable.append([*rows.tolist()]))
        row = 0
        while row < number:
            size = search.most(row, most)
            rows = np.arange(row, min(row + size, search.last(number - 1) + 1))
            failed = trials.one(rows)
            if failed is not None and len(rows) > 1:
                search.failed(rows, failed.failure.text)
                continue
            if failed is not None:
                search.charged()
            (self.succeeded if failed is None else self.charged).extend(rows.tolist())
            row += len(rows)
        search.over(number)
        assert not search


@given(bad=st.sets(st.integers(0, 399), max_size=20), number=st.integers(1, 400), most=st.integers(1, 400))
def test_in_order_all_that_fail_alone_are_found_and_what_has_succeeded_is_never_tried_again(bad: set[int], number: int, most: int) -> None:
    turns = Turns(Trials(bad), number, most)

    assert turns.charged == [row for row in range(number) if row in bad]
    assert turns.succeeded == [row for row in range(number) if row not in bad]
    assert turns.unstable == []


@given(number=st.integers(2, 400), most=st.integers(2, 400), together=st.integers(1, 100))
def test_in_order_what_fails_only_together_is_unstable_and_charges_none(number: int, most: int, together: int) -> None:
    turns = Turns(Trials(set(), together=together), number, most)

    assert turns.charged == []
    assert turns.succeeded == [*range(number)]
    assert bool(turns.unstable) == (min(number, most) > together)


def test_in_order_the_second_half_is_cut_untried_when_the_first_has_succeeded() -> None:
    trials = Trials({199})

    Turns(trials, 200, 200)

    assert trials.sizes == [200, 100, 50, 25, 13, 6, 3, 2, 1]
