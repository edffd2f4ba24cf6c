"""Single messages among the files of a queue: found by lookup id or conversation, and replaced in one commit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.rules.settings import whole_ids
from airflow_poison.store.control import BLOCKED_BY, Control
from airflow_poison.store.files import DataFile, Replacement, Snapshot
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue, place_name, table_schema

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable

T = TypeVar("T")
_TRIES = 5
EVERYWHERE = frozenset(SubQueue)
RUN = "run"
"""Which run changed a message by hand: what its event says, so that the run finds its own work when it is run again."""
_CHANGES = frozenset({EventType.RETURNED, EventType.MOVED_POISON, EventType.REQUEUED, EventType.DROPPED})
"""The events of a change by hand."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Chosen messages: by lookup ids, in order, or all of a conversation."""

    lookup_ids: tuple[int, ...] | None = None
    conversation_id: str | None = None

    @classmethod
    def ids(cls, lookup_ids: Collection[int]) -> Chosen:
        """Choose messages by their lookup ids. Raises SettingError for what is none."""
        return cls(lookup_ids=tuple(sorted(whole_ids(lookup_ids))))

    def may_be_in(self, file: DataFile) -> bool:
        """Whether the statistics of a file allow it to hold one of them."""
        if self.lookup_ids is None:
            return True
        place = bisect_left(self.lookup_ids, file.min_lookup_id)
        return place < len(self.lookup_ids) and self.lookup_ids[place] <= file.max_lookup_id

    def mask(self, rows: pa.Table) -> Any:
        """Return which rows are theirs, as Arrow booleans."""
        if self.lookup_ids is not None:
            possible = [number for number in self.lookup_ids if abs(number) < 2**63]  # people type longer ones, too
            return pc.is_in(rows["lookup_id"], pa.array(possible, pa.int64()))
        return pc.is_in(rows["conversation_id"], pa.array([self.conversation_id], pa.string()))


@dataclass(frozen=True, slots=True)
class Found:
    """A file that holds chosen messages, and their lookup ids."""

    file: DataFile
    lookup_ids: frozenset[int]


def find(table: QueueTable, snapshot: Snapshot, chosen: Chosen, places: Collection[SubQueue] = EVERYWHERE) -> Iterator[Found]:
    """Yield the files of these sub-queues that hold chosen messages, claimed ones too, in queue order."""
    possible = [file for file in snapshot.files if file.sub_queue in places and chosen.may_be_in(file)]
    table.bring(possible)
    for file in possible:
        rows = (
            table.read(file, ["lookup_id", "conversation_id"]) if chosen.lookup_ids is None else table.select(file, chosen.lookup_ids, ["lookup_id"])
        )
        here = rows.filter(chosen.mask(rows))["lookup_id"].to_pylist()
        if here:
            yield Found(file, frozenset(number for number in here if number is not None))


@dataclass(frozen=True, slots=True)
class ByHand:
    """A change of chosen messages, all in one commit; their neighbours stay as they are.

    :param become: from rows of ``table_schema()`` to rows whose columns say where they go; None: they go for good.
    :param events: the events of the rows that ``become`` gets.
    :param run: the key of the run that changes them; a message that is gone because the same run has changed it is no error.
    :param allowed: looks at the control row that the commit builds upon; what it raises prevents the commit.
    """

    chosen: Chosen
    become: Callable[[pa.Table], pa.Table | None]
    events: Callable[[pa.Table], Iterable[Event]]
    places: Collection[SubQueue] = EVERYWHERE
    run: str | None = None
    allowed: Callable[[Control], None] = field(default=lambda _control: None)

    def commit(self, table: QueueTable) -> pa.Table:
        """Make the change and return the messages as they were. A block ends when its message leaves its place (spec section 11.1).

        Raises MessageNotFoundError for a lookup id that is not there and MessageClaimedError while a pass has one of them; then nothing has changed.
        """
        return planned_anew(lambda: self._commit(table))

    def _commit(self, table: QueueTable) -> pa.Table:
        snapshot = table.snapshot()
        found = list(find(table, snapshot, self.chosen, self.places))
        leaving = frozenset[int]().union(*(holder.lookup_ids for holder in found))
        self._refuse(table, snapshot, found, leaving)
        done, events = [table_schema().empty_table()], list[Event]()
        if found:
            replacements = (self._replacement(table, holder.file, done, events) for holder in found)
            table.replace_files(replacements, events, change=lambda control: self._after(control, leaving))
        return pa.concat_tables(done)

    def _after(self, control: Control, leaving: Collection[int]) -> Control:
        self.allowed(control)
        return control.unblocked() if control.counters.get(BLOCKED_BY) in leaving else control

    def _replacement(self, table: QueueTable, file: DataFile, done: list[pa.Table], events: list[Event]) -> Replacement:
        rows = table.read(file)
        mask = self.chosen.mask(rows)
        here, others = rows.filter(mask), rows.filter(pc.invert(mask))
        done.append(here)
        events.extend(signed(event, self.run) for event in self.events(here))
        after = self.become(here)
        return Replacement(file, others, removed=here.num_rows) if after is None else Replacement(file, pa.concat_tables([after, others]))

    def _refuse(self, table: QueueTable, snapshot: Snapshot, found: Sequence[Found], there: Collection[int]) -> None:
        refuse_claimed(table, snapshot, found)
        missing = [number for number in self.chosen.lookup_ids or () if number not in there]
        if missing and not self._done_before(table, missing):
            are = f"Message {missing[0]} is" if len(missing) == 1 else f"Messages {_some(missing)} are"
            raise MessageNotFoundError(f"{are} not in {self._where(table.name)}: settled, moved or removed, or never sent. Nothing has changed.")

    def _done_before(self, table: QueueTable, missing: Collection[int]) -> bool:
        """Whether an earlier try of this run has changed all of them. Reads the queue's events, so it is asked only when messages are missing."""
        if self.run is None:
            return False
        return set(missing) <= {event.lookup_id for event in table.events(types=_CHANGES) if event.details.get(RUN) == self.run}

    def _where(self, queue: str) -> str:
        if self.places == EVERYWHERE:
            return f"queue {queue!r}"
        return " or ".join(repr(place_name(queue, place)) for place in SubQueue if place in self.places)


def refuse_claimed(table: QueueTable, snapshot: Snapshot, found: Iterable[Found]) -> None:
    """Raise MessageClaimedError while a pass has one of these messages."""
    claimed = snapshot.claimed_paths
    taken = sorted(number for holder in found if holder.file.path in claimed for number in holder.lookup_ids)
    if taken:
        are = f"Message {taken[0]} of queue {table.name!r} is" if len(taken) == 1 else f"Messages {_some(taken)} of queue {table.name!r} are"
        raise MessageClaimedError(f"{are} being received. Try again when that pass has ended. Nothing has changed.")


def signed(event: Event, run: str | None) -> Event:
    """Return an event that says which run made it."""
    return event if run is None else replace(event, details={**event.details, RUN: run})


def with_columns(rows: pa.Table, **cells: object) -> pa.Table:
    """Return the rows with other values in some columns: one for all rows, or a list of one for each."""
    columns = []
    for column in table_schema():
        if column.name not in cells:
            columns.append(rows.column(column.name))
        else:
            cell = cells[column.name]
            columns.append(pa.chunked_array([pa.array(cell if isinstance(cell, list) else [cell] * rows.num_rows, column.type)]))
    return pa.table(columns, schema=table_schema())


def planned_anew(act: Callable[[], T]) -> T:
    """Act on the newest snapshot; do it again when another commit was faster. Raises TableChangedError when that goes on."""
    for _ in range(_TRIES - 1):
        with suppress(TableChangedError):
            return act()
    return act()


def _some(numbers: Sequence[int], most: int = 20) -> str:
    return str(list(numbers)) if len(numbers) <= most else f"{list(numbers[:most])} and {len(numbers) - most:,} more"
