"""What happened in a simulation, in as few rows as can tell it: deliveries of one kind in a row are one row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from airflow_poison.core.events import EventType
from airflow_poison.core.simulation.script import OutcomeKind
from airflow_poison.core.simulation.simulated import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from airflow_poison.core.events import Event
    from airflow_poison.core.simulation.simulated import Simulation


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    :param at: when it began, after the start.
    :param first: the number of the message's first delivery in this row; 0: the row is no delivery.
    :param last: the number of the last one.
    :param abort_count: the message's count afterwards; None: the row is about no message.
    """

    at: timedelta
    message: str
    text: str
    first: int = 0
    last: int = 0
    abort_count: int | None = None
    move_count: int | None = None

    @property
    def what(self) -> str:
        """What happened, in words."""
        if not self.first:
            return self.text
        return f"delivery {self.first}: {self.text}" if self.first == self.last else f"deliveries {self.first} to {self.last}: {self.text}"


def rows(simulation: Simulation) -> list[Row]:
    """Return what happened, in order."""
    return list(_Timeline(simulation).rows())


class _Timeline:
    """Follows the events; deliveries are gathered until something happens that is no routine."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._outcomes = iter(simulation.replay.deliveries)
        self._delivered: Counter[str] = Counter()
        self._consumed: set[str] = set()
        self._gathered: list[_Delivery] = []

    def rows(self) -> Iterator[Row]:
        events = self._simulation.replay.events
        for event, following in zip_longest(events, events[1:]):
            match event.type:
                case EventType.DELIVERED:
                    self._begin(event)
                case EventType.COMMITTED | EventType.ROLLED_BACK:
                    self._end(event)
                case EventType.POISON_EXCEPTION if _goes_on(event, following):
                    pass
                case _:
                    yield from self._gather()
                    yield self._row(event, _words(self._simulation, event))
        for delivery in self._gathered:
            delivery.open = False
        yield from self._gather()

    def _begin(self, event: Event) -> None:
        name = event.details["message"]
        self._delivered[name] += 1
        outcome = OutcomeKind(next(self._outcomes).outcome)
        text = _UNCOUNTED.get(outcome, str(outcome))
        if name in self._consumed:
            text = "processed" if outcome is OutcomeKind.OK else f"lost ({outcome})"
        row = replace(self._row(event, text), first=self._delivered[name], last=self._delivered[name])
        self._gathered.append(_Delivery(row, open=name not in self._consumed and outcome not in _UNCOUNTED))

    def _end(self, event: Event) -> None:
        """Write the end of a delivery down; there was none when the message is consumed first, or never reaches its handler."""
        name = event.details["message"]
        error = event.details.get("error", "")
        text = "committed" if event.type is EventType.COMMITTED else _rollback(error)
        begun = next((delivery for delivery in reversed(self._gathered) if delivery.row.message == name), None)
        if begun is not None and error != OutcomeKind.BEFORE_OPERATION and (begun.open or begun.row.text in _UNCOUNTED.values()):
            begun.row = replace(begun.row, text=text, abort_count=event.abort_count, move_count=event.move_count)
            begun.open = False
        elif event.type is EventType.COMMITTED:
            self._consumed.add(name)
        else:
            self._gathered.append(_Delivery(self._row(event, f"not delivered: {text}"), open=False))

    def _gather(self) -> list[Row]:
        """Return the deliveries that have ended, those of one message that ended the same way as one row."""
        found: list[Row] = []
        last: dict[str, int] = {}
        for row in (delivery.row for delivery in self._gathered if not delivery.open):
            before = found[last[row.message]] if row.message in last else None
            if before and row.first and before.text == row.text:
                found[last[row.message]] = replace(row, at=before.at, first=before.first)
            else:
                last[row.message] = len(found)
                found.append(row)
        self._gathered = [delivery for delivery in self._gathered if delivery.open]
        return found

    def _row(self, event: Event, text: str) -> Row:
        name = event.details.get("message", "")
        at = self._simulation.since_start(event)
        return Row(at, name, text, abort_count=event.abort_count, move_count=event.move_count) if name else Row(at, name, text)


@dataclass(slots=True)
class _Delivery:
    """A delivery; open until its commit or rollback has happened."""

    row: Row
    open: bool


_UNCOUNTED: Final = {OutcomeKind.POSTPONE: "postponed", OutcomeKind.SAVEPOINT: "rolled back to its savepoint"}
"""Outcomes after which neither a commit nor a rollback of the message follows, unless the delivery is cut short."""

_FOUND: Final = {EventType.MOVED_RETRY, EventType.MOVED_POISON, EventType.DROPPED, EventType.REJECTED, EventType.DEAD_LETTERED, EventType.FAULTED}


def _goes_on(event: Event, following: Event | None) -> bool:
    """Return whether the next event tells what became of a message that was found poison."""
    return following is not None and following.type in _FOUND and following.lookup_id == event.lookup_id


def _rollback(error: str) -> str:
    return "rolled back" if error in {"", OutcomeKind.RB} else f"rolled back {error}" if error.startswith("with ") else f"rolled back ({error})"


def _words(simulation: Simulation, event: Event) -> str:
    details = event.details
    place = shown(simulation.queue, details.get("place", ""))
    words = {
        EventType.POISON_EXCEPTION: "found poison, and held by somebody else",
        EventType.MOVED_RETRY: f"found poison, moved to {place}",
        EventType.RETURNED: "put back by hand" if "origin" in details else f"returned to {simulation.queue}",
        EventType.MOVED_POISON: f"found poison, moved to {place}",
        EventType.DROPPED: "dropped",
        EventType.REJECTED: "rejected to the sender",
        EventType.DEAD_LETTERED: f"sent to {place}",
        EventType.EXCEPTIONED: f"sent to {place}",
        EventType.REQUEUED: f"requeued to {place}",
        EventType.BLOCKED: "blocked",
        EventType.FAULTED: "found poison, the endpoint faults",
        EventType.STOPPED: "the endpoint stops",
        EventType.QUEUE_DISABLED: "the queue is disabled",
        EventType.QUEUE_ENABLED: "the queue is enabled",
        EventType.STARTED: "the endpoint starts again",
    }
    why = details.get("obstacle") or details.get("warning") or ""
    word = words.get(event.type, event.type.lower().replace("_", " "))
    return f"{word} ({why})" if why else word
