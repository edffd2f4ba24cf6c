"""Which columns of a user's rows become which parts of a message, and plain Python rows as messages."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError
from airflow_poison.values.json_text import Pairs
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import DEFAULT_PRIORITY, OWN_PROPERTIES, is_reserved, message_schema

HIGHEST_PRIORITY = 10
BATCH = 10_000
_ONE_COLUMN = ("group", "priority", "message_id", "message_type", "conversation")
_to_json = json.JSONEncoder(allow_nan=False).encode  # exact for what it takes: text, whole numbers, floats

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
        return _json(chosen).encode()
    except _NO_JSON as error:
        column = next((name for name, value in chosen.items() if _has_no_json(name, value)), None)
        which = "" if column is None else f", column {column!r}"
        raise InputError(
            f"messages[{number}]{which} cannot become JSON: {_why(error)}. Convert the value, or give bytes as the body. Nothing was sent."
        ) from error


def body_of(value: object, where: str) -> bytes:
    """Return a value as a body: bytes as they are, text as UTF-8, anything else as JSON. Raises InputError."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return utf8(value, where)
    try:
        return _json(value).encode()
    except _NO_JSON as error:
        raise InputError(
            f"{where}: {type(value).__name__} cannot become JSON: {_why(error)}. Convert the value, or give bytes as the body. Nothing was sent."
        ) from error


def _why(error: Exception) -> str:
    """Return why a value has no JSON."""
    odd = str(error).lower().startswith(("out of range float", "json has no nan", "json has no inf", "json has no -inf"))
    return "it has no NaN and no infinity, send null or a text for them" if odd else str(error)


def _json(value: object) -> str:
    """Return the JSON of a value. Raises one of ``_NO_JSON``."""
    try:
        made = json_text.written(json_value(value)) if _has_other_names(value) else _to_json(value)
    except TypeError:
        made = json_text.written(json_value(value))
    if r"\ud" in made:
        made.encode()
        check_text(value)
    return made


def _has_other_names(value: object) -> bool:
    """Whether an object in a value has a name that is no text: two of them may be one in JSON. Not of a circle, which has no JSON."""
    with suppress(RecursionError):
        return _other_names(value)
    return False


def _other_names(value: object) -> bool:
    if isinstance(value, dict):
        return any(type(name) is not str for name in value) or any(map(_other_names, value.values()))
    return isinstance(value, list | tuple) and any(map(_other_names, value))


def check_text(value: object) -> None:
    """Raise UnicodeEncodeError for a text with half of a surrogate pair."""
    match value:
        case str():
            value.encode()
        case dict():
            for name, each in value.items():
                check_text(name)
                check_text(each)
        case list() | tuple():
            for each in value:
                check_text(each)


_NO_JSON = (TypeError, ValueError, RecursionError, OverflowError)
"""No JSON type, a circle, NaN and infinity, a number too long; too deep; an instant whose UTC is no date."""


def _has_no_json(name: object, value: object) -> bool:
    try:
        _json({name: value})
    except _NO_JSON:
        return True
    return False


def number_or_text(value: float | Decimal) -> object:
    """Return a number; NaN and infinity as text."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_value(value: object, number: Callable[[float | Decimal], object] = lambda each: each) -> object:  # noqa: C901, PLR0911, PLR0912  (one line for each type)
    """Return a Python value as JSON has it: what a column of rows with this value becomes (``sources.rows``).

    :param number: what a float and a decimal become.
    Raises TypeError for a type that has no JSON, OverflowError for an instant whose UTC is no date.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float() | Decimal():
            return number(value)
        case datetime():
            return _instant(value)
        case date():
            return value.isoformat()
        case time():
            text = value.isoformat()
            return text.rstrip("0") if value.microsecond and value.tzinfo is None else text
        case timedelta():
            nanos: int = getattr(value, "nanoseconds", 0)  # of pandas
            return duration_text(value // timedelta(microseconds=1) * 1_000 + nanos, 1_000_000_000)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case UUID():
            return str(value)
        case Pairs():
            return Pairs((name, json_value(each, number)) for name, each in value)
        case dict():
            return _object({name_of(json_value(name, number)): json_value(each, number) for name, each in value.items()}, value)
        case list() | tuple():
            return [json_value(each, number) for each in value]
        case _ if type(value).__module__ == "numpy":
            return json_value(_of_numpy(value), number)
        case _:
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _object(fields: dict[str, object], of: dict[object, object]) -> Pairs:
    """Return the fields of an object. Raises ValueError for two keys that are one name."""
    if len(fields) < len(of):
        raise ValueError(f"keys of {list(of)!r:.100} are one name in JSON")
    return Pairs(fields.items())


def _of_numpy(value: Any) -> object:
    """Return a value of NumPy as Python's. Raises TypeError for a type that Python does not have as it is."""
    if value.dtype.kind not in "biufUO":
        raise TypeError(f"Object of NumPy's type {value.dtype} is not JSON serializable")
    is_narrow = value.dtype.kind == "f" and value.dtype.itemsize < 8  # noqa: PLR2004  (bytes of a double)
    return float(str(value)) if is_narrow and not value.shape else value.tolist()


def name_of(key: object) -> str:
    """Return a key of a map as the name of a field: what is no text in JSON is its JSON."""
    return key if isinstance(key, str) and not isinstance(key, json_text.Number) else json_text.written(key)


def _instant(value: datetime) -> str:
    """Return an instant in ISO 8601: UTC where it has a zone, milliseconds, and smaller digits that are not zero."""
    at = value.astimezone(UTC) if value.tzinfo else value
    nanos: int = getattr(at, "nanosecond", 0)  # of pandas
    micros = at.microsecond
    digits = f"{micros // 1_000:03}" if not nanos and micros % 1_000 == 0 else f"{micros:06}{f'{nanos:03}' if nanos else ''}"
    return f"{at.year:04}-{at:%m-%dT%H:%M:%S}.{digits}{'Z' if value.tzinfo else ''}"


def duration_text(count: int, per_second: int) -> str:
    """Return a duration in ISO 8601, in seconds with the digits that are not zero: ``PT1.5S``."""
    seconds, rest = divmod(abs(count), per_second)
    digits = str(per_second + rest)[1:].rstrip("0")
    return f"PT{'-' if count < 0 else ''}{seconds}{'.' if digits else ''}{digits}S"


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
    except _NO_JSON as error:
        why = "it is nested too deeply, or holds itself" if isinstance(error, RecursionError) else error
        raise InputError(f"Column {column!r}: a value of type {type(value).__name__} cannot become text: {why}. Nothing was sent.") from error
    utf8(text, f"Column {column!r}")
    return text


def _label(value: object) -> str:
    """Return a value that is no text as text: what has one in JSON, that; else its JSON. Raises one of ``_NO_JSON``."""
    found = json_value(value, number_or_text)
    return found if isinstance(found, str) else json_text.written(found)


def _number(value: object) -> object:
    return json_text.values(value) if isinstance(value, json_text.Number) else value


def utf8(text: object, where: str) -> bytes:
    """Return a text's UTF-8, and bytes. Raises InputError for others, and for half of a surrogate pair: text that was cut or decoded wrongly."""
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    if not isinstance(text, str):
        raise InputError(f"{where}: {type(text).__name__} is no body; expected text or bytes. Nothing was sent.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: the text has a lone surrogate ({text[error.start]!a} at {error.start}), which UTF-8 cannot hold. "
            "Decode its source rightly, or send bytes. Nothing was sent."
        ) from error


def _check_priority(value: object, column: str | None) -> int:
    given, value = value, _number(value)
    if value is None:
        return DEFAULT_PRIORITY
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= HIGHEST_PRIORITY:
        raise InputError(f"priority={column!r}: {given!r} is no priority; expected a whole number from 0 to {HIGHEST_PRIORITY}. Nothing was sent.")
    return value
