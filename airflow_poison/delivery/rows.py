"""The messages of one batch as the rules see them: entries, what attempts led to, and rows for the loop, a group with one session at a time."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from airflow_poison.delivery.journal import ATTEMPTS_MASK, IS_SETTLED, STATE_MASK, MessageState, attempts_of, state_of
from airflow_poison.rules.decisions import AfterRollback, BeforeDelivery, Block, Counts, Deliver, Dispose, Halt, Park
from airflow_poison.rules.policy import FIRST, Opening, Policy, Receiver
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.libraries import pc

if TYPE_CHECKING:
    import pyarrow as pa

    Discards = Callable[["BatchEntry"], bool]

EARLIER_ROLLBACK = Failure(FailureKind.EXCEPTION, "earlier try")
"""A rollback that the message has outlived: only that it happened is known."""
_DIED = {MessageState.CRASHED, MessageState.TIMED_OUT}
_SLICE = 1_024
_SLICES = 4


@dataclass(slots=True, eq=False)
class BatchEntry:
    """One message of a batch, as far as rules look at it.

    :param group_name: its conversation group, else its conversation; empty without both.
    :param batch: where its further columns are looked up when a rule asks for them.
    :param resumed_end: what its last rollback led to when it could not be decided at once, from the message alone; None: decide again.
    """

    row: int
    lookup_id: int
    size: int
    expires_at: datetime | None
    counts: Counts
    group_name: str = ""
    batch: pa.RecordBatch | None = None
    resumed_end: Dispose | Block | Halt | None = None

    @classmethod
    def of_size(cls, size: int) -> Self:
        """Return a message of which nothing else is known: some policies refuse large ones."""
        return cls(0, 0, size, None, Counts())

    @property
    def group(self) -> str:
        """Its conversation group, else its conversation; without both it is a group of its own."""
        return self.group_name or f"#{self.lookup_id}"

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return {} if self.batch is None else dict(self.batch.column("properties")[self.row].as_py() or ())


class Attempt(NamedTuple):
    """One rollback of a message, decided again.

    :param seen: the counts that its delivery saw.
    """

    before: BeforeDelivery
    seen: Counts
    after: AfterRollback


def counted_attempts(receiver: Receiver, entry: BatchEntry, attempts: int, now: datetime, last: Failure | None = None) -> Iterator[Attempt]:
    """Yield what the policy decides about so many attempts of a message; with each the entry gets the counts that it has after it.

    They may come from a dead pass under another policy: that this one would not have delivered the message is no reason to stop.

    :param last: what ended the last of them, where that is known.
    """
    for left in reversed(range(attempts)):
        before = receiver.before(entry, now)
        seen = entry.counts = before.counts if isinstance(before, Deliver) else entry.counts
        after = receiver.after_rollback(entry, EARLIER_ROLLBACK if left or last is None else last, now)
        entry.counts = after.counts
        yield Attempt(before, seen, after)


class _Cells(NamedTuple):
    """The columns that every rule may look at, of some consecutive rows."""

    lookup_ids: list[int]
    sizes: list[int | None]
    expiries: list[datetime | None]
    abort_counts: list[int | None]
    move_counts: list[int | None]
    groups: list[str]


class Entries:
    """Makes entries from the rows of a batch; its columns are converted a slice at a time.

    :param initial_words: what earlier tries left of each message.
    :param opening: of the endpoint; what it has in memory does not count.
    """

    def __init__(
        self, policy: Policy, batch: pa.RecordBatch, initial_words: Sequence[int] | memoryview, now: datetime, opening: Opening = FIRST
    ) -> None:
        self._policy, self._initial, self._now, self._batch, self._opening = policy, initial_words, now, batch, opening
        self._cells: Callable[[int], _Cells] = lru_cache(_SLICES)(partial(_converted, batch))

    def entry(self, row: int, last: Failure | None = None) -> BatchEntry:
        """Return the entry of a row, with the counts that it has after the attempts of its first word.

        :param last: what ended the last of these attempts.
        """
        entry, word = self._as_it_came(row), self._initial[row]
        after: AfterRollback | None = None
        for attempt in counted_attempts(self._policy.open(self._opening), entry, attempts_of(word), self._now, last):
            after = attempt.after
        if isinstance(after, Dispose | Block) or (isinstance(after, Halt) and state_of(word) in _DIED):
            entry.resumed_end = after
        return entry

    def next_end(self, row: int) -> Park | Dispose | Block | None:
        """Return the result of a receive of a message, from the message alone; None when it is delivered again.

        Its attempts may come from several endpoints: where one has forgotten the others', it ends before they are counted up.
        """
        attempts = attempts_of(self._initial[row]) + 1
        for attempt in counted_attempts(self._policy.open(self._opening), self._as_it_came(row), attempts, self._now):
            if isinstance(attempt.before, Park | Dispose | Block):
                return attempt.before
        return None

    def _as_it_came(self, row: int) -> BatchEntry:
        number, at = divmod(row, _SLICE)
        cells = self._cells(number)
        counts = Counts(cells.abort_counts[at] or 0, cells.move_counts[at] or 0)
        return BatchEntry(row, cells.lookup_ids[at], cells.sizes[at] or 0, cells.expiries[at], counts, cells.groups[at], self._batch)

    def groups(self) -> list[str]:
        """Return the group of every row."""
        ids = self._batch.column("lookup_id").to_pylist()
        return [group or f"#{number}" for number, group in zip(ids, _group_names(self._batch), strict=True)]


def _converted(batch: pa.RecordBatch, number: int) -> _Cells:
    part = batch.slice(number * _SLICE, _SLICE)
    sizes: Any = pc.binary_length(cast("Any", part.column("body")))
    names = ("lookup_id", "expires_at", "abort_count", "move_count")
    ids, expiries, aborts, moves = (cast("list[Any]", part.column(name).to_pylist()) for name in names)
    return _Cells(ids, sizes.to_pylist(), expiries, aborts, moves, _group_names(part))


def _group_names(batch: pa.RecordBatch) -> list[str]:
    columns = (batch.column(name).to_pylist() for name in ("group_id", "conversation_id"))
    return [group or conversation or "" for group, conversation in zip(*columns, strict=True)]


class Rows:
    """The source of the receive loop: rows in order, what was put back first; or a sweep over them (spec WMQ-29).

    :param policy: whether it sweeps.
    :param discards: receives a message from its conversation, and says whether that has discarded it; None: the queue has no conversations.
    """

    def __init__(self, policy: Policy, entries: Entries, rows: Iterable[int], words: memoryview, discards: Discards | None = None) -> None:
        self._entries, self._rows, self._words = entries, iter(rows), words
        self._sweeps, self._discards = policy.sweeps, discards
        self._back: list[BatchEntry] = []
        self._known: dict[int, BatchEntry] = {}
        self._taken = -1
        self.blocked = False

    def take(self, beside: Sequence[BatchEntry] = ()) -> BatchEntry | None:
        """Receive the next message, passing over what is settled and what has reached the largest count that a word holds."""
        while not self.blocked and (entry := self._next(beside)) is not None:
            if self._discards is None or not self._discards(entry):
                return entry
        return None

    def _next(self, beside: Sequence[BatchEntry]) -> BatchEntry | None:  # noqa: ARG002  (no group is locked)
        entry = (self._fresh() or self._returned()) if self._sweeps else (self._returned() or self._fresh())
        if entry is not None:
            self._taken = entry.row
        return entry

    def put_back(self, entries: Sequence[BatchEntry]) -> None:
        """Return received messages to their rows."""
        for entry in entries:
            insort(self._back, entry, key=_row)

    def ahead(self, most: int, fits: Callable[[BatchEntry], bool]) -> list[BatchEntry]:
        """Return the messages that are received next, as far as they fit, and leave them where they are. Not of a sweep.

        :param fits: asked for each in its turn, until it says no.
        """
        taken, found = list[BatchEntry](), list[BatchEntry]()
        while len(found) < most and (entry := self.take()) is not None:
            taken.append(entry)
            if not fits(entry):
                break
            found.append(entry)
        self.put_back(taken)
        return found

    def remember(self, entry: BatchEntry) -> None:
        """Keep the counts of a message that was tried before its turn."""
        self._known[entry.row] = entry

    def _returned(self) -> BatchEntry | None:
        while self._back:
            place = bisect_right(self._back, self._taken, key=_row) % len(self._back) if self._sweeps else 0
            entry = self._back.pop(place)
            if self._is_open(entry.row):
                return entry
        return None

    def _fresh(self) -> BatchEntry | None:
        row = next((row for row in self._rows if self._is_open(row)), None)
        return None if row is None else self._known.pop(row, None) or self._entries.entry(row)

    def _is_open(self, row: int) -> bool:
        value = self._words[row]
        return not IS_SETTLED[value & STATE_MASK] and value & ATTEMPTS_MASK != ATTEMPTS_MASK


def _row(entry: BatchEntry) -> int:
    return entry.row


class GroupRows(Rows):
    """Rows where a conversation group is with one server session at a time (spec SB-47), each group in its order; never a sweep."""

    def __init__(self, policy: Policy, entries: Entries, rows: Iterable[int], words: memoryview, discards: Discards | None = None) -> None:
        super().__init__(policy, entries, (), words, discards)
        self._groups = entries.groups()
        self._waiting: dict[str, list[int]] = {}
        for row in rows:
            self._waiting.setdefault(self._groups[row], []).append(row)
        for members in self._waiting.values():
            members.reverse()  # the next one last
        self._heads = [(members[-1], group) for group, members in self._waiting.items()]
        self._listed = set(self._heads)
        heapq.heapify(self._heads)

    def _next(self, beside: Sequence[BatchEntry]) -> BatchEntry | None:
        """Receive the first message of a group that is not locked; those that are passed over keep their places."""
        locked = {self._groups[entry.row] for entry in beside}
        passed: list[tuple[int, str]] = []
        entry = None
        while entry is None and self._heads:
            row, group = head = heapq.heappop(self._heads)
            self._listed.discard(head)
            if group in locked:
                passed.append(head)
            elif self._waiting[group] and self._waiting[group][-1] == row:  # else the head of former times
                entry = self._taken_from(group)
        for head in passed:
            self._list(head)
        return entry

    def put_back(self, entries: Sequence[BatchEntry]) -> None:
        """Return received messages to their places in their groups."""
        for entry in entries:
            self._known[entry.row] = entry
            members = self._waiting[self._groups[entry.row]]
            insort(members, entry.row, key=int.__neg__)
            self._list_head(self._groups[entry.row])

    def _taken_from(self, group: str) -> BatchEntry | None:
        row = self._waiting[group].pop()
        self._list_head(group)
        if not self._is_open(row):
            return None
        return self._known.pop(row, None) or self._entries.entry(row)

    def _list_head(self, group: str) -> None:
        if self._waiting[group]:
            self._list((self._waiting[group][-1], group))

    def _list(self, head: tuple[int, str]) -> None:
        if head not in self._listed:
            self._listed.add(head)
            heapq.heappush(self._heads, head)


def rows_of(policy: Policy, entries: Entries, rows: Iterable[int], words: memoryview, discards: Discards | None = None) -> Rows:
    """Return the source that a policy's endpoint receives from. Where the queue has conversations, groups are locked whatever the policy says."""
    locks = (policy.locks_groups or discards is not None) and policy.server_sessions > 1
    return (GroupRows if locks else Rows)(policy, entries, rows, words, discards)


class OneRow(Rows):
    """A source with a single entry."""

    def __init__(self, policy: Policy, entries: Entries, entry: BatchEntry, words: memoryview) -> None:
        super().__init__(policy, entries, (), words)
        self.put_back([entry])
