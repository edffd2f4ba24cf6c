"""What the pages show, as plain values: read from the store of a connection, never written, and without anything that a connection hides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_poison.core.errors import PoisonError
from airflow_poison.ui.opened import DAMAGED, NotThereError, opened, opened_store, told

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_poison.core.events import EventType
    from airflow_poison.core.passes.browse import MessageRow, QueueOverview
    from airflow_poison.core.schema import SubQueue
    from airflow_poison.core.store.queue_table import QueueTable

log = logging.getLogger(__name__)

_BODY = ("body", "body_encoding", "body_bytes", "body_cut")


def queues(conn_id: str) -> dict[str, object]:
    """Return every queue of a connection's store, which cannot be read, and whether there is a store. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.browse import overview

    found, unreadable, clock = [], list[str](), SystemClock()
    store = opened_store(conn_id)
    with told(f"The store of connection {conn_id!r}"):
        names, absence = store.names(), store.absence
    if absence:
        log.warning("Connection %r has no queues to show: %s.", conn_id, absence)
    for name in names:
        try:
            found.append(_overview(overview(store.open(name, upgrade=False), clock)))
        except PoisonError as error:
            log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, error)
            unreadable.append(name)
    return {"conn_id": conn_id, "at": clock.now().isoformat(), "exists": not absence, "queues": found, "unreadable": unreadable}


def queue(conn_id: str, name: str) -> dict[str, object]:
    """Return one queue: state, reason, depths, ages, policy, claims, and how many conversations go on. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.browse import overview

    with opened(conn_id, name) as table:
        return {"conn_id": conn_id, **_overview(overview(table, SystemClock())), **_conversations(table)}


def messages(conn_id: str, name: str, place: SubQueue, limit: int) -> dict[str, object]:
    """Return the first messages of a sub-queue in receive order, without their bodies. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.browse import browse

    with opened(conn_id, name) as table:
        found = browse(table, [place], limit)
        rows = [without_body(row) for row in found.messages]
        return {"conn_id": conn_id, "queue": name, "sub_queue": place.value, "messages": rows, "more": found.more.get(place, 0)}


def message(conn_id: str, name: str, lookup_id: int) -> dict[str, object]:
    """Return one message with the first 64 KiB of its body, wherever it is. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen

    with opened(conn_id, name) as table:
        found = look_up(table, Chosen.ids([lookup_id]))
    if not found:
        raise NotThereError(f"Message {lookup_id} is not in queue {name!r}: it was settled, moved or removed, or never sent. Its events may tell.")
    return {"conn_id": conn_id, "queue": name, "message": _with_body(found[0])}


def events(conn_id: str, name: str, lookup_id: int | None, types: Collection[EventType], limit: int) -> dict[str, object]:
    """Return the newest events of a queue or of one of its messages, oldest first. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.history import recorded_events

    with opened(conn_id, name) as table:
        found = recorded_events(table, lookup_ids=None if lookup_id is None else [lookup_id], types=types or None, limit=limit)
        return {"conn_id": conn_id, **found.to_dict()}


def _overview(seen: QueueOverview) -> dict[str, object]:
    """Return an overview without the place of its table: connections are for few eyes."""
    return {name: value for name, value in seen.to_dict().items() if name != "uri"} | {"at": seen.at.isoformat(), "halted": seen.halted}


def _conversations(table: QueueTable) -> dict[str, object]:
    """Return whether a queue has conversations, and how many go on; None where counting them takes long, or cannot be done."""
    from airflow_poison.core.passes.conversations import has_conversations, number

    if not has_conversations(table.snapshot()):
        return {"has_conversations": False, "conversations": 0}
    try:
        return {"has_conversations": True, "conversations": number(table)}
    except DAMAGED as error:  # all else of the queue can be read
        log.warning("The conversations of queue %r cannot be counted: %s", table.name, error)
        return {"has_conversations": True, "conversations": None}


def _with_body(row: MessageRow) -> dict[str, object]:
    """Return a message with its body as people read it; XML in another encoding than plain UTF-8 says which."""
    from airflow_poison.core.passes.browse import MOST_BODY_BYTES

    shown = row.shown(MOST_BODY_BYTES)
    return row.to_dict() | ({"body": shown.text, "body_encoding": shown.encoding} if shown is not None and shown.encoding else {})


def without_body(row: MessageRow) -> dict[str, object]:
    """Return a message as plain values, for a table of many."""
    return {name: value for name, value in row.to_dict().items() if name not in _BODY}
