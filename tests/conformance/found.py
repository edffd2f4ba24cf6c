"""Where the messages of a script are after its passes: looked up in the tables, and in what they recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.passes.history import BY_HAND
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.conformance.played import DROPPED, PROCESSED, QUEUE, REMOVED, Place, place_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_poison.store import QueueStore
    from airflow_poison.values.events import Event

_FEEDBACK = "JMS_IBM_Feedback"
"""The property of a report message."""


class Found:
    """What is in the queues of a store now.

    :param events: of the queue ``QUEUE``, by message.
    """

    def __init__(self, store: QueueStore, events: dict[str, list[Event]]) -> None:
        self._rows = [row for name in store.names() for row in _rows(store, name)]
        self._events = events

    def reports(self) -> tuple[tuple[str, int], ...]:
        """Return queue and feedback of each report message."""
        return tuple(sorted((row["queue"], int(row["properties"][_FEEDBACK])) for row in self._rows if _FEEDBACK in row["properties"]))

    def end_of(self, message: str) -> Place:
        """Return where a message is; whatever is in no queue was processed, dropped or removed, once."""
        found = [_place(row) for row in self._rows if row["message_id"] == message and _FEEDBACK not in row["properties"]]
        assert len(found) <= 1, f"{message} is there more than once: {found}"
        return found[0] if found else self._gone(message)

    def _gone(self, message: str) -> Place:
        left = [event for event in self._events.get(message, []) if event.type in {EventType.DROPPED, EventType.COMMITTED}]
        assert len(left) == 1, f"{message} is nowhere, and left so: {left}"
        if left[0].type is EventType.COMMITTED:
            return Place(PROCESSED)
        return Place(REMOVED if is_removal(left[0]) else DROPPED)


def is_removal(event: Event) -> bool:
    """Return whether people took a message out: the specification has no event for it."""
    return event.type is EventType.DROPPED and event.details.get("by") == BY_HAND


def by_message(events: Sequence[Event], names: dict[int, str]) -> dict[str, list[Event]]:
    """Return the events of each message."""
    told: dict[str, list[Event]] = {}
    for event in events:
        told.setdefault(names.get(event.lookup_id or 0, ""), []).append(event)
    return told


def _rows(store: QueueStore, name: str) -> Iterator[dict[str, Any]]:
    queue = store.open(name)
    for file in queue.snapshot().files:
        yield from (row | {"queue": name, "properties": dict(row["properties"] or ())} for row in queue.read(file).to_pylist())


def _place(row: dict[str, Any]) -> Place:
    """What is held back in front of a disabled queue is in it, as far as people can see."""
    if row["queue"] != QUEUE:
        return Place(place_named(row["queue"]), properties=row["properties"])
    place = SubQueue.MAIN.value if row["sub_queue"] == SubQueue.TRANSMISSION else row["sub_queue"]
    return Place(place, row["abort_count"], row["move_count"])
