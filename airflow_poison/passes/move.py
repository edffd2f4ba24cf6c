"""Move: put messages into another sub-queue by hand (spec WCF-28), or take them out of the queue for good (spec WCF-25, SB-30)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.passes.conversations import awaited
from airflow_poison.passes.halts import ending_of
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import ByHand, Chosen, planned_anew, with_columns
from airflow_poison.rules.decisions import Counts, moved
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.message import Message
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import plain

if TYPE_CHECKING:
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


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
        .commit(table)
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
            table.replace_file(file, with_columns(table.read(file), abort_count=0), [])
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
        facts = {"queue": self.queue, "removed": all_of_them, "messages": plain(shown), "more": all_of_them - len(shown)}
        return facts | {"awaited": dict(self.awaited)}


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

    def events(rows: pa.Table) -> Iterator[Event]:
        for lookup_id, *counts in zip(*(rows[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count")), strict=True):
            yield Event(EventType.DROPPED, now, lookup_id, counts[0] or 0, counts[1] or 0, {"place": "", "by": BY_HAND})

    return ByHand(chosen, become=lambda _rows: None, events=events, run=run).commit(table)
