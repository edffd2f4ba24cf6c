"""What a policy can decide about a message: a small closed set of values, matched exhaustively by whoever carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.core.events import EventType


@dataclass(frozen=True, slots=True)
class Counts:
    """The durable counts of a message (spec WCF-9).

    :param abort_count: rollbacks since its last move.
    :param move_count: moves between the application queue and its sub-queues.
    """

    abort_count: int = 0
    move_count: int = 0


class Disposition(StrEnum):
    """How a message leaves its queue for good (spec WCF-21 to WCF-24)."""

    DROP = "drop"  # deleted
    REJECT = "reject"  # to the sender's dead-letter queue
    MOVE_TO_POISON = "move_to_poison"  # to the poison sub-queue


class Halted(StrEnum):
    """How an endpoint ends receiving; the values are those of the queue's state."""

    DISABLED = "disabled"
    STOPPED = "stopped"
    FAULTED = "faulted"


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
class Dispose:
    """The message leaves its queue.

    :param to_dead_letter: it goes to the sender's dead-letter queue (a reject; a drop after its time to live, spec WCF-22).
    """

    how: Disposition
    counts: Counts
    events: tuple[EventType, ...]
    to_dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class Halt:
    """The endpoint ends receiving; the message stays where it is."""

    how: Halted
    counts: Counts
    events: tuple[EventType, ...]


BeforeDelivery = Deliver | Park | Dispose | Halt
AfterRollback = Return | Dispose | Halt
