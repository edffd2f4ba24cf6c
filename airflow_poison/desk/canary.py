"""Canaries: what has become of the messages of a plan that were done first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.desk.members import Members
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.desk.plans import Canary
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.store.table.plans import StoredPlan

_LEFT = frozenset(
    {EventType.DROPPED, EventType.REJECTED, EventType.EXCEPTIONED, EventType.REQUEUED, EventType.DEAD_LETTERED, EventType.FAULTED, EventType.LOST}
)
"""Ends of a message other than that its handler returned."""


@dataclass(frozen=True, slots=True)
class CanarySeen(Plain):
    """What has become of a canary's messages.

    :param settled: gone because their handler returned.
    :param failed: in poison again, or gone in another way.
    :param waiting: still to be received, or to be tried again.
    """

    settled: int
    failed: int
    waiting: int

    def good(self, wanted: Canary | None) -> bool:
        """Whether enough were settled."""
        return wanted is None or self.settled >= wanted.share * self._all

    def decided(self, wanted: Canary | None) -> bool:
        """Whether those that wait change nothing any more."""
        return self.good(wanted) or (wanted is not None and self.settled + self.waiting < wanted.share * self._all)

    @property
    def _all(self) -> int:
        return self.settled + self.failed + self.waiting


def judged(table: QueueTable, found: StoredPlan) -> CanarySeen:
    """Look at what has become of a plan's canary."""
    ids = set(found.record["canary"]["ids"])
    members = Members.stored(table.plan_members(found)).only(sorted(ids))
    planned = dict(zip(members.ids.tolist(), members.moves.tolist(), strict=True))
    here = failed = 0
    for file in table.snapshot().files:
        if any(file.min_lookup_id <= each <= file.max_lookup_id for each in ids):
            there = [number for number in table.select(file, ids, ["lookup_id"])["lookup_id"].to_pylist() if number is not None]
            here += len(there)
            failed += sum(file.sub_queue == SubQueue.POISON and file.move_count > planned[number] for number in there)
    newest, _ = table.newest_events(10 * len(ids), lookup_ids=ids, types=_LEFT)
    gone = {event.lookup_id for event in newest if event.details.get("by") != "undo"}
    gone_otherwise = len(gone & ids) if here < len(ids) else 0
    return CanarySeen(settled=len(ids) - here - gone_otherwise, failed=failed + gone_otherwise, waiting=here - failed)
