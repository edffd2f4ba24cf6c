"""Move: put messages into another sub-queue by hand (spec WCF-28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_poison.core.errors import SettingError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.messages import Change, Chosen, claimed_paths, planned_anew, with_columns
from airflow_poison.core.passes.remove import BY_HAND
from airflow_poison.core.policies.counts import moved
from airflow_poison.core.policies.decisions import Counts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.queue_table import QueueTable

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

    def told(rows: pa.Table) -> Iterator[Event]:
        for lookup_id, was, move_count in zip(*(rows[name].to_pylist() for name in ("lookup_id", "sub_queue", "move_count")), strict=True):
            if not _is_no_move(was, place):
                facts = {"place": place.value, "by": BY_HAND} | ({"origin": was} if was == SubQueue.POISON else {})
                yield Event(_EVENT[place], now, lookup_id, 0, (move_count or 0) + 1, facts)

    return Change(Chosen.ids(lookup_ids), lambda rows: _moved(rows, place), told, places, run).commit(table, now).num_rows


def _moved(rows: pa.Table, place: SubQueue) -> pa.Table:
    cells = zip(*(rows[name].to_pylist() for name in ("sub_queue", "abort_count", "move_count")), strict=True)
    counts = [_counts(Counts(abort_count or 0, move_count or 0), was, place) for was, abort_count, move_count in cells]
    aborts, moves = [each.abort_count for each in counts], [each.move_count for each in counts]
    return with_columns(rows, sub_queue=place.value, abort_count=aborts, move_count=moves)


def _counts(counts: Counts, was: str | None, place: SubQueue) -> Counts:
    return counts if _is_no_move(was, place) else moved(counts)


def _is_no_move(was: str | None, place: SubQueue) -> bool:
    return was == SubQueue.POSTPONED and place is SubQueue.MAIN


def _put_all_back(table: QueueTable, clock: Clock) -> int:
    """Move whole files, once their counts are 0: moving a file changes no row of it."""
    now = clock.now()
    for file in _free_poison(table):
        if _counted(table, file):
            table.replace_file(file, with_columns(table.read(file), abort_count=0), [], now)
    reach("pass.put_back.after_counts")
    ready = {file.path for file in _free_poison(table) if not _counted(table, file)}
    return table.move_files(lambda snapshot: [file for file in snapshot.files if file.path in ready], SubQueue.MAIN, now).messages


def _free_poison(table: QueueTable) -> list[DataFile]:
    snapshot = table.snapshot()
    claimed = claimed_paths(snapshot)
    return [file for file in snapshot.files if file.sub_queue == SubQueue.POISON and file.path not in claimed]


def _counted(table: QueueTable, file: DataFile) -> bool:
    return bool(pc.max(table.read(file, ["abort_count"])["abort_count"]).as_py())
