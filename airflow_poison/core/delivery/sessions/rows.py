"""The messages of one batch as the receive loop sees them: entries with counts, taken in row order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.words import MAX_ATTEMPTS, SETTLED, attempts_of, state_of
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Counts, Deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.policies.seam import Policy

_EARLIER_ROLLBACK = Failure(FailureKind.EXCEPTION, "earlier try")


@dataclass(slots=True)
class BatchEntry:
    """One message of a batch, as far as rules look at it."""

    row: int
    lookup_id: int
    size: int
    expires_at: datetime | None
    counts: Counts


class Entries:
    """Makes entries from the rows of a batch."""

    def __init__(self, policy: Policy, batch: pa.RecordBatch, initial_words: Sequence[int] | memoryview, now: datetime) -> None:
        self._policy, self._initial, self._now = policy, initial_words, now
        self._columns = [batch.column(name) for name in ("lookup_id", "body", "expires_at", "abort_count", "move_count")]

    def entry(self, row: int) -> BatchEntry:
        """Return the entry of a row, with the counts that it has after the attempts of its first word."""
        lookup_id, body, expires_at, abort_count, move_count = (column[row] for column in self._columns)
        buffer = body.as_buffer()
        counts = Counts(abort_count.as_py() or 0, move_count.as_py() or 0)
        entry = BatchEntry(row, lookup_id.as_py(), buffer.size if buffer is not None else 0, expires_at.as_py(), counts)
        attempts = attempts_of(self._initial[row])
        if attempts:
            entry.counts = counts_after(self._policy, entry, attempts, self._now)
        return entry


def counts_after(policy: Policy, entry: BatchEntry, attempts: int, now: datetime) -> Counts:
    """Return a message's counts after so many counted rollbacks in one pass, as its policy would have counted them."""
    receiver = policy.open()
    again = BatchEntry(entry.row, entry.lookup_id, entry.size, entry.expires_at, entry.counts)
    for _ in range(attempts):
        decision = receiver.before(again, now)
        if isinstance(decision, Deliver):
            again.counts = decision.counts
        again.counts = receiver.after_rollback(again, _EARLIER_ROLLBACK, now).counts
    return again.counts


class Rows:
    """The source of the receive loop: rows in order, what was put back first."""

    def __init__(self, entries: Entries, rows: Iterable[int], words: memoryview, live: Callable[[], bool] | None = None) -> None:
        self._entries, self._rows, self._words, self._live = entries, iter(rows), words, live
        self._back: list[tuple[int, BatchEntry]] = []

    def take(self) -> BatchEntry | None:
        """Receive the message at the head, passing over what is settled and what has reached the largest count that a word holds."""
        while self._back:
            row, entry = heapq.heappop(self._back)
            if self._is_open(row):
                return entry
        return next((self._entries.entry(row) for row in self._rows if self._is_open(row)), None)

    def put_back(self, entries: Sequence[BatchEntry]) -> None:
        """Return received messages to their rows."""
        for entry in entries:
            heapq.heappush(self._back, (entry.row, entry))

    def _is_open(self, row: int) -> bool:
        if self._live is not None and not self._live():
            return True  # a replay meets what it has settled before
        value = self._words[row]
        return state_of(value) not in SETTLED and attempts_of(value) < MAX_ATTEMPTS


class OneRow(Rows):
    """A source with a single entry."""

    def __init__(self, entries: Entries, entry: BatchEntry, words: memoryview) -> None:
        super().__init__(entries, (), words)
        self.put_back([entry])
