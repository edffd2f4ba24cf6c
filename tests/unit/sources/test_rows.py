"""Rows of any columns as messages: those that Python and Spark make of the same rows, and an error for the row that fits nothing."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.passes.send import checked
from airflow_poison.sources.rows import to_messages
from airflow_poison.sources.source import ERROR
from airflow_poison.values.errors import InputError
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from airflow_poison.values.schema import message_schema

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
EVERYTHING = ColumnMapping(
    group="text",
    priority="priority",
    properties=("text", "flag", "number"),
    message_id="number",
    message_type="text",
    conversation="number",
    expires_after="seconds",
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
COLUMNS: list[tuple[str, pa.DataType]] = [
    ("text", pa.string()),
    ("number", pa.int64()),
    ("real", pa.float64()),
    ("flag", pa.bool_()),
    ("priority", pa.int8()),
    ("seconds", pa.float64()),
    ("nested", pa.struct([("a'b", pa.list_(pa.int64())), ("c", pa.struct([("d", pa.string())]))])),
]
SCHEMA = pa.schema(COLUMNS)
ROWS = st.fixed_dictionaries(
    {
        "text": st.none() | TEXTS,
        "number": st.none() | NUMBERS,
        "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.none() | st.booleans(),
        "priority": st.none() | st.integers(0, 10),
        "seconds": st.none() | st.floats(-1e9, 1e9),
        "nested": st.none()
        | st.fixed_dictionaries(
            {"a'b": st.none() | st.lists(st.none() | NUMBERS, max_size=3), "c": st.none() | st.fixed_dictionaries({"d": st.none() | TEXTS})}
        ),
    }
)


def of(rows: list[dict[str, Any]], mapping: ColumnMapping, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    """Return the messages of rows as Python values."""
    return to_messages(pa.RecordBatch.from_pylist(rows, schema=schema), mapping, NOW).to_pylist()


@given(rows=st.lists(ROWS, min_size=1, max_size=5), body=st.sampled_from([None, ("number", "nested"), ("text",)]))
def test_rows_become_the_messages_that_python_makes_of_them(rows: list[dict[str, Any]], body: tuple[str, ...] | None) -> None:
    mapping = ColumnMapping(**{name: getattr(EVERYTHING, name) for name in EVERYTHING.__slots__} | {"body": body})
    (by_python,) = rows_to_batches(rows, mapping, NOW)

    made = of(rows, mapping, SCHEMA)

    for message, wanted in zip(made, by_python.to_pylist(), strict=True):
        assert message.pop(ERROR) is None
        assert json.loads(message.pop("body")) == json.loads(wanted.pop("body"))
        assert message == wanted


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_one_column_is_the_body_as_it_is(kind: pa.DataType) -> None:
    values = pa.array(['ä"\n', ""], pa.string()).cast(kind) if not pa.types.is_dictionary(kind) else pa.array(['ä"\n', ""]).dictionary_encode()

    messages = to_messages(pa.record_batch({"b": values}), ColumnMapping(body="b"), NOW)

    assert messages.column("body").to_pylist() == ['ä"\n'.encode(), b""]
    assert messages.schema.field("body").type == pa.binary()


def test_bytes_that_are_no_text_are_a_body_too() -> None:
    assert of([{"b": b"\xff\x00"}], ColumnMapping(body="b"))[0]["body"] == b"\xff\x00"


INSTANT = datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)
AS_SPARK_WRITES: list[tuple[pa.DataType, Any, str]] = [
    (pa.decimal128(38, 10), Decimal("12345678901234567890.1234567891"), "12345678901234567890.1234567891"),
    (pa.uint64(), 2**64 - 1, "18446744073709551615"),
    (pa.float64(), float("nan"), '"NaN"'),
    (pa.float64(), float("-inf"), '"-Infinity"'),
    (pa.float32(), 0.1, "0.1"),
    (pa.date32(), date(1900, 1, 31), '"1900-01-31"'),
    (pa.timestamp("us", "UTC"), INSTANT, '"2024-02-29T12:00:00.123456Z"'),
    (pa.timestamp("ns", "Asia/Kolkata"), INSTANT, '"2024-02-29T12:00:00.123456Z"'),
    (pa.timestamp("us"), INSTANT.replace(tzinfo=None), '"2024-02-29T12:00:00.123456"'),
    (pa.timestamp("us", "UTC"), INSTANT.replace(microsecond=123_000), '"2024-02-29T12:00:00.123Z"'),
    (pa.timestamp("s"), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC).replace(tzinfo=None), '"1969-12-31T23:59:59.000"'),
    (pa.timestamp("ns", "UTC"), 1_709_208_000_123_456_789, '"2024-02-29T12:00:00.123456789Z"'),
    (pa.timestamp("ns"), -1, '"1969-12-31T23:59:59.999999999"'),
    (pa.time64("us"), time(1, 2, 3), '"01:02:03"'),
    (pa.binary(), b"\xff\x00", '"/wA="'),
    (pa.map_(pa.int64(), pa.binary()), [(1, b"a"), (2, None)], '{"1":"YQ==","2":null}'),
    (pa.list_(pa.list_(pa.timestamp("us", "UTC"))), [[INSTANT, None], None, []], '[["2024-02-29T12:00:00.123456Z",null],null,[]]'),
    (pa.struct([("a", pa.struct([("b", pa.float64())]))]), {"a": {"b": float("inf")}}, '{"a":{"b":"Infinity"}}'),
    (pa.null(), None, "null"),
]


@pytest.mark.parametrize(("kind", "value", "wanted"), AS_SPARK_WRITES, ids=[f"{kind}-{value}" for kind, value, _ in AS_SPARK_WRITES])
def test_json_has_the_values_that_spark_writes_and_all_digits_of_instants(kind: pa.DataType, value: Any, wanted: str) -> None:
    messages = of([{"x": value}, {"x": None}], ColumnMapping(), pa.schema({"x": kind}))

    assert [message["body"].decode() for message in messages] == [f'{{"x":{wanted}}}', '{"x":null}']


def test_columns_whose_names_differ_by_case_alone_or_hold_quotes_are_all_there() -> None:
    assert json.loads(of([{"a": 1, "A": 2, "it's": 3, 'say "so"': 4}], ColumnMapping())[0]["body"]) == {"a": 1, "A": 2, "it's": 3, 'say "so"': 4}


@pytest.mark.parametrize("priority", [-1, 11, 2**40])
def test_a_priority_out_of_range_is_that_rows_error_and_the_others_go_on(priority: int) -> None:
    first, second, third = of([{"p": 0}, {"p": priority}, {"p": None}], ColumnMapping(priority="p"))

    assert (first["priority"], first[ERROR], third["priority"], third[ERROR]) == (0, None, 5, None)
    assert second[ERROR] == f"priority='p': {priority} is no priority; expected a whole number from 0 to 10."
    assert (json.loads(second["body"]), second["priority"]) == ({"p": priority}, 5)


@pytest.mark.parametrize("text", ["high", "1.5", "", "nan"])
def test_numbers_in_a_column_of_text_are_taken_and_what_is_none_is_that_rows_error(text: str) -> None:
    first, second = of([{"p": "7", "e": "60"}, {"p": text, "e": "soon"}], ColumnMapping(priority="p", expires_after="e"))

    assert (first["priority"], first["expires_at"], first[ERROR]) == (7, NOW + timedelta(seconds=60), None)
    assert second[ERROR].startswith(f"priority='p': {text} is no priority;")
    assert second[ERROR].endswith("expires_after='e': soon seconds from now are no date of the years 1 to 9999.")
    assert second["expires_at"] is None


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300, -1e12])
def test_an_end_that_is_no_date_is_that_rows_error(seconds: float) -> None:
    first, second = of([{"e": 1.5}, {"e": seconds}], ColumnMapping(expires_after="e"))

    assert first["expires_at"] == NOW + timedelta(seconds=1.5)
    assert "are no date of the years 1 to 9999" in second[ERROR]


def test_a_null_body_is_that_rows_error_and_its_body_is_the_whole_row() -> None:
    first, second = of([{"b": "x", "id": 1}, {"b": None, "id": 2}], ColumnMapping(body="b"))

    assert (first["body"], first[ERROR]) == (b"x", None)
    assert (json.loads(second["body"]), second[ERROR]) == ({"b": None, "id": 2}, "body='b': it is null; a body is text or bytes.")


def test_one_time_to_live_for_all_rows_and_properties_of_any_type() -> None:
    row = {"n": {"a": None}, "at": INSTANT, "b": "ä".encode(), "no": None}
    schema = pa.schema({"n": pa.struct([("a", pa.int64())]), "at": pa.timestamp("us", "UTC"), "b": pa.binary(), "no": pa.string()})

    (message,) = of([row], ColumnMapping(properties=("n", "at", "b", "no"), expires_after=timedelta(minutes=1)), schema)

    assert message["expires_at"] == NOW + timedelta(minutes=1)
    assert message["properties"] == [("n", '{"a":null}'), ("at", "2024-02-29T12:00:00.123456Z"), ("b", "ä")]
    assert message[ERROR] is None


def test_bytes_that_are_no_utf8_cannot_be_a_property() -> None:
    (message,) = of([{"b": b"\xff"}], ColumnMapping(properties=("b",)))

    assert (message["properties"], message[ERROR]) == ([], "properties='b': these bytes are no UTF-8.")


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (ColumnMapping(body="gone"), "body='gone': there is no such column"),
        (ColumnMapping(group="gone"), "group='gone': there is no such column"),
        (ColumnMapping(body="n"), r"body='n': the column is int64; needed is text or bytes; for JSON give a list: body=\['n'\]"),
        (ColumnMapping(priority="flag"), "priority='flag': the column is bool; needed is whole numbers"),
        (ColumnMapping(expires_after="flag"), "expires_after='flag': the column is bool; needed is a number of seconds"),
        (ColumnMapping(group="nested"), "group='nested': the column is list.* needed is text, a number or a date"),
    ],
)
def test_a_mapping_that_fits_no_row_is_refused_as_a_whole(mapping: ColumnMapping, words: str) -> None:
    with pytest.raises(InputError, match=words):
        of([{"n": 1, "flag": True, "nested": [1]}], mapping)


def test_a_column_that_is_there_twice_is_refused_where_it_is_sent() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array(["b"])], names=["a", "a", "b"])

    assert to_messages(twice, ColumnMapping(body="b"), NOW).column("body").to_pylist() == [b"b"]
    with pytest.raises(InputError, match="column 'a' is there twice"):
        to_messages(twice, ColumnMapping(), NOW)


def test_two_fields_of_one_name_are_refused_where_they_are_sent() -> None:
    struct: Any = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    within = pa.RecordBatch.from_arrays([pa.array(["b"]), pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), struct)], names=["b", "s"])

    assert to_messages(within, ColumnMapping(body="b"), NOW).column("body").to_pylist() == [b"b"]
    with pytest.raises(InputError, match="two fields in column 's' are named 'a'"):
        to_messages(within, ColumnMapping(), NOW)


@pytest.mark.parametrize("mapping", [EVERYTHING, ColumnMapping(body="text"), ColumnMapping(expires_after=timedelta(1))])
def test_a_send_takes_what_is_made_and_no_rows_make_the_same_columns(mapping: ColumnMapping) -> None:
    none = to_messages(pa.RecordBatch.from_pylist([], schema=SCHEMA), mapping, NOW)
    one = to_messages(pa.RecordBatch.from_pylist([{"text": "x"}], schema=SCHEMA), mapping, NOW)

    assert none.schema == one.schema
    assert all(field.type == message_schema().field(field.name).type for field in one.schema if field.name != ERROR)
    assert checked(one.drop_columns([ERROR])).num_rows == 1
