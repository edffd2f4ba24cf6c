"""The messages of a claim as DataFrames: with the columns of messages, or of their bodies."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery.bodies import columns_as_written
from airflow_poison.delivery.handlers import POISON_COLUMN
from airflow_poison.sources.frames import reader
from airflow_poison.spark.jobs import is_connect, jobs_of, why
from airflow_poison.spark.shares import SharedSite, divided, parts_of, read_share, reading
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.errors import BodyError, ExecutorError
from airflow_poison.values.schema import FRAME_COLUMNS, LOOKUP_ID, message_schema
from airflow_poison.values.texts import literal_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.spark.shares import Part
    from airflow_poison.store.files import DataFile

WHY = POISON_COLUMN
"""The column of ``parsed`` that says why a body does not fit: no schema has this name."""
_UNFIT = "poison: a body does not fit"
_FAILED_READ = "FAILED_READ_FILE"
"""The class of Spark's errors of a file that it cannot read."""
_TASK_BYTES = 128 << 20
"""Of files that one task reads, about."""
_MOST_PARTS = 200
"""Of files, in which messages are that tasks read themselves: each opens its file."""
_PIECE_BYTES = 16 << 20
"""Bytes of bodies that an executor's Python makes columns of at once: it holds as much more than once of the data that Spark hands over."""
SPREAD, LARGEST_SPREAD = 8, 100_000
"""Into so many tasks a unit is spread whose culprit is looked for: the one that fails says where it is. Each that runs Python costs a quarter of a
second. And so large may the unit be: its bodies are shuffled."""
_KEYS = "12, 6, 5, 1, 25, 15, 2, 0"
"""Integers that Spark's hash puts into partition 0, 1, and so on of ``SPREAD``: only so can a partition be chosen."""
BATCH_ROWS = 16_384
_AHEAD = 2
"""Batches that are read beside the one that is settled."""
_PART_ROWS, _PARTS_BYTES = 1_024, 256 << 20
"""So many messages are read at once that become parts of a plan, and so many bytes of them together."""
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


def arrow_schema(frame: DataFrame, *, nullable: bool = False) -> pa.Schema:
    """Return a frame's columns as Arrow has them: instants are in UTC, which Spark 4.3 must be given and older versions assume.

    :param nullable: any of them may be null, as in files that Spark writes.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    named: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    try:
        return to_arrow_schema(frame.schema.toNullable() if nullable else frame.schema, **named)
    except ValueError:  # an array of nothing, which must have values
        return to_arrow_schema(frame.schema.toNullable(), **named)


class Parts(NamedTuple):
    """Sets of messages, each a partition of one frame.

    :param frame: without messages whose bodies do not fit; None: no other ones are there.
    :param of: the number of each partition's set.
    :param ids: the lookup ids that each partition has.
    :param unfit: why the body of a message does not fit, by lookup id.
    """

    frame: DataFrame | None
    of: Sequence[int]
    ids: Sequence[NDArray[np.int64]]
    unfit: Mapping[int, str]


class Raw(NamedTuple):
    """Messages of a claim, not parsed yet.

    :param frame: as Spark reads them.
    :param shares: without it, rows of files that tasks read themselves, by task: that takes a third less.
    """

    frame: DataFrame | None = None
    shares: Sequence[Sequence[Part]] = ()


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
        earlier: Sequence[tuple[int, str]] = (),
        read: Callable[[Sequence[DataFile]], DataFrame] | None = None,
    ) -> None:
        self._spark, self._root, self._files, self._schema, self._earlier = spark, root, files, schema, earlier
        self._read = read or self._seen
        jobs = jobs_of(spark)
        self._tasks = (jobs.cores() or 1) if read is None and jobs.local else 0
        self._sorted = np.sort(lookup_ids)
        self._row_of = np.argsort(lookup_ids, kind="stable")  # of all files, one after the other
        self._begins = np.cumsum([0, *(file.rows for file in files)])[:-1]

    def raw(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32] | None = None, *, spread: bool = False) -> Raw:
        """Return messages with the columns ``FRAME_COLUMNS``; with a schema, ``lookup_id`` and ``body`` alone.

        :param lookup_ids: ascending.
        :param attempts: rollbacks of each that are counted since the files were written: ``abort_count`` is for this delivery; None: none.
        :param spread: each task has its own in ``shares``; otherwise a message that is alone is one task's, which costs least.
        """
        from pyspark.sql import functions as f

        rows = self._row_of[np.searchsorted(self._sorted, lookup_ids)]
        files = [self._files[number] for number in np.unique(np.searchsorted(self._begins, rows, side="right") - 1).tolist()]
        if self._schema is not None and self._tasks and not spread and len(rows) > 1:
            parts, each = parts_of(self._files, rows, _MOST_PARTS), sum(file.size for file in files) // sum(file.rows for file in files)
            if parts is not None:
                return Raw(shares=divided(parts, max(self._tasks, each * len(rows) // _TASK_BYTES)))
        frame = self._read(files).select(*(FRAME_COLUMNS if self._schema is None else (LOOKUP_ID, "body")))
        if sum(file.rows for file in files) != len(lookup_ids):
            frame = self._only(frame, lookup_ids)
        if self._schema is None and attempts is not None and attempts.any():
            frame = self._counted(frame, lookup_ids, attempts)
        if spread:
            share = f"({LOOKUP_ID} - {lookup_ids[0]}L) * {SPREAD} div {lookup_ids[-1] - lookup_ids[0] + 1}L"
            frame = frame.repartition(SPREAD, f.expr(f"element_at(array({_KEYS}), cast({share} as int) + 1)"))
        elif len(lookup_ids) == 1:
            frame = frame.coalesce(1)
        return Raw(frame)

    def unread(self, error: Exception) -> str | None:
        """Return which of these files an error of Spark says that it cannot read; None: it says no such thing."""
        text = str(error)
        paths = (file.path for file in self._files) if _FAILED_READ in text else ()
        return next((f"{self._root}/{path}" for path in paths if path.rpartition("/")[2] in text), None)

    def _counted(self, frame: DataFrame, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32]) -> DataFrame:
        """Return messages with the ``abort_count`` that this delivery sees, as a handler would."""
        from pyspark.sql import functions as f

        if (attempts == attempts[0]).all():
            return frame.withColumn("abort_count", f.expr(f"cast(coalesce(abort_count, 0) + {attempts[0]} as int)"))
        more = self._spark.createDataFrame(pa.table({LOOKUP_ID: lookup_ids, WHY: attempts}))
        seen = frame.join(f.broadcast(more), LOOKUP_ID).withColumn("abort_count", f.expr(f"cast(coalesce(abort_count, 0) + {WHY} as int)"))
        return seen.select(*FRAME_COLUMNS)

    def _seen(self, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of files, as Spark reads them."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        frame: DataFrame | None = None
        stored = StructType([field for field in given_schema(None).fields if field.name != "move_count"])
        for move_count in sorted({file.move_count for file in files}):
            paths = [literal_path(f"{self._root}/{file.path}") for file in files if file.move_count == move_count]
            part = reader(self._spark).schema(stored).parquet(*paths).withColumn("move_count", f.lit(move_count))
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

    def given(self, raw: Raw, mark: str | None = None, *, strict: bool = False) -> DataFrame:
        """Return what the transformation is given: with a schema the columns of the bodies that fit it.

        :param mark: the name of a property of the JVM that says, with the number of a task behind it, which message the task is at; None: none does.
        :param strict: the first body that does not fit fails the job (``is_of_body``).
        """
        frame = raw.frame if self._schema is None else self.parsed(raw, strict=strict)
        assert frame is not None, "Spark reads what is not parsed"
        return _noted(frame if self._schema is None or strict else _fitting(frame), mark)

    def counted(self, raw: Raw, mark: str | None, observed: Observation) -> tuple[DataFrame, DataFrame]:
        """Return what the transformation is given, and the same rows, of which ``observed`` counts the bodies that do not fit, as ``bad``.

        An action inside the function would take the count of the rows that it has read, so only the plan that is written reads the second one.
        """
        from pyspark.sql import functions as f

        frame = self.parsed(raw)
        return _noted(_fitting(frame), mark), _noted(_fitting(frame.observe(observed, f.count(WHY).alias("bad"))), mark)

    def parts(self, sets: Sequence[NDArray[np.int64]], attempts: Sequence[NDArray[np.int32]]) -> Parts | None:
        """Return what the transformation is given of some messages, which this process reads; None where they are too large for that.

        :param sets: lookup ids, each set ascending.
        :param attempts: of each set, as for ``raw``.
        """
        ids, rows, size = np.concatenate(sets), list[pa.RecordBatch](), 0
        for batch in chosen(self._root, self._files, ids, batch_rows=_PART_ROWS):
            size += batch.nbytes
            if size > _PARTS_BYTES:
                return None
            rows.append(batch)
        messages = pa.Table.from_batches(rows)
        there: NDArray[np.int64] = messages[LOOKUP_ID].to_numpy()
        order = np.argsort(there)
        messages = messages.take(order[np.searchsorted(there[order], ids)])
        which, kept, unfit = np.repeat(np.arange(len(sets)), [len(each) for each in sets]), ids, dict[int, str]()
        if self._schema is None:
            counts = pc.fill_null(cast("Any", messages["abort_count"]), 0).to_numpy() + np.concatenate(attempts)
            place = messages.column_names.index("abort_count")
            given = messages.set_column(place, "abort_count", pa.array(counts, pa.int32())).select(list(FRAME_COLUMNS))
        else:
            given, failures = columns_as_written(messages["body"].combine_chunks(), ids, parse_ddl(self._schema), self._earlier)
            unfit = {int(ids[place]): str(failure) for place, failure in failures.items()}
            fits = ~np.isin(np.arange(len(ids)), list(failures))
            given, which = given.add_column(0, LOOKUP_ID, messages[LOOKUP_ID]).filter(pa.array(fits)), which[fits]
            kept = ids[fits]
        given = given.combine_chunks()
        of, first, rows_of = np.unique(which, return_index=True, return_counts=True)
        batches = [batch for start, length in zip(first.tolist(), rows_of.tolist(), strict=True) for batch in given.slice(start, length).to_batches()]
        if not batches:
            return Parts(None, (), (), unfit)
        with planning(self._spark, {"spark.sql.execution.arrow.localRelationThreshold": "0"}):
            return Parts(
                self._spark.createDataFrame(pa.Table.from_batches(batches), given_schema(self._schema)),
                of.tolist(),
                np.split(kept, first[1:]),
                unfit,
            )

    def parsed(self, raw: Raw, *, strict: bool = False) -> DataFrame:
        """Return messages with the columns of their bodies and, unless the first one that does not fit fails the job, ``WHY``."""
        from pyspark.sql.types import StringType

        assert self._schema is not None, "there is something to parse"
        given, tasks = given_schema(self._schema), len(raw.shares)
        parser = _parser(self._schema, self._earlier, strict=strict, root=self._root, shares=raw.shares)
        with this_python(self._spark):
            frame = raw.frame or self._spark.range(0, tasks, 1, tasks)
            return frame.mapInArrow(parser, given if strict else given.add(WHY, StringType()))


def _fitting(frame: DataFrame) -> DataFrame:
    """Return messages whose bodies fit their columns."""
    return frame.where(f"{WHY} IS NULL").drop(WHY)


def _noted(frame: DataFrame, mark: str | None) -> DataFrame:
    return frame if mark is None else noting(frame, mark, LOOKUP_ID)  # above the bodies: Python reads ahead


def noting(frame: DataFrame, mark: str, position: str) -> DataFrame:
    """Return the same rows; each task notes in a property of the JVM at which of them it is.

    :param mark: the property's name, with the number of the task's partition behind it.
    :param position: an expression of a number.
    """
    noted = f"reflect('java.lang.System', 'setProperty', concat('{mark}', cast(spark_partition_id() as string)), cast({position} as string))"
    return frame.where(f"coalesce({noted}, '') != '-'")


def chosen(root: str, files: Sequence[DataFile], lookup_ids: NDArray[np.int64], *, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield messages in batches of ``message_schema()`` and ``move_count``, of row groups that have any of them."""
    from pyarrow import dataset
    from pyarrow.fs import LocalFileSystem

    wanted, names, form = np.sort(lookup_ids), message_schema().names, dataset.ParquetFileFormat(page_checksum_verification=True)
    for file in files:
        path, first = f"{root}/{file.path}", np.searchsorted(wanted, file.min_lookup_id)
        here = wanted[first : np.searchsorted(wanted, file.max_lookup_id, side="right")]
        if not len(here):
            continue
        with reading(path):
            with pq.ParquetFile(path) as parquet:
                ids = [parquet.read_row_group(group, [LOOKUP_ID]).column(0).to_numpy() for group in range(parquet.num_row_groups)]
            groups = [group for group, found in enumerate(ids) if np.isin(found, here).any()]
            of_them = dataset.field(LOOKUP_ID).isin(pa.array(here))
            fragment = form.make_fragment(path, LocalFileSystem(), row_groups=groups)
            for batch in fragment.to_batches(columns=names, filter=of_them, batch_size=batch_rows, batch_readahead=_AHEAD, fragment_readahead=1):
                if batch.num_rows:
                    columns = [batch.column(field.name).cast(field.type) for field in message_schema()]
                    yield pa.record_batch([*columns, pa.array(np.full(batch.num_rows, file.move_count, np.int32))], names=[*names, "move_count"])


_setting = threading.RLock()


@contextmanager
def planning(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have plans that are made while the block runs made with settings of the session; no other block runs meanwhile."""
    with _setting:
        before: dict[str, Any] = {name: spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            yield
        finally:
            with suppress(Exception):  # the JVM may be gone; what ended the block says so
                for name, value in before.items():
                    if value is None:
                        spark.conf.unset(name)
                    else:
                        spark.conf.set(name, value)


_WRITTEN = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no zone
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.maxConcurrentOutputFileWriters": "4",  # else rows are sorted, to write some of them apart
}
_writing: dict[str, tuple[int, Mapping[str, str]]] = {}


@contextmanager
def types_kept(spark: SparkSession) -> Iterator[None]:
    """Have a session write values as what they are while the block runs; other blocks may run meanwhile."""
    session: Any = spark
    name = str(session.session_id if is_connect(spark) else session._jsparkSession.sessionUUID())  # noqa: SLF001  (there is no public way)
    with _setting:
        number, before = _writing.get(name) or (0, {key: str(spark.conf.get(key)) for key in _WRITTEN})
        for key, value in _WRITTEN.items() if not number else ():
            spark.conf.set(key, value)
        _writing[name] = number + 1, before
    try:
        yield
    finally:
        with _setting, suppress(Exception):  # the JVM may be gone; what ended the block says so
            number, _ = _writing.pop(name)
            if number > 1:
                _writing[name] = number - 1, before
            else:
                for key, value in before.items():
                    spark.conf.set(key, value)


_swapping = threading.Lock()
_tried: set[str] = set()


@contextmanager
def this_python(spark: SparkSession) -> Iterator[None]:
    """Let the functions of a local session run in this Python while the block runs: ``python3`` of the path may lack this package."""
    if is_connect(spark) or not jobs_of(spark).local:
        yield
        return
    context: Any = spark.sparkContext
    with _swapping:
        before, context.pythonExec = context.pythonExec, sys.executable
        try:
            yield
        finally:
            context.pythonExec = before


def check_bodies(spark: SparkSession) -> None:
    """Have the Python of a local session make columns of a body, once. Raises ExecutorError: otherwise each message would be charged for it.

    Executors elsewhere have been tried with all that they need (``Executors.make_ready``).
    """
    jobs = jobs_of(spark)
    if not jobs.local or jobs.identity in _tried:
        return
    try:
        with this_python(spark):
            body = spark.createDataFrame([(1, bytearray(b"{}"))], f"{LOOKUP_ID} long, body binary")
            body.mapInArrow(_parser("tried int", (), strict=True), given_schema("tried int")).collect()
    except Exception as error:
        raise ExecutorError(
            f"Spark's Python ({sys.executable}) cannot make columns of bodies: {why(error)}\nNothing was claimed. It needs this package, numpy and "
            "pyarrow: install them for this Python, or put them on PYTHONPATH."
        ) from error
    _tried.add(jobs.identity)


def _parser(
    schema: str, earlier: Sequence[tuple[int, str]], *, strict: bool, root: str = "", shares: Sequence[Sequence[Part]] = ()
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes columns of bodies in the Python of executors. Its name stands in plans: by it ``has_python`` knows that it is ours.

    :param shares: what to read below ``root``: the batches have numbers of these. Empty: they have the bodies.
    """

    def poison_columns_of_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = parse_ddl(schema)
        for batch in _read(root, shares, batches) if shares else batches:
            for piece in pieces(batch):
                table, failures = columns_as_written(piece.column("body"), piece.column(LOOKUP_ID).to_numpy(), columns, earlier)
                if strict and failures:
                    raise BodyError(f"{_UNFIT}: {next(iter(failures.values()))}")
                table = table.add_column(0, LOOKUP_ID, piece.column(LOOKUP_ID))
                if not strict:
                    whys = [None if place not in failures else str(failures[place]) for place in range(piece.num_rows)] if failures else None
                    table = table.append_column(WHY, pa.nulls(piece.num_rows, pa.string()) if whys is None else pa.array(whys, pa.string()))
                yield from table.to_batches()

    return poison_columns_of_bodies


def _read(root: str, shares: Sequence[Sequence[Part]], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield lookup ids and bodies. Raises SparkJobError for a file that cannot be read."""
    for number in (number for batch in numbers for number in batch.column("id").to_numpy()):
        yield from read_share(SharedSite(root), shares[number], (LOOKUP_ID, "body"))


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of some bytes; a larger body comes alone."""
    behind = np.cumsum(pc.fill_null(pc.binary_length(cast("Any", batch.column("body"))), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    first = 0
    while first < batch.num_rows:
        before = behind[first - 1] if first else 0
        end = max(int(np.searchsorted(behind, before + _PIECE_BYTES, side="right")), first + 1)
        yield batch.slice(first, end - first)
        first = end


def is_of_body(error: Exception) -> bool:
    """Whether a job has failed for a body that does not fit."""
    return _UNFIT in str(error)


def shares(lookup_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the tasks that have these messages when they are spread."""
    found: NDArray[np.int64] = (lookup_ids - lookup_ids[0]) * SPREAD // (lookup_ids[-1] - lookup_ids[0] + 1)
    return found
