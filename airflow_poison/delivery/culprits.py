"""The search for culprits: which of many messages that fail together fail alone. Pure: the caller tries sets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.values.failures import Failure

    Rows: TypeAlias = NDArray[np.intp]


class Failed(NamedTuple):
    """A set that failed.

    :param failure: what its messages would be charged with.
    :param suspects: rows that were worked on when it did; empty: not known.
    """

    failure: Failure
    suspects: Sequence[int] = ()


TryAll: TypeAlias = "Callable[[Sequence[Rows]], Sequence[Failed | None]]"
"""Tries each set by itself; None: it succeeded."""
TryOne: TypeAlias = "Callable[[Rows], Failed | None]"


def all_culprits(sets: Sequence[Rows], try_all: TryAll, *, ways: int, most: int) -> dict[int, Failure]:
    """Return the rows that fail alone, with their failures: all where the same rows fail in each set that has them.

    Where a set that fails has suspects, each of them is tried alone, and the others together; if these fail, too, they are cut, as is a set without
    suspects.

    :param sets: of rows, without one in common.
    :param ways: into so many parts a set is cut.
    :param most: stop when so many are found; no more sets are tried at once than are missing to it.
    """
    found: dict[int, Failure] = {}
    todo = [(rows, False) for rows in sets]
    while todo and len(found) < most:
        now, todo = todo[: most - len(found)], todo[most - len(found) :]
        for (rows, is_rest), end in zip(now, try_all([rows for rows, _ in now]), strict=True):
            if end is not None and len(rows) == 1:
                found[int(rows[0])] = end.failure
            elif end is not None:
                named = np.isin(rows, list(end.suspects))
                rest, cut = rows[~named], is_rest or not named.any()
                todo += [(row, False) for row in np.reshape(rows[named], (-1, 1))]
                if len(rest):
                    todo += [(part, not cut) for part in np.array_split(rest, min(ways, len(rest)) if cut else 1)]
    return found


def one_culprit(rows: Rows, try_one: TryOne, *, ways: int) -> dict[int, Failure]:
    """Return one row that fails alone, with its failure; none where none does. Of parts that all succeed but the last, that one is cut untried.

    :param rows: of a set that failed.
    """
    failed: Failed | None = None
    while len(rows) > 1:
        *parts, rest = np.array_split(rows, min(ways, len(rows)))
        failing = next(((part, end) for part in parts if (end := try_one(part)) is not None), None)
        rows, failed = (rest, None) if failing is None else failing
    failed = failed or try_one(rows)
    return {} if failed is None else {int(rows[0]): failed.failure}


def failing_pieces(number: int, fails: Callable[[int, int], bool], *, most: int, least: int = 1) -> list[tuple[int, int]]:
    """Return pieces of a number of rows, from one place to another, in which all rows are that fail. Rows of other pieces have succeeded once each.

    The rows are cut into halves, and these again. Of two halves the second is not tried as a whole when the first has succeeded; each row by itself
    is. It ends where many rows fail, as almost all pieces of a size do then.

    :param fails: tries the rows from a place to another.
    :param most: tries after which no piece is cut any more.
    :param least: a piece of no more rows is not cut.
    """
    found, todo, tries = list[tuple[int, int]](), [(0, number)], 0
    for depth in count():
        found += [piece for piece in todo if piece[1] - piece[0] <= least]
        todo = [piece for piece in todo if piece[1] - piece[0] > least]
        if not todo or tries >= most or (depth >= _LEAST_DEPTH and len(todo) > _MANY * 2**depth):
            break
        halves = list[tuple[int, int]]()
        for first, end in todo:
            middle = (first + end) // 2
            is_first = fails(first, middle)
            is_tried = is_first or end - middle == 1
            is_second = not is_tried or fails(middle, end)
            tries += 1 + is_tried
            halves += [half for half, failed in (((first, middle), is_first), ((middle, end), is_second)) if failed]
        todo = halves
    return sorted(found + todo)


_LEAST_DEPTH, _MANY = 4, 0.9
"""Of sixteen pieces and more, when more than this part of them fails, smaller ones are not tried."""
LEAST_PIECE, MOST_PIECE = 100, 1_000
"""Messages in a piece of a large batch that has failed. Smaller batches than the first are only made to search for culprits."""


def piece_of(messages: int) -> int:
    """Return how many messages at once a batch of so many that has failed is handed on with."""
    return min(max(messages // 100, LEAST_PIECE), MOST_PIECE) if messages > 2 * LEAST_PIECE else (messages + 1) // 2


@dataclass(slots=True)
class _Failing:
    """Rows that have failed together, and come again.

    :param left: how many they were when they were cut last; ``piece``: how many of them come together now.
    :param found: whether one of them was charged.
    """

    rows: Rows
    left: int
    piece: int
    error: str
    found: bool = False


class OrderedSearch:
    """The search among rows whose turns come in their order: how many of them come together next. What succeeds is over, and never tried again.

    :param unstable: called with rows that have failed together, although their pieces did not, and with their error.
    """

    def __init__(self, unstable: Callable[[Rows, str], object]) -> None:
        self._unstable = unstable
        self._failing: list[_Failing] = []

    def __bool__(self) -> bool:
        return bool(self._failing)

    def failed(self, rows: Rows, error: str, piece: int | None = None) -> None:
        """Take rows, ascending, that have failed together, and none of which is known to be the culprit.

        :param piece: how many of them come together now; None: as ``piece_of`` says.
        """
        self._failing.append(_Failing(rows, len(rows), piece or piece_of(len(rows)), error))

    def charged(self) -> None:
        """Take note that the row whose turn it is has failed alone, or was named."""
        for failing in self._failing:
            failing.found = True

    def most(self, row: int, most: int) -> int:
        """Return how many rows come together at most, from this one on, of those that could.

        Of two halves the second is not tried as a whole when the first has succeeded: the culprit is in it.
        """
        self.over(row)
        if not self._failing:
            return most
        failing = self._failing[-1]
        left = len(failing.rows) - int(np.searchsorted(failing.rows, row))
        if not failing.found and 1 < left < failing.left and left <= failing.piece and failing.left <= 2 * failing.piece:
            failing.left, failing.piece = left, piece_of(left)
        return min(most, failing.piece)

    def last(self, row: int) -> int:
        """Return the last row that may come together with others now, this one where none has failed."""
        return int(self._failing[-1].rows[-1]) if self._failing else row

    def over(self, row: int) -> None:
        """Take note that the turns of all rows before this one are over."""
        while self._failing and self._failing[-1].rows[-1] < row:
            failing = self._failing.pop()
            if not failing.found:
                self._unstable(failing.rows, failing.error)

    def leave(self) -> None:
        """Search no further."""
        self._failing.clear()


def unstable(lookup_ids: Sequence[int], error: str) -> dict[str, str]:
    """Return the details of the event that a batch failed, and its parts did not."""
    return {"messages": str(len(lookup_ids)), "first": str(lookup_ids[0]), "last": str(lookup_ids[-1]), "error": error}
