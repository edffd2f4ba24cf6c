"""Values of rows are kept as they are, or refused: whole numbers, digits, instants, text, nested values; and types that a Delta table has."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.landing_rows import _as_row, landings_of
from airflow_poison.outputs import output_table
from airflow_poison.outputs.output import ONLY, Output, RowSchema, divided, outputs_of, rows_of, to_batch
from airflow_poison.outputs.values import MISFITS, checked_by, delta_schema, delta_type, type_of
from airflow_poison.values.data_frames import read_once
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.errors import OutputRowError, SettingError
from tests.given.examples import examples


class Colour(str, Enum):  # noqa: UP042  (whose own text is its name, other than that of StrEnum)
    RED = "red"


class Number(IntEnum):
    ONE = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024  (untyped, as people have them)


@dataclass
class Price:
    amount: Decimal


EAST = timezone(timedelta(hours=2))
KEPT = [
    ("int", 1.0, 1),
    ("int", np.int64(7), 7),
    ("int", Number.ONE, 1),
    ("long", Decimal("3.00"), 3),
    ("long", float(1 << 53), 1 << 53),
    ("float", math.inf, math.inf),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", 1 << 24, float(1 << 24)),
    ("double", Decimal("0.1"), 0.1),
    ("double", Decimal("-Infinity"), -math.inf),
    ("double", np.float32(0.5), 0.5),
    ("decimal(9,2)", "19.99", Decimal("19.99")),
    ("decimal(9,2)", "-1.5e3", Decimal("-1500.00")),
    ("decimal(9,2)", 19.99, Decimal("19.99")),
    ("decimal(9,2)", 7, Decimal("7.00")),
    ("decimal(2,2)", Decimal("0.990"), Decimal("0.99")),
    ("decimal(38,0)", (1 << 100), Decimal(1 << 100)),
    ("string", Colour.RED, "red"),
    ("string", "\U0001f600", "\U0001f600"),
    ("binary", memoryview(b"ab"), b"ab"),
    ("boolean", np.True_, True),
    ("date", np.datetime64("2026-01-02"), date(2026, 1, 2)),
    ("timestamp", datetime(2026, 1, 2, 3, tzinfo=EAST), datetime(2026, 1, 2, 1, tzinfo=UTC)),
    ("timestamp", pd.Timestamp("2026-01-02T03:04:05.123456", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
    ("timestamp_ntz", np.datetime64("2026-01-02T03:04:05.000000000"), datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001  (it has none)
    ("array<array<int>>", np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ("map<string,long>", {"a": 1}, [("a", 1)]),
    ("map<string,long>", [("a", 1), ("b", None)], [("a", 1), ("b", None)]),
    ("map<string,long>", [{"key": "a", "value": 1}], [("a", 1)]),
    ("struct<x: int, y: int>", Point(1, 2), {"x": 1, "y": 2}),
    ("struct<amount: decimal(9,2)>", Price(Decimal("1.5")), {"amount": Decimal("1.50")}),
    ("array<int>", [1, pd.NA, None], [1, None, None]),
    ("array<int>", np.ma.array([1, 2], mask=[False, True]), [1, None]),
    ("array<date>", np.array(["2026-01-02", "NaT"], "datetime64[D]"), [date(2026, 1, 2), None]),
]


@pytest.mark.parametrize(("kind", "value", "kept"), KEPT, ids=str)
def test_a_value_that_a_type_has_is_kept(kind: str, value: object, kept: object) -> None:
    found = checked_by(parse_ddl(f"c {kind}").field(0).type)(value)

    assert (found, type(found)) == (kept, type(kept))


REFUSED = [
    ("int", 1.5),
    ("int", True),
    ("int", np.True_),
    ("int", "1"),
    ("int", math.nan),
    ("int", np.ma.masked),
    ("double", np.ma.masked),
    ("int", math.inf),
    ("long", float((1 << 53) + 2)),
    ("int", 1 << 31),
    ("byte", 200),
    ("float", 1e39),
    ("float", -1e39),
    ("float", (1 << 24) + 1),
    ("double", (1 << 53) + 1),
    ("double", np.int64((1 << 53) + 1)),
    ("double", Decimal("1e400")),
    ("double", 10**400),
    ("double", True),
    ("double", "1.5"),
    ("double", np.timedelta64(1, "s")),
    ("decimal(9,2)", "1_000"),
    ("decimal(9,2)", " 1"),
    ("decimal(9,2)", "1."),
    ("decimal(9,2)", "+1"),
    ("decimal(9,2)", "NaN"),
    ("decimal(9,2)", "\u0661"),
    ("decimal(9,2)", "1.005"),
    ("decimal(9,2)", 1.005),
    ("decimal(9,2)", 0.1 + 0.2),
    ("decimal(9,2)", Decimal("NaN")),
    ("decimal(9,2)", Decimal("12345678.00")),
    ("decimal(9,2)", True),
    ("decimal(9,2)", math.inf),
    ("string", "\ud800"),
    ("string", b"a"),
    ("string", 1),
    ("binary", "a"),
    ("boolean", 1),
    ("date", datetime(2026, 1, 2, tzinfo=UTC)),
    ("date", "2026-01-02"),
    ("timestamp", datetime(2026, 1, 2)),  # noqa: DTZ001  (that is what is refused)
    ("timestamp", pd.Timestamp("2026-01-02T03:04:05.123456789", tz="UTC")),
    ("timestamp", pd.NaT),
    ("timestamp", datetime(1, 1, 1, tzinfo=EAST)),
    ("timestamp_ntz", datetime(2026, 1, 2, tzinfo=UTC)),
    ("timestamp_ntz", np.datetime64("2026-01-02T03:04:05.123456789")),
    ("timestamp_ntz", np.datetime64("NaT")),
    ("timestamp_ntz", np.datetime64("12026-01-02T03:04:05")),
    ("array<int>", "12"),
    ("array<int>", {"a": 1}),
    ("array<int>", [1, "2"]),
    ("map<string,long>", ["ab"]),
    ("map<string,long>", [("a", 1, 2)]),
    ("map<string,long>", {None: 1}),
    ("struct<x: int>", {"x": 1, "y": 2}),
    ("array<map<string,struct<x: float>>>", [{"a": {"x": 1e39}}]),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=str)
def test_a_value_that_would_be_another_is_refused(kind: str, value: object) -> None:
    with pytest.raises(MISFITS):
        checked_by(parse_ddl(f"c {kind}").field(0).type)(value)


# Types -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary(3), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.decimal256(30, 2), pa.decimal128(30, 2)),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.list_(pa.uint8(), 2), pa.list_(pa.int16())),
        (pa.large_list(pa.map_(pa.large_string(), pa.struct([("a", pa.uint32())]))), pa.list_(pa.map_(pa.string(), pa.struct([("a", pa.int64())])))),
    ],
    ids=str,
)
def test_a_type_that_delta_lacks_becomes_one_that_holds_each_of_its_values(kind: pa.DataType, kept: pa.DataType) -> None:
    assert delta_type(kind).equals(kept)


NONE = [
    (pa.uint64(), "no type for uint64"),
    (pa.duration("us"), "no type for duration"),
    (pa.time64("us"), "no type for time64"),
    (pa.month_day_nano_interval(), "no type for month_day_nano"),
    (pa.struct([]), "no struct without fields"),
    (pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())])), "no struct with the fields 'a' and 'A', which differ by case"),
    (pa.map_(pa.string(), pa.list_(pa.timestamp("us"))), "that delta-rs writes has no map with timestamp_ntz"),
    (pa.decimal128(5, -2), "no type for decimal128"),
    (pa.decimal256(40, 2), "no type for decimal256"),
    (pa.uuid(), "no type for extension<arrow.uuid>"),
    (pa.map_(pa.string(), pa.list_(pa.time32("s"))), "no type for time32"),
]


@pytest.mark.parametrize(("kind", "says"), NONE, ids=str)
def test_a_type_that_no_delta_table_holds_is_named_where_it_is_declared(kind: pa.DataType, says: str) -> None:
    with pytest.raises(SettingError, match=f"output_schema=.*column 'v': a Delta table.* {says}"):
        outputs_of("/x", schema=pa.schema([("v", kind)]))
    outputs_of(deliver=True, schema=pa.schema([("v", kind)]))


def test_columns_that_differ_by_case_are_refused_where_they_are_declared() -> None:
    with pytest.raises(SettingError, match="no columns 'a' and 'A', which differ by case"):
        outputs_of("/x", schema=pa.schema([("a", pa.int64()), ("A", pa.int64())]))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (timedelta(1), "no type for duration"),
        (time(1), "no type for time64"),
        ({}, "no struct without fields"),
        ([{}], "no struct without fields"),
        ({"a": 1, "A": 2}, "differ by case"),
        (UUID(int=1), "no type for extension"),
        (object(), "Declare output_schema"),
        ([1, "a"], "elements are of different types"),
        (1 << 70, "Declare output_schema"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("evolve", [False, True])
def test_a_first_value_of_no_type_of_delta_is_refused(value: object, says: str, evolve: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    row_schema = a_row_schema(evolve=evolve)

    with pytest.raises(OutputRowError, match=says):
        row_schema.row({"v": value})

    assert row_schema.row({"id": 1}) == (1,)


@pytest.mark.parametrize("names", [("a", "A"), ("é", "É")])
def test_columns_that_differ_by_case_are_refused(names: tuple[str, str]) -> None:
    row_schema = a_row_schema(evolve=True)
    with pytest.raises(OutputRowError, match="differ by case alone"):
        row_schema.row(dict.fromkeys(names, 1))
    row_schema.row({names[0]: 1})

    with pytest.raises(OutputRowError, match="differ by case alone"):
        row_schema.row({names[1]: 1})


def test_what_an_empty_list_does_not_tell_a_later_one_tells() -> None:
    row_schema = a_row_schema()
    first = row_schema.row({"v": [], "w": {"a": None}})

    assert first == ([], {"a": None})
    assert row_schema.row({"v": [1], "w": {"a": [b"x"]}}) == ([1], {"a": [b"x"]})
    with pytest.raises(OutputRowError, match="array<long>"):
        row_schema.row({"v": ["a"]})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Decimal("1.5"), pa.decimal128(38, 18)),
        (Decimal("1e-20"), pa.decimal128(38, 20)),
        (Decimal(10**30), pa.decimal128(38, 7)),
        ({"p": [Decimal("1.5")]}, pa.struct([("p", pa.list_(pa.decimal128(38, 18)))])),
        ([1, 2.5, None], pa.list_(pa.float64())),
        ([{"a": 1}, {"b": "x"}], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))),
        (Price(Decimal(1)), pa.struct([("amount", pa.decimal128(38, 18))])),
        (datetime(2026, 1, 2, tzinfo=EAST), pa.timestamp("us", "UTC")),
        (pd.Timestamp("2026-01-02"), pa.timestamp("us")),
        (memoryview(b"x"), pa.binary()),
    ],
    ids=str,
)
def test_the_type_of_a_column_that_is_not_declared_has_room(value: object, kind: pa.DataType) -> None:
    assert type_of(value).equals(kind)


# Frames ----------------------------------------------------------------------------------------------------------------


def a_row_schema(schema: pa.Schema | None = None, *, evolve: bool = False) -> RowSchema:
    """Return what fits an output of a Delta table whose columns are learned, as one process learns them."""
    output = Output(uri="/x", schema=schema, evolve=evolve, delta=True)
    known: dict[str, pa.DataType] = {}

    def learn(news: Any) -> pa.Schema:
        from airflow_poison.outputs.values import filled

        for name, kind in news.items():
            known[name] = filled(known.get(name, pa.null()), kind)
        return pa.schema(list(known.items()))

    return RowSchema(output, learn if schema is None else None)


def columns_of(row_schema: RowSchema) -> dict[str, pa.DataType]:
    return {column.name: column.kind for column in row_schema._columns}


ARROW = pa.table({"n": pa.array([1, None], pa.int32()), "m": pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int64()))})
POLARS = pl.DataFrame({"n": pl.Series([1, None], dtype=pl.Int32), "p": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(9, 2))})
PANDAS = pd.DataFrame({"n": pd.array([1, None], dtype="Int64"), "o": [np.array([[1, 2]]), None], "x": [1.0, math.nan]})


@pytest.mark.parametrize(
    ("frame", "kinds", "rows"),
    [
        (ARROW, {"n": "int32", "m": "map<string, int64>"}, [(1, [("a", 1)]), (None, None)]),
        (POLARS, {"n": "int32", "p": "decimal128(9, 2)"}, [(1, Decimal("1.50")), (None, None)]),
        (PANDAS, {"n": "int64", "o": "list<element: list<element: int64>>", "x": "double"}, [(1, [[1, 2]], 1.0), (None, None, None)]),
        (pd.DataFrame({"at": pd.to_datetime(["2026-01-02T03:04:05", None])}), {"at": "timestamp[us]"}, [(datetime(2026, 1, 2, 3, 4, 5),), (None,)]),  # noqa: DTZ001  (as pandas has it)
        (pd.DataFrame({"c": pd.Categorical(["a", None])}), {"c": "string"}, [("a",), (None,)]),
        (pa.table({"v": pa.array([[[1]], []], pa.list_(pa.list_(pa.uint8(), 1)))}), {"v": "list<element: list<element: int16>>"}, [([[1]],), ([],)]),
    ],
    ids=["arrow", "polars", "pandas", "instants", "categories", "fixed size"],
)
def test_a_column_has_the_type_that_it_has_in_the_frame(frame: Any, kinds: dict[str, str], rows: list[Any]) -> None:
    row_schema = a_row_schema()

    found = rows_of(frame, {ONLY: row_schema}, alone=True)

    assert found == [(ONLY, rows)]
    assert {name: str(kind) for name, kind in columns_of(row_schema).items()} == kinds


@pytest.mark.parametrize(
    ("frame", "wrong"),
    [
        (pd.DataFrame({"lookup_id": [1, 2, 3], "v": [1, "a", 3]}), 1),
        (pd.DataFrame({"lookup_id": [1, 2, 3], "v": [1, math.nan, 3]}), None),
        (pd.DataFrame({"lookup_id": [1, 2, 3], "v": [1.0, 2.5, None]}), 1),
        (pl.DataFrame({"lookup_id": [1, 2, 3], "v": [1.0, math.nan, 3.0]}), 1),
        (pa.table({"lookup_id": [1, 2, 3], "v": pa.array([1, 1 << 60, None], pa.uint64())}), None),
        (pa.table({"lookup_id": [1, 2, 3], "v": pa.array([1, (1 << 63) + 1, None], pa.uint64())}), 1),
    ],
    ids=["text", "NaN of pandas is missing", "fraction", "NaN of Polars is a value", "fits", "too large"],
)
def test_one_value_changes_none_of_its_neighbours(frame: Any, wrong: int | None) -> None:
    row_schemas = {ONLY: a_row_schema(parse_ddl("v bigint"))}
    own, others = divided(frame, [1, 2, 3], row_schemas, alone=True)

    assert others is None
    for place, row in own.items():
        if place == wrong:
            with pytest.raises(OutputRowError, match="Column 'v'"):
                rows_of(row, row_schemas, alone=True)
        else:
            assert rows_of(row, row_schemas, alone=True)


def test_an_instant_that_python_does_not_have_is_refused_alone() -> None:
    column = pa.array([0, 1 << 60], pa.timestamp("us"))
    row_schemas = {ONLY: a_row_schema(parse_ddl("v timestamp_ntz"))}
    own, _ = divided(pa.table({"lookup_id": [1, 2], "v": column}), [1, 2], row_schemas, alone=True)

    assert rows_of(own[0], row_schemas, alone=True)
    with pytest.raises(OutputRowError, match="does not fit"):
        rows_of(own[1], row_schemas, alone=True)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(OutputRowError, match="several columns 'a'"):
        rows_of(pa.table([[1], [2]], names=["a", "a"]), {ONLY: a_row_schema()}, alone=True)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(index=range(2)),
        pa.table({"a": [1, 2]}).select([]),
        pa.RecordBatch.from_pylist([{"a": 1}, {"a": 2}]).select([]),
        pa.RecordBatchReader.from_batches(pa.schema([]), [pa.RecordBatch.from_pylist([{"a": 1}, {"a": 2}]).select([])]),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_rows_of_a_frame_without_columns_are_rows(frame: Any) -> None:
    frame = read_once(frame)
    with pytest.raises(OutputRowError, match="has no columns"):
        rows_of(frame, {ONLY: a_row_schema()}, alone=True)

    assert rows_of(frame, {ONLY: a_row_schema(parse_ddl("a int, b string"))}, alone=True) == [(ONLY, [(None, None), (None, None)])]


# All the way -----------------------------------------------------------------------------------------------------------

_NUMBERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_SIMPLE: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind, st.integers(-(1 << bits), (1 << bits) - 1)) for kind, bits in _NUMBERS.items()),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
]
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _lists(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def _goes_into_maps(inner: Typed) -> bool:
    try:
        return bool(delta_type(pa.map_(pa.string(), inner[0])))
    except ValueError:
        return False


def _maps(inner: Typed) -> Typed:
    return pa.map_(pa.string(), inner[0]), st.dictionaries(st.text("abc", max_size=2), st.none() | inner[1], max_size=3).map(
        lambda found: [*found.items()]
    )


def _structs(inners: list[Typed]) -> Typed:
    names = [f"f{number}" for number in range(len(inners))]
    values = st.fixed_dictionaries({name: st.none() | each[1] for name, each in zip(names, inners, strict=True)})
    return pa.struct([(name, each[0]) for name, each in zip(names, inners, strict=True)]), values


def _typed(depth: int) -> st.SearchStrategy[Typed]:
    simple = st.sampled_from(_SIMPLE)
    if not depth:
        return simple
    inner = _typed(depth - 1)
    return simple | inner.map(_lists) | inner.filter(_goes_into_maps).map(_maps) | st.lists(inner, min_size=1, max_size=2).map(_structs)


@given(data=st.data())
@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_what_lands_is_what_was_returned(data: st.DataObject) -> None:
    """Row, checked, in the queue's table, in the output, read back."""
    columns = data.draw(st.lists(_typed(3), min_size=1, max_size=3))
    names = [f"c{number}" for number in range(len(columns))]
    rows = data.draw(
        st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in zip(names, columns, strict=True)}), min_size=1, max_size=4)
    )
    schema = pa.schema([(name, kind) for name, (kind, _) in zip(names, columns, strict=True)])
    frame = data.draw(st.booleans())
    with TemporaryDirectory() as folder:
        output = Output(uri=str(Path(folder) / "out"), schema=schema, delta=True)
        row_schema = RowSchema(output, None)

        ((_, kept),) = rows_of(pa.Table.from_pylist(rows, schema=schema) if frame else rows, {ONLY: row_schema}, alone=True)
        staged = _as_row(output, to_batch(kept, schema), datetime.now(UTC), [1] * len(kept))
        (landing,) = landings_of(staged)
        output_table.land(output, landing.batches, "test", 1, "key")

        read = DeltaTable(output.uri).to_pyarrow_table()
    assert read.to_pylist() == rows
    assert delta_schema(read.schema).equals(delta_schema(schema))


SOME: dict[str, st.SearchStrategy[Any]] = {
    "n": st.sampled_from([None, 0, 1.5, 2**40, Number.ONE, pd.NA]),
    "text": st.sampled_from([None, True, "é", "\ud800", b"\xff", Colour.RED]),
    "at": st.sampled_from([None, date(2020, 1, 2), datetime(2020, 1, 2, tzinfo=EAST), Decimal("1.50"), [1]]),
}


@example({"n": None, "text": None, "at": None}, "n int NOT NULL, text binary, at date", False)  # noqa: FBT003  (Hypothesis)
@example({"n": 1, "_corrections": None}, "n int", True)  # noqa: FBT003  (Hypothesis)
@settings(max_examples=examples(400))
@given(
    st.fixed_dictionaries(SOME) | st.fixed_dictionaries({}, optional={**SOME, "other": st.none(), "_corrections": st.none()}),
    st.sampled_from(["n int, text string, at timestamp", "n int NOT NULL, text binary, at date", "n double, text boolean, at decimal(5,2)", "n int"]),
    st.booleans(),
)
def test_a_plain_dict_is_the_row_that_any_other_mapping_is(cells: dict[str, Any], schema: str, null: bool) -> None:  # noqa: FBT001  (Hypothesis)
    """A dict with a value for each column takes a shorter way."""
    (output,) = outputs_of("/out", schema=schema, on_bad_cell="null" if null else None)

    def returned(row: Any) -> Any:
        try:
            return rows_of(row, {ONLY: RowSchema(output, None)}, alone=True)
        except OutputRowError as error:
            return str(error)

    assert repr(returned(cells)) == repr(returned(MappingProxyType(cells)))
