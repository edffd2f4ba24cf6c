"""Move: put messages into another sub-queue by hand (spec WCF-28), or take them out of the queue for good (spec WCF-25, SB-30)."""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.passes.conversations import awaited
from airflow_poison.passes.halts import ending_of
from airflow_poison.passes.history import BY_HAND
from airflow_poison.rules.decisions import Counts, moved
from airflow_poison.store.control import BLOCKED_BY
from airflow_poison.store.files import Replacement
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError, SettingError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.message import Message
from airflow_poison.values.schema import SubQueue, place_name, table_schema
from airflow_poison.values.texts import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from airflow_poison.store.control import Control
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

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
        try:
            return cls(lookup_ids=tuple(sorted({index(number) for number in lookup_ids})))
        except TypeError:
            raise SettingError("lookup_ids", lookup_ids, "a list of whole numbers, for example [7, 8]") from None

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
    :param told: the events of the rows that ``become`` gets.
    :param run: the key of the run that changes them; a message that is gone because the same run has changed it is no error.
    :param allowed: looks at the control row that the commit builds upon; what it raises prevents the commit.
    """

    chosen: Chosen
    become: Callable[[pa.Table], pa.Table | None]
    told: Callable[[pa.Table], Iterable[Event]]
    places: Collection[SubQueue] = EVERYWHERE
    run: str | None = None
    allowed: Callable[[Control], None] = field(default=lambda _control: None)

    def commit(self, table: QueueTable, now: datetime) -> pa.Table:
        """Make the change and return the messages as they were. A block ends when its message leaves its place (spec section 11.1).

        Raises MessageNotFoundError for a lookup id that is not there and MessageClaimedError while a pass has one of them; then nothing has changed.
        """
        return planned_anew(lambda: self._commit(table, now))

    def _commit(self, table: QueueTable, now: datetime) -> pa.Table:
        snapshot = table.snapshot()
        found = list(find(table, snapshot, self.chosen, self.places))
        leaving = frozenset[int]().union(*(holder.lookup_ids for holder in found))
        self._refuse(table, snapshot, found, leaving)
        done, events = [table_schema().empty_table()], list[Event]()
        if found:
            replacements = (self._replacement(table, holder.file, done, events) for holder in found)
            table.replace_files(replacements, events, now, change=lambda control: self._after(control, leaving))
        return pa.concat_tables(done)

    def _after(self, control: Control, leaving: Collection[int]) -> Control:
        self.allowed(control)
        return control.unblocked() if control.counters.get(BLOCKED_BY) in leaving else control

    def _replacement(self, table: QueueTable, file: DataFile, done: list[pa.Table], events: list[Event]) -> Replacement:
        rows = table.read(file)
        mask = self.chosen.mask(rows)
        here, others = rows.filter(mask), rows.filter(pc.invert(mask))
        done.append(here)
        events.extend(signed(event, self.run) for event in self.told(here))
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


log = logging.getLogger(__name__)
_FROM: Mapping[SubQueue, frozenset[SubQueue]] = {
    SubQueue.MAIN: frozenset({SubQueue.RETRY, SubQueue.POISON, SubQueue.POSTPONED}),
    SubQueue.POISON: frozenset({SubQueue.MAIN, SubQueue.RETRY, SubQueue.POSTPONED}),
}
"""Which sub-queues people move messages to, and from where. ``retry`` needs a due time, and ``transmission`` fills and empties by itself."""
_EVENT = {SubQueue.MAIN: EventType.RETURNED, SubQueue.POISON: EventType.MOVED_POISON}


def move(table: QueueTable, clock: Clock, lookup_ids: Collection[int], target: SubQueue | str = SubQueue.MAIN, *, run: str | None = None) -> int:
    """Move messages to ``main`` or to ``poison``, all in one commit; return how many. Each gets abort count 0 and one more move (spec WCF-14).

    What was postponed comes to ``main`` as it is: that is no move. A message that blocks the queue and leaves ``main`` ends the block.

    :param run: a key: what a move with the same key has moved before, and is not there now, is no error.
    Raises SettingError for another sub-queue, MessageNotFoundError for messages that are not in a sub-queue that they could come from,
    MessageClaimedError while a pass has one of them; then nothing was moved.
    """
    if target not in _FROM:
        raise SettingError("target", str(target), ", ".join(_FROM))
    place = SubQueue(target)
    return _move(table, clock, lookup_ids, place, _FROM[place], run=run)


def put_back(table: QueueTable, clock: Clock, lookup_ids: Collection[int] | None = None) -> int:
    """Move messages from ``poison`` to ``main``, with abort count 0 and one more move (spec WCF-28); return how many.

    :param lookup_ids: which, all in one commit; None: all that no pass has claimed.
    Raises MessageNotFoundError and MessageClaimedError before anything is moved.
    """
    if lookup_ids is None:
        return planned_anew(lambda: _put_all_back(table, clock))
    return _move(table, clock, lookup_ids, SubQueue.MAIN, frozenset({SubQueue.POISON}))


def _move(
    table: QueueTable, clock: Clock, lookup_ids: Collection[int], place: SubQueue, places: Collection[SubQueue], *, run: str | None = None
) -> int:
    now = clock.now()

    return (
        ByHand(Chosen.ids(lookup_ids), lambda rows: moved_rows(rows, place), lambda rows: moved_events(rows, place, now), places, run)
        .commit(table, now)
        .num_rows
    )


def moved_rows(rows: pa.Table, place: SubQueue, *, counted: bool = False) -> pa.Table:
    """Return messages as they are in another sub-queue.

    :param counted: what was postponed counts a move to ``main``, too.
    """
    counts = [after for _, _, after, _ in _moves(rows, place, counted=counted)]
    aborts, moves = [each.abort_count for each in counts], [each.move_count for each in counts]
    return with_columns(rows, sub_queue=place.value, abort_count=aborts, move_count=moves)


def moved_events(rows: pa.Table, place: SubQueue, now: datetime, *, counted: bool = False) -> Iterator[Event]:
    """Yield the events of the moves of messages by hand."""
    for lookup_id, was, after, is_move in _moves(rows, place, counted=counted):
        if is_move:
            facts = {"place": place.value, "by": BY_HAND} | ({"origin": was} if was == SubQueue.POISON else {})
            yield Event(_EVENT[place], now, lookup_id, after.abort_count, after.move_count, facts)


def _moves(rows: pa.Table, place: SubQueue, *, counted: bool) -> Iterator[tuple[int, str | None, Counts, bool]]:
    """Yield each message: its lookup id, where it was, its counts afterwards, and whether it counts as a move."""
    names = ("lookup_id", "sub_queue", "abort_count", "move_count")
    for lookup_id, was, abort_count, move_count in zip(*(rows[name].to_pylist() for name in names), strict=True):
        counts, is_move = Counts(abort_count or 0, move_count or 0), counted or was != SubQueue.POSTPONED or place is not SubQueue.MAIN
        yield lookup_id or 0, was, moved(counts) if is_move else counts, is_move


def _put_all_back(table: QueueTable, clock: Clock) -> int:
    """Move whole files, once their counts are 0: moving a file changes no row of it."""
    now, free = clock.now(), _free_poison(table)
    table.bring(free)
    for file in free:
        if _counted(table, file):
            table.replace_file(file, with_columns(table.read(file), abort_count=0), [], now)
    reach("pass.put_back.after_counts")
    ready = {file.path for file in _free_poison(table) if not _counted(table, file)}
    return table.move_files(lambda snapshot: [file for file in snapshot.files if file.path in ready], SubQueue.MAIN, now).messages


def _free_poison(table: QueueTable) -> list[DataFile]:
    snapshot = table.snapshot()
    claimed = snapshot.claimed_paths
    return [file for file in snapshot.files if file.sub_queue == SubQueue.POISON and file.path not in claimed]


def _counted(table: QueueTable, file: DataFile) -> bool:
    return bool(pc.max(table.read(file, ["abort_count"])["abort_count"]).as_py())


# For good --------------------------------------------------------------------------------------------------------------


MOST_SHOWN = 100
"""How many removed messages ``to_dict`` shows."""


@dataclass(frozen=True, slots=True)
class RemoveResult:
    """What a removal took out, message by message.

    :param awaited: the services that wait for an answer to one of them, each by the handle of its conversation here; ending that answers.
    """

    queue: str
    messages: tuple[MessageRow, ...]
    awaited: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return plain values: the number of messages, and the first 100 of them; bodies are cut at 64 KiB, and say so."""
        shown, all_of_them = self.messages[:MOST_SHOWN], len(self.messages)
        said = {"queue": self.queue, "removed": all_of_them, "messages": plain(shown), "more": all_of_them - len(shown)}
        return said | {"awaited": dict(self.awaited)}


def remove(table: QueueTable, lookup_id: int, clock: Clock) -> Message:
    """Take a message out of whichever sub-queue it is in, in one commit, and return it. Its neighbours stay as they are.

    Warns in the log of a service that waits for an answer to it. Raises MessageNotFoundError, and MessageClaimedError while a pass has the message.
    """
    chosen = Chosen.ids([lookup_id])
    waits = awaited(table, chosen)
    [batch] = _removed(table, chosen, clock).combine_chunks().to_batches()
    for sentence in unanswered(table.name, waits):
        log.warning("%s", sentence)
    counts = [batch.column(name)[0].as_py() or 0 for name in ("abort_count", "move_count")]
    return Message.view(Message.columns(batch, table.name), 0, counts[0], counts[1])


def remove_messages(
    table: QueueTable,
    clock: Clock,
    lookup_ids: Collection[int] | None = None,
    conversation_id: str | None = None,
    *,
    run: str | None = None,
    unmask: bool = False,
) -> RemoveResult:
    """Take messages out of whichever sub-queues they are in, all in one commit, and return them.

    :param conversation_id: all messages of a conversation instead, also those that wait in ``transmission``; none is no error (spec SB-30).
    :param run: a key: that a message is gone because a removal with the same key has taken it out is no error.
    :param unmask: what is returned has the values that the queue hides.
    Raises MessageNotFoundError for a lookup id that is not there, MessageClaimedError while a pass has one of them; then all stay.
    """
    if (lookup_ids is None) == (conversation_id is None):
        raise SettingError("lookup_ids", lookup_ids, "either lookup_ids or conversation_id")
    chosen = Chosen.ids(lookup_ids) if lookup_ids is not None else Chosen(conversation_id=conversation_id)
    masking = None if unmask else recorded_mask(table)
    waits = awaited(table, chosen)
    return RemoveResult(table.name, tuple(masked(row, masking) for row in MessageRow.of(_removed(table, chosen, clock, run))), waits)


def unanswered(queue: str, waits: Mapping[str, str]) -> list[str]:
    """Say which services get no answer to what was removed, and what answers them.

    :param waits: services by the handles of their conversations (``awaited``).
    """
    ends = ((service, handle, ending_of(queue, handle)) for handle, service in waits.items())
    return [f"Service {service!r} waits for an answer in conversation {handle}: end it with {end}." for service, handle, end in ends]


def _removed(table: QueueTable, chosen: Chosen, clock: Clock, run: str | None = None) -> pa.Table:
    now = clock.now()

    def told(rows: pa.Table) -> Iterator[Event]:
        for lookup_id, *counts in zip(*(rows[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count")), strict=True):
            yield Event(EventType.DROPPED, now, lookup_id, counts[0] or 0, counts[1] or 0, {"place": "", "by": BY_HAND})

    return ByHand(chosen, become=lambda _rows: None, told=told, run=run).commit(table, now)
