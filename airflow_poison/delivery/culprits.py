"""The search for culprits: which of many messages that fail together fail alone. Pure: the caller tries sets of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def unstable(lookup_ids: Sequence[int], error: str) -> dict[str, str]:
    """Return the details of the event that a batch failed, and its parts did not."""
    return {"messages": str(len(lookup_ids)), "first": str(lookup_ids[0]), "last": str(lookup_ids[-1]), "error": error}
