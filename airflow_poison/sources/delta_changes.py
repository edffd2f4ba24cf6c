"""``DeltaChanges``: what is added to a Delta table, or its change data feed, version by version.

Versions of a Delta table as its log has them: which files each one adds, removes or keeps as changes, and the rows of these files.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

from airflow_poison.outputs.table_rules import TYPE_OF_TEXT
from airflow_poison.sources.frames import folders_of, reader
from airflow_poison.sources.readers import check_calendar, malformed
from airflow_poison.sources.source import ERROR, NotOnSparkError, Reached, Source, Take
from airflow_poison.sources.text_lines import BYTES
from airflow_poison.store.entries import actions
from airflow_poison.store.row_groups import streamed
from airflow_poison.values.clock import days_of, micros_of, text_of_days, text_of_micros
from airflow_poison.values.ddl import ddl_of_bodies, quoted, united
from airflow_poison.values.errors import InputError, PoisonError, SettingError, SourceError
from airflow_poison.values.libraries import pa, pq
from airflow_poison.values.texts import counted, first_line, literal_path, local_uri, on_spark, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable
    from deltalake import Schema as TableSchema
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.schemas import Schema
    from airflow_poison.sources.source import JsonValue, Position, Then

_log = logging.getLogger(__name__)
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
_BATCH = 10_000
_IN_FOLDERS = frozenset({"string", "byte", "short", "integer", "long", "date", "boolean"})
"""Types of partitions whose values Spark reads from names of folders as Delta's log has them."""
_FEED, _MAPPING = "delta.enableChangeDataFeed", "delta.columnMapping.mode"
_LOG = "_delta_log"
_CHAR = re.compile(r"char\((\d+)\)")
_ESCAPED = re.compile(r"(\\u00[0-9a-fA-F]{2})+")
_VECTORS = "deletionVectors"
_DELTA_RS = "delta-rs"
_FEATURES = frozenset({_VECTORS, "columnMapping", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables whose rows are read here; of files with deletion vectors none."""


class DataFile(NamedTuple):
    """A file of a version.

    :param path: below the table.
    :param partition: the values of its partition columns, as text.
    :param change: what its rows are: inserted, deleted. None: the file itself says it for each.
    :param vector: some of its rows are deleted by a deletion vector.
    """

    path: str
    partition: Mapping[str, str | None]
    change: str | None
    vector: bool = False


class _EmptyError(SourceError):
    """A version has no entries."""


class Version(NamedTuple):
    """What a commit did.

    :param at: its time, milliseconds since 1970.
    :param operation: its name, as its writer calls it.
    :param added: files whose rows are new. ``removed``: whose rows are gone. ``changes``: of the change data feed.
    :param feed: whether the feed is on from here on; None: it stays as it was.
    :param columns: of the table from here on; None: they stay as they were.
    """

    number: int
    at: int
    operation: str
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]
    feed: bool | None
    columns: pa.Schema | None = None


@dataclass(frozen=True)
class Versions:
    """The versions of a Delta table. Every method raises SourceError for what cannot be read.

    :param uri: of the table.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def newest(self) -> DeltaTable:
        """The table as it is now."""
        table = self._opened(None)
        mode = table.metadata().configuration.get(_MAPPING) or "none"
        if mode != "none":
            raise SourceError(
                f"The Delta table {self.uri} has {_MAPPING}={mode!r}: its files name columns otherwise than the table does, which cannot be read "
                "here. Copy what is new into a table without column mapping, or read the table with Spark and send a DataFrame. Nothing was sent."
            )
        return table

    @property
    def table_id(self) -> str:
        """The identity of the table among others at the same place."""
        return str(self.newest.metadata().id)

    @property
    def last(self) -> int:
        """The newest version."""
        return int(self.newest.version())

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the newest version."""
        return _columns_of(self.newest.schema())

    def has_feed(self, number: int) -> bool:
        """Say whether the change data feed was on when a version had been written."""
        return bool((self._opened(number).metadata().configuration.get(_FEED) or "").lower() == "true")

    def snapshot(self, number: int) -> Version:
        """Return a version as if one commit had added all that is in it."""
        table = self._opened(number)
        found = pa.table(table.get_add_actions()).select(["path", "modification_time"]).to_pylist()  # not their values, which Python need not have
        with self._named(f"version {number}"):
            vectors = _VECTORS in (table.protocol().reader_features or ()) and pa.table(table.deletion_vectors()).num_rows > 0
        keys = sorted(found, key=lambda each: (each["modification_time"], each["path"]))
        texts = {each["path"]: each["partitionValues"] for each in self._texts_of(table)} if table.metadata().partition_columns else {}
        added = tuple(DataFile(unquote(each["path"]), texts.get(each["path"], {}), "insert", vectors) for each in keys)
        return Version(number, self._commit_time(number), "SNAPSHOT", added, (), (), None)

    def read(self, number: int) -> Version:
        """Return what a commit did."""
        from deltalake import Schema

        name = f"{_LOG}/{number:020d}.json"
        with self._named(f"version {number}"):
            try:
                with self._files.open_input_stream(name) as content:
                    found = defaultdict[str, list[dict[str, Any]]](list)
                    for kind, what in actions(content.read()):
                        found[kind].append(what)
            except FileNotFoundError as error:
                raise SourceError(self._gone(number)) from error
        if not found:
            raise _EmptyError(
                f"Version {number} of the Delta table {self.uri} has no entries: its writer has not finished, or a disk has lost what was written. "
                "Run the task again; if that stays so, restore the file of its log. Nothing was sent."
            )
        info = next(iter(found["commitInfo"]), {})
        if str(info.get("engineInfo", "")).startswith(_DELTA_RS):
            for each in (*found["add"], *found["remove"], *found["cdc"]):
                each["partitionValues"] = self._zoned(each.get("partitionValues"))
        feeds = [each.get("configuration", {}).get(_FEED, "false").lower() == "true" for each in found["metaData"]]
        columns = [_columns_of(Schema.from_json(each["schemaString"])) for each in found["metaData"]]
        return Version(
            number,
            int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
            str(info.get("operation") or "an unnamed operation"),
            self._of(found, "add", "insert"),
            self._of(found, "remove", "delete"),
            self._of(found, "cdc", None),
            feeds[-1] if feeds else None,
            columns[-1] if columns else None,
        )

    def rows(self, of: Version, file: DataFile, *, changes: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with the columns of the newest version, and those that an overwrite has removed since.

        Of one that is damaged, those before the break, and then a malformed record.

        :param changes: with the three columns of the change data feed.
        """
        self._refuse(of, file)
        if ERROR in self.schema.names:
            raise SourceError(f"The Delta table {self.uri} has a column {ERROR!r}, a name of this package's own. Rename it. Nothing was sent.")
        with self._named(f"{file.path} of version {of.number}"):
            for batch in self._stored(of, file):
                if ERROR in batch.schema.names:
                    yield batch
                    continue
                columns = {name.name: self._column(batch, file, name) for name in self.schema}
                columns |= {name: batch.column(name) for name in batch.schema.names if name not in columns and name != CHANGE_TYPE}
                if changes:
                    columns |= _feed_columns(batch, of, file)
                yield pa.record_batch(list(columns.values()), names=list(columns))

    def _stored(self, of: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a file has, and a malformed record where they end at a damage. Raises SourceError for one that is gone."""
        count = 0
        with self._opened_file(of, file) as content:
            try:
                for batch in _decoded(content):
                    count += batch.num_rows
                    yield batch
            except Exception as error:  # noqa: BLE001  (libraries raise what they like for what is in a file)
                damage = first_line(error)
            else:
                return
        with self._opened_file(of, file) as content:  # where it cannot be read by its bytes, either, it is not damaged
            beginning = content.read(BYTES)
            while content.read(1 << 20):
                pass
        with self._opened_file(of, file) as content, suppress(Exception):
            for _ in _decoded(content):
                pass
            damage = ""
        name = f"{self.uri}/{file.path}"
        if not damage:
            raise SourceError(f"{name} could not be read before, and can now. Nothing was sent; run the task again.")
        before = f" {counted(count, 'row')} before that {'was' if count == 1 else 'were'} taken." if count else ""
        restored = "When it is mended, a backfill of the version that added it takes its rows"
        yield malformed(name, beginning, f"{name} cannot be read: {damage}.{before} {restored}")

    def check(self, of: Version, files: Iterable[DataFile]) -> None:
        """Raise SourceError for a file whose rows cannot be read, as far as its name and a look at this machine say."""
        for file in files:
            self._refuse(of, file)
            if "://" not in self.uri and not Path(self.uri, file.path).exists():
                raise SourceError(self._vacuumed(of, file))

    def check_columns(self, versions: Sequence[Version]) -> None:
        """Raise NotOnSparkError for versions with values that the newest columns do not have: by these Spark reads all files."""
        known = self.schema
        for version in versions:
            if version.columns is not None or (version is versions[0] and version.number < self.last):
                known = version.columns or _columns_of(self._opened(version.number).schema())
            for column in known if version.added else ():
                at = self.schema.get_field_index(column.name)
                if at < 0 or not _holds(self.schema.field(at).type, column.type):
                    raise NotOnSparkError(
                        f"its column {column.name!r} has had values, in version {version.number}, that the newest version has no type for"
                    )

    def frame(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of files as Spark reads them, with the columns of the newest version."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        schema, partitions = from_arrow_schema(self.schema, prefer_timestamp_ntz=True).toNullable(), self.newest.metadata().partition_columns
        stored = StructType([field for field in schema.fields if field.name not in partitions])
        found: DataFrame | None = None
        padded = _lengths_of_chars(self.newest)
        plain = all(schema[name].dataType.typeName() in _IN_FOLDERS for name in partitions)
        groups = defaultdict[tuple[str | None, ...] | None, list[str]](list)  # None: their folders say it
        for file in files:
            values = {name: file.partition.get(name) for name in partitions}
            by_folders = plain and folders_of(file.path, "") == values
            groups[None if by_folders else tuple(values.values())].append(literal_path(on_spark(f"{self.uri}/{file.path}")))
        for group, paths in groups.items():
            if group is None:
                known, reading = {}, reader(spark).schema(schema).option("basePath", local_uri(on_spark(self.uri)))
            else:
                known, reading = dict(zip(partitions, group, strict=True)), reader(spark).schema(stored)
            part = reading.parquet(*paths)
            cells = {
                name: f.lit(_in_partition(known[name], self.schema.field(name).type)).cast(schema[name].dataType)
                if name in known
                else f.col(quoted(name))
                for name in schema.names
            }
            cells |= {name: f.rpad(cells[name], f.greatest(f.lit(size), f.length(cells[name])), " ") for name, size in padded.items()}
            part = part.select(*(cell.alias(name) for name, cell in cells.items()))
            found = part if found is None else found.unionAll(part)
        return spark.createDataFrame([], schema) if found is None else found

    # Help -------------------------------------------------------------------------------------------------------------

    def _opened_file(self, of: Version, file: DataFile) -> Any:
        try:
            return self._files.open_input_file(file.path)
        except FileNotFoundError as error:
            raise SourceError(self._vacuumed(of, file)) from error

    @cached_property
    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage_options)))

    def _opened(self, version: int | None) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._named("its log" if version is None else f"version {version}"):
            try:
                table = DeltaTable(self.uri, version=version, storage_options=dict(self.storage_options) or None)
            except TableNotFoundError as error:
                raise SourceError(
                    f"There is no Delta table at {self.uri}. Check the address, that the task reaches it, and its storage_options. Nothing was sent."
                ) from error

        if other := sorted({*(table.protocol().reader_features or ())} - _FEATURES):
            raise SourceError(
                f"The Delta table {self.uri} has the feature {other[0]!r}, and no reader of it is here. Copy what is needed into a table without it: "
                "CREATE TABLE … AS SELECT …. Nothing was sent."
            )
        return table

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except PoisonError:
            raise
        except Exception as error:  # its libraries raise Exception itself, too
            words = first_line(error)
            raise SourceError(
                f"The Delta table {self.uri} cannot be read ({what}): {words}. Check its storage_options and the rights of the task; if "
                "that is damaged, restore it. Nothing was sent."
            ) from error

    def _of(self, found: Mapping[str, list[dict[str, Any]]], kind: str, change: str | None) -> tuple[DataFile, ...]:
        """Return the files of one kind of action, those alone that change the table's rows."""
        files = [each for each in found.get(kind, ()) if kind == "cdc" or each.get("dataChange", True)]
        return tuple(DataFile(unquote(each["path"]), self._partition(each, kind), change, each.get("deletionVector") is not None) for each in files)

    def _partition(self, action: dict[str, Any], kind: str) -> dict[str, str | None]:
        """Return the partition of a file: Spark leaves those values of a removed one out that are null, and others may leave out all of them."""
        texts: dict[str, str | None] | None = action.get("partitionValues")
        if texts is None or (kind == "remove" and not action.get("extendedFileMetadata")):
            return texts or {}
        return dict.fromkeys(self.newest.metadata().partition_columns) | texts

    def _zoned(self, texts: Mapping[str, str | None] | None) -> Mapping[str, str | None] | None:
        """Return values of a partition, instants with their zone: delta-rs writes none, and means UTC; Spark reads them as of its session's zone."""
        instants = {each.name for each in self.schema if pa.types.is_timestamp(each.type) and each.type.tz is not None}
        return texts and {name: f"{text}Z" if name in instants and text and not text.endswith("Z") else text for name, text in texts.items()}

    def _refuse(self, of: Version, file: DataFile) -> None:
        """Raise SourceError for a file whose rows would be read wrongly."""
        begin = f"{file.path} of version {of.number} of the Delta table {self.uri}"
        if file.vector:
            raise SourceError(
                f"{begin} has deletion vectors, which cannot be read here. Rewrite the files: REORG TABLE … APPLY (PURGE), and set "
                "delta.enableDeletionVectors=false. Nothing was sent."
            )
        if "://" in file.path or file.path.startswith("/"):
            raise SourceError(f"{begin} lies elsewhere (a shallow clone), which cannot be read here. Make a deep clone. Nothing was sent.")
        if missing := [name for name in self.newest.metadata().partition_columns if name not in file.partition]:
            raise SourceError(
                f"{begin} was removed by a writer that did not say of which partition it was ({', '.join(missing)}): its rows are not known. "
                f"{self._go_on(of.number + 1)}"
            )

    def _texts_of(self, table: DeltaTable) -> list[dict[str, Any]]:
        """Return the partition values of files, as text."""
        names = list(table.metadata().partition_columns)
        rows = pa.table(table.get_add_actions(flatten=True))
        columns = {name: _texts(rows[f"partition.{name}"]) for name in names}
        paths = rows["path"].to_pylist()
        return [{"path": path, "partitionValues": {name: columns[name][at] for name in names}} for at, path in enumerate(paths)]

    def _commit_time(self, number: int) -> int:
        try:
            return self.read(number).at
        except _EmptyError:
            raise
        except SourceError:  # the log begins with a checkpoint of it
            return 0

    def _column(self, batch: pa.RecordBatch, file: DataFile, wanted: pa.Field[Any]) -> pa.Array[Any]:
        """Return the values of a column, with the type that the file has where the newest one does not have all values of that."""
        if wanted.name in file.partition:
            return _partition_value(file.partition[wanted.name], wanted.type, batch.num_rows)
        at = batch.schema.get_field_index(wanted.name)
        if at < 0:  # the column was added later
            return _nulls(batch.num_rows, wanted.type)
        column: pa.Array[Any] = batch.column(at)
        return column.cast(wanted.type) if _holds(wanted.type, column.type) else column

    def _vacuumed(self, of: Version, file: DataFile) -> str:
        return (
            f"{file.path} of version {of.number} of the Delta table {self.uri} is gone: the table was vacuumed before this version was "
            f"taken. {self._go_on(of.number + 1)}"
        )

    def _gone(self, number: int) -> str:
        from pyarrow.fs import FileSelector

        kept = sorted(int(each.base_name[:20]) for each in self._files.get_file_info(FileSelector(_LOG)) if each.base_name[20:] == ".json")
        oldest = next((each for each in kept if each > number), self.last + 1)
        return (
            f"Versions {number} to {oldest - 1} of the Delta table {self.uri} are gone: its log was cleaned (delta.logRetentionDuration) before "
            f"they were taken. {self._go_on(oldest)}"
        )

    def _go_on(self, number: int) -> str:
        return (
            f"To go on without them, reset the source's position and declare start={number}; without start= the whole table is taken as it is now, "
            "rows that were taken before included. Nothing was sent."
        )


def _feed_columns(batch: pa.RecordBatch, of: Version, file: DataFile) -> dict[str, pa.Array[Any]]:

    size = batch.num_rows
    kind = batch.column(CHANGE_TYPE).cast(pa.string()) if file.change is None else pa.repeat(pa.scalar(file.change), size)
    return {
        CHANGE_TYPE: kind,
        COMMIT_VERSION: pa.repeat(pa.scalar(of.number, pa.int64()), size),
        COMMIT_TIMESTAMP: pa.repeat(pa.scalar(of.at * 1_000, pa.timestamp("us", "UTC")), size),
    }


def _columns_of(schema: TableSchema) -> pa.Schema:

    return pa.schema(cast("Any", schema.to_arrow()))


@lru_cache(256)
def _holds(newer: pa.DataType, older: pa.DataType) -> bool:
    """Whether a type has all values of another one; instants of INT96 come without their zone."""
    if newer == older:
        return True
    new, old = (ddl_of_bodies(pa.schema([pa.field("v", each)])) for each in (newer, older))
    for ntz in ("timestamp_ntz", "timestamp"):
        one, other = (text.replace("timestamp_ntz", ntz) for text in (new, old))
        differ = list[str]()
        if united(one, other, differ) == united(one, one) and not differ:
            return True
    return pa.types.is_date(older) and pa.types.is_timestamp(newer)


def _decoded(content: Any) -> Iterator[pa.RecordBatch]:

    file = pq.ParquetFile(content, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    check_calendar(file)
    return streamed(file, _BATCH, use_threads=False)


def _texts(values: pa.ChunkedArray[Any]) -> list[str | None]:
    """Return values of partitions as text; Arrow itself writes years beyond 32767 as others."""
    kind, of = cast("Any", values.type), cast("Any", pa.types)
    if not of.is_temporal(kind):
        return values.cast(pa.string()).to_pylist()
    is_date = of.is_date(kind)
    counts = values.cast(pa.int32() if is_date else pa.int64()).to_pylist()
    zone = "" if is_date or kind.tz is None else "Z"
    return [None if count is None else (text_of_days(count) if is_date else text_of_micros(count)) + zone for count in counts]


def _partition_value(text: str | None, kind: pa.DataType, size: int) -> pa.Array[Any]:
    """Return a partition's value as a column; Delta writes instants without their zone, which is UTC."""
    if (plain := _in_partition(text, kind)) is None or text is None:
        return _nulls(size, kind)
    value: pa.Array[Any] = pa.array([plain])
    try:
        if pa.types.is_timestamp(kind):
            value = value.cast(pa.timestamp("us", "UTC") if text.endswith("Z") else pa.timestamp("us"))
        value = value.cast(kind)
    except pa.ArrowInvalid:  # a date or an instant of a year that is not of four digits
        if not pa.types.is_temporal(kind):
            raise
        value = pa.array([days_of(text) if pa.types.is_date(kind) else micros_of(text, zoned=True)], kind)
    return value.take(pa.repeat(pa.scalar(0), size))


def _in_partition(text: str | None, kind: pa.DataType) -> str | bytes | None:
    """Return what Delta's log says of a partition: an empty text is null, and bytes may be written as escapes of JSON."""
    if not text or not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or not _ESCAPED.fullmatch(text):
        return text or None
    return bytes(int(code, 16) for code in text.split("\\u")[1:])


def _nulls(size: int, kind: pa.DataType) -> pa.Array[Any]:

    return pa.array([None] * size, kind)


LATEST = "latest"


class _Place(NamedTuple):
    """The first thing that was not taken.

    :param files: of the version that were taken.
    :param snapshot: the version is taken as the table was then, with all rows.
    """

    version: int
    files: int = 0
    snapshot: bool = False

    def done(self, version: Version) -> int:
        """Return how many files of a version are taken."""
        return self.files if version.number == self.version else 0


@dataclass(frozen=True)
class DeltaChanges(Source):
    """Rows that are added to a Delta table, each once: first the rows that are there, then the rows of each version. OPTIMIZE adds none.

    A version that changes or removes rows (update, delete, merge, overwrite) is an error, unless it is left out or ``changes`` are taken.

    :param uri: of the table: an absolute path, or the address in an object store.
    :param start: where the first take begins. None: with all rows of the newest version; a version; ``latest``: with what comes from then on.
    :param changes: take the change data feed: each row has ``_change_type`` (insert, update_preimage, update_postimage, delete), ``_commit_version``
        and ``_commit_timestamp``. The table has to have ``delta.enableChangeDataFeed=true`` in all versions that are taken.
    :param skip_change_commits: leave out versions that change or remove rows, as a whole: rows that such a version adds are not taken.
    :param name: what the position is kept under. None: the address.
    :param schema: what each body is checked against or decoded with.
    :param storage_options: for an object store, as Delta Lake names them; others come from the environment.
    """

    uri: str
    start: int | str | None = None
    changes: bool = False
    skip_change_commits: bool = False
    name: str = ""
    schema: Schema | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    columns = True

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or not ("://" in self.uri or self.uri.startswith("/")):
            raise SettingError("uri", self.uri, "the absolute path of a Delta table, since tasks run in folders of their own; or its address s3://…")
        whole = isinstance(self.start, int) and not isinstance(self.start, bool) and self.start >= 0
        if not (self.start is None or self.start == LATEST or whole):
            raise SettingError("start", self.start, f"a version from 0 on, {LATEST!r}, or None for all rows that there are")
        if self.changes and self.skip_change_commits:
            raise SettingError("skip_change_commits", self.skip_change_commits, "False with changes=True, which takes what these versions change")
        object.__setattr__(self, "name", self.name or self.uri)

    def takes_from(self, table: str) -> bool:
        """Whether it is this table."""
        return place_of(table) == place_of(self.uri)

    @property
    def asset_uri(self) -> str:
        """The table's address."""
        return self.uri if "://" in self.uri else f"file://{self.uri}"

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the versions behind a position. Raises SourceError for a table that is another one now, and for versions that are gone."""
        versions = self._versions()
        place = self._place(versions, position.at)
        if place.snapshot:
            return self._taken(versions, place, place.version, limit) if versions.snapshot(place.version).added[place.files :] else None
        if place.version > versions.last and position.at:
            return None
        return self._taken(versions, place, versions.last, limit)

    def between(self, start: str, end: str) -> Take:
        """Return what versions did.

        :param start: the first version; ``end`` is excluded.
        """
        versions = self._versions()
        first, after = (_version(text) for text in (start, end))
        if not 0 <= first < after <= versions.last + 1:
            raise InputError(
                f"Versions {start} to {end} cannot be taken from the Delta table {self.uri}: expected two of 0 to {versions.last + 1}, the second "
                "one above the first, which is excluded. Nothing was sent."
            )
        return self._taken(versions, _Place(first), after - 1, None)

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return the last version that was taken."""
        if not at:
            return "the beginning"
        place = _place(at)
        if place.files:
            return f"version {place.version}, {place.files} of its files"
        return f"version {place.version - 1}"

    # How far ----------------------------------------------------------------------------------------------------------

    def _versions(self) -> Versions:
        return Versions(self.uri, self.storage_options)

    def _place(self, versions: Versions, at: Mapping[str, JsonValue]) -> _Place:
        if not at:
            if self.start is None:
                return _Place(versions.last, snapshot=True)
            first = versions.last + 1 if self.start == LATEST else int(self.start)
            if first > versions.last + 1:
                raise SourceError(f"start={first}: the Delta table {self.uri} has versions up to {versions.last}. Nothing was sent.")
            return _Place(first)
        place = _place(at)
        if place.files and not place.snapshot and self.changes:
            raise SourceError(
                f"changes=True: source {self.name!r} has taken {place.files} files of version {place.version} without it. Take the rest of this "
                "version with changes=False first, or give the source another name=. Nothing was sent."
            )
        if at["table"] != versions.table_id:
            raise SourceError(
                f"The Delta table {self.uri} was made anew: its id is {versions.table_id}, and up to version {place.version - 1} another one was "
                f"taken ({at['table']}). Reset the position of source {self.name!r} to take the new table from its beginning. Nothing was sent."
            )
        if place.version > versions.last + 1:
            raise SourceError(
                f"The Delta table {self.uri} has versions up to {versions.last}, and it was taken up to version {place.version - 1}: an older state "
                "was put "
                f"back in its place. Reset the position of source {self.name!r}, and declare start= with the first version that was not taken. "
                "Nothing was sent."
            )
        return place

    def _taken(self, versions: Versions, begin: _Place, last: int, limit: int | None) -> Take:
        reached = [begin]

        in_parts = begin.snapshot or not self.changes  # changes are taken by whole versions

        def batches() -> Iterator[pa.RecordBatch]:
            reached[:], sent = [begin], 0
            for version, files in self._wanted(versions, begin, last):
                done = begin.done(version)
                for number, file in enumerate(files, done):
                    here = begin._replace(version=version.number, files=number)
                    if number > done and in_parts and limit is not None and sent >= limit:
                        reached.append(here)
                        return
                    rows = versions.rows(version, file, changes=self.changes)
                    first = _begun(rows, may_wait=in_parts if number > done else len(reached) > 1)
                    if first is None:
                        reached.append(here)
                        return
                    for batch in chain(first, rows):
                        sent += batch.num_rows
                        yield batch
                reached.append(_Place(version.number + 1))
                if limit is not None and sent >= limit:
                    return

        def at() -> Reached:
            place = reached[-1]
            return Reached({"table": versions.table_id, "version": place.version, "files": place.files, "snapshot": place.snapshot})

        def rows(spark: SparkSession, _then: Then | None) -> DataFrame:
            wanted = [*self._wanted(versions, begin, last)]
            versions.check_columns([version for version, _ in wanted])
            reached[:] = [begin, *(_Place(version.number + 1) for version, _ in wanted)]
            return versions.frame(spark, [file for _, files in wanted for file in files])

        return Take(what=f"{_span_of(begin, last)} of {self.uri}", batches=batches, reached=at, rows=None if self.changes else rows)

    def _wanted(self, versions: Versions, begin: _Place, last: int) -> Iterator[tuple[Version, tuple[DataFile, ...]]]:
        """Yield versions with the files whose rows are not taken yet, up to one that cannot be taken: the next run begins with it, and says why."""
        if begin.snapshot:
            whole = versions.snapshot(begin.version)
            files = whole.added[begin.files :]
            versions.check(whole, files)
            yield whole, files
            return
        feed: bool | None = None
        for number in range(begin.version, last + 1):
            try:
                version = versions.read(number)
                if self.changes:
                    feed = version.feed if version.feed is not None else versions.has_feed(number) if feed is None else feed
                files = self._files_of(version, feed=bool(feed))[begin.done(version) :]
                versions.check(version, files)
            except SourceError as error:
                if number == begin.version:
                    raise
                _waits(error)
                return
            yield version, files

    def _files_of(self, version: Version, *, feed: bool) -> tuple[DataFile, ...]:
        """Return the files of a version whose rows are taken. Raises SourceError."""
        begin = f"Version {version.number} of the Delta table {self.uri}"
        if self.changes and not feed:
            raise SourceError(
                f"{begin} was written without a change data feed. Set delta.enableChangeDataFeed=true, reset the position of source {self.name!r}, "
                "and declare start= with a version from then on. Nothing was sent."
            )
        if self.changes:
            return version.changes or (*version.removed, *version.added)
        if version.removed and not self.skip_change_commits:
            raise SourceError(
                f"{begin} changes or removes rows ({version.operation}), and source {self.name!r} takes rows that are added. Take all changes: "
                "changes=True, where delta.enableChangeDataFeed=true; or leave such versions out, with the rows that they add: "
                "skip_change_commits=True. Nothing was sent."
            )
        return () if version.removed else version.added


def _begun(rows: Iterator[pa.RecordBatch], *, may_wait: bool) -> list[pa.RecordBatch] | None:
    """Return the first rows of a file, if it has some; None: it cannot be read, and waits for the next run. Raises SourceError where it may not."""
    try:
        first = next(rows, None)
    except SourceError as error:
        if not may_wait:
            raise
        _waits(error)
        return None
    return [] if first is None else [first]


def _waits(error: SourceError) -> None:
    """Say what this run leaves to the next one, which fails with it."""
    _log.warning("What is before it is taken, and the next run begins with it: %s", str(error).removesuffix(" Nothing was sent."))


def _place(at: Mapping[str, JsonValue]) -> _Place:
    return _Place(int(at["version"]), int(at["files"]), bool(at["snapshot"]))  # type: ignore[arg-type]  # our own values


def _span_of(begin: _Place, last: int) -> str:
    if begin.snapshot:
        return f"all rows of version {begin.version}"
    if begin.version > last:
        return f"the newest version, {last},"
    return f"version {last}" if begin.version == last else f"versions {begin.version} to {last}"


def _version(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{text!r} is no version of a Delta table; expected a whole number from 0 on. Nothing was sent.") from error


def _lengths_of_chars(table: DeltaTable) -> Mapping[str, int]:
    """Return the lengths of columns that are ``char(n)``: Spark pads shorter texts where it reads them."""
    fields = json.loads(table.schema().to_json())["fields"]
    found = {field["name"]: _CHAR.fullmatch(str((field.get("metadata") or {}).get(TYPE_OF_TEXT, ""))) for field in fields}
    return {name: int(each[1]) for name, each in found.items() if each is not None}
