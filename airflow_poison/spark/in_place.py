"""Rows transformed where they are, without a queue: a job writes them below their output, as it is, while no row is known to fail; where one fails,
it runs so that it writes those that fail apart from the others.

What fails becomes messages, which a pass delivers as all others: it judges them, counts them, and may find that they succeed. Where the job itself
fails, or its plan does not say which row is which, as on Spark Connect, whose plans cannot be changed, the rows are written with numbers, and pieces
of them are transformed: the rows of small pieces that fail become messages. Where most pieces fail, nothing lands, and all rows become messages.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery import bodies
from airflow_poison.delivery.culprits import failing_pieces
from airflow_poison.delivery.handlers import POISON_COLUMN, check_schema
from airflow_poison.outputs.row_files import OWN, PARTITION, FileOfRows, Place, files_in
from airflow_poison.outputs.values import same_name
from airflow_poison.sources.frames import records_of, with_record
from airflow_poison.sources.source import ERROR, RECORD, UNFIT, NotOnSparkError, Then
from airflow_poison.spark import catching
from airflow_poison.spark.catching import FAILED, NUMBER, PLACE, PLACE_BITS, ROW
from airflow_poison.spark.function import analyzed_plan, called, check_result, expected, failure_of_job, is_of_row, lost
from airflow_poison.spark.jobs import is_connect, jobs_of, spark_errors, why
from airflow_poison.spark.messages import given_schema, pieces, this_python, types_kept
from airflow_poison.spark.numbered import NotNumberedError, NumberedRows
from airflow_poison.spark.python_errors import all_noted, errors_noted
from airflow_poison.spark.send_stage import SendStage
from airflow_poison.spark.units import NotCaught, failure_of_verdict, is_taken, observed_in, raised_in_python, written
from airflow_poison.store import disk
from airflow_poison.store.objects import side_by_side
from airflow_poison.values.ddl import parse_ddl, quoted
from airflow_poison.values.errors import BodyError, InputError, OutputError, SettingError, SourceError, SparkJobError, TransformError
from airflow_poison.values.failures import Failure
from airflow_poison.values.schema import LOOKUP_ID
from airflow_poison.values.texts import counted, literal_path, local_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, Observation, SparkSession

    from airflow_poison.delivery.handlers import InPlaceOrder
    from airflow_poison.outputs.output import Output
    from airflow_poison.spark.python_errors import PythonErrors

_BATCH, _ROWS = 64_000, 10_000
_UNREAD, _NO_ROW = "FAILED_READ_FILE", "a record is no row"
"""The error of Spark for a file that it cannot read, and ours for the first record that is no row."""
_NAMING = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "boolean"})
"""Types of columns of partitions whose values ``row_files`` writes into Delta's log."""


FEW, LEAST = 50_000, 10_000
"""Where a session runs parts of one plan, a pass finds rows that fail in little time: so many rows all become messages, and so do all rows of so
small a piece that fails. On Spark Connect each row is tried."""
MOST_TRIES, MOST_UNKNOWN = 400, 0.9
"""Of rows of which some fail: so many pieces are tried, before all rows of those that fail become messages; and where more of the rows than this part
would, all do."""
_SAYS_EVERY = 10.0
_OF_FILES = re.compile(r"input_file_|_metadata")
_SAMPLED = re.compile(r"^\W*(Sort \[.*\], true|RepartitionByExpression \[.* (ASC|DESC) NULLS)", re.MULTILINE)
"""What Spark samples the rows for, by a job of its own, which counts them, too: a global order, and partitions by ranges."""
_OWN_FILE = "Make a column of it before: protect(spark.read....selectExpr('*', '_metadata.file_name AS file'), ...)."


class NotInPlaceError(Exception):
    """Rows have to become messages to see which of them fail."""


class _SomeFailError(NotInPlaceError):
    """Some rows fail, and it is not known which."""


class _JobFailedError(_SomeFailError):
    """A job has failed, and not for want of progress.

    :param failure: what a row is charged with that was the only one; None: the row is not behind it.
    """

    def __init__(self, text: str, failure: Failure | None) -> None:
        super().__init__(text)
        self.failure = failure


class _Job(NamedTuple):
    """A transformation of rows, planned.

    :param whole: the rows with their numbers.
    :param given: what the transformation was given.
    :param counted: the same, of which ``seen`` counts the rows; the plan that is written reads it. On Spark Connect it is what was given.
    :param seen: None: its counts are of no use: an action inside the transformation has taken them, or Spark reads rows for a sample, too.
    :param plain: what is written.
    :param judged: it has verdicts.
    :param has_records: the rows have the records that they were, some of which may be no rows.
    :param is_chain: each row of ``given`` makes one at most, of itself alone.
    :param counts_itself: each makes one.
    """

    whole: DataFrame
    given: DataFrame
    counted: DataFrame
    seen: Observation | None
    plain: DataFrame
    judged: bool
    has_records: bool
    is_chain: bool
    counts_itself: bool


@dataclass(slots=True)
class _Tried:
    """The pieces that were transformed.

    :param good: files with the rows that land; ``bad``: with those that fail.
    :param one_each: each row makes one at most, of itself alone.
    """

    good: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    number: int = 0
    reported_at: float = field(default_factory=time.monotonic)
    one_each: bool = False


class InPlace:
    """Rows that are transformed where they are (``RowsInPlace``). Raises InputError for columns that no message has.

    :param watched: runs a function that starts jobs, and ends them when they must not go on; returns whether tasks may have run more than once.
    :param ready: called before jobs whose tasks run code of this package.
    """

    def __init__(self, spark: SparkSession, order: InPlaceOrder, watched: Callable[[Callable[[], object]], bool], ready: Callable[[], None]) -> None:
        self._order, self._watched, self._ready, self._read = order, watched, ready, order.rows
        self.why, self.schema = "", ""
        try:
            with this_python(spark):
                self._first = order.rows(spark, _columns_of_records(order, rows_alone=not order.careful))
            has_records = self._first.columns[-2:] == [RECORD, UNFIT]
            self.schema = columns_of(self._first.drop(RECORD, UNFIT) if has_records else self._first)
        except NotOnSparkError as error:
            self.why = str(error)
        except spark_errors() as error:  # of a file that is damaged, or that has other types than the others
            if lost(error):
                raise
            self.why = f"Spark cannot read it ({next(iter(why(error).splitlines()), type(error).__name__)})"
        self.landed: list[FileOfRows] = []
        self.counts: Mapping[str, int] = {}
        self.named = list[Failure | None]()
        far = order.there if not jobs_of(spark).local else None
        self.is_there = far is not None
        self._place = far or Place(local_uri(str(order.place)), files_in(str(order.place), {}))
        self._failing, self._unfit = list[str](), list[str]()
        self._jobs = 0
        self._unnamed: set[int] | None = None
        self._alone = dict[int, Failure]()

    def run(self) -> str:
        """Transform them; return why all have to become messages; empty: only those that fail. Raises TransformError, SparkJobError."""
        if self.why:
            return self.why
        try:
            self._run()
        except NotInPlaceError as error:
            self.discard()
            if self._check(str(error)):
                return self.run()
            return self._run_in_pieces(error) if isinstance(error, _SomeFailError) else str(error)
        return ""

    def _check(self, why: str) -> bool:
        """Have files read to their end first where one that could not be read has failed a job; return whether a job is worth another try."""
        checked = self._order.checked
        if checked is None or self._read is checked or _UNREAD not in why:
            return False
        self._order.progress("a file cannot be read: each is read to its end, to see which")
        self._read = checked
        self.__dict__.pop("_rows", None)  # it is made anew
        try:
            with this_python(self._first.sparkSession):
                self._first = checked(self._first.sparkSession, _columns_of_records(self._order, rows_alone=not self._order.careful))
        except NotOnSparkError as error:
            self.why = str(error)
        return True

    def discard(self) -> None:
        """Remove what was written: nothing refers to it."""
        self._place.files.remove("")

    def failing(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fail, with their own columns, or the records that they were."""
        for path in self._unfit:
            with self._open(path) as file:
                for batch in file.iter_batches(_ROWS):
                    for records in _records(batch.column(RECORD)):
                        self.named += [None] * records.num_rows
                        yield records
        seen = set[int]()  # one that makes several rows may fail in more than one
        for path in self._failing:
            with self._open(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[ROW]):
                    rows, ids, texts = cast("Any", batch.column(ROW)).flatten()
                    numbers: list[int] = ids.to_pylist()
                    first = {number: place for place, number in reversed([*enumerate(numbers)]) if number not in seen}
                    seen.update(first)
                    places = pa.array(sorted(first.values()), pa.int64())
                    row = rows.take(places)
                    named = self._failures(ids.take(places).to_pylist(), texts.take(places).to_pylist())
                    names = [field.name for field in row.type if field.name not in {LOOKUP_ID, RECORD}]
                    cells = pa.record_batch([pc.struct_field(row, [name]) for name in names], names=names)
                    if RECORD not in {field.name for field in row.type}:
                        self.named += named
                        yield cells
                        continue
                    is_record = (record := pc.struct_field(row, [RECORD])).is_valid()
                    self.named += [each for each, is_one in zip(named, is_record.to_pylist(), strict=True) if is_one]
                    yield from _records(record)
                    self.named += [each for each, is_one in zip(named, is_record.to_pylist(), strict=True) if not is_one]
                    yield cells.filter(pc.invert(is_record))

    def _failures(self, numbers: Sequence[int], texts: Sequence[str | None]) -> list[Failure | None]:
        """Return the failures of rows that have failed alone, or that the transformation itself names; None: what it raises is not known here."""
        if self._unnamed is None:
            return [self._alone.get(number) for number in numbers]
        known = {text: failure_of_verdict(text) for text in {*texts} if text is not None and text != catching.RAISED}
        return [None if number in self._unnamed else known.get(text or "") for number, text in zip(numbers, texts, strict=True)]

    def all_rows(self, folder: Path) -> Iterator[pa.RecordBatch]:
        """Yield all rows, which Spark writes to a folder of the queue first, as it does for a send; it is gone afterwards.

        Raises SourceError where Spark cannot read them, and what ``SendStage.rows`` raises.
        """
        if not self.schema:
            raise SourceError(f"{self.why}, and nothing else reads such rows. Move a damaged file elsewhere. Nothing was taken.")
        stage = SendStage(self._order.queue, str(folder.relative_to(self._order.queue.root)), self._watched)
        batches = stage.rows(lambda: self._rows, _ROWS)
        try:
            first = next(batches, None)
        except SparkJobError as error:
            if not self._check(str(error)):
                raise
            batches = stage.rows(lambda: self._rows, _ROWS)
            first = next(batches, None)
        for batch in chain(() if first is None else (first,), batches):
            yield from _rows_and_records(batch)

    @cached_property
    def _is_connect(self) -> bool:
        return is_connect(self._first.sparkSession)

    @cached_property
    def _rows(self) -> DataFrame:
        """The rows with the records that they were, where they are records: a body goes to the JVM only where it may become a message."""
        if self._order.careful or self._order.transformation.schema is None:
            return self._first
        with this_python(self._first.sparkSession):
            return self._read(self._first.sparkSession, _columns_of_records(self._order))

    def _run(self) -> None:
        """Transform the rows by the plan as it is, where each row makes one at most; where that fails, by one that finds the rows that raise.

        A plan that names rows fails for others seldom, so it is tried as it is also where messages of earlier runs are in the queue.
        """
        self._check_place(self._first.sparkSession, self._order.outputs)
        job = self._planned_first()
        if _reads_names(job):
            self._order.progress(
                f"transform={self._order.transformation.name} reads the names of files: a row has none when it is tried again. {_OWN_FILE}"
            )
        if self._is_connect:  # its plans cannot be changed
            self._run_as_it_is(job)
            return
        if (job.judged or not job.is_chain) and self._rows is not self._first:
            job = self._planned(_numbered(self._rows))
        if not job.is_chain or (self._order.careful and not job.judged):
            self._run_split(job)
            return
        try:
            if job.judged:
                self._run_split(job, catches=False)
            else:
                self._run_as_it_is(job)
        except _JobFailedError as error:
            if _UNREAD in str(error):
                raise
            self._order.progress(f"{error}: it runs once more, so that the rows that fail are found")
            self.discard()
            self._run_split(self._planned(_numbered(self._rows)), error)

    def _planned_first(self) -> _Job:
        """Plan the transformation of the rows alone; with the records that they were, where the function itself reads a record that is no row."""
        try:
            return self._planned(_numbered(self._first))
        except Exception as error:
            if self._rows is self._first or _NO_ROW not in str(error):
                raise
            return self._planned(_numbered(self._rows))

    def _run_in_pieces(self, error: NotInPlaceError) -> str:
        """Transform pieces of the rows, so that those that fail become messages with few others; return why all of them have to.

        :param error: what all of them together have failed with.
        """
        self._unnamed = None
        try:
            given = self._given()
            if given is not None and given.number > (1 if self._is_connect else FEW):
                self._order.progress(f"{error}: pieces of the rows are transformed, so that few become messages")
                if self._land_pieces(given):
                    return ""
        except NotNumberedError:
            pass
        except NotInPlaceError as other:
            error = other
        self.discard()
        return str(error)

    def _given(self) -> NumberedRows | None:
        """Write the rows as they are, with their numbers; None: the transformation may say in which file a row was, and is to be given no other."""
        rows = _numbered(self._rows)
        job = self._planned(rows)
        if _reads_names(job):
            return None
        with types_kept(rows.sparkSession):
            files, _, _ = self._written(rows, (), self._folder())
        return NumberedRows(self._place, files, rows.schema)

    def _land_pieces(self, given: NumberedRows) -> bool:
        """Transform pieces of rows; return whether enough of them land."""
        tried = _Tried()
        fails = partial(self._fails, given, tried)
        pieces = list[tuple[int, int]]()
        if fails(0, given.number):  # else those that fail are named, or raise where that is caught
            least = 1 if self._is_connect else LEAST
            pieces = failing_pieces(given.number, fails, most=MOST_TRIES, least=least)
        unknown = sum(end - first for first, end in pieces)
        known = given.number - unknown
        self._order.progress(f"{counted(tried.number, 'piece')} transformed: {known:,} rows of {given.number:,} are known to land or to fail")
        if unknown > MOST_UNKNOWN * given.number:
            return False
        named, found, folder = dict[int, str](), list[str](), self._folder()
        for path in (path for path in tried.bad if not self._has_column(path, ROW)):
            named.update(self._named_in(path))
        if given.write_failed(pieces, named, partial(self._write, folder, found)) < len(named):
            return False  # the transformation has made numbers of its own
        if self._rows.columns[-1:] == [UNFIT]:
            records = given.frame(self._rows.sparkSession).where(f"`{UNFIT}`").select(f"`{RECORD}`")
            self._unfit = self._unfit_of(records, self._folder(), 0)
        found += [path for path in tried.bad if self._has_column(path, ROW)]
        one_each: bool | None = tried.one_each
        if not one_each and not all(self._has_column(path, NUMBER) for path in tried.good):
            one_each = True if sum(self._rows_in(tried.good)) <= known else None
        self._finish(tried.good, found, given.number, one_each=one_each)
        return True

    def _fails(self, given: NumberedRows, tried: _Tried, first: int, end: int) -> bool:
        """Transform the rows from a place to another; return whether one that is not known fails: then none lands."""
        if time.monotonic() - tried.reported_at > _SAYS_EVERY:
            self._order.progress(f"{counted(tried.number, 'piece')} transformed: {sum(self._rows_in(tried.good)):,} rows land so far")
            tried.reported_at = time.monotonic()
        tried.number += 1
        job = self._planned(given.frame(self._rows.sparkSession, first, end))
        try:
            good, bad = self._written_apart(job)
        except _SomeFailError as error:
            if end - first == 1 and isinstance(error, _JobFailedError) and error.failure is not None and not self._order.finds_outages:
                self._alone[given.number_at(first)] = error.failure
            return True
        tried.one_each = job.is_chain
        tried.good += good
        tried.bad += bad
        return False

    def _written_apart(self, job: _Job) -> tuple[list[str], list[str]]:
        """Write the rows of a piece; return the files of those that land, and of those that fail, with what they were or with their numbers."""
        frame = None if self._is_connect else catching.caught(job.plain, job.given, in_place=True)
        names = [name for name in job.plain.columns if name not in {LOOKUP_ID, POISON_COLUMN}]
        if frame is None and job.judged and LOOKUP_ID in job.plain.columns:
            ours = f"{LOOKUP_ID} AS {NUMBER}", POISON_COLUMN, f"{POISON_COLUMN} IS NOT NULL AS {FAILED}"
            frame = job.plain.selectExpr(*map(quoted, names), *ours)
        if frame is None:
            frame = (_without_named(job.plain) if job.judged else job.plain).drop(LOOKUP_ID)
        folder = self._folder()
        with types_kept(frame.sparkSession):
            files, _, _ = self._written(*self._in_partitions(frame), folder)
        bad = [path for path in files if path.startswith(f"{folder}/{FAILED}=true/")]
        return [path for path in files if path not in {*bad}], bad

    def _named_in(self, path: str) -> Mapping[int, str]:
        """Return what the transformation says of rows, by their numbers. Raises NotInPlaceError where it has none for one."""
        with self._open(path) as file:
            found: Any = file.read(columns=[NUMBER, POISON_COLUMN])
        if found[NUMBER].null_count:
            raise NotInPlaceError(f"the transformation names a row in {POISON_COLUMN} that has no {LOOKUP_ID}")
        return dict(zip(found[NUMBER].to_pylist(), found[POISON_COLUMN].to_pylist(), strict=True))

    def _has_column(self, path: str, name: str) -> bool:
        with self._open(path) as file:
            return name in file.schema_arrow.names

    def _write(self, folder: str, files: list[str], beside: str, batches: Iterator[pa.RecordBatch]) -> None:
        """Write a file of batches to a folder, under the name of another file, and note its path."""
        if (first := next(batches, None)) is not None:
            path = f"{folder}/{beside.rpartition('/')[2]}"
            with self._made(path) as made, pq.ParquetWriter(made, first.schema) as writer:
                for batch in chain((first,), batches):
                    writer.write_batch(batch)
            files.append(path)

    def _planned(self, whole: DataFrame) -> _Job:
        """Plan the transformation of rows with their numbers."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        outputs, transformation = self._order.outputs, self._order.transformation
        seen, number, unfit = Observation(), f.count(f.lit(1)).alias("rows"), f.col(f"`{UNFIT}`")
        has_records = whole.columns[-2:] == [RECORD, UNFIT]
        if has_records or transformation.schema is not None:
            self._ready()
        if has_records:
            given, counted = (rows.where(~unfit).drop(UNFIT) for rows in (whole, whole.observe(seen, number, f.count_if(unfit).alias("unfit"))))
        else:
            given, counted = whole, whole.observe(seen, number)
        given = counted if self._is_connect else given
        try:
            result = called(transformation.load(), given.drop(RECORD) if has_records else given, transformation)
        except AnalysisException as error:
            if "_metadata" not in str(error):
                raise
            raise TransformError(
                f"transform={transformation.name} reads _metadata, which these rows have no more. {_OWN_FILE} Nothing was taken."
            ) from error
        check_result(result, outputs, transformation.name)
        found = written(result, outputs)
        plain = found.frames[outputs[0].name]
        classic = not self._is_connect
        counts_itself = classic and not has_records and catching.is_projection(plain, given)  # what counts rows takes a tenth of the job's time
        is_chain = classic and catching.is_chain(plain, given)
        taken = (self._is_connect and is_taken(seen)) or _SAMPLED.search(analyzed_plan(plain)) is not None
        return _Job(whole, given, counted, None if taken else seen, plain, found.judged, has_records, is_chain, counts_itself)

    def _run_as_it_is(self, job: _Job) -> None:
        """Write all rows; the first one that fails, or that the transformation names, fails the job."""
        folder = self._folder()
        job, rows = self._counting(job)
        rows = _without_named(rows) if job.judged else rows
        with types_kept(rows.sparkSession):
            good, number, _ = self._written(*self._in_partitions(rows.drop(LOOKUP_ID)), folder)
            counted = number if job.counts_itself else _observed(job, "rows")
            self._find_unfit(job, counted)
        counted = counted or self._rows.count()
        self._finish(good, [], counted, one_each=True if job.is_chain or number <= counted else None)

    def _run_split(self, job: _Job, before: NotInPlaceError | None = None, *, catches: bool = True) -> None:
        """Write rows that fail apart from the others.

        :param before: what the plan has failed with as it is.
        :param catches: see ``catching.caught``.
        """
        spark, folder = self._rows.sparkSession, self._folder()
        frame = catching.caught(job.plain, job.given, in_place=True, instead=job.whole if job.counts_itself else job.counted, catches=catches)
        if frame is None and (before is not None or job.judged):
            raise before or _SomeFailError("Spark does not say which rows of this plan fail")
        one_each = None if frame is None else job.is_chain
        noting = frame is not None and PLACE in frame.columns and jobs_of(spark).local
        with errors_noted(spark.sparkContext) if noting else nullcontext() as notes, types_kept(spark):
            if frame is None:
                job, plain = self._counting(job)
            split = plain.drop(LOOKUP_ID).selectExpr("*", f"false AS {FAILED}") if frame is None else frame
            files, rows_written, repeated = self._written(*self._in_partitions(split), folder)
            good, bad = ([path for path in files if path.startswith(f"{folder}/{FAILED}={fails}/")] for fails in ("false", "true"))
            if job.has_records:
                self._find_unfit(job, _observed(job, "rows"))
            self._unnamed = set[int]() if one_each else None
            if notes is not None:
                raised, spoiled = _raised(all_noted(notes), [self._order.place / path for path in (*good, *bad)])
                bad += self._rows_of(good, raised | spoiled)
                self._unnamed = raised | spoiled if one_each else None
        if job.counts_itself and frame is not None:
            self._finish(good, bad, rows_written, one_each=one_each)
        else:
            self._finish(good, bad, None if repeated and not one_each else _observed(job, "rows"), one_each=one_each)

    def _counting(self, job: _Job) -> tuple[_Job, DataFrame]:
        """Return the rows of a plan, which are counted as the job says."""
        rows = job.plain if self._is_connect else catching.reading(job.plain, job.given, job.whole if job.counts_itself else job.counted)
        return (job, rows) if rows is not None else (job._replace(seen=None, counts_itself=False), job.plain)

    def _find_unfit(self, job: _Job, rows: int | None) -> None:
        """Write the records that are no rows, where there may be some.

        :param rows: that were read; none: Spark may have read nothing, as of a plan whose rows cannot land.
        """
        number = (_observed(job, "unfit") if job.has_records else 0) if rows else None
        if (number != 0 or not job.is_chain) and self._rows.columns[-1:] == [UNFIT]:
            records = self._rows.where(f"`{UNFIT}`").select(f"`{RECORD}`")
            self._unfit = self._unfit_of(records, self._folder(), number or 0)

    def _folder(self) -> str:
        """Return where a job writes: no other has written there, of which a task may have outlived it."""
        self._jobs += 1
        return f"job-{self._jobs}"

    def _open(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._place.files.opened(path))

    def _rows_in(self, files: Sequence[str]) -> list[int]:
        """Return how many rows there are in each file."""

        def number(path: str) -> int:
            with self._open(path) as file:
                return int(file.metadata.num_rows)

        return side_by_side(number, files)

    def _finish(self, good: list[str], bad: list[str], rows: int | None, *, one_each: bool | None) -> None:
        failed = {*self._numbers(bad)}
        good = self._without(good, failed)
        unfit = sum(self._rows_in(self._unfit))
        self.counts = self._counts(rows, good, len(failed) + unfit, one_each)
        self._keep(good, bad)

    def _check_place(self, spark: SparkSession, outputs: Sequence[Output]) -> None:
        """Raise NotInPlaceError for outputs of which Spark cannot write the files that become their own."""
        if len(outputs) > 1 or not outputs[0].uri:
            raise NotInPlaceError("rows are written in place to one table")
        is_seen = jobs_of(spark).local or _is_shared(spark, self._place)
        if not is_seen:
            needed = ": the session needs the classes of its file system, and credentials" if self.is_there else ""
            raise NotInPlaceError(f"Spark's executors do not see {outputs[0].uri}{needed}")

    def _keep(self, good: Sequence[str], bad: list[str]) -> None:
        """Force files to disk: the queue's log will name those that land, and what failed comes from the others; note which they are."""
        if "://" not in self._order.outputs[0].uri:  # else they are in the object store, or are uploaded
            disk.sync_files(str(self._order.place), [*good, *bad])
            disk.sync_ancestors(self._order.place)
        files = [FileOfRows(path, rows) for path, rows in zip(good, self._rows_in(good), strict=True)]
        is_new = self._order.outputs[0].rules is None
        self.landed = [file for file in files if file.rows] or (files[:1] if is_new else [])  # without rows it makes the table
        self._failing = bad

    def _unfit_of(self, records: DataFrame, folder: str, least: int) -> list[str]:
        """Write the records that are no rows; return their files. Raises SourceError for fewer than before, and what ``_written`` raises."""
        files, number, _ = self._written(records, (), folder)
        if number < least:
            self.discard()
            raise SourceError("Records of the source were removed while it was read. Nothing was taken; run the task again.")
        return files

    def _in_partitions(self, rows: DataFrame) -> tuple[DataFrame, Sequence[str]]:
        """Return rows so that a file has rows of one partition of the output alone, and the columns by which they are written apart.

        Where rows say whether they fail, those that do are apart from the others.
        """
        by = [FAILED] if FAILED in rows.columns else []
        failed = FAILED if by else "false"
        rules, types = self._order.outputs[0].rules, dict(rows.dtypes)
        names = () if rules is None else rules.partitions
        if not names or not all(types.get(name) in _NAMING for name in names):
            return rows, by
        values = ", ".join(map(quoted, names))  # the file says them
        return rows.selectExpr("*", f"if({failed}, 0, xxhash64({values})) AS {PARTITION}"), [*by, PARTITION]

    def _written(self, frame: DataFrame, by: Sequence[str], folder: str) -> tuple[list[str], int, bool]:
        """Write rows; return their files, how many rows these have, and whether tasks may have run more than once.

        :param by: columns by whose values they are written apart. Raises NotInPlaceError, SparkJobError, OutputError.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        counted = None if jobs_of(frame.sparkSession).local else Observation()
        rows = frame if counted is None else frame.observe(counted, f.count(f.lit(1)).alias("rows"))
        try:
            with expected(frame.sparkSession):
                repeated = self._watched(lambda: rows.write.partitionBy(*by).parquet(f"{self._place.uri}/{folder}"))
        except spark_errors() as error:
            if lost(error):
                raise SparkJobError(f"The Spark job failed: {why(error)}\nNothing was taken. Run the task again.") from error
            failure = failure_of_job(error)
            text = failure.type if self._order.hides else f"{failure.type}: {next(iter(failure.text.splitlines()), '')}"
            raise _JobFailedError(f"the job failed ({text})", failure if is_of_row(error) else None) from error
        files = [path for path in self._place.files.names(folder) if path.endswith(".parquet")]
        here = sum(self._rows_in(files))
        there = here if counted is None else int(counted.get["rows"])
        if here != there:
            self.discard()
            raise OutputError(
                f"Spark's executors wrote {there:,} rows below {self._place.uri}, and {here:,} of them are there for this process. The output must "
                "be on a file system that the task and all executors mount at the same path. Nothing was taken."
            )
        return files, here, repeated

    def _counts(self, rows: int | None, good: Sequence[str], failed: int, one_each: bool | None) -> Mapping[str, int]:  # noqa: FBT001
        """Return the counts of rows.

        :param rows: that were read; None: Spark may have counted some twice, in a stage whose tasks have run once more.
        :param one_each: whether each row makes one at most; None: which rows the result is of is not known.
        """
        rows = self._rows.count() if rows is None else rows
        landed = rows - failed
        if one_each is not None:
            landed = sum(self._rows_in(good)) if one_each else self._different(good)
        return {"read": rows, "landed": landed, "filtered": rows - landed - failed}

    # Numbers of rows -------------------------------------------------------------------------------------------------

    def _numbers(self, files: Sequence[str]) -> Iterator[int]:
        """Yield the lookup ids of rows that fail."""
        for path in files:
            with self._open(path) as file:
                column: Any = file.read(columns=[f"{ROW}.id"])[ROW]
                yield from pc.struct_field(column, ["id"]).to_pylist()

    def _different(self, files: Sequence[str]) -> int:
        """Return how many different numbers there are in files, with a byte of memory for each: the partition is in their upper 31 bits."""
        seen: dict[int, NDArray[np.bool_]] = {}
        for path in files:
            with self._open(path) as file:
                for batch in file.iter_batches(_BATCH, columns=[NUMBER]):
                    numbers = cast("NDArray[np.int64]", batch.column(0).drop_null().to_numpy()) - 1
                    for partition in np.unique(numbers >> PLACE_BITS).tolist():
                        places = numbers[numbers >> PLACE_BITS == partition] - (partition << PLACE_BITS)
                        there = seen.get(partition, np.zeros(0, np.bool_))
                        if (more := int(places.max()) + 1 - len(there)) > 0:
                            there = np.concatenate([there, np.zeros(max(more, len(there)), np.bool_)])
                        there[places] = True
                        seen[partition] = there
        return sum(int(np.count_nonzero(each)) for each in seen.values())

    def _without(self, files: Sequence[str], numbers: Collection[int]) -> list[str]:
        """Return files without the rows of these numbers: rows of one that fails do not land, whatever others of it do."""
        gone = pa.array(sorted(numbers), pa.int64())
        return [self._rewritten(path, gone) if len(gone) and self._has(path, gone) else path for path in files]

    def _has(self, path: str, numbers: pa.Array[Any]) -> bool:
        """Whether a row of a file has one of these numbers."""
        with self._open(path) as file:
            if NUMBER not in file.schema_arrow.names:  # each row is the only one of its number
                return False
            return bool(pc.any(pc.is_in(cast("Any", file.read(columns=[NUMBER])[NUMBER]), numbers)).as_py())

    def _rewritten(self, path: str, gone: pa.Array[Any]) -> str:
        """Write a file once more, without rows of these numbers, under another name."""
        with self._beside(path, "rest") as (target, made), self._open(path) as file, pq.ParquetWriter(made, file.schema_arrow) as writer:
            for batch in file.iter_batches(_BATCH):
                writer.write_batch(batch.filter(pc.invert(pc.is_in(cast("Any", batch.column(NUMBER)), gone))))
        return target

    def _rows_of(self, files: Sequence[str], numbers: Collection[int]) -> list[str]:
        """Write what the rows of these numbers were, of each file that has some, beside it. Raises NotInPlaceError where one does not say it."""
        wanted, written_files = pa.array(sorted(numbers), pa.int64()), list[str]()
        for path in files if len(wanted) else ():
            with self._open(path) as file:
                rows = file.read(columns=[ROW, NUMBER])
            rows = rows.filter(pc.is_in(cast("Any", rows[NUMBER]), wanted))
            if rows[ROW].null_count:
                raise _SomeFailError("a Python function has raised for a row that is not known any more")
            if rows.num_rows:
                with self._beside(path, "raised") as (target, made):
                    pq.write_table(rows.select([ROW]), made)
                written_files.append(target)
        return written_files

    @contextmanager
    def _beside(self, path: str, kind: str) -> Iterator[tuple[str, Path]]:
        """Give the path of a new file beside another one, and a file of this machine that is there when the block has ended."""
        folder, _, name = path.rpartition("/")
        target = f"{folder}/{kind}-{name}"
        with self._made(target) as made:
            yield target, made

    @contextmanager
    def _made(self, path: str) -> Iterator[Path]:
        """Give the path of a file of this machine, which is at a path of the place when the block has ended."""
        with TemporaryDirectory(prefix="airflow-poison-rows-", dir=None if self.is_there else self._order.place) as here:
            made = Path(here, path.rpartition("/")[2])
            yield made
            self._place.files.put(path, made)


def _reads_names(job: _Job) -> bool:
    """Whether a transformation asks in which file a row is."""
    return len(_OF_FILES.findall(analyzed_plan(job.plain))) > len(_OF_FILES.findall(analyzed_plan(job.whole)))


def _numbered(rows: DataFrame) -> DataFrame:
    """Return rows with their numbers, of which none is 0."""
    return rows.selectExpr(f"monotonically_increasing_id() + 1 AS {LOOKUP_ID}", "*")


def _without_named(rows: DataFrame) -> DataFrame:
    """Return rows without their verdicts, the first of which fails the job."""
    from pyspark.sql import functions as f

    return rows.where(f.assert_true(f.col(POISON_COLUMN).isNull(), f"the transformation names a row in {POISON_COLUMN}").isNull()).drop(POISON_COLUMN)


def _is_shared(spark: SparkSession, place: Place) -> bool:
    """Whether Spark's executors see a place."""
    text = token_hex(16)
    with TemporaryDirectory(prefix="airflow-poison-mark-") as folder:
        mark = Path(folder, "mark")
        mark.write_text(text, "utf-8")
        place.files.put("mark/mark", mark)
    try:
        with expected(spark):
            return [row["value"] for row in spark.read.text(literal_path(f"{place.uri}/mark/mark")).collect()] == [text]
    except spark_errors() as error:
        if lost(error):
            raise SparkJobError(f"Spark cannot be asked: {why(error)}\nNothing was taken. Run the task again.") from error
        return False
    finally:
        place.files.remove("mark")


def _observed(job: _Job, name: str) -> int | None:
    """Return what Spark has counted; None where it does not say so."""
    return None if job.seen is None else observed_in(job.seen, name, lambda: None)


def _records(found: Any) -> Iterator[pa.RecordBatch]:
    """Yield records of the column ``RECORD``, without parts that none of them has."""
    there = cast("Any", found.drop_null())
    if len(there):
        parts = {field.name: pc.struct_field(there, [field.name]) for field in there.type}
        yield pa.record_batch({name: part for name, part in parts.items() if name == ERROR or part.null_count < len(part)})


def _rows_and_records(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows as they are, and records apart from them."""
    if UNFIT not in batch.schema.names:
        yield batch
        return
    unfit = cast("Any", batch.column(UNFIT))
    if (rows := batch.filter(pc.invert(unfit))).num_rows:
        yield rows.select([name for name in batch.schema.names if name not in {RECORD, UNFIT}])
    yield from _records(batch.filter(unfit).column(RECORD))


def _columns_of_records(order: InPlaceOrder, *, rows_alone: bool = False) -> Then | None:
    """Return what makes columns of bodies, as a delivery does; None where no columns are declared.

    :param rows_alone: the records that they were are left out, and the first one that is no row fails the job.
    """
    if order.transformation.schema is None:
        return None
    schema, decode = order.transformation.schema, order.decode

    def poison_columns_of_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in pieces(batch):
                read = piece if decode is None else decode(piece)
                table, failures = bodies.columns_of(read.column("body"), _parsed(schema))
                wrong = read.column(ERROR).is_valid().to_pylist() if ERROR in read.schema.names else [False] * read.num_rows
                unfit = [place in failures or is_wrong for place, is_wrong in enumerate(wrong)]
                if not rows_alone:
                    yield from table.append_column(RECORD, records_of(piece)).append_column(UNFIT, pa.array(unfit)).to_batches()
                elif any(unfit):
                    raise BodyError(_NO_ROW)  # which one is found with all records: here its number may be another's
                else:
                    yield from table.to_batches()

    def poison_columns_of_bodies(texts: pa.Array[Any]) -> tuple[pa.RecordBatch, Sequence[int]]:
        table, failures = bodies.columns_of(texts, _parsed(schema))
        others = sorted(failures)
        if others:
            table = table.take(cast("Any", np.delete(np.arange(len(texts)), others)))
        columns = [column.combine_chunks() for column in table.columns]
        return pa.record_batch(columns, names=table.column_names), others

    from pyspark.sql.types import StructType

    columns = StructType(given_schema(schema).fields[1:])
    if rows_alone:
        return Then(poison_columns_of_records, columns, poison_columns_of_bodies if decode is None else None)
    return Then(poison_columns_of_records, with_record(columns))


@lru_cache(maxsize=1)
def _parsed(schema: str) -> pa.Schema:
    return parse_ddl(schema)


def _raised(notes: Sequence[tuple[int, PythonErrors]], files: Sequence[Path]) -> tuple[set[int], set[int]]:
    try:
        return raised_in_python(notes, files, NUMBER)
    except NotCaught as error:
        raise _SomeFailError("a Python function has raised, and Spark does not say for which row") from error


def columns_of(rows: DataFrame) -> str:
    """Return the columns of rows as DDL. Raises InputError for a type that no body has, and for a name that is ours."""
    if (ours := next((name for name in rows.columns if name.lower() in {LOOKUP_ID, POISON_COLUMN, RECORD, UNFIT, ERROR, *OWN}), None)) is not None:
        raise InputError(f"The rows have a column {ours!r}, a name of this package's own. Rename it. Nothing was read.")
    if (twice := same_name(rows.columns)) is not None:
        raise InputError(f"The rows have the columns {twice[0]!r} and {twice[1]!r}, which are one for Spark. Rename one. Nothing was read.")
    ddl = rows.schema.toNullable().toDDL()
    try:
        check_schema(ddl)
    except SettingError as error:
        raise InputError(f"A column of the rows has a type that no message has: {error} Cast it, or leave it out. Nothing was read.") from error
    return ddl
