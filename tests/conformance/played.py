"""What came of a script, in one form for whatever played it: the replay, or real passes on a queue table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_poison.passes.relay import dead_letter_queue
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.decisions import Halted
    from airflow_poison.rules.simulation.replay import MessageEnd, Replay
    from airflow_poison.values.events import Event, EventType
    from tests.conformance.examples.shape import Calls

QUEUE = "example"
HERE = {SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON, SubQueue.POSTPONED}
"""Places where a message has counts."""
DEAD_LETTER, PROCESSED, DROPPED, REMOVED = "dead_letter", "processed", "dropped", "removed"


@dataclass(frozen=True)
class Place:
    """Where a message is at the end, with its counts while it is in its queue.

    :param properties: what it has got on its way to another queue.
    """

    place: str
    abort_count: int | None = None
    move_count: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """One event: seconds after the start, the message (empty: none), the event, and the message's counts."""

    at: float
    message: str
    event: EventType
    abort_count: int
    move_count: int


@dataclass(frozen=True)
class Played:
    """What came of a script.

    :param events: in the order in which they were told.
    :param calls: of the handler, in their order.
    :param ends: of each message.
    :param halted: how the endpoint is halted at the end.
    :param counters: what it leaves behind.
    :param reports: queue and feedback of each report message.
    """

    events: tuple[Told, ...]
    calls: Calls
    ends: Mapping[str, Place]
    halted: Halted | None
    counters: Mapping[str, int]
    reports: tuple[tuple[str, int], ...] = ()


def of_replay(result: Replay) -> Played:
    """Return what a replay on the queue ``QUEUE`` made of a script."""
    events = tuple(_told(event, (event.at - result.started).total_seconds()) for event in result.events)
    calls = tuple((call.at.total_seconds(), call.message, call.counts.abort_count, call.counts.move_count) for call in result.deliveries)
    ends = {message.name: _place(message) for message in result.messages}
    reports = tuple(sorted((report.to, report.feedback) for report in result.reports))
    return Played(events, calls, ends, result.halted, dict(result.counters), reports)


def place_named(place: str) -> str:
    """Return how a place is called here: a message that its handler has lost was processed, as far as its queue can tell."""
    if place == "lost":
        return PROCESSED
    if place == dead_letter_queue(QUEUE):
        return DEAD_LETTER
    return SubQueue.RETRY.value if place.startswith(SubQueue.RETRY) else place


def _told(event: Event, at: float) -> Told:
    return Told(at, event.details.get("message", ""), event.type, event.abort_count, event.move_count)


def _place(message: MessageEnd) -> Place:
    place = place_named(message.place)
    if place in HERE:
        return Place(place, message.counts.abort_count, message.counts.move_count)
    return Place(place, properties=message.headers)
