"""What has happened to a queue since somebody was told last.

Two kinds of happenings. What commits record (poisoned, blocked, disabled, enabled) is read from the queue's own events, by version. What merely is
(messages available, a retry due) is told once for each file of messages, when it begins to be so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2s
from typing import TYPE_CHECKING, Any

from airflow_poison.core.events import EventType
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alert_texts import HALTS
from airflow_poison.core.passes.alerts import EVENTS, NAMED, AlertKind
from airflow_poison.core.passes.keys import run_key
from airflow_poison.core.passes.remove import BY_HAND
from airflow_poison.core.watching.conditions import receivable, returning
from airflow_poison.core.watching.happenings import Happening, News, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from airflow_poison.core.events import Event
    from airflow_poison.core.store.seam import DataFile, QueueTable, Snapshot

_RECORDED: Mapping[Happening, frozenset[EventType]] = {
    Happening.POISONED: frozenset(event for event, kind in EVENTS.items() if kind is AlertKind.POISON),
    Happening.BLOCKED: frozenset(event for event, kind in EVENTS.items() if kind is AlertKind.BLOCKED),
    Happening.DISABLED: frozenset(HALTS),
    Happening.ENABLED: frozenset({EventType.QUEUE_ENABLED, EventType.STARTED}),
}


def begin(happening: Happening, snapshot: Snapshot) -> Position:
    """Return where somebody begins who has not been told anything: what is recorded lies in the past, what is true now is told."""
    return Position(snapshot.version if happening in _RECORDED else -1)


def news(happening: Happening, table: QueueTable, snapshot: Snapshot, position: Position, now: datetime) -> News:
    """Return what is new since a position. Reads the queue's events where it must.

    A position ahead of the queue, because somebody has put an older copy in its place, begins anew where that one ends.
    """
    types = _RECORDED.get(happening)
    if types is None:
        return _begun(happening, table, snapshot, position, now)
    reached = replace(position, version=snapshot.version)
    if position.version >= snapshot.version:
        return News((), reached)
    found = table.events(position.version, until_version=snapshot.version, types=types)
    each = happening in {Happening.DISABLED, Happening.ENABLED}
    told = _changed(happening, table, found) if each else _of_messages(happening, table, found, (position.version, snapshot.version))
    return News(tuple(told), reached)


def _of_messages(happening: Happening, table: QueueTable, events: Iterator[Event], versions: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield one happening for all messages of a range of versions."""
    kinds, lookup_ids = Counter[str](), list[int]()
    for event in events:
        if event.details.get("by") == BY_HAND:
            continue
        kinds[event.type.value] += 1
        if event.lookup_id is not None and len(lookup_ids) < NAMED:
            lookup_ids.append(event.lookup_id)
    if kinds:
        facts = {"count": kinds.total(), "kinds": dict(kinds), "lookup_ids": lookup_ids, "versions": list(versions)}
        yield _payload(happening, table, versions, **facts)


def _changed(happening: Happening, table: QueueTable, events: Iterator[Event]) -> Iterator[dict[str, Any]]:
    """Yield one happening for each change of an endpoint's state."""
    for event in events:
        facts = {"kind": event.type.value, "at": event.at.isoformat(), "lookup_id": event.lookup_id, "details": dict(event.details)}
        yield _payload(happening, table, (event.type, event.at, event.lookup_id, sorted(event.details.items())), **facts)


def _begun(happening: Happening, table: QueueTable, snapshot: Snapshot, position: Position, now: datetime) -> News:
    """Return the happening of all files for which something is true that was not told of them."""
    files = returning(snapshot, now) if happening is Happening.RETRY_DUE else _available(snapshot, now)
    marks = {_mark(file): file for file in files}
    fresh = [file for mark, file in marks.items() if mark not in position.files]
    reached = Position(snapshot.version, frozenset(marks))
    if not fresh:
        return News((), reached)
    facts = {"count": sum(file.rows for file in files), "new": sum(file.rows for file in fresh)}
    identity = (snapshot.version, sorted(map(_mark, fresh)))  # with the version: the same files may be held by a pass, and be there again
    if happening is Happening.RETRY_DUE:
        facts["postponed"] = sum(file.rows for file in files if file.sub_queue == SubQueue.POSTPONED)
        due_at = max(file.max_due_at for file in fresh if file.max_due_at is not None)
        return News((_payload(happening, table, identity, **facts, due_at=due_at.isoformat()),), reached)
    return News((_payload(happening, table, identity, **facts),), reached)


def _available(snapshot: Snapshot, now: datetime) -> list[DataFile]:
    return receivable(snapshot, SubQueue.MAIN, now) if snapshot.control.blocked_until(now) is None else []


def _payload(happening: Happening, table: QueueTable, identity: object, **facts: Any) -> dict[str, Any]:
    return {"event": happening.value, "queue": table.name, "key": run_key(table.uri, happening.value, identity), **facts}


def _mark(file: DataFile) -> str:
    """Return what tells a file from every other one of the queue, shortly: a move to another sub-queue makes it another one."""
    return blake2s(file.path.encode(), digest_size=6).hexdigest()
