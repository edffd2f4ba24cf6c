"""The result of a simulation: what became of each message and of the endpoint, as values, as JSON and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_poison.core.delivery import answer
from airflow_poison.core.delivery.replay_queue import FOREVER, IN_DELIVERY, NOT_ARRIVED, REMOVED
from airflow_poison.core.delivery.script import Verb, as_span
from airflow_poison.core.events import ROUTINE, EventType
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow_poison.core.delivery.replayed import MessageEnd, Replay
    from airflow_poison.core.delivery.script import Action, Script, Scripted
    from airflow_poison.core.events import Event
    from airflow_poison.core.policies.policy import Policy

HALTS: Final = {EventType.FAULTED: Halted.FAULTED, EventType.STOPPED: Halted.STOPPED, EventType.QUEUE_DISABLED: Halted.DISABLED}
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
        told: dict[str, list[Event]] = {message.name: [] for message in self.script.messages}
        for event in self.replay.events:
            if "message" in event.details:
                told[event.details["message"]].append(event)
        ends = {end.name: end for end in self.replay.messages}
        return tuple(self._fate(message, ends[message.name], told[message.name]) for message in self.script.messages)

    @property
    def halts(self) -> tuple[EndpointHalt, ...]:
        """When the rules ended receiving; what people did by hand is not among it."""
        halts = [event for event in self.replay.events if event.type in HALTS]
        return tuple(EndpointHalt(self.since_start(event), HALTS[event.type], event.details.get("message", "")) for event in halts)

    @property
    def answer(self) -> tuple[str, ...]:
        """The answer in sentences: how often, how long, where to, and whether the endpoint goes on."""
        return answer.sentences(self)

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

    def _fate(self, message: Scripted, end: MessageEnd, told: Sequence[Event]) -> Fate:
        removed = [as_span(action.at) for action in self.script.actions if action.verb == Verb.REMOVE and action.message == message.name]
        times = [self.since_start(told[-1])] if told else []
        return Fate(
            end=end,
            outcomes=message.outcomes,
            arrives=as_span(message.at),
            moves=sum(event.type in MOVES for event in told),
            settled=_is_settled(self.policy.reads, end, told),
            at=max(times + removed if end.place == REMOVED else times, default=None),
            due=end.due_at - self.replay.started if end.due_at is not None and end.due_at < FOREVER else None,
            blocked=bool(told) and told[-1].type is EventType.BLOCKED,
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


def _is_settled(reads: SubQueue, end: MessageEnd, told: Sequence[Event]) -> bool:
    """Return whether a message has left for good; a message that is read from poison may also still be there."""
    if end.place == SubQueue.POISON:
        return reads is not SubQueue.POISON or any(event.type is EventType.MOVED_POISON for event in told)
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
    """Return seconds, as a whole number when they are one."""
    if span is None:
        return None
    total = span.total_seconds()
    return int(total) if total.is_integer() else total
