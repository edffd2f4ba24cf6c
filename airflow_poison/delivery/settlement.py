"""Settlement: from a delivered batch to what the stage keeps of it: rows that remain, events, and what was counted.

The delivering process only journals; here the words of its messages become ends, by the same policy that it asked. Messages with the same counts,
attempts and state share one decision, so the cost follows the number of different ends, not of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.delivery.journal import STATE_MASK, MessageState, attempts_of, crashes_of
from airflow_poison.delivery.rows import BatchEntry, counted_attempts
from airflow_poison.delivery.stage import BlockRecord, StageJob, Tally, halt_record
from airflow_poison.delivery.verdicts import without_values
from airflow_poison.dialogs.acts import Envelope
from airflow_poison.dialogs.as_rows import endpoints_to_table, messages_to_table
from airflow_poison.dialogs.transaction import is_for_partner
from airflow_poison.rules.decisions import HALT_EVENTS, BeforeDelivery, Block, Counts, Deliver, Dispose, Disposition, Halt, Park, Return
from airflow_poison.rules.settings import LARGEST
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind, error_cell, fingerprint
from airflow_poison.values.schema import DESTINATION, LAST_ERROR, OUTBOX, TO_TOPIC, SubQueue, events_to_table, message_schema, of_groups, table_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.returned import ReturnedBy
    from airflow_poison.delivery.session import BatchReport
    from airflow_poison.rules.policy import Opening, Policy, Receiver


@dataclass(frozen=True, slots=True)
class Stay:
    """It remains where it was read: not reached, or the pass ended before its next delivery."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The handler postponed it: it waits uncounted until ``due_at``."""

    counts: Counts
    due_at: datetime


End = Stay | GiveBack | Park | Dispose | Block | Halt


def end_of(receiver: Receiver, entry: BatchEntry, attempts: int, state: MessageState, last: Failure | None, *, now: datetime) -> End:
    """Fold the counted rollbacks of a message that has not committed, then ask what its next receive does.

    :param attempts: counted rollbacks of this pass.
    :param last: what ended the last of them; None when its text is not known.

    The attempts may come from a dead pass under another policy: where this one would have ended earlier, it ends there; where it
    would go on delivering, the message stays for the next pass. Only a message whose word says so halts an endpoint: a rollback that
    no process lived to carry out stopped nothing.
    """
    last, halt = last or Failure(FailureKind.CRASH), None
    for before, _, after in counted_attempts(receiver, entry, attempts, now, last):
        if not isinstance(before, Deliver):
            return before
        if isinstance(after, Halt):
            halt = after
        elif not isinstance(after, Return):
            return after
    if state not in {MessageState.ENDED, MessageState.HALTED}:
        return Stay(entry.counts)
    if halt is not None and state is MessageState.HALTED:
        return replace(halt, counts=entry.counts)
    return _last_decision(receiver, entry, last, now)


def _last_decision(receiver: Receiver, entry: BatchEntry, last: Failure, now: datetime) -> End:
    if last.kind is FailureKind.POSTPONED:
        return GiveBack(entry.counts, now + last.delay)
    if last.kind in {FailureKind.UNREADABLE, FailureKind.UNPROCESSABLE}:
        return receiver.give_up(entry, last, now)
    decision = receiver.before(entry, now)
    return Stay(entry.counts) if isinstance(decision, Deliver) else decision


def name_of(end: End) -> str:
    """Return under which name a pass counts such ends."""
    match end:
        case Dispose():
            return _disposed(end)
        case Stay():
            name = "untouched"
        case GiveBack():
            name = "postponed"
        case Park():
            name = "parked"
        case Halt():
            name = "halted"
        case Block():
            name = "blocked"
        case _:
            assert_never(end)
    return name


def _disposed(end: Dispose) -> str:
    match end.how:
        case Disposition.SEND:
            return end.events[-1].value.lower()  # requeued, dead_lettered, exceptioned
        case Disposition.MOVE_TO_POISON:
            return "poisoned"
        case Disposition.REJECT:
            return "rejected"
        case Disposition.DROP:
            return "dead_lettered" if end.to_dead_letter else "dropped"
        case _:
            assert_never(end.how)


def partition_of(end: End, read_from: SubQueue) -> str | None:
    """Return the partition that keeps the message; None when nothing of it remains."""
    match end:
        case Stay() | Halt() | Block(whole_queue=True):
            place: str | None = read_from.value
        case GiveBack() | Block():  # it comes back to main, where poison must not go: a later pass of its reader finds it where it is
            place = read_from.value if read_from is SubQueue.POISON else SubQueue.POSTPONED.value
        case Park():
            place = SubQueue.RETRY.value
        case Dispose():
            places = {"poisoned": SubQueue.POISON.value, "dropped": None}
            place = places.get(_disposed(end), OUTBOX)
        case _:
            assert_never(end)
    return place


def due_at_of(end: End) -> datetime | None:
    """Return when the message may come back to main; None where it is there, or the time is not known."""
    match end:
        case Park() | GiveBack():
            return end.due_at
        case Block(whole_queue=False):
            return end.until
        case _:
            return None


# Batches after their delivery


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch after its delivery.

    :param batch: columns of ``message_schema()`` and ``move_count``.
    :param report: what became of it; without ``decided`` the policy is asked here, with its words.
    :param at: when their fate is decided, UTC.
    :param returned: the rows that its messages' deliveries returned, as they travel, each with the folder of its journals.
    """

    batch: pa.RecordBatch
    report: BatchReport
    at: datetime
    returned: Sequence[tuple[str, Sequence[ReturnedBy]]] = ()

    def entry(self, row: int) -> BatchEntry:
        """Return the message of a row with the counts that it came with."""
        cell = {name: self.batch.column(name)[row] for name in ("lookup_id", "abort_count", "move_count", "body", "expires_at")}
        body = cell["body"].as_buffer()
        counts = Counts(cell["abort_count"].as_py() or 0, cell["move_count"].as_py() or 0)
        size = body.size if body is not None else 0
        return BatchEntry(row, cell["lookup_id"].as_py(), size, cell["expires_at"].as_py(), counts, batch=self.batch)

    def properties(self, row: int) -> dict[str, str]:
        """Return the properties of a row's message."""
        return dict(self.batch.column("properties")[row].as_py() or ())


class EndingFacts(NamedTuple):
    """What a decision may depend on; messages that share it share their end."""

    abort_count: int
    move_count: int
    attempts: int
    state: int
    kind: FailureKind | None
    delay: float
    expired: bool
    properties: tuple[tuple[str, str], ...] = ()


class Shared(NamedTuple):
    """An end, and the rows that share it.

    :param kind: of the failure that they ended with.
    """

    end: End
    rows: list[int]
    kind: FailureKind | None


def shared_ends(delivered: Delivered, policy: Policy, opening: Opening) -> Iterator[Shared]:
    """Yield each end of messages that are not committed: as the endpoint decided it, else as the policy says of the words."""
    if delivered.report.decided is not None:
        yield from _decided(delivered)
        return
    for fate, rows in _fates(delivered, with_properties=policy.reads_properties).items():
        last = delivered.report.failures.get(rows[0])
        end = end_of(policy.open(opening), delivered.entry(rows[0]), fate.attempts, MessageState(fate.state), last, now=delivered.at)
        yield Shared(end, rows, fate.kind)


def _fates(delivered: Delivered, *, with_properties: bool) -> dict[EndingFacts, list[int]]:
    """Return the rows that are not committed, by what their end depends on."""
    rows, words = _open_rows(delivered), delivered.report.words
    found = list(map(delivered.report.failures.get, rows))
    columns = (
        counts_in(delivered.batch, "abort_count")[rows].tolist(),
        counts_in(delivered.batch, "move_count")[rows].tolist(),
        attempts_of(words[rows]).tolist(),
        (words[rows] & STATE_MASK).tolist(),
        [failure.kind if failure else None for failure in found],
        [failure.delay.total_seconds() if failure else 0.0 for failure in found],
        _expired(delivered, rows),
        (tuple(sorted(delivered.properties(row).items())) for row in rows) if with_properties else repeat(()),
    )
    fates: dict[tuple[Any, ...], list[int]] = {}
    for row, facts in zip(rows, zip(*columns, strict=False), strict=True):
        fates.setdefault(facts, []).append(row)
    return {EndingFacts(*facts): members for facts, members in fates.items()}


def _open_rows(delivered: Delivered) -> list[int]:
    """Return the rows that are not committed."""
    rows: list[int] = np.flatnonzero(delivered.report.words & STATE_MASK != MessageState.COMMITTED).tolist()
    return rows


def counts_in(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Return a column of counts; null is 0."""
    found: NDArray[np.int64] = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _expired(delivered: Delivered, rows: Sequence[int]) -> Iterable[bool]:
    column = delivered.batch.column("expires_at")
    if column.null_count == len(column):
        return [False] * len(rows)
    return [at is not None and at <= delivered.at for at in column.take(pa.array(rows, pa.int64())).to_pylist()]


def _decided(delivered: Delivered) -> Iterator[Shared]:
    """Yield the ends that an endpoint decided, equal ones together; what it did not receive stays as it came."""
    assert delivered.report.decided is not None
    kept = delivered.report.decided.ends
    groups: dict[object, Shared] = {}
    rows = _open_rows(delivered)
    counts = (counts_in(delivered.batch, name)[rows].tolist() for name in ("abort_count", "move_count"))
    for row, abort_count, move_count in zip(rows, *counts, strict=True):
        end = kept.get(row)
        failure = delivered.report.failures.get(row)
        kind = failure.kind if failure else None
        key = (abort_count, move_count, kind) if end is None else (*_key(end), kind)
        if key not in groups:
            groups[key] = Shared(end or Stay(Counts(abort_count, move_count)), [], kind)
        groups[key].rows.append(row)
    yield from groups.values()


def _key(end: End) -> tuple[object, ...]:
    """Return what makes two ends the same."""
    parts: list[object] = [end.counts, type(end), due_at_of(end), name_of(end)]
    if isinstance(end, Park | Dispose | Block | Halt):
        parts += [end.events, end.place if isinstance(end, Park) else tuple(sorted(end.details.items()))]
    if isinstance(end, Dispose):
        parts += [end.destination, tuple(sorted(end.headers.items())), end.reports]
    return tuple(parts)


class Settler:
    """Settles the batches of one task of a receive stage."""

    def __init__(self, job: StageJob) -> None:
        self._job, self._events = job, EventRows(job.policy, job.read_from, job.opening)

    def settle(self, delivered: Delivered) -> tuple[list[pa.Table], Tally]:
        """Return the rows that remain (``table_schema()``; committed messages leave none) with events, and what was counted."""
        if self._job.masking is not None and (delivered.report.failures or delivered.report.searched.unstable):
            delivered = without_values(delivered, self._job.masking, together=self._job.batching is not None)
        states = delivered.report.words & STATE_MASK
        committed, rollbacks = int(np.count_nonzero(states == MessageState.COMMITTED)), int(attempts_of(delivered.report.words).sum())
        tally = Tally(Counter(received=len(states), committed=committed, rollbacks=rollbacks, deliveries=committed + rollbacks))
        tally.counts["crashes"] = int(crashes_of(delivered.report.words).sum())
        rows = self._events.routine(delivered) if self._job.record_all else []
        for end, members, kind in shared_ends(delivered, self._job.policy, self._job.opening):
            tally.counts[name_of(end)] += len(members)
            if kind is FailureKind.POSTPONED:
                tally.counts["deliveries"] += len(members)
            ended = _Ended.of(delivered, members)
            for failure, messages in zip(ended.failures, np.bincount(ended.which).tolist(), strict=True):
                if failure is not None:
                    tally.add_error(fingerprint(failure), f"{failure.type}: {failure.text}"[:200], messages)
            errors = _last_errors(delivered, ended)
            self._note_ending(delivered, members[0], end, tally)
            rows += remaining(delivered, ended, end, self._job.read_from, errors)
            rows += self._events.of_end(delivered, members, end, errors)
            tally.counts["reports"] += len(members) * len(end.reports) if isinstance(end, Dispose) else 0
        if delivered.report.decided is not None and delivered.report.decided.halt is not None and tally.halt is None:
            tally.halt = halt_record(delivered.report.decided.halt, None, "", delivered.at)
        rows += _of_conversations(delivered, tally)
        rows += self._events.unstable(delivered)
        return rows, tally

    @staticmethod
    def _note_ending(delivered: Delivered, row: int, end: End, tally: Tally) -> None:
        """Note what ends receiving for the whole endpoint."""
        if isinstance(end, Halt):
            lookup_id = delivered.batch.column("lookup_id")[row].as_py()
            envelope = None if delivered.report.conversed is None else Envelope.of(delivered.properties(row))
            tally.halt = halt_record(end, lookup_id, summary(delivered.report.failures.get(row)) or "", delivered.at, envelope)
        elif isinstance(end, Block):
            tally.obstacle = tally.obstacle or end.obstacle
            if end.whole_queue:
                until = end.until.isoformat() if end.until else None
                tally.block = BlockRecord(lookup_id=delivered.batch.column("lookup_id")[row].as_py(), until=until)


def _of_conversations(delivered: Delivered, tally: Tally) -> list[pa.Table]:
    """Return the rows of changed conversations, and count them; they are no messages of the queue."""
    conversed = delivered.report.conversed
    if conversed is None:
        return []
    tally.counts.update(
        sent=sum(map(is_for_partner, conversed.sent)),
        transmissions=len(conversed.sent),
        conversations=len(conversed.endpoints),
        discarded=conversed.discarded,
        deliveries=conversed.savepoints,
    )
    rows = [endpoints_to_table(conversed.endpoints, delivered.at)] if conversed.endpoints else []
    return rows + ([messages_to_table(conversed.sent, delivered.at)] if conversed.sent else [])


# Rows that remain


_SENDERS = "the sender's dead-letter queue"


def remaining(delivered: Delivered, ended: _Ended, end: End, read_from: SubQueue, errors: pa.Array[Any]) -> list[pa.Table]:
    """Return the members' rows where the end keeps them, with their new counts and error, and the reports of a disposition.

    :param read_from: the sub-queue that they were read from; what is untouched stays there.
    :param errors: their column ``last_error``.
    """
    partition = partition_of(end, read_from)
    if partition is None and not (isinstance(end, Dispose) and end.reports):
        return []
    members, size = ended.rows, len(ended.rows)
    rows = delivered.batch.take(pa.array(members, pa.int64()))
    changed: dict[str, pa.Array[Any]] = {
        "abort_count": _constant(end.counts.abort_count, size),
        "move_count": _constant(end.counts.move_count, size),
        "crash_count": pa.array(np.minimum(counts_in(rows, "crash_count") + crashes_of(delivered.report.words)[members], LARGEST), pa.int32()),
        "due_at": pa.array([due_at_of(end)] * size, message_schema().field("due_at").type),
        "last_error": errors,
        "reason": pa.array([_reason(end) or summary(failure) for failure in ended.failures], pa.string()).take(ended.which),
        "sub_queue": pa.array([partition] * size, pa.string()),
    }
    if isinstance(end, Dispose) and partition == OUTBOX:
        changed["properties"] = _properties([_addressed(delivered.properties(row), end) for row in members])
    kept = _changed(rows, changed)
    return [*([kept] if partition is not None else []), *_reports(kept, end)]


def _changed(rows: pa.RecordBatch | pa.Table, changed: Mapping[str, pa.Array[Any]]) -> pa.Table:
    columns = [changed[name] if name in changed else rows.column(name) for name in table_schema().names]
    return pa.table(columns, schema=table_schema())


def _reports(disposed: pa.Table, end: End) -> Iterator[pa.Table]:
    """Yield the report messages of a disposition: copies of the messages with as much of the body as was asked for (spec WMQ-24)."""
    for report in end.reports if isinstance(end, Dispose) else ():
        bodies = [(body or b"")[: report.data] for body in disposed.column("body").to_pylist()]
        given = {DESTINATION: _a_queue(report.to), "JMS_IBM_Feedback": str(report.feedback)}
        changed: dict[str, pa.Array[Any]] = {
            "body": pa.array(bodies, pa.binary()),
            "properties": _properties([given] * disposed.num_rows),
            "sub_queue": pa.array([OUTBOX] * disposed.num_rows, pa.string()),
        }
        yield _changed(disposed, changed)


def summary(failure: Failure | None) -> str | None:
    """Return a failure in one line; None for none."""
    return None if failure is None else f"{failure.type}: {failure.text}".splitlines()[0][:200]


def _reason(end: End) -> str | None:
    """Return why a message leaves for another queue, one line; None for one that does not."""
    if not isinstance(end, Dispose) or (end.how is Disposition.DROP and not end.to_dead_letter) or end.how is Disposition.MOVE_TO_POISON:
        return None
    return f"{name_of(end)}: for {end.destination or _SENDERS}"


def _addressed(properties: Mapping[str, str], end: Dispose) -> dict[str, str]:
    """Return the properties of a message that leaves; where it goes is not its sender's to say."""
    kept = {name: value for name, value in properties.items() if name != DESTINATION}
    return kept | ({DESTINATION: _a_queue(end.destination), **end.headers} if end.how is Disposition.SEND else {})


def _a_queue(destination: str) -> str:
    """Return where a message goes, none for a topic: a sender's reply-to queue must not send there."""
    return "" if destination.startswith(TO_TOPIC) else destination


def _properties(cells: Sequence[Mapping[str, str]]) -> pa.Array[Any]:
    column: pa.Array[Any] = pa.array([list(cell.items()) for cell in cells], message_schema().field("properties").type)
    return column


def _constant(value: int, size: int) -> pa.Array[Any]:
    return pa.array(np.full(size, min(value, LARGEST), np.int32))


class _Ended(NamedTuple):
    """Rows that share an end.

    :param failures: the different ones that they ended with.
    :param which: of these, for each row.
    """

    rows: Sequence[int]
    failures: list[Failure | None]
    which: list[int]

    @classmethod
    def of(cls, delivered: Delivered, rows: Sequence[int]) -> _Ended:
        places: dict[Failure | None, int] = {}
        which = [places.setdefault(failure, len(places)) for failure in map(delivered.report.failures.get, rows)]
        return cls(rows, [*places], which)


def _last_errors(delivered: Delivered, ended: _Ended) -> pa.Array[Any]:
    """Return the errors column of rows: the failures of this pass, and what stood there where a message had none."""
    kind = message_schema().field("last_error").type
    cells: pa.Array[Any] = pa.array([None if failure is None else error_cell(failure) for failure in ended.failures], kind).take(ended.which)
    if None in ended.failures:
        had_one = pa.array([failure is not None for failure in ended.failures]).take(ended.which)
        before: pa.Array[Any] = delivered.batch.column("last_error").take(pa.array(ended.rows, pa.int64())).cast(kind)
        cells = pc.if_else(had_one, cells, before)
    return cells


# Events


class EventRows:
    """Makes rows of the ``_event`` partition, numbered in the order in which they are asked for."""

    def __init__(self, policy: Policy, read_from: SubQueue, opening: Opening) -> None:
        self._policy, self._read_from, self._opening = policy, read_from, opening
        self._written = 0

    def of_end(self, delivered: Delivered, members: Sequence[int], end: End, errors: pa.Array[Any]) -> list[pa.Table]:
        """Return the decision's events, one row for each message; the endpoint's own events come with the final commit.

        :param errors: the column ``last_error`` of the messages.
        """
        if not isinstance(end, Park | Dispose | Block | Halt):
            return []
        details = _facts(end) | {"place": self._place(end)}
        ids = delivered.batch.column("lookup_id").take(pa.array(members, pa.int64())).cast(pa.int64())
        groups = of_groups(pc.struct_field(errors, "fingerprint"))
        tables = []
        for kind in end.events:
            if kind in HALT_EVENTS.values():
                continue
            one = events_to_table([Event(kind, delivered.at, None, end.counts.abort_count, end.counts.move_count, details)])
            many = one.take(pa.array([0] * len(members), pa.int64()))
            numbers = pa.array(np.arange(self._written, self._written + len(members)), pa.int32())
            self._written += len(members)
            for name, column in (("lookup_id", ids), ("priority", numbers), (LAST_ERROR, groups)):
                many = many.set_column(many.schema.get_field_index(name), table_schema().field(name), column)
            tables.append(many)
        return tables

    def _place(self, end: Park | Dispose | Block | Halt) -> str:
        if isinstance(end, Park):
            return end.place
        if isinstance(end, Dispose) and end.destination:
            return end.destination
        return partition_of(end, self._read_from) or ""

    def unstable(self, delivered: Delivered) -> list[pa.Table]:
        """Return an event for each batch that failed, and whose parts did not."""
        events = [Event(EventType.UNSTABLE_BATCH, delivered.at, details=details) for details in delivered.report.searched.unstable]
        self._written += len(events)
        return [events_to_table(events, self._written - len(events))] if events else []

    def routine(self, delivered: Delivered) -> list[pa.Table]:
        """Return the routine events: as the endpoint recorded them, or as the words say."""
        if delivered.report.decided is None:
            return [self._from_words(delivered)]
        events = delivered.report.decided.events
        self._written += len(events)
        return [events_to_table(events, self._written - len(events))]

    def _from_words(self, delivered: Delivered) -> pa.Table:
        """Return DELIVERED, COMMITTED and ROLLED_BACK of each message, in the order in which they happened to it."""
        states, attempts = delivered.report.words & STATE_MASK, attempts_of(delivered.report.words)
        events = [event for row in range(len(states)) for event in self._routine_of(delivered, row, MessageState(states[row]), int(attempts[row]))]
        self._written += len(events)
        return events_to_table(events, self._written - len(events))

    def _routine_of(self, delivered: Delivered, row: int, state: MessageState, attempts: int) -> Iterator[Event]:
        """Yield the routine events of one message; what its handler gave back was delivered, too."""
        entry, receiver, last = delivered.entry(row), self._policy.open(self._opening), delivered.report.failures.get(row)
        given_back = last is not None and last.kind is FailureKind.POSTPONED
        found: list[tuple[EventType, Counts]] = []
        for before, seen, after in counted_attempts(receiver, entry, attempts, delivered.at, None if given_back else last):
            found += [*_delivery(before, seen), (EventType.ROLLED_BACK, after.counts)]
        if state is MessageState.COMMITTED or given_back:
            decision = receiver.before(entry, delivered.at)
            found += _delivery(decision, decision.counts)
            if state is MessageState.COMMITTED and not (isinstance(decision, Deliver) and decision.at_most_once):
                found.append((EventType.COMMITTED, decision.counts))
        for kind, counts in found:
            yield Event(kind, delivered.at, entry.lookup_id, counts.abort_count, counts.move_count)


def _delivery(before: BeforeDelivery, seen: Counts) -> Iterator[tuple[EventType, Counts]]:
    """Yield what happens before the handler has ended; one delivered at most once is committed first."""
    if isinstance(before, Deliver) and before.at_most_once:
        yield EventType.COMMITTED, seen
    yield EventType.DELIVERED, seen


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
