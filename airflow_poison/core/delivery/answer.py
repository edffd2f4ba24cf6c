"""The answer of a simulation in sentences, and the words for places and ends that people see."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from airflow_poison.core.clock import show_duration
from airflow_poison.core.delivery.replay_queue import IN_DELIVERY, NOT_ARRIVED, REMOVED
from airflow_poison.core.delivery.scripted_host import DEAD_LETTER, DROPPED, LOST, PROCESSED
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from airflow_poison.core.delivery.simulated import EndpointHalt, Fate, Simulation

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


def sentences(simulation: Simulation) -> tuple[str, ...]:
    """Return the answer, one sentence or two in each text."""
    return (_how_often(simulation), _how_long(simulation), *_where_to(simulation), *_endpoint(simulation))


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
    return f"{blocked or ','} until the broker restarts or it is removed" if fate.blocked and _is_at_rest(simulation) else blocked


def _endpoint(simulation: Simulation) -> Iterator[str]:
    halts, halted = simulation.halts, simulation.replay.halted
    yield from (_halt(halt) for halt in halts[:MOST_MESSAGES])
    if len(halts) > MOST_MESSAGES:
        yield f"It halts {len(halts)} times in all."
    if halted is not None:
        started = "" if halts else f"The endpoint is {halted}. "
        yield f"{started}It receives nothing until somebody acts."
    elif halts:
        yield "It was opened again, and has not halted since."
    elif blocking := next((fate.name for fate in simulation.fates if fate.blocked and fate.end.place == simulation.policy.reads), ""):
        yield f"The endpoint does not halt, but {blocking} blocks the queue."
    else:
        yield "The endpoint does not halt."


def _halt(halt: EndpointHalt) -> str:
    at = f", at {halt.message}" if halt.message else ""
    return f"{_HALTS[halt.how]} {when(halt.at)}{at}."


def _is_at_rest(simulation: Simulation) -> bool:
    return not simulation.replay.endless and simulation.until is None
