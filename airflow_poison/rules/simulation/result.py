"""The result of a simulation: what became of each message and of the endpoint, as values, as JSON and in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_poison.rules.decisions import HALTS, Halted
from airflow_poison.rules.settings import as_seconds
from airflow_poison.rules.simulation.replay_queue import DEAD_LETTER, DROPPED, FOREVER, IN_DELIVERY, NOT_ARRIVED, REMOVED
from airflow_poison.rules.simulation.scripted_host import LOST, PROCESSED, Action, Script, Scripted, Verb, as_span
from airflow_poison.values.clock import show_duration
from airflow_poison.values.events import ROUTINE, Event, EventType
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy
    from airflow_poison.rules.simulation.replay import MessageEnd, Replay


MOVES: Final = frozenset(
    {
        EventType.MOVED_RETRY,
        EventType.RETURNED,
        EventType.MOVED_POISON,
        EventType.REJECTED,
        EventType.EXCEPTIONED,
        EventType.REQUEUED,
        EventType.DEAD_LETTERED,
    }
)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a message. Times are durations after the start.

    :param end: where the replay left it, with its counts.
    :param arrives: when it came.
    :param moves: how often it went from one queue or sub-queue to another.
    :param settled: it has left for good; False: it waits where it is received, or to come back there.
    :param at: when the last thing happened to it; None: nothing did.
    :param due: when it comes back by itself; None: never, or it does not wait.
    :param blocked: the last thing that happened to it was a block.
    """

    end: MessageEnd
    outcomes: str
    arrives: timedelta
    moves: int
    settled: bool
    at: timedelta | None
    due: timedelta | None
    blocked: bool

    @property
    def name(self) -> str:
        """The message's name."""
        return self.end.name


@dataclass(frozen=True, slots=True)
class EndpointHalt:
    """The rules ended receiving.

    :param at: when, after the start.
    :param message: the message at which they did.
    """

    at: timedelta
    how: Halted
    message: str


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the settings did to the messages. ``str()`` is the answer in words.

    :param policy: the settings.
    :param queue: the queue's name.
    :param script: what was played.
    :param until: when the clock was stopped; None: when nothing was left to happen.
    :param replay: everything that happened.
    """

    policy: Policy
    queue: str
    script: Script
    until: timedelta | None
    replay: Replay

    @property
    def fates(self) -> tuple[Fate, ...]:
        """What became of each message, in the order of the script."""
        events: dict[str, list[Event]] = {message.name: [] for message in self.script.messages}
        for event in self.replay.events:
            if "message" in event.details:
                events[event.details["message"]].append(event)
        ends = {end.name: end for end in self.replay.messages}
        return tuple(self._fate(message, ends[message.name], events[message.name]) for message in self.script.messages)

    @property
    def halts(self) -> tuple[EndpointHalt, ...]:
        """When the rules ended receiving; what people did by hand is not among it."""
        found = ((event, HALTS.get(event.type)) for event in self.replay.events)
        return tuple(EndpointHalt(self.since_start(event), how, event.details.get("message", "")) for event, how in found if how)

    @property
    def answer(self) -> tuple[str, ...]:
        """The answer in sentences, one or two in each text: how often, how long, where to, and whether the endpoint goes on."""
        return (_how_often(self), _how_long(self), *_where_to(self), *_endpoint(self))

    def since_start(self, event: Event) -> timedelta:
        """Return when an event happened, after the start."""
        return event.at - self.replay.started

    def to_dict(self, *, routine: bool = False) -> dict[str, object]:
        """Return everything as JSON values; times are seconds after the start.

        :param routine: with the events of every delivery, commit and rollback; ``deliveries`` lists them anyway.
        """
        return {
            "policy": self.policy.to_dict(),
            "queue": self.queue,
            "start": self.replay.started.isoformat(),
            "until": _seconds(self.until),
            "messages": [_message(fate) for fate in self.fates],
            "actions": [_action(action) for action in self.script.actions],
            "deliveries": [
                {
                    "message": delivered.message,
                    "at": _seconds(delivered.at),
                    "abort_count": delivered.counts.abort_count,
                    "move_count": delivered.counts.move_count,
                    "outcome": delivered.outcome,
                }
                for delivered in self.replay.deliveries
            ],
            "events": [self._event(event) for event in self.replay.events if routine or event.type not in ROUTINE],
            "answer": {
                "deliveries": len(self.replay.deliveries),
                "receives": self.replay.receives,
                "poison": self.replay.exceptions,
                "waited": _seconds(self.replay.waited),
                "elapsed": _seconds(self.replay.elapsed),
                "endless": self.replay.endless,
                "ends": {fate.name: fate.end.place for fate in self.fates},
                "halted": self.replay.halted,
                "halts": [{"at": _seconds(halt.at), "how": halt.how, "message": halt.message} for halt in self.halts],
                "text": list(self.answer),
            },
        }

    def __str__(self) -> str:
        return "\n".join(self.answer)

    def _fate(self, message: Scripted, end: MessageEnd, events: Sequence[Event]) -> Fate:
        removed = [as_span(action.at) for action in self.script.actions if action.verb == Verb.REMOVE and action.message == message.name]
        times = [self.since_start(events[-1])] if events else []
        return Fate(
            end=end,
            outcomes=message.outcomes,
            arrives=as_span(message.at),
            moves=sum(event.type in MOVES for event in events),
            settled=_is_settled(self.policy.reads, end, events),
            at=max(times + removed if end.place == REMOVED else times, default=None),
            due=end.due_at - self.replay.started if end.due_at is not None and end.due_at < FOREVER else None,
            blocked=bool(events) and events[-1].type is EventType.BLOCKED,
        )

    def _event(self, event: Event) -> dict[str, object]:
        details = {key: value for key, value in event.details.items() if key != "message"}
        return {
            "at": _seconds(self.since_start(event)),
            "event": event.type,
            "message": event.details.get("message"),
            "abort_count": event.abort_count,
            "move_count": event.move_count,
            "details": details,
        }


def _is_settled(reads: SubQueue, end: MessageEnd, events: Sequence[Event]) -> bool:
    """Return whether a message has left for good; a message that is read from poison may also still be there."""
    if end.place == SubQueue.POISON:
        return reads is not SubQueue.POISON or any(event.type is EventType.MOVED_POISON for event in events)
    return end.due_at is None and end.place not in {reads, NOT_ARRIVED, IN_DELIVERY}


def _message(fate: Fate) -> dict[str, object]:
    end = fate.end
    return {
        "name": end.name,
        "outcomes": fate.outcomes,
        "arrives": _seconds(fate.arrives),
        "deliveries": end.deliveries,
        "receives": end.receives,
        "moves": fate.moves,
        "waited": _seconds(end.waited),
        "end": end.place,
        "settled": fate.settled,
        "at": _seconds(fate.at),
        "due": _seconds(fate.due),
        "abort_count": end.counts.abort_count,
        "move_count": end.counts.move_count,
    }


def _action(action: Action) -> dict[str, object]:
    return {"at": _seconds(as_span(action.at)), "verb": str(action.verb), "message": action.message, "settings": dict(action.settings)}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else as_seconds(span)


# The answer in sentences


MOST_MESSAGES: Final = 6
"""As many messages have a sentence each."""

_RETRY: Final = re.compile(rf"{SubQueue.RETRY}\d*")
_ENDED: Final = {
    PROCESSED: "is processed",
    DROPPED: "is dropped",
    LOST: "is lost",
    REMOVED: "is removed by hand",
    DEAD_LETTER: "ends in the sender's dead-letter queue",
}
_HALTS: Final = {Halted.FAULTED: "The endpoint faults", Halted.STOPPED: "The endpoint stops", Halted.DISABLED: "The queue is disabled"}


def shown(queue: str, place: str) -> str:
    """Return a place as people see it: ``orders``, ``orders;retry``, the name of another queue, or what became of the message."""
    if place == SubQueue.MAIN:
        return queue
    if place == SubQueue.POISON or _RETRY.fullmatch(place):
        return f"{queue};{place}"
    return "sender's dead-letter queue" if place == DEAD_LETTER else "not arrived" if place == NOT_ARRIVED else place


def when(at: timedelta) -> str:
    """Return a point in time in words."""
    return f"{show_duration(at)} after the start" if at else "at once"


def _how_often(simulation: Simulation) -> str:
    replay = simulation.replay
    deliveries = counted(len(replay.deliveries), "delivery", "deliveries")
    return f"{deliveries}." if replay.receives == len(replay.deliveries) else f"{deliveries} in {counted(replay.receives, 'receive', 'receives')}."


def _how_long(simulation: Simulation) -> str:
    replay = simulation.replay
    if replay.endless:
        receives = counted(replay.receives, "receive", "receives")
        reached = f" ({when(replay.elapsed)})" if replay.elapsed else ""
        return f"It does not end: the simulation was stopped after {receives}{reached}, and would go on."
    if simulation.until is not None:
        return f"The simulation was stopped {when(simulation.until)}."
    if not replay.elapsed:
        return "All of it happens at once." if replay.events else "Nothing happens."
    return f"The last thing happens {when(replay.elapsed)}."


def _where_to(simulation: Simulation) -> Iterator[str]:
    fates = simulation.fates
    if len(fates) <= MOST_MESSAGES:
        yield from (f"{fate.name} {_fate(simulation, fate)}." for fate in fates)
        return
    for end, messages in Counter(_end(simulation, fate) for fate in fates).items():
        yield f"{messages:,} messages: each {end}." if messages > 1 else f"1 message {end}."


def _end(simulation: Simulation, fate: Fate) -> str:
    """Return where a message ended, without its numbers."""
    place = shown(simulation.queue, fate.end.place)
    if fate.settled:
        return _ENDED.get(fate.end.place, f"ends in {place}")
    if fate.end.place == NOT_ARRIVED:
        return "has not arrived"
    if fate.end.place == IN_DELIVERY:
        return "is being delivered"
    if fate.end.place == SubQueue.POSTPONED:
        return "is blocked" if fate.blocked else "is postponed"
    return f"waits in {place}" if fate.due is not None else f"stays in {place}"


def _fate(simulation: Simulation, fate: Fate) -> str:
    end = _end(simulation, fate)
    if fate.end.place == NOT_ARRIVED:
        return end
    after = f"after {counted(fate.end.deliveries, 'delivery', 'deliveries')}" if fate.end.deliveries else "without a delivery"
    if fate.settled:
        return f"{end} {after}, {when(fate.at)}" if fate.at is not None else f"{end} {after}"
    return f"{end} {after}{_prospect(simulation, fate)}"


def _prospect(simulation: Simulation, fate: Fate) -> str:
    """Return what a message that has not left waits for."""
    if fate.due is not None:
        return f", until {show_duration(fate.due)} after the start"
    if simulation.replay.halted is not None:
        return ", because the endpoint has halted"
    blocked = ", blocked" if fate.blocked and fate.end.place == simulation.policy.reads else ""
    is_at_rest = not simulation.replay.endless and simulation.until is None
    return f"{blocked or ','} until the broker restarts or it is removed" if fate.blocked and is_at_rest else blocked


def _endpoint(simulation: Simulation) -> Iterator[str]:
    halts, halted = simulation.halts, simulation.replay.halted
    yield from (_halt(halt) for halt in halts[:MOST_MESSAGES])
    if len(halts) > MOST_MESSAGES:
        yield f"It halts {len(halts)} times in all."
    if halted is not None:
        started = "" if halts else f"The endpoint is {halted}. "
        yield f"{started}It receives nothing until it is enabled."
    elif halts:
        yield "It was opened again, and has not halted since."
    elif blocking := next((fate.name for fate in simulation.fates if fate.blocked and fate.end.place == simulation.policy.reads), ""):
        yield f"The endpoint does not halt, but {blocking} blocks the queue."
    else:
        yield "The endpoint does not halt."


def _halt(halt: EndpointHalt) -> str:
    at = f", at {halt.message}" if halt.message else ""
    return f"{_HALTS[halt.how]} {when(halt.at)}{at}."
