"""What can happen to a message or a queue (spec 0.3), as values.

Who acts, and why: what people do to a queue is recorded with both, whichever verb it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum


class EventType(StrEnum):
    """The event names of the specification (spec 0.3)."""

    DELIVERED = "DELIVERED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    QUEUE_DISABLED = "QUEUE_DISABLED"
    QUEUE_ENABLED = "QUEUE_ENABLED"
    POISON_EXCEPTION = "POISON_EXCEPTION"
    MOVED_RETRY = "MOVED_RETRY"
    RETURNED = "RETURNED"
    MOVED_POISON = "MOVED_POISON"
    DROPPED = "DROPPED"
    REJECTED = "REJECTED"
    FAULTED = "FAULTED"
    BLOCKED = "BLOCKED"
    EXCEPTIONED = "EXCEPTIONED"
    REQUEUED = "REQUEUED"
    DEAD_LETTERED = "DEAD_LETTERED"
    STOPPED = "STOPPED"
    STARTED = "STARTED"
    LOST = "LOST"
    """Not of the specification: a damaged file's messages, whose loss people have accepted."""
    POLICY_CHANGED = "POLICY_CHANGED"
    """Not of the specification: other settings of the queue's policy were recorded, by a run that declares them or by people."""
    UNSTABLE_BATCH = "UNSTABLE_BATCH"
    """Not of the specification: a batch failed, and all of its parts succeeded; no message was charged. ``details`` say how many messages, which, and
    with what error."""
    OUTAGE_BEGAN = "OUTAGE_BEGAN"
    """Not of the specification: a pass has found that what its handler needs is away; what failed so was given back uncounted."""
    OUTAGE_OVER = "OUTAGE_OVER"
    """Not of the specification: a probe has succeeded, or a pass has received without looking for outages."""
    PLANNED = "PLANNED"
    """Not of the specification: people have decided what is to become of many messages. ``details`` say the plan, the verb and how many."""
    PLAN_CHANGED = "PLAN_CHANGED"
    """Not of the specification: a plan was paused, resumed, stopped, cancelled, finished or undone. ``details`` say the plan and its state."""
    EDITED = "EDITED"
    """Not of the specification: people have changed a message's body or properties."""
    POSITION_RESET = "POSITION_RESET"
    """Not of the specification: people have had a source begin anew. ``details`` say the source and how far it had been taken."""
    TOLD = "TOLD"
    """Not of the specification: a rule of the queue alerts people about messages that wait in poison. ``details`` say the rule."""


OWN = frozenset(
    {
        EventType.LOST,
        EventType.POLICY_CHANGED,
        EventType.UNSTABLE_BATCH,
        EventType.OUTAGE_BEGAN,
        EventType.OUTAGE_OVER,
        EventType.PLANNED,
        EventType.PLAN_CHANGED,
        EventType.POSITION_RESET,
        EventType.TOLD,
    }
)
"""Events that the specification does not have: what became of the queue itself."""

ROUTINE = frozenset({EventType.DELIVERED, EventType.COMMITTED, EventType.ROLLED_BACK})
"""Events of every delivery: counted in a pass's result; kept one by one only when a pass is set to record all."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    :param type: which event of spec 0.3.
    :param at: when, in UTC.
    :param lookup_id: the message; None for events of a whole queue or endpoint.
    :param abort_count: the message's abort count after the event.
    :param move_count: the message's move count after the event.
    :param details: further facts as text, for example ``place`` (sub-queue or queue the message went to) or ``error``.
    :param error: the error group of the failure that has caused it; empty: none has. Written, and read by columns alone (``desk.queries``).
    """

    type: EventType
    at: datetime
    lookup_id: int | None = None
    abort_count: int = 0
    move_count: int = 0
    details: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


WHO, WHY = "who", "why"
"""The details of an event that say who has caused it, and why."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of a change of a queue.

    :param who: ``airflow:ann``, ``shell:ann@host`` or ``dag:nightly/manual__1/redrive``.
    :param why: the reason they gave; empty: none.
    """

    who: str
    why: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """What events say of it."""
        return {WHO: self.who} | ({WHY: self.why} if self.why else {})


_acting: ContextVar[Actor | None] = ContextVar("airflow_poison_actor", default=None)


@contextmanager
def acting(who: str, why: str = "") -> Iterator[None]:
    """Record the events of this block with who has caused them, and why: set by each way in through which people act."""
    token = _acting.set(Actor(who, why))
    try:
        yield
    finally:
        _acting.reset(token)


def is_anybody_acting() -> bool:
    """Whether an actor is set."""
    return _acting.get() is not None


def signed_by_actor(events: Sequence[Event]) -> Sequence[Event]:
    """Return events with their actor; unchanged without one."""
    actor = _acting.get()
    return events if actor is None else [replace(event, details={**actor.facts, **event.details}) for event in events]
