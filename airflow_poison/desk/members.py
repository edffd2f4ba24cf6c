"""Members: the messages of a plan as they are to be found, and which rows of a file are theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.desk.plans import Canary
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.store.table.plans import StoredPlan

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

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


PLACES = tuple(SubQueue)
WAITING = frozenset({SubQueue.RETRY.value, SubQueue.POSTPONED.value})
COLUMNS = ("lookup_id", "due_at")
"""The columns that identify the rows of a file."""
NEVER = -1


@dataclass(frozen=True, slots=True)
class Members:
    """Messages, each with the sub-queue, the move count and the due time that it is to be found with. Columns of equal length, sorted by lookup id.

    :param places: numbers of sub-queues in the order of ``PLACES``. :param dues: microseconds; -1 where it is of no matter.
    """

    ids: Numbers
    places: Numbers
    moves: Numbers
    dues: Numbers

    @classmethod
    def stored(cls, rows: pa.Table) -> Self:
        """Return the members that a plan's file has (``QueueTable.plan_members``)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pa.array([place.value for place in PLACES])
        places = np.asarray(pc.index_in(rows["message_type"], value_set=names).to_numpy(), np.int64)
        found = cls(counts_of(rows["lookup_id"]), places, counts_of(rows["priority"]), due_numbers(rows["due_at"]))
        waiting = np.isin(places, [PLACES.index(SubQueue(each)) for each in WAITING])
        return replace(found, dues=np.where(waiting, found.dues, NEVER))

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: Sequence[int]) -> Self:
        """Return those with these lookup ids."""
        return self._where(np.isin(self.ids, np.array(ids, np.int64)))

    def moved_to(self, place: SubQueue) -> Self:
        """Return them as they are after a move by hand: what was postponed comes to ``main`` uncounted."""
        uncounted = self.places == PLACES.index(SubQueue.POSTPONED) if place is SubQueue.MAIN else np.zeros(len(self), bool)
        return replace(
            self, places=np.full(len(self), PLACES.index(place), np.int64), moves=self.moves + ~uncounted, dues=np.full(len(self), NEVER, np.int64)
        )

    def where_they_were(self, ids: Numbers) -> list[SubQueue]:
        """Return the sub-queues of some of them."""
        return [PLACES[number] for number in self.places[np.searchsorted(self.ids, ids)]]

    def may_be_in(self, file: DataFile) -> bool:
        """Whether the statistics of a file allow it to hold one of them."""
        start, end = np.searchsorted(self.ids, [file.min_lookup_id, file.max_lookup_id + 1])
        return bool((self.places[start:end] == PLACES.index(SubQueue(file.sub_queue))).any())

    def mask(self, file: DataFile, rows: pa.Table) -> Mask:
        """Return which rows of a file are theirs, as they are to be found.

        :param rows: with ``COLUMNS``.
        """
        ids = counts_of(rows["lookup_id"])
        if not len(self):
            return np.zeros(len(ids), bool)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        found: Mask = (self.ids[at] == ids) & (self.places[at] == PLACES.index(SubQueue(file.sub_queue))) & (self.moves[at] == file.move_count)
        if file.sub_queue in WAITING:
            found &= (self.dues[at] == NEVER) | (self.dues[at] == due_numbers(rows["due_at"]))
        return found

    def _where(self, mask: Mask) -> Self:
        return replace(self, ids=self.ids[mask], places=self.places[mask], moves=self.moves[mask], dues=self.dues[mask])


def counts_of(column: Any) -> Numbers:
    """Return whole numbers; 0 for none."""
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def due_numbers(column: Any) -> Numbers:
    """Return due times as microseconds; -1 for none."""
    import pyarrow as pa

    return np.asarray(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(NEVER).to_numpy(), dtype=np.int64)
