"""Backlog: tell people when what waits in a queue has become too old, once for each backlog.

Each subscriber has two counters of the queue's control row, so that a killed task loses and doubles nothing:

* ``backlog:told:<name>``: the message whose age was told, by its lookup id; below 0: since then everything too old has gone;
* ``backlog:telling:<name>``: the message whose age is being told now. Whoever finds it tells it again, with the same key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.errors import AlertError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alerts import Alert, AlertKind
from airflow_poison.core.passes.keys import run_key
from airflow_poison.core.passes.told import Told

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.files import DataFile, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable

TOO_OLD = "BACKLOG_TOO_OLD"
"""The ``event`` of the alert. It is no event of the queue: nothing happens when a message comes of age."""
PLACES = (SubQueue.MAIN, SubQueue.RETRY)
"""Where messages wait to be received."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """The message that has waited longest."""

    lookup_id: int
    enqueued_at: datetime
    sub_queue: SubQueue


def oldest(table: QueueTable, snapshot: Snapshot, before: datetime, *, other_than: int | None = None) -> Oldest | None:
    """Return the message of ``main`` and ``retry`` that was sent first, until then; None when there is none. Reads one file, in general."""
    found: Oldest | None = None
    for earliest, file in sorted(_old_files(snapshot, before), key=lambda each: each[0]):
        if found is not None and earliest > found.enqueued_at:
            break
        first = _first(table, file, other_than)
        if first is not None and first.enqueued_at <= before:
            found = first if found is None else min(found, first, key=lambda each: (each.enqueued_at, each.lookup_id))
    return found


def _old_files(snapshot: Snapshot, before: datetime) -> list[tuple[datetime, DataFile]]:
    dated = [(file.min_enqueued_at, file) for file in snapshot.files if file.sub_queue in PLACES]
    return [(earliest, file) for earliest, file in dated if earliest is not None and earliest <= before]


def _first(table: QueueTable, file: DataFile, other_than: int | None) -> Oldest | None:
    rows = table.read(file, ["enqueued_at", "lookup_id"])
    if other_than is not None:
        rows = rows.filter(pc.not_equal(rows["lookup_id"], pa.scalar(other_than, pa.int64())))
    first = pc.min(rows["enqueued_at"]).as_py()
    if first is None:
        return None
    number = pc.min(rows.filter(pc.equal(rows["enqueued_at"], pc.min(rows["enqueued_at"])))["lookup_id"]).as_py()
    return Oldest(number, first, SubQueue(file.sub_queue))


def send_backlog_alert(table: QueueTable, subscriber: str, older_than: timedelta, tell: Callable[[Alert], None], clock: Clock) -> list[Alert]:
    """Tell when a message of ``main`` or ``retry`` was sent longer ago than that; return what was told.

    One alert for each backlog, whose key names its oldest message. It is over when nothing is too old any more; then another message that becomes
    too old is told, and the one that was told before is not.

    :param subscriber: who is told, the same name in every run.
    Raises AlertError when telling failed: it is told again next time, with the same key.
    """
    state, now, snapshot = Told(table, subscriber, clock, "backlog:"), clock.now(), table.snapshot()
    told, telling = state.read(snapshot.control)
    if told is not None and told > 0:
        if not _old_files(snapshot, now - older_than):
            state.write(told=-told, telling=None)
        return []
    first = oldest(table, snapshot, now - older_than, other_than=None if told is None else -told)
    if first is None:
        if telling is not None:  # it has gone before anybody heard of it
            state.write(told=told, telling=None)
        return []
    about = first.lookup_id if telling is None else telling
    if telling is None:
        state.write(told=told, telling=about)
    alert = _alert(table, snapshot, first, about, now)
    reach("pass.backlog.before_telling")
    try:
        tell(alert)
    except Exception as error:
        raise AlertError(
            f"The alert that queue {table.name!r} has a backlog failed ({type(error).__name__}: {error}). "
            "Mend the notifier and run the task again: the alert is repeated with the same key."
        ) from error
    reach("pass.backlog.after_telling")
    state.write(told=about, telling=None)
    return [alert]


def _alert(table: QueueTable, snapshot: Snapshot, first: Oldest, about: int, now: datetime) -> Alert:
    """Return the alert; its key is that of the message that the backlog was first told of."""
    waiting = {place: snapshot.depth(place, now).messages for place in PLACES}
    said = ", ".join(f"{number:,} in {place.value}" for place, number in waiting.items())
    sent = f"{first.enqueued_at:%Y-%m-%d %H:%M:%S} UTC"
    return Alert(
        key=run_key(table.uri, TOO_OLD, about),
        kind=AlertKind.BACKLOG,
        queue=table.name,
        event=TOO_OLD,
        lookup_ids=(first.lookup_id,),
        count=sum(waiting.values()),
        reason=f"Queue {table.name!r} has a backlog: message {first.lookup_id} in {first.sub_queue.value} was sent at {sent}; {said} wait.",
        what_to_do="See whether its receive tasks run and succeed, whether the queue is halted or blocked, and whether they keep up.",
        details={"oldest_enqueued_at": first.enqueued_at.isoformat(), "sub_queue": first.sub_queue.value},
    )
