"""The messages of one batch as the receive loop sees them: entries with counts, taken in row order."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.words import MAX_ATTEMPTS, SETTLED, attempts_of, state_of
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Counts, Deliver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.policies.seam import Policy

_EARLIER_ROLLBACK = Failure(FailureKind.EXCEPTION, "earlier try")


@dataclass(slots=True, eq=False)
class BatchEntry:
    """One message of a batch, as far as rules look at it.

    :param batch: where its further columns are looked up when a rule asks for them.
    """

    row: int
    lookup_id: int
    size: int
    expires_at: datetime | None
    counts: Counts
    batch: pa.RecordBatch | None = None

    @property
    def group(self) -> str:
        """Its conversation group, else its conversation; without both it is a group of its own."""
        for name in ("group_id", "conversation_id"):
            if self.batch is not None and (found := self.batch.column(name)[self.row].as_py()):
                return str(found)
        return f"#{self.lookup_id}"

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return {} if self.batch is None else dict(self.batch.column("properties")[self.row].as_py() or ())


class Entries:
    """Makes entries from the rows of a batch."""

    def __init__(self, policy: Policy, batch: pa.RecordBatch, initial_words: Sequence[int] | memoryview, now: datetime) -> None:
        self._policy, self._initial, self._now, self._batch = policy, initial_words, now, batch
        self._columns = [batch.column(name) for name in ("lookup_id", "body", "expires_at", "abort_count", "move_count")]

    def entry(self, row: int) -> BatchEntry:
        """Return the entry of a row, with the counts that it has after the attempts of its first word."""
        lookup_id, body, expires_at, abort_count, move_count = (column[row] for column in self._columns)
        buffer = body.as_buffer()
        counts = Counts(abort_count.as_py() or 0, move_count.as_py() or 0)
        entry = BatchEntry(row, lookup_id.as_py(), buffer.size if buffer is not None else 0, expires_at.as_py(), counts, self._batch)
        attempts = attempts_of(self._initial[row])
        if attempts:
            entry.counts = counts_after(self._policy, entry, attempts, self._now)
        return entry


def counts_after(policy: Policy, entry: BatchEntry, attempts: int, now: datetime) -> Counts:
    """Return a message's counts after so many counted rollbacks in one pass, as its policy would have counted them."""
    receiver = policy.open()
    again = replace(entry)
    for _ in range(attempts):
        decision = receiver.before(again, now)
        if isinstance(decision, Deliver):
            again.counts = decision.counts
        again.counts = receiver.after_rollback(again, _EARLIER_ROLLBACK, now).counts
    return again.counts


class Rows:
    """The source of the receive loop: rows in order, what was put back first; or a sweep over them (spec WMQ-29).

    :param policy: whether it sweeps, and whether it locks groups.
    """

    def __init__(self, policy: Policy, entries: Entries, rows: Iterable[int], words: memoryview) -> None:
        self._entries, self._rows, self._words = entries, iter(rows), words
        self._sweeps, self._locks = policy.sweeps, policy.locks_groups
        self._back: list[BatchEntry] = []
        self._taken = -1
        self.blocked = False

    def take(self, beside: Sequence[BatchEntry] = ()) -> BatchEntry | None:
        """Receive the next message, passing over what is settled and what has reached the largest count that a word holds."""
        if self.blocked:
            return None
        if self._locks and beside:
            return self._unlocked({entry.group for entry in beside})
        return self._next()

    def put_back(self, entries: Sequence[BatchEntry]) -> None:
        """Return received messages to their rows."""
        for entry in entries:
            insort(self._back, entry, key=_row)

    def _next(self) -> BatchEntry | None:
        entry = (self._fresh() or self._returned()) if self._sweeps else (self._returned() or self._fresh())
        if entry is not None:
            self._taken = entry.row
        return entry

    def _returned(self) -> BatchEntry | None:
        while self._back:
            place = bisect_right(self._back, self._taken, key=_row) % len(self._back) if self._sweeps else 0
            entry = self._back.pop(place)
            if self._is_open(entry.row):
                return entry
        return None

    def _fresh(self) -> BatchEntry | None:
        return next((self._entries.entry(row) for row in self._rows if self._is_open(row)), None)

    def _unlocked(self, locked: set[str]) -> BatchEntry | None:
        """Receive the first message of a group that nobody has; those that are passed over keep their places."""
        passed: list[BatchEntry] = []
        while (entry := self._next()) is not None and entry.group in locked:
            passed.append(entry)
        self.put_back(passed)
        return entry

    def _is_open(self, row: int) -> bool:
        value = self._words[row]
        return state_of(value) not in SETTLED and attempts_of(value) < MAX_ATTEMPTS


def _row(entry: BatchEntry) -> int:
    return entry.row


class OneRow(Rows):
    """A source with a single entry."""

    def __init__(self, policy: Policy, entries: Entries, entry: BatchEntry, words: memoryview) -> None:
        super().__init__(policy, entries, (), words)
        self.put_back([entry])
