"""Decisions about a message: what a policy may decide, a small closed set, matched where they are carried out; and which messages leave retry now.

Alike for all is what an abort and a move do to a message's counts (spec WCF-14), and when messages leave the retry sub-queue (spec WCF-28,
WCF-30 to WCF-33).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from airflow_poison.rules.settings import LARGEST
from airflow_poison.values.events import EventType


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts that are kept with a message (spec WCF-9).

    :param abort_count: rollbacks since its last move; the redelivery or backout count of the WebSphere systems (spec DMP-4, WMQ-9).
    :param move_count: moves between the application queue and its sub-queues.
    """

    abort_count: int = 0
    move_count: int = 0


class Disposition(StrEnum):
    """How a message leaves its place for good (spec WCF-21 to WCF-24, DMP-7, WMQ-10)."""

    DROP = "drop"  # deleted
    REJECT = "reject"  # to the sender's dead-letter queue
    MOVE_TO_POISON = "move_to_poison"  # to the poison sub-queue
    SEND = "send"  # to another queue: an exception destination, a backout queue, a dead-letter queue


class Halted(StrEnum):
    """How an endpoint ends receiving; with the values of the queue's state."""

    DISABLED = "disabled"
    STOPPED = "stopped"
    FAULTED = "faulted"


HALT_EVENTS: Mapping[Halted, EventType] = {
    Halted.DISABLED: EventType.QUEUE_DISABLED,
    Halted.STOPPED: EventType.STOPPED,
    Halted.FAULTED: EventType.FAULTED,
}
"""The event of an endpoint that ends receiving."""
HALTS: Mapping[EventType, Halted] = {event: how for how, event in HALT_EVENTS.items()}
"""How an endpoint in an event ended receiving."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the message to the handler.

    :param counts: what the delivery sees.
    :param at_most_once: the message is consumed before the handler is called; a failure loses it (spec WCF-12, WCF-37).
    """

    counts: Counts
    at_most_once: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """The message is back at its place; the next receive decides what follows."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class Park:
    """The message waits in the retry sub-queue.

    :param due_at: when it may return to main, UTC.
    :param place: the sub-queue's name as people see it, for example ``retry``.
    """

    counts: Counts
    due_at: datetime
    place: str
    events: tuple[EventType, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A report message that a disposition sends besides (spec WMQ-24).

    :param to: the queue that gets it.
    :param feedback: the reason code.
    :param data: how many bytes of the body it carries; None: all of them.
    """

    to: str
    feedback: int
    data: int | None = 0


@dataclass(frozen=True, slots=True)
class Dispose:
    """The message leaves its queue.

    :param to_dead_letter: it goes to the sender's dead-letter queue (a reject; a drop after its time to live, spec WCF-22).
    :param destination: the queue that it is sent to (``SEND``); empty otherwise.
    :param headers: properties that it gets on its way (spec DMP-18, WMQ-24).
    :param details: facts for the events, for example a warning.
    :param reports: report messages that are sent besides.
    """

    how: Disposition
    counts: Counts
    events: tuple[EventType, ...]
    to_dead_letter: bool = False
    destination: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """The message stays at its place and is not delivered for a while (spec DMP-7, DMP-14).

    :param until: when delivery goes on, UTC; None: not before the broker restarts or the message is removed (spec DMP-10).
    :param whole_queue: nothing of the queue is delivered meanwhile; False: only this message waits.
    """

    counts: Counts
    until: datetime | None
    events: tuple[EventType, ...]
    whole_queue: bool = True
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def obstacle(self) -> str:
        """Why the message stays, one line: the queue that it cannot be sent to, or the setting that keeps it."""
        return self.details.get("obstacle") or self.details.get("warning", "")


@dataclass(frozen=True, slots=True)
class Halt:
    """The endpoint ends receiving; the message stays where it is.

    :param details: facts for the events, for example the event document (spec SB-17).
    """

    how: Halted
    counts: Counts
    events: tuple[EventType, ...]
    details: Mapping[str, str] = field(default_factory=dict)


BeforeDelivery = Deliver | Park | Dispose | Block | Halt
AfterRollback = Return | Dispose | Block | Halt
GivenUp = Dispose | Block | Halt


def aborted(counts: Counts) -> Counts:
    """Return the counts after an abort of a transaction that received the message; they stop at 2147483647."""
    return Counts(min(counts.abort_count + 1, LARGEST), counts.move_count)


def moved(counts: Counts) -> Counts:
    """Return the counts after a move to or from a sub-queue (spec WCF-14); put back by hand from poison it is one more cycle (spec WCF-28)."""
    return Counts(0, min(counts.move_count + 1, LARGEST))


class ReturnOrder(StrEnum):
    """How the retry sub-queue is watched (spec section 11, item 11)."""

    DUE_TIME = "due_time"  # everything that is due moves, in the order (due time, lookup id)
    HEAD_TIMER = "head_timer"  # one timer for the message at the head: an early head delays those behind it


@dataclass(frozen=True, slots=True)
class WaitingInRetry:
    """A message in the retry sub-queue.

    :param due_at: when it may leave, UTC.
    """

    lookup_id: int
    due_at: datetime
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Returning:
    """What a look at the retry sub-queue finds.

    :param lookup_ids: what returns now, in this order.
    :param peeked: the message that the head timer waits for; hand it to the next look. Lost when the listener closes.
    :param next_at: when to look again; None when nothing waits.
    """

    lookup_ids: tuple[int, ...]
    peeked: int | None = None
    next_at: datetime | None = None


def returning(waiting: Iterable[WaitingInRetry], now: datetime, order: ReturnOrder, peeked: int | None = None) -> Returning:
    """Return which messages leave the retry sub-queue now: none before it is due; due is now >= due_at (spec WCF-30)."""
    if order is ReturnOrder.HEAD_TIMER:
        return _by_head_timer(list(waiting), now, peeked)
    in_order = sorted(waiting, key=lambda message: (message.due_at, message.lookup_id))
    due = tuple(message.lookup_id for message in in_order if message.due_at <= now)
    left = in_order[len(due) :]
    return Returning(due, next_at=left[0].due_at if left else None)


def _by_head_timer(waiting: list[WaitingInRetry], now: datetime, peeked: int | None) -> Returning:
    """Move the peeked message when it is due, then look at the next head (spec WCF-31)."""
    queue = sorted(waiting, key=lambda message: (message.lookup_id != peeked, -message.priority, message.lookup_id))
    due: list[int] = []
    for head in queue:
        if head.due_at > now:
            return Returning(tuple(due), head.lookup_id, head.due_at)
        due.append(head.lookup_id)
    return Returning(tuple(due))
