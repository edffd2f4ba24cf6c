"""Rows that Spark reads: of a job's own DataFrame or micro-batch, which are a source; and of text files, which executors read by ``readers``.

Spark's own readers of CSV and JSON are not used: they drop lines of blanks and text behind a value, cut cells at a line end, take one quote for
another, decode bytes that are no UTF-8, round digits, and change with the columns that a plan needs. So a row is what a send of its file makes of it.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.readers import named_columns, records
from airflow_poison.sources.rows import to_messages
from airflow_poison.sources.source import ERROR, NO_BODY, RECORD, UNFIT, Reached, Source, Take
from airflow_poison.sources.text_lines import Part, cuts, parts, unpacked
from airflow_poison.store.objects import side_by_side
from airflow_poison.values.errors import SourceError
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import message_schema
from airflow_poison.values.texts import literal_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.sources.readers import Layout
    from airflow_poison.sources.source import Position, Then

    _Unit = tuple[str, str, Layout, tuple[int, int, int] | None]

_TASKS, _CORES = 200, 16
"""Tasks at most; and how many run at the same time where Spark does not say it."""
_PART, _LEAST = 128 << 20, 4 << 20
"""Bytes that one task reads, about, at most and at least: Spark's own figures."""


@dataclass(frozen=True)
class Frame(Source):
    """A DataFrame that is given.

    :param name: what it is, for people.
    """

    frame: DataFrame
    name: str = "a DataFrame"

    columns = True

    def plan(self, position: Position, *, limit: int | None) -> Take:
        """Return its rows."""
        del limit
        at: dict[str, Any] = dict(position.at)

        return Take(what=self.name, batches=lambda: iter(()), reached=lambda: Reached(at), rows=lambda _spark, _then: self.frame, alone=True)


def reader(spark: SparkSession) -> DataFrameReader:
    """Return Spark's reader, which fails for a file that is damaged or gone; settings of the session do not change that."""
    return spark.read.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")


def with_record(columns: StructType) -> StructType:
    """Return columns with ``RECORD`` and ``UNFIT`` behind them."""
    from pyspark.sql.types import BinaryType, MapType, StringType, StructType

    record = StructType().add("message_id", "string").add("group_id", "string").add("body", BinaryType())
    record = record.add("properties", MapType(StringType(), StringType())).add(NO_BODY, "boolean").add(ERROR, "string")
    return StructType([*columns.fields]).add(RECORD, record).add(UNFIT, "boolean")


def records_of(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return records as the column ``RECORD``."""
    import pyarrow as pa

    kinds = {name: message_schema().field(name).type for name in ("message_id", "group_id", "body", "properties")}
    kinds |= {NO_BODY: pa.bool_(), ERROR: pa.string()}
    parts = [batch.column(name).cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(parts, names=list(kinds))


def of_files(spark: SparkSession, files: Sequence[tuple[str, str]], layout: Layout, columns: Sequence[str], then: Then | None) -> DataFrame:
    """Return what text files hold, which executors read: each by one task, or a large one in parts, where each line end in it ends a record.

    :param files: their names as users see them, and their paths, the largest first; of objects, which Spark gets whole, their URIs.
    :param columns: of CSV, all text. :param then: what is made of bodies instead: of rows of CSV, those that a send makes.
    """
    names, rows = {path: name for name, path in files}, None if then is None or layout.format != "json" else then.of_bodies
    size, tasks = _shares(spark, files)
    units = [*chain.from_iterable(side_by_side(lambda file: _units(*file, layout, size, counted=rows is None), files))]
    tasks = min(len(units), tasks)

    def opened(batch: pa.RecordBatch) -> Iterator[tuple[str, Layout, Any]]:
        if "id" in batch.schema.names:
            for name, path, how, part in (unit for number in batch.column("id").to_numpy() for unit in units[int(number) :: tasks]):
                if part is None:
                    yield name, how, Path(path)
                else:
                    with Path(path).open("rb") as raw:
                        yield name, how, Part(raw, *part)
            return
        for uri, content in zip(batch.column("path").to_pylist(), batch.column("content"), strict=True):
            yield names[str(uri)], layout, unpacked(str(uri), content.as_py())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = (batch for given in batches for name, how, content in opened(given) for batch in records(name, how, content, rows))
        yield from _texts(found, columns) if then is None else _made(found, then, at_once=rows is not None)

    if "://" in files[0][1]:
        there = reader(spark).format("binaryFile").load([literal_path(uri) for uri in names]).select("path", "content")
    else:
        there = spark.range(0, tasks, 1, tasks)
    return there.mapInArrow(read, with_record(_columns(columns)) if then is None else then.columns)


def _shares(spark: SparkSession, files: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Return how many bytes of files a task reads, about, and how many tasks there are at most."""
    context: Any = getattr(spark, "sparkContext", None)  # Spark Connect has none, and does not say how many cores there are
    cores, total = int(context.defaultParallelism) if context is not None else _CORES, 0
    for _, path in files:
        with suppress(OSError):  # the task that reads it says so; an object is a task's own
            total += Path(path).stat().st_size
    size = min(_PART, max(_LEAST, total // cores))
    return size, min(_TASKS, max(cores, -(-total // size)))


def _units(name: str, path: str, layout: Layout, size: int, *, counted: bool) -> list[_Unit]:
    """Return what tasks read of a file: its name and path, the layout, and the part; None: all of it.

    :param size: of a part, about. :param counted: whether the lines before a part have to be known.
    """
    whole: list[_Unit] = [(name, path, layout, None)]
    is_csv, columns = layout.format == "csv", tuple[str, ...]()
    if "://" in path or layout.encoding != "utf-8":
        return whole
    found = list[tuple[int, int, int]]()
    with suppress(OSError):  # the task that reads it says so
        if Path(path).stat().st_size > size:
            columns = named_columns(layout, Path(path)) if is_csv else ()
            found = parts(Path(path), size, b'"' if is_csv else b"") if counted else cuts(Path(path), size)
    line = layout.header if type(layout.header) is int else 0
    if len(found) < 2 or (is_csv and (not columns or found[1][2] < line)):  # noqa: PLR2004  (one part is the file)
        return whole
    later = replace(layout, header=columns) if is_csv else layout
    return [(name, path, later if part[2] else layout, part) for part in found]


def of_avro(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of Avro files, whose schemas may differ: Spark reads all files by the schema of one. Raises SourceError."""
    found, kinds = defaultdict[str, list[str]](list), dict[str, tuple[Any, str]]()
    for path in paths:
        schema = reader(spark).format("avro").load(path).schema
        found[schema.json()].append(path)
        for field in schema.fields:
            kind, where = kinds.setdefault(field.name, (field.dataType, path))
            if kind != field.dataType:
                raise SourceError(
                    f"Column {field.name!r} is {kind.simpleString()} in {where}, and {field.dataType.simpleString()} in {path}. Take files of "
                    "each type by a pattern of its own. Nothing was taken."
                )
    parts = [reader(spark).format("avro").load(some) for some in found.values()]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _columns(names: Sequence[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in names])


def _made(batches: Iterable[pa.RecordBatch], then: Then, *, at_once: bool) -> Iterator[pa.RecordBatch]:
    """Yield what is made of records: of rows of CSV as a send makes bodies of them, of bodies as they are.

    :param at_once: what is no record has been made of bodies already.
    """
    for batch in batches:
        if ERROR in batch.schema.names:
            yield from then.make([batch])
        elif at_once:
            yield batch
        else:
            yield from then.make([to_messages(batch, ColumnMapping(), datetime.now(UTC))])


def _texts(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        wrong, nothing = ERROR in batch.schema.names, pa.nulls(batch.num_rows, pa.string())
        cells = [nothing if wrong or name not in batch.schema.names else batch.column(name) for name in columns]
        record = records_of(batch)
        if not wrong:
            record = pa.nulls(batch.num_rows, record.type)
        yield pa.record_batch([*cells, record, pa.repeat(pa.scalar(wrong), batch.num_rows)], names=[*columns, RECORD, UNFIT])
