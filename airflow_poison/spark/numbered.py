"""Rows that Spark has written with their numbers, so that pieces of them are read again as the same rows: a source may give them in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_poison.sources.source import UNFIT
from airflow_poison.spark.catching import ROW
from airflow_poison.values.schema import LOOKUP_ID
from airflow_poison.values.texts import literal_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.outputs.row_files import Place

_BATCH = 64_000


class NotNumberedError(Exception):
    """Files that do not say which numbers their rows have."""


class _File(NamedTuple):
    """A file, whose rows have numbers that follow each other."""

    path: str
    first: int
    rows: int


class NumberedRows:
    """Rows in files, with their numbers in the first column, ``lookup_id``; in each file they follow each other. Places of rows are from 0 on.

    :param schema: of the rows, as Spark has it. Raises NotNumberedError.
    """

    def __init__(self, place: Place, paths: Sequence[str], schema: StructType) -> None:
        self._place, self._schema = place, schema
        self._files = sorted((file for path in paths if (file := self._file(path)).rows), key=lambda file: file.first)
        self._ends = np.cumsum([file.rows for file in self._files], dtype=np.int64)
        self.number = int(self._ends[-1]) if self._files else 0

    def _file(self, path: str) -> _File:
        with self._open(path) as file:
            groups: list[Any] = [file.metadata.row_group(number).column(0).statistics for number in range(file.num_row_groups)]
            rows = file.metadata.num_rows
        if not rows:
            return _File(path, 0, 0)
        if any(found is None or not found.has_min_max for found in groups):
            raise NotNumberedError
        first, last = min(found.min for found in groups), max(found.max for found in groups)
        if last - first + 1 != rows:
            raise NotNumberedError
        return _File(path, first, rows)

    def _open(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._place.files.opened(path))

    def frame(self, spark: SparkSession, first: int = 0, end: int | None = None) -> DataFrame:
        """Return the rows from a place to another."""
        end = self.number if end is None else end
        files = self._files[int(np.searchsorted(self._ends, first, side="right")) : int(np.searchsorted(self._ends, end, side="left")) + 1]
        rows = spark.read.schema(self._schema).parquet(*(literal_path(f"{self._place.uri}/{file.path}") for file in files))
        if (first, end) == (0, self.number):
            return rows
        return rows.where(f"{LOOKUP_ID} BETWEEN {self.number_at(first)} AND {self.number_at(end - 1)}")

    def number_at(self, place: int) -> int:
        """Return the number of the row at a place."""
        return int(self._numbers(place, place + 1)[0])

    def _numbers(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the rows from a place to another."""
        found: list[NDArray[np.int64]] = []
        for file, behind in zip(self._files, self._ends.tolist(), strict=True):
            before = behind - file.rows
            if before < end and first < behind:
                found.append(np.arange(file.first + max(first - before, 0), file.first + min(end - before, file.rows), dtype=np.int64))
        return np.concatenate(found)

    def write_failed(
        self, pieces: Sequence[tuple[int, int]], named: Mapping[int, str], write: Callable[[str, Iterator[pa.RecordBatch]], None]
    ) -> int:
        """Have the rows of pieces and named ones written, but records that are no rows, as the column ``ROW``; return how many named ones there are.

        :param named: what the transformation says of rows, by their numbers.
        :param write: called with the path of a file, and its batches.
        """
        numbers = np.concatenate([np.array(sorted(named), np.int64), *(self._numbers(*piece) for piece in pieces)])
        order: Any = np.argsort(numbers, kind="stable")
        reasons: Any = pa.array([named[number] for number in sorted(named)] + [None] * (len(numbers) - len(named)), pa.string()).take(order)
        wanted, written = numbers[order], 0

        def batches(file: _File) -> Iterator[pa.RecordBatch]:
            nonlocal written
            with self._open(file.path) as parquet:
                for batch in parquet.iter_batches(_BATCH):
                    given = batch.column(0).to_numpy()
                    places: Any = np.minimum(np.searchsorted(wanted, given), len(wanted) - 1)
                    here = wanted[places] == given
                    if UNFIT in batch.schema.names:
                        here &= ~batch.column(UNFIT).to_numpy(zero_copy_only=False)
                        batch = batch.drop_columns([UNFIT])  # noqa: PLW2901
                    if here.any():
                        rows: Any = batch.filter(pa.array(here))
                        whys = reasons.take(pa.array(places[here]))
                        written += len(whys) - whys.null_count
                        row = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
                        ours = pa.StructArray.from_arrays([row, rows.column(0), whys], names=["row", "id", "said"])
                        yield pa.record_batch([ours], names=[ROW])

        for file in self._files:
            if np.searchsorted(wanted, file.first) < np.searchsorted(wanted, file.first + file.rows):
                write(file.path, batches(file))
        return written
