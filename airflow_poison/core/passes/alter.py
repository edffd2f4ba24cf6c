"""Alter: let a halted queue receive again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.events import Event, EventType
from airflow_poison.core.message import SubQueue
from airflow_poison.core.store.seam import QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.seam import Control, QueueTable

ENDPOINTS = (SubQueue.MAIN, SubQueue.POISON)
"""The sub-queues that an endpoint can read."""
_STARTED: Mapping[QueueState, EventType] = {
    QueueState.DISABLED: EventType.QUEUE_ENABLED,
    QueueState.STOPPED: EventType.STARTED,
    QueueState.FAULTED: EventType.STARTED,
}


@dataclass(frozen=True, slots=True)
class EnableResult:
    """What enabling did: the state before, which is ``enabled`` when there was nothing to do, and the reason that had halted the queue.

    When only the reader of the poison sub-queue had halted, they are that reader's.
    """

    queue: str
    before: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def enable(table: QueueTable, clock: Clock) -> EnableResult:
    """Let the queue's endpoints receive again: its own, and the reader of its poison sub-queue.

    A message that halted one keeps its counts (spec WCF-21): remove it, or it may halt it again.
    """
    now = clock.now()
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        return control.enabled()

    def events(before: Control, _after: Control) -> Sequence[Event]:
        states = (before.endpoint(reads)[0] for reads in ENDPOINTS)
        return tuple(Event(_STARTED[state], now) for state in states if state is not QueueState.ENABLED)

    control = table.snapshot().control
    if control == control.enabled():
        return EnableResult(table.name, QueueState.ENABLED.value, "")
    table.alter(change, events, now)
    endpoints = [seen[-1].endpoint(reads) for reads in ENDPOINTS]
    state, reason = next((endpoint for endpoint in endpoints if endpoint[0] is not QueueState.ENABLED), endpoints[0])
    return EnableResult(table.name, state.value, reason)
