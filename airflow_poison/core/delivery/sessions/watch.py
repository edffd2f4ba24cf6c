"""Watches a child's progress through the words of the journal: no message of it may stand still longer than the transaction timeout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.core.delivery.sessions.words import State, states_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_IDLE_SECONDS = 300.0
"""How long a child may take while no message is with the handler: imports, conversions, rules."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.5, 0.01


class Watch:
    """A stopwatch that starts again whenever the open transaction changes.

    :param words: of the batch; None while the child loads the handler.
    :param timeout: of a transaction, seconds.
    """

    def __init__(self, words: NDArray[np.int32] | None, timeout: float) -> None:
        self._words, self._timeout = words, timeout
        self.pause = min(_LONGEST_PAUSE, max(timeout / 8, _SHORTEST_PAUSE))
        self._progress = self._look()
        self._since = self._looked = time.monotonic()

    def __call__(self) -> bool:
        """Look, at most every half pause, and say whether the transaction has been open for too long."""
        now = time.monotonic()
        if now - self._looked < self.pause / 2:
            return False
        self._looked, seen = now, self._look()
        if seen != self._progress:
            self._progress, self._since = seen, now
            return False
        limit = self._timeout if seen[0] >= 0 else max(self._timeout, LONGEST_IDLE_SECONDS)
        return now - self._since >= limit

    def _look(self) -> tuple[int, int, int]:
        """Say where the child is: the first row of the open transaction, its counts, and how many rows are settled."""
        if self._words is None:
            return (-1, 0, 0)
        states = states_of(self._words)
        is_open = (states == State.IN_FLIGHT) | (states == State.HELD)
        row = int(np.argmax(is_open))
        settled = int(np.count_nonzero((states == State.ENDED) | (states == State.COMMITTED)))
        return (row, int(self._words[row]) >> 8, settled) if is_open[row] else (-1, 0, settled)


def in_flight(words: NDArray[np.int32]) -> int:
    """Return the row that is with the handler, or -1."""
    flying = np.flatnonzero(states_of(words) == State.IN_FLIGHT)
    return int(flying[0]) if len(flying) else -1
