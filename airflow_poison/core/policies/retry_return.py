"""Which messages leave the retry sub-queue now, and with which counts (spec WCF-28, WCF-30 to WCF-33)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.core.policies.decisions import moved

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_poison.core.policies.decisions import Counts


class ReturnOrder(StrEnum):
    """How the retry sub-queue is watched (spec section 11, item 11)."""

    DUE_TIME = "due_time"  # everything that is due moves, in the order (due time, lookup id)
    HEAD_TIMER = "head_timer"  # one timer for the message at the head: an early head delays those behind it


@dataclass(frozen=True, slots=True)
class Waiting:
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


def returning(waiting: Iterable[Waiting], now: datetime, order: ReturnOrder, peeked: int | None = None) -> Returning:
    """Return which messages leave the retry sub-queue now: none before it is due; due is now >= due_at (spec WCF-30)."""
    if order is ReturnOrder.HEAD_TIMER:
        return _by_head_timer(list(waiting), now, peeked)
    in_order = sorted(waiting, key=lambda message: (message.due_at, message.lookup_id))
    due = tuple(message.lookup_id for message in in_order if message.due_at <= now)
    left = in_order[len(due) :]
    return Returning(due, next_at=left[0].due_at if left else None)


def returned(counts: Counts) -> Counts:
    """Return the counts of a message that is back in main from retry (spec WCF-14)."""
    return moved(counts)


def put_back(counts: Counts) -> Counts:
    """Return the counts of a message put back by hand from poison: one more move, so one more cycle (spec WCF-28)."""
    return moved(counts)


def _by_head_timer(waiting: list[Waiting], now: datetime, peeked: int | None) -> Returning:
    """Move the peeked message when it is due, then look at the next head (spec WCF-31)."""
    queue = sorted(waiting, key=lambda message: (message.lookup_id != peeked, -message.priority, message.lookup_id))
    due: list[int] = []
    for head in queue:
        if head.due_at > now:
            return Returning(tuple(due), head.lookup_id, head.due_at)
        due.append(head.lookup_id)
    return Returning(tuple(due))
