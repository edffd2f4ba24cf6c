"""Columns that executors make of records: with a record goes what it was only where it may become a message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_poison.sources.source import ERROR, RECORD, UNFIT
from airflow_poison.spark.in_place import _columns_of_records

BODIES = [b'{"id": 1}', b'{"id": "x"}', b"{", b'{"id": 4}']
ERRORS = [None, None, "line 3 of a: it is no JSON", None]


@pytest.mark.parametrize("unfit_alone", [False, True])
def test_a_record_that_is_no_row_keeps_its_bytes(unfit_alone: bool) -> None:  # noqa: FBT001
    order: Any = SimpleNamespace(transformation=SimpleNamespace(schema="id int"), decode=lambda batch: batch)
    batch = pa.record_batch({"body": pa.array(BODIES, pa.binary()), ERROR: pa.array(ERRORS, pa.string())})
    then = _columns_of_records(order, unfit_alone=unfit_alone)
    assert then is not None

    (found,) = then.make([batch])

    rows = found.to_pylist()
    assert [row["id"] for row in rows] == [1, None, None, 4]
    assert [row[UNFIT] for row in rows] == [False, True, True, False]
    assert [None if row[RECORD] is None else row[RECORD]["body"] for row in rows] == [
        body if not unfit_alone or place in {1, 2} else None for place, body in enumerate(BODIES)
    ]
    assert [row[RECORD] and row[RECORD][ERROR] for row in rows] == [None, None, ERRORS[2], None]
