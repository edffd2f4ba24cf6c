"""Rows that Spark has written with their numbers: which row is at which place, and what is written of those that fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from airflow_poison.outputs.row_files import Place, files_in
from airflow_poison.sources.source import RECORD, UNFIT
from airflow_poison.spark.catching import ROW
from airflow_poison.spark.numbered import NotNumberedError, NumberedRows
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FAR = 2 << 33
NUMBERS = [[*range(FAR + 1, FAR + 4)], [], [*range(1, 6)]]
"""Numbers of the rows of three files, in the order of their names."""


def rows_in(folder: Path, numbers: list[list[int]], **writing: Any) -> NumberedRows:
    for name, ids in enumerate(numbers):
        records = [{"body": str(each)} for each in ids]
        table = {LOOKUP_ID: pa.array(ids, pa.int64()), "at": [str(each) for each in ids], RECORD: records, UNFIT: [each % 4 == 0 for each in ids]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=2, **writing)
    return NumberedRows(Place(str(folder), files_in(str(folder), {})), [f"{name}.parquet" for name in range(len(numbers))], StructType())


def failed(rows: NumberedRows, pieces: list[tuple[int, int]], named: Mapping[int, str]) -> tuple[int, dict[int, tuple[Any, ...]]]:
    """Return how many named rows were found, and what was written: the given row and what is said of it, by numbers."""
    found: dict[int, tuple[Any, ...]] = {}

    def write(path: str, batches: Iterator[pa.RecordBatch]) -> None:
        assert path in {"0.parquet", "2.parquet"}
        for each in (row[ROW] for batch in batches for row in batch.to_pylist()):
            found[each["id"]] = (each["row"], each["said"])

    return rows.write_failed(pieces, named, write), found


def test_places_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    rows = rows_in(tmp_path, NUMBERS)

    assert rows.number == 8
    assert [rows.number_at(place) for place in range(8)] == [*NUMBERS[2], *NUMBERS[0]]


def test_rows_of_pieces_and_named_ones_are_written_as_they_were_but_records_that_are_no_rows(tmp_path: Path) -> None:
    number, found = failed(rows_in(tmp_path, NUMBERS), [(2, 6)], {FAR + 3: "no number", 1: "no amount"})

    assert number == 2
    assert {each: said for each, (_, said) in found.items()} == {1: "no amount", 3: None, 5: None, FAR + 1: None, FAR + 3: "no number"}
    assert all(row == {LOOKUP_ID: each, "at": str(each), RECORD: {"body": str(each)}} for each, (row, _) in found.items())


def test_a_number_that_no_row_has_is_not_counted(tmp_path: Path) -> None:
    assert failed(rows_in(tmp_path, NUMBERS), [], {6: "made up", 2: "named"})[0] == 1


@pytest.mark.parametrize(("numbers", "writing"), [([[1, 2, 4]], {}), ([[1, 2, 3]], {"write_statistics": False})], ids=["a gap", "no statistics"])
def test_files_that_do_not_say_which_numbers_they_have_are_not_searched(tmp_path: Path, numbers: list[list[int]], writing: dict[str, Any]) -> None:
    with pytest.raises(NotNumberedError):
        rows_in(tmp_path, numbers, **writing)
