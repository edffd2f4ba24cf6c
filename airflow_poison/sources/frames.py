"""Rows that Spark reads: of a job's own DataFrame or micro-batch, which are a source; and of text files, which executors read by ``readers``.

Spark's own readers of CSV and JSON are not used: they drop lines of blanks and text behind a value, cut cells at a line end, take one quote for
another, decode bytes that are no UTF-8, round digits, and change with the columns that a plan needs. So a row is what a send of its file makes of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from airflow_poison.sources.readers import named_columns, records
from airflow_poison.sources.rows import like_columns, to_messages
from airflow_poison.sources.source import ERROR, NO_BODY, RECORD, UNFIT, NotOnSparkError, Reached, Source, Take, Then
from airflow_poison.sources.text_lines import Lines, Part, cuts, one_line, opened, parts, unpacked
from airflow_poison.store.objects import side_by_side
from airflow_poison.values.ddl import ddl_type, parse_ddl, quoted, united
from airflow_poison.values.errors import SourceError
from airflow_poison.values.libraries import pa
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import message_schema
from airflow_poison.values.texts import is_utf8, literal_path, local_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.sources.readers import Layout
    from airflow_poison.sources.source import Position

    _Unit = tuple[str, str, Layout, tuple[int, int, int] | None]

_TASKS, _CORES = 200, 16
"""Tasks at most; and how many run at the same time where Spark does not say it."""
_PART, _LEAST = 128 << 20, 4 << 20
"""Bytes that one task reads, about, at most and at least: Spark's own figures."""
_LEFT_OUT = re.compile(r"_[^=]*|\..*|.*\._COPYING_", re.DOTALL)
"""Names of files that Spark's readers leave out, in silence, where they are named, too."""
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class _Group(NamedTuple):
    """Files that Spark reads together, by a function of their paths."""

    frame: DataFrame
    paths: list[str]
    read: Callable[[list[str]], DataFrame]


class FileThere(NamedTuple):
    """A file of a source.

    :param name: as users see it.
    :param path: as Spark names it; of an object its URI.
    :param folders: the columns that the folders above it make, each with one text, or null.
    """

    name: str
    path: str
    folders: Mapping[str, str | None]


@dataclass(frozen=True)
class Frame(Source):
    """A DataFrame that is given.

    :param name: what it is, for people.
    :param fixed: it has the same rows in each run with its key.
    """

    frame: DataFrame
    name: str = "a DataFrame"
    fixed: bool = False

    columns = True

    def plan(self, position: Position, *, limit: int | None) -> Take:
        """Return its rows."""
        del limit
        at: dict[str, Any] = dict(position.at)

        return Take(what=self.name, batches=lambda: iter(()), reached=lambda: Reached(at), rows=lambda _spark, _then: self.frame, alone=True)

    def number(self) -> int | None:
        """Return how many rows it has now; None where Spark cannot read them any more."""
        try:
            return self.frame.count()
        except Exception:  # noqa: BLE001  (Spark raises what it likes for what is gone)
            return None


def reader(spark: SparkSession) -> DataFrameReader:
    """Return Spark's reader, which fails for a file that is damaged or gone; settings of the session do not change that.

    Pages of Parquet have checksums where their writer wrote some, as Spark does: values that have changed on a disk are no values.
    """
    options = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "parquet.page.verify-checksum.enabled": "true"}
    return spark.read.options(**options)


def folders_of(path: str, base: str) -> Mapping[str, str | None]:
    """Return the columns that the folders of a file make below a base, as Hive and Spark name them: ``day=2026-11-29``."""
    found: dict[str, str | None] = {}
    for folder in reversed(path.removeprefix(base).split("/")[:-1]):
        name, sign, value = map(_unescaped, folder.partition("="))
        if sign and name:
            found[name] = None if value == _NO_PARTITION else value
        elif found:
            break
    return dict(reversed(found.items()))


def _unescaped(text: str) -> str:
    plain = re.sub("%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), text)
    return plain if is_utf8(plain) else quote(plain.encode(errors="surrogateescape"))  # as in the name of the file that users see


def with_folders(rows: pa.RecordBatch, folders: Mapping[str, str | None]) -> pa.RecordBatch:
    """Return rows of a file with the columns that its folders make, where it has none of such a name itself."""
    there = {name.lower() for name in rows.schema.names}
    for name, value in folders.items():
        if ERROR not in there and name.lower() not in there:
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return rows


def is_left_out(path: str) -> bool:
    """Whether Spark's readers leave a file out, or refuse its name, whatever is in it.

    A colon is refused on a file system with checksums, as this machine's, and beside signs of patterns.
    """
    colon = ":" in path.rpartition("://")[2] and ("://" not in path or literal_path(path) != path)
    return colon or _LEFT_OUT.fullmatch(path.rpartition("/")[2]) is not None


def with_record(columns: StructType) -> StructType:
    """Return columns with ``RECORD`` and ``UNFIT`` behind them."""
    from pyspark.sql.types import BinaryType, MapType, StringType, StructType

    record = StructType().add("message_id", "string").add("group_id", "string").add("body", BinaryType())
    record = record.add("properties", MapType(StringType(), StringType())).add(NO_BODY, "boolean").add(ERROR, "string")
    return StructType([*columns.fields]).add(RECORD, record).add(UNFIT, "boolean")


def records_of(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return records as the column ``RECORD``."""
    kinds = {name: message_schema().field(name).type for name in ("message_id", "group_id", "body", "properties")}
    kinds |= {NO_BODY: pa.bool_(), ERROR: pa.string()}
    parts = [batch.column(name).cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(parts, names=list(kinds))


def of_files(spark: SparkSession, files: Sequence[FileThere], layout: Layout, columns: Sequence[str], then: Then | None) -> DataFrame:
    """Return what files hold, which executors read: each by one task, or a large one in parts, where each line end in it ends a record.

    :param files: the largest first; Spark gets objects whole.
    :param columns: of CSV, all text.
    :param then: what is made of bodies instead: of rows with columns, those that a send makes.
    """
    names, folders = {file.path: file.name for file in files}, {file.name: file.folders for file in files}
    rows = None if then is None or layout.format != "json" else then.of_bodies
    size, tasks = _shares(spark, files)
    units = [*chain.from_iterable(side_by_side(lambda file: _units(file.name, file.path, layout, size, counted=rows is None), files))]
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
        found = (
            with_folders(batch, folders[name])
            for given in batches
            for name, how, content in opened(given)
            for batch in records(name, how, content, rows)
        )
        yield from _texts(found, columns) if then is None else _made(found, then, at_once=rows is not None)

    if "://" in files[0].path:
        there = reader(spark).format("binaryFile").load([literal_path(uri) for uri in names]).select("path", "content")
    else:
        there = spark.range(0, tasks, 1, tasks)
    return there.mapInArrow(read, with_record(_columns(columns)) if then is None else then.columns)


def _shares(spark: SparkSession, files: Sequence[FileThere]) -> tuple[int, int]:
    """Return how many bytes of files a task reads, about, and how many tasks there are at most."""
    context: Any = getattr(spark, "sparkContext", None)  # Spark Connect has none, and does not say how many cores there are
    cores, total = int(context.defaultParallelism) if context is not None else _CORES, 0
    for file in files:
        with suppress(OSError):  # the task that reads it says so; an object is a task's own
            total += Path(file.path).stat().st_size
    size = min(_PART, max(_LEAST, total // cores))
    return size, min(_TASKS, max(cores, -(-total // size)))


def _units(name: str, path: str, layout: Layout, size: int, *, counted: bool) -> list[_Unit]:
    """Return what tasks read of a file: its name and path, the layout, and the part; None: all of it.

    :param size: of a part, about.
    :param counted: whether the lines before a part have to be known.
    """
    whole: list[_Unit] = [(name, path, layout, None)]
    is_csv, columns = layout.format == "csv", tuple[str, ...]()
    if "://" in path or layout.encoding != "utf-8" or layout.format == "parquet":
        return whole
    found = list[tuple[int, int, int]]()
    with suppress(OSError):  # the task that reads it says so
        if Path(path).stat().st_size > size:
            columns = named_columns(layout, Path(path)) if is_csv else ()
            if layout.format != "json" or not _is_document(Path(path)):
                found = parts(Path(path), size, b'"' if is_csv else b"") if counted else cuts(Path(path), size)
    line = layout.header if type(layout.header) is int else 0
    if len(found) < 2 or (is_csv and (not columns or found[1][2] < line)):  # noqa: PLR2004  (one part is the file)
        return whole
    later = replace(layout, header=columns) if is_csv else layout
    return [(name, path, later if part[2] else layout, part) for part in found]


def _is_document(path: Path) -> bool:
    with opened(path) as content:
        return Lines(content, "utf-8", returns=None).begins_document()


class Reading(NamedTuple):
    """How files with columns of their own are read.

    :param form: ``parquet``, ``orc`` or ``avro``.
    :param base: a folder above them all.
    :param here: what objects hold that no task of Spark reads, by their paths.
    :param columns: returns the columns of a file that other readers of this package read, as DDL.
    :param unread: makes a record of a file that Spark cannot read, for a reason. None: other readers of this package read such files.
    :param checked: each file was read to its end before: one that cannot be is a record.
    """

    form: str
    base: str
    here: Mapping[str, Iterable[pa.RecordBatch]]
    columns: Callable[[FileThere], str]
    unread: Callable[[FileThere, str], Iterable[pa.RecordBatch]] | None = None
    checked: bool = False


def of_typed(spark: SparkSession, files: Sequence[FileThere], layout: Layout, then: Then | None, reading: Reading) -> DataFrame:
    """Return the rows of Parquet, ORC or Avro files as Spark reads them, with types that hold the values of all files.

    What Spark does not read so is records, as a send makes them: files that are damaged, with types that Spark does not have, or that have no type in
    common with the other files, and with names that its readers leave out.

    :param then: its columns are those that are known of such rows. Raises NotOnSparkError where no file is left, SourceError.
    """
    from pyspark.sql import functions as f

    here, unread = reading.here, reading.unread
    apart = {file.path: "Spark's readers leave it out" for file in files if file.path in here or is_left_out(file.path)}
    there = [file for file in files if file.path not in apart]
    groups = _of_avro(spark, there, apart) if reading.form == "avro" else _grouped(spark, there, reading, apart)
    if reading.checked:
        groups = [whole for group in groups for whole in _whole(group, apart)]
    if apart:
        spark.range(1).count()  # else Spark is gone, and no file is damaged
    known = "" if then is None else type(then.columns)([field for field in then.columns if field.name not in {RECORD, UNFIT}]).toDDL()
    others_read = [file for file in files if file.path in apart] if groups and then is None and unread is None else ()
    rows, odd = _united(groups, known, [*filter(None, map(reading.columns, others_read))])
    if rows is None:
        path, why = next(iter(apart.items()))
        raise NotOnSparkError(f"Spark reads none of its files. {next(file.name for file in files if file.path == path)}: {why}")
    if not apart and not odd:
        return rows
    record = with_record(_columns(()))
    make = Then(_as_records, record, known=parse_ddl(known or rows.schema.toNullable().toDDL()))
    rows = rows.select("*", f.lit(None).cast(record.fields[0].dataType).alias(RECORD), f.expr("false").alias(UNFIT))
    others = [rows, *(frame.mapInArrow(lambda batches: _made(batches, make, at_once=False), record) for frame in odd)]
    missing = [file for file in files if file.path in apart and file.path not in here]
    if missing and unread is None:
        others.append(of_files(spark, missing, layout, (), make))
    made = here.values() if unread is None else (unread(file, apart[file.path]) for file in missing)
    found = [*_made(chain.from_iterable(made), make, at_once=False)]
    if unread is not None:
        _check_damaged(spark, missing, reading)
    if found:
        others.append(spark.createDataFrame(pa.Table.from_batches(found), record))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), others)


def _check_damaged(spark: SparkSession, files: Sequence[FileThere], reading: Reading) -> None:
    """Raise SourceError for a file that Spark cannot open, and for one that it reads after all: something else was in its way."""
    for file in files:
        try:
            reader(spark).format("text").load(literal_path(file.path)).limit(1).collect()
        except Exception as error:
            raise SourceError(f"Spark cannot read {file.name}: {one_line(error)}. Nothing was taken; run the task again.") from error
        read = partial(_read, spark, reading.form, reading.base, ())
        if (group := _readable(read, [file.path], {})) and (not reading.checked or _whole(group[0], {})):
            raise SourceError(f"Spark could not read {file.name} before, and can now. Nothing was taken; run the task again.")


def _grouped(spark: SparkSession, files: Sequence[FileThere], reading: Reading, apart: dict[str, str]) -> list[_Group]:
    """Return files that can be read together; add those that cannot be read at all to ``apart``, with the reason. Raises NotOnSparkError."""
    groups = list[_Group]()
    for columns, paths in _by_columns(files).items():
        groups += _readable(partial(_read, spark, reading.form, reading.base, columns), sorted(paths), apart)
    return groups


def _whole(group: _Group, apart: dict[str, str]) -> list[_Group]:
    """Return the files of a group that can be read to their end, together; add the others to ``apart``, with the reason."""

    def checked(paths: list[str]) -> DataFrame:
        found = group.read(paths)
        found.write.format("noop").mode("overwrite").save()
        return found

    found = _readable(checked, group.paths, apart)
    good = [path for each in found for path in each.paths]
    return found if len(found) < 2 else [_Group(group.read(good), good, group.read)]  # noqa: PLR2004  (they are together)


def _united(groups: Sequence[_Group], known: str, apart: Sequence[str]) -> tuple[DataFrame | None, list[DataFrame]]:
    """Return the rows of groups of files, with types that hold the values of all; and apart the rows of groups whose types do not go with these.

    :param known: columns, as DDL: a group with their types is before others, and one of more files before one of fewer.
    :param apart: the columns of files that are in no group. They are columns of all rows, as those of groups are: no message has a value less.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    def differing(ddl: str, other: str) -> list[str]:
        differ = list[str]()
        if other:
            united(ddl, other, differ)
        return differ

    typed, files_of = [(group.frame.schema.toNullable().toDDL(), group.frame, len(group.paths)) for group in groups], Counter[str]()
    for ddl, _, number in typed:
        files_of[ddl] += number
    kept: list[DataFrame] = []
    odd: list[DataFrame] = []
    schema = ""
    for _, given, _ in sorted(typed, key=lambda group: (bool(differing(group[0], known)), -files_of[group[0]])):
        frame = _bytes_as_in(given, schema)
        ddl = frame.schema.toNullable().toDDL()
        if differing(ddl, schema):
            odd.append(frame)
        else:
            schema = united(ddl, schema or ddl)
            kept.append(frame)
    if not kept:
        return None, odd
    for ddl in (*apart, *(frame.schema.toNullable().toDDL() for frame in odd)):
        schema = united(schema, united(ddl, schema))  # with the names and types of the others
    common = from_arrow_schema(parse_ddl(schema), prefer_timestamp_ntz=True).toNullable()  # DDL is read by a setting of the session
    if len(kept) > 1 or common != kept[0].schema.toNullable():
        kept = [frame.to(common) for frame in kept]
    return reduce(lambda one, other: one.unionByName(other), kept), odd


def _bytes_as_in(rows: DataFrame, schema: str) -> DataFrame:
    """Return rows with texts as bytes, or bytes as texts, where other files have these: programs that do not mark texts write bytes."""
    from pyspark.sql import functions as f

    kinds = {field.name.lower(): ddl_type(field.type) for field in parse_ddl(schema)} if schema else {}
    casts = {name: kinds[name.lower()] for name, kind in rows.dtypes if {kind, kinds.get(name.lower())} == {"string", "binary"}}
    return rows.withColumns({name: f.col(quoted(name)).cast(kind) for name, kind in casts.items()}) if casts else rows


def _readable(read: Callable[[list[str]], DataFrame], paths: list[str], apart: dict[str, str]) -> list[_Group]:
    """Return rows of files that can be read together; add those that cannot be read at all to ``apart``, with the reason. Raises NotOnSparkError."""
    try:
        return [_Group(read(paths), paths, read)]
    except NotOnSparkError:
        raise
    except Exception as error:  # noqa: BLE001  (Spark raises what it likes for what is in a file)
        half = len(paths) // 2
        if not half:
            apart[paths[0]] = one_line(error)
            return []
        return [*_readable(read, paths[:half], apart), *_readable(read, paths[half:], apart)]


def _read(spark: SparkSession, form: str, base: str, columns: Sequence[str], paths: Sequence[str]) -> DataFrame:
    """Return files with equal names of folders as Spark reads them. Raises NotOnSparkError, and what Spark raises.

    :param columns: that folders make, as text: what Spark guesses of them may change from one day to the next, and ``01`` is no 1.
    """
    found = reader(spark).option("mergeSchema", "true").format(form).load([*map(literal_path, paths)])
    if len(files_read(found)) < len(paths):
        raise NotOnSparkError("Spark leaves some of its files out")
    there = {name.lower() for name in found.columns}
    new = [name for name in columns if name.lower() not in there]
    if not new:
        return found
    if len(new) < len(columns):
        raise NotOnSparkError(f"its files have some of the columns that their folders make: {', '.join(columns)}")
    schema = reduce(lambda made, name: made.add(name, "string"), new, found.schema)
    return reader(spark).schema(schema).option("basePath", local_uri(base)).format(form).load([*map(literal_path, paths)])


def files_read(frame: DataFrame) -> Sequence[str]:
    """Return the URIs of the files that a frame reads; Py4J brings them here one by one, as they are asked for."""
    java: Any = getattr(frame, "_jdf", None)
    return frame.inputFiles() if java is None else java.inputFiles()  # an array of Java


def _by_columns(files: Iterable[FileThere]) -> Mapping[tuple[str, ...], list[str]]:
    """Return paths by the columns that their folders make."""
    found = defaultdict[tuple[str, ...], list[str]](list)
    for file in files:
        found[tuple(file.folders)].append(file.path)
    return found


def _of_avro(spark: SparkSession, files: Sequence[FileThere], apart: dict[str, str]) -> list[_Group]:
    """Return Avro files by their schemas, which may differ: Spark reads all that it is given by the schema of one; add others to ``apart``."""
    from pyspark.sql import functions as f

    def read(paths: list[str], cells: Sequence[tuple[str, str | None]] = ()) -> DataFrame:
        rows = reader(spark).format("avro").load([*map(literal_path, paths)])
        if len(files_read(rows)) < len(paths):
            raise NotOnSparkError("Spark leaves some of its files out")
        return rows.withColumns({name: f.lit(value).cast("string") for name, value in cells})

    found = defaultdict[tuple[str, tuple[tuple[str, str | None], ...]], list[str]](list)
    for file in files:
        for group in _readable(read, [file.path], apart):
            own = {each.lower() for each in group.frame.columns}
            found[group.frame.schema.json(), tuple(each for each in file.folders.items() if each[0].lower() not in own)].append(file.path)
    return [_Group(each(paths), paths, each) for (_, cells), paths in found.items() for each in (partial(read, cells=cells),)]


def _as_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records as none of them is a row."""
    for batch in batches:
        yield pa.record_batch([records_of(batch), pa.repeat(pa.scalar(True), batch.num_rows)], names=[RECORD, UNFIT])  # noqa: FBT003  (Arrow's)


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
            rows = batch if then.known is None else like_columns(batch, then.known)
            yield from then.make([to_messages(rows, ColumnMapping(), datetime.now(UTC))])


def _texts(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:

    for batch in batches:
        wrong, nothing = ERROR in batch.schema.names, pa.nulls(batch.num_rows, pa.string())
        cells = [nothing if wrong or name not in batch.schema.names else batch.column(name) for name in columns]
        record = records_of(batch)
        if not wrong:
            record = pa.nulls(batch.num_rows, record.type)
        yield pa.record_batch([*cells, record, pa.repeat(pa.scalar(wrong), batch.num_rows)], names=[*columns, RECORD, UNFIT])
