"""Which columns of a user's rows become which parts of a message, and plain Python rows as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any

from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError
from airflow_poison.values.json_values import NO_JSON, json_of, json_value, number_or_text, utf8, why_no_json
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import DEFAULT_PRIORITY, OWN_PROPERTIES, is_reserved, message_schema

HIGHEST_PRIORITY = 10
BATCH = 10_000
_ONE_COLUMN = ("group", "priority", "message_id", "message_type", "conversation")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Names of the columns that messages are made of. Raises InputError for what names none.

    :param body: one column of text or bytes; several columns, which become one JSON object; None: all columns as one JSON object.
    :param group: the group whose order matters.
    :param priority: whole numbers from 0 to 10; null is 5.
    :param properties: columns that become properties, as text; null values are left out.
    :param expires_after: time to live: a duration for every message, or a column of seconds.
    """

    body: str | tuple[str, ...] | None = None
    group: str | None = None
    priority: str | None = None
    properties: tuple[str, ...] = ()
    message_id: str | None = None
    message_type: str | None = None
    conversation: str | None = None
    expires_after: timedelta | str | None = None

    def __post_init__(self) -> None:
        """Refuse values where columns have to be named, and what would name a column twice."""
        for parameter in _ONE_COLUMN:
            _check_name(parameter, getattr(self, parameter), f"the name of a column; for one {parameter} of all messages add a column that has it")
        if not isinstance(self.expires_after, timedelta):
            _check_name("expires_after", self.expires_after, "a duration (timedelta), or the name of a column of seconds")
        if not isinstance(self.body, str | None):
            _check_names("body", self.body, "the name of a column, a list of names without repetition, or None for all columns")
            if not self.body:
                raise _wrong("body", self.body, "at least one column; None is all of them")
        _check_names("properties", self.properties, "a list of names of columns, without repetition")

    def columns(self) -> dict[str, str]:
        """Return every column that is mapped, with the parameter that names it."""
        bodies = (self.body,) if isinstance(self.body, str) else self.body or ()
        named = dict.fromkeys(bodies, "body") | dict.fromkeys(self.properties, "properties")
        for parameter in (*_ONE_COLUMN, "expires_after"):
            column = getattr(self, parameter)
            if isinstance(column, str):
                named.setdefault(column, parameter)
        return named

    def check(self, columns: Iterable[str]) -> None:
        """Raise InputError when a mapped column is not among those there are, or would be a property that only the product sets."""
        there = list(columns)
        if (own := next(filter(is_reserved, self.properties), None)) is not None:
            raise InputError(
                f"properties={own!r}: names that begin with {OWN_PROPERTIES!r} are the product's own. Rename the column. Nothing was sent."
            )
        for column, parameter in self.columns().items():
            if column not in there:
                raise InputError(
                    f"{parameter}={column!r}: there is no such column. The columns are {there}. "
                    f"Name one of them, or add {column!r} to what is sent. Nothing was sent."
                )


def _check_name(parameter: str, column: object, wanted: str) -> None:
    if not isinstance(column, str | None):
        raise _wrong(parameter, column, wanted)


def _check_names(parameter: str, columns: object, wanted: str) -> None:
    if not isinstance(columns, tuple) or not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
        raise _wrong(parameter, list(columns) if isinstance(columns, tuple) else columns, wanted)


def _wrong(parameter: str, value: object, wanted: str) -> InputError:
    return InputError(f"{parameter}={value!r}: expected {wanted}. Nothing was sent.")


def check_named_once(columns: Sequence[str], where: str) -> None:
    """Raise InputError for two columns of one name: a message has room for one of them."""
    twice = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
    if twice is not None:
        raise InputError(f"{where}: column {twice!r} is there twice. The columns are {list(columns)}. Rename one of them. Nothing was sent.")


def check_fields_once(columns: Iterable[pa.Field[Any]], where: str) -> None:
    """Raise InputError for a column with a struct of two fields of one name: a JSON object has room for one of them."""
    for column in columns:
        if (twice := field_named_twice(column.type)) is not None:
            raise InputError(f"{where}: two fields in column {column.name!r} are named {twice!r}. Rename one of them. Nothing was sent.")


def field_named_twice(kind: pa.DataType) -> str | None:
    """Return a name that two fields of one struct in a type have; None: there is none."""
    inner = [kind.field(place) for place in range(kind.num_fields)]
    names = [field.name for field in inner] if pa.types.is_struct(kind) else []
    twice = next((name for name in names if names.count(name) > 1), None)
    return twice if twice is not None else next((found for field in inner if (found := field_named_twice(field.type)) is not None), None)


def rows_to_batches(rows: Iterable[object], mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:
    """Return batches of messages from Python values: dicts are mapped like a frame's rows; bytes and text are bodies. Raises InputError."""
    check_several(rows)
    messages = (_message(number, row, mapping, now) for number, row in enumerate(rows))
    while chunk := list(islice(messages, BATCH)):
        names = list(chunk[0])
        schema = pa.schema([message_schema().field(name) for name in names])
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def check_several(messages: object) -> None:
    """Raise InputError for one message where several are expected: its characters, or its names, would each be a message."""
    if isinstance(messages, str | bytes | bytearray | dict):
        raise InputError(
            f"messages={messages!r:.100} is {type(messages).__name__}; expected a list of messages. Write [...] around it. Nothing was sent."
        )
    if not isinstance(messages, Iterable):
        raise InputError(f"messages={messages!r:.100} is {type(messages).__name__}; expected a list of messages, or a data frame. Nothing was sent.")


def check_priorities(batch: pa.RecordBatch, column: str | None) -> pa.RecordBatch:
    """Return the batch. Raises InputError when a priority is out of range."""
    if "priority" in batch.schema.names:
        bounds: dict[str, int | None] = pc.min_max(batch.column("priority")).as_py()  # type: ignore[assignment]  # a struct of the two
        for value in (bounds["min"], bounds["max"]):
            _check_priority(value, column)
    return batch


def _message(number: int, row: object, mapping: ColumnMapping, now: datetime) -> Row:
    if isinstance(row, dict):
        return _from_dict(number, row, mapping, now)
    if not isinstance(row, str | bytes):
        raise InputError(f"messages[{number}] is {type(row).__name__}; expected a dict, bytes or text. Nothing was sent.")
    if mapping.columns():
        column, parameter = next(iter(mapping.columns().items()))
        raise InputError(f"{parameter}={column!r}: messages[{number}] is bare {type(row).__name__} and has no columns. Send dicts, or map nothing.")
    return cells(utf8(row, f"messages[{number}]"), {}, mapping, now)


def _from_dict(number: int, row: Row, mapping: ColumnMapping, now: datetime) -> Row:
    mapping.check(row)
    if isinstance(mapping.body, str):
        body: object = row[mapping.body]
        if not isinstance(body, str | bytes):
            raise InputError(
                f"body={mapping.body!r}: messages[{number}] has {type(body).__name__} there; a body is text or bytes. "
                f"For JSON give a list: body=[{mapping.body!r}]. Nothing was sent."
            )
        return cells(utf8(body, f"body={mapping.body!r}: messages[{number}]"), row, mapping, now)
    names = tuple(row) if mapping.body is None else mapping.body
    return cells(_json_body(number, {column: row[column] for column in names}), row, mapping, now)


def _json_body(number: int, chosen: Row) -> bytes:
    """Return one JSON object of some columns. Raises InputError, which names the column that has no JSON."""
    try:
        return json_of(chosen).encode()
    except NO_JSON as error:
        column = next((name for name, value in chosen.items() if _has_no_json(name, value)), None)
        which = "" if column is None else f", column {column!r}"
        raise InputError(
            f"messages[{number}]{which} cannot become JSON: {why_no_json(error)}. Convert the value, or give bytes as the body. Nothing was sent."
        ) from error


def _has_no_json(name: object, value: object) -> bool:
    try:
        json_of({name: value})
    except NO_JSON:
        return True
    return False


def cells(body: bytes, row: Mapping[str, Any], mapping: ColumnMapping, now: datetime) -> Row:
    """Return a message's columns: always the same ones for one mapping."""
    message: Row = {"body": body}
    for name, column in (
        ("group_id", mapping.group),
        ("message_id", mapping.message_id),
        ("message_type", mapping.message_type),
        ("conversation_id", mapping.conversation),
    ):
        if column is not None:
            message[name] = _text(row[column], column)
    if mapping.priority is not None:
        message["priority"] = _check_priority(row[mapping.priority], mapping.priority)
    if mapping.properties:
        message["properties"] = [(_text(name, name), _text(row[name], name)) for name in mapping.properties if row[name] is not None]
    if mapping.expires_after is not None:
        message["expires_at"] = _expiry(row, mapping.expires_after, now)
    return message


def _expiry(row: Mapping[str, Any], expires_after: timedelta | str, now: datetime) -> datetime | None:
    if isinstance(expires_after, timedelta):
        return expires_at(now, expires_after.total_seconds(), expires_after)
    seconds = _number(row[expires_after])
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | Decimal):
        raise InputError(f"expires_after={expires_after!r}: {seconds!r} is no number of seconds. Nothing was sent.")
    return expires_at(now, float(seconds), expires_after)


def expires_at(now: datetime, seconds: float, expires_after: object) -> datetime:
    """Return the end of a time to live. Raises InputError."""
    try:
        return now + timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"expires_after={expires_after!r}: {seconds!r} seconds from now are no date of the years 1 to 9999. "
            "Leave the value out (null) for messages that never expire. Nothing was sent."
        ) from error


def _text(value: object, column: str) -> str | None:
    if value is None:
        return None
    try:
        text = bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value if isinstance(value, str) else _label(value)
    except UnicodeDecodeError as error:
        raise InputError(f"Column {column!r}: these bytes are no UTF-8: {error}. Nothing was sent.") from error
    except NO_JSON as error:
        why = "it is nested too deeply, or holds itself" if isinstance(error, RecursionError) else error
        raise InputError(f"Column {column!r}: a value of type {type(value).__name__} cannot become text: {why}. Nothing was sent.") from error
    utf8(text, f"Column {column!r}")
    return text


def _label(value: object) -> str:
    """Return a value that is no text as text: what has one in JSON, that; else its JSON. Raises one of ``NO_JSON``."""
    found = json_value(value, number_or_text)
    return found if isinstance(found, str) else json_text.written(found)


def _number(value: object) -> object:
    return json_text.values(value) if isinstance(value, json_text.Number) else value


def _check_priority(value: object, column: str | None) -> int:
    given, value = value, _number(value)
    if value is None:
        return DEFAULT_PRIORITY
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= HIGHEST_PRIORITY:
        raise InputError(f"priority={column!r}: {given!r} is no priority; expected a whole number from 0 to {HIGHEST_PRIORITY}. Nothing was sent.")
    return value
