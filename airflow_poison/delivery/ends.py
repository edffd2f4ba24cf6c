"""Ends: how messages leave a pass. Made from their journal words by the same policy that the delivering process asked.

The delivering process only journals; here its words become ends. Messages with the same counts, attempts and state share one decision, so
the cost follows the number of different ends, not of messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import numpy as np

from airflow_poison.delivery.sessions.journal import MessageState, attempts_of, states_of
from airflow_poison.delivery.sessions.rows import BatchEntry, counted_attempts
from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Park, Return
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import OUTBOX, SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.sessions.dialogs import Conversed
    from airflow_poison.delivery.sessions.session import Decided
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
    :param words: int32, one per row, as the server session reported them.
    :param failures: the last failure by row, of messages that are not committed.
    :param at: when their fate is decided, UTC.
    :param decided: what an endpoint decided; None: the policy is asked here, with the words.
    :param conversed: what became of conversations; None: the queue has none.
    :param returned: the rows that its messages' deliveries returned, as they travel, by lookup id, each with the folder of its journals.
    :param unstable: reports of batches that failed although their parts did not.
    """

    batch: pa.RecordBatch
    words: NDArray[np.int32]
    failures: Mapping[int, Failure]
    at: datetime
    decided: Decided | None = None
    conversed: Conversed | None = None
    returned: Sequence[tuple[str, Mapping[int, bytes]]] = ()
    unstable: Sequence[Mapping[str, str]] = ()

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
    if delivered.decided is not None:
        yield from _decided(delivered)
        return
    for fate, rows in _fates(delivered, with_properties=policy.reads_properties).items():
        last = delivered.failures.get(rows[0])
        end = end_of(policy.open(opening), delivered.entry(rows[0]), fate.attempts, MessageState(fate.state), last, now=delivered.at)
        yield Shared(end, rows, fate.kind)


def _fates(delivered: Delivered, *, with_properties: bool) -> dict[EndingFacts, list[int]]:
    """Return the rows that are not committed, by what their end depends on."""
    states, attempts = states_of(delivered.words), attempts_of(delivered.words)
    fates: dict[EndingFacts, list[int]] = {}
    for row, abort_count, move_count, expires_at in _open_rows(delivered, "abort_count", "move_count", "expires_at"):
        failure = delivered.failures.get(row)
        fate = EndingFacts(
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


def _open_rows(delivered: Delivered, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield each row that is not committed, with its cells of these columns."""
    import pyarrow as pa

    rows = np.flatnonzero(states_of(delivered.words) != MessageState.COMMITTED)
    if len(rows):
        columns = (delivered.batch.column(name).take(pa.array(rows, pa.int64())).to_pylist() for name in names)
        yield from zip(rows.tolist(), *columns, strict=True)


def _decided(delivered: Delivered) -> Iterator[Shared]:
    """Yield the ends that an endpoint decided, equal ones together; what it did not receive stays as it came."""
    assert delivered.decided is not None
    kept = delivered.decided.ends
    groups: dict[object, Shared] = {}
    for row, abort_count, move_count in _open_rows(delivered, "abort_count", "move_count"):
        end = kept.get(row)
        failure = delivered.failures.get(row)
        kind = failure.kind if failure else None
        key = (abort_count, move_count, kind) if end is None else (*_key(end), kind)
        if key not in groups:
            groups[key] = Shared(end or Stay(Counts(abort_count or 0, move_count or 0)), [], kind)
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
