"""Find messages of a selection, count them by error group, and answer queries: looks at one version of a queue, which change nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from math import isfinite
from typing import TYPE_CHECKING, Any

from airflow_poison.desk import sql
from airflow_poison.passes.browse import MessageRow, masked
from airflow_poison.passes.history import BY_HAND
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import message_schema, table_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_poison.desk.selection import Selection
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

TREND = 24
"""Parts of the time in which the messages of all groups failed last, for which each group's messages are counted."""
ORDERS = ("lookup_id", "enqueued_at", "move_count", "abort_count", "crash_count", "error_type", "message_type", "group_id")
MOST_ROWS = 200
_FAILED = (EventType.MOVED_POISON, EventType.MOVED_RETRY, EventType.REJECTED, EventType.FAULTED)


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
    snapshot = table.snapshot()
    found = files_of(snapshot.files, selection)
    with sql.messages(table, found, unmask=unmask) as engine:
        where, values = sql.condition(engine, selection)
        counted = engine.execute(f"select count(*) from messages where {where}", values).fetchall()
        page = f"order by {order} {'desc' if descending else 'asc'} nulls last, lookup_id limit {min(limit, MOST_ROWS)} offset {max(offset, 0)}"
        chosen = engine.execute(f"select file, lookup_id from located where {where} {page}", values).fetchall()
    rows = _rows(table, found, chosen, None if unmask else Masking.recorded(snapshot.control.desk))
    return FindResult(table.name, snapshot.version, rows, counted[0][0])


def _rows(table: QueueTable, found: Sequence[DataFile], chosen: Sequence[tuple[str, int]], masking: Masking | None) -> tuple[MessageRow, ...]:
    """Return chosen messages in their order, without bodies. These are read only where they say what is hidden."""
    import pyarrow as pa

    columns = [name for name in message_schema().names if name != "body" or masking is not None]
    here = {str(table.folder.here(file.path)): file for file in found}
    rows: dict[int, MessageRow] = {}
    for name in dict.fromkeys(path for path, _ in chosen):
        file = here[name]
        part = table.select(file, [number for path, number in chosen if path == name], columns)
        cells: dict[str, Any] = dict(zip(part.column_names, part.columns, strict=True))
        cells |= {
            "body": cells.get("body", pa.nulls(part.num_rows, pa.binary())),
            "sub_queue": pa.repeat(pa.scalar(file.sub_queue), part.num_rows),
            "move_count": pa.repeat(pa.scalar(file.move_count, pa.int32()), part.num_rows),
        }
        whole = pa.table([cells[each] for each in table_schema().names], schema=table_schema())
        rows |= {row.lookup_id: replace(masked(row, masking), body=b"") for row in MessageRow.of(whole)}
    return tuple(rows[number] for _, number in chosen)


# Error groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorGroup(Plain):
    """Messages that failed alike: failures of one type at one place of the code, whose texts differ only in data (``values.failures.fingerprint``).

    :param error: its id.
    :param text: the message of one of these failures.
    :param share: of the selection's messages, 0 to 1.
    :param first_seen: when the first of its messages failed for the first time, as events say; else when it was sent.
    :param last_seen: when the last of its messages failed for the last time. What people move, put back or undo is no failure.
    :param sample: the lookup id of one of its messages.
    :param trend: how many of its messages failed last in each of 24 equal parts of the time in which the messages of all groups failed last.
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


@dataclass(frozen=True, slots=True)
class GroupsResult(Plain):
    """The error groups of a selection, the largest first.

    :param more: groups that were left out.
    """

    queue: str
    version: int
    at: datetime
    messages: int
    groups: tuple[ErrorGroup, ...]
    more: int = 0


def groups(table: QueueTable, selection: Selection, clock: Clock, *, limit: int = 1_000, unmask: bool = False) -> GroupsResult:
    """Count the messages of a selection by error group. Raises QueryError.

    Bodies are read only where the selection looks at them, and of messages that are older than the queue's mask: they say what is hidden.

    :param unmask: with the values that the queue hides, also for the selection's conditions.
    """
    snapshot = table.snapshot()
    with sql.messages(table, files_of(snapshot.files, selection), events=True, unmask=unmask) as engine:
        where, values = sql.condition(engine, selection)
        engine.execute(
            f"""create temp table chosen as
            select lookup_id, coalesce(error, '') as error, error_kind, error_type, error_message, enqueued_at from messages where {where}""",
            values,
        )
        types = ", ".join(f"'{each.value}'" for each in _FAILED)
        engine.execute(  # what people move or undo is no failure
            f"""create temp table failed as select lookup_id, min(occurred_at) as first_at, max(occurred_at) as failed_at from events
            where event in ({types}) and (details ->> 'count') is null and coalesce(details ->> 'by', '') <> '{BY_HAND}' group by lookup_id"""
        )
        engine.execute(
            """create temp table seen as select chosen.* exclude (enqueued_at), coalesce(first_at, enqueued_at) as first_at,
            coalesce(failed_at, enqueued_at) as failed_at from chosen left join failed using (lookup_id)"""
        )
        rows = engine.execute(
            f"""
            with times as (select min(failed_at) as low, greatest(epoch(max(failed_at)) - epoch(min(failed_at)), 1e-6) as span from seen),
            parts as (select error, least({TREND - 1}, floor({TREND} * (epoch(failed_at) - epoch(low)) / span))::integer as part, count(*) as messages
              from seen, times where failed_at is not null group by all),
            trends as (select error, map_from_entries(list((part, messages))) as trend from parts group by error)
            select error, any_value(error_kind), any_value(error_type), any_value(error_message), count(*) as messages,
              min(first_at), max(failed_at),
              min(lookup_id), any_value(trend)
            from seen left join trends using (error) group by error order by messages desc, error
            """
        ).fetchall()
    total = sum(row[4] for row in rows)
    return GroupsResult(
        table.name, snapshot.version, clock.now(), total, tuple(_group(row, total) for row in rows[:limit]), max(0, len(rows) - limit)
    )


def _group(row: Sequence[Any], total: int) -> ErrorGroup:
    error, kind, type_, text, messages, first, last, sample, trend = row
    counts = trend or {}
    return ErrorGroup(
        error,
        kind or "",
        type_ or "",
        text or "",
        messages,
        round(messages / total, 6),
        first,
        last,
        sample,
        tuple(counts.get(part, 0) for part in range(TREND)),
    )


# Queries --------------------------------------------------------------------------------------------------------------


def query(table: QueueTable, text: str, *, limit: int | None = None, unmask: bool = False) -> pa.Table:
    """Answer a SQL query on ``messages`` (all sub-queues of the newest version) and ``events``. It cannot change or read anything else.

    :param limit: at most so many rows.
    :param unmask: with the values that the queue hides.
    Raises QueryError.
    """
    with sql.messages(table, table.snapshot().files, events=True, unmask=unmask) as engine:
        asked = sql.checked_query(engine, text)
        described = engine.execute(f"describe select * from ({asked}) as asked").fetchall()
        columns = ", ".join(_shown(name, kind) for name, kind, *_ in described)
        most = "" if limit is None else f" limit {int(limit)}"
        answer: pa.Table = engine.sql(f"select {columns} from ({asked}) as asked{most}").to_arrow_table()
        return answer


def _shown(name: str, kind: str) -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    return f"json_extract_string({quoted}, '$') as {quoted}" if kind == "JSON" else quoted


def answer_as_dict(queue: str, answer: pa.Table, limit: int | None) -> dict[str, Any]:
    """Return an answer as plain values: ``queue``, ``columns``, ``rows`` and whether there are ``more``.

    Instants are ISO 8601, bytes Base64, and other values that JSON has no type for text.

    :param limit: so many rows of it; None: all.
    """
    rows = [{name: _cell(value) for name, value in row.items()} for row in answer.slice(0, limit).to_pylist(maps_as_pydicts="lossy")]
    return {"queue": queue, "columns": answer.column_names, "rows": rows, "more": len(rows) < answer.num_rows}


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
            return {str(name): _cell(each) for name, each in value.items()}
        case _:
            return value.isoformat() if isinstance(value, date | time) else str(value)
