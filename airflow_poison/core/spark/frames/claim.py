"""Transforms units of a claim on Spark: its messages as a DataFrame, the plan and what it must not do, the job, its result and its failure."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.core.ddl import ddl_type, parse_ddl
from airflow_poison.core.delivery.bodies import columns_of
from airflow_poison.core.delivery.handlers import MANGLED_PREFIX
from airflow_poison.core.delivery.sessions.journal import Journal
from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
from airflow_poison.core.delivery.sessions.rows import BatchEntry
from airflow_poison.core.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front, failure_of
from airflow_poison.core.delivery.transform import LOOKUP_ID, VERDICT
from airflow_poison.core.delivery.units import LARGEST_BODY, Broke, FrameDelivery, FrameRules, Ran, SparkLostError, open_ids, settled
from airflow_poison.core.errors import BodyError, ReceiveStoppedError, SparkJobError, TransformError
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.fault_points import reach
from airflow_poison.core.outputs import ONLY
from airflow_poison.core.policies.decisions import Counts
from airflow_poison.core.schema import message_schema
from airflow_poison.core.spark.jobs import ClassicJobs, is_connect, why
from airflow_poison.core.store.table.outcomes import OutcomeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.core.delivery.stage import StageJob
    from airflow_poison.core.delivery.transform import Transformation
    from airflow_poison.core.outputs import Output
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.spark.jobs import Jobs, Watched
    from airflow_poison.core.store.files import Claim, DataFile
    from airflow_poison.core.store.queue_table import QueueTable

COLUMNS = (
    LOOKUP_ID,
    "message_id",
    "body",
    "group_id",
    "conversation_id",
    "message_type",
    "properties",
    "priority",
    "enqueued_at",
    "expires_at",
    "abort_count",
    "move_count",
    "crash_count",
)
"""The columns that a transformation without a schema is given."""
_PARSED, _CORRUPT = "_poison_parsed", "_poison_corrupt"
ALLOWANCE = 0.005
"""Seconds that a unit may take longer for each message: a chunk of 64,000 has more than five minutes beside the transaction timeout."""
_LISTED = 10_000
"""So many lookup ids stand in a filter; more are joined with."""


# The function and its plan ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """What a transformation made of a DataFrame.

    :param frames: by name.
    :param verdict: whether a frame says which messages are poison.
    """

    frames: Mapping[str, DataFrame]
    verdict: bool


_calling = threading.Lock()
"""Held while a transformation is called: it may make a temporary view, whose name another call would take."""


def given_schema(schema: str | None) -> StructType:
    """Return the columns that a transformation is given.

    :param schema: of the bodies; None: the columns of messages.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if schema is None:
        stored = pa.schema([field for field in message_schema() if field.name in COLUMNS]).append(pa.field("move_count", pa.int32()))
        return from_arrow_schema(pa.schema([stored.field(name) for name in COLUMNS]), prefer_timestamp_ntz=True)
    columns = parse_ddl(schema).insert(0, pa.field(LOOKUP_ID, pa.int64()))
    return from_arrow_schema(pa.schema([field.with_nullable(True) for field in columns]), prefer_timestamp_ntz=True)  # noqa: FBT003  (Arrow's)


def check(spark: SparkSession, transformation: Transformation) -> None:
    """Call a transformation with no rows and look at its plan. Raises TransformError for what cannot be delivered to it, or cannot land."""
    _let_travel(transformation.load())
    alias = f"poison_claim_{token_hex(4)}"
    empty = spark.createDataFrame([], given_schema(transformation.schema)).alias(alias)
    try:
        with _calling:
            result = _result(transformation.load()(empty), transformation.name)
    except TransformError:
        raise
    except Exception as error:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in empty.schema.fields)
        raise TransformError(
            f"transform={transformation.name} raised {type(error).__name__} when it was called with an empty DataFrame: {_first_line(error)}\n"
            f"Its columns are: {columns}. Nothing was claimed. The function is called in the driver; it has to return a DataFrame made of this one."
        ) from error
    _check_plan(result, alias, transformation)
    _check_outputs(result, transformation.outputs, transformation.name)


def _check_outputs(result: Result, outputs: Sequence[Output], name: str) -> None:
    """Raise TransformError where a result has no output, or has columns that do not fit it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    by_name = {output.name: output for output in outputs}
    for key, frame in result.frames.items() if outputs else ():
        output = by_name.get(key)
        if output is None:
            of = "a DataFrame without a name" if key == ONLY else f"a DataFrame as {key!r}"
            raise TransformError(
                f"transform={name} returned {of}, which is no output; there are {', '.join(map(repr, by_name))}. Declare it, or rename it."
            )
        if output.provenance and _column(frame, LOOKUP_ID) is None:
            raise TransformError(f"transform={name} returned no column {LOOKUP_ID}, from which provenance=True is filled. Keep it; it does not land.")
        columns = [field for field in to_arrow_schema(frame.schema) if field.name.lower() not in {LOOKUP_ID, VERDICT}]
        for field in columns if output.columns is not None else ():
            if field.name not in output.columns.names:  # type: ignore[union-attr]  # it was asked for
                if output.evolve:
                    continue
                there = ", ".join(output.columns.names)  # type: ignore[union-attr]
                raise TransformError(f"transform={name} returned a column {field.name!r}; the output has {there}. Drop it, or declare evolve=True.")
            wanted = output.columns.field(field.name).type  # type: ignore[union-attr]
            if not _fits(field.type, wanted):
                raise TransformError(
                    f"transform={name} returned the column {field.name!r} as {field.type}; the output has {wanted}. Cast it in the transformation: "
                    "whether a value fits is then its message's affair."
                )


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type is one of another type."""
    of = pa.types
    if (of.is_integer(given) and of.is_integer(wanted)) or (of.is_floating(given) and of.is_floating(wanted)):
        return bool(given.bit_width <= wanted.bit_width)
    if of.is_decimal(given) and of.is_decimal(wanted):
        return bool(given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale)
    texts = (of.is_string, of.is_large_string, of.is_string_view, of.is_binary, of.is_large_binary, of.is_binary_view)
    alike = any(kind(given) for kind in texts[:3]) and any(kind(wanted) for kind in texts[:3])
    alike |= any(kind(given) for kind in texts[3:]) and any(kind(wanted) for kind in texts[3:])
    if of.is_timestamp(given) and of.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    nested = of.is_nested(given) and of.is_nested(wanted) and given.id == wanted.id
    return alike or given.equals(wanted) or of.is_null(given) or nested


def _let_travel(function: object) -> None:
    """Let Spark carry Python functions by value that live in a DAG file or a script: no worker can import these."""
    from pyspark import cloudpickle

    names = {name for name in list(sys.modules) if name.startswith(MANGLED_PREFIX)}
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module.startswith(MANGLED_PREFIX):
        names.add(module)
    for name in names & sys.modules.keys():
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def _result(returned: object, name: str) -> Result:
    """Return what a transformation returned. Raises TransformError for what it must not."""
    from pyspark.sql import DataFrame

    frames: Mapping[Any, Any] = returned if isinstance(returned, Mapping) else {ONLY: returned}
    for key, frame in frames.items():
        if not isinstance(frame, DataFrame):
            kind = type(frame).__name__
            what = f"a mapping with {kind} as {key!r}" if isinstance(returned, Mapping) else kind
            raise TransformError(
                f"transform={name} returned {what}; expected a DataFrame, or a mapping of names to DataFrames. "
                "Return the DataFrame itself: without .write, .collect() or .show() behind it."
            )
        if not (isinstance(key, str) and key.isidentifier()):
            raise TransformError(f"transform={name} returned a mapping with the name {key!r}; expected names like 'landed'.")
    if not frames:
        raise TransformError(f"transform={name} returned an empty mapping; expected at least one DataFrame.")
    columns = {key: {column.lower() for column in frame.columns} for key, frame in frames.items()}
    verdict = any(VERDICT in names for names in columns.values())
    lacking = [key for key, names in columns.items() if LOOKUP_ID not in names]
    if verdict and lacking:
        of = f" in {lacking[0]!r}" if isinstance(returned, Mapping) else ""
        raise TransformError(
            f"transform={name} returned the column {VERDICT} without {LOOKUP_ID}{of}: nobody could tell which message a row is of. "
            f"Keep the column {LOOKUP_ID}, for example df.select({LOOKUP_ID!r}, {VERDICT!r}, ...); it does not land."
        )
    return Result(frames, verdict)


_NODE = re.compile(r"^((?:[:|] {2}| {3})*)(?:[+:]- )?([A-Za-z]\w*)(.*)$")
_MIXING = (
    "Aggregate",
    "Window",
    "Distinct",
    "Deduplicate",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Intersect",
    "Except",
    "FlatMapGroups",
    "FlatMapCoGroups",
    "CoGroup",
    "MapGroups",
    "AppendColumns",
)
"""How operators are called in Spark's plans whose result for a row depends on other rows."""


def mixing_operator(plan: str, alias: str) -> str | None:
    """Return which operator of an analyzed plan mixes rows of the claim; None: none does; empty: the claim is not in the plan.

    A join mixes them when both its sides come from the claim.
    """
    nodes: list[tuple[int, str, bool]] = []
    for line in plan.splitlines():
        found = _NODE.match(line)
        if found is not None and (not nodes or line[:1] in ":+| "):
            marked = "+- " in line[: len(found[1]) + 3] or ":- " in line[: len(found[1]) + 3]
            nodes.append((len(found[1]) // 3 + marked, found[2], found[2] == "SubqueryAlias" and found[3].strip() == alias))
    below = [marked for _, _, marked in nodes]
    sides = [0] * len(nodes)
    for place in reversed(range(len(nodes))):
        if below[place]:
            parent = next((other for other in reversed(range(place)) if nodes[other][0] < nodes[place][0]), None)
            if parent is not None:
                below[parent] = True
                sides[parent] += 1
    if not any(below):
        return ""
    mixing = (
        name
        for (_, name, _), within, number in zip(nodes, below, sides, strict=True)
        if within and (name.startswith(_MIXING) or (number > 1 and name != "Union"))
    )
    return next(mixing, None)


def analyzed_plan(frame: DataFrame) -> str:
    """Return the analyzed plan of a DataFrame as Spark writes it."""
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().analyzed().toString())  # noqa: SLF001  (there is no public way)
    text: str = frame._explain_string(mode="extended")  # type: ignore[operator]  # noqa: SLF001  (explain() prints it)
    return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0].strip().partition("\n")[2]


def _check_plan(result: Result, alias: str, transformation: Transformation) -> None:
    """Raise TransformError for a plan that mixes rows, unless that is declared, and for one that was not made of the claim."""
    for key, frame in result.frames.items():
        of = "" if key == ONLY else f" in {key!r}"
        mixing = mixing_operator(analyzed_plan(frame), alias)
        if mixing == "":
            if transformation.mixes_rows:
                continue
            raise TransformError(
                f"transform={transformation.name} returned a DataFrame{of} that is not made of the one it was given: it collects rows in the driver, "
                "or keeps a DataFrame of an earlier call. Build it from the parameter with DataFrame functions alone; where rows must be collected, "
                "declare mixes_rows=True: the claim is then transformed as one unit, all or nothing."
            )
        if mixing is not None and not transformation.mixes_rows:
            raise TransformError(
                f"transform={transformation.name} mixes rows{of}: its plan has {mixing} over the messages, so what becomes of one depends on others. "
                "A claim is transformed in chunks, and again without its poison messages, which would change the result. Let each row depend on its "
                "own message and on other tables, or declare mixes_rows=True: the claim is then transformed as one unit, all or nothing."
            )


# Messages as a DataFrame -----------------------------------------------------------------------------------------------


class ClaimFrames:
    """The messages of a claim as DataFrames: all, or some of them.

    :param lookup_ids: of the messages, in the order of the files' rows.
    """

    def __init__(self, spark: SparkSession, root: str, files: Sequence[DataFile], lookup_ids: NDArray[np.int64], schema: str | None) -> None:
        self._spark, self._root, self._files, self._schema = spark, root, files, schema
        self._sorted = np.sort(lookup_ids)
        of_files = np.repeat(np.arange(len(files)), [file.rows for file in files])
        self._file_of = of_files[np.argsort(lookup_ids, kind="stable")]
        self._stored = given_schema(None)

    def raw(self, lookup_ids: NDArray[np.int64], mark: str | None = None) -> DataFrame:
        """Return messages with the columns ``COLUMNS``.

        :param lookup_ids: ascending.
        :param mark: the name of a property of the JVM that says, with the number of a task behind it, which message the task is at; None: none does.
        """
        from pyspark.sql import functions as f

        places = np.searchsorted(self._sorted, lookup_ids)
        files = [self._files[number] for number in np.unique(self._file_of[places]).tolist()]
        frame: DataFrame | None = None
        stored = [field.name for field in self._stored.fields if field.name != "move_count"]
        for move_count in sorted({file.move_count for file in files}):
            paths = [f"{self._root}/{file.path}" for file in files if file.move_count == move_count]
            part = self._spark.read.schema(self._of_file()).parquet(*paths).select(*stored).withColumn("move_count", f.lit(move_count).cast("int"))
            frame = part if frame is None else frame.unionByName(part)
        assert frame is not None, "a unit has at least one message"
        if sum(file.rows for file in files) != len(lookup_ids):
            frame = self._only(frame, lookup_ids)
        if mark is not None:
            noted = f"reflect('java.lang.System', 'setProperty', concat('{mark}', cast(spark_partition_id() as string)), cast({LOOKUP_ID} as string))"
            frame = frame.where(f"coalesce({noted}, '') != '-'")
        return frame.select(*COLUMNS)

    def _of_file(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([field for field in self._stored.fields if field.name != "move_count"])

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
        if len(few) <= _LISTED:
            listed = column.isin(few.tolist())
            return frame.where(listed if few is lookup_ids else ~listed)
        ids = self._spark.createDataFrame([(number,) for number in few.tolist()], f"{LOOKUP_ID} long")
        return frame.join(f.broadcast(ids), LOOKUP_ID, "left_semi" if few is lookup_ids else "left_anti")

    def given(self, raw: DataFrame, observed: Any = None) -> DataFrame:
        """Return what the transformation is given: with a schema the columns of the bodies that parse.

        :param observed: an ``Observation``, which is told how many do not parse.
        """
        from pyspark.sql import functions as f

        if self._schema is None:
            return raw
        parsed, bad = self.parsed(raw)
        if observed is not None:
            parsed = parsed.observe(observed, f.count_if(bad).alias("bad"))
        names = parse_ddl(self._schema).names
        return parsed.where(~bad).select(LOOKUP_ID, *(f.col(f"{_PARSED}.`{name.replace('`', '``')}`").alias(name) for name in names))

    def parsed(self, raw: DataFrame) -> tuple[DataFrame, Column]:
        """Return messages with their parsed bodies, and the condition that one does not parse: it is no object, or a value does not fit."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        assert self._schema is not None, "there is something to parse"
        columns = [field for field in given_schema(self._schema).fields if field.name != LOOKUP_ID]
        text = f.col("body").cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        parsed = f.from_json(text, StructType([*columns, StructField(_CORRUPT, StringType())]), options)
        bare = f.btrim(text, f.lit(" \t\r\n"))
        whole = bare.startswith("{") & bare.endswith("}")  # of an array Spark would take the first element
        frame = raw.select(LOOKUP_ID, f.col("body").alias("_poison_body"), f.when(whole, parsed).alias(_PARSED))
        bad = f.col(_PARSED).isNull() | f.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
        for field in parse_ddl(self._schema):
            if not field.nullable:
                bad |= f.col(f"{_PARSED}.`{field.name}`").isNull()
        return frame, bad


# Units -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """A unit's job.

    :ivar seconds: for how long its tasks have worked, as far as the beats have seen.
    """

    watched: Watched
    began: float
    limit: float
    seconds: float = 0.0
    late: bool = False


class SparkUnits:
    """Transforms units of a claim (``UnitRunner``).

    :param folder: where results are kept: ``<folder>/<number>/<name>/*.parquet``.
    :param limit: seconds that the tasks of a single message may work; those of a unit have ``ALLOWANCE`` for each further one.
    :param keeps: whether results are wanted.
    :param traced: whether they say which message each row is of.
    """

    def __init__(
        self,
        spark: SparkSession,
        jobs: Jobs,
        table: QueueTable,
        claim: Claim,
        *,
        lookup_ids: NDArray[np.int64],
        transformation: Transformation,
        folder: Path,
        limit: float,
        keeps: bool = True,
        traced: bool = False,
    ) -> None:
        self._spark, self._jobs, self._table, self._claim = spark, jobs, table, claim
        self._transformation, self._function = transformation, transformation.load()
        self._frames = ClaimFrames(spark, table.uri, claim.files, lookup_ids, transformation.schema)
        self._folder, self._limit, self._keeps, self._traced = folder, limit, keeps, traced
        self._token = token_hex(4)
        self._running: dict[int, _Running] = {}
        self._began, self._lock, self._cancelled = 0, threading.Lock(), False
        self._marks: bool | None = None if jobs.local and isinstance(jobs, ClassicJobs) else False

    def run(self, lookup_ids: NDArray[np.int64], *, lands: int | None) -> Ran | Broke:
        """Transform these messages, and keep the result under a number."""
        with self._lock:
            if self._cancelled:
                raise ReceiveStoppedError(f"The pass {self._claim.key} was left. Its claim stays: run it again, it goes on where it stopped.")
            self._began += 1
            mine = self._began
        mark = f"poison.{self._token}.{mine}." if self._marks is not False else None
        number = len(lookup_ids)
        group = f"poison-{self._claim.key}-{self._token}-{mine}"
        try:
            watched = self._jobs.watch(group, f"Transform {number:,} messages of queue {self._table.name}")
        except Exception as error:
            if lost(error):
                raise self._lost(error) from error
            raise
        running = _Running(watched, time.monotonic(), self._limit + ALLOWANCE * (number - 1))
        with self._watched(mine, running):
            try:
                return self._ran(lookup_ids, lands, mark)
            except Exception as error:  # noqa: BLE001  (a user's function, or Spark, may raise anything)
                self._raise_what_is_nobodys_fault(error)
                if lands is not None:
                    self.drop(lands)
                failure = failure_of_job(error)
                if running.late:
                    text = f"The transformation of {number:,} messages worked for more than {running.limit:g} s"
                    failure = Failure(FailureKind.TIMEOUT, "timeout", f"{text}; the policy's transaction timeout is {self._limit:g} s.")
                return Broke(failure, self._marked(mark))
            finally:
                self._forget_marks(mark)

    def _raise_what_is_nobodys_fault(self, error: Exception) -> None:
        from pyspark.errors import AnalysisException

        if isinstance(error, TransformError):
            raise error
        if isinstance(error, AnalysisException):
            raise TransformError(
                f"transform={self._transformation.name} cannot be planned: {_first_line(error)}\nNobody is charged, nothing was committed."
            ) from error
        if self._cancelled:
            raise ReceiveStoppedError(f"The pass {self._claim.key} was left. Its claim stays: run it again.") from error
        if lost(error):
            raise self._lost(error) from error
        self._table.stage(self._claim)  # raises ClaimLostError when a later holder has shut this one out
        if isinstance(error, OSError):  # of files that this process reads
            raise error
        if _NOT_THEIRS.search(str(error)):
            raise SparkJobError(f"The Spark job of pass {self._claim.key} failed: {why(error)}\nNobody is charged, nothing was committed.") from error

    def drop(self, lands: int) -> None:
        """Forget the result that was kept under a number."""
        shutil.rmtree(self._folder / str(lands), ignore_errors=True)

    def beat(self) -> None:
        """Cancel the jobs whose tasks have worked for too long."""
        now = time.monotonic()
        for running in list(self._running.values()):
            seconds, running.began = now - running.began, now
            if running.watched.works():
                running.seconds += seconds
            if running.seconds > running.limit:
                running.late = True
                running.watched.cancel()

    def cancel(self) -> None:
        """Cancel all jobs; no further one begins."""
        self._cancelled = True
        for running in list(self._running.values()):
            running.watched.cancel()

    def leave(self) -> None:
        """Close the calling thread's connection to the JVM."""
        with suppress(Exception):  # the JVM may be gone
            self._jobs.watch("", "").hang_up()

    def results(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that are kept, with the names of their results."""
        for path in sorted(self._folder.glob("*/*/*.parquet")):
            yield path.parent.name, path

    # One unit

    def _ran(self, lookup_ids: NDArray[np.int64], lands: int | None, mark: str | None) -> Ran:
        from pyspark.sql import Observation

        alias = f"poison_claim_{token_hex(4)}"
        raw = self._frames.raw(lookup_ids, mark)
        observed = Observation(alias) if lands is not None and self._transformation.schema is not None else None
        given = self._frames.given(raw, observed).alias(alias)
        with _calling:
            result = _result(self._function(given), self._transformation.name)
        _check_plan(result, alias, self._transformation)
        if self._marks is None:
            self._marks = not any(_has_python(frame) for frame in result.frames.values())
        keeps = lands is not None and (self._keeps or result.verdict)
        for name, frame in result.frames.items():
            if keeps:
                _landing(frame, verdict=result.verdict, traced=self._traced).write.mode("overwrite").parquet(str(self._folder / str(lands) / name))
            else:
                frame.write.format("noop").mode("overwrite").save()
        unparsed = {} if observed is None or self._observed(observed) == 0 else self._unparsed(lookup_ids)
        verdicts = self._named(self._folder / str(lands), lookup_ids) if keeps and result.verdict else {}
        return Ran({number: failure for number, failure in verdicts.items() if number not in unparsed}, unparsed)

    def _observed(self, observed: Any) -> int | None:
        """Return how many bodies do not parse; None where Spark does not say: it has left the messages out of its plan."""
        said: list[int] = []

        def ask() -> None:
            said.append(observed.get["bad"])
            self.leave()

        thread = threading.Thread(target=ask, name="poison-observe", daemon=True)
        thread.start()
        thread.join(_OBSERVED_SECONDS)
        return said[0] if said else None

    def _unparsed(self, lookup_ids: NDArray[np.int64]) -> dict[int, Failure]:
        """Return whose bodies do not parse, and why."""
        parsed, bad = self._frames.parsed(self._frames.raw(lookup_ids))
        schema = parse_ddl(self._transformation.schema or "")
        rows = parsed.where(bad).select(LOOKUP_ID, "_poison_body").collect()
        return {row[LOOKUP_ID]: failure_of(body_error(row["_poison_body"], schema)) for row in rows}

    def _named(self, folder: Path, lookup_ids: NDArray[np.int64]) -> dict[int, Failure]:
        """Return whom the kept results name; take these messages' rows out of them, and our columns. Raises TransformError."""
        files = sorted(folder.glob("*/*.parquet"))
        verdicts: dict[int, str] = {}
        for path in files:
            verdicts = {**_verdicts_in(path), **verdicts}
        strange = np.setdiff1d(np.array(list(verdicts), np.int64), lookup_ids)
        if len(strange):
            raise TransformError(
                f"transform={self._transformation.name} returned {VERDICT} for {LOOKUP_ID} {strange[0]}, which is none of the messages it was given. "
                f"Keep the column {LOOKUP_ID} as it is. Nobody is charged, nothing was committed."
            )
        for path in files:
            _without(path, verdicts, traced=self._traced)
        return {number: Failure(FailureKind.EXCEPTION, VERDICT, cut(text, MAX_TEXT)) for number, text in verdicts.items()}

    @contextmanager
    def _watched(self, number: int, running: _Running) -> Iterator[None]:
        """Let the jobs of the calling thread be watched; several units' share the executors evenly where the scheduler's mode is FAIR."""
        context = self._spark.sparkContext if isinstance(self._jobs, ClassicJobs) else None
        running.watched.begin()
        if context is not None:
            context.setLocalProperty(_INTERRUPT, "true")
            context.setLocalProperty(_POOL, f"poison-{threading.get_ident()}")
        self._running[number] = running
        query_log = logging.getLogger("DataFrameQueryContextLogger")  # tells of each failure with all stacks, and most are expected here
        query_log.disabled = True
        try:
            yield
        finally:
            del self._running[number]
            with suppress(Exception):  # the JVM may be gone; what ended the unit says so
                if context is not None:
                    context.setLocalProperty(_INTERRUPT, None)  # type: ignore[arg-type]  # None takes it away
                    context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]
                running.watched.end()

    def _lost(self, error: Exception) -> SparkLostError:
        return SparkLostError(
            f"The Spark job of pass {self._claim.key} failed: {why(error)}\nNothing was committed. Run the task again: what was being transformed "
            "then is transformed in small units first, so that a message that ends Spark is found."
        )

    # Marks

    def _marked(self, mark: str | None) -> tuple[int, ...]:
        """Return the messages at which the tasks of a unit stood."""
        if mark is None or not self._marks:
            return ()
        properties = self._properties()
        names = [name for name in properties.stringPropertyNames() if name.startswith(mark)]
        return tuple(sorted({int(properties.getProperty(name)) for name in names}))

    def _forget_marks(self, mark: str | None) -> None:
        if mark is None:
            return
        with suppress(Exception):  # the JVM may be gone, and the marks with it
            properties = self._properties()
            for name in [name for name in properties.stringPropertyNames() if name.startswith(mark)]:
                properties.remove(name)

    def _properties(self) -> Any:
        return self._spark.sparkContext._jvm.java.lang.System.getProperties()  # type: ignore[union-attr]  # noqa: SLF001  (there is no public way)


_INTERRUPT, _POOL = "spark.job.interruptOnCancel", "spark.scheduler.pool"
_NOT_THEIRS = re.compile(r"No space left on device|Disk quota exceeded")
_OBSERVED_SECONDS = 10.0


def _has_python(frame: DataFrame) -> bool:
    """Whether the JVM hands rows to Python: many at once, so that nobody knows which one it is at."""
    plan = str(frame._jdf.queryExecution().optimizedPlan().toString())  # noqa: SLF001  (there is no public way)
    return any(word in plan for word in ("Python", "Pandas", "ArrowEval", "InArrow"))


def _column(frame: DataFrame, wanted: str) -> str | None:
    return next((name for name in frame.columns if name.lower() == wanted), None)


def _landing(frame: DataFrame, *, verdict: bool, traced: bool) -> DataFrame:
    """Return what is written of a result: our columns only where they are read afterwards, under our names, at the end.

    :param traced: rows say where they come from.
    """
    from pyspark.sql import functions as f

    lookup_id, poison = _column(frame, LOOKUP_ID), _column(frame, VERDICT)
    if lookup_id is None or not (verdict or traced):
        return frame if lookup_id is None else frame.drop(lookup_id)
    others = [frame[f"`{name.replace('`', '``')}`"] for name in frame.columns if name not in {lookup_id, poison}]
    ours = [frame[lookup_id].cast("long").alias(LOOKUP_ID)]
    if verdict:
        ours.append((f.lit(None).cast("string") if poison is None else frame[poison].cast("string")).alias(VERDICT))
    return frame.select(*others, *ours)


def _verdicts_in(path: Path) -> dict[int, str]:
    """Return the verdicts of a file of results; its statistics say when there is none."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        verdicts = [group.column(group.num_columns - 1).statistics for group in groups]  # the last column, as it was written
        if all(found is not None and found.null_count == group.num_rows for found, group in zip(verdicts, groups, strict=True)):
            return {}
        rows = file.read([LOOKUP_ID, VERDICT])
    rows = rows.filter(pc.is_valid(rows[VERDICT]))
    if rows[LOOKUP_ID].null_count:
        raise TransformError(f"The transformation returned {VERDICT} in a row whose {LOOKUP_ID} is null. Keep the column {LOOKUP_ID} as it is.")
    ids, texts = cast("list[int]", rows[LOOKUP_ID].to_pylist()), cast("list[str]", rows[VERDICT].to_pylist())
    return dict(zip(ids, texts, strict=True))


def _without(path: Path, lookup_ids: Mapping[int, object], *, traced: bool) -> None:
    """Write a file of results again, without our columns and without the rows of these messages."""
    hidden = path.with_name(f".{path.name}.new")
    gone = pa.array(list(lookup_ids), pa.int64())
    with pq.ParquetFile(path) as file:
        ours = {VERDICT} if traced else {LOOKUP_ID, VERDICT}
        columns = [name for name in file.schema_arrow.names if name not in ours]
        schema = pa.schema([file.schema_arrow.field(name) for name in columns])
        if not columns:
            path.unlink()
            return
        with pq.ParquetWriter(hidden, schema, coerce_timestamps="us", allow_truncated_timestamps=True) as writer:
            for group in range(file.metadata.num_row_groups):
                rows = file.read_row_group(group, [*columns, LOOKUP_ID] if len(gone) and not traced else columns)
                if len(gone):
                    rows = rows.filter(pc.invert(pc.is_in(rows[LOOKUP_ID], gone)))
                writer.write_table(rows.select(columns).cast(schema))
    hidden.replace(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the former file


# Failures --------------------------------------------------------------------------------------------------------------


_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] (.*?)(?=\n\s*at |\nCaused by:|\Z)", re.DOTALL)
_WRAPPERS = frozenset({"TASK_WRITE_FAILED"})
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\s+at |\Z)", re.DOTALL)
_DIED = re.compile(r"(Python worker exited unexpectedly[^\n.]*|ExecutorLostFailure[^\n]*|Python worker failed to connect back[^\n]*)")


def lost(error: Exception) -> bool:
    """Whether an error says that Spark is not there any more."""
    from airflow_poison.core.spark import session

    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return True
    if "SparkContext was shut down" in str(error) or "stopped SparkContext" in str(error):
        return True
    return session.is_of_connect(error) and ("has ended" in session.why(error) or "cannot be reached" in session.why(error))


def failure_of_job(error: Exception) -> Failure:
    """Return what a failed job's messages are charged with: a Python function's exception, Spark's error class with its words, or a death."""
    text = str(error)
    python = _PYTHON.search(text)
    if python is not None:
        lines = python[1].rstrip().splitlines()
        last = next((place for place in reversed(range(len(lines))) if not lines[place].startswith(" ")), len(lines) - 1)
        while last > 0 and not lines[last - 1].startswith(" "):
            last -= 1
        kind, _, words = "\n".join(lines[last:]).partition(": ")
        trace = "\n".join(lines[:last])
        return Failure(FailureKind.EXCEPTION, cut(kind, 500), cut(words, MAX_TEXT), cut_front(f"{trace}\n", MAX_TRACE))
    died = _DIED.search(text)
    if died is not None:
        return Failure(FailureKind.CRASH, "crashed", cut(died[1], MAX_TEXT))
    for condition, words in _CONDITION.findall(text):
        if condition not in _WRAPPERS:
            said, _, context = words.strip().partition("\n")
            said = re.sub(r" SQLSTATE: \w+$", "", said)
            return Failure(FailureKind.EXCEPTION, condition, cut(said, MAX_TEXT), cut_front(context.strip(), MAX_TRACE))
    return Failure(FailureKind.EXCEPTION, type(error).__name__, cut(why(error), MAX_TEXT))


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)[:1_000]


def body_error(body: bytes | None, schema: pa.Schema) -> BodyError:
    """Return why a body does not parse."""
    _, failures = columns_of([body], schema)
    columns = ", ".join(f"{field.name} {ddl_type(field.type)}" for field in schema)
    return failures.get(0) or BodyError(f"The body does not fit the schema as Spark reads JSON: {columns}.")


# A claim ---------------------------------------------------------------------------------------------------------------


RESULTS = "results"
"""The folder of a stage where results are kept."""
_TASK = "frames"
_MOST_SIDE_BY_SIDE = 8
_READ = ("lookup_id", "priority", "expires_at", "abort_count")


def transform_claim(
    spark: SparkSession, jobs: Jobs, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None], tell: Callable[[str], None]
) -> None:
    """Deliver a claim's messages to a transformation: its results stand in the stage then, and what remains of the messages."""
    assert job.transform is not None, "it has one"
    stage = Path(table.stage(claim))
    shutil.rmtree(stage / RESULTS, ignore_errors=True)
    messages = _messages(table.uri, claim.files, job.policy)
    ids = messages.column(LOOKUP_ID).to_numpy()
    carry = RecoveredAttempts.load(Path(job.carry)) if job.carry else RecoveredAttempts()
    limit = job.policy.effective_transaction_timeout.total_seconds()
    folder = stage / RESULTS
    units = SparkUnits(
        spark,
        jobs,
        table,
        claim,
        lookup_ids=ids,
        transformation=job.transform,
        folder=folder,
        limit=limit,
        keeps=bool(job.outputs),
        traced=any(output.provenance for output in job.outputs),
    )
    cores = jobs.cores()
    rules = FrameRules(
        side_by_side=1 if cores is None else max(2, min(cores, _MOST_SIDE_BY_SIDE)),  # a server resolves temporary views when a job runs
        mixes_rows=job.transform.mixes_rows,
    )
    name, began = f"queue {table.name}", time.monotonic()

    def told(line: str) -> None:
        tell(f"{name}: {line}")

    with Journal(Path(job.journal_folder), _TASK, forced=True) as journal:
        outcome = FrameDelivery(job, messages, units, journal, carry=carry, rules=rules, deaths=job.deaths, tell=told).run(keep_alive)
        told(f"{claim.messages:,} messages transformed in {outcome.units:,} units and {time.monotonic() - began:.1f} s")
        reach("frames.outcome.before")
        with OutcomeWriter(stage / "out", _TASK) as writer:
            messages_left = _chosen(table.uri, claim.files, open_ids(job, outcome))
            for rows in settled(job, outcome, carry, messages_left, _results(job, units)):
                keep_alive()
                writer.write(pa.Table.from_batches([rows]))
        reach("frames.outcome.after")


def _results(job: StageJob, units: SparkUnits) -> Iterator[pa.Table]:
    """Yield what was made of the messages that settle, as rows of the partition ``_output``."""
    from airflow_poison.core.outputs_as_rows import MOST_ROWS, landing_frame

    outputs = {output.name: output for output in job.outputs}
    for name, path in units.results() if outputs else ():
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=MOST_ROWS):
                if batch.num_rows:
                    yield landing_frame(job, outputs[name], batch, job.clock.now())


def _messages(root: str, files: Sequence[DataFile], policy: Policy) -> pa.RecordBatch:
    """Return what decisions about messages depend on, in the order of the files' rows; bodies only where they are too large to be handed over."""
    with_properties = policy.reads_properties
    tables = []
    for file in files:
        columns = [*_READ, "properties"] if with_properties else list(_READ)
        rows = pq.read_table(f"{root}/{file.path}", columns=columns, partitioning=None)
        if not with_properties:
            rows = rows.append_column(message_schema().field("properties"), pa.nulls(rows.num_rows, message_schema().field("properties").type))
        bodies = _large_bodies(f"{root}/{file.path}", policy) if policy.unreadable(_sized(LARGEST_BODY)) else pa.nulls(rows.num_rows, pa.binary())
        rows = rows.append_column(pa.field("body", pa.binary()), bodies)
        tables.append(rows.append_column("move_count", pa.array(np.full(rows.num_rows, file.move_count, np.int32))))
    found = pa.concat_tables(tables).combine_chunks()
    return found.to_batches()[0]


def _sized(size: int) -> BatchEntry:
    return BatchEntry(0, 0, size, None, Counts())


def _large_bodies(path: str, policy: Policy) -> pa.ChunkedArray[Any]:
    """Return the bodies that the policy does not let be handed over, null for all others."""
    pieces: list[pa.Array[Any]] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["body"]):
            sizes = pc.binary_length(cast("Any", batch.column("body"))).to_pylist()
            refused = [policy.unreadable(_sized(size or 0)) is not None for size in sizes]
            pieces.append(pc.if_else(pa.array(refused, pa.bool_()), batch.column("body"), pa.scalar(None, pa.binary())))
    return pa.chunked_array(pieces, pa.binary())


def _chosen(root: str, files: Sequence[DataFile], lookup_ids: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield messages in batches of ``message_schema()`` and ``move_count``, of row groups that have any of them."""
    names, wanted = message_schema().names, np.sort(lookup_ids)
    for file in files:
        if not len(wanted) or np.searchsorted(wanted, file.min_lookup_id) == np.searchsorted(wanted, file.max_lookup_id, side="right"):
            continue
        with pq.ParquetFile(f"{root}/{file.path}") as parquet:
            for group in range(parquet.metadata.num_row_groups):
                ids = parquet.read_row_group(group, [LOOKUP_ID]).column(0).to_numpy()
                if not np.isin(ids, wanted).any():
                    continue
                for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=names):
                    chosen = batch.filter(pa.array(np.isin(batch.column(LOOKUP_ID).to_numpy(), wanted)))
                    if chosen.num_rows:
                        counts = pa.array(np.full(chosen.num_rows, file.move_count, np.int32))
                        cast = [chosen.column(field.name).cast(field.type) for field in message_schema()]
                        yield pa.record_batch([*cast, counts], names=[*names, "move_count"])


_BATCH_ROWS = 16_384
