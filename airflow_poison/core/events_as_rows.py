"""Events in the table: one row each in the partition ``_event``, in the columns that messages use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_poison.core.events import Event, EventType
from airflow_poison.core.message import EVENT, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

COLUMNS = ("lookup_id", "message_type", "enqueued_at", "abort_count", "priority", "body")
STANDS_FOR = "crash_count"
"""The column that says for how many messages a row stands: an event of a whole file for all of its messages. Null in tables of earlier versions."""


def events_to_table(events: Iterable[Event], first: int = 0) -> pa.Table:
    """Return rows of the ``_event`` partition (``table_schema()``); the event's own move count is in the body, the partition's is 0.

    :param first: number of the first one in its writer's order; kept in the column ``priority``, since whoever writes rows may shuffle them.
    """
    import pyarrow as pa

    rows = [
        {
            "lookup_id": event.lookup_id,
            "message_type": event.type.value,
            "enqueued_at": event.at,
            "abort_count": event.abort_count,
            STANDS_FOR: int(event.details["count"]) if {"count", "path"} <= event.details.keys() else 1,
            "priority": number,
            "body": json.dumps({"move_count": event.move_count, **event.details}).encode(),
            "sub_queue": EVENT,
            "move_count": 0,
        }
        for number, event in enumerate(events, first)
    ]
    return pa.Table.from_pylist(rows, schema=table_schema())


def table_to_events(table: pa.Table) -> Iterator[Event]:
    """Return the events of rows that ``events_to_table`` made, in their writer's order."""
    for row in table.select(list(COLUMNS)).sort_by("priority").to_pylist():
        details = json.loads(row["body"])
        at: datetime = row["enqueued_at"]
        yield Event(
            type=EventType(row["message_type"]),
            at=at,
            lookup_id=row["lookup_id"],
            abort_count=row["abort_count"] or 0,
            move_count=details.pop("move_count"),
            details=details,
        )
