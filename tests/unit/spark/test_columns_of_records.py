"""Columns that executors make of records: with a record goes what it was only where it may become a message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_poison.sources.source import ERROR, RECORD, UNFIT
from airflow_poison.spark.in_place import _columns_of_records
from airflow_poison.values.errors import BodyError

BODIES = [b'{"id": 1}', b'{"id": "x"}', b"{", b'{"id": 4}']
ERRORS = [None, None, "line 3 of a: it is no JSON", None]


ORDER: Any = SimpleNamespace(transformation=SimpleNamespace(schema="id int"), decode=lambda batch: batch)


def test_a_record_that_is_no_row_keeps_its_bytes() -> None:
    batch = pa.record_batch({"body": pa.array(BODIES, pa.binary()), ERROR: pa.array(ERRORS, pa.string())})
    then = _columns_of_records(ORDER)
    assert then is not None
    assert then.of_bodies is None

    (found,) = then.make([batch])

    rows = found.to_pylist()
    assert [row["id"] for row in rows] == [1, None, None, 4]
    assert [row[UNFIT] for row in rows] == [False, True, True, False]
    assert [row[RECORD]["body"] for row in rows] == BODIES
    assert [row[RECORD][ERROR] for row in rows] == ERRORS


@pytest.mark.parametrize("places", [[0, 1], [0, 2, 1]])
def test_where_rows_alone_are_wanted_a_record_that_is_none_is_an_error_without_a_number_or_a_value(places: list[int]) -> None:
    batch = pa.record_batch({"body": pa.array(BODIES, pa.binary()), ERROR: pa.array(ERRORS, pa.string())})
    then = _columns_of_records(ORDER, rows_alone=True)
    assert then is not None
    assert then.of_bodies is None, "bodies are decoded first"
    assert [row for found in then.make([batch.take(pa.array([0, 3]))]) for row in found.to_pylist()] == [{"id": 1}, {"id": 4}]
    with pytest.raises(BodyError, match=r"^a record is no row$"):
        list(then.make([batch.take(pa.array(places))]))
