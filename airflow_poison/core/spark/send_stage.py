"""The send stage: Spark maps the columns of any DataFrame to messages and writes them as Parquet into a staging folder.

From there they are streamed into the queue batch by batch, so the driver's memory does not grow with their number. Over an object store, executors on
other machines make objects of what they write, and the driver fetches these.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from airflow_poison.core.errors import ExecutorError, InputError, PoisonError, SparkJobError
from airflow_poison.core.mapping import ColumnMapping, check_named_once, check_priorities, expires_at
from airflow_poison.core.schema import DEFAULT_PRIORITY
from airflow_poison.core.spark.executors import Executors
from airflow_poison.core.spark.jobs import has_ended, why
from airflow_poison.core.spark.nodes import written_by_tasks
from airflow_poison.core.store.disk import POSIX
from airflow_poison.core.store.table.files import STAGE
from airflow_poison.core.store.table.row_groups import streamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import timedelta

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from airflow_poison.core.sources.source import Take
    from airflow_poison.core.store.bucket.folder import BucketFolder
    from airflow_poison.core.store.folder import Folder

BATCH_ROWS = 4_096
_REFUSED = re.compile(r"expires_after='.*': .* are no date of the years 1 to 9999")
_NESTED = ("struct", "map", "array")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
FORMATS = ("csv", "json", "orc", "parquet", "text", "xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSource:
    """Where a DataFrame comes from: exactly one of a path, a table and a function.

    :param path: what Spark reads, in the format and with the options given.
    :param table: a table of Spark's catalog.
    :param dataframe: called with the session, returns the DataFrame.
    """

    path: str | None = None
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    dataframe: Callable[[SparkSession], DataFrame] | None = None

    def open(self, spark: SparkSession) -> DataFrame:
        """Return the DataFrame, whose columns are known. Raises InputError when there is none."""
        from pyspark.sql import DataFrame

        if self.dataframe is not None:
            frame = self.dataframe(spark)
            if not isinstance(frame, DataFrame):
                raise InputError(f"dataframe returned {type(frame).__name__}; it must return a Spark DataFrame. Nothing was sent.")
            return frame
        try:
            files = spark.read.format(self.format).options(**self.options)
            frame = files.load(self.path) if self.table is None else spark.read.table(self.table)
            frame.columns  # noqa: B018  (Spark Connect looks only now)
        except Exception as error:  # of the JVM or of Connect; an unknown format is a Py4JJavaError, a missing path is none
            if has_ended(error):
                raise
            what = f"table={self.table!r}" if self.table is not None else f"path={self.path!r} as format={self.format!r}"
            raise InputError(f"Spark cannot read {what}: {why(error).rstrip('.')}. {self._next_step} Nothing was sent.") from error
        return frame

    @property
    def _next_step(self) -> str:
        if self.table is not None:
            return "Check the name, and that Spark's session knows the catalog."
        return (
            f"Check that driver and executors reach the path, and what it holds. Spark itself reads {', '.join(FORMATS)}; other formats and file "
            "systems come with packages: name them in spark_conf of the connection, as spark.jars.packages."
        )


@dataclass(frozen=True, slots=True)
class SendStage:
    """A staging folder of one send: removed when the send has ended, and emptied when a killed one left something.

    :param of: the table's files.
    :param path: of the staging folder, below the table.
    """

    of: Folder
    path: str

    @classmethod
    def of_queue(cls, folder: Folder, key: str) -> SendStage:
        """Return the stage of a send with this key.

        :param folder: the table's.
        """
        return cls(folder, f"{STAGE}/send-{key}")

    @property
    def folder(self) -> Path:
        """The staging folder on this node."""
        return Path(self.of.root, self.path)

    def batches(self, frame: Callable[[], DataFrame], mapping: ColumnMapping, now: datetime) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a DataFrame. Nothing happens before the first is asked for; the folder is gone after the last.

        :param frame: makes the DataFrame.
        Raises InputError that names the column when the frame does not fit the mapping, ExecutorError when executors cannot work on the queue or not
        all that was written is here, SparkJobError.
        """
        for batch in self._rows(lambda: to_messages(frame(), mapping, now), ours=False):
            yield check_priorities(batch, mapping.priority)

    def records(self, planned: Take, spark: Callable[[], SparkSession]) -> Iterator[pa.RecordBatch]:
        """Yield the records of a source, as ``Take.batches`` does, read by executors.

        :param spark: returns the session; not called where the source cannot be read there.
        Raises InputError for such a source, ExecutorError, SparkJobError.
        """
        if (frame := planned.frame) is None:
            raise InputError("on_spark=True: Spark's executors cannot read this source; Kafka is one that they can. Leave it out. Nothing was sent.")
        yield from self._rows(lambda: frame(spark()), ours=True)

    def _rows(self, frame: Callable[[], DataFrame], *, ours: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a DataFrame, written where its tasks run.

        :param ours: the tasks run code of this package.
        """
        apart = False
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            rows = frame()
            executors = Executors(rows.sparkSession)
            apart = bool(self.of.node) and not executors.jobs.local
            if apart or ours:
                executors.make_ready(self.of)
            try:
                yield from _read(self._written_apart(rows) if apart else self._written(rows))
            except FileNotFoundError as error:
                raise InputError(
                    f"{error.filename or error} is gone: maintenance or somebody else removed it while the send stood still. Nothing was sent; "
                    "run the task again."
                ) from error
        finally:
            if apart:  # the objects, too
                self.of.remove_tree(self.path)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _written(self, messages: DataFrame) -> list[Path]:
        """Write the messages as Spark's tasks do, each where it runs, and see to it that this process has all of them."""
        import pyarrow.parquet as pq
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        written = Observation()
        with _told():
            messages.observe(written, f.count(f.lit(1)).alias("rows")).write.parquet(str(self.folder))
        paths = sorted(self.folder.glob("*.parquet"))
        here = sum(pq.read_metadata(path).num_rows for path in paths)
        there = int(written.get["rows"])
        if here != there:
            raise ExecutorError(
                f"Spark's executors wrote {there:,} messages below {self.folder}, and {here:,} of them are there for this process. The store must be "
                f"on a file system that the task and all executors mount at the same path, {POSIX}. Nothing was sent."
            )
        return paths

    def _written_apart(self, messages: DataFrame) -> list[Path]:
        """Write the messages where the tasks run, and fetch all of them."""
        with _told():
            return written_by_tasks(messages, cast("BucketFolder", self.of), self.path)


@contextmanager
def _told() -> Iterator[None]:
    """Raise InputError or SparkJobError for what a job that writes messages fails with; what the driver cannot fetch is no failure of the job."""
    try:
        yield
    except (FileNotFoundError, PoisonError):
        raise
    except Exception as error:
        words = why(error)
        if (refused := _REFUSED.search(words)) is not None:
            raise InputError(f"{refused[0]}. Leave the value out (null) for messages that never expire. Nothing was sent.") from error
        raise SparkJobError(f"The Spark job that writes the messages failed: {words}\nNothing was sent.") from error


def to_messages(frame: DataFrame, mapping: ColumnMapping, now: datetime) -> DataFrame:
    """Return a DataFrame with the columns of a message. Raises InputError."""
    from pyspark.sql import functions as f

    mapping.check(frame.columns)
    _check_named_once(frame, mapping)
    types = {name.name: name.dataType for name in frame.schema.fields}
    columns: list[Column] = [_body(frame, mapping, types).alias("body")]
    texts = {"group_id": "group", "message_id": "message_id", "message_type": "message_type", "conversation_id": "conversation"}
    for name, parameter in texts.items():
        column = getattr(mapping, parameter)
        if column is not None:
            if types[column].simpleString().startswith((*_NESTED, "binary", "variant")):
                raise InputError(_wrong(types, column, parameter, "text, a number or a date: cast it"))
            columns.append(frame[_quoted(column)].cast("string").alias(name))
    if mapping.priority is not None:
        _want(types, mapping.priority, "priority", _WHOLE, "whole numbers: cast it, or read with inferSchema")
        columns.append(f.coalesce(frame[_quoted(mapping.priority)].cast("bigint"), f.lit(DEFAULT_PRIORITY)).alias("priority"))
    if mapping.properties:
        pairs = [part for name in mapping.properties for part in (f.lit(name), _any_text(frame, name, types))]
        columns.append(f.map_filter(f.create_map(*pairs), lambda _key, value: value.isNotNull()).alias("properties"))
    if mapping.expires_after is not None:
        columns.append(_expires_at(frame, mapping.expires_after, types, now).alias("expires_at"))
    return frame.select(*columns)


def _check_named_once(frame: DataFrame, mapping: ColumnMapping) -> None:
    """Raise InputError when a column that is sent could be one of two; Spark tells ``a`` from ``A`` only where it is told to."""
    exact = str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"
    sent = frame.columns if mapping.body is None else mapping.columns()
    wanted = {name if exact else name.lower() for name in sent}
    check_named_once([name for name in (name if exact else name.lower() for name in frame.columns) if name in wanted], "the DataFrame")


def _body(frame: DataFrame, mapping: ColumnMapping, types: Mapping[str, DataType]) -> Column:
    from pyspark.sql import functions as f

    if isinstance(mapping.body, str):
        _want(types, mapping.body, "body", ("string", "binary"), f"text or bytes; for JSON give a list: body=[{mapping.body!r}]")
        return frame[_quoted(mapping.body)].cast("binary")
    names = frame.columns if mapping.body is None else mapping.body
    return f.to_json(f.struct(*[frame[_quoted(name)] for name in names]), {"ignoreNullFields": "false"}).cast("binary")


def _expires_at(frame: DataFrame, after: str | timedelta, types: Mapping[str, DataType], now: datetime) -> Column:
    from pyspark.sql import functions as f

    if not isinstance(after, str):
        return f.lit(expires_at(now, after.total_seconds(), after))
    _want(types, after, "expires_after", (*_WHOLE, "float", "double"), "a number of seconds")
    seconds = frame[_quoted(after)]
    first, last = ((datetime(*date, tzinfo=UTC) - now).total_seconds() for date in ((1, 1, 1), (9999, 12, 31)))
    instant = f.timestamp_micros((seconds * 1_000_000 + f.lit(int(now.timestamp() * 1_000_000))).cast("bigint"))
    no_date = ~seconds.cast("double").between(first, last)  # NaN is above all numbers
    said = (f.lit(f"expires_after={after!r}: "), seconds.cast("string"), f.lit(" seconds from now are no date of the years 1 to 9999"))
    refusal = f.raise_error(f.concat(*said))
    return f.when(no_date, refusal.cast("timestamp")).otherwise(instant)


def _any_text(frame: DataFrame, column: str, types: Mapping[str, DataType]) -> Column:
    from pyspark.sql import functions as f

    if types[column].simpleString().startswith(_NESTED):
        return f.to_json(frame[_quoted(column)])
    return frame[_quoted(column)].cast("string")


def _want(types: Mapping[str, DataType], column: str, parameter: str, allowed: tuple[str, ...], next_step: str) -> None:
    if types[column].simpleString() not in allowed:
        raise InputError(_wrong(types, column, parameter, next_step))


def _wrong(types: Mapping[str, DataType], column: str, parameter: str, next_step: str) -> str:
    there = {name: kind.simpleString() for name, kind in types.items()}
    return f"{parameter}={column!r}: the column is {there[column]}; needed is {next_step}. The columns are {there}. Nothing was sent."


def _quoted(column: str) -> str:
    """Return a name that Spark takes as one column, dots included."""
    return f"`{column.replace('`', '``')}`"


def _read(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from streamed(file, BATCH_ROWS)
