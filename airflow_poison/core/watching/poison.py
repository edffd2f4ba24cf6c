"""Which messages became poison when somebody was told, and where those of them are that still are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.core.events import EventType
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.messages import Chosen, find
from airflow_poison.core.passes.remove import BY_HAND
from airflow_poison.core.watching.happenings import Happening

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_poison.core.store.files import DataFile, Snapshot
    from airflow_poison.core.store.queue_table import QueueTable

_MOVED = frozenset({EventType.MOVED_POISON})


def poisoned(table: QueueTable, payloads: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """Return the messages that went to the poison sub-queue in what the happenings ``poisoned`` tell of: all, not only those that they name."""
    found: set[int] = set()
    for payload in payloads:
        if (payload["event"], payload["queue"]) == (Happening.POISONED.value, table.name):
            since, until = payload["versions"]
            events = table.events(since, until_version=until, types=_MOVED)
            found |= {event.lookup_id for event in events if event.lookup_id is not None and event.details.get("by") != BY_HAND}
    return frozenset(found)


def poison_files(table: QueueTable, snapshot: Snapshot, lookup_ids: Collection[int] | None) -> list[DataFile]:
    """Return the files of the poison sub-queue in which one of the messages is; of all messages for None."""
    if lookup_ids is None:
        return [file for file in snapshot.files if file.sub_queue == SubQueue.POISON]
    return [found.file for found in find(table, snapshot, Chosen.ids(lookup_ids), {SubQueue.POISON})]
