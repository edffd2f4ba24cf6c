"""Events as a part of the table: written by the commit that caused them, read in the order of commits."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.store import data_files, row_groups
from airflow_poison.store.data_files import event_versions, is_joined, partition_of
from airflow_poison.store.row_groups import PLACE, RowGroups
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.libraries import np, pa, pc
from airflow_poison.values.schema import EVENT, EVENT_COLUMNS, STANDS_FOR, table_to_events

if TYPE_CHECKING:
    from airflow_poison.store.disk import Folder
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import Table
    from airflow_poison.values.events import Event, EventType

_ORIGIN = "message_id"
"""The column that says, in a file of joined events, which file a row was in: versions and parts in their order."""
_IDS = "lookup_ids"
"""The detail that holds the messages of an event of a whole file."""
_COUNTED = '"count": "'
"""What the body of an event of a whole file has in it."""
_EVENTS = "events"


def events(table: Table, since_version: int = -1, *, until_version: int | None = None, types: Collection[EventType] | None = None) -> Iterator[Event]:
    """Return the recorded events of later versions, in the order of their commits; one of a whole file becomes one of each of its messages.

    :param until_version: the last version that counts; None: the newest.
    :param types: only events of these types; None: all.
    """
    state = table.log.load()
    wanted = range(since_version + 1, (state.version if until_version is None else until_version) + 1)
    recorded = sorted(file.path for file in state.files if file.sub_queue == EVENT and _overlap(event_versions(file.path), wanted))
    table.folder.bring(recorded)
    for path in recorded:
        for event in table_to_events(_rows(table.folder, path, wanted)):
            if types is None or event.type in types:
                yield from _one_by_one(table.folder, event)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which events: of these messages, of these types, from a time on; None: all."""

    lookup_ids: Collection[int] | None = None
    types: Collection[EventType] | None = None
    since: datetime | None = None

    @property
    def columns(self) -> list[str]:
        return [
            "priority",
            "lookup_id",
            STANDS_FOR,
            *(["message_type"] if self.types is not None else []),
            *(["enqueued_at"] if self.since is not None else []),
        ]

    @property
    def everything(self) -> bool:
        """Whether it is every event."""
        return self.lookup_ids is None and self.types is None and self.since is None

    def excludes(self, groups: RowGroups, group: int) -> bool:
        """Whether statistics say that a row group has none of them."""
        if self.types is not None and not groups.may_hold(group, "message_type", [each.value for each in self.types]):
            return True
        if self.lookup_ids is None or not groups.is_all(group, STANDS_FOR, 1):
            return False
        return not groups.may_hold(group, "lookup_id", self.lookup_ids)

    def among(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are wanted; those that may stand for all messages of a file stay."""
        if self.types is not None:
            rows = rows.filter(pc.is_in(rows["message_type"], pa.array([each.value for each in self.types], pa.string())))
        if self.since is not None:
            rows = rows.filter(pc.greater_equal(rows["enqueued_at"], pa.scalar(self.since, rows["enqueued_at"].type)))
        several = pc.invert(pc.is_in(rows[STANDS_FOR], pa.array([1], pa.int32())))
        return rows.filter(pc.or_(several, self.mine(rows["lookup_id"])))

    def mine(self, lookup_ids: pa.ChunkedArray[Any]) -> pa.BooleanArray:
        if self.lookup_ids is None:
            return pa.repeat(pa.scalar(value=True), len(lookup_ids))
        possible = [number for number in self.lookup_ids if abs(number) < 2**63]  # people type longer ones, too
        return pc.is_in(lookup_ids, pa.array(possible, pa.int64()))

    def of(self, lookup_ids: Sequence[int]) -> Sequence[int]:
        return lookup_ids if self.lookup_ids is None else [number for number in lookup_ids if number in self.lookup_ids]


def newest_events(
    table: Table,
    limit: int,
    *,
    lookup_ids: Collection[int] | None = None,
    types: Collection[EventType] | None = None,
    since: datetime | None = None,
) -> tuple[Sequence[Event], int]:
    """Return the newest recorded events, in the order of their commits, and how many earlier ones there are.

    Files and row groups are read from the newest on. Behind the last event that is returned they are counted: by their statistics where every event
    counts, else by the columns that decide.

    :param lookup_ids: only events of these messages; None: all, also of the queue itself.
    :param types: only of these types.
    :param since: only from then on.
    """
    wanted = _Wanted(None if lookup_ids is None else frozenset(lookup_ids), types, since)
    found: list[Event] = []  # a row group's events in their order, before events of newer ones
    earlier = 0
    recorded = sorted((file.path for file in table.log.load().files if file.sub_queue == EVENT), reverse=True)
    table.folder.bring(recorded)
    for path in recorded:
        with row_groups.open_row_groups(table.folder, path) as groups:
            for together in _newest_first(groups):
                if len(found) == limit and wanted.everything and all(groups.is_all(group, STANDS_FOR, 1) for group in together):
                    earlier += sum(map(groups.rows, together))
                    continue
                rest, count = _newest_of(
                    table.folder, groups, [group for group in together if not wanted.excludes(groups, group)], limit - len(found), wanted
                )
                found[:0] = rest
                earlier += count - len(rest)
    return found, earlier


def messages_of(table: Table, details: Mapping[str, str]) -> Sequence[int] | None:
    """Return the messages of an event of a whole file, by its details; None for other events, and where they are not known any more."""
    return _messages(table.folder, details)


def details_of_plan(table: Table, plan: str) -> Iterator[Mapping[str, str]]:
    """Yield the details of the events that a plan's chunks have recorded, in the order of their commits; one for each file of a chunk."""
    for path in sorted(file.path for file in table.log.load().files if file.sub_queue == EVENT):
        bodies = data_files.read_columns(table.folder, path, ["priority", "body"]).sort_by("priority")["body"]
        for body in bodies.filter(pc.match_substring(bodies, f'"plan": "{plan}"')).to_pylist():
            yield json.loads(body or b"{}")


def _newest_first(groups: RowGroups) -> Iterator[list[int]]:
    """Yield row groups by the numbers of their rows, the highest first; together where these overlap, or are not known."""
    bounds = {group: groups.bounds(group, "priority") for group in range(len(groups))}
    known = {group: found for group, found in bounds.items() if found is not None}
    if len(known) < len(bounds):
        yield list(bounds)
        return
    together: list[int] = []
    for group in sorted(known, key=lambda each: known[each][1], reverse=True):
        if together and known[group][1] < min(known[each][0] for each in together):
            yield together
            together = []
        together.append(group)
    if together:
        yield together


def _newest_of(folder: Folder, groups: RowGroups, together: Sequence[int], limit: int, wanted: _Wanted) -> tuple[list[Event], int]:
    """Return the newest events of row groups in their order, at most ``limit``, and how many they hold."""
    rows = _weighed(groups, wanted.among(groups.columns(together, wanted.columns)), folder, wanted)
    held = sum(count or 0 for count in rows[_EVENTS].to_pylist())
    if not limit or not held:
        return [], held
    before = pc.less(pc.cumulative_sum(rows[_EVENTS]), pa.scalar(limit, pa.int64())).to_pylist().count(True)
    chosen = rows.slice(0, before + 1)
    found = [each for event in table_to_events(groups.take(chosen, EVENT_COLUMNS)) for each in _one_by_one(folder, event, wanted, limit)]
    return found[-limit:], held


def _weighed(groups: RowGroups, rows: pa.Table, folder: Folder, wanted: _Wanted) -> pa.Table:
    """Return the rows that stand for wanted events, the newest first, and for how many each does."""
    one = pc.is_in(rows[STANDS_FOR], pa.array([1], pa.int32()))
    singles, others = rows.filter(one), rows.filter(pc.invert(one)).sort_by([(name, "ascending") for name in PLACE])
    counts = [count for part in groups.portions(others, ["lookup_id", "body"]) for count in _counts(folder, part, wanted)]
    weighed = pa.concat_tables(
        [
            singles.append_column(_EVENTS, pa.repeat(pa.scalar(1, pa.int64()), singles.num_rows)),
            others.append_column(_EVENTS, pa.array(counts, pa.int64())),
        ]
    )
    return weighed.filter(pc.greater(weighed[_EVENTS], pa.scalar(0))).sort_by([("priority", "descending")])


def _counts(folder: Folder, rows: pa.Table, wanted: _Wanted) -> list[int]:
    """Return for how many wanted events each row stands, by what its body says."""
    counts = [int(bool(mine)) for mine in wanted.mine(rows["lookup_id"]).to_pylist()]
    bodies = rows["body"].to_pylist()
    for row in (row for row, whole in enumerate(pc.match_substring(rows["body"], _COUNTED).to_pylist()) if whole):
        details = json.loads(bodies[row] or b"{}")
        if wanted.lookup_ids is None and _IDS not in details:
            counts[row] = _rows_of_file(folder, details) or 1
        elif (lookup_ids := _messages(folder, details)) is not None:
            counts[row] = len(wanted.of(lookup_ids))
    return counts


def _overlap(held: tuple[int, int], wanted: range) -> bool:
    return held[0] < wanted.stop and held[1] >= wanted.start


def _rows(folder: Folder, path: str, wanted: range) -> pa.Table:
    if not is_joined(path):
        return data_files.read_columns(folder, path, EVENT_COLUMNS)
    rows = data_files.read_columns(folder, path, (*EVENT_COLUMNS, _ORIGIN))
    return rows.filter(pa.array([event_versions(origin or "")[0] in wanted for origin in rows.column(_ORIGIN).to_pylist()], pa.bool_()))


def joined(folder: Folder, recorded: Sequence[DataFile]) -> pa.Table:
    """Return the rows of event files, in the order of history, as the rows of one file.

    Each says in ``message_id`` which file it was in, and is numbered anew. An event of a whole file gets the ids of its messages: the file that
    it names is cleaned up some day.
    """
    folder.bring([file.path for file in recorded])
    rows = pa.concat_tables([_placed(folder, file) for file in recorded])
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int32))
    bodies = pa.array([_with_ids(folder, body) for body in rows.column("body").to_pylist()], pa.binary())
    return _with(_with(rows, "priority", numbers), "body", bodies)


def _placed(folder: Folder, file: DataFile) -> pa.Table:
    rows = data_files.read(folder, file).sort_by("priority")
    return rows if is_joined(file.path) else _with(rows, _ORIGIN, pa.repeat(pa.scalar(Path(file.path).stem), rows.num_rows))


def _with(rows: pa.Table, name: str, values: pa.Array[Any]) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)


def _with_ids(folder: Folder, body: bytes | None) -> bytes | None:
    if body is None or _COUNTED.encode() not in body:
        return body
    details = json.loads(body)
    lookup_ids = None if _IDS in details else _ids_of(folder, details)  # it may be about some of the file's messages only
    return body if lookup_ids is None else json.dumps(details | {_IDS: as_ranges(lookup_ids)}).encode()


def named_files(folder: Folder, recorded: Sequence[DataFile]) -> set[str]:
    """Return the files that events of whole files need, to make one event for each message."""
    found: set[str] = set()
    for path in (file.path for file in recorded if not is_joined(file.path)):
        for body in data_files.read_columns(folder, path, ["body"]).column("body").to_pylist():
            if body is not None and _COUNTED.encode() in body:
                found.add(str(json.loads(body).get("path", "")))
    return found


def _one_by_one(folder: Folder, event: Event, wanted: _Wanted | None = None, most: int | None = None) -> Iterator[Event]:
    """Return an event for each message of a moved file, in order of due time and lookup id; the one event when that is not known any more.

    :param wanted: only events of these messages.
    :param most: only so many of them, the last ones.
    """
    lookup_ids = _messages(folder, event.details)
    if lookup_ids is None:
        yield event
        return
    details = {name: value for name, value in event.details.items() if name not in {"count", "max_lookup_id", "path", _IDS}}
    here = lookup_ids if wanted is None else wanted.of(lookup_ids)
    for lookup_id in here if most is None else here[-most:]:
        yield replace(event, lookup_id=lookup_id, details=details)


def _messages(folder: Folder, details: Mapping[str, str]) -> Sequence[int] | None:
    """Return the messages of an event of a whole file; None for other events, and where they are not known any more."""
    return from_ranges(details[_IDS]) if _IDS in details else _ids_of(folder, details)


def _ids_of(folder: Folder, details: Mapping[str, str]) -> list[int] | None:
    """Return the messages of the file that an event is about, as they fall due; None for other events, and where the file is gone."""
    path = details.get("path", "")
    if "count" not in details or partition_of(path) is None:
        return None
    try:
        rows = data_files.read_columns(folder, path, ["lookup_id", "due_at"])
    except TableChangedError:
        return None
    return [number or 0 for number in rows.sort_by([("due_at", "ascending"), ("lookup_id", "ascending")]).column("lookup_id").to_pylist()]


def _rows_of_file(folder: Folder, details: Mapping[str, str]) -> int:
    """Return how many messages the file has that an event is about; 0 for other events, and where the file is gone."""
    path = details.get("path", "")
    if "count" not in details or partition_of(path) is None:
        return 0
    try:
        with row_groups.open_row_groups(folder, path) as groups:
            return sum(map(groups.rows, range(len(groups))))
    except TableChangedError:
        return 0


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
