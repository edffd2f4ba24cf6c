"""History: the events of a queue and its messages, as commits recorded them; for readers, and for subscribers that get each once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING

from airflow_poison.rules.settings import choice, instant, whole_ids, whole_number
from airflow_poison.values.errors import PoisonMessageError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.failures import ErrorHandler


BY_HAND = "hand"
"""What the event of something that people did says in ``by``."""
ENDED = "end conversation"
"""What the event of a message says in ``by`` that went with its conversation (spec SB-30)."""
FROM_THE_START = -1
QUIET_VERSIONS = 50
"""How many versions without events are read again before their number is committed."""


@dataclass(frozen=True, slots=True)
class History:
    """Events in the order of their commits.

    :param earlier: how many older ones were left out.
    """

    queue: str
    events: tuple[Event, ...]
    earlier: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"queue": self.queue, "events": [plain(event) for event in self.events], "earlier": self.earlier}


def recorded_events(
    table: QueueTable,
    *,
    lookup_ids: Collection[int] | None = None,
    types: Collection[EventType] | None = None,
    since: datetime | None = None,
    limit: int | None = None,
) -> History:
    """Return the newest events of a queue. Deliveries, commits and rollbacks are there when a pass was set to record them.

    :param lookup_ids: only events of these messages; None: all, also of the queue itself.
    :param limit: at most so many, the newest; None: all.
    """
    lookup_ids = None if lookup_ids is None else whole_ids(lookup_ids)
    types = None if types is None else [choice("types", each, EventType) for each in types]
    since = None if since is None else instant("since", since)
    if limit is not None:
        newest, earlier = table.newest_events(whole_number("limit", limit), lookup_ids=lookup_ids, types=types, since=since)
        return History(table.name, tuple(newest), earlier)
    events = table.events(types=types)
    found = (event for event in events if (lookup_ids is None or event.lookup_id in lookup_ids) and (since is None or event.at >= since))
    return History(table.name, tuple(found))


def plain(event: Event) -> dict[str, object]:
    """Return an event as plain values."""
    counts = {"abort_count": event.abort_count, "move_count": event.move_count}
    return {"at": event.at.isoformat(), "event": event.type.value, "lookup_id": event.lookup_id, **counts, "details": dict(event.details)}


# Subscribers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where a subscriber has got events, and the range that it gets now: two counters of the queue's control row.

    ``telling`` is committed before the first is sent and becomes ``done`` afterwards. A killed task leaves it behind, and the run that finds it sends
    exactly the same again, under the same key, so that a receiver can drop what it has seen.

    :param subscriber: who, the same in every run.
    :param about: stands before the counters' names: the subject, where that is not the recorded events.
    """

    table: QueueTable
    subscriber: str
    clock: Clock
    about: str = ""

    def read(self, control: Control) -> tuple[int | None, int | None]:
        """Return ``done`` and ``telling``; None where nothing is noted."""
        done, sending = (control.counters.get(name) for name in self.names)
        return done, sending

    def write(self, seen: tuple[int | None, int | None], *, done: int | None, sending: int | None) -> bool:
        """Note both, in one commit. False, and nothing is noted, when another run has noted something since ``seen`` was read."""

        def change(control: Control) -> Control:
            return control.with_counters(dict(zip(self.names, (done, sending), strict=True))) if self.read(control) == seen else control

        after = self.table.alter(change)
        return self.read(after) == (done, sending)

    @property
    def names(self) -> tuple[str, str]:
        """The names of both counters."""
        return f"{self.about}told:{self.subscriber}", f"{self.about}telling:{self.subscriber}"


@dataclass(frozen=True, slots=True)
class EventRange:
    """The events after version ``since`` up to and with version ``until``.

    :param key: names the range: the same whenever it is sent again.
    :param events: read while they are asked for, once: a range may hold millions.
    :param control: the queue's control row, as it was read for the range.
    :param repeated: an earlier run began to send it and died: later events are another range.
    """

    key: str
    since: int
    until: int
    events: Iterator[Event]
    control: Control
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscriber to a queue's events, which gets each at least once and in ranges that stay the same when repeated; its cursor counts versions.

    :param name: who, the same in every run.
    :param reader: one of its readers, which is behind the others and has a cursor of its own; empty: all the others.
    """

    table: QueueTable
    name: str
    types: Collection[EventType]
    clock: Clock
    reader: str = ""

    def begin(self) -> None:
        """Start now, unless it has started before: earlier events are not sent."""
        snapshot = self.table.snapshot()
        seen = self.cursor.read(snapshot.control)
        if seen[0] is None:
            self.cursor.write(seen, done=snapshot.version, sending=None)

    @contextmanager
    def range(self, limit: int | None = None) -> Iterator[EventRange]:
        """Give the events that are still to be sent. They count as sent when the block ends without an error.

        :param limit: up to this version only: as far as all readers have got, for one that was behind; where that is not behind any more, nothing.
        """
        while True:
            snapshot = self.table.snapshot()
            seen = done, pending = self.cursor.read(snapshot.control)
            newest = snapshot.version if limit is None else limit
            since = done if done is not None else FROM_THE_START if limit is None else newest
            until = newest if pending is None else pending
            events = self.table.events(since, until_version=until, types=self.types)
            first = list(islice(events, 1))
            if not first or pending is not None:
                break
            if self.cursor.write(seen, done=since, sending=until):
                seen = since, until
                break  # else another run has begun to send, or has sent, meanwhile: this one looks again
        reach("pass.alert.before_telling")
        yield EventRange(f"{self.name}:{since}-{until}", since, until, chain(first, events), snapshot.control, repeated=pending is not None)
        reach("pass.alert.after_telling")
        if first or pending is not None or until - since >= QUIET_VERSIONS:
            self.cursor.write(seen, done=until, sending=None)

    @property
    def cursor(self) -> Cursor:
        """Up to where it has got events."""
        return Cursor(self.table, f"{self.name}{self.reader}", self.clock)


def error_subscription(table: QueueTable, subscriber: str, clock: Clock) -> Subscription:
    """Return the subscription behind an error handler."""
    return Subscription(table, f"error:{subscriber}", frozenset({EventType.POISON_EXCEPTION}), clock)


def hand_over(table: QueueTable, subscriber: str, handler: ErrorHandler, clock: Clock) -> list[int]:
    """Call the error handler once for each poison exception that is recorded since the last time; return the messages that it did not deal with.

    At least once: after a crash, or when the handler itself raises, the same ones are handed over again. An answer is final (spec WCF-26).
    """
    left = []
    with error_subscription(table, subscriber, clock).range() as found:
        for event in found.events:
            number = event.lookup_id or 0
            if not handler.handle_error(PoisonMessageError(number, table.name)):
                left.append(number)
    return left
