"""From a delivered batch to the rows that remain of it, as Arrow rows for the stage.

The delivering process only journals; here its words become ends. Messages with the same counts, attempts and state share one
decision, so the cost follows the number of different ends, not of messages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, assert_never

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.ends import Entry, Journaled, Stay, due_at_of, end_of, name_of, partition_of
from airflow_poison.core.delivery.sessions.endpoint import HALT_EVENTS
from airflow_poison.core.delivery.sessions.words import State, attempts_of, crashes_of, states_of
from airflow_poison.core.delivery.tally import BlockRecord, HaltRecord, Tally
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.events_as_rows import events_to_table
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.message import DESTINATION, OUTBOX, message_schema, table_schema
from airflow_poison.core.policies.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Park
from airflow_poison.core.policies.opening import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.sessions.session import Decided
    from airflow_poison.core.message import SubQueue
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Policy

_BLANK = Failure(FailureKind.EXCEPTION)
_SENDERS = "the sender's dead-letter queue"


class Fate(NamedTuple):
    """What a decision may depend on; messages that share it share their end."""

    abort_count: int
    move_count: int
    attempts: int
    state: int
    kind: FailureKind | None
    delay: float
    expired: bool
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch after its delivery.

    :param batch: columns of ``message_schema()`` and ``move_count``.
    :param words: int32, one per row, as the server session reported them.
    :param failures: the last failure by row, of messages that are not committed.
    :param at: when their fate is decided, UTC.
    :param decided: what an endpoint decided; None: the policy is asked here, with the words.
    """

    batch: pa.RecordBatch
    words: NDArray[np.int32]
    failures: Mapping[int, Failure]
    at: datetime
    decided: Decided | None = None

    def entry(self, row: int) -> Entry:
        """Return the message of a row with the counts that it came with."""
        cell = {name: self.batch.column(name)[row] for name in ("lookup_id", "abort_count", "move_count", "body", "expires_at")}
        body = cell["body"].as_buffer()
        counts = Counts(cell["abort_count"].as_py() or 0, cell["move_count"].as_py() or 0)
        size = body.size if body is not None else 0
        return Entry(cell["lookup_id"].as_py(), counts, size, cell["expires_at"].as_py(), properties=self.properties(row))

    def properties(self, row: int) -> dict[str, str]:
        """Return the properties of a row's message."""
        return dict(self.batch.column("properties")[row].as_py() or ())


class Settler:
    """Settles the batches of one task.

    :param read_from: the sub-queue that the messages were read from; what is untouched stays there.
    :param record_all: also write the routine events of each delivery (spec 0.3), for audit and tests.
    """

    def __init__(self, policy: Policy, read_from: SubQueue, *, opening: Opening = FIRST, record_all: bool = False) -> None:
        self._policy, self._opening = policy, opening
        self._read_from = read_from
        self._record_all = record_all
        self._events = 0

    def settle(self, delivered: Delivered) -> tuple[list[pa.Table], Tally]:
        """Return the rows that remain (``table_schema()``; committed messages leave none) with events, and what was counted."""
        states, attempts = states_of(delivered.words), attempts_of(delivered.words)
        committed = int(np.count_nonzero(states == State.COMMITTED))
        rollbacks = int(attempts.sum())
        tally = Tally(Counter(received=len(states), committed=committed, rollbacks=rollbacks, deliveries=committed + rollbacks))
        tally.counts["crashes"] = int(crashes_of(delivered.words).sum())
        rows = self._routine(delivered, states, attempts) if self._record_all else []
        for end, members, kind in self._ends(delivered, states, attempts):
            tally.counts[name_of(end)] += len(members)
            if kind is FailureKind.POSTPONED:
                tally.counts["deliveries"] += len(members)
            for failure in filter(None, map(delivered.failures.get, members)):
                tally.add_error(fingerprint(failure), f"{failure.type}: {failure.text}"[:200])
            self._note_ending(delivered, members[0], end, tally)
            rows += self._remaining(delivered, members, end)
            rows += self._poison_events(delivered, members, end)
            tally.counts["reports"] += len(members) * len(end.reports) if isinstance(end, Dispose) else 0
        if delivered.decided is not None and delivered.decided.halt is not None and tally.halt is None:
            tally.halt = _halt_record(delivered.decided.halt, None, "", delivered.at)
        return rows, tally

    def _ends(
        self, delivered: Delivered, states: NDArray[np.int32], attempts: NDArray[np.int32]
    ) -> Iterator[tuple[End, list[int], FailureKind | None]]:
        """Yield each end with the rows that share it, and the kind of failure that they ended with."""
        if delivered.decided is not None:
            yield from _decided(delivered, states)
            return
        for fate, members in _fates(delivered, states, attempts, with_properties=self._policy.reads_properties).items():
            entry = delivered.entry(members[0])
            journaled = Journaled(fate.attempts, State(fate.state), delivered.failures.get(members[0]))
            yield end_of(self._policy.open(self._opening), entry, journaled, delivered.at), members, fate.kind

    @staticmethod
    def _note_ending(delivered: Delivered, row: int, end: End, tally: Tally) -> None:
        """Note what ends receiving for the whole endpoint."""
        if isinstance(end, Halt):
            lookup_id = delivered.batch.column("lookup_id")[row].as_py()
            tally.halt = _halt_record(end, lookup_id, _summary(delivered.failures.get(row)) or "", delivered.at)
        elif isinstance(end, Block) and end.whole_queue:
            until = end.until.isoformat() if end.until else None
            tally.block = BlockRecord(lookup_id=delivered.batch.column("lookup_id")[row].as_py(), until=until)

    def _remaining(self, delivered: Delivered, members: Sequence[int], end: End) -> list[pa.Table]:
        """Return the members' rows where the end keeps them, with their new counts and error."""
        partition = partition_of(end, self._read_from)
        if partition is None:
            return []
        rows = delivered.batch.take(pa.array(members, pa.int64()))
        failures = [delivered.failures.get(row) for row in members]
        size = len(members)
        changed: dict[str, pa.Array[Any]] = {
            "abort_count": _constant(end.counts.abort_count, size),
            "move_count": _constant(end.counts.move_count, size),
            "crash_count": _crash_counts(rows, crashes_of(delivered.words)[np.asarray(members)]),
            "due_at": pa.array([due_at_of(end)] * size, message_schema().field("due_at").type),
            "last_error": _last_errors(rows, failures),
            "reason": pa.array([_reason(end) or _summary(failure) for failure in failures], pa.string()),
            "sub_queue": pa.array([partition] * size, pa.string()),
        }
        if isinstance(end, Dispose) and partition == OUTBOX:
            changed["properties"] = _properties([_addressed(delivered.properties(row), end) for row in members])
        columns = [changed[name] if name in changed else rows.column(name) for name in table_schema().names]
        remaining = pa.table(columns, schema=table_schema())
        return [remaining, *self._reports(remaining, end)]

    @staticmethod
    def _reports(disposed: pa.Table, end: End) -> Iterator[pa.Table]:
        """Yield the report messages of a disposition: copies of the messages with as much of the body as was asked for (spec WMQ-24)."""
        for report in end.reports if isinstance(end, Dispose) else ():
            bodies = [(body or b"")[: report.data] for body in disposed.column("body").to_pylist()]
            given = {DESTINATION: report.to, "JMS_IBM_Feedback": str(report.feedback)}
            changed: dict[str, pa.Array[Any]] = {
                "body": pa.array(bodies, pa.binary()),
                "properties": _properties([given] * disposed.num_rows),
                "sub_queue": pa.array([OUTBOX] * disposed.num_rows, pa.string()),
            }
            columns = [changed[name] if name in changed else disposed.column(name) for name in table_schema().names]
            yield pa.table(columns, schema=table_schema())

    def _poison_events(self, delivered: Delivered, members: Sequence[int], end: End) -> list[pa.Table]:
        """Return the decision's events, one row for each message; those of the endpoint itself are the final commit's to tell."""
        if not isinstance(end, Park | Dispose | Block | Halt):
            return []
        details = _facts(end) | {"place": self._place(end)}
        ids = delivered.batch.column("lookup_id").take(pa.array(members, pa.int64())).cast(pa.int64())
        tables = []
        for kind in end.events:
            if kind in HALT_EVENTS.values():
                continue
            one = events_to_table([Event(kind, delivered.at, None, end.counts.abort_count, end.counts.move_count, details)])
            many = one.take(pa.array([0] * len(members), pa.int64()))
            numbers = pa.array(np.arange(self._events, self._events + len(members)), pa.int32())
            self._events += len(members)
            for name, column in (("lookup_id", ids), ("priority", numbers)):
                many = many.set_column(many.schema.get_field_index(name), table_schema().field(name), column)
            tables.append(many)
        return tables

    def _place(self, end: Park | Dispose | Block | Halt) -> str:
        if isinstance(end, Park):
            return end.place
        if isinstance(end, Dispose) and end.destination:
            return end.destination
        return partition_of(end, self._read_from) or ""

    def _routine(self, delivered: Delivered, states: NDArray[np.int32], attempts: NDArray[np.int32]) -> list[pa.Table]:
        """Return the routine events: as the endpoint told them, or as the words say."""
        if delivered.decided is None:
            return [self._routine_events(delivered, states, attempts)]
        events = delivered.decided.events
        self._events += len(events)
        return [events_to_table(events, self._events - len(events))]

    def _routine_events(self, delivered: Delivered, states: NDArray[np.int32], attempts: NDArray[np.int32]) -> pa.Table:
        """Return DELIVERED, COMMITTED and ROLLED_BACK of each message, in the order in which they happened to it."""
        events = [event for row in range(len(states)) for event in self._routine_of(delivered, row, State(states[row]), int(attempts[row]))]
        self._events += len(events)
        return events_to_table(events, self._events - len(events))

    def _routine_of(self, delivered: Delivered, row: int, state: State, attempts: int) -> Iterator[Event]:
        """Yield the routine events of one message; what its handler gave back was delivered, too."""
        entry, receiver, last = delivered.entry(row), self._policy.open(self._opening), delivered.failures.get(row)
        given_back = last is not None and last.kind is FailureKind.POSTPONED
        for number in range(1, attempts + 1 + (state is State.COMMITTED or given_back)):
            decision = receiver.before(entry, delivered.at)
            entry.counts = decision.counts
            at_most_once = isinstance(decision, Deliver) and decision.at_most_once
            if at_most_once:
                yield _event(EventType.COMMITTED, entry, delivered.at)
            yield _event(EventType.DELIVERED, entry, delivered.at)
            if number <= attempts:
                failure = last if last is not None and number == attempts and not given_back else _BLANK
                entry.counts = receiver.after_rollback(entry, failure, delivered.at).counts
                yield _event(EventType.ROLLED_BACK, entry, delivered.at)
            elif state is State.COMMITTED and not at_most_once:
                yield _event(EventType.COMMITTED, entry, delivered.at)


def fingerprint(failure: Failure) -> str:
    """Return 12 hexadecimal digits that failures of the same type at the same place share."""
    frames = [line.strip() for line in failure.trace.splitlines() if line.lstrip().startswith("File ")]
    return hashlib.sha256(f"{failure.kind}|{failure.type}|{frames[-1] if frames else ''}".encode()).hexdigest()[:12]


def _fates(delivered: Delivered, states: NDArray[np.int32], attempts: NDArray[np.int32], *, with_properties: bool) -> dict[Fate, list[int]]:
    """Return the rows that are not committed, by what their end depends on."""
    fates: dict[Fate, list[int]] = {}
    open_rows = np.flatnonzero(states != State.COMMITTED)
    if not len(open_rows):
        return fates
    rows = delivered.batch.take(pa.array(open_rows, pa.int64()))
    columns = [rows.column(name).to_pylist() for name in ("abort_count", "move_count", "expires_at")]
    for row, abort_count, move_count, expires_at in zip(open_rows.tolist(), *columns, strict=True):
        failure = delivered.failures.get(row)
        fate = Fate(
            abort_count or 0,
            move_count or 0,
            int(attempts[row]),
            int(states[row]),
            failure.kind if failure else None,
            failure.delay.total_seconds() if failure else 0.0,
            expires_at is not None and expires_at <= delivered.at,
            tuple(sorted(delivered.properties(row).items())) if with_properties else (),
        )
        fates.setdefault(fate, []).append(row)
    return fates


def _decided(delivered: Delivered, states: NDArray[np.int32]) -> Iterator[tuple[End, list[int], FailureKind | None]]:
    """Yield the ends that an endpoint decided, equal ones together; what it did not receive stays as it came."""
    assert delivered.decided is not None
    kept = delivered.decided.ends
    groups: dict[tuple[object, ...], tuple[End, list[int], FailureKind | None]] = {}
    for row in np.flatnonzero(states != State.COMMITTED).tolist():
        end = kept.get(row) or Stay(delivered.entry(row).counts)
        failure = delivered.failures.get(row)
        kind = failure.kind if failure else None
        groups.setdefault((*_key(end), kind), (end, [], kind))[1].append(row)
    yield from groups.values()


def _key(end: End) -> tuple[object, ...]:
    """Return what makes two ends the same."""
    parts: list[object] = [end.counts, type(end), due_at_of(end), name_of(end)]
    if isinstance(end, Park | Dispose | Block | Halt):
        parts += [end.events, end.place if isinstance(end, Park) else tuple(sorted(end.details.items()))]
    if isinstance(end, Dispose):
        parts += [end.destination, tuple(sorted(end.headers.items())), end.reports]
    return tuple(parts)


def _facts(end: Park | Dispose | Block | Halt) -> dict[str, str]:
    """Return what a decision's events say of it: its details, the properties that the message gets, until when it is blocked."""
    match end:
        case Park():
            return {}
        case Dispose():
            return {**end.headers, **end.details}
        case Block():
            until = end.until.isoformat() if end.until else "restart"
            return {"until": until, "blocks": "queue" if end.whole_queue else "message", **end.details}
        case Halt():
            return dict(end.details)
        case _:
            assert_never(end)


def _halt_record(halt: Halt, lookup_id: int | None, error: str, at: datetime) -> HaltRecord:
    return HaltRecord(
        lookup_id=lookup_id,
        how=halt.how.value,
        error=error,
        at=at.isoformat(),
        abort_count=halt.counts.abort_count,
        move_count=halt.counts.move_count,
        details=dict(halt.details),
    )


def _reason(end: End) -> str | None:
    """Return why a message leaves for another queue, one line; None for one that does not."""
    if not isinstance(end, Dispose) or (end.how is Disposition.DROP and not end.to_dead_letter) or end.how is Disposition.MOVE_TO_POISON:
        return None
    return f"{name_of(end)}: for {end.destination or _SENDERS}"


def _addressed(properties: Mapping[str, str], end: Dispose) -> dict[str, str]:
    """Return the properties of a message that leaves; where it goes is not its sender's to say."""
    kept = {name: value for name, value in properties.items() if name != DESTINATION}
    return kept | ({DESTINATION: end.destination, **end.headers} if end.how is Disposition.SEND else {})


def _properties(cells: Sequence[Mapping[str, str]]) -> pa.Array[Any]:
    column: pa.Array[Any] = pa.array([list(cell.items()) for cell in cells], message_schema().field("properties").type)
    return column


def _constant(value: int, size: int) -> pa.Array[Any]:
    return pa.array(np.full(size, value, np.int32))


def _crash_counts(rows: pa.RecordBatch, crashes: NDArray[np.int32]) -> pa.Array[Any]:
    before = [count or 0 for count in rows.column("crash_count").to_pylist()]
    return pa.array([old + int(new) for old, new in zip(before, crashes, strict=True)], pa.int32())


def _last_errors(rows: pa.RecordBatch, failures: Sequence[Failure | None]) -> pa.Array[Any]:
    """Return the errors column: the failures of this pass, and what stood there where a message had none."""
    before = rows.column("last_error").to_pylist() if None in failures else [None] * len(failures)
    cells = [_error_cell(failure) if failure else former for failure, former in zip(failures, before, strict=True)]
    column: pa.Array[Any] = pa.array(cells, message_schema().field("last_error").type)
    return column


def _error_cell(failure: Failure) -> dict[str, str]:
    return {
        "kind": failure.kind.value,
        "type": failure.type,
        "message": failure.text,
        "fingerprint": fingerprint(failure),
        "trace": failure.trace,
    }


def _summary(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.type}: {failure.text}".splitlines()[0][:200]


def _event(kind: EventType, entry: Entry, at: datetime) -> Event:
    return Event(kind, at, entry.lookup_id, entry.counts.abort_count, entry.counts.move_count)
