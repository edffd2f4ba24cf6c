"""The messages of a claim as DataFrames: with the columns of messages, or with those of their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_poison.core.ddl import ddl_type, parse_ddl
from airflow_poison.core.delivery.bodies import columns_of
from airflow_poison.core.errors import BodyError
from airflow_poison.core.schema import FRAME_COLUMNS, LOOKUP_ID, message_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from airflow_poison.core.store.files import DataFile

BODY = "_poison_body"
"""The column of ``parsed`` that has the body as it is stored."""
_PARSED, _CORRUPT = "_poison_parsed", "_poison_corrupt"
_UNPARSED = "poison: a body does not parse"
SPREAD, LARGEST_SPREAD = 8, 100_000
"""Into so many tasks a unit is spread whose culprit is looked for: the one that fails says where it is. Each that runs Python costs a quarter of a
second. And so large may the unit be: its bodies are shuffled."""
_WHOLE = """CASE WHEN startswith(cast(body AS string), '{') AND endswith(cast(body AS string), '}') THEN true
ELSE startswith(btrim(cast(body AS string), ' \t\r\n'), '{') AND endswith(btrim(cast(body AS string), ' \t\r\n'), '}') END"""
"""Whether a body is all of an object: what is behind one Spark does not read. Trimming takes as long as parsing."""
_KEYS = "12, 6, 5, 1, 25, 15, 2, 0"
"""Integers that Spark's hash puts into partition 0, 1, and so on of ``SPREAD``: only so can a partition be chosen."""
_LISTED = 1_000
"""So many lookup ids stand in a filter; more are joined with."""


def given_schema(schema: str | None) -> StructType:
    """Return the columns that a transformation is given.

    :param schema: of the bodies; None: the columns of messages.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if schema is None:
        stored = pa.schema([field for field in message_schema() if field.name in FRAME_COLUMNS]).append(pa.field("move_count", pa.int32()))
        return from_arrow_schema(pa.schema([stored.field(name) for name in FRAME_COLUMNS]), prefer_timestamp_ntz=True)
    columns = parse_ddl(schema).insert(0, pa.field(LOOKUP_ID, pa.int64()))
    return from_arrow_schema(pa.schema([field.with_nullable(True) for field in columns]), prefer_timestamp_ntz=True)  # noqa: FBT003  (Arrow's)


class ClaimFrames:
    """The messages of a claim as DataFrames: all, or some of them.

    :param lookup_ids: of the messages, in the order of the files' rows.
    :param read: reads files where Spark does not see them; None: it does.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        files: Sequence[DataFile],
        lookup_ids: NDArray[np.int64],
        schema: str | None,
        *,
        read: Callable[[Sequence[DataFile]], DataFrame] | None = None,
    ) -> None:
        self._spark, self._root, self._files, self._schema = spark, root, files, schema
        self._read = read or self._seen
        self._sorted = np.sort(lookup_ids)
        of_files = np.repeat(np.arange(len(files)), [file.rows for file in files])
        self._file_of = of_files[np.argsort(lookup_ids, kind="stable")]

    def raw(self, lookup_ids: NDArray[np.int64], mark: str | None = None, *, spread: bool = False) -> DataFrame:
        """Return messages with the columns ``FRAME_COLUMNS``; with a schema, ``lookup_id`` and ``body`` alone.

        :param lookup_ids: ascending.
        :param spread: each task has those of its number in ``shares``; otherwise a message that is alone is one task's, which costs least.
        :param mark: the name of a property of the JVM that says, with the number of a task behind it, which message the task is at; None: none does.
        """
        from pyspark.sql import functions as f

        places = np.searchsorted(self._sorted, lookup_ids)
        files = [self._files[number] for number in np.unique(self._file_of[places]).tolist()]
        frame = self._read(files).select(*(FRAME_COLUMNS if self._schema is None else (LOOKUP_ID, "body")))
        if sum(file.rows for file in files) != len(lookup_ids):
            frame = self._only(frame, lookup_ids)
        if spread:
            share = f"({LOOKUP_ID} - {lookup_ids[0]}L) * {SPREAD} div {lookup_ids[-1] - lookup_ids[0] + 1}L"
            frame = frame.repartition(SPREAD, f.expr(f"element_at(array({_KEYS}), cast({share} as int) + 1)"))
        elif len(lookup_ids) == 1:
            frame = frame.coalesce(1)
        if mark is not None:
            noted = f"reflect('java.lang.System', 'setProperty', concat('{mark}', cast(spark_partition_id() as string)), cast({LOOKUP_ID} as string))"
            frame = frame.where(f"coalesce({noted}, '') != '-'")
        return frame

    def _seen(self, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of files, as Spark reads them."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        frame: DataFrame | None = None
        stored = StructType([field for field in given_schema(None).fields if field.name != "move_count"])
        for move_count in sorted({file.move_count for file in files}):
            paths = [f"{self._root}/{file.path}" for file in files if file.move_count == move_count]
            part = self._spark.read.schema(stored).parquet(*paths).withColumn("move_count", f.lit(move_count))
            frame = part if frame is None else frame.unionByName(part)
        assert frame is not None, "a unit has at least one message"
        return frame

    def _only(self, frame: DataFrame, lookup_ids: NDArray[np.int64]) -> DataFrame:
        """Return those rows of a frame; a range of lookup ids lets Spark pass over row groups."""
        from pyspark.sql import functions as f

        column = f.col(LOOKUP_ID)
        first, last = int(lookup_ids[0]), int(lookup_ids[-1])
        frame = frame.where(column.between(f.lit(first).cast("long"), f.lit(last).cast("long")))
        within = self._sorted[np.searchsorted(self._sorted, first) : np.searchsorted(self._sorted, last, side="right")]
        if len(within) == len(lookup_ids):
            return frame
        others = np.setdiff1d(within, lookup_ids, assume_unique=True)
        few = others if len(others) < len(lookup_ids) else lookup_ids
        if len(few) <= _LISTED:  # as text: each value of ``isin`` is a call of the JVM
            return frame.where(f"{LOOKUP_ID} {'' if few is lookup_ids else 'NOT '}IN ({', '.join(map(str, few.tolist()))})")
        ids = self._spark.createDataFrame(pa.table({LOOKUP_ID: few}))
        return frame.join(f.broadcast(ids), LOOKUP_ID, "left_semi" if few is lookup_ids else "left_anti")

    def given(self, raw: DataFrame, observed: Any = None, *, strict: bool = False) -> DataFrame:
        """Return what the transformation is given: with a schema the columns of the bodies that parse.

        :param observed: an ``Observation``, which is told how many do not parse.
        :param strict: the first one that does not parse fails the job (``is_of_body``), unless ``leaves_out`` says that nothing is parsed. A seventh
            faster.
        """
        from pyspark.sql import functions as f

        if self._schema is None:
            return raw
        if strict:
            parsed = self._strictly(raw)
        else:
            parsed, bad = self.parsed(raw)
            counted = f.count_if(bad).alias("bad")
            parsed = parsed.observe(observed or "poison_unparsed", counted)  # the filter stays above it: below, all is parsed twice
            parsed = parsed.where(~bad)
        return parsed.selectExpr(LOOKUP_ID, *(f"{_PARSED}.{quoted(name)}" for name in parse_ddl(self._schema).names))

    def _strictly(self, raw: DataFrame) -> DataFrame:
        """Return messages with their parsed bodies. What ``parsed`` finds bad fails the job."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        columns = StructType(self._columns())
        refused = f.raise_error(_UNPARSED).cast(columns)
        text = f.col("body").cast("string")
        parsed = f.coalesce(f.from_json(text, columns, {"mode": "FAILFAST"}), refused)
        once = f.expr(f"{_WHOLE} AND spark_partition_id() >= 0")  # what depends on a task no filter is pushed below: it would parse all again
        frame = raw.select(LOOKUP_ID, f.when(once, parsed).otherwise(refused).alias(_PARSED))
        if lacking := self._lacking():
            frame = frame.select(LOOKUP_ID, f.when(f.expr(lacking), refused).otherwise(f.col(_PARSED)).alias(_PARSED))
        return frame

    def parsed(self, raw: DataFrame) -> tuple[DataFrame, Column]:
        """Return messages with their parsed bodies, and the condition that one does not parse: it is no object, or a value does not fit."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        parsed = f.from_json(f.col("body").cast("string"), StructType([*self._columns(), StructField(_CORRUPT, StringType())]), options)
        frame = raw.select(LOOKUP_ID, f.col("body").alias(BODY), f.when(f.expr(_WHOLE), parsed).alias(_PARSED))
        bad = f"{_PARSED} IS NULL OR {_PARSED}.{_CORRUPT} IS NOT NULL"
        return frame, f.expr(" OR ".join(filter(None, [bad, self._lacking()])))

    def _columns(self) -> list[StructField]:
        assert self._schema is not None, "there is something to parse"
        return [field for field in given_schema(self._schema).fields if field.name != LOOKUP_ID]

    def _lacking(self) -> str:
        """Return the condition that a column which must have a value has none; empty: none must."""
        assert self._schema is not None, "there is something to parse"
        return " OR ".join(f"{_PARSED}.{quoted(field.name)} IS NULL" for field in parse_ddl(self._schema) if not field.nullable)


def leaves_out(plan: str) -> bool:
    """Whether an optimized plan parses no bodies, since nothing is made of their columns."""
    return f"{_PARSED}#" not in plan


def is_of_body(error: Exception) -> bool:
    """Whether a job may have failed for a body that does not parse."""
    text = str(error)
    return _UNPARSED in text or "MALFORMED_RECORD_IN_PARSING" in text


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def shares(lookup_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the tasks that have these messages when they are spread."""
    found: NDArray[np.int64] = (lookup_ids - lookup_ids[0]) * SPREAD // (lookup_ids[-1] - lookup_ids[0] + 1)
    return found


def body_error(body: bytes | None, schema: pa.Schema) -> BodyError:
    """Return why a body does not parse."""
    _, failures = columns_of([body], schema)
    columns = ", ".join(f"{field.name} {ddl_type(field.type)}" for field in schema)
    return failures.get(0) or BodyError(f"The body does not fit the schema as Spark reads JSON: {columns}.")
