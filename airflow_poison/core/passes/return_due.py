"""Return: end the retry cycle of what is due, by moving whole files from ``retry`` to ``main`` as metadata."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import SubQueue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.files import DataFile, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class ReturnResult:
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

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def return_due(table: QueueTable, clock: Clock, *, return_order: str = "due_time") -> ReturnResult:
    """Move everything that is due back to ``main`` (spec WCF-30 to WCF-33).

    :param return_order: ``due_time``, or ``head_timer``: an earlier head that is not due holds back what stands behind it (spec WCF-31, OPEN 11).
    """
    now = clock.now()

    def pick(snapshot: Snapshot) -> Sequence[DataFile]:
        return due_files(snapshot, now, return_order)

    returned = table.move_files(pick, SubQueue.MAIN, now)
    reach("pass.return.before_postponed")
    postponed = return_postponed(table, now)
    depth = table.snapshot().depth(SubQueue.RETRY, now)
    due = depth.next_due_at
    return ReturnResult(table.name, returned.messages, postponed, depth.messages, due.isoformat() if due else None)


def return_postponed(table: QueueTable, now: datetime) -> int:
    """Move what handlers gave back, and whose delay is over, to ``main``; no move is counted."""
    if not any(file.sub_queue == SubQueue.POSTPONED for file in table.snapshot().files):
        return 0
    return table.move_files(
        lambda snapshot: [f for f in snapshot.files if f.sub_queue == SubQueue.POSTPONED and _is_due(f, now)],
        SubQueue.MAIN,
        now,
        count_move=False,
    ).messages


def return_held(table: QueueTable, now: datetime) -> int:
    """Move what was held back for a disabled queue to ``main`` when it is not disabled; no move is counted, nothing is told (spec SB-19).

    Enabling does so in its own commit. This is for a table that somebody has restored to an earlier version.
    """
    if not any(file.sub_queue == SubQueue.TRANSMISSION for file in table.snapshot().files):
        return 0
    return table.move_files(_held_files, SubQueue.MAIN, now, count_move=False).messages


def _held_files(snapshot: Snapshot) -> list[DataFile]:
    if snapshot.control.holds_sends:
        return []
    return [file for file in snapshot.files if file.sub_queue == SubQueue.TRANSMISSION]


def due_files(snapshot: Snapshot, now: datetime, return_order: str) -> list[DataFile]:
    """Return the files of ``retry`` that return now, in the order in which they do."""
    waiting = [file for file in snapshot.files if file.sub_queue == SubQueue.RETRY]
    if return_order == "head_timer":
        waiting.sort(key=lambda file: (-file.max_priority, file.min_lookup_id))
        due: list[DataFile] = []
        for file in waiting:
            if not _is_due(file, now):
                break
            due.append(file)
        return due
    return sorted((file for file in waiting if _is_due(file, now)), key=lambda file: (file.max_due_at, file.min_lookup_id))


def _is_due(file: DataFile, now: datetime) -> bool:
    return file.max_due_at is not None and file.max_due_at <= now
