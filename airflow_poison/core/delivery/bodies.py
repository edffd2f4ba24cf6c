"""Bodies: JSON objects become the columns of a schema, each body by itself: one that does not fit spoils no other.

They are decoded once, by msgspec where it is installed (it comes with Airflow, and leaves out what the schema does not name), else by Python's json.
What msgspec refuses, the rules below decide, so both give the same columns and the same errors.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from airflow_poison.core.ddl import ddl_type
from airflow_poison.core.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)
_SHOWN = 80


def columns_of(bodies: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, dict[int, BodyError]]:
    """Return the columns of bodies that are JSON objects, and why bodies do not fit, by position; such a row is null.

    | type | in JSON |
    |---|---|
    | byte, short, int, long | a number without a fraction that is in range |
    | float, double | a number |
    | decimal(p,s) | a number, or a text that is one, without more digits than there is room for |
    | boolean, string | the same |
    | date | ``"2013-01-31"`` |
    | timestamp | ``"2013-01-31T05:00:00Z"``; without an offset it is UTC |
    | timestamp_ntz | the same without an offset |
    | binary | base64 |
    | array<>, map<string,>, struct<> | an array, an object, an object |

    A name that is missing is null. Names that the schema does not have are left out.
    """
    import pyarrow as pa

    failures: dict[int, BodyError] = {}
    values = _decoded(bodies, schema, failures)
    columns = [_column(field, cells, bodies, schema, failures) for field, cells in zip(schema, values, strict=True)]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema])), failures  # noqa: FBT003  (Arrow's signature)


def _decoded(bodies: Sequence[bytes | None], schema: pa.Schema, failures: dict[int, BodyError]) -> list[list[Any]]:
    """Return the cells of each column as pyarrow takes them."""
    fast = _typed_decoder(schema)
    if fast is None:
        rows = [_slowly(place, body, schema, failures) for place, body in enumerate(bodies)]
        return [[row[number] for row in rows] for number in range(len(schema))]
    decode, refused = fast
    found: list[Any] = []
    slow: dict[int, tuple[Any, ...]] = {}
    for place, body in enumerate(bodies):
        try:
            found.append(decode(body or b""))
        except refused:
            slow[place] = _slowly(place, body, schema, failures)
            found.append(_NOTHING)
    columns: list[list[Any]] = []
    for number, field in enumerate(schema):
        cells = list(map(attrgetter(f"f{number}"), found)) if not slow else [getattr(row, f"f{number}", None) for row in found]
        if (finish := _finished(field.type)) is not None:
            cells = [None if cell is None else finish(cell) for cell in cells]
        for place, row in slow.items():
            cells[place] = row[number]
        columns.append(cells)
    return columns


_NOTHING = object()


def _slowly(place: int, body: bytes | None, schema: pa.Schema, failures: dict[int, BodyError]) -> tuple[Any, ...]:
    """Return the cells of one body, all of them None where it does not fit."""
    try:
        return _cells(body, schema)
    except BodyError as error:
        failures[place] = error
        return (None,) * len(schema)


def _column(
    field: pa.Field[Any], cells: list[Any], bodies: Sequence[bytes | None], schema: pa.Schema, failures: dict[int, BodyError]
) -> pa.ChunkedArray[Any]:
    """Return a column. What does not fit is found by halves, and tells why by the rules of single values."""
    import pyarrow as pa

    pieces: list[pa.Array[Any]] = []

    def convert(start: int, end: int) -> None:
        try:
            pieces.append(pa.array(cells[start:end], field.type))
        except Exception as error:  # noqa: BLE001  (pyarrow raises several kinds, and what it does not expect)
            if end - start == 1:
                failures.setdefault(start, _why(bodies[start], schema) or _wrong(field, cells[start], f"it is no {ddl_type(field.type)}: {error}"))
                pieces.append(pa.nulls(1, field.type))
                return
            middle = (start + end) // 2
            convert(start, middle)
            convert(middle, end)

    if cells:
        convert(0, len(cells))
    if not field.nullable:
        nothing = _wrong(field, None, "it is NOT NULL")
        for place, cell in enumerate(cells):
            if cell is None:
                failures.setdefault(place, nothing)
    return pa.chunked_array(pieces, field.type)


def _why(body: bytes | None, schema: pa.Schema) -> BodyError | None:
    try:
        _cells(body, schema)
    except BodyError as error:
        return error
    return None


# The rules of single values -------------------------------------------------------------------------------------------


def _cells(body: bytes | None, schema: pa.Schema) -> tuple[Any, ...]:
    """Return the cells of a body. Raises BodyError."""
    try:
        found = json.loads(body or b"", parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError among them
        raise BodyError(f"The body is no JSON: {error}. It begins with {(body or b'')[:_SHOWN]!r}.") from error
    if not isinstance(found, dict):
        raise BodyError(f"The body is {_json_name(found)}; expected is a JSON object with the columns {', '.join(schema.names)}.")
    return tuple(_cell(field, found.get(field.name)) for field in schema)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _cell(field: pa.Field[Any], value: object) -> object:
    if value is None:
        if not field.nullable:
            raise _wrong(field, None, "it is NOT NULL")
        return None
    try:
        return _converted(value, field.type)
    except (ValueError, TypeError, OverflowError, InvalidOperation) as error:
        raise _wrong(field, value, str(error)) from error


def _wrong(field: pa.Field[Any], value: object, why: str) -> BodyError:
    shown = "missing or null" if value is None else json.dumps(value, default=str)
    return BodyError(f"Column {field.name!r} of the body is {shown[:_SHOWN]}; {why}.")


def _converted(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as pyarrow takes it. Raises ValueError, TypeError, OverflowError, InvalidOperation."""
    import pyarrow.types as of

    if value is None:
        return None
    if of.is_struct(kind):
        _expect(value, dict, kind)
        return {field.name: _converted(value.get(field.name), field.type) for field in kind}
    if of.is_map(kind):
        _expect(value, dict, kind)
        return [(_key(key, kind.key_type), _converted(each, kind.item_type)) for key, each in value.items()]
    if of.is_list(kind):
        _expect(value, list, kind)
        return [_converted(each, kind.value_type) for each in value]
    return _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911  (one line for each type)
    import pyarrow.types as of

    if of.is_boolean(kind):
        return _expect(value, bool, kind)
    if of.is_integer(kind):
        return _whole(value, kind)
    if of.is_floating(kind):
        return float(_expect(value, (int, Decimal), kind))
    if of.is_decimal(kind):
        return _decimal(value, kind)
    text: str = _expect(value, str, kind)
    if of.is_string(kind):
        text.encode()  # no lone surrogate
        return text
    if of.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if of.is_date(kind):
        if not _DATE.fullmatch(text):
            raise ValueError("expected is a date such as '2013-01-31'")
        return date.fromisoformat(text)
    if of.is_timestamp(kind):
        return _instant(text, zoned=kind.tz is not None)
    raise ValueError(f"expected is {ddl_type(kind)}, which is null only")


def _expect(value: Any, kinds: type | tuple[type, ...], kind: pa.DataType) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"expected is {ddl_type(kind)}, not {_json_name(value)}")
    return value


def _whole(value: Any, kind: pa.DataType) -> int:
    number = _expect(value, (int, Decimal), kind)
    if number != number.to_integral_value() if isinstance(number, Decimal) else False:
        raise ValueError(f"expected is {ddl_type(kind)}, which has no fraction")
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= number < limit:
        raise ValueError(f"expected is {ddl_type(kind)}, from {-limit} to {limit - 1}")
    return int(number)


def _decimal(value: Any, kind: Any) -> Decimal:
    try:
        number = Decimal(_expect(value, (int, Decimal, str), kind))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f"expected is {ddl_type(kind)}")
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if -exponent > kind.scale or len(digits) + exponent > kind.precision - kind.scale:
        raise ValueError(f"expected is {ddl_type(kind)}: {kind.precision - kind.scale} digits before the point and {kind.scale} behind it")
    return number


def _instant(text: str, *, zoned: bool) -> datetime:
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError("expected is an instant such as '2013-01-31T05:00:00Z'")
    day, time, fraction, offset = found.groups()
    if offset and not zoned:
        raise ValueError("expected is timestamp_ntz, which has no offset")
    at = datetime.fromisoformat(f"{day}T{time}.{(fraction or '0').ljust(6, '0')}{offset or ''}")
    return at if at.tzinfo is not None or not zoned else at.replace(tzinfo=UTC)


def _key(key: str, kind: pa.DataType) -> Any:
    """Return a key of an object, which is always a text, as the key of a map."""
    import pyarrow.types as of

    return _scalar(int(key) if of.is_integer(kind) else key, kind)


def _json_name(value: object) -> str:
    names: Mapping[type, str] = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# msgspec --------------------------------------------------------------------------------------------------------------


@lru_cache(16)
def _typed_decoder(schema: pa.Schema) -> tuple[Callable[[bytes], Any], tuple[type[Exception], ...]] | None:
    """Return what decodes a body to an object with the attributes f0, f1 ..., and what it raises; None: msgspec is not installed."""
    try:
        import msgspec
    except ImportError:
        return None
    try:
        fields = [(f"f{number}", _annotation(field.type) | None, None) for number, field in enumerate(schema)]
        names = {f"f{number}": field.name for number, field in enumerate(schema)}
        record = msgspec.defstruct("Body", fields, rename=names, gc=False)
        return msgspec.json.Decoder(record).decode, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
    except (TypeError, ValueError, _NoAnnotationError):  # a type or a name that it does not take
        return None


class _NoAnnotationError(Exception):
    """A type whose values Python's json decodes."""


def _annotation(kind: pa.DataType) -> Any:
    import msgspec
    import pyarrow.types as of

    if of.is_struct(kind):
        return TypedDict("Struct", {field.name: _annotation(field.type) | None for field in kind}, total=False)  # type: ignore[operator]
    if of.is_map(kind):
        if not of.is_string(kind.key_type):
            raise _NoAnnotationError
        return dict[str, _annotation(kind.item_type) | None]  # type: ignore[misc]
    if of.is_list(kind):
        return list[_annotation(kind.value_type) | None]  # type: ignore[misc]
    if of.is_timestamp(kind):
        return datetime if kind.tz is not None else Annotated[datetime, msgspec.Meta(tz=False)]
    if of.is_decimal(kind) or of.is_null(kind):
        raise _NoAnnotationError
    plain: dict[Any, type] = {
        of.is_boolean: bool,
        of.is_integer: int,
        of.is_floating: float,
        of.is_string: str,
        of.is_binary: bytes,
        of.is_date: date,
    }
    return next(python for test, python in plain.items() if test(kind))


def _finished(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value of msgspec one that pyarrow takes; None: it is one."""
    import pyarrow.types as of

    if of.is_map(kind):
        inner = _finished(kind.item_type) or _same
        return lambda value: [(key, None if each is None else inner(each)) for key, each in value.items()]
    if of.is_list(kind) and (element := _finished(kind.value_type)) is not None:
        return lambda value: [None if each is None else element(each) for each in value]
    if of.is_struct(kind):
        parts = {field.name: finish for field in kind if (finish := _finished(field.type)) is not None}
        if parts:
            return lambda value: {name: each if each is None else parts.get(name, _same)(each) for name, each in value.items()}
    return None


def _same(value: Any) -> Any:
    return value
