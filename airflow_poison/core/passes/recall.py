"""Recall: what has happened to a queue and its messages, from the events that commits recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class RecallResult:
    """Events in the order of their commits.

    :param earlier: how many older ones were left out.
    """

    queue: str
    events: tuple[Event, ...]
    earlier: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"queue": self.queue, "events": [plain(event) for event in self.events], "earlier": self.earlier}


def recall(
    table: QueueTable,
    *,
    lookup_ids: Collection[int] | None = None,
    types: Collection[EventType] | None = None,
    since: datetime | None = None,
    limit: int | None = None,
) -> RecallResult:
    """Return the newest events of a queue. Deliveries, commits and rollbacks are there when a pass was told to record them.

    :param lookup_ids: only those of these messages; None: all, also of the queue itself.
    :param types: only those of these types.
    :param since: only those from then on.
    :param limit: at most so many, the newest; None: all.
    """
    if limit is not None:
        newest, earlier = table.newest_events(limit, lookup_ids=lookup_ids, types=types, since=since)
        return RecallResult(table.name, tuple(newest), earlier)
    events = table.events(types=types)
    found = (event for event in events if (lookup_ids is None or event.lookup_id in lookup_ids) and (since is None or event.at >= since))
    return RecallResult(table.name, tuple(found))


def plain(event: Event) -> dict[str, object]:
    """Return an event as plain values."""
    counts = {"abort_count": event.abort_count, "move_count": event.move_count}
    return {"at": event.at.isoformat(), "event": event.type.value, "lookup_id": event.lookup_id, **counts, "details": dict(event.details)}
