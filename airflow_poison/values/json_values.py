"""Values of Python as JSON, exactly: what ``messages=`` of a send, rows of frames, and handlers of conversations give."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError
from airflow_poison.values.json_text import Pairs

_to_json = json.JSONEncoder(allow_nan=False).encode  # exact for what it takes: text, whole numbers, floats


def body_of(value: object, where: str) -> bytes:
    """Return a value as a body: bytes as they are, text as UTF-8, anything else as JSON. Raises InputError."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return utf8(value, where)
    try:
        return json_of(value).encode()
    except NO_JSON as error:
        raise InputError(
            f"{where}: {type(value).__name__} cannot become JSON: {why_no_json(error)}. Convert the value, or give bytes. Nothing was sent."
        ) from error


def why_no_json(error: Exception) -> str:
    """Return why a value has no JSON."""
    odd = str(error).lower().startswith(("out of range float", "json has no nan", "json has no inf", "json has no -inf"))
    return "it has no NaN and no infinity, send null or a text for them" if odd else str(error)


def json_of(value: object) -> str:
    """Return the JSON of a value. Raises one of ``NO_JSON``."""
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


NO_JSON = (TypeError, ValueError, RecursionError, OverflowError)
"""No JSON type, a circle, NaN and infinity, a number too long; too deep; an instant whose UTC is no date."""


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
            return b64encode(bytes(value)).decode()  # a view may leave bytes out
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
    if value.dtype.kind not in "biufUO" or (value.dtype.kind == "f" and value.dtype.itemsize > 8):  # noqa: PLR2004  (bytes of a double)
        raise TypeError(f"Object of NumPy's type {value.dtype} is not JSON serializable")
    if value.dtype.kind != "f" or value.dtype.itemsize == 8:  # noqa: PLR2004
        return value.tolist()
    return [_of_numpy(each) for each in value] if value.shape else float(str(value))  # with the digits that a narrow number has


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
