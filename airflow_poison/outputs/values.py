"""Values of rows as an output keeps them: which fit a type exactly, which type a value has, and in which type a Delta table keeps another type.

A value is kept as it is or refused. Only a column of floating-point numbers takes the nearest one that it has.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import reduce
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from airflow_poison.values.data_frames import is_missing
from airflow_poison.values.libraries import pa, pc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    AnyType = Any  # a pa.DataType, whose parts are looked at behind questions that a type checker does not follow
    Checked = Callable[[Any], Any]

MISFITS = (TypeError, ValueError, ArithmeticError, NotImplementedError)
"""What ``checked_by`` raises for a value that does not fit."""
_DECIMAL = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_EXACT = 1 << 53
"""Up to here each whole number is a double."""
_NARROW = {16: struct.Struct("<e"), 32: struct.Struct("<f")}
_DEEPEST = 50
"""So deep a type may be nested: Arrow writes 64 levels, of which a few are the queue's own."""
_DIGITS, _SCALE = 38, 18
"""Of the column of a decimal number whose type is not declared: digits, and digits behind the point where there is room."""


def cells_of(given: object) -> Mapping[Any, Any] | None:
    """Return a row, or the value of a struct, as a mapping; None for what is none."""
    if isinstance(given, Mapping):
        return given
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    for method in ("asDict", "_asdict"):
        if isinstance(given, tuple) and callable(called := getattr(given, method, None)):
            found = called()
            return found if isinstance(found, Mapping) else None
    return None


# Types -----------------------------------------------------------------------------------------------------------------


def delta_type(kind: AnyType) -> pa.DataType:
    """Return the type in which a Delta table keeps every value of a type as it is. Raises ValueError, which names the part that it does not have."""
    of = pa.types
    if of.is_dictionary(kind) or of.is_run_end_encoded(kind):
        return delta_type(kind.value_type)
    if of.is_map(kind):
        if _has_local_time(kind):
            raise ValueError("a Delta table that delta-rs writes has no map with timestamp_ntz. Use timestamp.")
        return _map(kind.key_field.with_type(delta_type(kind.key_type)), _kept(kind.item_field, "value"))
    if is_list(kind):
        return pa.list_(_kept(kind.value_field, "element"))
    if of.is_struct(kind):
        return _delta_struct(kind)
    if (found := _simple_delta_type(kind)) is not None:
        return found
    instead = " Return a number of seconds, or text." if of.is_temporal(kind) else " Return text."
    raise ValueError(f"a Delta table has no type for {kind}.{instead}")


def check_names_and_depth(kind: AnyType, name: str = "") -> None:
    """Raise ValueError for a name with NUL, where Arrow would end it, and for a type that is nested deeper than Arrow writes."""
    if "\0" in name:
        raise ValueError(f"names have no NUL, as {name!r} has")
    if _depth(kind) > _DEEPEST:
        raise ValueError(f"lists, maps and structs are nested more than {_DEEPEST} deep. Return text.")


def _depth(kind: AnyType) -> int:
    return 1 + max(_depth(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 0


def _has_local_time(kind: AnyType) -> bool:

    return (pa.types.is_timestamp(kind) and not kind.tz) or any(_has_local_time(kind.field(number).type) for number in range(kind.num_fields))


def _simple_delta_type(kind: AnyType) -> pa.DataType | None:

    of = pa.types
    if of.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _DIGITS and 0 <= kind.scale <= kind.precision else None
    if of.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    simple: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], pa.DataType], ...] = (
        ((of.is_boolean, of.is_signed_integer, of.is_float32, of.is_float64, of.is_null), kind),
        ((of.is_string, of.is_large_string, of.is_string_view), pa.string()),
        ((of.is_binary, of.is_large_binary, of.is_binary_view, of.is_fixed_size_binary), pa.binary()),
        ((of.is_date,), pa.date32()),
        ((of.is_uint8,), pa.int16()),
        ((of.is_uint16,), pa.int32()),
        ((of.is_uint32,), pa.int64()),
        ((of.is_float16,), pa.float32()),
    )
    return next((kept for kinds, kept in simple if any(is_kind(kind) for is_kind in kinds)), None)


def _delta_struct(kind: AnyType) -> pa.DataType:

    fields = [kind.field(number) for number in range(kind.num_fields)]
    if not fields:
        raise ValueError("a Delta table has no struct without fields.")
    if (twice := same_name([field.name for field in fields])) is not None:
        raise ValueError(f"a Delta table has no struct with the fields {twice[0]!r} and {twice[1]!r}, which differ by case alone.")
    return pa.struct([_kept(field, field.name) for field in fields])


def _kept(field: pa.Field[Any], name: str) -> pa.Field[Any]:
    return field.with_type(delta_type(field.type)).with_name(name)


def _map(key: pa.Field[Any], item: pa.Field[Any]) -> pa.DataType:

    return pa.map_(key, item)  # type: ignore[call-overload, no-any-return]  # it takes fields, too


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Return columns as a Delta table keeps them. Raises ValueError, which names the column."""
    if (twice := same_name(schema.names)) is not None:
        raise ValueError(f"a Delta table has no columns {twice[0]!r} and {twice[1]!r}, which differ by case alone")
    fields = []
    for field in schema:
        try:
            check_names_and_depth(field.type, field.name)
            fields.append(field.with_type(delta_type(field.type)))
        except ValueError as error:
            raise ValueError(f"column {field.name!r}: {error}") from None
    return pa.schema(fields)


def same_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that are the same without regard to case; None: there are none."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(name.lower(), name)) is not name:
            return other, name
    return None


def is_list(kind: AnyType) -> bool:
    """Whether values of a type are lists, of any kind that Arrow has."""
    of = pa.types
    return any(is_kind(kind) for is_kind in (of.is_list, of.is_large_list, of.is_fixed_size_list, of.is_list_view, of.is_large_list_view))


def has_unknown(kind: AnyType) -> bool:
    """Whether a type is not known yet, or a part of it: no value has been there."""
    return pa.types.is_null(kind) or any(has_unknown(kind.field(number).type) for number in range(kind.num_fields))


def filled(kind: AnyType, news: AnyType) -> AnyType:
    """Return a type with what another one knows of its unknown parts."""
    if pa.types.is_null(kind):
        return news
    if not has_unknown(kind):
        return kind
    if is_list(kind) and is_list(news):
        return pa.list_(_filled(kind.value_field, news.value_field))
    if pa.types.is_struct(kind) and pa.types.is_struct(news):
        theirs = {news.field(number).name: news.field(number) for number in range(news.num_fields)}
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([_filled(field, theirs.get(field.name, field)) for field in fields])
    if pa.types.is_map(kind) and pa.types.is_map(news):
        return _map(kind.key_field, _filled(kind.item_field, news.item_field))
    return kind


def _filled(field: pa.Field[Any], news: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(filled(field.type, news.type))


def without_unknown(kind: AnyType) -> AnyType:
    """Return a type with text where it is not known: no value has been there, and a table wants a type."""
    if pa.types.is_null(kind):
        return pa.string()
    if not has_unknown(kind):
        return kind
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(without_unknown(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return _map(kind.key_field, kind.item_field.with_type(without_unknown(kind.item_type)))
    return pa.list_(kind.value_field.with_type(without_unknown(kind.value_type)))


def nullable(kind: AnyType) -> AnyType:
    """Return a type whose parts may all be null, but for the keys of maps."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(nullable(field.type)).with_nullable(nullable=True) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(nullable(kind.value_type)).with_nullable(nullable=True))
    return kind


def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Return columns that may be null in all parts: what a plan of Spark says of values is no condition of a table."""
    return pa.schema([pa.field(field.name, nullable(field.type)) for field in schema])


def cast(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return values with another type, each as it is; a column of floats takes the nearest one. Raises ArrowInvalid.

    Arrow's own cast breaks lists of nulls (apache/arrow#43838).
    """
    if column.type == kind:
        return column
    if _loses(column, kind):
        raise pa.ArrowInvalid(f"{kind} does not hold all of a value of {column.type}")
    return pa.array(column.to_pylist(), kind) if has_unknown(column.type) else column.cast(kind)


def _loses(column: Any, kind: AnyType) -> bool:
    """Whether Arrow's cast would leave out fields or a time of the day, make a number infinite, or take instants for times without a zone."""
    of, given = pa.types, column.type
    if of.is_struct(given) and of.is_struct(kind):
        wanted = {field.name: field.type for field in kind}
        parts = zip(given, column.flatten(), strict=True)
        return any(part.null_count < len(part) if field.name not in wanted else _loses(part, wanted[field.name]) for field, part in parts)
    if of.is_map(given) and of.is_map(kind):
        return _loses(column.keys, kind.key_type) or _loses(column.items, kind.item_type)
    if is_list(given) and is_list(kind):
        return _loses(column.flatten(), kind.value_type)
    if of.is_timestamp(given) and of.is_timestamp(kind):
        return column.null_count < len(column) and (given.tz is None) != (kind.tz is None)
    if of.is_floating(given) and of.is_floating(kind):
        return bool(pc.any(pc.and_(pc.is_inf(column.cast(kind, safe=False)), pc.invert(pc.is_inf(column)))).as_py())
    dates = of.is_timestamp(given) and of.is_date(kind)
    return dates and pc.all(pc.equal(column.cast(kind).cast(given), column)).as_py() is False


def type_of(value: Any) -> pa.DataType:
    """Return the type of a column by one value; null for None. Raises ValueError, TypeError and ArithmeticError for a value that has none."""
    if is_missing(value):
        return pa.null()
    if isinstance(value, Decimal):
        behind = max(0, -value.as_tuple().exponent) if value.is_finite() else 0  # type: ignore[operator]  # finite: a number
        before = max(0, value.adjusted() + 1) if value.is_finite() else 0
        return pa.decimal128(_DIGITS, max(0, min(_DIGITS - before, max(_SCALE, behind))))
    if (cells := cells_of(value)) is not None:
        if other := [name for name in cells if not isinstance(name, str)]:
            raise TypeError(f"it has a field {other[0]!r}, and names are text")
        if wrong := [name for name in cells if "\0" in name]:
            raise ValueError(f"it has a field {wrong[0]!r}, and names have no NUL")  # Arrow ends them there
        return pa.struct([(name, type_of(each)) for name, each in cells.items()])
    nothing: pa.DataType = pa.null()
    if isinstance(value, (list, tuple, set, frozenset)) or (getattr(value, "ndim", None) and not isinstance(value, memoryview)):
        return pa.list_(reduce(_common, map(type_of, value), nothing))
    kind = pa.scalar(_scalar(bytes(value) if isinstance(value, memoryview) else value)).type
    return pa.timestamp("us", "UTC" if kind.tz else None) if pa.types.is_timestamp(kind) else kind


def _common(one: AnyType, other: AnyType) -> AnyType:
    """Return the type of a list with elements of both. Raises ValueError."""
    of = pa.types
    known = filled(one, other)
    if filled(other, known) == known:
        return known
    numbers = [of.is_integer(kind) or of.is_floating(kind) for kind in (one, other)]
    if all(numbers):
        return pa.float64()
    if of.is_decimal(one) and of.is_decimal(other):
        return max(one, other, key=lambda kind: kind.scale)
    if is_list(one) and is_list(other):
        return pa.list_(_common(one.value_type, other.value_type))
    if of.is_struct(one) and of.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    raise ValueError(f"its elements are of different types, {one} and {other}")


# Values ----------------------------------------------------------------------------------------------------------------


def checked_by(kind: pa.DataType) -> Checked:
    """Return what checks values of a type: it returns them as they are kept, and raises one of ``MISFITS``."""
    of = pa.types
    simple: list[tuple[bool, Checked]] = [
        (of.is_boolean(kind), _boolean),
        (of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind), _text),
        (of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind), _bytes),
        (of.is_date(kind), _date),
    ]
    found = next((checked for right, checked in simple if right), None)
    if found is not None:
        return found
    if of.is_floating(kind):
        return _real(kind.bit_width)
    if of.is_integer(kind):
        width, signed = kind.bit_width, of.is_signed_integer(kind)
        return _integer(-(1 << (width - 1)) if signed else 0, (1 << (width - signed)) - 1)
    if of.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if of.is_timestamp(kind):
        return _timestamp(kind)
    return _nested(kind)


def _nested(kind: AnyType) -> Checked:

    of = pa.types
    if of.is_dictionary(kind) or of.is_run_end_encoded(kind):
        return checked_by(kind.value_type)
    if is_list(kind):
        return _list_of(kind.value_field, kind.list_size if of.is_fixed_size_list(kind) else None)
    if of.is_struct(kind):
        return _struct_of([kind.field(number) for number in range(kind.num_fields)])
    if of.is_map(kind):
        return _map_of(kind.key_field, kind.item_field)
    return _rare(kind)


def _rare(kind: pa.DataType) -> Checked:

    def check(value: Any) -> Any:
        kept = pa.scalar(value, kind).as_py()  # ArrowInvalid is a ValueError
        if kept != value:
            raise ValueError(f"it would be {kept!r}")
        return kept

    return check


def _scalar(value: Any) -> Any:
    """Return a scalar of NumPy, or an array without dimensions, as Python's value. Raises TypeError for one that is missing."""
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        if is_missing(value):  # the item of a masked number is what it hides
            raise TypeError
        return _of_numpy(value) if getattr(value.dtype, "kind", "") == "M" else value.item()
    return value


def _of_numpy(value: Any) -> date | datetime:
    """Return an instant of NumPy. Raises ValueError where a digit would be lost."""
    kept = value if str(value.dtype) == "datetime64[D]" else value.astype("datetime64[us]")
    found = kept.item()
    if kept != value:
        raise ValueError("it has nanoseconds, and the column keeps microseconds")
    if not isinstance(found, date):
        raise ValueError("it is no instant that Python has")  # noqa: TRY004  (NaT, and years before 1 and after 9999)
    return found


def _boolean(value: Any) -> bool:
    if type(value) is not bool and type(value).__name__ not in {"bool_", "bool"}:
        raise TypeError
    return bool(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in {"bool_", "bool"}


def _integer(least: int, most: int) -> Checked:
    def fits(value: Any) -> int:
        if type(value) is not int:
            value = _whole(_scalar(value))
        if not least <= value <= most:
            raise ValueError(f"expected {least} to {most}")
        return value  # type: ignore[no-any-return]

    return fits


def _whole(value: Any) -> int:
    """Return a whole number, which may be written with a point. Raises ValueError, TypeError."""
    if _is_bool(value):
        raise TypeError
    if hasattr(value, "__index__"):
        return value.__index__()  # type: ignore[no-any-return]
    if not isinstance(value, (float, Decimal)):
        raise TypeError
    if not math.isfinite(value) or value != int(value):
        raise ValueError("it is no whole number")
    if isinstance(value, float) and abs(value) > _EXACT:
        raise ValueError("a floating-point number as large has lost digits")
    return int(value)


def _real(width: int) -> Checked:
    narrow = _NARROW.get(width)

    def fits(value: Any) -> float:
        if narrow is None and type(value) is float:
            return value
        number = value if type(value) is float else _float(_scalar(value))
        if narrow is not None:
            try:
                (number,) = narrow.unpack(narrow.pack(number))
            except OverflowError:
                raise ValueError("it would be infinity") from None
        if isinstance(value, Integral) and int(number) != value:
            raise ValueError("it has more digits than a floating-point number keeps")
        return number

    return fits


def _float(value: Any) -> float:
    if _is_bool(value) or not isinstance(value, (Real, Decimal)):
        raise TypeError
    number = float(value)
    if math.isinf(number) and value not in (math.inf, -math.inf):
        raise ValueError("it would be infinity")
    return number


def _decimal(precision: int, scale: int) -> Checked:
    unit, context = Decimal(1).scaleb(-scale), Context(prec=precision, traps=[Inexact, InvalidOperation])

    def fits(value: Any) -> Decimal:
        number = value if type(value) is Decimal else _number(_scalar(value))
        if not number.is_finite():
            raise ValueError("it is no number")
        try:
            return number.quantize(unit, context=context)
        except Inexact:
            raise ValueError(f"it has more than {scale} digits behind the point") from None
        except InvalidOperation:
            raise ValueError(f"it has more than {precision - scale} digits before the point, or {precision} in all") from None

    return fits


def _number(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if _is_bool(value):
        raise TypeError
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value) is None:
            raise ValueError("expected a number like '-12.50'")
        return Decimal(str.__str__(value))
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    return Decimal(_whole(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.isascii():
        value.encode()  # lone surrogates
    return value if type(value) is str else str.__str__(value)  # an enum's own text is its name


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError
    return bytes(value)


def _timestamp(kind: AnyType) -> Checked:
    zoned, step = bool(kind.tz), {"s": 1_000_000, "ms": 1_000}.get(kind.unit, 1)

    def fits(value: Any) -> datetime:
        moment = _moment(value, exact=kind.unit == "ns")
        if zoned and moment.tzinfo is None:
            raise ValueError("it has no time zone, for example datetime.now(UTC)")
        if not zoned and moment.tzinfo is not None:
            raise ValueError("it has a time zone, and the column has none")
        if moment.microsecond % step:
            raise ValueError(f"the column keeps {kind.unit}")
        return moment.astimezone(UTC) if zoned else moment

    return fits


def _moment(value: Any, *, exact: bool) -> datetime:
    """Return an instant as Python has it; the nanoseconds of one of pandas stay where the column keeps them."""
    value = _scalar(value)
    if not isinstance(value, datetime):
        raise TypeError
    if type(value) is datetime:
        return value
    if value != value:  # noqa: PLR0124  (NaT)
        raise ValueError("it is no instant")
    if getattr(value, "nanosecond", 0):
        if exact:
            return value
        raise ValueError("it has nanoseconds, and the column keeps microseconds")
    return datetime.combine(value.date(), value.time(), value.tzinfo)


def _date(value: Any) -> date:
    value = _scalar(value)
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value


def _or_none(field: pa.Field[Any]) -> Checked:

    fits = _no_value if pa.types.is_null(field.type) else checked_by(field.type)

    def check(value: Any) -> Any:
        if is_missing(value):
            if field.nullable:
                return None
            raise ValueError(f"{field.name!r} must have a value")
        return fits(value)

    return check


def _no_value(_value: Any) -> Any:
    raise TypeError("no value is known there yet")


def _list_of(field: pa.Field[Any], size: int | None) -> Checked:
    fits = _or_none(field)

    def check(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(value, Iterable):
            raise TypeError
        found = [fits(each) for each in value]
        if size is not None and len(found) != size:
            raise ValueError(f"expected {size} elements")
        return found

    return check


def _struct_of(fields: Sequence[pa.Field[Any]]) -> Checked:
    checks = {field.name: _or_none(field) for field in fields}

    def check(value: Any) -> dict[str, Any]:
        cells = cells_of(value)
        if cells is None:
            raise TypeError
        other = next((name for name in cells if name not in checks), None)
        if other is not None:
            raise ValueError(f"it has no field {other!r}")
        return {name: fits(cells.get(name)) for name, fits in checks.items()}

    return check


def _map_of(key: pa.Field[Any], item: pa.Field[Any]) -> Checked:
    of_key, of_item = checked_by(key.type), _or_none(item)

    def check(value: Any) -> list[tuple[Any, Any]]:
        return [(of_key(name), of_item(each)) for name, each in _pairs(value)]

    return check


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values: of a mapping, of pairs as Arrow gives them, of structs ``key, value`` as Polars gives them. Raises TypeError."""
    if isinstance(value, Mapping):
        return value.items()
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise TypeError
    found = [(each["key"], each["value"]) if isinstance(each, dict) and each.keys() == {"key", "value"} else each for each in value]
    if not all(isinstance(pair, (tuple, list)) for pair in found):
        raise TypeError
    return [(key, value) for key, value in found]


def may_be_cast(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Spark may read values of a type as another one, value by value: text as plain values, and numbers as numbers."""
    of = pa.types
    numbers = [of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) for kind in (given, wanted)]
    text = of.is_string(given) or of.is_large_string(given) or of.is_string_view(given)
    return all(numbers) or (text and (numbers[1] or of.is_boolean(wanted) or of.is_date(wanted) or of.is_timestamp(wanted)))


def fits_type(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type is one of another type."""
    of = pa.types
    if of.is_null(given):
        return True
    if (of.is_integer(given) and of.is_integer(wanted)) or (of.is_floating(given) and of.is_floating(wanted)):
        return bool(given.bit_width <= wanted.bit_width)
    if of.is_decimal(given) and of.is_decimal(wanted):
        return bool(given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale)
    texts = (of.is_string, of.is_large_string, of.is_string_view, of.is_binary, of.is_large_binary, of.is_binary_view)
    alike = any(kind(given) for kind in texts[:3]) and any(kind(wanted) for kind in texts[:3])
    alike |= any(kind(given) for kind in texts[3:]) and any(kind(wanted) for kind in texts[3:])
    if of.is_timestamp(given) and of.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if of.is_nested(given) and given.id == wanted.id:
        pairs = [(given.field(place), wanted.field(place)) for place in range(min(given.num_fields, wanted.num_fields))]
        same = given.num_fields == wanted.num_fields and (not of.is_struct(given) or all(ours.name == theirs.name for ours, theirs in pairs))
        return same and all(fits_type(ours.type, theirs.type) and (theirs.nullable or not ours.nullable) for ours, theirs in pairs)
    return alike or given.equals(wanted)
