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

from airflow_poison.sources.rows import JSON_TEXT, to_messages
from airflow_poison.sources.source import ERROR
from airflow_poison.values import json_text
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
arrow: Any = pa  # its stubs know some of what there is
WIDE = Context(prec=100)
FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INSTANTS = {"s": 200_000 * 31_536_000, "ms": 200_000 * 31_536_000_000, "us": 200_000 * 31_536_000_000_000, "ns": 2**63 - 10**15}


@st.composite
def decimals(draw: st.DrawFn) -> Any:
    kind, widest = draw(st.sampled_from([(arrow.decimal128, 38), (arrow.decimal256, 76)]))
    precision = draw(st.integers(1, widest))
    return kind(precision, draw(st.integers(-3, precision)))


SCALARS: st.SearchStrategy[Any] = st.one_of(
    decimals(),
    UNITS.map(arrow.timestamp),
    UNITS.map(lambda unit: arrow.timestamp(unit, "Asia/Kolkata")),
    UNITS.map(arrow.duration),
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
        inner.map(arrow.list_),
        inner.map(arrow.large_list),
        inner.map(arrow.list_view),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.dictionaries(TEXTS, inner, max_size=3).map(lambda fields: arrow.struct([*fields.items(), *[("A", arrow.int8()), ("a", arrow.int8())]])),
        st.just(arrow.struct([])),
        st.tuples(SCALARS.filter(lambda kind: not arrow.types.is_null(kind)), inner).map(lambda pair: arrow.map_(*pair)),
    )


TYPES: st.SearchStrategy[Any] = st.one_of(SCALARS, nested(SCALARS), nested(nested(SCALARS)), nested(nested(nested(SCALARS))))


def integers(kind: Any) -> st.SearchStrategy[int]:
    """Return what a type of dates, times and instants counts."""
    if arrow.types.is_date32(kind):
        return st.integers(-5_000_000, 5_000_000)
    if arrow.types.is_date64(kind):
        return st.integers(-5_000_000, 5_000_000).map(lambda days: days * 86_400_000)
    if arrow.types.is_time(kind):
        return st.integers(0, 86_400 * PER_SECOND[kind.unit] - 1)
    if arrow.types.is_timestamp(kind):
        return st.integers(-INSTANTS[kind.unit], INSTANTS[kind.unit])
    return st.integers(-(2**63), 2**63 - 1)


def values(kind: Any) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911, PLR0912  (one line for each type)
    """Return values of a type, as ``array`` takes them; dates and the like as what they count."""
    if arrow.types.is_dictionary(kind):
        return values(kind.value_type)
    if arrow.types.is_null(kind):
        return st.none()
    if arrow.types.is_struct(kind):
        return st.none() | st.tuples(*(values(field.type) for field in kind))
    if arrow.types.is_map(kind):
        return st.none() | st.lists(st.tuples(values(kind.key_type).filter(lambda key: key is not None), values(kind.item_type)), max_size=3)
    if arrow.types.is_fixed_size_list(kind):
        return st.none() | st.lists(values(kind.value_type), min_size=2, max_size=2)
    if hasattr(kind, "value_type"):
        return st.none() | st.lists(values(kind.value_type), max_size=3)
    if arrow.types.is_boolean(kind):
        return st.none() | st.booleans()
    if arrow.types.is_integer(kind):
        low = 0 if arrow.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.none() | st.integers(low, low + 2**kind.bit_width - 1)
    if arrow.types.is_floating(kind):
        return st.none() | st.floats(width=kind.bit_width)
    if arrow.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.none() | st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-kind.scale, context=WIDE))
    if arrow.types.is_interval(kind):
        return st.none() | st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
    if arrow.types.is_temporal(kind):
        return st.none() | integers(kind)
    if arrow.types.is_fixed_size_binary(kind):
        return st.none() | st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    return st.none() | (TEXTS if "string" in str(kind) else st.binary(max_size=8))


def array(found: list[Any], kind: Any) -> Any:  # noqa: PLR0911  (one line for each type)
    """Return an array of values as ``values`` draws them."""
    if arrow.types.is_struct(kind):
        fields = [array([None if row is None else row[at] for row in found], kind.field(at).type) for at in range(kind.num_fields)]
        if not fields:
            return arrow.array([None if row is None else {} for row in found], kind)
        mask = arrow.array([row is None for row in found], arrow.bool_())
        return arrow.StructArray.from_arrays(fields, fields=[kind.field(at) for at in range(kind.num_fields)], mask=mask)
    if arrow.types.is_map(kind):
        pairs = [pair for row in found for pair in row or ()]
        inner = [array([key for key, _ in pairs], kind.key_type), array([item for _, item in pairs], kind.item_type)]
        return arrow.MapArray.from_arrays(arrow.array(starts(found), arrow.int32()), *inner)
    if arrow.types.is_fixed_size_list(kind):
        inside = array([each for row in found for each in row or [None, None]], kind.value_type)
        return arrow.FixedSizeListArray.from_arrays(inside, 2, mask=arrow.array([row is None for row in found], arrow.bool_()))
    if not arrow.types.is_dictionary(kind) and hasattr(kind, "value_type"):
        inside, begin = array([each for row in found for each in row or ()], kind.value_type), starts(found)
        if arrow.types.is_list_view(kind):
            offsets, sizes = ([each or 0 for each in begin[:-1]], [len(row or ()) for row in found])
            return arrow.ListViewArray.from_arrays(
                arrow.array(offsets, arrow.int32()),
                arrow.array(sizes, arrow.int32()),
                inside,
                mask=arrow.array([row is None for row in found], arrow.bool_()),
            )
        made = arrow.LargeListArray if arrow.types.is_large_list(kind) else arrow.ListArray
        return made.from_arrays(arrow.array(begin, arrow.int64() if arrow.types.is_large_list(kind) else arrow.int32()), inside)
    if arrow.types.is_duration(kind) or (arrow.types.is_temporal(kind) and not arrow.types.is_interval(kind)):
        return arrow.array(found, arrow.int32() if kind.bit_width == 32 else arrow.int64()).view(kind)
    return arrow.array(found, kind)


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


def back(found: Any, kind: Any) -> Any:  # noqa: C901, PLR0911  (one line for each type)
    """Return the value that JSON stands for, as ``values`` draws it."""
    if found is None or arrow.types.is_null(kind):
        return found
    if arrow.types.is_dictionary(kind):
        return back(found, kind.value_type)
    if arrow.types.is_struct(kind):
        assert [name for name, _ in found] == [kind.field(at).name for at in range(kind.num_fields)]
        return tuple(back(each, kind.field(at).type) for at, (_, each) in enumerate(found))
    if arrow.types.is_map(kind):
        return [(back(key_of(key, kind.key_type), kind.key_type), back(item, kind.item_type)) for key, item in found]
    if hasattr(kind, "value_type"):
        return [back(each, kind.value_type) for each in found]
    if arrow.types.is_boolean(kind):
        assert isinstance(found, bool)
        return found
    if is_number(kind):
        assert isinstance(found, json_text.Number) or found in {"NaN", "Infinity", "-Infinity"}
        return (
            int(found) if arrow.types.is_integer(kind) else float(FLOATS[kind.bit_width](found)) if arrow.types.is_floating(kind) else Decimal(found)
        )
    assert type(found) is str
    if arrow.types.is_interval(kind):
        months, rest = found[1:].split("M", 1)
        days, rest = rest.split("D", 1)
        return int(months), int(days), count_of(rest[1:-1], 10**9)
    if arrow.types.is_date(kind):
        return days_of(found) * (1 if arrow.types.is_date32(kind) else 86_400_000)
    if arrow.types.is_time(kind):
        return seconds_of(found, PER_SECOND[kind.unit])
    if arrow.types.is_timestamp(kind):
        assert found.endswith("Z") == (kind.tz is not None)
        day, clock = found.removesuffix("Z").split("T")
        return days_of(day) * 86_400 * PER_SECOND[kind.unit] + seconds_of(clock, PER_SECOND[kind.unit])
    if arrow.types.is_duration(kind):
        return count_of(found[2:-1], PER_SECOND[kind.unit])
    return found if "string" in str(kind) else base64.b64decode(found)


def key_of(name: str, kind: Any) -> Any:
    """Return the JSON of a key that is the name of a field."""
    if not is_number(kind):
        return name
    return {"true": True, "false": False}[name] if pa.types.is_boolean(kind) else json_text.Number(name) if name[-1].isdigit() else name


def is_number(kind: Any) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_decimal(kind) or arrow.types.is_boolean(kind))


def same(found: Any, wanted: Any) -> bool:
    """Say whether two values are one: of floats to the sign of zero, NaN is NaN."""
    if isinstance(wanted, list | tuple):
        return type(found) is type(wanted) and len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and (repr(found) == repr(wanted) if isinstance(wanted, float) else found == wanted)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind = draw(TYPES)
    return kind, draw(st.lists(values(kind), min_size=1, max_size=4))


@given(drawn=columns(), name=TEXTS)
def test_the_json_of_a_value_of_any_type_is_the_value(drawn: tuple[pa.DataType, list[Any]], name: str) -> None:
    kind, found = drawn
    column = array(found, kind)

    made = to_messages(arrow.record_batch([column], names=[name]), ColumnMapping(), NOW)

    assert made.column(ERROR).null_count == len(found)
    bodies: list[Any] = [json_text.tree(body or b"") for body in made.column("body").to_pylist()]
    assert [[key for key, _ in body] for body in bodies] == [[name]] * len(found)
    for ((_, value),), wanted in zip(bodies, found, strict=True):
        assert same(back(value, kind), wanted), (value, wanted)


def test_the_property_sees_a_digit_that_is_lost() -> None:
    assert not same(back(json_text.Number("0.1"), arrow.decimal128(38, 20)), Decimal("0.10000000000000000001"))
    assert not same(back("1970-01-01T00:00:00.000Z", arrow.timestamp("us", "UTC")), 1)


def test_one_column_of_json_is_as_the_database_writes_it_and_what_is_no_json_a_text() -> None:
    texts = ['{"a":1,  "a":12345678901234567.89}', "1e400", "NaN", '{"a":', None, '"x"']
    batch = arrow.RecordBatch.from_arrays([arrow.array(texts)], schema=arrow.schema([arrow.field("v", arrow.string(), metadata=JSON_TEXT)]))

    made = to_messages(batch, ColumnMapping(), NOW).column("body").to_pylist()

    wanted = [b'{"a":1,  "a":12345678901234567.89}', b"1e400", b'"NaN"', b'"{\\"a\\":"', b"null", b'"x"']
    assert made == [b'{"v":' + each + b"}" for each in wanted]


def test_a_map_keeps_equal_keys_and_writes_keys_as_their_json() -> None:
    columns = {
        "twice": arrow.array([[("a", 1), ("a", 2)]], arrow.map_(arrow.string(), arrow.int64())),
        "days": arrow.array([[(date(2026, 1, 2), 1)]], arrow.map_(arrow.date32(), arrow.int64())),
        "reals": arrow.array([[(0.5, 1), (float("nan"), 2)]], arrow.map_(arrow.float64(), arrow.int64())),
        "lists": arrow.array([[([1, "x"][:1], 1)]], arrow.map_(arrow.list_(arrow.int64()), arrow.int64())),
    }

    (body,) = to_messages(arrow.record_batch(columns), ColumnMapping(), NOW).column("body").to_pylist()

    assert body == b'{"twice":{"a":1,"a":2},"days":{"2026-01-02":1},"reals":{"0.5":1,"NaN":2},"lists":{"[1]":1}}'


def invalid() -> Any:
    """Return texts of which the second is no UTF-8, as Parquet files of other programs have them."""
    return arrow.Array.from_buffers(arrow.string(), 3, arrow.array([b"good", b"caf\xe9", b"more"], arrow.binary()).buffers())


FARTHEST = arrow.array([0, -(2**63) + 2, 1], arrow.timestamp("us"))
ODD: list[tuple[str, pa.Array[Any], Any, str]] = [
    ("an instant", FARTHEST, "-9223372036854775806 timestamp[us]", "-9223372036854775806 (timestamp[us]) is no instant"),
    ("its greatest", arrow.array([0, 2**63 - 1, 1], arrow.timestamp("us")), "9223372036854775807 timestamp[us]", "is no instant"),
    ("seconds", arrow.array([0, 2**62, 1], arrow.timestamp("s", "UTC")), "4611686018427387904 timestamp[s, tz=UTC]", "is no instant"),
    ("a time", arrow.array([0, 86_400, 1], arrow.int32()).view(arrow.time32("s")), "86400 time32[s]", "86400 is beyond what time32[s] can hold here"),
    ("a day", arrow.array([0, 2**31 - 1, 1], arrow.int32()).view(arrow.date32()), "2147483647 date32[day]", "is no instant"),
    ("a text", invalid(), {"base64": "Y2Fm6Q=="}, "its text is no UTF-8"),
    ("in a list", arrow.ListArray.from_arrays(arrow.array([0, 1, 2, 3]), invalid()), [{"base64": "Y2Fm6Q=="}], "its text is no UTF-8"),
    (
        "in a map of structs",
        arrow.MapArray.from_arrays(arrow.array([0, 1, 2, 3]), arrow.array(["a", "b", "c"]), arrow.StructArray.from_arrays([FARTHEST], names=["at"])),
        {"b": {"at": "-9223372036854775806 timestamp[us]"}},
        "is no instant",
    ),
    (
        "in a dictionary",
        arrow.DictionaryArray.from_arrays(arrow.array([0, 1, 2]), invalid(), safe=False),
        {"base64": "Y2Fm6Q=="},
        "its text is no UTF-8",
    ),
]


@pytest.mark.parametrize(("column", "shown", "words"), [each[1:] for each in ODD], ids=[each[0] for each in ODD])
def test_a_value_that_cannot_be_written_is_its_rows_error_alone_and_is_shown(column: pa.Array[Any], shown: Any, words: str) -> None:
    batch = arrow.record_batch({"id": arrow.array([1, 2, 3]), "v": column})

    good, odd, more = to_messages(batch, ColumnMapping(group="id"), NOW).to_pylist()

    assert (good[ERROR], more[ERROR], good["group_id"], odd["group_id"]) == (None, None, "1", "2")
    assert odd[ERROR].startswith("column 'v': ")
    assert words in odd[ERROR]
    assert json.loads(odd["body"]) == {"id": 2, "v": shown}
    assert json.loads(good["body"])["v"] is not None


def test_a_row_is_shown_with_years_that_python_does_not_have() -> None:
    instants = [1_700_000_000_123_456_789, -63_549_338_399_500_000]
    days = arrow.array([19_675_925, -735_525], arrow.date32())
    columns = {"t": invalid()[1:], "day": days, "at": arrow.array(instants, arrow.timestamp("us", "UTC"))}

    bodies: list[Any] = to_messages(arrow.record_batch(columns), ColumnMapping(), NOW).column("body").to_pylist()

    assert [json.loads(body)["day"] for body in bodies] == ["+55840-11-08", "-0044-03-15"]
    assert [json.loads(body)["at"] for body in bodies] == ["+55840-11-08T22:15:23.456789Z", "-0044-03-15T06:00:00.500Z"]


def test_a_body_of_text_that_is_no_utf8_is_the_bytes_that_arrived() -> None:
    made = to_messages(arrow.record_batch({"b": invalid()}), ColumnMapping(body="b"), NOW)

    assert (made.column("body").to_pylist(), made.column(ERROR).null_count) == ([b"good", b"caf\xe9", b"more"], 3)


SAME: list[tuple[Any, pa.DataType]] = [
    (Decimal("12345678901234567.890"), pa.decimal128(20, 3)),
    (datetime(2026, 1, 2, 3, 4, 5, 678_901), pa.timestamp("us")),  # noqa: DTZ001  (a clock without a zone)
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), pa.timestamp("us", "UTC")),
    (date(44, 1, 2), pa.date32()),
    (time(1, 2, 3, 500_000), pa.time64("us")),
    (time(1, 2, 3), pa.time64("us")),
    (timedelta(days=-1, microseconds=5), pa.duration("us")),
    (b"\xff\x00", pa.binary()),
    ({"a": [Decimal("1.10")], "b": None}, pa.struct([("a", pa.list_(pa.decimal128(3, 2))), ("b", pa.int8())])),
    ([(7, date(2026, 1, 2))], pa.map_(pa.int64(), pa.date32())),
]


@pytest.mark.parametrize(("value", "kind"), SAME, ids=[str(kind) for _, kind in SAME])
def test_a_python_value_is_the_json_that_a_row_with_it_is(value: Any, kind: Any) -> None:
    of_python = dict(value) if isinstance(value, list) and isinstance(value[0], tuple) else value
    (by_python,) = rows_to_batches([{"v": of_python}], ColumnMapping(), NOW)

    by_arrow = to_messages(pa.record_batch({"v": pa.array([value], kind)}), ColumnMapping(), NOW)

    assert json_text.tree(by_python.column("body")[0].as_py()) == json_text.tree(by_arrow.column("body")[0].as_py())


def test_a_uuid_is_its_text_at_both_doors() -> None:
    value = UUID("00000000-0000-0000-0000-000000000001")
    (by_python,) = rows_to_batches([{"v": value}], ColumnMapping(), NOW)

    by_arrow = to_messages(pa.record_batch({"v": pa.array([value.bytes], pa.uuid())}), ColumnMapping(), NOW)

    assert json_text.tree(by_python.column("body")[0].as_py()) == json_text.tree(by_arrow.column("body")[0].as_py()) == [("v", str(value))]
