"""Queue events that a subscriber can receive: those since its last position, as the payloads of asset events, with the new position.

There are two kinds. What commits record (poisoned, blocked, disabled, enabled) is read from the queue's own events, by version. What merely is
(messages available, a retry due) is sent once for each file of messages, when it begins to be so, and not while the queue is halted or blocked: what
is still so when it receives again is sent then. A queue that people switch off records no event (spec section 11, item 3): its halt is sent when it
is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.passes.due import ended_times
from airflow_poison.passes.halts import ENDPOINTS, STARTS
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.runs import run_key
from airflow_poison.rules.decisions import HALTS
from airflow_poison.store.control import QueueState
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import CONVERSATION, SubQueue, place_name
from airflow_poison.watching.conditions import RetryDue, free_or_due, receivable, receives, returning

if TYPE_CHECKING:
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable


class Happening(StrEnum):
    """Queue events that a subscriber can receive."""

    MESSAGES = "messages"  # a pass could take messages that it could not take before
    RETRY_DUE = "retry_due"  # a return would move messages that were not due before
    POISONED = "poisoned"  # messages went to poison or to another queue, or were dropped or rejected, by the rules
    BLOCKED = "blocked"  # messages block the queue, or wait at their place, by the rules
    OUTAGE = "outage"  # what the handler needs is away, or there again
    DISABLED = "disabled"  # an endpoint does not receive any more: the rules have halted it, or people have switched it off
    ENABLED = "enabled"  # an endpoint receives again


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a watcher.

    :param version: of the queue; events of later ones are still to be sent.
    :param marks: of the files or the halted endpoints that were sent; only the ones that are still the same.
    :param queue: identity of the queue; empty: not looked at yet.
    """

    version: int = -1
    marks: frozenset[str] = frozenset()
    queue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"version": self.version, "marks": sorted(self.marks), "queue": self.queue}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return the position of a JSON form."""
        return cls(int(record["version"]), frozenset(record["marks"]), record.get("queue", ""))


@dataclass(frozen=True, slots=True)
class News:
    """Events to send.

    :param payloads: plain values, each with ``event``, ``queue`` and ``key``; a repeated one has the same key.
    :param position: the position after them.
    """

    payloads: tuple[dict[str, Any], ...]
    position: Position


@cache
def _recorded() -> Mapping[Happening, frozenset[EventType]]:
    """Return the events that record a happening. Files of DAGs import this module, and need no alerts."""
    from airflow_poison.passes.alerts import EVENTS, AlertKind

    return {
        Happening.POISONED: frozenset(event for event, kind in EVENTS.items() if kind is AlertKind.POISON),
        Happening.BLOCKED: frozenset(event for event, kind in EVENTS.items() if kind is AlertKind.BLOCKED),
        Happening.OUTAGE: frozenset(event for event, kind in EVENTS.items() if kind in {AlertKind.OUTAGE, AlertKind.OUTAGE_OVER}),
        Happening.DISABLED: frozenset(HALTS) | STARTS,
        Happening.ENABLED: STARTS,
    }


def begin(happening: Happening, snapshot: Snapshot) -> Position:
    """Return the first position of a watcher: recorded events lie in the past, and what is true now is sent."""
    if happening not in _recorded():
        return Position()
    return Position(snapshot.version, _halted(snapshot) if happening is Happening.DISABLED else frozenset())


def news(happening: Happening, table: QueueTable, snapshot: Snapshot, position: Position, now: datetime) -> News:
    """Return what is new since a position. Reads the queue's events where it must.

    A position ahead of the queue, because an older copy was put in its place, begins again where that one ends. All events of a queue that was
    made anew in the same place are new.
    """
    identity = table.identity()
    found = _news(happening, table, snapshot, position if position.queue in {"", identity} else Position(), now)
    return replace(found, position=replace(found.position, queue=identity))


def _news(happening: Happening, table: QueueTable, snapshot: Snapshot, position: Position, now: datetime) -> News:
    types = _recorded().get(happening)
    if types is None:
        return _begun(happening, table, snapshot, position, now)
    if position.version >= snapshot.version:
        return News((), replace(position, version=snapshot.version))
    events = table.events(position.version, until_version=snapshot.version, types=types)
    match happening:
        case Happening.DISABLED:
            return _halts(table, snapshot, position, events, now)
        case Happening.ENABLED | Happening.OUTAGE:
            payloads = [_change(happening, table, event) for event in events]
        case _:
            payloads = [*_of_messages(happening, table, events, (position.version, snapshot.version))]
    return News(tuple(payloads), replace(position, version=snapshot.version))


def ripens(happening: Happening, snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when time alone may make something happen, at the earliest."""
    match happening:
        case Happening.RETRY_DUE:
            return RetryDue().met(snapshot, now).not_before
        case Happening.MESSAGES:
            return snapshot.control.rests_until(SubQueue.MAIN, now) or free_or_due(snapshot, now)
        case _:
            return None


def _of_messages(happening: Happening, table: QueueTable, events: Iterator[Event], versions: tuple[int, int]) -> Iterator[dict[str, Any]]:
    from airflow_poison.passes.alerts import NAMED, NOT_ALERTED

    kinds, lookup_ids = Counter[str](), list[int]()
    for event in events:
        if event.details.get("by") in NOT_ALERTED:
            continue
        kinds[event.type.value] += 1
        if event.lookup_id is not None and len(lookup_ids) < NAMED:
            lookup_ids.append(event.lookup_id)
    if kinds:
        facts = {"count": kinds.total(), "kinds": dict(kinds), "lookup_ids": lookup_ids, "versions": list(versions)}
        yield _payload(happening, table, versions, **facts)


def _halts(table: QueueTable, snapshot: Snapshot, position: Position, events: Iterator[Event], now: datetime) -> News:
    """Return a happening for each halt that is recorded, and for each endpoint that is found halted although nothing records it."""
    known, payloads = set(position.marks), list[dict[str, Any]]()
    for event in events:
        if event.type in STARTS:  # does not say whose; only that of main is switched off by hand, and better sent twice than not at all
            known.discard(SubQueue.MAIN)
        else:
            known.add(_endpoint(table, event))
            payloads.append(_change(Happening.DISABLED, table, event))
    halted = _halted(snapshot)
    payloads += [_found_halted(table, snapshot, place, now) for place in sorted(halted - known)]
    return News(tuple(payloads), Position(snapshot.version, halted))


def _halted(snapshot: Snapshot) -> frozenset[SubQueue]:
    return frozenset(place for place in ENDPOINTS if snapshot.control.endpoint(place)[0] is not QueueState.ENABLED)


def _endpoint(table: QueueTable, event: Event) -> SubQueue:
    """Return what the endpoint reads that has halted."""
    return SubQueue.POISON if event.details.get("endpoint") == place_name(table.name, SubQueue.POISON) else SubQueue.MAIN


def _found_halted(table: QueueTable, snapshot: Snapshot, place: SubQueue, now: datetime) -> dict[str, Any]:
    state, reason = snapshot.control.endpoint(place)
    details = {"endpoint": place_name(table.name, place), "state": state.value, "reason": reason}
    facts = {"kind": None, "at": now.isoformat(), "lookup_id": None, "details": details}
    return _payload(Happening.DISABLED, table, (place.value, snapshot.version), **facts)


def _change(happening: Happening, table: QueueTable, event: Event) -> dict[str, Any]:
    facts = {"kind": event.type.value, "at": event.at.isoformat(), "lookup_id": event.lookup_id, "details": dict(event.details)}
    return _payload(happening, table, (event.type, event.at, event.lookup_id, sorted(event.details.items())), **facts)


def _begun(happening: Happening, table: QueueTable, snapshot: Snapshot, position: Position, now: datetime) -> News:
    """Return the event of all files for which something is true that was not sent."""
    files: Sequence[DataFile] = ()
    if receives(snapshot, SubQueue.MAIN):
        files = returning(snapshot, now) if happening is Happening.RETRY_DUE else _available(snapshot, now)
    marks = {_mark(file): file for file in files}
    fresh = [file for mark, file in marks.items() if mark not in position.marks]
    reached = Position(snapshot.version, frozenset(marks))
    if not fresh:
        return News((), reached)
    facts: dict[str, object] = {"count": _messages(files), "new": _messages(fresh)}
    if any(file.sub_queue == CONVERSATION for file in files):
        facts["timers_due"] = True
    identity = (snapshot.version, sorted(map(_mark, fresh)))  # with the version: the same files may be held by a pass, and be there again
    if happening is Happening.RETRY_DUE:
        facts["postponed"] = sum(file.rows for file in files if file.sub_queue == SubQueue.POSTPONED)
        due_at = max(file.max_due_at for file in fresh if file.max_due_at is not None)
        return News((_payload(happening, table, identity, **facts, due_at=due_at.isoformat()),), reached)
    return News((_payload(happening, table, identity, **facts),), reached)


def _messages(files: Collection[DataFile]) -> int:
    return sum(file.rows for file in files if file.sub_queue != CONVERSATION)


def _available(snapshot: Snapshot, now: datetime) -> list[DataFile]:
    if snapshot.control.rests_until(SubQueue.MAIN, now) is not None:
        return []
    return [*receivable(snapshot, SubQueue.MAIN, now), *ended_times(snapshot, now)]


def _payload(happening: Happening, table: QueueTable, identity: object, **facts: Any) -> dict[str, Any]:
    return {"event": happening.value, "queue": table.name, "key": run_key(table.uri, table.identity(), happening.value, identity), **facts}


def _mark(file: DataFile) -> str:
    """Return a short identity of a file in the queue: a move to another sub-queue makes it another one."""
    return blake2s(file.path.encode(), digest_size=6).hexdigest()


# Which of them are still poison -----------------------------------------------------------------------------------------

_MOVED = frozenset({EventType.MOVED_POISON})


def poisoned(table: QueueTable, payloads: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """Return the messages that went to the poison sub-queue in the events ``poisoned``: all, not only the named ones."""
    found: set[int] = set()
    for payload in payloads:
        if (payload["event"], payload["queue"]) == (Happening.POISONED.value, table.name):
            since, until = payload["versions"]
            events = table.events(since, until_version=until, types=_MOVED)
            found |= {event.lookup_id for event in events if event.lookup_id is not None and event.details.get("by") != BY_HAND}
    return frozenset(found)


def poison_files(table: QueueTable, snapshot: Snapshot, lookup_ids: Collection[int] | None) -> list[DataFile]:
    """Return the files of the poison sub-queue in which one of the messages is; of all messages for None."""
    if lookup_ids is None:
        return [file for file in snapshot.files if file.sub_queue == SubQueue.POISON]
    from airflow_poison.passes.messages import Chosen, find

    return [found.file for found in find(table, snapshot, Chosen.ids(lookup_ids), {SubQueue.POISON})]
