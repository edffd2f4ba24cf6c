"""Bodies: JSON objects become the columns of a schema, each body by itself: one that does not fit spoils no other.

Batches and transformations have their columns from here, so a body means the same in both. docs/reference/bodies.md has the rules, type by type.

Bodies are decoded by msgspec where it is installed (it comes with Airflow, and leaves out what the schema does not name). What it refuses, and what
it would take although the rules do not, goes through ``json_text`` and the rules of single values below. So both ways give the same columns and the
same errors.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Required, TypedDict, cast

import numpy as np

from airflow_poison.values import json_text
from airflow_poison.values.clock import days_of, micros_of
from airflow_poison.values.ddl import ddl_type, parse_ddl
from airflow_poison.values.errors import BodyError
from airflow_poison.values.json_text import JsonError, Number, Pairs
from airflow_poison.values.libraries import pa, pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Finish = Callable[[Any], Any]

np.empty((32 << 20) - (64 << 10), np.uint8)  # glibc keeps freed memory of up to that size from now on: else the pages of each array are made anew

DEEPEST = 500
"""Objects and arrays of a body that stand within each other at most."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FLOAT_ENDS = 3.4028235677973366e38
"""From here on a number is infinite as a float of 32 bits."""
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""Texts that stand for values of a float which JSON does not have."""
_SHOWN = 80


def columns_of(bodies: Sequence[bytes | None] | pa.Array[Any], schema: pa.Schema) -> tuple[pa.Table, dict[int, BodyError]]:
    """Return the columns of bodies that are JSON objects, and why bodies do not fit, by position; such a row is null.

    :param bodies: a list, or an Arrow array of ``binary``.
    :param schema: of ``parse_ddl``. A name that is missing is null. Names that the schema does not have are left out.
    """
    array = bodies.cast(pa.large_binary()) if isinstance(bodies, pa.Array) else pa.array(bodies, pa.large_binary())
    failures: dict[int, BodyError] = {}
    cells = _decoded(array, schema, failures)
    columns = [_column(values, field.type) for field, values in zip(schema, cells, strict=True)]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema])), failures  # noqa: FBT003  (Arrow's signature)


def columns_as_written(
    bodies: pa.Array[Any], lookup_ids: NDArray[np.int64], schema: pa.Schema, earlier: Sequence[tuple[int, str]]
) -> tuple[pa.Table, dict[int, BodyError]]:
    """Return the same as ``columns_of``; each body is read by the types that its columns had when it was written, and its values are made the
    schema's. A body with a value that the schema's type does not have exactly does not fit.

    :param earlier: columns of other types that messages had up to a lookup id, as DDL, by ascending ids.
    """
    if not earlier:
        return columns_of(bodies, schema)
    tables, places, failures = list[Any](), list[Any](), dict[int, BodyError]()
    change = np.searchsorted([last for last, _ in earlier], lookup_ids)
    for number in np.unique(change).tolist():
        at = np.flatnonzero(change == number)
        was = {field.name.lower(): field.type for _, columns in reversed(earlier[number:]) for field in parse_ddl(columns)}
        written = pa.schema([field.with_type(was.get(field.name.lower(), field.type)) for field in schema])
        table, unfit = columns_of(bodies.take(pa.array(at, pa.int64())), written)
        for place, field in enumerate(schema):
            if field.type != written.field(place).type:
                column, lost = _retyped(table.column(place).combine_chunks(), field)
                table, unfit = table.set_column(place, field.with_nullable(True), column), {**lost, **unfit}  # noqa: FBT003  (Arrow's signature)
        failures |= {int(at[place]): error for place, error in unfit.items()}
        tables.append(table)
        places.append(at)
    return pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(places)), pa.int64())), failures


def _retyped(values: Any, field: pa.Field[Any]) -> tuple[Any, dict[int, BodyError]]:
    """Return values as ones of a column's type, and why a value is none of them, which is null then."""
    was, wanted = values.type, field.type
    cells, lost = [pa.scalar(None, wanted)] * len(values), dict[int, BodyError]()
    for place in np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist():
        cell = None
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            cell = values[place].cast(wanted) if _is_made_of(was, wanted) else None
            cell = cell if cell is not None and cell.cast(was).equals(values[place]) else None
        if cell is None:
            lost[place] = BodyError(
                f"Column {field.name!r} was {ddl_type(was)} when this body was written. It is {ddl_type(wanted)} now, which does not hold "
                f"{str(values[place].as_py())[:_SHOWN]!r}. Receive it with schema=..., the columns as they were."
            )
        else:
            cells[place] = cell
    return pa.array(cells, wanted), lost


def _is_made_of(was: Any, wanted: Any) -> bool:
    """Say whether values of a type are made of those of another one without a choice, as of a zone or of a form of text."""
    of = _pa().types
    if of.is_struct(was) and of.is_struct(wanted):
        names = {field.name: field.type for field in wanted}
        return all(field.name in names and _is_made_of(field.type, names[field.name]) for field in was)
    if of.is_nested(was) or of.is_nested(wanted):
        return bool(was.id == wanted.id) and all(_is_made_of(was.field(n).type, wanted.field(n).type) for n in range(was.num_fields))
    numbers = [of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) for kind in (was, wanted)]
    is_text = of.is_string(was) or (of.is_string(wanted) and not of.is_floating(was))
    return bool(was == wanted or of.is_null(was) or all(numbers) or (is_text and (any(numbers) or of.is_boolean(was))))


def _decoded(bodies: pa.Array[Any], schema: pa.Schema, failures: dict[int, BodyError]) -> list[list[Any]]:
    """Return the cells of each column as pyarrow takes them."""
    fast = _typed_decoder(schema)
    if fast is None:
        rows = [_slowly(place, body, schema, failures) for place, body in enumerate(bodies.to_pylist())]
        return [[row[number] for row in rows] for number in range(len(schema))]
    slow = _suspects(bodies, schema)
    found = _objects(bodies, *fast, slow)
    columns: list[list[Any]] = []
    for number, field in enumerate(schema):
        cells = list(map(attrgetter(f"f{number}"), found)) if not slow else [getattr(row, f"f{number}", None) for row in found]
        finish = _finished(field.type, nullable=field.nullable)
        columns.append(cells if finish is None else _each(finish, cells, slow))
    for place in sorted(slow):
        for column, cell in zip(columns, _slowly(place, _body(bodies, place), schema, failures), strict=True):
            column[place] = cell
    return columns


_NOTHING = object()


def _objects(bodies: pa.Array[Any], decoder: Any, refused: tuple[type[Exception], ...], slow: set[int]) -> list[Any]:
    """Return bodies as the decoder has them, and ``_NOTHING`` in place of each that it refuses, whose place is added to ``slow``."""
    if (lines := _lines(bodies)) is not None:
        with suppress(*refused):
            found: list[Any] = decoder.decode_lines(lines)
            if len(found) == len(bodies):
                return found
    found, decode = [], decoder.decode
    offsets, data = _content(bodies)
    content: Any = memoryview(data.data)  # a copy of each body as ``bytes`` costs as much as to decode it
    for place, (begin, end) in enumerate(pairwise(offsets.tolist())):
        try:
            found.append(decode(content[begin:end]))
        except refused:
            slow.add(place)
            found.append(_NOTHING)
    return found


def _lines(bodies: pa.Array[Any]) -> memoryview | None:
    """Return one text of bodies that begin with ``{`` and end with ``}``, each with its line end. None: one does not.

    Between ``}`` and ``{`` a value of JSON has a comma, so no value goes on in the next line. As many values as lines are one of each.
    """
    offsets, data = _content(bodies)
    firsts, lasts = offsets[:-1], offsets[1:] - 1
    if bodies.null_count or not len(bodies) or (lasts <= firsts).any() or not (data[firsts] == _OPEN).all():
        return None
    ends = data[lasts]
    if (ends == _CLOSE).all():
        of_all = pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies)
        joined = cast("Any", pc.binary_join(of_all, pa.scalar(b"\n", pa.large_binary())))
        return memoryview(_content(joined)[1].data)
    before = data[lasts - 1]
    before[before == _RETURN] = data[lasts - 2][before == _RETURN]
    return memoryview(data.data) if (ends == _FEED).all() and (before == _CLOSE).all() else None


def _body(bodies: pa.Array[Any], place: int) -> bytes:
    """Return a body; one that is null is empty."""
    return cast("bytes", bodies[place].as_py() or b"")


def _each(finish: Finish, cells: list[Any], refused: set[int]) -> list[Any]:
    """Return cells as pyarrow takes them, and add the places of those that do not fit."""
    done: list[Any] = []
    for place, cell in enumerate(cells):
        try:
            done.append(None if cell is None else finish(cell))
        except _REFUSED:
            refused.add(place)
            done.append(None)
    return done


def _slowly(place: int, body: bytes | None, schema: pa.Schema, failures: dict[int, BodyError]) -> tuple[Any, ...]:
    """Return the cells of one body, all of them None where it does not fit."""
    try:
        return _cells(body or b"", schema)
    except BodyError as error:
        failures[place] = error
        return (None,) * len(schema)


def _column(cells: list[Any], kind: Any) -> pa.ChunkedArray[Any]:
    column: Any = pa.array(cells, kind)
    chunks: list[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]  # texts of more than 2 GiB come in several
    return pa.chunked_array(chunks, kind)


# The rules of single values -------------------------------------------------------------------------------------------

_REFUSED = (ValueError, TypeError, OverflowError, InvalidOperation)


def _cells(body: bytes, schema: pa.Schema) -> tuple[Any, ...]:
    """Return the cells of a body. Raises BodyError."""
    try:
        found = _values(body, schema)
    except JsonError as error:
        raise BodyError(f"The body is no JSON: {error}. It begins with {body[:_SHOWN]!r}.") from error
    if not isinstance(found, dict):
        raise BodyError(f"The body is {_json_name(found)}; expected is a JSON object with the columns {', '.join(schema.names)}.")
    return tuple(_cell(field, found.get(field.name)) for field in schema)


def _values(body: bytes, schema: pa.Schema) -> Any:
    """Return the values of a body, exactly. Raises JsonError, and BodyError where a name of the schema stands twice."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is no UTF-8") from error
    if _is_too_deep(body):
        raise JsonError(f"objects and arrays are nested more than {DEEPEST} deep")
    try:
        return json_text.values(text)
    except (JsonError, ArithmeticError):  # also for what is twice, or a number of many digits, where the schema has no name for it
        if (why := json_text.syntax_error(text.encode())) is not None:
            raise JsonError(why) from None
    return _wanted(json_text.tree(text), _pa().struct(list(schema)))


def _wanted(value: object, kind: Any) -> Any:
    """Return a value of a tree as ``json_text.values`` has it, without names that the type does not have. Raises BodyError."""
    of = _pa().types
    if isinstance(value, Number):
        return _exact(value)
    if isinstance(value, Pairs):
        kinds = {field.name: field.type for field in kind} if of.is_struct(kind) else {}
        found: dict[str, object] = {}
        for name, each in value:
            if name in found:
                raise BodyError(f"The name {name!r} of the body stands twice in one object.")
            if name in kinds or of.is_map(kind):
                found[name] = _wanted(each, kinds.get(name) or kind.item_type)
        return found
    return [_wanted(each, kind.value_type) for each in value] if isinstance(value, list) and of.is_list(kind) else value


def _exact(digits: str) -> Decimal:
    """Return a number of any length. One whose exponent Python does not take is as large or as small as any."""
    try:
        return Decimal(digits)
    except InvalidOperation:
        mantissa, _, exponent = digits.lower().partition("e")
        return Decimal(mantissa) * 0 if not Decimal(mantissa) else Decimal(f"{mantissa[:1] if mantissa[:1] == '-' else ''}1e{exponent[:1]}999999")


_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_BRACKETS = b'"[]{}'
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = np.array([{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(sign), 0) for sign in range(256)], np.int32)


def _is_too_deep(body: bytes) -> bool:
    if len(body) <= DEEPEST or body.count(b"[") + body.count(b"{") <= DEEPEST:
        return False
    signs = np.frombuffer(_ESCAPE.sub(b"", body).translate(None, _OTHERS), np.uint8)
    outside = np.cumsum(signs == _BRACKETS[0]) % 2 == 0
    return bool(np.cumsum(np.where(outside, _STEPS[signs], 0)).max() > DEEPEST)


def _cell(field: pa.Field[Any], value: object) -> object:
    try:
        return _filled(value, field)
    except _REFUSED as error:
        raise BodyError(f"Column {field.name!r} of the body is {_shown(value)}; {error}.") from error


def _shown(value: object) -> str:
    try:
        return "missing or null" if value is None else json_text.written(value)[:_SHOWN]
    except JsonError:  # it is nested too deeply to be written
        return _json_name(value)


def _filled(value: object, field: pa.Field[Any]) -> Any:
    """Return a value of a column or of a struct's field as pyarrow takes it. Raises one of ``_REFUSED``."""
    if value is None and not field.nullable:
        raise ValueError("it is NOT NULL")
    return _converted(value, field.type)


def _converted(value: Any, kind: Any) -> Any:
    """Return a value of JSON as pyarrow takes it. Raises one of ``_REFUSED``."""
    of = _pa().types
    if value is None:
        return None
    if of.is_struct(kind):
        _expect(value, dict, kind)
        return {field.name: _in_struct(value.get(field.name), field) for field in kind}
    if of.is_map(kind):
        return _pairs({key: _converted(each, kind.item_type) for key, each in _expect(value, dict, kind).items()}, kind)
    if of.is_list(kind):
        return [_converted(each, kind.value_type) for each in _expect(value, list, kind)]
    return _scalar(value, kind)


def _in_struct(value: object, field: pa.Field[Any]) -> Any:
    try:
        return _filled(value, field)
    except ValueError as error:
        if value is None:
            raise ValueError(f"{field.name!r} in it is missing or null; {error}") from error
        raise


def _scalar(value: Any, kind: Any) -> Any:  # noqa: PLR0911  (one line for each type)
    of = _pa().types
    if of.is_boolean(kind):
        return _expect(value, bool, kind)
    if of.is_integer(kind):
        return _whole(value, kind)
    if of.is_floating(kind):
        return _float(value, kind)
    if of.is_decimal(kind):
        return _decimal(value, kind)
    text: str = _expect(value, str, kind)
    if of.is_string(kind):
        text.encode()  # no lone surrogate
        return text
    if of.is_binary(kind):
        return _bytes(text)
    if of.is_date(kind):
        return days_of(text)
    if of.is_timestamp(kind):
        return micros_of(text, zoned=kind.tz is not None)
    raise ValueError(f"expected is {ddl_type(kind)}, which is null only")


def _expect(value: Any, kinds: type | tuple[type, ...], kind: pa.DataType) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"expected is {ddl_type(kind)}, not {_json_name(value)}")
    return value


def _whole(value: Any, kind: pa.DataType) -> int:
    number = _expect(value, (int, Decimal), kind)
    if isinstance(number, Decimal) and number != number.to_integral_value():
        raise ValueError(f"expected is {ddl_type(kind)}, which has no fraction")
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= number < limit:
        raise ValueError(f"expected is {ddl_type(kind)}, from {-limit} to {limit - 1}")
    return int(number)


def _float(value: Any, kind: pa.DataType) -> float:
    if value in _NO_NUMBERS:  # as rows are sent that have them
        return float(value)
    number = _expect(value, (int, Decimal), kind)
    end = _FLOAT_ENDS if kind.bit_width == 32 else float("inf")  # noqa: PLR2004  (bits)
    try:
        found = float(number)
    except OverflowError:
        found = end
    if not -end < found < end:
        raise ValueError(f"expected is {ddl_type(kind)}, which has no number as large")
    return found


def _decimal(value: Any, kind: Any) -> Decimal:
    """Return a number that has a place in a decimal with all its digits."""
    given = _expect(value, (int, Decimal, str), kind)
    if isinstance(given, str) and not _NUMBER.fullmatch(given):
        raise ValueError(f"expected is {ddl_type(kind)}, a number or a text that is one, such as '12.50'")
    number = _exact(given) if isinstance(given, str) else Decimal(given)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    before = len(digits) + exponent
    if not (-exponent <= kind.scale and before <= kind.precision - kind.scale) and number:
        zeros = next(place for place, digit in enumerate(reversed(digits)) if digit)  # that end it are no digits that are lost
        if -exponent - zeros > kind.scale or before > kind.precision - kind.scale:
            raise ValueError(f"expected is {ddl_type(kind)}: {kind.precision - kind.scale} digits before the point and {kind.scale} behind it")
    return number or Decimal(0)


def _bytes(text: str) -> bytes:
    found = base64.b64decode(text, validate=True)
    if base64.b64encode(found).decode() != text:
        raise ValueError("expected is base64, of which these bytes have another text")
    return found


def _pairs(values: dict[str, Any], kind: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a map. Raises ValueError where two names are the same key."""
    found = [(_key(name, kind.key_type), value) for name, value in values.items()]
    if len({key for key, _ in found}) != len(found):
        raise ValueError(f"two of its names are the same {ddl_type(kind.key_type)}")
    return found


def _key(name: str, kind: pa.DataType) -> Any:
    """Return a name of an object as the key of a map: what the text itself would be as JSON, or in quotes."""
    of = _pa().types
    if of.is_boolean(kind):
        return _scalar({"true": True, "false": False}.get(name, name), kind)
    if of.is_integer(kind) or of.is_floating(kind):
        return _scalar(_exact(name) if _NUMBER.fullmatch(name) else name, kind)
    if of.is_nested(kind):
        raise ValueError(f"expected are keys of {ddl_type(kind)}, which JSON does not have")
    return _scalar(name, kind)


def _json_name(value: object) -> str:
    names: Mapping[type, str] = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _pa() -> Any:
    return pa


# msgspec --------------------------------------------------------------------------------------------------------------


@lru_cache(16)
def _typed_decoder(schema: pa.Schema) -> tuple[Any, tuple[type[Exception], ...]] | None:
    """Return msgspec's decoder of bodies to objects with the attributes f0, f1 ..., and what it raises; None: it is not installed."""
    try:
        import msgspec
    except ImportError:
        return None
    try:
        names = {f"f{number}": field.name for number, field in enumerate(schema)}
        fields = [(name, *_declared(field)) for name, field in zip(names, schema, strict=True)]
        record = msgspec.defstruct("Body", fields, rename=names, gc=False, kw_only=True)
        return msgspec.json.Decoder(record), (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
    except (TypeError, ValueError, _NoAnnotationError):  # a type or a name that it does not take
        return None


class _NoAnnotationError(Exception):
    """A type whose values ``json_text`` decodes."""


def _declared(field: pa.Field[Any]) -> tuple[Any, ...]:
    """Return the annotation of a column, and its default where it may be missing."""
    return (_or_null(field.type), None) if field.nullable else (_annotation(field.type),)


def _or_null(kind: pa.DataType) -> Any:
    return _annotation(kind) if _pa().types.is_decimal(kind) else _annotation(kind) | None  # Raw has null, and is part of no union


def _annotation(kind: Any) -> Any:  # noqa: PLR0911  (one line for each type)
    """Return how msgspec takes values of a type. It takes none but those that the rules take, and ``_finished`` looks at the rest."""
    import msgspec

    of = _pa().types
    if of.is_struct(kind):
        fields = {field.name: _or_null(field.type) if field.nullable else Required[_annotation(field.type)] for field in kind}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    if of.is_map(kind):
        return dict[str, _or_null(kind.item_type)]  # type: ignore[misc]
    if of.is_list(kind):
        return list[_or_null(kind.value_type)]  # type: ignore[misc]
    if of.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if of.is_timestamp(kind):
        return datetime if kind.tz is not None else Annotated[datetime, msgspec.Meta(tz=False)]
    if of.is_float32(kind):
        return Annotated[float, msgspec.Meta(gt=-_FLOAT_ENDS, lt=_FLOAT_ENDS)]
    plain: dict[Any, Any] = {
        of.is_boolean: bool,
        of.is_floating: float,
        of.is_string: str,
        of.is_binary: str,  # base64, of which msgspec takes more than one text for the same bytes
        of.is_date: date,
        of.is_decimal: msgspec.Raw,  # as it is written: Decimal takes "1_000" and "NaN"
    }
    found = next((python for test, python in plain.items() if test(kind)), None)
    if found is None:
        raise _NoAnnotationError
    return found


def _finished(kind: Any, *, nullable: bool = True) -> Finish | None:
    """Return what makes a value of msgspec one that pyarrow takes, or raises one of ``_REFUSED``; None: it is one."""
    of = _pa().types
    if of.is_map(kind):
        inner = _finished(kind.item_type) or _same
        return lambda value: _pairs({name: None if each is None else inner(each) for name, each in value.items()}, kind)
    if of.is_list(kind) and (element := _finished(kind.value_type)) is not None:
        return lambda value: [None if each is None else element(each) for each in value]
    if of.is_struct(kind):
        parts = {field.name: finish for field in kind if (finish := _finished(field.type, nullable=field.nullable)) is not None}
        if parts:
            return lambda value: {name: each if each is None else parts.get(name, _same)(each) for name, each in value.items()}
    if of.is_decimal(kind):
        return lambda raw: _raw_decimal(bytes(raw).decode(), kind, nullable=nullable)
    return _bytes if of.is_binary(kind) else None


def _same(value: Any) -> Any:
    return value


def _raw_decimal(text: str, kind: pa.DataType, *, nullable: bool) -> Decimal | None:
    if text == "null" and nullable:
        return None
    return _decimal(text[1:-1] if text[0] == '"' else text, kind)


_ESCAPED = r"\\u00[2-7]"
_ODD_INSTANT = r'\d:\d\d\.\d{6}\d*[1-9]|"(?:0001-01-01|9999-12-31)[Tt ]'
"""An instant that msgspec rounds, or that may be outside the years 1 to 9999 in UTC, which pyarrow does not take from Python."""


def _suspects(bodies: pa.Array[Any], schema: pa.Schema) -> set[int]:
    """Return the places of bodies that msgspec may take although the rules do not. It does not see all of what the schema does not name, either."""
    found = set(_places(bodies.is_null())) if bodies.null_count else set[int]()
    try:
        bodies.cast(pa.large_string())
    except pa.ArrowInvalid:
        found.update(place for place, body in enumerate(bodies.to_pylist()) if body is not None and not _is_text(body))
    names = set(_names(pa.struct(list(schema))))
    plain = all(name is not None and name.isascii() and name.isprintable() and "/" not in name for name in names)
    pattern = _ESCAPED if plain else r"\\"  # a name may be written in more ways than one
    if any(map(_has_instants, schema.types)):
        pattern += f"|{_ODD_INSTANT}"
    found.update(_places(pc.match_substring_regex(bodies, pattern)))
    known = [name for name in names if name is not None]
    wanted = _keys_of(tuple(known)) if plain else None
    rows = max(len(bodies) * _PIECE // max(bodies.nbytes, 1), 1)
    for first in range(0, len(bodies), rows):
        piece = bodies[first : first + rows]
        found.update(first + place for place in _nested(piece).tolist() if _is_too_deep(_body(piece, place)))
        those = np.arange(len(piece)) if wanted is None else _naming_twice(piece, known)
        repeating = those[_repeating(piece.take(those), wanted)] if len(those) else those
        found.update(place for place in (first + repeating).tolist() if place not in found and not _is_plain(_body(bodies, place)))
    return found


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_plain(body: bytes) -> bool:
    """Whether no name of a body stands twice in one object."""
    try:
        json_text.values(body)
    except (JsonError, ArithmeticError):
        return False
    return True


def _names(kind: Any) -> Iterator[str | None]:
    """Yield the names that a type has for the names of objects; None: any."""
    of = _pa().types
    if of.is_struct(kind):
        yield from (field.name for field in kind)
    if of.is_map(kind):
        yield None
    for place in range(kind.num_fields):
        yield from _names(kind.field(place).type)


def _has_instants(kind: Any) -> bool:
    return bool(_pa().types.is_timestamp(kind)) or any(_has_instants(kind.field(place).type) for place in range(kind.num_fields))


def _places(mask: Any) -> list[int]:
    return cast("list[int]", pc.indices_nonzero(mask.fill_null(False)).to_pylist())  # noqa: FBT003  (Arrow's signature)


_QUOTE, _COLON, _SPACE, _BACKSLASH, _OPEN, _CLOSE, _BRACKET, _RETURN, _FEED = b'": \\{}[\r\n'
_WITHOUT_CASE = 0xDF
"""Leaves out the bit by which ``{`` differs from ``[``."""
_PIECE = 384 << 10
"""Bytes of bodies that are looked at together, about: more are not in the caches of a processor, and arrays of that size are memory made anew."""
_WORD = 8
_EACH_BYTE = np.uint64(0x0101010101010101)
"""Multiplied with a word, its first byte is the sum of its bytes."""
_LAST = np.uint64(8 * (_WORD - 1))
"""A word without these bits is its last byte."""
_MOST_SPACES = 8
_MASKS = np.array([(1 << (8 * width)) - 1 for width in range(_WORD + 1)], np.uint64)


def _content(array: pa.Array[Any], behind: int = 0) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value of a ``large_binary`` array begins, with the end of the last one, and their bytes with zeros behind them."""
    buffers: list[Any] = array.buffers()
    _, ends_of, content = buffers
    if not len(array) or content is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(behind, np.uint8)
    offsets = np.frombuffer(ends_of, np.int64, len(array) + 1, array.offset * 8)
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], np.concatenate([data, np.zeros(behind, np.uint8)]) if behind else data


def _nested(array: pa.Array[Any]) -> NDArray[np.intp]:
    """Return the places of bodies in which more than ``DEEPEST`` objects and arrays begin, in texts or outside of them."""
    offsets, data = _content(array)
    if not (np.diff(offsets) > DEEPEST).any():
        return np.empty(0, np.intp)
    begins = ((data & _WITHOUT_CASE) == _BRACKET)[: len(data) // _WORD * _WORD].view(np.uint64)  # each byte of a word is 1 or 0
    firsts = np.minimum(offsets[:-1] // _WORD, len(begins) - 1)
    counts = np.add.reduceat((begins * _EACH_BYTE) >> _LAST, firsts)
    return np.flatnonzero(counts > DEEPEST)  # left out is the word in which a body ends: only ends stand there


class _Texts(NamedTuple):
    """Names in the bodies of a piece.

    :param data: the bodies, with zeros behind them.
    :param quotes: where a quote is.
    :param offsets: where each body begins, and the end of the last one.
    :param begins: where each name begins.
    :param keys: what stands for it: its first and its last 8 bytes and its length.
    """

    data: NDArray[np.uint8]
    quotes: NDArray[np.intp]
    offsets: NDArray[np.int64]
    begins: NDArray[np.intp]
    keys: NDArray[np.uint64]


def _texts(array: pa.Array[Any]) -> _Texts:
    """Find the names in bodies of ``large_binary``: a name ends with a quote before a colon, and begins behind the quote before that."""
    offsets, data = _content(array, _WORD)
    quotes = np.flatnonzero(data == _QUOTE)
    behind = data[quotes + 1]
    spaces = np.flatnonzero(behind <= _SPACE)
    for step in range(2, 2 + _MOST_SPACES):
        behind[spaces] = data[np.minimum(quotes[spaces] + step, len(data) - 1)]
        spaces = spaces[behind[spaces] <= _SPACE]
    behind[spaces] = _COLON
    closing = np.flatnonzero(behind[1:] == _COLON) + 1
    begins, ends = quotes[closing - 1] + 1, quotes[closing]
    lengths = ends - begins
    words = np.ndarray(len(data) - _WORD + 1, np.uint64, data, strides=(1,))
    keys = words[begins] & _MASKS[np.minimum(lengths, _WORD)]
    long = np.flatnonzero(lengths > _WORD)
    keys[long] ^= words[ends[long] - _WORD] * np.uint64(0x9E3779B97F4A7C15) + lengths[long].astype(np.uint64)
    return _Texts(data, quotes, offsets, begins, keys)


@lru_cache(maxsize=8)
def _keys_of(names: tuple[str, ...]) -> NDArray[np.uint64]:
    """Return what stands for names that a body has no more than one way to write."""
    return _texts(_pa().array([json_text.written(Pairs((name, None) for name in names))], _pa().large_binary())).keys


def _repeating(array: pa.Array[Any], wanted: NDArray[np.uint64] | None = None) -> NDArray[np.intp]:
    """Return the places of bodies in which two names may be the same: all in which they are, written alike, and some more.

    :param array: of ``large_binary``.
    :param wanted: of the names that matter (``_keys_of``); None: all do.
    """
    names = _texts(array)
    if wanted is not None:
        matter = np.flatnonzero(np.isin(names.keys, wanted))
        names = names._replace(begins=names.begins[matter], keys=names.keys[matter])
    firsts = np.searchsorted(names.begins, names.offsets)
    counts = np.diff(firsts)
    found = [np.empty(0, np.intp)]
    for count in (np.flatnonzero(np.bincount(counts)[2:]) + 2).tolist():
        places = np.flatnonzero(counts == count)
        of_each = names.keys[firsts[places][:, None] + np.arange(count)]
        of_each.sort(axis=1)
        found.append(places[(of_each[:, 1:] == of_each[:, :-1]).any(axis=1)])
    repeating = np.concatenate(found)
    return _in_one_object(repeating, names, counts) if len(repeating) else repeating


def _naming_twice(array: pa.Array[Any], wanted: Sequence[str]) -> NDArray[np.intp]:
    """Return the places of bodies in which ``_repeating`` may find one of these names twice: all such, and some more.

    A name is known by its last bytes and its quotes before a colon.
    """
    offsets, data = _content(array)
    if len(data) < _WORD:
        return np.arange(len(array))
    colons = np.flatnonzero(data == _COLON)
    ends = np.ndarray(len(data) - _WORD + 1, np.uint64, data, strides=(1,))[np.maximum(colons - _WORD, 0)]
    ends[:_WORD] <<= (8 * np.maximum(_WORD - colons[:_WORD], 0)).astype(np.uint64)

    def bodies_of(places: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.searchsorted(offsets, places, side="right") - 1

    found = [bodies_of(colons[ends >> _LAST <= _SPACE])]
    for name in wanted:
        end = f'"{name}"'.encode()[-_WORD:]
        unused = np.uint64(8 * (_WORD - len(end)))
        here = colons[ends >> unused == np.frombuffer(end.rjust(_WORD, b"\0"), np.uint64) >> unused]
        if len(here) != len(array) or (here < offsets[:-1]).any() or (here >= offsets[1:]).any():  # else each has one
            here = bodies_of(here)
            found.append(here[1:][here[1:] == here[:-1]])
    return np.unique(np.concatenate(found))


def _in_one_object(bodies: NDArray[np.intp], names: _Texts, counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return those of some bodies in which two names of one object may be the same: a list of objects repeats the names of all of them.

    A brace that has an even number of quotes before it in its body is no part of a text. A body with a backslash, which may stand before a quote, is
    returned as it is.

    :param counts: how many names each body has.
    """
    data, quotes = names.data, names.quotes
    wanted = np.zeros(len(counts), bool)
    wanted[bodies] = True

    def body_of(places: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.searchsorted(names.offsets, places, side="right") - 1

    escaped = np.zeros(len(counts), bool)
    escaped[body_of(np.flatnonzero(data[: names.offsets[-1]] == _BACKSLASH))] = True
    braces = np.flatnonzero((data == _OPEN) | (data == _CLOSE))
    of_brace = body_of(braces)
    before = np.searchsorted(quotes, braces) - np.searchsorted(quotes, names.offsets)[of_brace]
    outside = wanted[of_brace] & (before % 2 == 0)
    of_name = np.repeat(np.arange(len(counts)), counts)
    named = wanted[of_name]
    step = np.concatenate([np.where(data[braces[outside]] == _OPEN, 1, -1), np.zeros(int(named.sum()), np.intp)])
    place, body = np.concatenate([braces[outside], names.begins[named]]), np.concatenate([of_brace[outside], of_name[named]])
    key = np.concatenate([np.zeros(int(outside.sum()), np.uint64), names.keys[named]])
    order = np.argsort(place, kind="stable")
    step, body, key = step[order], body[order], key[order]
    depth = np.cumsum(step)
    order = np.argsort(body * (int(depth.max()) - int(depth.min()) + 1) + depth - depth.min(), kind="stable")
    order = order[step[order] >= 0]
    opens = step[order] == 1
    inside, key, body = np.cumsum(opens)[~opens], key[order][~opens], body[order][~opens]  # the object that was opened last at this depth
    order = np.lexsort((key, inside))
    same = (key[order][1:] == key[order][:-1]) & (inside[order][1:] == inside[order][:-1])
    twice = np.zeros(len(counts), bool)
    twice[body[order][1:][same]] = True
    return np.flatnonzero(wanted & (twice | escaped))
