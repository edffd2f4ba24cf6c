"""Alter: let a halted queue receive again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from airflow_poison.core.events import Event, EventType
from airflow_poison.core.store.seam import QueueState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.seam import Control, QueueTable


@dataclass(frozen=True, slots=True)
class EnableResult:
    """What enabling did: the state before, which is ``enabled`` when there was nothing to do, and the reason that had halted the queue."""

    queue: str
    before: str
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def enable(table: QueueTable, clock: Clock) -> EnableResult:
    """Let the queue's endpoint receive again. The message that halted it keeps its counts (spec WCF-21): remove it, or it may halt it again."""
    now = clock.now()
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        return replace(control, state=QueueState.ENABLED, reason="")

    def events(before: Control, after: Control) -> Sequence[Event]:
        if before.state is after.state:
            return ()
        return (Event(EventType.QUEUE_ENABLED if before.state is QueueState.DISABLED else EventType.STARTED, now),)

    if table.snapshot().control.state is QueueState.ENABLED:
        return EnableResult(table.name, QueueState.ENABLED.value, "")
    table.alter(change, events, now)
    return EnableResult(table.name, seen[-1].state.value, seen[-1].reason)
