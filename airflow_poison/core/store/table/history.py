"""Events as a part of the table: written by the commit that caused them, read in the order of commits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.events_as_rows import COLUMNS, events_to_table, table_to_events
from airflow_poison.core.message import EVENT
from airflow_poison.core.store.table import files
from airflow_poison.core.store.table.layout import commit_prefix, event_versions, is_joined, partition_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.table.base import Table

_ORIGIN = "message_id"
"""The column that says, in a file of joined events, which file a row was in: versions and parts in their order."""
_IDS = "lookup_ids"
"""The detail that holds the messages of an event of a whole file."""


def write(root: str, version: int, events: Sequence[Event], part: int = 0) -> list[DataFile]:
    """Write the events of the commit that makes ``version``; no file when there are none.

    :param part: orders several files of one commit.
    """
    if not events:
        return []
    return [files.write_new(root, EVENT, 0, events_to_table(events), prefix=commit_prefix(version, part))]


def read(table: Table, since_version: int, until_version: int | None, types: Collection[EventType] | None) -> Iterator[Event]:
    """Return the events of later versions; an event of a whole file becomes one of each of its messages."""
    state = table.log.load()
    wanted = range(since_version + 1, (state.version if until_version is None else until_version) + 1)
    recorded = [file.path for file in state.files if file.sub_queue == EVENT and _overlap(event_versions(file.path), wanted)]
    for path in sorted(recorded):
        for event in table_to_events(_rows(table.root, path, wanted)):
            if types is None or event.type in types:
                yield from _one_by_one(table.root, event)


def _overlap(held: tuple[int, int], wanted: range) -> bool:
    return held[0] < wanted.stop and held[1] >= wanted.start


def _rows(root: str, path: str, wanted: range) -> pa.Table:
    """Return the rows of an event file that were committed with these versions."""
    import pyarrow as pa

    if not is_joined(path):
        return files.read_columns(root, path, COLUMNS)
    rows = files.read_columns(root, path, (*COLUMNS, _ORIGIN))
    return rows.filter(pa.array([event_versions(origin or "")[0] in wanted for origin in rows.column(_ORIGIN).to_pylist()], pa.bool_()))


def joined(root: str, recorded: Sequence[DataFile]) -> pa.Table:
    """Return the rows of event files, in the order of history, as the rows of one file.

    Each says in ``message_id`` which file it was in, and is numbered anew. An event of a whole file gets the ids of its messages: the file that
    it names is cleaned up some day.
    """
    import numpy as np
    import pyarrow as pa

    rows = pa.concat_tables([_placed(root, file) for file in recorded])
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int32))
    bodies = pa.array([_with_ids(root, body) for body in rows.column("body").to_pylist()], pa.binary())
    return _with(_with(rows, "priority", numbers), "body", bodies)


def _placed(root: str, file: DataFile) -> pa.Table:
    import pyarrow as pa

    rows = files.read(root, file).sort_by("priority")
    return rows if is_joined(file.path) else _with(rows, _ORIGIN, pa.repeat(pa.scalar(Path(file.path).stem), rows.num_rows))


def _with(rows: pa.Table, name: str, values: pa.Array[Any]) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)


def _with_ids(root: str, body: bytes | None) -> bytes | None:
    if body is None or b'"count": "' not in body:
        return body
    details = json.loads(body)
    lookup_ids = _ids_of(root, details)
    return body if lookup_ids is None else json.dumps(details | {_IDS: as_ranges(lookup_ids)}).encode()


def named_files(root: str, recorded: Sequence[DataFile]) -> set[str]:
    """Return the files that events of whole files need, to be told one by one."""
    found: set[str] = set()
    for path in (file.path for file in recorded if not is_joined(file.path)):
        for body in files.read_columns(root, path, ["body"]).column("body").to_pylist():
            if body is not None and b'"count": "' in body:
                found.add(str(json.loads(body).get("path", "")))
    return found


def _one_by_one(root: str, event: Event) -> Iterator[Event]:
    """Return an event for each message of a moved file, in order of due time and lookup id; the one event when that is not known any more."""
    lookup_ids = from_ranges(event.details[_IDS]) if _IDS in event.details else _ids_of(root, event.details)
    if lookup_ids is None:
        yield event
        return
    details = {name: value for name, value in event.details.items() if name not in {"count", "max_lookup_id", "path", _IDS}}
    for lookup_id in lookup_ids:
        yield replace(event, lookup_id=lookup_id, details=details)


def _ids_of(root: str, details: Mapping[str, str]) -> list[int] | None:
    """Return the messages of the file that an event is about, as they fall due; None for other events, and where the file is gone."""
    path = details.get("path", "")
    if "count" not in details or partition_of(path) is None:
        return None
    try:
        rows = files.read_columns(root, path, ["lookup_id", "due_at"])
    except TableChangedError:
        return None
    return [number or 0 for number in rows.sort_by([("due_at", "ascending"), ("lookup_id", "ascending")]).column("lookup_id").to_pylist()]


def as_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text, neighbours that count upwards as one range: ``1-3,7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def from_ranges(text: str) -> list[int]:
    """Return the numbers that ``as_ranges`` wrote."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
