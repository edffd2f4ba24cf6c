"""Ends: how a message leaves a pass. Made from its journal word by the same policy that the delivering process asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from airflow_poison.core.delivery.sessions.words import State
from airflow_poison.core.events import EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Halted, Park, Return
from airflow_poison.core.schema import OUTBOX, SubQueue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.policies.policy import Receiver


HALT_EVENTS: Mapping[Halted, EventType] = {
    Halted.DISABLED: EventType.QUEUE_DISABLED,
    Halted.STOPPED: EventType.STOPPED,
    Halted.FAULTED: EventType.FAULTED,
}
"""The event of an endpoint that ends receiving."""


@dataclass(slots=True)
class Entry:
    """A message as the rules see it."""

    lookup_id: int
    counts: Counts
    size: int
    expires_at: datetime | None
    group: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stay:
    """It remains where it was read: not reached, or the pass ended before its next delivery."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The handler postponed it: it waits uncounted until ``due_at``."""

    counts: Counts
    due_at: datetime


_EARLIER = Failure(FailureKind.EXCEPTION)
"""A rollback that the message has outlived: only that it happened is known."""

End = Stay | GiveBack | Park | Dispose | Block | Halt


@dataclass(frozen=True, slots=True)
class Journaled:
    """What the journal says of a message that has not committed.

    :param attempts: counted rollbacks of this pass.
    :param failure: the last one, None when its text is not known.
    """

    attempts: int
    state: State
    failure: Failure | None


def end_of(receiver: Receiver, entry: Entry, journaled: Journaled, now: datetime) -> End:
    """Fold the counted rollbacks of a message that has not committed, then ask what its next receive does.

    The attempts may be those of a dead pass under another policy: where this one would have ended earlier, it ends there; where it
    would go on delivering, the message stays for the next pass. Only a message whose word says so halts an endpoint: a rollback that
    nobody lived to answer for stopped nothing.
    """
    last, halt = journaled.failure or Failure(FailureKind.CRASH), None
    for attempt in range(journaled.attempts):
        delivery = receiver.before(entry, now)
        if not isinstance(delivery, Deliver):
            return delivery
        entry.counts = delivery.counts
        after = receiver.after_rollback(entry, last if attempt == journaled.attempts - 1 else _EARLIER, now)
        entry.counts = after.counts
        if isinstance(after, Halt):
            halt = after
        elif not isinstance(after, Return):
            return after
    if journaled.state not in {State.ENDED, State.HALTED}:
        return Stay(entry.counts)
    if halt is not None and journaled.state is State.HALTED:
        return replace(halt, counts=entry.counts)
    return _last_decision(receiver, entry, last, now)


def _last_decision(receiver: Receiver, entry: Entry, last: Failure, now: datetime) -> End:
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
    """Return when the message may come back to main; None where it is there, or nobody knows when."""
    match end:
        case Park() | GiveBack():
            return end.due_at
        case Block(whole_queue=False):
            return end.until
        case _:
            return None
