"""What an alert says of the events that it is about: what happened, and the next step, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.events import EventType
from airflow_poison.core.passes.halt_texts import what_halted, what_to_do_when_halted
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.schema import OUTBOX
from airflow_poison.core.texts import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.events import Event

HALTS: Mapping[EventType, Halted] = {
    EventType.QUEUE_DISABLED: Halted.DISABLED,
    EventType.STOPPED: Halted.STOPPED,
    EventType.FAULTED: Halted.FAULTED,
}
_BECAME: Mapping[EventType, str] = {
    EventType.MOVED_POISON: "moved to the poison sub-queue",
    EventType.DROPPED: "dropped",
    EventType.REJECTED: "rejected to the sender's dead-letter queue",
    EventType.DEAD_LETTERED: "moved to the dead-letter queue",
    EventType.REQUEUED: "moved to the backout queue",
    EventType.EXCEPTIONED: "moved to the exception destination",
}
_SENT_ON = {EventType.DEAD_LETTERED, EventType.REQUEUED, EventType.EXCEPTIONED}
RESTART = "restart"
"""Until when a message is blocked that only a restart of the broker lets go on."""


def reason(queue: str, event: Event, count: int) -> str:
    """Say what happened.

    :param event: the first of the ``count`` events of its type.
    """
    facts = event.details
    if event.type in HALTS:
        return what_halted(HALTS[event.type], facts.get("endpoint", queue), event.lookup_id, facts.get("error", ""), facts)
    became = _blocked(facts) if event.type is EventType.BLOCKED else _BECAME[event.type] + _named(_destination(event))
    sentences = [f"{counted(count, 'message')} of queue {queue!r}: {became}"]
    sentences += [facts[name].rstrip(".") for name in ("reason", "obstacle", "warning") if facts.get(name)]
    return f"{'. '.join(sentences)}."


def what_to_do(queue: str, event: Event) -> str:
    """Say the next step after the event."""
    match event.type:
        case EventType.MOVED_POISON:
            return f"Mend the cause, then put them back for one more cycle: QueueHook().put_back({queue!r})."
        case EventType.DROPPED:
            return "They are gone from the queue; only their sender can send them again."
        case _ if place := _destination(event):
            return f"Mend the cause, then receive them from queue {place!r}, or send them back: QueueHook().send_to({place!r}, lookup_ids)."
        case EventType.REJECTED | EventType.DEAD_LETTERED:
            return f"Look at queue '{queue}.dead-letter', or the one that the sender named."
        case EventType.BLOCKED:
            return _what_to_do_when_blocked(queue, event)
        case _:
            return what_to_do_when_halted(HALTS[event.type], queue, event.lookup_id, event.details.get("system", ""))


def _destination(event: Event) -> str:
    """Return the queue that the messages went to, where the event names it."""
    place = event.details.get("place", "")
    return place if event.type in _SENT_ON and place != OUTBOX else ""


def _named(place: str) -> str:
    return f" {place!r}" if place else ""


def _blocked(facts: Mapping[str, str]) -> str:
    until = facts.get("until", RESTART)
    waits = "the whole queue waits" if facts.get("blocks") == "queue" else "waiting at their place"
    return f"blocked, {waits} until {'the broker is restarted' if until == RESTART else until}"


def _what_to_do_when_blocked(queue: str, event: Event) -> str:
    remove = f"take the message out with QueueHook().remove({queue!r}, {event.lookup_id})"
    if event.details.get("until", RESTART) == RESTART:
        return f"It does not go on by itself: mend the cause and call QueueHook().restart({queue!r}, 'broker'), or {remove}."
    return f"It goes on by itself then. Mend the cause, or {remove}."
