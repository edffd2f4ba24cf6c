"""Data frames in memory, sent and returned: each value is what it is, and one that cannot be sent is alone with that."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from airflow_poison import Msmq4
from airflow_poison.sources.bodies import batches_of
from airflow_poison.sources.source import ERROR
from airflow_poison.testing import receive
from airflow_poison.values.errors import InputError
from airflow_poison.values.mapping import ColumnMapping

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ONE = uuid.UUID(int=1)
NAIVE = dt.datetime(2026, 1, 1, 5)  # noqa: DTZ001  (what it is here)
EAST = dt.timezone(dt.timedelta(hours=5))


def objects(*values: object) -> pd.DataFrame:
    return pd.DataFrame({"v": pd.Series(values, dtype=object)})


def sent(frame: object, **mapping: Any) -> list[dict[str, Any]]:
    return [row for batch in batches_of(frame, ColumnMapping(**mapping), NOW) for row in batch.to_pylist()]  # type: ignore[arg-type]  # a frame


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (pl.DataFrame({"v": [ONE]}), [str(ONE)]),
        (objects(dt.date(2026, 1, 1), NAIVE), ["2026-01-01", "2026-01-01T05:00:00.000"]),
        (objects("a", b"\xff"), ["a", "/w=="]),
        (objects(NAIVE, dt.datetime(2026, 1, 1, 5, tzinfo=EAST)), ["2026-01-01T05:00:00.000", "2026-01-01T00:00:00.000Z"]),
        (objects(pd.Timestamp("2026-01-01T00:00:00.000000001")), ["2026-01-01T00:00:00.000000001"]),
        (objects(pd.Timedelta(1001), pd.Timedelta(-1)), ["PT0.000001001S", "PT-0.000000001S"]),
        (objects(1, "a", None, float("nan"), 2**70, {1: 2}, [1.5, None]), [1, "a", None, None, 2**70, {"1": 2}, [1.5, None]]),
        (objects(np.int64(5), np.float32(0.1), np.array([1, 2]), np.array(["x"], dtype=object)), [5, 0.1, [1, 2], ["x"]]),
        (objects(np.array([[0.1], [2]], np.float32), memoryview(b"abc")[::2]), [[[0.1], [2.0]], "YWM="]),
        (pd.DataFrame({"v": [1.5, float("nan")]}), [1.5, None]),
        (pl.DataFrame({"v": [1.5, float("nan")]}), [1.5, "NaN"]),
        (pl.DataFrame({"v": [2**100]}, schema={"v": pl.Int128}), [2**100]),
        (pa.table({"v": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), [{"a": 1}]),
        (pa.table({"v": pa.array([0.1], pa.float32())}), [0.1]),
        (pa.table({"v": pa.array([1001], pa.duration("ns"))}), ["PT0.000001001S"]),
        (pa.table({"v": pa.array(['{"a": 1}'], pa.json_())}), [{"a": 1}]),
        (pa.table({"v": pa.array([0, 5_000_000], pa.int32()).view(pa.date32())}), ["1970-01-01", "+15659-07-15"]),
        (pa.table({"v": [1]}).to_batches()[0], [1]),
        (pl.DataFrame({"v": pl.Series(["a", None], dtype=pl.Categorical)}), ["a", None]),
        (pl.DataFrame({"v": pl.Series([["a"], []], dtype=pl.List(pl.Enum(["a"])))}), [["a"], []]),
        (pa.table({"v": pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([b"a"], pa.binary_view()))}), ["YQ==", None]),
    ],
)
def test_values_of_a_frame_are_sent_as_what_they_are(frame: object, values: Sequence[object]) -> None:
    rows = sent(frame)

    assert [json.loads(row["body"])["v"] for row in rows] == values
    assert {row[ERROR] for row in rows} == {None}


@pytest.mark.parametrize(
    "frame", [pa.table({"v": pa.array([b"a", b"\xff", b"b"]).view(pa.string())}), objects("a", "\ud800", "b"), objects("a", ["\ud800"], "b")]
)
def test_a_text_that_is_none_is_alone_with_that(frame: object) -> None:
    first, wrong, last = sent(frame)

    assert [json.loads(each["body"]) for each in (first, last)] == [{"v": "a"}, {"v": "b"}]
    assert "no UTF-8" in wrong[ERROR]
    assert first[ERROR] is last[ERROR] is None


@pytest.mark.parametrize(
    ("frame", "mapping", "error"),
    [
        (pd.DataFrame({"v": pd.period_range("2026-01", periods=1, freq="M")}), {}, "column 'v' cannot become JSON: Object of type Period"),
        (pl.Series("v", [1]), {}, r"Series is no data frame.*\.to_frame\(\)"),
        (pa.chunked_array([[1]]), {}, "ChunkedArray is no data frame"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "the data frame: column 'a' is there twice"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), {}, "the data frame: column 'a' is there twice"),
        (objects("a", 1), {"body": "v"}, "body='v': a row has int there"),
        (pd.DataFrame(index=[0, 1]), {}, "the data frame has 2 rows and no column"),
        (pa.table({"v": [1, 2]}).select([]), {}, "the data frame has 2 rows and no column"),
        (
            pa.table({"v": pa.RunEndEncodedArray.from_arrays(pa.array([1]), cast("Any", pa.array(["a"], pa.string_view())))}),
            {},
            "column 'v' is run_end_encoded.*, which Arrow itself cannot read: .*Cast it",
        ),
        (objects("a"), {"group": "w"}, "group='w': there is no such column"),
    ],
)
def test_what_concerns_all_rows_is_an_error_that_names_it(frame: object, mapping: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        sent(frame, **mapping)


def test_labels_are_the_same_texts_from_rows_and_from_frames() -> None:
    row = {"at": dt.datetime(2026, 1, 1, 1, 2, 3, tzinfo=dt.UTC), "day": dt.date(2026, 1, 1), "f": float("nan"), "g": 1e300, "raw": b"ab", "b": "x"}
    mapping: dict[str, Any] = {"body": "b", "group": "at", "message_id": "day", "properties": ("at", "f", "g", "raw", "day")}

    of_rows, of_frame, of_objects = (sent(each, **mapping)[0] for each in ([row], pa.Table.from_pylist([row]), pl.DataFrame({**row, "x": [ONE]})))

    assert of_rows["group_id"] == "2026-01-01T01:02:03.000Z"
    for name in ("body", "group_id", "message_id", "properties"):
        assert of_frame[name] == of_objects[name] == of_rows[name]


def test_labels_of_objects_have_no_quotes() -> None:
    rows = sent(objects("a", b"b", 5, None, "null", {"x": "é"}), body=("v",), properties=("v",))

    assert [dict(row["properties"]).get("v") for row in rows] == ["a", "Yg==", "5", None, "null", '{"x": "é"}']


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([{1: "a", "1": "b"}], r"keys of \[1, '1'\] are one name in JSON"),
        ([{"m": [{None: 1, "null": 2}]}], "column 'm' cannot become JSON: keys of"),
        ([{"a": ["\ud800"]}], "column 'a' cannot become JSON: 'utf-8' codec can't encode"),
        ([{"a": np.longdouble("0.1")}], "column 'a' cannot become JSON: Object of NumPy's type float128"),
    ],
)
def test_rows_that_would_be_others_as_json_are_refused(rows: list[dict[Any, Any]], error: str) -> None:
    with pytest.raises(InputError, match=error):
        sent(rows)


def test_bodies_keep_pairs_of_surrogates_and_text_that_looks_like_them() -> None:
    assert [json.loads(row["body"]) for row in sent([{"a": "\U0001f600"}, {"a": "\\ud800"}])] == [{"a": "\U0001f600"}, {"a": "\\ud800"}]


MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        ({"id": [ONE, ONE]}, "Column 'id' of the output cannot have the value UUID"),
        ({"id": pl.Series([2**100, 1], dtype=pl.Int128)}, "Column 'id' of"),
    ],
)
def test_a_frame_of_polars_with_values_that_arrow_lacks_fails_its_messages_by_name(cells: dict[str, Any], error: str) -> None:
    def with_ids(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"lookup_id": frame["lookup_id"], **cells})

    done = receive(with_ids, [b'{"n": 1}', b'{"n": 2}'], MOVE, batch="polars", schema="n int", output="/x")

    assert done.places == ["poison", "poison"]
    assert error in str(done.outcomes)
    assert not done.rows


def test_a_value_that_is_no_text_is_corrected_alone() -> None:
    bodies = [b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "\\ud83d"}', b'{"id": "\\ud83d", "name": "c"}']

    done = receive(lambda message: json.loads(message.body), bodies, MOVE, output="/x", output_schema="id int, name string", on_bad_cell="null")

    rows = [(row["id"], row["name"], [each["value"] for each in row["_corrections"] or ()]) for row in done.rows]
    assert rows == [(1, "a", []), (2, None, ["\\ud83d"]), (None, "c", ["\\ud83d"])]


def test_a_column_may_have_any_name() -> None:
    (row,) = sent(pa.table({"v": [1], "poison.odd.v": ["z"], "body": [2], "poison.error": [3]}))

    assert json.loads(row["body"]) == {"v": 1, "poison.odd.v": "z", "body": 2, "poison.error": 3}


@pytest.mark.parametrize(
    "made", [lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), lambda table: table.to_batches()[0]]
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_reader_of_batches_is_read_once(made: Any, with_ids: bool) -> None:  # noqa: FBT001  (of pytest)
    def returned(table: pa.Table) -> object:
        return made(table if with_ids else table.drop_columns(["lookup_id"]))

    done = receive(returned, [b'{"n": 1}', b'{"n": 2}'], MOVE, batch="arrow", schema="n int", output="/x")

    assert [row["n"] for row in done.rows] == [1, 2]


CIRCLE: dict[str, Any] = {}
CIRCLE["x"] = CIRCLE


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"a": deep(100)}, "nested more than 50 deep"),
        ({"a\0b": 1, "a": 2}, "without NUL"),
        ({"s": {"a\0b": 2, "a": 1}}, "names have no NUL"),
        ({None: 1}, "has a column None; expected text"),
        ({"a\ud800": 1}, "has a column 'a\\ud800'; expected text"),
        (CIRCLE, "nested too deeply, or holds itself"),
    ],
)
def test_a_row_that_cannot_be_written_fails_its_message_alone(row: dict[str, Any], error: str) -> None:
    def handler(message: Any) -> dict[str, Any]:
        return row if message.text == "2" else {"id": int(message.text)}

    done = receive(handler, [b"1", b"2", b"3"], MOVE, output="/x", evolve=True)

    assert done.places == ["processed", "poison", "processed"]
    assert error in str(done[1])


@pytest.mark.parametrize(
    ("values", "schema", "shown"),
    [
        (pa.array([b"caf\xe9"]).view(pa.string()), "v string", r"b'caf\xe9'"),
        (pa.array([2**31 - 1], pa.int32()).view(pa.date32()), "v date", "+5881580-07-11"),
        (pa.array([86_400_001], pa.int64()).view(pa.date64()), "v date", "1970-01-02 00:00:00.001000"),
        (pa.array([2**62], pa.int64()).view(pa.timestamp("us")), "v timestamp_ntz", "+148108-07-06 14:00:27.387904"),
    ],
)
def test_a_value_that_python_does_not_have_is_shown_and_lands_nowhere(values: pa.Array[Any], schema: str, shown: str) -> None:
    def handler(table: pa.Table) -> pa.Table:
        return pa.table({"lookup_id": table["lookup_id"], "v": values})

    def tried(**options: Any) -> Any:
        return receive(handler, [b'{"n": 1}'], MOVE, batch="arrow", schema="n int", output="/x", output_schema=schema, **options)

    assert f"; {shown} (" in str(tried()[0])
    [row] = tried(on_bad_cell="null").rows
    assert row["v"] is None
    assert row["_corrections"][0]["value"] == shown


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (pd.DataFrame({"c": pd.arrays.SparseArray([0])}), 0),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns 'a'"),
        (pd.DataFrame({"c": np.array([1j])}), "1j (complex)"),
        (pa.table({"s\0x": [1]}), r"'s\x00x'; names have no NUL"),
        (pa.table({"s": pa.array([{"a\0b": 1}])}), r"'a\x00b'; names have no NUL"),
        (pa.table({"s": pa.array([[{"a\0b": 1}]])}).to_batches()[0], r"'a\x00b'; names have no NUL"),
    ],
)
@pytest.mark.parametrize("schema", [None, "s struct<a: int>, a int, c int"])
def test_columns_that_arrow_does_not_have_land_as_they_are_or_are_refused(frame: object, found: int | str, schema: str | None) -> None:
    done = receive(lambda _: frame, [b"1"], MOVE, batch="pandas", output="/x", output_schema=schema)

    assert found in str(done[0]) if isinstance(found, str) else [row["c"] for row in done.rows] == [found]


def test_rows_without_the_column_of_a_key_fail_and_wait_for_no_output() -> None:
    done = receive(lambda message: {"other": message.text}, [b"1", b"2"], MOVE, output="/x", output_keys=["id"])

    assert done.places == ["poison", "poison"]
    assert "no column 'id', which output_keys names; it has other" in str(done[0])


@pytest.mark.parametrize("name", ["a\0b", "\0"])
def test_a_column_of_a_frame_with_nul_in_its_name_is_refused(name: str) -> None:
    for frame in (pl.DataFrame({name: [1], "a": [2]}), pd.DataFrame({name: [1], "a": [2]})):
        with pytest.raises(InputError, match="names have no NUL"):
            sent(frame)


def test_a_deep_element_of_a_list_is_alone_with_that() -> None:
    done = receive(lambda message: {"id": message.lookup_id, "a": deep(60 if message.text == "2" else 40)}, [b"1", b"2"], MOVE, output="/x")

    assert done.places == ["processed", "poison"]
