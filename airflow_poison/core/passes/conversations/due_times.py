"""Due times: when a timer or a lifetime of a queue's conversations ends next, as the statistics of its files say (spec SB-56)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.files import DataFile, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable

MANY = 32
"""Files of endpoints; each pass adds one, and whoever looks a conversation up reads all of them."""


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


def refresh(table: QueueTable, clock: Clock) -> None:
    """Join files that name times in the past, so that their statistics tell of those to come; and files that have become many."""
    snapshot = table.snapshot()
    if ended_times(snapshot, clock.now()) or len(snapshot.conversations) >= MANY:
        table.merge_conversations(lambda endpoints: endpoints, min_files=2)
