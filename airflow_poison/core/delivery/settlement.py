"""From a delivered batch to the rows that remain: what became of each message, as Arrow rows for the stage.

The child process only journals (attempts and a final state for each message); here the same policy turns them into decisions.
Messages with the same counts, attempts and end share one decision, so the cost follows the number of different ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.sessions.words import State, attempts_of, crashes_of, states_of
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.message import SubQueue, table_schema
from airflow_poison.core.policies.decisions import Counts, Deliver, Dispose, Disposition, Halt, Park, Return

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.policies.seam import Policy

OUTBOX = "_outbox"
EVENTS = "_event"


@dataclass(slots=True)
class Entry:
    """A message as the rules see it."""

    lookup_id: int
    counts: Counts
    size: int
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Stay:
    """The message remains where it was read: untouched, or the endpoint ended before its next delivery."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The handler postponed it: it waits uncounted."""

    counts: Counts
    due_at: datetime


End = Stay | GiveBack | Park | Dispose | Halt


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a batch left behind.

    :param rows: ``table_schema()``: messages that remain or leave for another queue, and events.
    :param counts: messages by end, deliveries and failures, for the task's tally.
    :param halt: the message that halted the endpoint and how, if one did.
    """

    rows: pa.Table | None
    counts: Mapping[str, int]
    errors: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    halt: tuple[int, Halt] | None = None


class Settler:
    """Settles the batches of one task.

    :param read_from: the sub-queue that the messages were read from; what is untouched stays there.
    :param record_all: also write the routine events of each delivery (spec 0.3), for audit and tests.
    """

    def __init__(self, policy: Policy, queue: str, read_from: SubQueue, *, record_all: bool = False) -> None:
        self._receiver = policy.open()
        self._queue = queue
        self._read_from = read_from
        self._record_all = record_all

    def settle(self, batch: pa.RecordBatch, words: np.ndarray, failures: Mapping[int, Failure], now: datetime) -> Settlement:
        """Return what remains of a batch whose journal words are given; committed messages leave no row."""
        states = states_of(words)
        attempts = attempts_of(words)
        crashes = crashes_of(words)
        committed = int(np.count_nonzero(states == State.COMMITTED))
        counts = {
            "received": batch.num_rows,
            "committed": committed,
            "rollbacks": int(attempts.sum()),
            "crashes": int(crashes.sum()),
            "deliveries": committed + int(attempts.sum()),
        }
        open_rows = np.flatnonzero(states != State.COMMITTED)
        rows: list[pa.Table] = []
        errors: dict[str, tuple[str, int]] = {}
        halt: tuple[int, Halt] | None = None
        groups = self._group(batch, open_rows, attempts, states, failures, now)
        for (_, _, attempt, state, kind, _, delay), members in groups.items():
            entry = _entry(batch, members[0])
            end, ended_at = self._end(entry, attempt, State(state), kind, members[0], failures, now)
            del delay, ended_at
            name = _name(end)
            counts[name] = counts.get(name, 0) + len(members)
            if kind in (FailureKind.UNREADABLE, FailureKind.POSTPONED):
                counts["deliveries"] += len(members) if kind is FailureKind.POSTPONED else 0
            if isinstance(end, Halt):
                halt = (entry.lookup_id, end)
            for row in members:
                if (failure := failures.get(row)) is not None:
                    text, number = errors.get(fingerprint(failure), (f"{failure.type}: {failure.text}"[:200], 0))
                    errors[fingerprint(failure)] = (text, number + 1)
            remaining = self._remaining(batch, members, end, crashes, failures, now)
            if remaining is not None:
                rows.append(remaining)
            rows.extend(self._poison_events(batch, members, end, now))
        if self._record_all:
            rows.insert(0, self._routine_events(batch, attempts, states, now))
        return Settlement(pa.concat_tables(rows) if rows else None, counts, errors, halt)

    def _group(
        self, batch: pa.RecordBatch, open_rows: np.ndarray, attempts: np.ndarray, states: np.ndarray, failures: Mapping[int, Failure], now: datetime
    ) -> dict[tuple[int, int, int, int, FailureKind | None, bool, float], list[int]]:
        groups: dict[tuple[int, int, int, int, FailureKind | None, bool, float], list[int]] = {}
        if not len(open_rows):
            return groups
        taken = batch.take(pa.array(open_rows))
        aborts = taken.column("abort_count").to_pylist()
        moves = taken.column("move_count").to_pylist()
        expiries = taken.column("expires_at").to_pylist()
        for place, row in enumerate(open_rows.tolist()):
            failure = failures.get(row)
            expired = expiries[place] is not None and expiries[place] <= now
            delay = failure.delay.total_seconds() if failure is not None else 0.0
            kind = failure.kind if failure is not None else None
            key = (aborts[place] or 0, moves[place] or 0, int(attempts[row]), int(states[row]), kind, expired, delay)
            groups.setdefault(key, []).append(row)
        return groups

    def _end(
        self, entry: Entry, attempts: int, state: State, kind: FailureKind | None, row: int, failures: Mapping[int, Failure], now: datetime
    ) -> tuple[End, Counts]:
        """Fold the counted rollbacks with the policy, then ask what the next receive does."""
        receiver = self._receiver
        failure = failures.get(row) or Failure(FailureKind.CRASH if kind is None else kind)
        for _ in range(attempts):
            delivery = receiver.before(entry, now)
            assert isinstance(delivery, Deliver), f"message {entry.lookup_id} was delivered after {delivery}"
            entry.counts = delivery.counts
            after = receiver.after_rollback(entry, failure, now)
            entry.counts = after.counts
            if not isinstance(after, Return):
                return after, entry.counts
        if state not in (State.ENDED, State.HALTED):
            return Stay(entry.counts), entry.counts
        if kind is FailureKind.POSTPONED:
            return GiveBack(entry.counts, now + failure.delay), entry.counts
        if kind in (FailureKind.UNREADABLE, FailureKind.UNPROCESSABLE):
            return receiver.give_up(entry, failure, now), entry.counts
        decision = receiver.before(entry, now)
        assert not isinstance(decision, Deliver), f"message {entry.lookup_id} has ended and would be delivered again"
        return decision, entry.counts

    def _remaining(
        self, batch: pa.RecordBatch, members: list[int], end: End, crashes: np.ndarray, failures: Mapping[int, Failure], now: datetime
    ) -> pa.Table | None:
        """Return the members' rows where the end keeps them, with their new counts and error."""
        place, due_at, reason = self._place(end)
        if place is None:
            return None
        taken = batch.take(pa.array(members, pa.int64()))
        errors = [failures.get(row) for row in members]
        former = taken.column("last_error").to_pylist() if any(error is None for error in errors) else [None] * len(members)
        size = len(members)
        instant = pa.timestamp("us", tz="UTC")
        columns = {name: taken.column(name) for name in taken.schema.names}
        columns |= {
            "abort_count": pa.array(np.full(size, end.counts.abort_count, np.int32)),
            "crash_count": pa.array(
                taken.column("crash_count").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32) + crashes[members].astype(np.int32)
            ),
            "due_at": pa.array([due_at] * size, instant),
            "last_error": pa.array(
                [_error_row(error) if error is not None else old for error, old in zip(errors, former, strict=True)],
                table_schema().field("last_error").type,
            ),
            "reason": pa.array([reason or _summary(error) for error in errors], pa.string()),
            "sub_queue": pa.array([place] * size, pa.string()),
            "move_count": pa.array(np.full(size, end.counts.move_count, np.int32)),
        }
        del now
        return pa.table([columns[name] for name in table_schema().names], schema=table_schema())

    def _place(self, end: End) -> tuple[str | None, datetime | None, str | None]:
        """Return the partition that keeps the message (None: none), its due time, and the reason where it is not its last error."""
        match end:
            case Stay() | Halt():
                return self._read_from.value, None, None
            case GiveBack():
                return SubQueue.POSTPONED.value, end.due_at, None
            case Park():
                return SubQueue.RETRY.value, end.due_at, None
            case Dispose(how=Disposition.MOVE_TO_POISON):
                return SubQueue.POISON.value, None, None
            case Dispose(how=Disposition.REJECT) | Dispose(to_dead_letter=True):
                return OUTBOX, None, f"{end.how.value}: for the sender's dead-letter queue"
            case Dispose():
                return None, None, None
            case _:
                assert_never(end)

    def _poison_events(self, batch: pa.RecordBatch, members: list[int], end: End, now: datetime) -> list[pa.Table]:
        if not isinstance(end, Park | Dispose | Halt):
            return []
        place = end.place if isinstance(end, Park) else self._place(end)[0] or ""
        ids = batch.column("lookup_id").take(pa.array(members, pa.int64()))
        return [_event_rows(Event(kind, now, None, end.counts.abort_count, end.counts.move_count, {"place": place}), ids) for kind in end.events]

    def _routine_events(self, batch: pa.RecordBatch, attempts: np.ndarray, states: np.ndarray, now: datetime) -> pa.Table:
        """Return DELIVERED, COMMITTED and ROLLED_BACK of each message, in the order in which they happened to it."""
        from airflow_poison.core.store.events_as_rows import events_to_table  # noqa: PLC0415

        events: list[Event] = []
        blank = Failure(FailureKind.EXCEPTION)
        for row in range(batch.num_rows):
            entry = _entry(batch, row)
            deliveries = int(attempts[row]) + (1 if states[row] == State.COMMITTED else 0)
            for delivery in range(deliveries):
                decision = self._receiver.before(entry, now)
                seen = decision.counts
                events.append(Event(EventType.DELIVERED, now, entry.lookup_id, seen.abort_count, seen.move_count))
                if delivery < attempts[row]:
                    entry.counts = seen
                    entry.counts = self._receiver.after_rollback(entry, blank, now).counts
                    events.append(Event(EventType.ROLLED_BACK, now, entry.lookup_id, entry.counts.abort_count, entry.counts.move_count))
                else:
                    events.append(Event(EventType.COMMITTED, now, entry.lookup_id, seen.abort_count, seen.move_count))
        return events_to_table(events)


def fingerprint(failure: Failure) -> str:
    """Return 12 hexadecimal digits that failures of the same type at the same place share."""
    frames = [line.strip() for line in failure.trace.splitlines() if line.lstrip().startswith("File ")]
    return hashlib.sha256(f"{failure.kind}|{failure.type}|{frames[-1] if frames else ''}".encode()).hexdigest()[:12]


def _entry(batch: pa.RecordBatch, row: int) -> Entry:
    body = batch.column("body")[row]
    return Entry(
        lookup_id=batch.column("lookup_id")[row].as_py(),
        counts=Counts(batch.column("abort_count")[row].as_py() or 0, batch.column("move_count")[row].as_py() or 0),
        size=len(body.as_buffer()) if body.is_valid else 0,
        expires_at=batch.column("expires_at")[row].as_py(),
    )


def _name(end: End) -> str:
    match end:
        case Stay():
            return "untouched"
        case GiveBack():
            return "postponed"
        case Park():
            return "parked"
        case Halt():
            return "halted"
        case Dispose(how=Disposition.MOVE_TO_POISON):
            return "poisoned"
        case Dispose(how=Disposition.REJECT):
            return "rejected"
        case Dispose(to_dead_letter=True):
            return "dead_lettered"
        case Dispose():
            return "dropped"
        case _:
            assert_never(end)


def _summary(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.type}: {failure.text}".splitlines()[0][:200]


def _error_row(failure: Failure) -> dict[str, str]:
    return {
        "kind": failure.kind.value,
        "type": failure.type,
        "message": failure.text,
        "fingerprint": fingerprint(failure),
        "trace": failure.trace,
    }


def _event_rows(event: Event, lookup_ids: pa.Array) -> pa.Table:
    """Return one row of the event for each message."""
    from airflow_poison.core.store.events_as_rows import events_to_table  # noqa: PLC0415

    one = events_to_table([event])
    size = len(lookup_ids)
    repeated = one.take(pa.array(np.zeros(size, np.int64)))
    return repeated.set_column(repeated.schema.get_field_index("lookup_id"), table_schema().field("lookup_id"), lookup_ids.cast(pa.int64()))
