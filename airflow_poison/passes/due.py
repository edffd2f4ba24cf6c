"""Due: what falls due by time alone: messages of ``retry`` and ``postponed``, and the timers and lifetimes of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_poison.rules.decisions import ReturnOrder, WaitingInRetry, returning
from airflow_poison.rules.settings import choice
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReturnResult(Plain):
    """What a return did.

    :param returned: messages moved from ``retry`` to ``main``; each has one more move (spec WCF-14).
    :param postponed: messages that a handler had given back and whose time has come; nothing counted.
    :param waiting: messages that still wait in ``retry``.
    :param next_due_at: when the next of them is due, ISO 8601 in UTC, or None.
    """

    queue: str
    returned: int
    postponed: int
    waiting: int
    next_due_at: str | None


def return_due(table: QueueTable, clock: Clock, *, return_order: str = "due_time") -> ReturnResult:
    """Move everything that is due back to ``main`` (spec WCF-30 to WCF-33).

    :param return_order: ``due_time``, or ``head_timer``: an earlier head that is not due holds back what stands behind it (spec WCF-31, OPEN 11).
    """
    now = clock.now()
    returned = table.move_files(lambda snapshot: due_files(snapshot, now, return_order), SubQueue.MAIN, now)
    reach("pass.return.before_postponed")
    postponed = return_postponed(table, now)
    depth = table.snapshot().depth(SubQueue.RETRY, now)
    due = depth.next_due_at
    return ReturnResult(table.name, returned.messages, postponed, depth.messages, due.isoformat() if due else None)


def return_postponed(table: QueueTable, now: datetime) -> int:
    """Move what handlers gave back, and whose delay is over, to ``main``; no move is counted."""
    return table.move_files(lambda snapshot: due_postponed(snapshot, now), SubQueue.MAIN, now, count_move=False).messages


def return_held(table: QueueTable, now: datetime) -> int:
    """Move what was held back for a disabled queue to ``main`` when it is not disabled; no move is counted, no event is recorded (spec SB-19).

    Enabling does so in its own commit. This is for a table that was restored to an earlier version.
    """

    def held(snapshot: Snapshot) -> list[DataFile]:
        return [] if snapshot.control.holds_sends else [file for file in snapshot.files if file.sub_queue == SubQueue.TRANSMISSION]

    return table.move_files(held, SubQueue.MAIN, now, count_move=False).messages


def due_files(snapshot: Snapshot, now: datetime, return_order: str) -> list[DataFile]:
    """Return the files of ``retry`` that return now, in the order in which they do; each falls due as a whole, with the last of its messages."""
    files = {file.min_lookup_id: file for file in snapshot.files if file.sub_queue == SubQueue.RETRY}
    waiting = (WaitingInRetry(number, file.max_due_at or _NEVER, file.max_priority) for number, file in files.items())
    return [files[number] for number in returning(waiting, now, choice("return_order", return_order, ReturnOrder)).lookup_ids]


def due_postponed(snapshot: Snapshot, now: datetime) -> list[DataFile]:
    """Return the files of ``postponed`` whose delay is over."""
    there = (file for file in snapshot.files if file.sub_queue == SubQueue.POSTPONED)
    return [file for file in there if file.max_due_at is not None and file.max_due_at <= now]


def ended_times(snapshot: Snapshot, now: datetime) -> list[DataFile]:
    """Return the files in which a timer or a lifetime has ended: the next pass puts its message into the queue; none while that is disabled.

    A file may be named for a time that has been dealt with since; the pass that finds so joins it with what came later.
    """
    if snapshot.control.holds_sends:
        return []
    return [file for file in snapshot.conversations if file.min_due_at is not None and file.min_due_at <= now]


def next_time(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when the next one ends that is not due yet; None: never, as far as the statistics say."""
    return min((file.min_due_at for file in snapshot.conversations if file.min_due_at is not None and file.min_due_at > now), default=None)
