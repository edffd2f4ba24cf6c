"""The send stage: Spark writes the rows of any DataFrame, with their own types, as Parquet into a staging folder.

From there they are streamed into the queue batch by batch, so the driver's memory does not grow with their number. The driver makes messages of
them as it does of rows of other sources: a value has one JSON, whichever way it came. Over an object store, executors on other machines make objects
of what they write, and the driver fetches these.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from airflow_poison.sources.bodies import alone, with_fields
from airflow_poison.sources.documents import documents
from airflow_poison.sources.frames import files_read, folders_of, reader
from airflow_poison.sources.paths import MappedFields, of_text
from airflow_poison.sources.rows import JSON_TEXT, to_messages
from airflow_poison.sources.source import ERROR
from airflow_poison.spark.executors import Executors
from airflow_poison.spark.jobs import has_ended, why
from airflow_poison.spark.messages import arrow_schema, types_kept
from airflow_poison.spark.nodes import written_by_tasks
from airflow_poison.store.data_files import STAGE
from airflow_poison.store.disk import POSIX
from airflow_poison.store.row_groups import streamed
from airflow_poison.values import json_text
from airflow_poison.values.ddl import quoted
from airflow_poison.values.errors import ExecutorError, InputError, PoisonError, SparkJobError
from airflow_poison.values.libraries import pa, pc, pq
from airflow_poison.values.mapping import ColumnMapping, check_named_once
from airflow_poison.values.texts import local_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType

    from airflow_poison.sources.source import Take
    from airflow_poison.store.bucket_folder import BucketFolder
    from airflow_poison.store.disk import Folder

BATCH_ROWS = 4_096
FRAME_ROWS = 50_000
"""Rows of which messages are made at once: a query for 4,096 of them takes longer to prepare than to run."""
FORMATS = ("csv", "json", "orc", "parquet", "text", "xml")
_PARSED = ("csv", "json", "xml")
"""Formats of text whose records Spark may be unable to read."""
CORRUPT = "spark.sql.columnNameOfCorruptRecord"
_OF_LISTS = frozenset({"recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter", "ignoremissingfiles", "ignorecorruptfiles"})
"""Options that say which files are read, in lower case."""
_FILES = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})
_OF_LINES = _OF_LISTS | {"linesep"}
_OF_DOCUMENTS = _OF_LISTS | {"multiline", "prefersdecimal"}
JSON_LINE, JSON_FILE, TEXT_LINE = "poison.json_line", "poison.json_file", "poison.text_line"
"""The first column of a DataFrame of lines, or of whole files, as bytes; behind it the columns of the names of folders."""
_EMPTY = "\x01poison.empty\x01"
"""What stands for an empty cell in quotes while Spark reads CSV, which would make it null as one without quotes."""


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
            frame = self._files(spark) if self.table is None else spark.read.table(self.table)
            frame.columns  # noqa: B018  (Spark Connect looks only now)
        except PoisonError:
            raise
        except Exception as error:  # of the JVM or of Connect; an unknown format is a Py4JJavaError, a missing path is none
            if has_ended(error):
                raise
            what = f"table={self.table!r}" if self.table is not None else f"path={self.path!r} as format={self.format!r}"
            if "NEGATIVE_SCALE" in str(error):
                raise InputError(
                    f"Spark cannot read {what}: it has no decimal for a number as 1e30. Leave out other options than multiLine, and the text of "
                    "each record is sent as it is; or let numbers be doubles: options={'prefersDecimal': 'false'}. Nothing was sent."
                ) from error
            raise InputError(f"Spark cannot read {what}: {why(error).rstrip('.')}. {self._next_step} Nothing was sent.") from error
        return frame

    def _files(self, spark: SparkSession) -> DataFrame:
        """Return what is at the path: of JSON lines and text the bytes of the lines, of other files rows, with those that Spark could not read."""
        given = {name.lower(): str(value) for name, value in self.options.items()}
        kind = self.format.lower()
        reading = (reader(spark) if kind in _FILES else spark.read).options(**self.options)
        if given.get("mode", "").upper() == "DROPMALFORMED":
            raise InputError(
                "options: mode=DROPMALFORMED leaves out records that Spark cannot read, without a word. Leave mode out: they go to the poison "
                "sub-queue of the queue, and the others are sent. Nothing was sent."
            )
        if kind == "text" or (kind == "json" and given.keys() <= _OF_LINES):
            reading = reading if "linesep" in given else reading.option("lineSep", "\n")
            whole = given.get("wholetext", "false").lower() == "true"
            return _lines(self._load(reading, "text"), JSON_LINE if kind == "json" else TEXT_LINE, whole=whole)
        if kind == "json" and given.get("multiline", "").lower() == "true" and given.keys() <= _OF_DOCUMENTS:  # Spark reads the first one of a file
            return _lines(self._load(reading.option("wholetext", "true"), "text"), JSON_FILE, whole=True)
        if kind not in _FILES:
            return reading.format(kind).load(self.path)
        if kind not in _PARSED:
            return self._load(reading, kind)
        if given.get("encoding", given.get("charset", "utf-8")).lower().replace("-", "") == "utf8":
            self._check_utf8(spark, {name: value for name, value in self.options.items() if name.lower() in _OF_LISTS})
        marks = kind == "csv" and not given.get("nullvalue") and "emptyvalue" not in given
        defaults = {"json": {"prefersDecimal": "true"}, "xml": {"inferSchema": "false"}, "csv": {"escape": '"', "multiLine": "true"}}[kind]
        defaults = {name: value for name, value in defaults.items() if name.lower() not in given} | ({"emptyValue": _EMPTY} if marks else {})
        frame = self._parsed(spark, reading.options(**defaults), kind, given)
        return frame.replace(_EMPTY, "") if marks else frame

    def _parsed(self, spark: SparkSession, reading: DataFrameReader, kind: str, given: Mapping[str, str]) -> DataFrame:
        """Return the rows of text, and the records that Spark could not read in a column of their own."""
        frame = self._load(reading, kind)
        corrupt = given.get("columnnameofcorruptrecord", str(spark.conf.get(CORRUPT)))
        if not {*frame.columns} - {corrupt}:
            sizes = spark.read.format("binaryFile").options(**{name: each for name, each in self.options.items() if name.lower() in _OF_LISTS})
            if sizes.load(str(self.path)).where("length > 0").select("length").first() is None:
                return spark.createDataFrame([], f"{quoted(corrupt)} string")
            raise InputError(
                f"path={self.path!r} as format={kind!r}: Spark finds no row with a column there. Check that its files are whole, and the options "
                f"{dict(self.options)}. Nothing was sent."
            )
        if corrupt in frame.columns or given.get("mode", "PERMISSIVE").upper() != "PERMISSIVE":
            return frame
        if kind == "csv":  # by itself it takes the columns of one file for those of all, and cuts rows to those that are wanted
            checks = given.get("header", "false").lower() == "true" and not _named_by_spark(frame.columns)
            reading = reading.option("enforceSchema", given.get("enforceschema", str(not checks))).option("columnPruning", "false")
        return reading.format(kind).schema(frame.schema.add(corrupt, "string")).load(self.path)

    def _load(self, reading: DataFrameReader, kind: str) -> DataFrame:
        """Return files, with text in the columns that their folders make: Spark guesses types, and ``01`` and ``1.50`` lose digits."""
        from pyspark.sql.types import StringType, StructField, StructType

        frame = reading.format(kind).load(self.path)
        files, path = files_read(frame), str(self.path).removeprefix("file:").strip("/")
        _, _, below = unquote(files[0] if len(files) else "").partition(f"/{path}/")
        made = [*folders_of(below, "")]
        number = next((many for many in range(len(made), 0, -1) if made[-many:] == frame.columns[-many:]), 0)
        own = frame.schema.fields[: len(frame.columns) - number]
        columns = StructType([*own, *(StructField(name, StringType()) for name in made[len(made) - number :])])
        return frame if columns == frame.schema else reading.format(kind).schema(columns).load(self.path)

    def _check_utf8(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Raise InputError for a line that is no UTF-8: Spark's readers put U+FFFD in the place of bytes that they cannot decode."""
        from pyspark.sql import functions as f

        place = (f.col("_metadata.file_path").alias("file"), f.col("_metadata.file_block_start").alias("block"))
        lines = spark.read.options(**options).option("lineSep", "\n").text(str(self.path))
        lines = lines.select(f.is_valid_utf8("value").alias("right"), *place, f.monotonically_increasing_id().alias("at"))
        wrong = lines.where(~f.col("right")).sort("file", "block", "at").first()
        if wrong is None:
            return
        before = (f.col("block") < wrong["block"]) | ((f.col("block") == wrong["block"]) & (f.col("at") < wrong["at"]))
        number = lines.where((f.col("file") == wrong["file"]) & before).count() + 1
        raise InputError(
            f"{wrong['file']}, line {number}: it is no UTF-8, and Spark would send other characters for it. Name the encoding of the file: "
            "options={'encoding': 'ISO-8859-1'}, for example. Nothing was sent."
        )

    @property
    def _next_step(self) -> str:
        if self.table is not None:
            return "Check the name, and that Spark's session knows the catalog."
        return (
            f"Check that driver and executors reach the path, and what it holds. Spark itself reads {', '.join(FORMATS)}; other formats and file "
            "systems come with packages: name them in spark_conf of the connection, as spark.jars.packages."
        )


def _lines(frame: DataFrame, name: str, *, whole: bool) -> DataFrame:
    """Return text as bytes, which Spark keeps as they are: lines without their ends; blank ones are no JSON.

    :param whole: each is a file.
    """
    from pyspark.sql import functions as f

    text = f.col("value").cast("binary")  # its bytes: functions of text take what follows a byte that is no UTF-8 for a part of it
    if not whole:
        frame = frame.where(f.btrim("value", f.lit(" \t\r\n")) != "") if name == JSON_LINE else frame
        ends = f.substring(text, f.octet_length(text), f.lit(1)) == f.lit(b"\r")
        text = f.when(ends, f.substring(text, f.lit(1), f.octet_length(text) - 1)).otherwise(text)
    return frame.select(text.alias(name), *map(quoted, frame.columns[1:]))


def _named_by_spark(columns: Sequence[str]) -> bool:
    """Whether Spark gave a column of a CSV file its name, where the header has none, or one that it has twice."""
    return any(name == f"_c{at}" or (name.endswith(str(at)) and len(columns) > len({*columns} - {name})) for at, name in enumerate(columns))


@dataclass(frozen=True, slots=True)
class SendStage:
    """A staging folder of one send: removed when the send has ended, and emptied when a killed one left something.

    :param of: the table's files.
    :param path: of the staging folder, below the table.
    :param run: runs the Spark job.
    """

    of: Folder
    path: str
    run: Callable[[Callable[[], object]], object] = lambda job: job()

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
        given: list[_Given] = []

        def opened() -> DataFrame:
            given.append(_Given.of(frame(), mapping, now))
            return given[0].rows

        for batch in self.rows(opened, FRAME_ROWS):
            yield from alone(batch, given[0].messages, is_body=False)
        given[0].fields.check()

    def records(self, planned: Take, spark: Callable[[], SparkSession]) -> Iterator[pa.RecordBatch]:
        """Yield the records of a source, as ``Take.batches`` does, read by executors.

        :param spark: returns the session; not called where the source cannot be read there.
        Raises InputError for such a source, ExecutorError, SparkJobError.
        """
        if (frame := planned.frame) is None:
            raise InputError("on_spark=True: Spark's executors cannot read this source; Kafka is one that they can. Leave it out. Nothing was sent.")
        yield from self.rows(lambda: frame(spark()), BATCH_ROWS, ours=True)

    def rows(self, frame: Callable[[], DataFrame], size: int, *, ours: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a DataFrame, written where its tasks run.

        :param size: of a batch, at most.
        :param ours: the tasks run code of this package.
        Raises what ``batches`` raises.
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
                yield from _read(self._written_apart(rows) if apart else self._written(rows), size)
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
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        written = Observation()
        with _named_errors(), types_kept(messages.sparkSession):
            counted = messages.observe(written, f.count(f.lit(1)).alias("rows"))
            self.run(lambda: counted.write.parquet(local_uri(str(self.folder))))
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
        paths: list[Path] = []
        with _named_errors():
            self.run(lambda: paths.extend(written_by_tasks(messages, cast("BucketFolder", self.of), self.path)))
        return paths


@contextmanager
def _named_errors() -> Iterator[None]:
    """Raise InputError or SparkJobError for what a job that writes messages fails with; what the driver cannot fetch is no failure of the job."""
    try:
        yield
    except (FileNotFoundError, PoisonError):
        raise
    except Exception as error:
        if (found := _OTHER_HEADER.search(str(error))) is not None:
            raise InputError(
                f"{found[1]}: its header names other columns than that of the first file, or in another order. Send such files apart, or let "
                "Spark take the columns by their order: options={'enforceSchema': 'true'}. Nothing was sent."
            ) from error
        then = _NEXT if _FAILED_READ in str(error) else ""
        raise SparkJobError(f"The Spark job that writes the messages failed: {why(error)}\nNothing was sent.{then}") from error


_FAILED_READ = "FAILED_READ_FILE"
_NEXT = (
    " Repair that file or move it away; or receive with source=Files(...): a file that cannot be read is one message there, and the rows of all "
    "others are taken."
)
_OTHER_HEADER = re.compile(r"CSV header does not conform to the schema.*?CSV file: (\S+)", re.DOTALL)


# Rows as messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """A DataFrame that is sent.

    :param rows: its columns that are needed, numbered, of types that Parquet has.
    :param columns: their names; those that are JSON say so.
    :param corrupt: the one in which Spark's readers put records that they could not read.
    """

    rows: DataFrame
    columns: tuple[pa.Field[Any], ...]
    mapping: ColumnMapping
    now: datetime
    corrupt: str | None
    fields: MappedFields

    @classmethod
    def of(cls, frame: DataFrame, mapping: ColumnMapping, now: datetime) -> _Given:
        """Raises InputError for a mapping that does not fit."""
        corrupt, lines = None, frame.columns[0] in {JSON_LINE, JSON_FILE, TEXT_LINE}
        if not lines:
            mapping.check(frame.columns)
            _check_named_once(frame, mapping)
            corrupt = _corrupt_column(frame, mapping)
        needed = [name for name in frame.columns if lines or mapping.body is None or name in mapping.columns() or name == corrupt]
        handed = [_handed(frame[quoted(name)], frame.schema[name].dataType) for name in needed]
        rows = frame.select(*[column.alias(str(number)) for number, (column, _) in enumerate(handed)])
        columns = [pa.field(name, pa.null(), metadata=JSON_TEXT if is_json else None) for name, (_, is_json) in zip(needed, handed, strict=True)]
        given = cls(rows, tuple(columns), mapping, now, corrupt, MappedFields(mapping))
        given.messages(pa.RecordBatch.from_pylist([], arrow_schema(rows)))  # what does not fit is refused before a job runs
        return given

    def messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as messages, with a column ``ERROR``. Raises InputError for what concerns every row."""
        fields = [each.with_type(kind) for each, kind in zip(self.columns, batch.schema.types, strict=True)]
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
        if fields[0].name in {JSON_LINE, JSON_FILE}:
            records = _of_json(rows if fields[0].name == JSON_LINE else _documents(rows))
            self.fields.see(records)
            return with_fields(records, self.mapping, self.now)
        if fields[0].name == TEXT_LINE:
            lines = pa.record_batch({"body": rows.column(0), ERROR: pa.nulls(rows.num_rows, pa.string())})
            return of_text(lines, self.mapping, self.now, rows.select(rows.schema.names[1:]) if rows.num_columns > 1 else None)
        if self.corrupt is None:
            return to_messages(rows, self.mapping, self.now)
        unread = rows.column(self.corrupt)
        made = to_messages(rows.drop_columns([self.corrupt]), self.mapping, self.now)
        error = pc.if_else(pc.is_valid(unread), f"Spark could not read it: it is in the column {self.corrupt!r}", made.column(ERROR))
        at = made.schema.get_field_index
        return made.set_column(at("body"), "body", pc.coalesce(unread.cast(pa.binary()), made.column("body"))).set_column(at(ERROR), ERROR, error)


def _corrupt_column(frame: DataFrame, mapping: ColumnMapping) -> str | None:
    """Return the column of records that Spark's readers could not read; one that is mapped is the author's."""
    name = str(frame.sparkSession.conf.get(CORRUPT))
    there = name in frame.columns and name not in mapping.columns() and frame.schema[name].dataType.simpleString() == "string"
    return name if there else None


def _documents(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the documents of files, byte for byte, as lines of JSON are: of an array its elements. What is no JSON of a file is one, to its end."""
    found = [(at, each) for at, content in enumerate(rows.column(0).to_pylist()) for each in documents(cast("bytes", content))]
    places = pa.array([at for at, _ in found], pa.int64())
    folders = [rows.column(number).take(places) for number in range(1, rows.num_columns)]
    return pa.RecordBatch.from_arrays([pa.array([each for _, each in found], pa.binary()), *folders], names=rows.schema.names)


def _of_json(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return lines of JSON as records, byte for byte; names of folders (``day=2026-11-25``) become fields of those that have none of the name.

    :param rows: the column ``JSON_LINE``, and a column of text for each folder.
    """
    folders = rows.schema.names[1:]
    bodies: list[bytes] = []
    errors: list[str | None] = []
    for line, *values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        body, error = cast("bytes", line), None
        try:
            if folders:
                if isinstance(fields := json_text.tree(body), json_text.Pairs):
                    own = {name for name, _ in fields}
                    body = json_text.patched(body, {name: value for name, value in zip(folders, values, strict=True) if name not in own})
                else:
                    error = f"it is no JSON object, which could have {', '.join(folders)} of its folder"
            else:
                error = (why := json_text.syntax_error(body)) and f"it is no JSON: {why}"
        except json_text.JsonError as wrong:
            error = f"it is no JSON: {wrong}"
        bodies.append(body)
        errors.append(error)
    return pa.record_batch({"body": pa.array(bodies, pa.binary()), ERROR: pa.array(errors, pa.string())})


def _handed(column: Column, kind: DataType) -> tuple[Column, bool]:
    """Return a column as one that Parquet has, and whether it is JSON as text then."""
    from pyspark.sql import functions as f

    if _only_json(kind):
        return f.to_json(
            column, {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": _MICROS + "XXX", "timestampNTZFormat": _MICROS}
        ), True
    plain = _plain(kind)
    return (column if plain == kind else column.cast(plain)), False


_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"


def _only_json(kind: DataType) -> bool:
    """Whether a type has values that only Spark can read, or fields that Parquet cannot tell apart."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    match kind:
        case VariantType():
            return True
        case StructType():
            return len({name.lower() for name in kind.names}) < len(kind.names) or any(_only_json(each.dataType) for each in kind.fields)
        case ArrayType():
            return _only_json(kind.elementType)
        case MapType():
            return _only_json(kind.keyType) or _only_json(kind.valueType)
        case _:
            return False


def _plain(kind: DataType) -> DataType:
    """Return the type with text where Parquet has none: intervals, and what is always null."""
    from pyspark.sql.types import AnsiIntervalType, ArrayType, CalendarIntervalType, MapType, NullType, StringType, StructField, StructType

    match kind:
        case AnsiIntervalType() | CalendarIntervalType() | NullType():
            return StringType()
        case StructType():
            return StructType([StructField(each.name, _plain(each.dataType), each.nullable) for each in kind.fields])
        case ArrayType():
            return ArrayType(_plain(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_plain(kind.keyType), _plain(kind.valueType), kind.valueContainsNull)
        case _:
            return kind


def _check_named_once(frame: DataFrame, mapping: ColumnMapping) -> None:
    """Raise InputError when a column that is sent could be one of two; Spark distinguishes ``a`` from ``A`` only where it is configured to."""
    exact = str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"
    sent = frame.columns if mapping.body is None else mapping.columns()
    wanted = {name if exact else name.lower() for name in sent}
    check_named_once([name for name in (name if exact else name.lower() for name in frame.columns) if name in wanted], "the DataFrame")
    for column in frame.schema.fields:
        if (column.name if exact else column.name.lower()) in wanted and (twice := _field_twice(column.dataType)) is not None:
            raise InputError(f"the DataFrame: two fields in column {column.name!r} are named {twice!r}. Rename one of them. Nothing was sent.")


def _field_twice(kind: DataType) -> str | None:
    """Return a name that two fields of one struct in a type have; None: there is none."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            twice = next((name for name in kind.names if kind.names.count(name) > 1), None)
            return twice or next((found for each in kind.fields if (found := _field_twice(each.dataType)) is not None), None)
        case ArrayType():
            return _field_twice(kind.elementType)
        case MapType():
            return _field_twice(kind.keyType) or _field_twice(kind.valueType)
        case _:
            return None


def _read(paths: Sequence[Path], size: int) -> Iterator[pa.RecordBatch]:

    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from streamed(file, size)
