"""The overview of a connection's queues: what each holds, what needs a person, how it went in the last day, and totals."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

from airflow_poison.ui.page_data import DAMAGED, opened_connection, plain_overview, told
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from airflow_poison.hooks.connection import StoreConnection
    from airflow_poison.passes.browse import QueueOverview
    from airflow_poison.store import QueueStore
    from airflow_poison.watching.poller import QueueReader, Reading
    from airflow_poison.watching.trends import Trend, Trends

log = logging.getLogger(__name__)

MOST_STORES = 20
"""Of so many connections the server remembers what it has seen, so that a look at queues that have not changed reads nothing."""
TREND_SECONDS = 0.25
"""So long one look may read for trends; what is missing then comes with the next looks."""
OVERDUE = timedelta(hours=1)
"""Messages that have been due for so long need a person: nothing receives or returns them."""


@dataclass(slots=True)
class _Seen:
    """What was seen of a store, used by one thread at a time; ``settings`` of the connection say which store it is."""

    settings: StoreConnection
    reader: QueueReader
    trends: Trends
    lock: Lock = field(default_factory=Lock)


_seen: OrderedDict[str, _Seen] = OrderedDict()
_seen_lock = Lock()


def queues(conn_id: str) -> dict[str, object]:
    """Return every queue of a connection's store, which cannot be read, and whether there is a store. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.browse import overview_of

    clock = SystemClock()
    settings, store = opened_connection(conn_id)
    with told(f"The store of connection {conn_id!r}"):
        names, absence = store.names(), store.absence
    if absence:
        log.warning("Connection %r has no queues to show: %s.", conn_id, absence)
    found, unreadable = [], list[str]()
    overviews: list[QueueOverview] = []
    memory = _memory(conn_id, settings, store)
    with memory.lock:
        now, until = clock.now(), time.monotonic() + TREND_SECONDS
        memory.trends.forget_others(names)
        for name, sight in memory.reader.at(names).items():
            if isinstance(sight, PoisonError):
                log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, sight)
                unreadable.append(name)
                continue
            shown = overview_of(sight.table, sight.snapshot, now)
            trend = _trend(memory.trends, sight, now, until)
            overviews.append(shown)
            found.append(plain_overview(shown) | {"needs": list(needs(shown, trend)), "trend": None if trend is None else trend.to_dict()})
    return {
        "conn_id": conn_id,
        "at": now.isoformat(),
        "exists": not absence,
        "queues": found,
        "unreadable": unreadable,
        "totals": _totals(overviews),
    }


def _memory(conn_id: str, settings: StoreConnection, store: QueueStore) -> _Seen:
    """Return what was seen of a connection's store; nothing, when the connection names another one now."""
    from airflow_poison.watching.poller import QueueReader
    from airflow_poison.watching.trends import Trends

    with _seen_lock:
        known = _seen.get(conn_id)
        if known is None or known.settings != settings:
            known = _seen[conn_id] = _Seen(settings, QueueReader(store), Trends())
        _seen.move_to_end(conn_id)
        while len(_seen) > MOST_STORES:
            _seen.popitem(last=False)
        return known


def _trend(trends: Trends, sight: Reading, now: datetime, until: float) -> Trend | None:
    """Return the trend of a queue; None as long as it is not read, and where an event file is damaged: all else of the queue can be shown."""
    try:
        return trends.of(sight, now, until)
    except DAMAGED as error:
        log.warning("The trend of queue %r cannot be read: %s", sight.table.name, error)
        return None


def _totals(seen: Sequence[QueueOverview]) -> dict[str, object]:
    return {
        "queues": len(seen),
        "halted": sum(each.halted for each in seen),
        "outages": sum(bool(each.outage or each.poison_outage) for each in seen),
        "messages": {place.value: sum(each.sub_queues[place].messages for each in seen) for place in SubQueue},
    }


# What needs a person, the most urgent first -----------------------------------------------------------------------------


def needs(seen: QueueOverview, trend: Trend | None) -> Iterator[Mapping[str, str]]:
    """Yield what in a queue needs a person."""
    if seen.halted:
        state, reason = (seen.state, seen.reason) if seen.state != "enabled" else (seen.poison_state, seen.poison_reason)
        yield {"kind": "halted", "text": f"{state}: {reason}" if reason else state}
    for outage in filter(None, (seen.outage, seen.poison_outage)):
        yield {"kind": "outage", "text": f"What its handler needs is away since {_instant(outage.since)}."}
    if trend is not None and (more := min(trend.growth, seen.sub_queues[SubQueue.POISON].messages)) > 0:
        yield {"kind": "poison_growing", "text": f"{counted(more, 'poison message')} more than an hour ago."}
    yield from _overdue(seen)
    expired = [claim for claim in seen.claims if claim.expired and not claim.given_up]
    if expired:
        held = counted(sum(claim.messages for claim in expired), "message")
        yield {"kind": "expired_claim", "text": f"A pass that held {held} has not answered in time; the next one goes on with them."}


def _overdue(seen: QueueOverview) -> Iterator[Mapping[str, str]]:
    for place in (SubQueue.RETRY, SubQueue.POSTPONED):
        depth = seen.sub_queues[place]
        if depth.next_due_at is not None and depth.due and seen.at - depth.next_due_at >= OVERDUE:
            text = f"{counted(depth.due, 'message')} in {place.value} should have been returned; the oldest since {_instant(depth.next_due_at)}."
            yield {"kind": "overdue", "text": text}


def _instant(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")
