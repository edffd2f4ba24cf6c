"""Find messages of a selection, count them by error group, and answer queries: looks at one version of a queue, which change nothing.

When error groups have failed is read from recorded events. Passes record each failure with its error group, so nothing that people do to messages
(redrive, undo, move, edit) changes it. Bodies are read only of events without a group: of people, of halts, and of what earlier versions of this
package have recorded.
"""

from __future__ import annotations

import base64
import re
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from itertools import chain
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.desk import sql
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.browse import MessageRow, masked
from airflow_poison.passes.history import BY_HAND
from airflow_poison.rules.settings import instant, whole_number
from airflow_poison.sources.rows import shown
from airflow_poison.store import data_files, row_groups
from airflow_poison.values import json_text
from airflow_poison.values.clock import EPOCH
from airflow_poison.values.errors import QueryError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.json_values import name_of
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import ERROR_GROUP, EVENT, LAST_ERROR, message_schema, table_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


TREND = 24
"""Parts of the time in which groups have failed, for each of which failures are counted."""
NEW = timedelta(days=1)
GROUP_ORDERS = ("messages", "first_seen", "last_seen", "type")
ORDERS = ("lookup_id", "enqueued_at", "move_count", "abort_count", "crash_count", "error_type", "message_type", "group_id")
MOST_ROWS = 200


def files_of(files: Sequence[DataFile], selection: Selection) -> list[DataFile]:
    """Return the files of a version that can hold selected messages, as far as statistics show."""
    ids = selection.lookup_ids
    return [
        file
        for file in files
        if selection.sub_queue in {None, file.sub_queue} and (ids is None or any(file.min_lookup_id <= each <= file.max_lookup_id for each in ids))
    ]


@dataclass(frozen=True, slots=True)
class FindResult(Plain):
    """Messages of a selection, without their bodies.

    :param total: how many the selection has.
    """

    queue: str
    version: int
    messages: tuple[MessageRow, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [row.without_body() for row in self.messages]
        return {"queue": self.queue, "version": self.version, "messages": rows, "total": self.total}


def find(
    table: QueueTable,
    selection: Selection,
    *,
    offset: int = 0,
    limit: int = 50,
    order: str = "lookup_id",
    descending: bool = False,
    unmask: bool = False,
) -> FindResult:
    """Return a page of the messages of a selection. Raises SettingError, QueryError.

    :param limit: at most 200.
    :param unmask: with the values that the queue hides, also for the selection's conditions.
    :param order: one of ``ORDERS``.
    """
    if order not in ORDERS:
        raise SettingError("order", order, ", ".join(ORDERS))
    limit, offset = whole_number("limit", limit), whole_number("offset", offset)
    snapshot = table.snapshot()
    found = files_of(snapshot.files, selection)
    with sql.messages(table, found, unmask=unmask) as engine:
        where, values = sql.condition(engine, selection)
        engine.execute(f"create temp table found as select lookup_id, {order} as key from messages where {where}", values)
        [(total,)] = engine.execute("select count(*) from found").fetchall()
        page = f"order by key {'desc' if descending else 'asc'} nulls last, lookup_id limit {min(limit, MOST_ROWS)} offset {offset}"
        chosen = [number for (number,) in engine.execute(f"select lookup_id from found {page}").fetchall()]
    rows = _rows(table, found, chosen, None if unmask else Masking.recorded(snapshot.control.desk))
    return FindResult(table.name, snapshot.version, tuple(rows[number] for number in chosen), total)


def _rows(table: QueueTable, found: Sequence[DataFile], chosen: Collection[int], masking: Masking | None) -> dict[int, MessageRow]:
    """Return messages of files by lookup id, without bodies. These are read only where they say what is hidden."""
    columns = [name for name in message_schema().names if name != "body" or masking is not None]
    rows: dict[int, MessageRow] = {}
    for file in found:
        wanted = [number for number in chosen if number not in rows and file.min_lookup_id <= number <= file.max_lookup_id]
        if not wanted:
            continue
        part = table.select(file, wanted, columns)
        cells: dict[str, Any] = dict(zip(part.column_names, part.columns, strict=True))
        cells |= {
            "body": cells.get("body", pa.nulls(part.num_rows, pa.binary())),
            "sub_queue": pa.repeat(pa.scalar(file.sub_queue), part.num_rows),
            "move_count": pa.repeat(pa.scalar(file.move_count, pa.int32()), part.num_rows),
        }
        whole = pa.table([cells[each] for each in table_schema().names], schema=table_schema())
        rows |= {row.lookup_id: replace(masked(row, masking), body=b"") for row in MessageRow.of(whole)}
    return rows


# Error groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorGroup(Plain):
    """Messages that failed alike: failures of one type at one place of the code, whose texts differ only in data (``values.failures.fingerprint``).

    :param error: its id; empty: messages that have not failed.
    :param text: the message of the sample's failure.
    :param share: of the selection's messages, 0 to 1.
    :param first_seen: when a message of the queue failed so for the first time, as events say, whatever has become of it; else when the first of
        its messages was sent.
    :param last_seen: when one failed so for the last time. What people move, put back or undo is no failure.
    :param sample: the lookup id of its first message.
    :param trend: how often messages failed so in each of 24 equal parts of the time in which the groups have failed.
    :param new: whether it was first seen in the last day, or since the instant that was asked for.
    """

    error: str
    kind: str
    type: str
    text: str
    messages: int
    share: float
    first_seen: datetime | None
    last_seen: datetime | None
    sample: int
    trend: tuple[int, ...]
    new: bool = False


@dataclass(frozen=True, slots=True)
class GroupsResult(Plain):
    """The error groups of a selection, the largest first, or as they were asked for.

    :param messages: of the selection, whatever was searched for.
    :param more: groups that were left out.
    """

    queue: str
    version: int
    at: datetime
    messages: int
    groups: tuple[ErrorGroup, ...]
    more: int = 0


def groups(
    table: QueueTable,
    selection: Selection,
    clock: Clock,
    *,
    limit: int = 1_000,
    order: str = "messages",
    descending: bool = True,
    search: str = "",
    since: datetime | None = None,
    unmask: bool = False,
) -> GroupsResult:
    """Count the messages of a selection by error group. Raises SettingError, QueryError.

    Bodies are read only where the selection looks at them, and, where the queue has a mask, of the samples: they say what is hidden.

    :param order: one of ``GROUP_ORDERS``.
    :param search: only groups that have this in their id, type or text, whatever its case.
    :param since: groups that were first seen then or later are new; None: a day ago.
    :param unmask: with the values that the queue hides, also for the selection's conditions.
    """
    if order not in GROUP_ORDERS:
        raise SettingError("order", order, ", ".join(GROUP_ORDERS))
    limit, since = whole_number("limit", limit), None if since is None else instant("since", since)
    snapshot, now = table.snapshot(), clock.now()
    found = files_of(snapshot.files, selection)
    counts = _counts(table, found, selection, unmask=unmask)
    if not counts:
        return GroupsResult(table.name, snapshot.version, now, 0, ())
    failed = failures(table).of(list(counts))
    bounds, trends = failed.bounds(), failed.trends(TREND)
    total, masking = sum(each.messages for each in counts.values()), None if unmask else Masking.recorded(snapshot.control.desk)
    seen = [
        ErrorGroup(
            error=each.error,
            kind="",
            type="",
            text="",
            messages=each.messages,
            share=round(each.messages / total, 6),
            first_seen=_instant(bounds[each.error][0] if each.error in bounds else each.first),
            last_seen=_instant(bounds[each.error][1] if each.error in bounds else each.last),
            sample=each.sample,
            trend=trends[each.error],
        )
        for each in counts.values()
    ]
    if search or order == "type":
        seen = [group for group in _with_texts(table, found, seen, masking) if _has(group, search)]
    seen = _ordered(seen, order, descending=descending)
    shown = seen[:limit] if search or order == "type" else _with_texts(table, found, seen[:limit], masking)
    new = since or now - NEW
    listed = tuple(replace(group, new=group.first_seen is not None and group.first_seen >= new) for group in shown)
    return GroupsResult(table.name, snapshot.version, now, total, listed, len(seen) - len(listed))


def _has(group: ErrorGroup, search: str) -> bool:
    return any(search.casefold() in text.casefold() for text in (group.error, group.type, group.text))


def _ordered(found: Sequence[ErrorGroup], order: str, *, descending: bool) -> list[ErrorGroup]:
    """Return groups in an order, those that have no value there last; equal ones by their ids."""

    def value(group: ErrorGroup) -> Any:
        found = getattr(group, order)
        return found.casefold() if isinstance(found, str) else found

    by_id = sorted(found, key=lambda group: group.error)
    there, others = [each for each in by_id if value(each) not in {None, ""}], [each for each in by_id if value(each) in {None, ""}]
    return [*sorted(there, key=value, reverse=descending), *others]


def _with_texts(table: QueueTable, found: Sequence[DataFile], seen: Sequence[ErrorGroup], masking: Masking | None) -> list[ErrorGroup]:
    """Return groups with the failures of their samples."""
    rows = _rows(table, found, {group.sample for group in seen if group.error}, masking)
    errors = {number: row.last_error or {} for number, row in rows.items()}
    texts = [errors.get(group.sample, {}) for group in seen]
    return [
        replace(group, kind=text.get("kind") or "", type=text.get("type") or "", text=text.get("message") or "")
        for group, text in zip(seen, texts, strict=True)
    ]


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The messages of a group: how many, the first one, and when the first and the last of them were sent."""

    error: str
    messages: int
    sample: int
    first: int | None
    last: int | None


def _counts(table: QueueTable, found: Sequence[DataFile], selection: Selection, *, unmask: bool) -> dict[str, _Counted]:
    """Count messages by group: of whole files by three columns, of others by a query."""
    if selection == Selection(sub_queue=selection.sub_queue):
        return _counts_of(table, found)
    with sql.messages(table, found, unmask=unmask) as engine:
        where, values = sql.condition(engine, selection)
        rows = engine.execute(
            f"""select coalesce(error, ''), count(*), min(lookup_id), epoch_us(min(enqueued_at)), epoch_us(max(enqueued_at))
            from messages where {where} group by 1""",
            values,
        ).fetchall()
    return {row[0]: _Counted(*row) for row in rows}


def _counts_of(table: QueueTable, found: Sequence[DataFile]) -> dict[str, _Counted]:

    parts = []
    table.bring(found)
    for file in found:
        rows = data_files.read_columns(table.folder, file.path, ["lookup_id", "enqueued_at", ERROR_GROUP])
        errors = pc.fill_null(pc.struct_field(rows[LAST_ERROR], "fingerprint"), "")
        at = rows["enqueued_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        parts.append(
            pa.table({"error": errors, "id": rows["lookup_id"], "at": at})
            .group_by("error")
            .aggregate([([], "count_all"), ("id", "min"), ("at", "min"), ("at", "max")])
        )
    if not parts:
        return {}
    both = pa.concat_tables(parts).group_by("error").aggregate([("count_all", "sum"), ("id_min", "min"), ("at_min", "min"), ("at_max", "max")])
    names = ("error", "count_all_sum", "id_min_min", "at_min_min", "at_max_max")
    return {row["error"]: _Counted(*(row[name] for name in names)) for row in both.to_pylist()}


# Queries --------------------------------------------------------------------------------------------------------------


def query(table: QueueTable, text: str, *, limit: int | None = None, unmask: bool = False) -> pa.Table:
    """Answer a SQL query on ``messages`` (all sub-queues of the newest version) and ``events``. It cannot change or read anything else.

    :param limit: at most so many rows.
    :param unmask: with the values that the queue hides.
    Raises QueryError.
    """
    with _asked(table, text, limit, unmask=unmask) as asked:
        answer: pa.Table = asked.to_arrow_table()
        return answer


@contextmanager
def query_batches(table: QueueTable, text: str, *, limit: int | None = None, unmask: bool = False) -> Iterator[pa.RecordBatchReader]:
    """Give what ``query`` returns as batches, of which a few are in memory at a time. See there."""
    with _asked(table, text, limit, unmask=unmask) as asked:
        found = asked.to_arrow_reader(_BATCH)

        def batches() -> Iterator[pa.RecordBatch]:
            while True:
                try:
                    yield found.read_next_batch()
                except StopIteration:
                    return
                except (OSError, pa.ArrowException) as error:  # what the engine raises has another type here
                    raise QueryError(f"{table.name!r}: {sql.error_text(error)}") from error

        yield pa.RecordBatchReader.from_batches(found.schema, batches())


_BATCH = 20_000


@contextmanager
def _asked(table: QueueTable, text: str, limit: int | None, *, unmask: bool) -> Iterator[duckdb.DuckDBPyRelation]:
    most = "" if limit is None else f" limit {whole_number('limit', limit)}"
    with sql.messages(table, table.snapshot().files, events=True, unmask=unmask) as engine:
        asked = sql.checked_query(engine, text)
        described = engine.execute(f"describe select * from ({asked}) as asked").fetchall()
        columns = ", ".join(_shown(name, kind) for name, kind, *_ in described)
        yield engine.sql(f"select {columns} from ({asked}) as asked{most}")


_NOT_IN_ARROW = re.compile(r"\b(UHUGEINT|BIGNUM|BIT|INTERVAL|TIME_NS|TIME WITH TIME ZONE)(?=[,)\[]|$)")
"""Types within the name of a type whose values are others in Arrow, in Python or in Parquet."""


def _shown(name: str, kind: str) -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    if kind == "JSON":
        return f"text_of({quoted}, '$', '[]') as {quoted}"
    in_arrow = _NOT_IN_ARROW.sub("VARCHAR", kind)
    return quoted if in_arrow == kind else f"cast({quoted} as {in_arrow}) as {quoted}"


def answer_as_dict(queue: str, answer: pa.Table, limit: int | None) -> dict[str, Any]:
    """Return an answer as plain values: ``queue``, ``columns``, ``rows`` and whether there are ``more``.

    Instants are ISO 8601, bytes Base64, and other values that JSON has no type for text.

    :param limit: so many rows of it; None: all.
    """
    rows = [row for batch in answer.slice(0, limit).to_batches() for row in plain_rows(batch)]
    return {"queue": queue, "columns": answer.column_names, "rows": rows, "more": len(rows) < answer.num_rows}


def plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as the plain values of ``answer_as_dict``; dates and keys of maps that Python does not have are text."""
    try:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError, TypeError):  # TypeError: keys of a map that are lists or objects
        if batch.num_rows == 1:
            yield {name: _cell(value) for name, value in json_text.values(shown(batch, 0)).items()}
        else:
            yield from chain.from_iterable(plain_rows(batch.slice(at, 1)) for at in range(batch.num_rows))
    else:
        yield from ({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: object) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_cell(each) for each in value]
        case dict():
            return {name_of(_cell(name)): _cell(each) for name, each in value.items()}
        case _:
            return value.isoformat() if isinstance(value, date | time) else str(value)


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
    with row_groups.open_row_groups(table.folder, path) as groups:
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
