"""Rows of any Arrow types, nested three deep: the JSON of a body is the value, digit for digit; what cannot be one is an error of its row alone."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.core import json_text
from airflow_poison.core.mapping import ColumnMapping, rows_to_batches
from airflow_poison.core.sources.rows import JSON_TEXT, to_messages
from airflow_poison.core.sources.source import ERROR

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
WIDE = Context(prec=100)
FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INSTANTS = {"s": 200_000 * 31_536_000, "ms": 200_000 * 31_536_000_000, "us": 200_000 * 31_536_000_000_000, "ns": 2**63 - 10**15}


@st.composite
def decimals(draw: st.DrawFn) -> pa.DataType:
    kind, widest = draw(st.sampled_from([(pa.decimal128, 38), (pa.decimal256, 76)]))
    precision = draw(st.integers(1, widest))
    return kind(precision, draw(st.integers(-3, precision)))


SCALARS = st.one_of(
    decimals(),
    UNITS.map(pa.timestamp),
    UNITS.map(lambda unit: pa.timestamp(unit, "Asia/Kolkata")),
    UNITS.map(pa.duration),
    st.sampled_from(
        [
            pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.null(), pa.date32(), pa.date64(), pa.time32("s"),
            pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
            pa.binary_view(), pa.binary(3), pa.float16(), pa.month_day_nano_interval(),
            pa.dictionary(pa.int8(), pa.string()),
        ]
    ),
)  # fmt: skip


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.dictionaries(TEXTS, inner, max_size=3).map(lambda fields: pa.struct([*fields.items(), *[("A", pa.int8()), ("a", pa.int8())]])),
        st.just(pa.struct([])),
        st.tuples(SCALARS.filter(lambda kind: not pa.types.is_null(kind)), inner).map(lambda pair: pa.map_(*pair)),
    )


TYPES = st.one_of(SCALARS, nested(SCALARS), nested(nested(SCALARS)), nested(nested(nested(SCALARS))))


def integers(kind: pa.DataType) -> st.SearchStrategy[int]:
    """Return what a type of dates, times and instants counts."""
    if pa.types.is_date32(kind):
        return st.integers(-5_000_000, 5_000_000)
    if pa.types.is_date64(kind):
        return st.integers(-5_000_000, 5_000_000).map(lambda days: days * 86_400_000)
    if pa.types.is_time(kind):
        return st.integers(0, 86_400 * PER_SECOND[kind.unit] - 1)
    if pa.types.is_timestamp(kind):
        return st.integers(-INSTANTS[kind.unit], INSTANTS[kind.unit])
    return st.integers(-(2**63), 2**63 - 1)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911, PLR0912  (one line for each type)
    """Return values of a type, as ``array`` takes them; dates and the like as what they count."""
    if pa.types.is_dictionary(kind):
        return values(kind.value_type)
    if pa.types.is_null(kind):
        return st.none()
    if pa.types.is_struct(kind):
        return st.none() | st.tuples(*(values(field.type) for field in kind))
    if pa.types.is_map(kind):
        return st.none() | st.lists(st.tuples(values(kind.key_type).filter(lambda key: key is not None), values(kind.item_type)), max_size=3)
    if pa.types.is_fixed_size_list(kind):
        return st.none() | st.lists(values(kind.value_type), min_size=2, max_size=2)
    if hasattr(kind, "value_type"):
        return st.none() | st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.none() | st.integers(low, low + 2**kind.bit_width - 1)
    if pa.types.is_floating(kind):
        return st.none() | st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.none() | st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-kind.scale, context=WIDE))
    if pa.types.is_interval(kind):
        return st.none() | st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
    if pa.types.is_temporal(kind):
        return st.none() | integers(kind)
    if pa.types.is_fixed_size_binary(kind):
        return st.none() | st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    return st.none() | (TEXTS if "string" in str(kind) else st.binary(max_size=8))


def array(found: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return an array of values as ``values`` draws them."""
    if pa.types.is_struct(kind):
        fields = [array([None if row is None else row[at] for row in found], kind.field(at).type) for at in range(kind.num_fields)]
        if not fields:
            return pa.array([None if row is None else {} for row in found], kind)
        mask = pa.array([row is None for row in found], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=[kind.field(at) for at in range(kind.num_fields)], mask=mask)
    if pa.types.is_map(kind):
        pairs = [pair for row in found for pair in row or ()]
        inner = [array([key for key, _ in pairs], kind.key_type), array([item for _, item in pairs], kind.item_type)]
        return pa.MapArray.from_arrays(pa.array(starts(found), pa.int32()), *inner)
    if pa.types.is_fixed_size_list(kind):
        inside = array([each for row in found for each in row or [None, None]], kind.value_type)
        return pa.FixedSizeListArray.from_arrays(inside, 2, mask=pa.array([row is None for row in found], pa.bool_()))
    if not pa.types.is_dictionary(kind) and hasattr(kind, "value_type"):
        inside, begin = array([each for row in found for each in row or ()], kind.value_type), starts(found)
        if pa.types.is_list_view(kind):
            offsets, sizes = ([each or 0 for each in begin[:-1]], [len(row or ()) for row in found])
            return pa.ListViewArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(sizes, pa.int32()), inside, mask=pa.array([row is None for row in found], pa.bool_())
            )
        made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return made.from_arrays(pa.array(begin, pa.int64() if pa.types.is_large_list(kind) else pa.int32()), inside)
    if pa.types.is_duration(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return pa.array(found, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(found, kind)


def starts(found: list[Any]) -> list[int | None]:
    """Return where each list begins; null is a list that is null."""
    at, made = 0, list[int | None]()
    for row in found:
        made.append(None if row is None else at)
        at += len(row or ())
    return [*made, at]


def days_of(text: str) -> int:
    """Return the days since 1970 of an ISO date, with a sign before years that have not four digits."""
    year, month, day = (int(part) for part in (text[:-6], text[-5:-3], text[-2:]))
    cycles, rest = divmod(year - 2000, 400)
    return (date(2000 + rest, month, day) - date(1970, 1, 1)).days + cycles * 146_097


def seconds_of(text: str, per_second: int) -> int:
    """Return what ``12:34:56.789`` counts."""
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60 * per_second + count_of(seconds, per_second)


def count_of(seconds: str, per_second: int) -> int:
    counted = Decimal(seconds).scaleb(len(str(per_second)) - 1, context=WIDE)
    assert counted == int(counted)
    return int(counted)


def back(found: Any, kind: pa.DataType) -> Any:  # noqa: C901, PLR0911, PLR0912  (one line for each type)
    """Return the value that JSON stands for, as ``values`` draws it."""
    if found is None or pa.types.is_null(kind):
        return found
    if pa.types.is_dictionary(kind):
        return back(found, kind.value_type)
    if pa.types.is_struct(kind):
        assert [name for name, _ in found] == [kind.field(at).name for at in range(kind.num_fields)]
        return tuple(back(each, kind.field(at).type) for at, (_, each) in enumerate(found))
    if pa.types.is_map(kind):
        scalar = lambda key: (
            json_text.Number(key) if is_number(kind.key_type) and key[-1:].isdigit() else {"true": True, "false": False}.get(key, key)
        )  # noqa: E731
        return [(back(scalar(key) if is_number(kind.key_type) else key, kind.key_type), back(item, kind.item_type)) for key, item in found]
    if hasattr(kind, "value_type"):
        return [back(each, kind.value_type) for each in found]
    if pa.types.is_boolean(kind):
        assert isinstance(found, bool)
        return found
    if is_number(kind):
        assert isinstance(found, json_text.Number) or found in {"NaN", "Infinity", "-Infinity"}
        return int(found) if pa.types.is_integer(kind) else float(FLOATS[kind.bit_width](found)) if pa.types.is_floating(kind) else Decimal(found)
    assert type(found) is str
    if pa.types.is_interval(kind):
        months, rest = found[1:].split("M", 1)
        days, rest = rest.split("D", 1)
        return int(months), int(days), count_of(rest[1:-1], 10**9)
    if pa.types.is_date(kind):
        return days_of(found) * (1 if pa.types.is_date32(kind) else 86_400_000)
    if pa.types.is_time(kind):
        return seconds_of(found, PER_SECOND[kind.unit])
    if pa.types.is_timestamp(kind):
        assert found.endswith("Z") == (kind.tz is not None)
        day, clock = found.removesuffix("Z").split("T")
        return days_of(day) * 86_400 * PER_SECOND[kind.unit] + seconds_of(clock, PER_SECOND[kind.unit])
    if pa.types.is_duration(kind):
        return count_of(found[2:-1], PER_SECOND[kind.unit])
    return found if "string" in str(kind) else base64.b64decode(found)


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind))


def same(found: Any, wanted: Any) -> bool:
    """Say whether two values are one: of floats to the sign of zero, NaN is NaN."""
    if isinstance(wanted, list | tuple):
        return type(found) is type(wanted) and len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and (repr(found) == repr(wanted) if isinstance(wanted, float) else found == wanted)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind = draw(TYPES)
    return kind, draw(st.lists(values(kind), min_size=1, max_size=4))


from hypothesis import settings, HealthCheck


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=columns(), name=TEXTS)
def test_the_json_of_a_value_of_any_type_is_the_value(drawn: tuple[pa.DataType, list[Any]], name: str) -> None:
    kind, found = drawn
    column = array(found, kind)

    made = to_messages(pa.record_batch([column], names=[name]), ColumnMapping(), NOW)

    assert made.column(ERROR).null_count == len(found)
    bodies = [json_text.tree(body) for body in made.column("body").to_pylist()]
    assert [[key for key, _ in body] for body in bodies] == [[name]] * len(found)
    for ((_, value),), wanted in zip(bodies, found, strict=True):
        assert same(back(value, kind), wanted), (value, wanted)
