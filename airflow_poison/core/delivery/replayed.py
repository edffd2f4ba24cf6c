"""The result of a replay: events, deliveries and where each message ended, with a readable table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.core.events import ROUTINE, Event, EventType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow_poison.core.policies.decisions import Counts, Halted, Report


_WIDEST = 60


@dataclass(frozen=True, slots=True)
class Delivered:
    """One call of the handler.

    :param message: the message's name.
    :param at: when the call began, after the start.
    :param counts: what the handler saw.
    :param outcome: how the call ended, as scripts write it; how it would have, where the endpoint was closed or the clock stopped before.
    :param items: the items of a session that were worked on, the failing one included.
    """

    message: str
    at: timedelta
    counts: Counts
    outcome: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """Where a message ended.

    :param place: a sub-queue (``main``, ``retry``, ``retry1``, ``poison``, ``postponed``), ``dead_letter``, or what became of it:
        ``in_delivery`` when the clock stopped, ``processed``, ``dropped``, ``lost`` (consumed, and its handler failed), ``removed``, ``not_arrived``;
        or the name of the queue that it was sent to.
    :param counts: its counts there; not specified for a message that has left its queue.
    :param deliveries: calls of the handler.
    :param receives: receives, with and without delivery.
    :param waited: time in the retry sub-queue.
    :param headers: properties that it got when it was sent to another queue.
    :param due_at: when it may leave retry, UTC; None elsewhere.
    """

    name: str
    lookup_id: int
    place: str
    counts: Counts
    deliveries: int
    receives: int
    waited: timedelta
    due_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened.

    :param events: every event of spec 0.3; ``details["message"]`` is the message's name.
    :param deliveries: every call of the handler.
    :param messages: the end of each message.
    :param halted: how the endpoint ended; None when it is open or was closed by hand.
    :param started: when it began, UTC.
    :param ended: when the last thing happened, UTC.
    :param endless: it was stopped at its limit of receives and would have gone on.
    :param counters: what the endpoint leaves behind for the next one.
    :param reports: the report messages that dispositions sent (spec WMQ-24).
    """

    events: tuple[Event, ...]
    deliveries: tuple[Delivered, ...]
    messages: tuple[MessageEnd, ...]
    halted: Halted | None
    started: datetime
    ended: datetime
    endless: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()

    @property
    def receives(self) -> int:
        """Receives of all messages, with and without delivery."""
        return sum(message.receives for message in self.messages)

    @property
    def exceptions(self) -> int:
        """How often a message was found poison."""
        return sum(event.type is EventType.POISON_EXCEPTION for event in self.events)

    @property
    def waited(self) -> timedelta:
        """Time that messages spent in the retry sub-queue, all together."""
        return sum((message.waited for message in self.messages), timedelta(0))

    @property
    def elapsed(self) -> timedelta:
        """Time from the start to the last thing that happened."""
        return self.ended - self.started

    def message(self, name: str = "m") -> MessageEnd:
        """Return the end of one message. Raises KeyError."""
        return {message.name: message for message in self.messages}[name]

    def story(self, name: str | None = None, *, routine: bool = False) -> list[str]:
        """Return the names of the events of one message, or of all; deliveries, commits and rollbacks only when asked for."""
        chosen = (event for event in self.events if name is None or event.details.get("message") == name)
        return [str(event.type) for event in chosen if routine or event.type not in ROUTINE]

    def __str__(self) -> str:
        happened = [("time", "event", "message", "AC", "MC", "details"), *(self._row(event) for event in self.events)]
        ends = [("message", "deliveries", "receives", "waited", "end", "AC", "MC"), *(_end_row(message) for message in self.messages)]
        blocks = [_table(happened), _table(ends)]
        if self.halted is not None:
            blocks.append(f"The endpoint is {self.halted}.")
        if self.endless:
            blocks.append(f"Stopped after {self.receives} receives; it would go on.")
        return "\n\n".join(blocks)

    def _row(self, event: Event) -> tuple[str, ...]:
        facts = ", ".join(f"{key}={_short(value)}" for key, value in event.details.items() if key != "message")
        name = event.details.get("message", "")
        counts = (str(event.abort_count), str(event.move_count)) if name else ("", "")
        return (str(event.at - self.started), event.type, name, *counts, facts)


def _short(text: str) -> str:
    """Return a text that fits into a table; documents do not."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _end_row(message: MessageEnd) -> tuple[str, ...]:
    counts = (str(message.counts.abort_count), str(message.counts.move_count))
    return (message.name, str(message.deliveries), str(message.receives), str(message.waited), message.place, *counts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
