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
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from airflow_poison.values import json_text
from airflow_poison.values.errors import QueryError, QueryTimeoutError
from airflow_poison.values.libraries import pa
from airflow_poison.values.masking import EDITS, HIDDEN, SINCE, HiddenValues, Masking
from airflow_poison.values.schema import EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import duckdb

    from airflow_poison.desk.selection import Selection
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take.

    :param memory: more goes to the temporary folder.
    :param seconds: None: as long as it needs.
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
    """Hold the queries of this block to limits: queries of people share a process with other work."""
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
    "reason": "varchar",
    "body": "json",
    "text": "varchar",
    "raw": "blob",
}
COLUMNS = ", ".join(_TYPES)
"""The columns of ``messages``, for people who write a query."""

_MESSAGES = """
select lookup_id::bigint as lookup_id, message_id, sub_queue::varchar as sub_queue, move_count::integer as move_count,
  coalesce(abort_count, 0) as abort_count, coalesce(crash_count, 0) as crash_count, coalesce(priority, 0) as priority,
  group_id, conversation_id, message_type, {properties} as properties, enqueued_at::timestamptz as enqueued_at, expires_at::timestamptz as expires_at,
  due_at::timestamptz as due_at,
  last_error.fingerprint as error,
  last_error.kind as error_kind, last_error.type as error_type, {message} as error_message, {trace} as error_trace,
  {reason} as reason,
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
        try:
            engine.execute(f"set memory_limit = '{limits.memory}'")
            engine.execute(f"set threads = {min(limits.threads, os.cpu_count() or 1)}")
            engine.execute("set timezone = 'UTC'")
            engine.execute("set autoinstall_known_extensions = false")
            engine.execute("set autoload_known_extensions = false")
            engine.execute("set disabled_optimizers = 'late_materialization'")  # DuckDB 2.0.0 mixes up a struct's fields and the file's name there
            engine.execute("set allowed_paths = ?", [[*paths, *recorded]])
            engine.execute("set enable_external_access = false")
            engine.execute("set lock_configuration = true")
            add_numbers(engine)
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
            raise QueryTimeoutError(
                f"{table.name!r}: the query takes longer than {limits.seconds:g} s, which may be because others ask at the same time. If it does so "
                "again, select fewer messages, or ask in a shell."
            ) from error
        except duckdb.Error as error:
            raise QueryError(f"{table.name!r}: {error_text(error)} The columns are {COLUMNS}.") from error


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


def error_text(error: Exception) -> str:
    """Return what the engine says, in one line that does not name files."""
    text = re.sub(r"\s+", " ", str(error).split("\n\n")[0]).strip()
    return re.sub(r"[^\s'\"]*/[^\s'\"]*\.parquet", "a file of the queue", text).rstrip(".") + "."


def _of(paths: Sequence[str], masking: Masking | None, *, texts: bool = False) -> str:
    """Return the query for messages of files.

    :param texts: texts of failures may have hidden values.
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
    return _MESSAGES.format(paths=literals(paths), **columns)


def _of_events(paths: Sequence[str]) -> str:
    if not paths:
        return _nothing(_EVENTS)
    return (
        "select enqueued_at::timestamptz as occurred_at, message_type as event, lookup_id::bigint as lookup_id, abort_count, "
        f"try_cast(decode(body) as json) as details from read_parquet({literals(paths)}, union_by_name = true)"
    )


def _nothing(types: Mapping[str, str]) -> str:
    return f"select {', '.join(f'null::{kind} as {name}' for name, kind in types.items())} where false"


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
        ("error = ?", (selection.error or None,)),
        ("error_type = ?", (selection.error_type or None,)),
        ("(contains(lower(coalesce(error_message, '')), lower(?)) or contains(lower(coalesce(text, '')), lower(?)))", (selection.text or None,) * 2),
        ("enqueued_at >= ?", (selection.since,)),
        ("enqueued_at < ?", (selection.until,)),
        ("group_id = ?", (selection.group or None,)),
        ("message_type = ?", (selection.message_type or None,)),
        ("message_id = ?", (selection.message_id or None,)),
        *(("properties[?] = ?", pair) for pair in selection.properties.items()),
        *((_HAS, (text,)) for text in _needed_texts(engine, selection.where)),
    ]
    parts = [part for part, values in given if None not in values]
    parts += [f"{column} {operator} {number}" for column, operator, number in selection.conditions]
    if selection.where:
        parts.append(f"({checked_condition(engine, selection.where)})")
    return " and ".join(parts) or "true", [value for _, values in given if None not in values for value in values]


_HAS = r"(contains(text, ?) or contains(text, '\'))"
"""What holds for each body that has a text as one of its values: JSON writes it as it is, or with a backslash. It takes a fifth of reading a body."""
_AS_IT_IS = re.compile(r"(?=.*[^\d.eE+ -])[\w. -]+")
"""Texts that no number, list or object is shown as that is written in another way."""


def _needed_texts(engine: duckdb.DuckDBPyConnection, where: str) -> list[str]:
    """Return texts that values of a body must be equal to, so that it meets a condition; without those that other values may be shown as."""
    tree: dict[str, Any] = _tree(engine, f"select 1 from messages where {where}") if where else {}
    if tree.get("error", True):
        return []
    return [text for text in _equal_texts(tree["statements"][0]["node"].get("where_clause") or {}) if _AS_IT_IS.fullmatch(text)]


def _equal_texts(part: dict[str, Any]) -> Iterator[str]:
    match part.get("type"):
        case "CONJUNCTION_AND":
            for each in part["children"]:
                yield from _equal_texts(each)
        case "COMPARE_EQUAL":
            for mine, other in ((part["left"], part["right"]), (part["right"], part["left"])):
                if _value_of_body(mine) is not None and _literal_kind(other) == "STRING":
                    yield str(other["literal"]["text"])


def checked_condition(engine: duckdb.DuckDBPyConnection, where: str) -> str:
    """Return a condition that reads nothing but columns of ``messages``, in the engine's words. Raises QueryError.

    A message that one of its parts cannot be evaluated for (a date that is none, a number too large) does not meet that part.
    """
    with _not_too_deep(f"where={where[:100]!r}"):
        tree = _tree(engine, f"select 1 from messages where {where}")
        if tree.get("error"):
            raise QueryError(f"where={where!r} is no SQL condition: {tree.get('error_message', '')}. The columns are {COLUMNS}.")
        statements = tree["statements"]
        node = statements[0]["node"] if len(statements) == 1 else {}
        if node.get("type") != "SELECT_NODE" or not _is_plain(node):
            raise QueryError(f"where={where!r}: expected one condition on columns of the messages, without another query in it.")
        called = set(_functions(node["where_clause"]))
        if _limits.get().only_plain and (others := sorted(called - PLAIN)):
            raise QueryError(
                f"where={where!r}: {others[0]} is not allowed here; allowed: comparisons, and functions of texts, numbers, times and JSON."
            )
        _check_functions(called)
        rewritten = Rewriting(engine).of(node["where_clause"])
        _check_constants(engine, rewritten)
        node["where_clause"] = _tried(rewritten, _volatile(engine, called))
        return _text(engine, tree).partition(" WHERE ")[2]


@contextmanager
def _not_too_deep(what: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise QueryError(f"{what}: it is nested too deeply. Write it with fewer brackets and operators.") from error


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


def _check_functions(called: Collection[str]) -> None:
    """Raise QueryError for functions that read the engine or its surroundings instead of messages."""
    if wrong := sorted(filter(_OF_THE_ENGINE.fullmatch, called)):
        raise QueryError(f"{wrong[0]} is not allowed in queries on messages: it reads the engine, not the queue.")


_OF_THE_ENGINE = re.compile(
    r"current_setting|getenv|getvariable|stats|write_log|nextval|currval|(pg|duckdb|pragma)_.*|json_(de)?serialize_.*|json_execute_.*"
)


def _volatile(engine: duckdb.DuckDBPyConnection, called: Collection[str]) -> frozenset[str]:
    """Return the functions that answer differently each time: the engine has no TRY of them."""
    if PLAIN.issuperset(called):
        return frozenset()
    return frozenset(name for (name,) in engine.execute("select function_name from duckdb_functions() where stability = 'VOLATILE'").fetchall())


def _tried(part: dict[str, Any], volatile: frozenset[str]) -> dict[str, Any]:
    """Return a condition whose parts between AND, OR and NOT are null where they cannot be evaluated."""
    if part.get("class") == "CONJUNCTION" or part.get("type") == "OPERATOR_NOT":
        return part | {"children": [_tried(each, volatile) for each in part["children"]]}
    return _operator("OPERATOR_TRY", part) if _reads_texts(part) and volatile.isdisjoint(_functions(part)) else part


def _reads_texts(part: object) -> bool:
    """Whether a part of a tree reads a column that has what senders or handlers wrote; numbers and times of the queue itself fit every function."""
    if isinstance(part, dict):
        if part.get("class") == "COLUMN_REF":
            return _TYPES.get(part["column_names"][-1].lower(), "varchar") not in {"bigint", "integer", "timestamptz"}
        return any(map(_reads_texts, part.values()))
    return isinstance(part, list) and any(map(_reads_texts, part))


def _check_constants(engine: duckdb.DuckDBPyConnection, where: dict[str, Any]) -> None:
    """Raise the engine's error for a part without columns that has no value, such as ``date '2026-13-01'``: no message would meet it."""
    constants = list(_constants(where))
    if constants:
        tree = _tree(engine, "select 1")
        tree["statements"][0]["node"]["select_list"] = constants
        engine.execute(_text(engine, tree)).fetchall()


def _constants(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the largest parts of a condition that are computed of constants alone."""
    if isinstance(part, list):
        for each in part:
            yield from _constants(each)
    elif isinstance(part, dict):
        if part.get("class") in {"CAST", "FUNCTION"} and not _has_column(part):
            yield part
        else:
            yield from _constants(list(part.values()))


def _has_column(part: object) -> bool:
    if isinstance(part, dict):
        return part.get("class") in {"COLUMN_REF", "STAR", "LAMBDA"} or any(map(_has_column, part.values()))
    return isinstance(part, list) and any(map(_has_column, part))


# Queries --------------------------------------------------------------------------------------------------------------


def checked_query(engine: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return a single SELECT on ``messages`` and ``events`` in the engine's words. Raises QueryError."""
    with _not_too_deep("The query"):
        tree = _tree(engine, query)
        if tree.get("error"):
            raise QueryError(
                f"The query is no SELECT: {tree.get('error_message', '')}. For example: select error_type, count(*) from messages group by 1"
            )
        if len(tree["statements"]) != 1:
            raise QueryError(f"The query has {len(tree['statements'])} statements; expected one SELECT.")
        _check_functions(set(_functions(tree)))
        _check_tables(tree["statements"], frozenset({"messages", "events"}))
        return _text(engine, Rewriting(engine).of(tree))


_TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})


def _check_tables(part: Any, known: frozenset[str]) -> None:
    """Raise QueryError for a table that is neither known nor one of the query's own: files, and what the engine keeps beside the messages.

    :param known: the names that the part sees. A query of a WITH sees those before it, a recursive one itself, too.
    """
    if isinstance(part, list):
        for each in part:
            _check_tables(each, known)
    elif isinstance(part, dict):
        for named in (part.get("cte_map") or {}).get("map") or []:
            name, query = named["key"].lower(), named["value"]
            _check_tables(query, known | {name} if query["query_node"]["type"] == "RECURSIVE_CTE_NODE" else known)
            known |= {name}
        if "class" not in part:
            _check_table(part, known)
        for name, each in part.items():
            if name != "cte_map":
                _check_tables(each, known)


def _check_table(part: dict[str, Any], known: frozenset[str]) -> None:
    match part.get("type"):
        case "BASE_TABLE" | "SHOW_REF" if not part.get("query"):
            path = [name.lower() for name in part["qualified_name"]["path"]]
            name, is_known = ".".join(path) or "SHOW", len(path) == 1 and path[0] in known
        case "TABLE_FUNCTION":
            name, is_known = part["function"]["function_name"], part["function"]["function_name"].lower() in _TABLE_FUNCTIONS
        case _:
            return
    if not is_known:
        tables = ", ".join(["messages", "events", *sorted(known - {"messages", "events"}), *(f"{each}(...)" for each in sorted(_TABLE_FUNCTIONS))])
        raise QueryError(f"The query reads {name!r}. A query reads the messages and events of its queue, and nothing else: {tables}.")


# Values of bodies -----------------------------------------------------------------------------------------------------
# What a body has is written ``body.name``: it is text, and a number (or a truth value) where it is compared with one. A body that has no number there
# is neither equal to, nor greater nor less than any. Numbers are compared exactly: their doubles decide where these differ, since rounding keeps the
# order; where they are the same, the digits do.


_COMPARED = {"COMPARE_GREATERTHANOREQUALTO": "lower", "COMPARE_LESSTHANOREQUALTO": "upper"}
_TAKES = frozenset({"->", "->>", "json_extract", "json_extract_string", "json_extract_path", "json_extract_path_text"})
_GIVES_JSON = frozenset({"->", "json_extract", "json_extract_path"})
_STEP = re.compile(r"""\.(?:"((?:[^"\\])*)"|(\w+))|\[(\d+)\]""")
_PLAIN_DIGITS = re.compile(r"0|-?[1-9][0-9]*")

_MACROS = r"""
create macro order_of(body, path, names, number, digits, is_plain) as list_transform([json_extract_string(body, path)], lambda x:
  case when try_cast(x as double) is null then null
       when isfinite(try_cast(x as double)) and try_cast(x as double) <> number then case when try_cast(x as double) < number then -1 else 1 end
       when is_plain and x = digits then 0
       else exact_order(body::varchar, names, digits) end)[1];
create macro is_one_of(body, path, names, numbers, digits, plain) as list_transform([json_extract_string(body, path)], lambda x:
  case when try_cast(x as double) is null then null
       when isfinite(try_cast(x as double)) and not list_contains(numbers, try_cast(x as double)) then false
       when list_contains(plain, x) then true
       else exact_is_one_of(body::varchar, names, digits) end)[1];
create macro may_round(x) as regexp_matches(x, '^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$|^[\[{].*[0-9]([.eE]|[0-9]{17})', 's')
  and not regexp_matches(x, '^-?[0-9]{1,18}$');
create macro text_of(body, path, names) as list_transform([json_extract_string(body, path)], lambda x:
  case when may_round(x) then exact_text(body::varchar, names) else x end)[1];
create macro json_of(body, path, names) as list_transform([json_extract(body, path)], lambda x:
  case when may_round(x::varchar) then exact_text(body::varchar, names)::json else x end)[1];
"""
"""How a number in a body (at ``path``, by the steps ``names``) stands to a number: -1, 0, 1; and whether it is one of several. Null: there is none.
And a value of a body as text and as JSON: the engine's own functions make doubles of numbers, and cut their digits.

The body is read once, in a lambda: a CASE would read it again in each of its branches.
"""


def add_numbers(engine: duckdb.DuckDBPyConnection) -> None:
    """Let conditions compare numbers of bodies exactly. The engine reads annotations, so the functions have none that only types need."""

    def exact_order(bodies: Any, names: Any, digits: Any) -> Any:
        rows = zip(bodies.to_pylist(), names.to_pylist(), digits.to_pylist(), strict=True)
        return pa.array([_order(_number(body, steps), _decimal(wanted)) for body, steps, wanted in rows], pa.int8())

    def exact_is_one_of(bodies: Any, names: Any, digits: Any) -> Any:
        rows = zip(bodies.to_pylist(), names.to_pylist(), digits.to_pylist(), strict=True)
        return pa.array([_is_one_of(_number(body, steps), wanted) for body, steps, wanted in rows], pa.bool_())

    add: Any = partial(engine.create_function, type="arrow", null_handling="special")  # its types know only the names of its own enumerations

    def exact_text(bodies: Any, names: Any) -> Any:
        return pa.array([_shown(_stepped(body, steps)) for body, steps in zip(bodies.to_pylist(), names.to_pylist(), strict=True)], pa.string())

    add("exact_text", exact_text, ["VARCHAR"] * 2, "VARCHAR")
    add("exact_order", exact_order, ["VARCHAR"] * 3, "TINYINT")
    add("exact_is_one_of", exact_is_one_of, ["VARCHAR", "VARCHAR", "VARCHAR[]"], "BOOLEAN")
    engine.execute(_MACROS)


def _stepped(body: str | None, names: str) -> object:
    """Return the value that stands in a body, as ``json_text.tree`` has it; None for none."""
    try:
        value = json_text.tree(body or "")
    except json_text.JsonError:
        return None
    for step in json.loads(names):
        if isinstance(value, json_text.Pairs) and isinstance(step, str):
            value = next((each for name, each in value if name == step), None)
        elif isinstance(value, list) and not isinstance(value, json_text.Pairs) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value


def _number(body: str | None, names: str) -> Decimal | None:
    """Return the number that stands in a body, also in a text there; None for none."""
    value = _stepped(body, names)
    return _decimal(value) if isinstance(value, str) else None


def _shown(value: object) -> str | None:
    """Return a value as text, as the engine shows it; a number has the digits that it has there."""
    return value if isinstance(value, str | None) else _compact(value)


def _compact(value: object) -> str:
    if isinstance(value, json_text.Pairs):
        return f"{{{','.join(f'{json_text.written(name)}:{_compact(each)}' for name, each in value)}}}"
    return f"[{','.join(map(_compact, value))}]" if isinstance(value, list) else json_text.written(value)


def _decimal(digits: str | None) -> Decimal | None:
    """Return a number with all its digits; None for a text that is no finite one."""
    try:
        found = _WIDE.create_decimal((digits or "").strip())
    except ArithmeticError:
        return None
    return found if found.is_finite() else None


_WIDE = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


def _order(one: Decimal | None, other: Decimal | None) -> int | None:
    return None if one is None or other is None else (one > other) - (one < other)


def _is_one_of(number: Decimal | None, wanted: Sequence[str]) -> bool | None:
    return None if number is None else any(_order(number, _decimal(each)) == 0 for each in wanted)


class Rewriting:
    """Trees of queries in which values of bodies are taken from them, and compared as what they are compared with."""

    def __init__(self, engine: duckdb.DuckDBPyConnection) -> None:
        self._engine = engine

    def of(self, part: Any) -> Any:
        """Return a part of a tree, rewritten."""
        if isinstance(part, list):
            return [self.of(each) for each in part]
        return self._node(part) if isinstance(part, dict) else part

    def _node(self, part: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911  (one line for each kind of node)
        match part.get("class"), part.get("type"):
            case "COLUMN_REF" | "FUNCTION" | "OPERATOR" | "LAMBDA", _ if (value := _value_of_body(part)) is not None:
                taken = part.get("function_name") or part.get("expr", {}).get("function_name") or ("->" if "expr" in part else "")
                macro = "json_of" if taken.lower() in _GIVES_JSON else "text_of"
                return value.taken(self._engine, macro) | {"alias": part.get("alias") or str(value.steps[-1])}
            case "OPERATOR", "ARRAY_EXTRACT" if _is_in_body(part["children"][0]):
                raise QueryError("A list in a body has elements from 0 on: body.items[0]. Expected a whole number there, or a name in quotes.")
            case "COMPARISON", _:
                return self._compared(part)
            case "LAMBDA", _ if part["expr"].get("class") == "COMPARISON" and _is_in_body(part["lhs"]):  # of what the arrow takes
                return self._node(part["expr"] | {"left": part | {"expr": part["expr"]["left"]}})
            case "BETWEEN", _:
                return self._between(part)
            case "OPERATOR", "COMPARE_IN":
                return self._in(part)
            case "CAST", _ if not part["try_cast"] and _has_value_of_body(part["child"]):
                return self._inside(part) | {"try_cast": True}
        return self._inside(part)

    def _inside(self, part: dict[str, Any]) -> dict[str, Any]:
        return {name: self.of(each) for name, each in part.items()}

    def _compared(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return a comparison; one of a value of a body with a number is one of their order with 0."""
        for mine, other in (("left", "right"), ("right", "left")):
            value, kind = _value_of_body(part[mine]), _literal_kind(part[other])
            if value is None or _value_of_body(part[other]) is not None:
                continue
            if kind in {"BOOLEAN", "TRUE", "FALSE"}:
                return self._inside(part) | {mine: self._expression("try_cast(body as boolean)") | {"child": value.taken(self._engine)}}
            if (number := self._as_number(part[other])) is not None:
                return part | {mine: self._order(value, *number), other: self._expression("0")}
        return self._inside(part)

    def _between(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return a BETWEEN as two comparisons where a body has one of its values."""
        if not any(_value_of_body(part[name]) for name in ("input", "lower", "upper")):
            return self._inside(part)
        both = [_comparison(kind, part["input"], part[bound]) for kind, bound in _COMPARED.items()]
        return _operator("CONJUNCTION_AND", *map(self._compared, both), kind="CONJUNCTION")

    def _in(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return an IN as one of several: texts, numbers, and others one by one."""
        mine, *others = part["children"]
        value = _value_of_body(mine)
        if value is None and not any(map(_value_of_body, others)):
            return self._inside(part)
        if value is None:
            numbers, texts, rest = list[str](), list[dict[str, Any]](), others
        else:
            numbers = [digits for each in others if (digits := _literal_number(each)) is not None]
            texts = [each for each in others if _literal_kind(each) == "STRING"]
            rest = [each for each in others if _literal_number(each) is None and each not in texts]
        parts = [self._compared(_comparison("COMPARE_EQUAL", mine, each)) for each in rest]
        if value is not None and numbers:
            parts.append(self._one_of(value, numbers))
        if texts:
            parts.append(self._inside(part | {"children": [mine, *texts]}))
        return parts[0] if len(parts) == 1 else _operator("CONJUNCTION_OR", *parts, kind="CONJUNCTION")

    def _as_number(self, part: dict[str, Any]) -> tuple[str, str, str] | None:
        """Return a number as a double, as digits, and whether these are plain, in SQL; None for what is no number."""
        if (digits := _literal_number(part)) is not None:
            return f"{literal(digits)}::double", literal(digits), str(_PLAIN_DIGITS.fullmatch(digits) is not None)
        if part.get("class") == "CONSTANT" or _has_query(part):
            return None
        tree = _tree(self._engine, "select 1 from messages")
        tree["statements"][0]["node"]["select_list"] = [self.of(part)]
        try:
            text = str(self._engine.execute("select json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()[0][0])
            [(_, kind, *_)] = self._engine.execute(f"describe {text}").fetchall()
        except Exception:  # noqa: BLE001  (of a table that only the whole query knows: it is compared as the engine does it)
            return None
        shown = text.strip()[len("SELECT ") :].rpartition(" FROM ")[0]
        if not re.match(r"(U?(TINY|SMALL|BIG|HUGE)?INT|INTEGER|UINTEGER|FLOAT|DOUBLE|DECIMAL|BIGNUM)", kind):
            return None
        return f"({shown})::double", f"({shown})::varchar", "false"

    def _order(self, value: _Value, number: str, digits: str, is_plain: str) -> dict[str, Any]:
        return self._call(value, f"order_of(body, {value.path}, {value.names}, {number}, {digits}, {is_plain})")

    def _one_of(self, value: _Value, numbers: Sequence[str]) -> dict[str, Any]:
        plain = [each for each in numbers if _PLAIN_DIGITS.fullmatch(each)]
        doubles = f"{literals(numbers)}::double[]"
        return self._call(value, f"is_one_of(body, {value.path}, {value.names}, {doubles}, {literals(numbers)}, {literals(plain)}::varchar[])")

    def _call(self, value: _Value, text: str) -> dict[str, Any]:
        call = self._expression(text)
        call["arguments"][0]["expression"] = value.body
        return call

    def _expression(self, text: str) -> dict[str, Any]:
        return _expression(self._engine, text)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a body: the tree of the body's column, and the steps to the value."""

    body: dict[str, Any]
    steps: tuple[str | int, ...]

    @property
    def path(self) -> str:
        """The steps as a path of the engine's, in SQL."""
        quoted = (str(step).replace("\\", "\\\\").replace('"', '\\"') for step in self.steps)
        return literal("$" + "".join(f"[{step}]" if isinstance(step, int) else f'."{name}"' for step, name in zip(self.steps, quoted, strict=True)))

    @property
    def names(self) -> str:
        """The steps as JSON, in SQL."""
        return literal(json.dumps(self.steps))

    def taken(self, engine: duckdb.DuckDBPyConnection, macro: str = "text_of") -> dict[str, Any]:
        """Return the tree that takes the value, by ``text_of`` or ``json_of``."""
        taken = _expression(engine, f"{macro}(body, {self.path}, {self.names})")
        taken["arguments"][0]["expression"] = self.body
        return taken


def _value_of_body(part: dict[str, Any]) -> _Value | None:
    """Return the value of a body that a part of a tree is: ``body.a.b[0]``, ``body -> 'a' ->> 'b'``, ``body ->> '$.a[0]'``; None for another part."""
    if part.get("class") == "COLUMN_REF":
        names = part["column_names"]
        place = next((number for number, name in enumerate(names[:2]) if name.lower() == "body"), None)
        if place is None or place == len(names) - 1:
            return None
        path = part["qualified_name"]["path"][: place + 1] if "qualified_name" in part else None
        column = part | {"column_names": names[: place + 1], "alias": ""} | ({} if path is None else {"qualified_name": {"path": path}})
        return _Value(column, tuple(names[place + 1 :]))
    if part.get("class") == "LAMBDA":  # so the engine reads an arrow
        of, steps = part["lhs"], _arrows(part["expr"])
    elif part.get("class") == "FUNCTION" and part["function_name"].lower() in _TAKES and len(part["arguments"]) == 2:  # noqa: PLR2004  (of what, and which)
        of, which = (each["expression"] for each in part["arguments"])
        steps = _steps(which["literal"]["text"]) if _literal_kind(which) == "STRING" else None
    elif part.get("type") in {"ARRAY_EXTRACT", "STRUCT_EXTRACT"}:
        of, which = part["children"]
        steps = _step(which)
    else:
        return None
    if steps is None:
        return None
    inner = _Value(of, ()) if _is_body(of) else _value_of_body(of)
    return None if inner is None else _Value(inner.body, inner.steps + steps)


def _arrows(part: dict[str, Any]) -> tuple[str | int, ...] | None:
    """Return the steps behind an arrow: ``'a'``, or ``'a' ->> 'b'``, which the engine reads first."""
    if part.get("class") == "FUNCTION" and part["function_name"] in {"->", "->>"}:
        steps = [_arrows(each["expression"]) for each in part["arguments"]]
        return None if None in steps else tuple(step for some in steps for step in some or ())
    return _steps(part["literal"]["text"]) if _literal_kind(part) == "STRING" else None


def _is_body(part: dict[str, Any]) -> bool:
    return part.get("class") == "COLUMN_REF" and part["column_names"][-1].lower() == "body" and len(part["column_names"]) <= 2  # noqa: PLR2004


def _is_in_body(part: dict[str, Any]) -> bool:
    return _is_body(part) or _value_of_body(part) is not None


def _step(which: dict[str, Any]) -> tuple[str | int, ...] | None:
    """Return what stands in brackets behind a value of a body; None for what is no name and no place."""
    kind = _literal_kind(which)
    if kind == "STRING":
        return (str(which["literal"]["text"]),)
    return (int(which["literal"]["text"]),) if kind == "INTEGER" and not which["literal"]["text"].startswith("-") else None


def _steps(path: str) -> tuple[str | int, ...] | None:
    """Return the steps of a path of the engine's, or of a name; None for other paths."""
    if path.startswith("/"):
        return None
    if not path.startswith("$"):
        return (path,)
    found = list(_STEP.finditer(path))
    if "$" + "".join(step[0] for step in found) != path:
        return None
    return tuple(int(step[3]) if step[3] is not None else step[1] if step[1] is not None else step[2] for step in found)


def _has_value_of_body(part: object) -> bool:
    if isinstance(part, dict):
        return _value_of_body(part) is not None or any(map(_has_value_of_body, part.values()))
    return isinstance(part, list) and any(map(_has_value_of_body, part))


def _literal_kind(part: dict[str, Any]) -> str:
    return str(part.get("literal", {}).get("kind", "")) if part.get("class") == "CONSTANT" else ""


def _literal_number(part: dict[str, Any]) -> str | None:
    """Return the digits of a number; None for what is none."""
    digits = str(part["literal"]["text"]) if _literal_kind(part) in {"INTEGER", "NUMERIC"} else None
    return digits if _decimal(digits) is not None else None


def _operator(name: str, *children: dict[str, Any], kind: str = "OPERATOR") -> dict[str, Any]:
    return {"class": kind, "type": name, "alias": "", "children": list(children)}


def _comparison(name: str, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {"class": "COMPARISON", "type": name, "alias": "", "left": left, "right": right}


def _is_plain(node: dict[str, Any]) -> bool:
    """Whether a query has a condition and no more: no grouping, no order, no query inside."""
    more = node["modifiers"] or node["group_expressions"] or node["having"] or node["qualify"] or node["sample"] or node["cte_map"]["map"]
    return bool(node["where_clause"]) and not more and node["from_table"].get("table_name") == "messages" and not _has_query(node["where_clause"])


def _has_query(part: object) -> bool:
    if isinstance(part, dict):
        return part.get("class") in {"SUBQUERY", "WINDOW"} or any(_has_query(each) for each in part.values())
    return isinstance(part, list) and any(_has_query(each) for each in part)


def _text(engine: duckdb.DuckDBPyConnection, tree: Any) -> str:
    """Return a tree as text."""
    [(text,)] = engine.execute("select json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()
    return str(text).strip()


def _expression(engine: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    found: dict[str, Any] = _tree(engine, f"select {text}")["statements"][0]["node"]["select_list"][0]
    return found


def _tree(engine: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    [(found,)] = engine.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(found)
    return tree


_SKEW = timedelta(minutes=10)
"""So much may the clocks of a sender and of the user who set the mask differ."""


def is_before(file: DataFile, desk: Mapping[str, object]) -> bool:
    """Whether a file may have failures that were recorded before the mask was what it is: failures of later messages have nothing hidden in them."""
    since = desk.get(SINCE)
    return since is None or file.min_enqueued_at is None or file.min_enqueued_at < datetime.fromisoformat(str(since)) + _SKEW


def hidden_properties(masking: Masking) -> str:
    """Return the expression for properties without what is hidden; what people have edited is hidden whole."""
    names = [EDITS, *(name for name in masking.property_names if name is not None)]
    hidden = "true" if None in masking.property_names else f"list_contains({literals(names)}, e.key)"
    return f"map_from_entries([{{'k': e.key, 'v': case when {hidden} then {literal(HIDDEN)} else e.value end}} for e in map_entries(properties)])"


def add_functions(engine: duckdb.DuckDBPyConnection, masking: Masking) -> None:
    """Let queries hide values, a vector of messages at a time. The engine reads annotations, so they name nothing that only types need."""

    def hidden(bodies: Any) -> Any:
        return pa.array([None if body is None else masking.body(body) for body in bodies.to_pylist()], pa.binary())

    def of_texts(hide: Callable[[HiddenValues, str], str]) -> Callable[..., Any]:
        def shown(bodies: Any, properties: Any, texts: Any) -> Any:
            rows = zip(bodies.to_pylist(), properties.to_pylist(), texts.to_pylist(), strict=True)
            return pa.array([text and hide(masking.values(body or b"", json.loads(cell or "{}")), text) for body, cell, text in rows], pa.string())

        return shown

    add: Any = partial(engine.create_function, type="arrow", null_handling="special")  # its types know only the names of its own enumerations
    types = ["BLOB", "VARCHAR", "VARCHAR"]
    add("masked_body", hidden, ["BLOB"], "BLOB")
    add("masked_text", of_texts(HiddenValues.hide), types, "VARCHAR")
    add("masked_trace", of_texts(HiddenValues.hide_trace), types, "VARCHAR")


def literals(texts: Sequence[str]) -> str:
    """Return a list of texts as SQL."""
    return f"[{', '.join(literal(text) for text in texts)}]"


def literal(text: str) -> str:
    """Return a text as SQL."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
