"""Failures: when the error groups of a queue have failed, by recorded events.

Passes record each failure with its error group, so nothing that people do to messages (redrive, undo, move, edit) changes when a group has failed.
Bodies are read only of events without a group: of people, of halts, and of what earlier versions of this package have recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.passes.history import BY_HAND
from airflow_poison.store import data_files, row_groups
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import ERROR_GROUP, EVENT, LAST_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from airflow_poison.store.queue_table import QueueTable

FAILED = (EventType.MOVED_POISON, EventType.MOVED_RETRY, EventType.REJECTED, EventType.FAULTED)
"""The events of failures; what people have caused is none."""
_KINDS = [each.value for each in FAILED]
_NOT_OF_PASSES = (f'"by": "{BY_HAND}"', '"count": "')
"""What the body of an event has in it that people have caused, or that is about all messages of a file."""
_COLUMNS = ("lookup_id", "message_type", "enqueued_at", ERROR_GROUP)
_MOST_KNOWN = 1_000_000
"""So many failures that differ in group or instant the process remembers: event files never change."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How often groups have failed: ``counts`` of ``groups[codes]`` at ``at``, in microseconds since 1970."""

    groups: tuple[str, ...]
    codes: NDArray[np.int64]
    at: NDArray[np.int64]
    counts: NDArray[np.int64]

    def of(self, groups: Sequence[str]) -> Failures:
        """Return those of some groups."""
        place = {group: number for number, group in enumerate(groups)}
        codes = np.array([place.get(group, -1) for group in self.groups], np.int64)[self.codes]
        mine = codes >= 0
        return Failures(tuple(groups), codes[mine], self.at[mine], self.counts[mine])

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """Return the first and the last failure of each group that has failed."""
        low, high = np.full(len(self.groups), np.iinfo(np.int64).max), np.full(len(self.groups), np.iinfo(np.int64).min)
        np.minimum.at(low, self.codes, self.at)
        np.maximum.at(high, self.codes, self.at)
        return {group: (first, last) for group, first, last in zip(self.groups, low.tolist(), high.tolist(), strict=True) if first <= last}

    def trends(self, parts: int) -> Mapping[str, tuple[int, ...]]:
        """Return how many failures of each group were in each of so many equal parts of the time from the first one of all groups to the last."""
        low, high = (int(self.at.min()), int(self.at.max())) if len(self.at) else (0, 0)
        part = np.minimum((self.at - low) * parts // max(high - low, 1), parts - 1)
        table = np.zeros((len(self.groups), parts), np.int64)
        np.add.at(table, (self.codes, part), self.counts)
        return {group: tuple(row) for group, row in zip(self.groups, table.tolist(), strict=True)}


@dataclass(frozen=True, slots=True)
class _OfFile:
    """What an event file says.

    :param unnamed: the messages of failures that do not say their group: ``lookup_id`` and ``at``.
    """

    named: Failures
    unnamed: pa.Table

    @property
    def weight(self) -> int:
        """How much it takes to remember it."""
        return 1 + len(self.named.at) + self.unnamed.num_rows


@dataclass(slots=True)
class _Known:
    """What was read of event files, those that were asked for last."""

    files: OrderedDict[str, _OfFile] = field(default_factory=OrderedDict)
    weight: int = 0
    lock: Lock = field(default_factory=Lock)

    def get(self, path: str) -> _OfFile | None:
        with self.lock:
            if path in self.files:
                self.files.move_to_end(path)
            return self.files.get(path)

    def add(self, path: str, found: _OfFile) -> None:
        with self.lock:
            before = self.files.pop(path, None)
            self.files[path] = found
            self.weight += found.weight - (0 if before is None else before.weight)
            while self.weight > _MOST_KNOWN and len(self.files) > 1:
                self.weight -= self.files.popitem(last=False)[1].weight


_known = _Known()


def failures(table: QueueTable) -> Failures:
    """Return the recorded failures of a queue, as far back as its events go. One that does not say its group is of the group of its message now.

    Raises TableChangedError, StoreUnreachableError.
    """
    paths = table.log.load().paths(EVENT)
    known = {path: _known.get(path) for path in paths}
    table.folder.bring([path for path in paths if known[path] is None])
    found = [known[path] or _remembered(table, path) for path in paths]
    unnamed = pa.concat_tables([_NOBODY, *(each.unnamed for each in found)])
    return _together([*(each.named for each in found), *(_with_groups(table, unnamed) if unnamed.num_rows else ())])


def _remembered(table: QueueTable, path: str) -> _OfFile:
    found = _of_file(table, path)
    _known.add(path, found)
    return found


def _of_file(table: QueueTable, path: str) -> _OfFile:
    named, unnamed = list[pa.Table](), [_NOBODY]
    with row_groups.opened(table.folder, path) as groups:
        for group in range(len(groups)):
            if not groups.may_hold(group, "message_type", _KINDS):
                continue
            rows = _failed(groups.batches([group], _COLUMNS))
            named.append(rows.filter(pc.is_valid(rows["group"])))
            if named[-1].num_rows < rows.num_rows:
                others = _failed(groups.batches([group], [*_COLUMNS, "body"]))
                unnamed.append(_of_passes(others.filter(pc.is_null(others["group"]))))
    return _OfFile(_counted(named), pa.concat_tables(unnamed))


_NOBODY = pa.table({"lookup_id": pa.array([], pa.int64()), "at": pa.array([], pa.int64())})
_NOTHING = pa.table({"group": pa.array([], pa.string()), "at": pa.array([], pa.int64())})


def _failed(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Return the failures among events: ``lookup_id``, ``at``, ``group``, and ``body`` where it was read."""
    rows = pa.Table.from_batches(batches)
    rows = rows.filter(pc.is_in(rows["message_type"], pa.array(_KINDS, pa.string())))
    columns: dict[str, Any] = {name: rows[name] for name in ("lookup_id", "body") if name in rows.column_names}
    columns["at"] = rows["enqueued_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return pa.table(columns | {"group": pc.struct_field(rows[LAST_ERROR], "fingerprint")})


def _of_passes(rows: pa.Table) -> pa.Table:
    """Return the failures of single messages that people have not caused."""
    mine: Any = pc.is_valid(rows["lookup_id"])
    for mark in _NOT_OF_PASSES:
        mine = pc.and_not(mine, pc.match_substring(rows["body"], mark))
    return rows.filter(mine).select(_NOBODY.column_names).cast(_NOBODY.schema)


def _with_groups(table: QueueTable, unnamed: pa.Table) -> Iterator[Failures]:
    """Yield failures with the groups of their messages; those of messages that are gone have none."""
    unnamed = unnamed.sort_by("lookup_id")
    ids = unnamed["lookup_id"].to_numpy()
    found = table.snapshot().files
    table.bring(found)
    for file in found:
        first, end = int(np.searchsorted(ids, file.min_lookup_id, "left")), int(np.searchsorted(ids, file.max_lookup_id, "right"))
        if first < end:
            rows = data_files.read_columns(table.folder, file.path, ["lookup_id", ERROR_GROUP])
            there = pa.table({"lookup_id": rows["lookup_id"], "group": pc.struct_field(rows[LAST_ERROR], "fingerprint")})
            named = there.filter(pc.is_valid(there["group"]))
            yield _counted([unnamed.slice(first, end - first).join(named, "lookup_id", join_type="inner")])


def _counted(parts: Sequence[pa.Table]) -> Failures:
    """Count failures with groups: ``group`` and ``at``."""
    rows = pa.concat_tables([_NOTHING, *(part.select(_NOTHING.column_names) for part in parts)])
    counted = rows.group_by(["group", "at"]).aggregate([([], "count_all")])
    groups = counted["group"].combine_chunks().dictionary_encode()
    codes, at, counts = (np.asarray(cells.to_numpy(), np.int64) for cells in (groups.indices, counted["at"], counted["count_all"]))
    return Failures(tuple(map(str, groups.dictionary.to_pylist())), codes, at, counts)


def _together(parts: Sequence[Failures]) -> Failures:
    place: dict[str, int] = {}
    codes = [np.array([place.setdefault(group, len(place)) for group in each.groups], np.int64)[each.codes] for each in parts]
    at, counts = [each.at for each in parts], [each.counts for each in parts]
    nothing = np.zeros(0, np.int64)
    return Failures(tuple(place), *(np.concatenate([nothing, *each]) for each in (codes, at, counts)))
