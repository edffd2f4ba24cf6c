"""Snapshot: one version of a queue, and what its files' statistics say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_poison.core.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import Claim, DataFile


@dataclass(frozen=True, slots=True)
class SubQueueDepth:
    """What waits in one sub-queue: counts and ages from statistics alone, claimed messages included."""

    messages: int = 0
    claimed: int = 0
    oldest_enqueued_at: datetime | None = None
    next_due_at: datetime | None = None
    due: int = 0
    by_move_count: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a queue.

    :param files: of every sub-queue, in queue order.
    :param conversations: of conversation endpoints, a row for each version of one; the row with the highest ``lookup_id`` of a handle counts.
    :param transmissions: of dialog messages that wait for their target queues, in the order of the commits that brought them.
    """

    version: int
    control: Control
    files: tuple[DataFile, ...]
    claims: tuple[Claim, ...]
    outbox: tuple[DataFile, ...]
    conversations: tuple[DataFile, ...] = ()
    transmissions: tuple[DataFile, ...] = ()

    def depth(self, sub_queue: SubQueue, now: datetime) -> SubQueueDepth:
        """Return what waits in a sub-queue; ``due`` counts messages whose due time has come."""
        files = [file for file in self.files if file.sub_queue == sub_queue]
        taken = {file.path for claim in self.claims for file in claim.files}
        by_move_count: dict[int, int] = {}
        for file in files:
            by_move_count[file.move_count] = by_move_count.get(file.move_count, 0) + file.rows
        ages = [file.min_enqueued_at for file in files if file.min_enqueued_at is not None]
        waits = sub_queue in {SubQueue.RETRY, SubQueue.POSTPONED}
        dues = [file.max_due_at for file in files if waits and file.max_due_at is not None]
        return SubQueueDepth(
            messages=sum(file.rows for file in files),
            claimed=sum(file.rows for file in files if file.path in taken),
            oldest_enqueued_at=min(ages, default=None),
            next_due_at=min(dues, default=None),
            due=sum(file.rows for file in files if waits and file.max_due_at is not None and file.max_due_at <= now),
            by_move_count=by_move_count,
        )
