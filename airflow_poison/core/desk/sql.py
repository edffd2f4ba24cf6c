"""SQL on the messages of one version of a queue, through DuckDB: it reads the version's Parquet files where they lie, and nothing else.

The engine and its conditions were measured beside deltalake's own query engine: docs/explanation/desk.md.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from airflow_poison.core.desk.masked_sql import add_functions, hidden_properties, is_before, literal, literals
from airflow_poison.core.errors import QueryError
from airflow_poison.core.masking import Masking
from airflow_poison.core.schema import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

    from airflow_poison.core.desk.selection import Selection
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take.

    :param memory: more goes to the temporary folder. :param seconds: None: as long as it needs.
    :param only_plain: a condition may use the functions of ``PLAIN`` alone. Others (lists, ``repeat``) can ask for any memory and time at once, which
        the engine neither counts nor ends.
    """

    memory: str = "1GB"
    threads: int = 2
    seconds: float | None = None
    only_plain: bool = False


PLAIN = frozenset(
    re.findall(
        r"\S+",
        """
        ~~ !~~ ~~* !~~* ~~~ + - * / // % -> ->> not_like_escape like_escape ilike_escape not_ilike_escape
        abs ceil floor round trunc sign lower upper lcase ucase trim ltrim rtrim length strlen left right substring substr position strpos instr
        contains starts_with ends_with prefix suffix regexp_matches regexp_full_match regexp_extract split_part coalesce nullif ifnull greatest least
        json_extract json_extract_string json_extract_path json_extract_path_text json_type json_valid json_array_length json_exists json_contains
        now current_date today current_timestamp get_current_timestamp date_trunc date_part datepart date_diff datediff epoch epoch_ms
        to_timestamp timezone year month day hour minute second dayofweek dayofyear week isodow
        to_years to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds strptime try_strptime
        element_at map_extract map_contains map_keys map_values cardinality list_contains list_has array_contains list_value
        """,
    )
)
"""Functions and operators whose answer is no larger than what they are given."""
_AGAIN_SECONDS = 0.02
UNSHARED = Limits()
_limits: ContextVar[Limits] = ContextVar("airflow_poison_query_limits", default=UNSHARED)


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Hold the queries of this block to limits: those of people whose queries share a process with others' work."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


_TYPES = {
    "lookup_id": "bigint",
    "message_id": "varchar",
    "sub_queue": "varchar",
    "move_count": "integer",
    "abort_count": "integer",
    "crash_count": "integer",
    "priority": "integer",
    "group_id": "varchar",
    "conversation_id": "varchar",
    "message_type": "varchar",
    "properties": "map(varchar, varchar)",
    "enqueued_at": "timestamptz",
    "expires_at": "timestamptz",
    "due_at": "timestamptz",
    "error": "varchar",
    "error_kind": "varchar",
    "error_type": "varchar",
    "error_message": "varchar",
    "error_trace": "varchar",
    "fingerprint": "varchar",
    "reason": "varchar",
    "body": "json",
    "text": "varchar",
    "raw": "blob",
}
COLUMNS = ", ".join(_TYPES)
"""The columns of ``messages``, for people who write a query."""

_NAMES_OF_CODE = "KeyError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|MissingField"
"""Failures whose quoted text names something of the code or the schema, not a value."""
_DATA = r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4,12}){4}|[0-9a-fA-F]{12,}|[\w.+-]+@[\w-]+\.[\w.]+|\d+([.,:-]\d+)*"
"""What of a failure's message is data: failures that differ only there are of one group."""
_QUOTED = r""""[^"]*"|'[^']*'"""

_MESSAGES = """
select lookup_id::bigint as lookup_id, message_id, sub_queue::varchar as sub_queue, move_count::integer as move_count,
  coalesce(abort_count, 0) as abort_count, coalesce(crash_count, 0) as crash_count, coalesce(priority, 0) as priority,
  group_id, conversation_id, message_type, {properties} as properties, enqueued_at::timestamptz as enqueued_at, expires_at::timestamptz as expires_at,
  due_at::timestamptz as due_at,
  case when last_error is not null then left(md5(concat_ws('|', last_error.fingerprint, {normal})), 12) end as error,
  last_error.kind as error_kind, last_error.type as error_type, {message} as error_message, {trace} as error_trace,
  last_error.fingerprint as fingerprint, {reason} as reason,
  try_cast(try(decode({body})) as json) as body, try(decode({body})) as text, {body} as raw, filename as file
from read_parquet({paths}, union_by_name = true, filename = true, hive_partitioning = true,
  hive_types = {{'sub_queue': varchar, 'move_count': integer}})
"""
_EVENTS = {"occurred_at": "timestamptz", "event": "varchar", "lookup_id": "bigint", "abort_count": "integer", "details": "json"}


@contextmanager
def messages(table: QueueTable, found: Sequence[DataFile], *, events: bool = False, unmask: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection with the view ``messages`` of these files, and, on request, ``events``. It reads nothing else of the machine.

    ``located`` has what ``messages`` has, and the ``file`` of each message. What the queue hides is hidden in all columns, and so from conditions.

    :param unmask: nothing is hidden.
    """
    import duckdb

    desk = table.snapshot().control.desk
    masking = None if unmask else Masking.recorded(desk)
    paths = [str(table.folder.here(file.path)) for file in found]
    old = [] if masking is None else [path for file, path in zip(found, paths, strict=True) if is_before(file, desk)]
    recorded = [str(table.folder.here(path)) for path in table.log.load().paths(EVENT)] if events else []
    limits = _limits.get()
    with duckdb.connect() as engine, _ended_after(engine, limits.seconds):
        engine.execute(f"set memory_limit = '{limits.memory}'")
        engine.execute(f"set threads = {min(limits.threads, os.cpu_count() or 1)}")
        engine.execute("set timezone = 'UTC'")
        engine.execute("set autoinstall_known_extensions = false")
        engine.execute("set autoload_known_extensions = false")
        engine.execute("set disabled_optimizers = 'late_materialization'")  # DuckDB 2.0.0 mixes up a struct's fields and the file's name there
        engine.execute("set allowed_paths = ?", [[*paths, *recorded]])
        engine.execute("set enable_external_access = false")
        engine.execute("set lock_configuration = true")
        try:
            if masking is not None:
                add_functions(engine, masking)
            new = [path for path in paths if path not in old]
            parts = [_of(old, masking, texts=True)] if old else []
            engine.execute(f"create view located as {' union all '.join([*parts, _of(new, masking)] if new or not old else parts)}")
            engine.execute("create view messages as select * exclude (file) from located")
            if events:
                engine.execute(f"create view events as {_of_events(recorded)}")
            yield engine
        except duckdb.InterruptException as error:
            raise QueryError(
                f"{table.name!r}: the query takes longer than {limits.seconds:g} s. Select fewer messages, or ask in a shell."
            ) from error
        except duckdb.Error as error:
            raise QueryError(f"{table.name!r}: {said(error)} The columns are {COLUMNS}.") from error


@contextmanager
def _ended_after(engine: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[None]:
    """End what goes on in an engine after so long; again and again, since between two statements there is nothing to end."""
    if seconds is None:
        yield
        return
    over = Event()

    def end() -> None:
        wait = seconds
        while not over.wait(wait):
            engine.interrupt()
            wait = _AGAIN_SECONDS

    watch = Thread(target=end, name="poison-query-limit", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def said(error: Exception) -> str:
    """Return what the engine says, in one line that does not name files."""
    text = re.sub(r"\s+", " ", str(error).split("\n\n")[0]).strip()
    return re.sub(r"[^\s'\"]*/[^\s'\"]*\.parquet", "a file of the queue", text).rstrip(".") + "."


def _of(paths: Sequence[str], masking: Masking | None, *, texts: bool = False) -> str:
    """Return the query for messages of files.

    :param texts: what is said of failures may have values that are hidden.
    """
    if not paths:
        return _nothing({**_TYPES, "file": "varchar"})
    columns = {"message": "last_error.message", "trace": "last_error.trace", "reason": "reason", "body": "body", "properties": "properties"}
    if texts:
        cells = "body, properties::json::varchar"
        columns |= {name: f"masked_{kind}({cells}, {columns[name]})" for name, kind in (("message", "text"), ("trace", "trace"), ("reason", "text"))}
    if masking is not None:
        columns["properties"] = hidden_properties(masking)
        if masking.hides_bodies:
            columns["body"] = "masked_body(body)"
    return _MESSAGES.format(paths=literals(paths), normal=_normal(columns["message"]), **columns)


def _of_events(paths: Sequence[str]) -> str:
    if not paths:
        return _nothing(_EVENTS)
    return (
        "select enqueued_at::timestamptz as occurred_at, message_type as event, lookup_id::bigint as lookup_id, abort_count, "
        f"try_cast(decode(body) as json) as details from read_parquet({literals(paths)}, union_by_name = true)"
    )


def _nothing(types: Mapping[str, str]) -> str:
    return f"select {', '.join(f'null::{kind} as {name}' for name, kind in types.items())} where false"


def _normal(message: str) -> str:
    """Return the expression for a failure's message without what is data.

    :param message: the expression for the message.
    """
    said, names = f"coalesce({message}, '')", f"regexp_matches(last_error.type, '({_NAMES_OF_CODE})$')"
    patterns = (literal(_DATA), literal(f"{_QUOTED}|{_DATA}"))
    without = [f"regexp_replace({said}, {pattern}, '#', 'g')" for pattern in patterns]
    return f"case when {names} then {without[0]} else {without[1]} end"


# Conditions -----------------------------------------------------------------------------------------------------------


def condition(engine: duckdb.DuckDBPyConnection, selection: Selection, among: Sequence[int] | None = None) -> tuple[str, list[object]]:
    """Return a selection as a condition on ``messages``, and its parameters. Raises QueryError.

    :param among: of these messages only.
    """
    ids, some = (None if each is None else list(each) for each in (selection.lookup_ids, among))
    place = None if selection.sub_queue is None else selection.sub_queue.value
    given: list[tuple[str, tuple[object, ...]]] = [
        ("sub_queue = ?", (place,)),
        ("lookup_id in (select unnest(?::bigint[]))", (ids,)),
        ("lookup_id in (select unnest(?::bigint[]))", (some,)),
        ("(error = ? or fingerprint = ?)", (selection.error or None,) * 2),
        ("error_type = ?", (selection.error_type or None,)),
        ("(contains(lower(coalesce(error_message, '')), lower(?)) or contains(lower(coalesce(text, '')), lower(?)))", (selection.text or None,) * 2),
        ("enqueued_at >= ?", (selection.since,)),
        ("enqueued_at < ?", (selection.until,)),
        ("group_id = ?", (selection.group or None,)),
        ("message_type = ?", (selection.message_type or None,)),
        ("message_id = ?", (selection.message_id or None,)),
        *(("properties[?] = ?", pair) for pair in selection.properties.items()),
    ]
    parts = [part for part, values in given if None not in values]
    parts += [f"{column} {operator} {number}" for column, operator, number in selection.conditions]
    if selection.where:
        parts.append(f"({checked_condition(engine, selection.where)})")
    return " and ".join(parts) or "true", [value for _, values in given if None not in values for value in values]


def checked_condition(engine: duckdb.DuckDBPyConnection, where: str) -> str:
    """Return a condition that reads nothing but columns of ``messages``, in the engine's words. Raises QueryError."""
    tree = _tree(engine, f"select 1 from messages where {where}")
    if tree.get("error"):
        raise QueryError(f"where={where!r} is no SQL condition: {tree.get('error_message', '')}. The columns are {COLUMNS}.")
    statements = tree["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    if node.get("type") != "SELECT_NODE" or not _is_plain(node):
        raise QueryError(f"where={where!r}: expected one condition on columns of the messages, without another query in it.")
    if _limits.get().only_plain and (others := sorted(set(_functions(node["where_clause"])) - PLAIN)):
        raise QueryError(f"where={where!r}: {others[0]} is not allowed here; allowed: comparisons, and functions of texts, numbers, times and JSON.")
    return _text(engine, tree).partition(" WHERE ")[2]


def _functions(part: object) -> Iterator[str]:
    """Yield the functions and operators that a part of a tree calls."""
    if isinstance(part, dict):
        if part.get("class") == "FUNCTION":
            yield str(part["function_name"]).lower()
        for each in part.values():
            yield from _functions(each)
    elif isinstance(part, list):
        for each in part:
            yield from _functions(each)


def checked_query(engine: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return a single SELECT in the engine's words. Raises QueryError."""
    tree = _tree(engine, query)
    if tree.get("error"):
        raise QueryError(
            f"The query is no SELECT: {tree.get('error_message', '')}. For example: select error_type, count(*) from messages group by 1"
        )
    if len(tree["statements"]) != 1:
        raise QueryError(f"The query has {len(tree['statements'])} statements; expected one SELECT.")
    return _text(engine, tree)


def _is_plain(node: dict[str, Any]) -> bool:
    """Whether a query has a condition and no more: no grouping, no order, no query inside."""
    more = node["modifiers"] or node["group_expressions"] or node["having"] or node["qualify"] or node["sample"] or node["cte_map"]["map"]
    return bool(node["where_clause"]) and not more and node["from_table"].get("table_name") == "messages" and not _has_query(node["where_clause"])


def _has_query(part: object) -> bool:
    if isinstance(part, dict):
        return part.get("class") in {"SUBQUERY", "WINDOW"} or any(_has_query(each) for each in part.values())
    return isinstance(part, list) and any(_has_query(each) for each in part)


# What the body has is written ``body.name``: it is text, and a number (or a truth value) where it is compared with one. A body that has no number
# there is neither greater nor less than any.


_CASTS = {"INTEGER": "double", "NUMERIC": "double", "BOOLEAN": "boolean", "TRUE": "boolean", "FALSE": "boolean"}


def _text(engine: duckdb.DuckDBPyConnection, tree: dict[str, Any]) -> str:
    """Return a tree as text, in which values of the body are taken from it."""
    names = {"double", "boolean"}
    casts = {name: _expression(engine, f"try_cast(body as {name})") for name in names}
    rewritten = _rewritten(tree, casts, _expression(engine, "json_extract_string(body, '$')"))
    [(text,)] = engine.execute("select json_deserialize_sql(?::json)", [json.dumps(rewritten)]).fetchall()
    return str(text).strip()


def _rewritten(part: Any, casts: dict[str, dict[str, Any]], taken: dict[str, Any]) -> Any:
    """Return a part of a tree, rewritten.

    :param casts: the engine's own trees of ``try_cast(body as ...)``. :param taken: that of ``json_extract_string(body, '$')``.
    """
    if isinstance(part, list):
        return [_rewritten(each, casts, taken) for each in part]
    if not isinstance(part, dict):
        return part
    if _is_of_body(part):
        return _taken(part, taken)
    if part.get("class") in {"COMPARISON", "BETWEEN"}:
        sides = [part[name] for name in _SIDES if part.get(name)]
        kind = next((_CASTS[each["literal"]["kind"]] for each in sides if each.get("literal", {}).get("kind") in _CASTS), None)
        if kind is not None:
            cast = {name: {**casts[kind], "child": _taken(part[name], taken)} for name in _SIDES if part.get(name) and _is_of_body(part[name])}
            return {name: cast.get(name) or _rewritten(each, casts, taken) for name, each in part.items()}
    return {name: _rewritten(each, casts, taken) for name, each in part.items()}


_SIDES = ("left", "right", "input", "lower", "upper")


def _is_of_body(part: dict[str, Any]) -> bool:
    return part.get("class") == "COLUMN_REF" and "body" in [name.lower() for name in part["column_names"][:-1]][:2]


def _taken(part: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    """Return the tree that takes a value from the body."""
    names = part["column_names"]
    place = [name.lower() for name in names].index("body")
    column, path = names[: place + 1], "$" + "".join(f'."{name}"' for name in names[place + 1 :])
    new: dict[str, Any] = json.loads(json.dumps(taken))
    new["arguments"][0]["expression"]["column_names"] = column
    new["arguments"][1]["expression"]["literal"]["text"] = path
    return new | {"alias": part.get("alias") or names[-1]}


def _expression(engine: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    found: dict[str, Any] = _tree(engine, f"select {text}")["statements"][0]["node"]["select_list"][0]
    return found


def _tree(engine: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    [(found,)] = engine.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(found)
    return tree
