"""What the pages show, as plain values: read from the store of a connection, never written, and without anything that a connection hides."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_poison.core.errors import PoisonError, QueueNameError, QueueNotFoundError
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_poison.core.events import EventType
    from airflow_poison.core.message import SubQueue
    from airflow_poison.core.passes.browse import QueueOverview
    from airflow_poison.core.passes.message_rows import MessageRow
    from airflow_poison.core.store.seam import QueueStore, QueueTable

log = logging.getLogger(__name__)

_BODY = ("body", "body_encoding", "body_bytes", "body_cut")


class NotThereError(Exception):
    """What was asked for is not there, or is not for everybody's eyes: the page does not tell which."""


class NotReadableError(Exception):
    """It is there and cannot be read; the log of the API server says why."""


def queues(conn_id: str) -> dict[str, object]:
    """Return every queue of a connection's store, and which of them cannot be read. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.browse import overview

    found, unreadable, clock = [], list[str](), SystemClock()
    store = _store(conn_id)
    with _told(f"The store of connection {conn_id!r}"):
        names = store.names()
    for name in names:
        try:
            found.append(_overview(overview(store.open(name, upgrade=False), clock)))
        except PoisonError as error:
            log.warning("Queue %r of connection %r cannot be shown: %s", name, conn_id, error)
            unreadable.append(name)
    return {"conn_id": conn_id, "at": clock.now().isoformat(), "queues": found, "unreadable": unreadable}


def queue(conn_id: str, name: str) -> dict[str, object]:
    """Return one queue: state, reason, depths, ages, policy, claims. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.browse import overview

    with _opened(conn_id, name) as table:
        return {"conn_id": conn_id, **_overview(overview(table, SystemClock()))}


def messages(conn_id: str, name: str, place: SubQueue, limit: int) -> dict[str, object]:
    """Return the first messages of a sub-queue in receive order, without their bodies. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.browse import browse

    with _opened(conn_id, name) as table:
        found = browse(table, [place], limit)
        rows = [_without_body(row) for row in found.messages]
        return {"conn_id": conn_id, "queue": name, "sub_queue": place.value, "messages": rows, "more": found.more.get(place, 0)}


def message(conn_id: str, name: str, lookup_id: int) -> dict[str, object]:
    """Return one message with the first 64 KiB of its body, wherever it is. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen

    with _opened(conn_id, name) as table:
        found = look_up(table, Chosen.ids([lookup_id]))
    if not found:
        raise NotThereError(f"Message {lookup_id} is not in queue {name!r}: it was settled, moved or removed, or never sent. Its events may tell.")
    return {"conn_id": conn_id, "queue": name, "message": found[0].to_dict()}


def events(conn_id: str, name: str, lookup_id: int | None, types: Collection[EventType], limit: int) -> dict[str, object]:
    """Return the newest events of a queue or of one of its messages, oldest first. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.passes.recall import recall

    with _opened(conn_id, name) as table:
        told = recall(table, lookup_ids=None if lookup_id is None else [lookup_id], types=types or None, limit=limit)
        return {"conn_id": conn_id, **told.to_dict()}


@contextmanager
def _opened(conn_id: str, name: str) -> Iterator[QueueTable]:
    store = _store(conn_id)
    with _told(f"Queue {name!r} of connection {conn_id!r}"):
        try:
            table = store.open(name, upgrade=False)
        except (QueueNotFoundError, QueueNameError) as error:
            raise NotThereError(f"There is no queue {name!r} in the store of connection {conn_id!r}.") from error
        yield table


def _store(conn_id: str) -> QueueStore:
    """Return the store of a connection of type ``poison``. Raises NotThereError for every other id: nobody learns which ones there are."""
    hook = QueueHook(conn_id)
    if not _is_poison(hook):
        raise NotThereError(f"No connection of type 'poison' has the id {conn_id!r}.")
    with _told(f"Connection {conn_id!r}"):
        return hook.store()


def _is_poison(hook: QueueHook) -> bool:
    from airflow.sdk.exceptions import AirflowException

    try:
        return bool(hook.get_connection(hook.conn_id).conn_type == hook.conn_type)
    except AirflowException:  # not defined, or not for this process
        return hook.conn_id == hook.default_conn_name


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Keep errors from the page: they name paths and settings. Raises NotReadableError."""
    try:
        yield
    except PoisonError as error:
        log.warning("%s cannot be shown: %s", what, error)
        raise NotReadableError(f"{what} cannot be read ({type(error).__name__}). The log of the API server says why.") from error


def _overview(seen: QueueOverview) -> dict[str, object]:
    """Return an overview without the place of its table: connections are for few eyes."""
    return {name: value for name, value in seen.to_dict().items() if name != "uri"} | {"at": seen.at.isoformat(), "halted": seen.halted}


def _without_body(row: MessageRow) -> dict[str, object]:
    return {name: value for name, value in row.to_dict().items() if name not in _BODY}
