"""Events as a part of the table: written by the commit that caused them, read in the order of commits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.events_as_rows import COLUMNS, events_to_table, table_to_events
from airflow_poison.core.message import EVENT
from airflow_poison.core.store.table import files
from airflow_poison.core.store.table.layout import event_prefix, event_version, partition_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.seam import DataFile
    from airflow_poison.core.store.table.base import Table


def write(root: str, version: int, events: Sequence[Event], part: int = 0) -> list[DataFile]:
    """Write the events of the commit that makes ``version``; no file when there are none.

    :param part: orders several files of one commit.
    """
    if not events:
        return []
    return [files.write_new(root, EVENT, 0, events_to_table(events), prefix=f"{event_prefix(version)}{part:06d}-")]


def read(table: Table, since_version: int, until_version: int | None, types: Collection[EventType] | None) -> Iterator[Event]:
    """Return the events of later versions; an event of a whole file becomes one of each of its messages."""
    state = table.log.load()
    last = state.version if until_version is None else until_version
    recorded = [file for file in state.files if file.sub_queue == EVENT and since_version < event_version(file.path) <= last]
    for file in sorted(recorded, key=lambda file: file.path):
        for event in table_to_events(files.read_columns(table.root, file.path, COLUMNS)):
            if types is None or event.type in types:
                yield from _one_by_one(table.root, event)


def _one_by_one(root: str, event: Event) -> Iterator[Event]:
    """Return an event for each message of a moved file, in order of due time and lookup id; the one event when the file is vacuumed."""
    path = event.details.get("path", "")
    if "count" not in event.details or partition_of(path) is None:
        yield event
        return
    try:
        rows = files.read_columns(root, path, ["lookup_id", "due_at"]).sort_by([("due_at", "ascending"), ("lookup_id", "ascending")])
    except TableChangedError:
        yield event
        return
    details = {name: value for name, value in event.details.items() if name not in {"count", "max_lookup_id", "path"}}
    for lookup_id in rows.column("lookup_id").to_pylist():
        yield replace(event, lookup_id=lookup_id, details=details)
