"""The columns and partitions of a queue table, and events as its rows (partition ``_event``, in the columns that messages use)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from airflow_poison.values.events import Event, EventType
from airflow_poison.values.libraries import pa


class SubQueue(StrEnum):
    """Where in an application queue a message waits (spec WCF-20).

    Two are ours, and coming back from them is no move and counts nothing. In ``postponed`` waits what a handler gave back for later; in
    ``transmission`` what was sent to a disabled queue: it is our place for ``sys.transmission_queue`` (spec SB-19), and it has no reader.
    """

    MAIN = "main"
    RETRY = "retry"
    POISON = "poison"
    POSTPONED = "postponed"
    TRANSMISSION = "transmission"


def place_name(queue: str, place: SubQueue) -> str:
    """Return a sub-queue's name as people write it: ``orders`` or ``orders;poison``."""
    return queue if place is SubQueue.MAIN else f"{queue};{place}"


LOOKUP_ID = "lookup_id"
"""The column that says which message a row is of, or is about."""
FRAME_COLUMNS = (
    LOOKUP_ID,
    "message_id",
    "body",
    "group_id",
    "conversation_id",
    "message_type",
    "properties",
    "priority",
    "enqueued_at",
    "expires_at",
    "abort_count",
    "move_count",
    "crash_count",
)
"""The columns of messages that batches and transformations are given where they declare none of the bodies'."""
EVENT = "_event"
"""Partition of the events that commits recorded."""
OUTBOX = "_outbox"
"""Partition of the messages that leave for another queue."""
CONVERSATION = "_conversation"
"""Partition of the conversation endpoints: a row for each version of one, of which the highest counts."""
TRANSMISSION_QUEUE = "_transmission"
"""Partition of the dialog messages that wait at their sender until the target queue takes them: ``sys.transmission_queue`` (spec SB-19)."""
LANDING = "_output"
"""Partition of the rows that handlers returned, until they are in their outputs (``delivery.landing_rows``)."""
DIALOG = "poison.dialog"
"""The property that holds the envelope of a dialog's message."""
DESTINATION = "poison.destination"
"""The property by which a message in the outbox names the queue that it goes to; it stays behind when the message is sent on."""
OWN_PROPERTIES = "poison."
"""Begins the names of properties that the product keeps for itself; no sender sets one (``is_reserved``)."""
CARRIED = frozenset({"poison.origin_queue", "poison.origin_lookup_id", "poison.reason"})
"""Of them, those that say where a message that was sent on comes from: a handler that sends it on again may give them along."""
TO_TOPIC = "kafka:"
"""Begins the destination of a message that people send to a Kafka topic. No policy and no sender sends there; no queue has such a name."""
PLAN = "_plan"
"""Partition of the plans of people: what is to become of which messages (``desk``)."""
SOURCE = "_source"
"""Partition of the positions of sources: how far each was taken into the queue (``sources``)."""
TALLY = "_tally"
"""What a task counted; only in a stage, never part of a table."""

DEFAULT_PRIORITY = 5
MAX_BODY_BYTES = 64 * 1024 * 1024


@cache
def message_schema() -> pa.Schema:
    """Return the columns of a data file (the table adds the partition columns ``sub_queue`` and ``move_count``).

    | column | meaning |
    |---|---|
    | lookup_id | gapless number in the order of arrival, unique in the queue |
    | message_id | the sender's own identifier |
    | priority | higher is received earlier; 0 to 10, default 5 |
    | group_id, conversation_id, message_type | as sent; null when not given |
    | body | the message itself, bytes |
    | properties | further text values by name |
    | enqueued_at, expires_at | when it was sent; when its time to live ends (null: never), UTC |
    | abort_count | rollbacks since the last move (spec WCF-9) |
    | crash_count | rollbacks of any cycle in which the process ended or timed out |
    | due_at | when it may leave the retry sub-queue, UTC; stays when it has |
    | last_error | the failure of its last delivery |
    | reason | its last failure, one line; null before the first |
    """
    instant = pa.timestamp("us", tz="UTC")
    fields: list[pa.Field[Any]] = [
        pa.field("lookup_id", pa.int64(), nullable=True),
        pa.field("message_id", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("group_id", pa.string()),
        pa.field("conversation_id", pa.string()),
        pa.field("message_type", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("enqueued_at", instant),
        pa.field("expires_at", instant),
        pa.field("abort_count", pa.int32()),
        pa.field("crash_count", pa.int32()),
        pa.field("due_at", instant),
        pa.field(
            "last_error",
            pa.struct(
                [
                    pa.field("kind", pa.string()),
                    pa.field("type", pa.string()),
                    pa.field("message", pa.string()),
                    pa.field("fingerprint", pa.string()),
                    pa.field("trace", pa.string()),
                ]
            ),
        ),
        pa.field("reason", pa.string()),
    ]
    return pa.schema(fields)


@cache
def table_schema() -> pa.Schema:
    """Return the columns of a queue table: the columns of a data file and the two partition columns."""
    return message_schema().append(pa.field("sub_queue", pa.string())).append(pa.field("move_count", pa.int32()))


EVENT_COLUMNS = ("lookup_id", "message_type", "enqueued_at", "abort_count", "priority", "body")
LAST_ERROR = "last_error"
"""Of a message: the failure of its last delivery. Of an event that a failure has caused: the failure's error group, and nothing else of it."""
ERROR_GROUP = f"{LAST_ERROR}.fingerprint"
"""The same group as a column of a Parquet file."""
STANDS_FOR = "crash_count"
"""The column that says for how many messages a row stands: an event of a whole file for all of its messages."""


def events_to_table(events: Iterable[Event], first: int = 0) -> pa.Table:
    """Return rows of the ``_event`` partition (``table_schema()``); the event's own move count is in the body, the partition's is 0.

    :param first: number of the first one in its writer's order; kept in the column ``priority``, since writers may shuffle rows.
    """
    rows = [
        {
            "lookup_id": event.lookup_id,
            "message_type": event.type.value,
            "enqueued_at": event.at,
            "abort_count": event.abort_count,
            STANDS_FOR: int(event.details["count"]) if {"count", "path"} <= event.details.keys() else 1,
            "priority": number,
            LAST_ERROR: {"fingerprint": event.error} if event.error else None,
            "body": json.dumps({"move_count": event.move_count, **event.details}).encode(),
            "sub_queue": EVENT,
            "move_count": 0,
        }
        for number, event in enumerate(events, first)
    ]
    return pa.Table.from_pylist(rows, schema=table_schema())


def of_groups(groups: pa.Array[Any]) -> pa.Array[Any]:
    """Return the column ``last_error`` of events, by the error groups of what has caused them."""
    kind = table_schema().field(LAST_ERROR).type
    cells = [groups if each.name == "fingerprint" else pa.nulls(len(groups), each.type) for each in kind]
    return pa.StructArray.from_arrays(cells, fields=list(kind), mask=groups.is_null())


def table_to_events(table: pa.Table) -> Iterator[Event]:
    """Return the events of rows that ``events_to_table`` made, in their writer's order."""
    for row in table.select(list(EVENT_COLUMNS)).sort_by("priority").to_pylist():
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


def is_reserved(property_name: str) -> bool:
    """Say whether a property is set by the product alone."""
    return property_name.startswith(OWN_PROPERTIES) and property_name not in CARRIED
