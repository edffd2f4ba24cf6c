"""Units of a claim as Spark jobs: watched, cancelled when they take too long, and where they stood when they failed.

Their results are written below the claim's stage, with the messages that they name; rows of named messages do not land.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial, reduce
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery.handlers import POISON_COLUMN
from airflow_poison.delivery.units import Broke, Ran, SparkLostError, on_threads
from airflow_poison.delivery.verdicts import MAX_TEXT, cut, failure_of, type_name
from airflow_poison.outputs.output import CORRECTIONS, corrections_field, does_not_fit
from airflow_poison.outputs.row_files import names_plainly
from airflow_poison.outputs.values import fits_type, is_list
from airflow_poison.spark import catching
from airflow_poison.spark.catching import PLACE, PLACE_BITS, RAISED
from airflow_poison.spark.function import (
    called,
    column_named,
    depends_on_place,
    failed_task,
    failure_of_job,
    failure_of_python,
    has_python,
    lost,
    optimized_plan,
    partitioned,
    unconverted,
)
from airflow_poison.spark.jobs import ClassicJobs, why
from airflow_poison.spark.messages import LARGEST_SPREAD, WHY, ClaimFrames, arrow_schema, is_of_body, noting, planning, shares
from airflow_poison.spark.python_errors import PythonErrors, all_noted, errors_noted
from airflow_poison.spark.shares import UNREAD, unread
from airflow_poison.values.ddl import quoted
from airflow_poison.values.errors import BodyError, OutputRowError, ReceiveStoppedError, SparkJobError, TransformError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import LOOKUP_ID
from airflow_poison.values.texts import first_line, local_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from airflow_poison.delivery.handlers import Transformation
    from airflow_poison.outputs.output import Output
    from airflow_poison.spark.function import Result
    from airflow_poison.spark.jobs import Jobs, Watched
    from airflow_poison.spark.messages import Raw
    from airflow_poison.spark.nodes import NodeSite
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable


ALLOWANCE = 0.005
"""Seconds that a unit may take longer for each message: a chunk of 64,000 has more than five minutes beside the transaction timeout."""
TIMES_SLOWER, ENOUGH = 20, 1_000
"""Nor may it take longer than so many times what the unit before it took that had enough messages to measure."""
_TOO_MUCH = re.compile(r"maxResultSize|exceeds the maximum")
"""What Spark says of a result that is too large for the driver."""
_POOL = "spark.scheduler.pool"
_NOT_THEIRS = re.compile(rf"No space left on device|Disk quota exceeded|{UNREAD}")
_WORKER_KILLED = re.compile(r"CancelledKeyException|ClosedSelectorException|ClosedChannelException|AsynchronousCloseException|EOFException")
_KILLS_FOR = 30.0
"""So many seconds after a job was cancelled may Spark still kill a Python worker of its tasks that has been given to another task since: it does so
when a task with two of them, one that makes columns of bodies and one of the transformation, hangs in the second."""
_OBSERVED_SECONDS, _FARTHEST = 10.0, 262_142
_MOST_READERS = 8
"""Tasks that read a claim where it is not known how many run at the same time."""


_PARTS = 8
"""Into so many parts of one plan a set is cut: each costs 30 ms, with Python 60 ms."""
_MOST_IN_PARTS = 100_000
"""So many messages are parts of one plan."""

T = TypeVar("T")


_UNCAUGHT = Broke(Failure(FailureKind.EXCEPTION, "", "Its errors cannot be caught."))
"""Of a unit that was not run."""


class _TooLarge(Exception):  # noqa: N818  (no error: it ends an attempt)
    """A partition's result is more than the driver takes."""


class NotCaught(Exception):  # noqa: N818  (no error: it ends an attempt)
    """Spark cannot catch the errors of this plan, or what raised is not known by message."""


class _Plan(NamedTuple):
    """A plan, each of whose partitions has the rows of one set of messages.

    :param frames: the results by their names.
    :param rdds: of each result, batches of Arrow.
    :param schemas: of each result.
    :param judged: see ``Written``.
    """

    frames: Mapping[str, DataFrame]
    rdds: Mapping[str, Any]
    schemas: Mapping[str, pa.Schema]
    judged: bool


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
    :param limit: seconds that the tasks of a single message may work; a unit's tasks have more for each further one, ``ALLOWANCE`` at most.
    :param outputs: where results land; none: they are not kept.
    :param site: where tasks work that do not see the table's folder; None: they do.
    :ivar parts: into how many sets messages are cut that are tried in partitions of one plan; 0: they cannot be, as far as is known.
    :ivar catches: messages that raise can be found without failing a job, as far as is known.
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
        outputs: Sequence[Output] = (),
        site: NodeSite | None = None,
    ) -> None:
        self._spark, self._jobs, self._table, self._claim = spark, jobs, table, claim
        self._transformation, self._function = transformation, transformation.load()
        self._site = site
        read = None if site is None else partial(site.frame, spark, tasks=jobs.cores() or _MOST_READERS)
        self._frames = ClaimFrames(spark, table.root, claim.files, lookup_ids, transformation.schema, earlier=transformation.earlier, read=read)
        self._folder, self._limit, self._outputs = folder, limit, outputs
        self._named: dict[int, Collection[int]] = {}
        self._token = token_hex(4)
        self._running: dict[int, _Running] = {}
        self._began, self._lock, self._cancelled, self._allowance = 0, threading.Lock(), False, ALLOWANCE
        self._marks: bool | None = None if jobs.local and isinstance(jobs, ClassicJobs) else False
        self._strict, self._late_at = transformation.schema is not None, float("-inf")
        self.parts = _PARTS if isinstance(jobs, ClassicJobs) and not transformation.mixes_rows else 0
        self._looked = self._marks is False and not self.parts  # the plan says nothing else
        self.catches = isinstance(jobs, ClassicJobs) and not transformation.mixes_rows and bool(outputs)

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        """Transform these messages, and keep the result under a number. What Spark may have killed for a job that was cancelled runs once more."""
        found = self._run_job(lookup_ids, attempts, lands=lands, traced=traced)
        if isinstance(found, Broke) and self._may_be_killed(found.failure):
            found = self._run_job(lookup_ids, attempts, lands=lands, traced=traced)
        return found

    def caught(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int) -> Ran | Broke:
        """Transform these messages; those that raise are named, and what is made of the others is kept under a number."""
        return self._run_job(lookup_ids, attempts, lands=lands, traced=False, catches=True)

    def _may_be_killed(self, failure: Failure) -> bool:
        dead = failure.kind is FailureKind.CRASH or _WORKER_KILLED.search(failure.text) is not None
        return dead and time.monotonic() - self._late_at < _KILLS_FOR

    def _run_job(
        self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool, catches: bool = False
    ) -> Ran | Broke:
        number, began = len(lookup_ids), time.monotonic()
        spread = traced and self._spreads(number)
        with self._job(number) as (mine, running):
            mark = f"poison.{self._token}.{mine}." if traced and self._marks is not False else None
            try:
                ran = self._with_strict_bodies(lookup_ids, lands, self._frames.raw(lookup_ids, attempts, spread=spread), mark, catches=catches)
            except NotCaught:
                self.catches = False
                self.drop(lands or 0)
                return _UNCAUGHT
            except Exception as error:  # noqa: BLE001  (a user's function, or Spark, may raise anything)
                self._raise_unless_of_a_row(error)
                if lands is not None:
                    self.drop(lands)
                traceable = number > 1 and (mark is None if self._marks else not traced and not running.late and self._spreads(number))
                suspects = self._share(lookup_ids, error) if spread else self._marked(mark)
                return Broke(self._failure(error, number, running), suspects, traceable)
            finally:
                self._forget_marks(mark)
        if number >= ENOUGH:
            self._allowance = min(ALLOWANCE, TIMES_SLOWER * (time.monotonic() - began) / number)
        return ran

    @contextmanager
    def _job(self, number: int) -> Iterator[tuple[int, _Running]]:
        """Have the jobs of the calling thread watched while the block runs, and cancelled when so many messages take too long."""
        with self._lock:
            if self._cancelled:
                raise ReceiveStoppedError.of(self._claim.key)
            self._began += 1
            mine = self._began
        group = f"poison-{self._claim.key}-{self._token}-{mine}"
        try:
            watched = self._jobs.watch(group, f"Transform {number:,} messages of queue {self._table.name}", interrupts=True)
        except Exception as error:
            if lost(error):
                raise self._lost(error) from error
            raise
        running = _Running(watched, time.monotonic(), self._limit + self._allowance * (number - 1))
        with self._watched(mine, running):
            yield mine, running

    def _failure(self, error: Exception, number: int, running: _Running) -> Failure:
        """Return what the messages of a failed job would be charged with."""
        if not running.late:
            return failure_of_job(error)
        text = f"The transformation of {number:,} messages worked for more than {running.limit:g} s"
        return Failure(FailureKind.TIMEOUT, "timeout", f"{text}; the policy's transaction timeout is {self._limit:g} s.")

    # Sets of messages, each by itself

    def each(
        self, sets: Sequence[NDArray[np.int64]], attempts: Sequence[NDArray[np.int32]], *, lands: Sequence[int] | None
    ) -> Sequence[Ran | Broke] | None:
        """Transform each set by itself, in a partition of its own of one plan: it is made once.

        None where this cannot be done: a Spark Connect server runs plans as a whole, and where rows are shuffled a partition of the result has rows
        of several sets.
        """
        ends: list[Ran | Broke] = []
        first = 0
        while self.parts and first < len(sets):
            last, rows = first, 0
            while last < len(sets) and (last == first or rows + len(sets[last]) <= _MOST_IN_PARTS):
                rows += len(sets[last])
                last += 1
            found = self._tried(sets[first:last], attempts[first:last], None if lands is None else lands[first:last])
            if found is None:
                self.parts = 0
            else:
                ends += found
                first = last
        if not self.parts:
            for number in lands or ():
                self.drop(number)
        return ends if self.parts else None

    def _tried(
        self, sets: Sequence[NDArray[np.int64]], attempts: Sequence[NDArray[np.int32]], lands: Sequence[int] | None
    ) -> list[Ran | Broke] | None:
        """Transform sets; None where the plan does not keep them apart."""
        from pyspark.errors import AnalysisException

        mark = None if self._marks is False else f"poison.{self._token}.{token_hex(4)}."
        try:
            parts = self._frames.parts(sets, attempts)
            if parts is None:
                return None
            with self._job(sum(map(len, sets))):
                plan = _Plan({}, {}, {}, judged=False) if parts.frame is None else self._planned(parts.frame, len(parts.of), mark)
        except (AnalysisException, TransformError):  # of frames that are read otherwise
            return None
        except Exception as error:  # noqa: BLE001  (a user's function, or Spark, may raise anything)
            self._raise_unless_of_a_row(error)
            return None  # a job for each set says whose fault it is
        if plan is None:
            return None
        unfit = {number: failure_of(BodyError(why)) for number, why in parts.unfit.items()}
        unparsed = [{number: unfit[number] for number in ids.tolist() if number in unfit} for ids in sets]
        found: list[Ran | Broke] = [Ran(unparsed=each) for each in unparsed]
        tasks = {
            of: partial(self._part, plan, place, parts.ids[place], mark, None if lands is None else lands[of]) for place, of in enumerate(parts.of)
        }
        try:
            for of, end in zip(tasks, self._side_by_side([*tasks.values()]) if tasks else (), strict=True):
                found[of] = Ran(end.verdicts, unparsed[of]) if isinstance(end, Ran) else end
        except _TooLarge:
            return None
        finally:
            self._forget_marks(mark)
        return found

    def _planned(self, given: DataFrame, parts: int, mark: str | None) -> _Plan | None:
        """Return the plan for sets of messages, each of which is in the partition that it is given in; None where that cannot be."""
        result = called(self._function, given if mark is None else noting(given, mark, LOOKUP_ID), self._transformation)
        found = written(result, self._outputs)
        with planning(self._spark, {"spark.sql.execution.arrow.useLargeVarTypes": "false"}):
            plans = {name: partitioned(frame) for name, frame in found.frames.items()}
        if not all(plan is not None and plan.getNumPartitions() == parts for plan in plans.values()):
            return None
        return _Plan(found.frames, plans, {name: arrow_schema(frame, nullable=True) for name, frame in found.frames.items()}, found.judged)

    def _part(self, plan: _Plan, place: int, ids: NDArray[np.int64], mark: str | None, lands: int | None) -> Ran | Broke:
        """Run one partition of a plan; once more where Spark may have killed it for a job that was cancelled."""
        found = self._partition(plan, place, ids, mark, lands)
        if isinstance(found, Broke) and self._may_be_killed(found.failure):
            found = self._partition(plan, place, ids, mark, lands)
        return found

    def _partition(self, plan: _Plan, place: int, ids: NDArray[np.int64], mark: str | None, lands: int | None) -> Ran | Broke:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with self._job(len(ids)) as (_, running), self._errors_caught() as notes:
            context = self._spark.sparkContext
            wanted = context._gateway.new_array(context._jvm.int, 1)  # type: ignore[union-attr]  # noqa: SLF001  (there is no public way)
            wanted[0] = place
            # Each has an RDD of its own: Spark fails all jobs of the RDD of which one fails.
            own = {name: rdd.glom() for name, rdd in plan.rdds.items()}
            try:
                with unconverted():
                    made = {name: rdd.collectPartitions(wanted) for name, rdd in own.items()}
            except (Py4JError, PySparkException) as error:
                if _TOO_MUCH.search(str(error)):
                    raise _TooLarge from error
                self._raise_unless_of_a_row(error)
                noted = None if mark is None else self._properties().getProperty(f"{mark}{place}")
                return Broke(self._failure(error, len(ids), running), () if noted is None else (int(noted),))
            if notes is not None and (raised := _caught([each for _, each in all_noted(notes)], ids)) is not None:
                return raised
        if lands is None:
            return Ran()
        if self._outputs or plan.judged:
            for name, batches in made.items():
                _keep(self._folder / str(lands) / name, batches[0][0], plan.schemas[name])
        return Ran(self._verdicts(lands, ids) if plan.judged else {})

    def _errors_caught(self) -> AbstractContextManager[str | None]:
        """Return a context in which errors of Python functions are noted, where they can be."""
        return errors_noted(self._spark.sparkContext) if self._marks is False and self._jobs.local else nullcontext()

    def _side_by_side(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Do tasks, several at a time; return what they return, in their order. Raises what a task raises."""
        threads, results, raised = on_threads(tasks, min(len(tasks), self._jobs.cores() or 1, _MOST_READERS), self.leave)
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return [results[place] for place in range(len(tasks))]

    def _raise_unless_of_a_row(self, error: Exception) -> None:
        from pyspark.errors import AnalysisException

        if isinstance(error, TransformError):
            raise error
        if isinstance(error, AnalysisException):
            raise TransformError(
                f"transform={self._transformation.name} cannot be planned: {first_line(error)}\nNo message is charged, nothing was committed."
            ) from error
        if self._cancelled:
            raise ReceiveStoppedError.of(self._claim.key) from error
        if lost(error):
            raise self._lost(error) from error
        self._table.stage(self._claim)  # raises ClaimLostError when a later holder has shut this one out
        if isinstance(error, OSError):  # of files that this process reads
            raise error
        file = self._frames.unread(error)
        if file is not None or _NOT_THEIRS.search(str(error)):
            text = why(error) if file is None else unread(f"{file}: it is damaged or gone")
            raise SparkJobError(f"The Spark job of pass {self._claim.key} failed: {text}\nNo message is charged, nothing was committed.") from error

    def drop(self, lands: int) -> None:
        """Forget the result that was kept under a number."""
        self._named.pop(lands, None)
        shutil.rmtree(self._folder / str(lands), ignore_errors=True)

    def beat(self) -> None:
        """Cancel the jobs whose tasks have worked for too long."""
        now = time.monotonic()
        for running in list(self._running.values()):
            seconds, running.began = now - running.began, now
            if running.watched.works():
                running.seconds += seconds
            if running.seconds > running.limit:
                running.late, self._late_at = True, now
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

    def results(self, most: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows that land, with the names of their results.

        :param most: rows of a batch.
        """
        for path in sorted(self._folder.glob("*/*/*.parquet")):
            named = self._named.get(int(path.parent.parent.name), ())
            for batch in landing_in(path, named, most=most):
                yield path.parent.name, batch

    # One unit

    def _with_strict_bodies(self, lookup_ids: NDArray[np.int64], lands: int | None, raw: Raw, mark: str | None, *, catches: bool) -> Ran:
        """Transform; from the first body that does not fit on, such bodies are counted."""
        if self._strict and not catches:
            try:
                return self._run_plan(lookup_ids, lands, raw, mark, strict=True)
            except Exception as error:
                if self._cancelled or not is_of_body(error):
                    raise
                self._strict = False
        return self._run_plan(lookup_ids, lands, raw, mark, strict=False, catches=catches)

    def _run_plan(self, lookup_ids: NDArray[np.int64], lands: int | None, raw: Raw, mark: str | None, *, strict: bool, catches: bool = False) -> Ran:
        """Call the function, and run its plan.

        :param strict: a body that does not fit fails the job.
        :param catches: a row that raises does not.
        """
        from pyspark.sql import Observation

        classic = isinstance(self._jobs, ClassicJobs)  # else its plans cannot be changed
        counts = lands is not None and self._transformation.schema is not None and not strict
        observed = Observation(f"poison_{token_hex(4)}") if counts else None
        if observed is None:
            given = counted = self._frames.given(raw, mark, strict=strict)
        else:
            given, counted = self._frames.counted(raw, mark, observed)
        result = called(self._function, given if classic else counted, self._transformation)
        observed = None if observed is not None and not classic and is_taken(observed) else observed
        if not self._looked:
            plans = [optimized_plan(frame) for frame in result.frames.values()]
            python, self._looked = any(map(has_python, plans)), True
            self._marks = self._marks is not False and not python
            if any(map(depends_on_place, plans)):
                self.parts = 0
        found = written(result, self._outputs)
        keeps = lands is not None and (bool(self._outputs) or found.judged)
        if catches and keeps:
            return self._run_catching_plan(
                cast("int", lands),
                lookup_ids,
                {name: catching.caught(frame, given, instead=counted) for name, frame in found.frames.items()},
                observed,
            )
        for name, plain in found.frames.items():
            frame = catching.reading(plain, given, counted) if counts and classic else plain
            if frame is None:
                frame, observed = plain, None
            if keeps:
                self._write(frame, cast("int", lands), name)
            else:
                frame.write.format("noop").mode("overwrite").save()
        unparsed = self._unparsed(observed, lookup_ids) if counts else {}
        verdicts = self._verdicts(lands, lookup_ids) if lands is not None and found.judged else {}
        return Ran({number: failure for number, failure in verdicts.items() if number not in unparsed}, unparsed)

    def _write(self, frame: DataFrame, lands: int, name: str) -> None:
        if self._site is not None:
            self._site.keep(frame, self._folder / str(lands) / name)
        else:
            frame.write.mode("overwrite").parquet(local_uri(f"{self._folder}/{lands}/{name}"))

    def _run_catching_plan(
        self, lands: int, lookup_ids: NDArray[np.int64], caught: Mapping[str, DataFrame | None], observed: Observation | None
    ) -> Ran:
        """Run plans whose errors are caught. Raises NotCaught."""
        from pyspark.errors import AnalysisException

        raised, spoiled = set[int](), set[int]()
        for name, frame in caught.items():
            if frame is None:
                raise NotCaught
            placed = PLACE in frame.columns
            with self._errors_caught() if placed else nullcontext() as notes:
                if placed and notes is None:
                    raise NotCaught
                try:
                    self._write(frame, lands, name)
                except AnalysisException as error:  # it was planned without what catches errors
                    raise NotCaught from error
                if notes is not None:
                    raising, with_them = raised_in_python(all_noted(notes), (self._folder / str(lands) / name).glob("*.parquet"))
                    raised |= raising
                    spoiled |= with_them
        unparsed = {} if self._transformation.schema is None else self._unparsed(observed, lookup_ids)
        verdicts = self._verdicts(lands, lookup_ids)
        raised |= {number for number, failure in verdicts.items() if failure.text == RAISED}
        gone = raised | spoiled
        self._named[lands] = {*self._named[lands], *gone}
        verdicts = {number: failure for number, failure in verdicts.items() if number not in unparsed and number not in gone}
        return Ran(verdicts, unparsed, tuple(sorted(raised)), tuple(sorted(spoiled - raised)))

    def _unparsed(self, observed: Observation | None, lookup_ids: NDArray[np.int64]) -> dict[int, Failure]:
        """Return whose bodies do not fit, and why.

        :param observed: has counted them; None: they were not counted.
        """
        if observed is not None and observed_in(observed, "bad", self.leave) == 0:
            return {}
        rows = self._frames.parsed(self._frames.raw(lookup_ids)).where(f"{WHY} IS NOT NULL").select(LOOKUP_ID, WHY).collect()
        return {row[LOOKUP_ID]: failure_of(BodyError(row[WHY])) for row in rows}

    def _verdicts(self, lands: int, lookup_ids: NDArray[np.int64]) -> dict[int, Failure]:
        """Return the messages that the kept results name: their rows do not land. Raises TransformError."""
        verdicts: dict[int, Failure] = {}
        for path in sorted((self._folder / str(lands)).glob("*/*.parquet")):
            found = verdicts_in(path)
            verdicts = {**found, **verdicts, **{number: failure for number, failure in found.items() if failure.text == RAISED}}
        named = np.fromiter(verdicts, np.int64, len(verdicts))
        strange = named[~np.isin(named, lookup_ids)]  # setdiff1d sorts all of the unit
        if len(strange):
            raise TransformError(
                f"transform={self._transformation.name} returned {POISON_COLUMN} for {LOOKUP_ID} {strange[0]}, which is none of the messages it was "
                f"given. Keep the column {LOOKUP_ID} as it is. No message is charged, nothing was committed."
            )
        self._named[lands] = verdicts.keys()
        return verdicts

    @contextmanager
    def _watched(self, number: int, running: _Running) -> Iterator[None]:
        """Let the jobs of the calling thread be watched; several units' share the executors evenly where the scheduler's mode is FAIR."""
        context = self._spark.sparkContext if isinstance(self._jobs, ClassicJobs) else None
        running.watched.begin()
        if context is not None:
            context.setLocalProperty(_POOL, f"poison-{threading.get_ident()}")
        self._running[number] = running
        try:
            yield
        finally:
            del self._running[number]
            with suppress(Exception):  # the JVM may be gone; what ended the unit says so
                if context is not None:
                    context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]  # None takes it away
                running.watched.end()

    def _lost(self, error: Exception) -> SparkLostError:
        return SparkLostError(
            f"The Spark job of pass {self._claim.key} failed: {why(error)}\nNothing was committed. Run the task again: what was being transformed "
            "then is transformed in small units first, so that a message that ends Spark is found."
        )

    # Who was worked on when a unit failed

    def _spreads(self, number: int) -> bool:
        """Whether a unit without marks is spread over tasks, so that the one that fails points at an eighth."""
        locates = self._marks is False and isinstance(self._jobs, ClassicJobs) and not self.parts
        return locates and not self._transformation.mixes_rows and 1 < number <= LARGEST_SPREAD

    @staticmethod
    def _share(lookup_ids: NDArray[np.int64], error: Exception) -> tuple[int, ...]:
        """Return the messages of the task that failed; where the plan spreads them anew they are the wrong ones, which their own run shows."""
        return tuple(lookup_ids[shares(lookup_ids) == failed_task(error)].tolist())

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


def is_taken(observation: Any) -> bool:
    """Whether an action inside a function has taken the counts of an ``Observation`` of Spark Connect: it may have read some of the rows."""
    return getattr(observation, "_result", None) is not None


def observed_in(observation: Any, name: str, leave: Callable[[], object]) -> int | None:
    """Return what Spark has counted in a plan that has run; None where it does not say: it has left that part out of its plan.

    :param leave: called by the thread that asks, when it has the answer.
    """
    answers: list[int] = []

    def ask() -> None:
        with suppress(Exception):  # Spark has left out what counts them, or the JVM is gone
            answers.append(observation.get[name])
        leave()

    thread = threading.Thread(target=ask, name="poison-observe", daemon=True)
    thread.start()
    thread.join(_OBSERVED_SECONDS)
    return answers[0] if answers else None


def _caught(functions: Sequence[PythonErrors], ids: NDArray[np.int64]) -> Broke | None:
    """Return the failure of a set for which Python functions have raised: of the first message whose error is known. None: there is none.

    :param ids: that the task was given. Where a function was given as many rows, each is of one message.
    """
    found: dict[int, str] = {}
    for each in functions:
        if each.named:
            found |= each.errors
        elif each.rows == len(ids):
            found |= {int(ids[row]): text for row, text in each.errors.items()}
    if not functions:
        return None
    first = found[min(found)] if found else next(iter(functions[0].errors.values()))
    return Broke(failure_of_python(first), tuple(found))


def raised_in_python(notes: Sequence[tuple[int, PythonErrors]], files: Iterable[Path], number: str = LOOKUP_ID) -> tuple[set[int], set[int]]:
    """Return the lookup ids of messages for which Python functions have raised, and of those that were given to the functions together with them.

    :param notes: with the numbers of their partitions.
    :param files: the result, whose rows say which row of which partition they were.
    :param number: the column of lookup ids.
    Raises NotCaught where what was noted is not of these rows.
    """
    raised, spoiled = set[int](), set[int]()
    if not notes:
        return raised, spoiled
    rows = pa.concat_tables([pq.read_table(path, columns=[PLACE, number], partitioning=None) for path in files])
    places, ids = rows[PLACE].to_numpy(), rows[number].to_numpy()
    order = np.argsort(places)
    places, ids = places[order], ids[order]
    for partition, each in notes:
        first, end = np.searchsorted(places, [partition << PLACE_BITS, (partition + 1) << PLACE_BITS])
        if not each.exact or end - first != each.rows or places[end - 1] != (partition << PLACE_BITS) + each.rows - 1:
            raise NotCaught
        raised.update(ids[first + np.array([*each.errors])].tolist())
        for start, size in each.spoiled:
            spoiled.update(ids[first + start : first + start + size].tolist())
    return raised, spoiled


def _keep(folder: Path, batches: Sequence[bytes], schema: pa.Schema) -> None:
    """Write batches of Arrow as Spark writes the results of units."""
    folder.mkdir(parents=True)
    with pq.ParquetWriter(folder / "part.parquet", schema) as writer:
        for batch in batches:
            writer.write_batch(pa.ipc.read_record_batch(pa.py_buffer(bytes(batch)), schema))


_MISFIT = "_poison_misfit"
"""The column that says which cell of a row does not fit its output."""
_UNFIT = "OutputRowError: "
"""Begins the verdicts of ours, about rows that do not fit their output."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is written of a result.

    :param frames: by name, without ``lookup_id`` and ``_poison``, but where these are read afterwards: then they are the last columns.
    :param judged: ``_poison`` is there: it says what is wrong with a row's message.
    """

    frames: Mapping[str, DataFrame]
    judged: bool


def written(result: Result, outputs: Sequence[Output]) -> Written:
    """Return what is written of a result.

    A null where its output wants a value is a verdict; where rows do not name their messages it fails the job.
    """
    from pyspark.sql import functions as f

    by_name = {output.name: output for output in outputs}
    corrected = {key: _corrected(frame, by_name.get(key)) for key, frame in result.frames.items()}
    wanted = {key: _wanted(frame, by_name.get(key)) for key, frame in corrected.items()}
    named = all(column_named(frame, LOOKUP_ID) for frame in result.frames.values())
    judged = result.verdict or (named and (any(wanted.values()) or any(_MISFIT in frame.columns for frame in corrected.values())))
    frames = {}
    for key, frame in corrected.items():
        lookup_id, poison = column_named(frame, LOOKUP_ID), column_named(frame, POISON_COLUMN)
        columns = {name: frame[quoted(name)] for name in frame.columns if name not in {lookup_id, poison, _MISFIT}}
        frame = _with_all(frame, by_name.get(key))  # noqa: PLW2901  (its conditions may name any column of the output)
        texts = [f.when(~f.coalesce(f.expr(fits), f.lit(False)), f.lit(f"{_UNFIT if named else ''}{text}")) for text, fits in wanted[key].items()]  # noqa: FBT003
        if _MISFIT in frame.columns:
            texts.insert(0, f.concat(f.lit(_UNFIT if named else ""), frame[_MISFIT]))
        if not named and texts and columns:
            first = next(iter(columns))
            broken = f.coalesce(*texts)
            columns[first] = f.when(broken.isNotNull(), f.raise_error(broken)).otherwise(columns[first]).alias(first)
        ours: list[Column] = []
        if lookup_id is not None and (judged or outputs):
            ours.append(frame[lookup_id].cast("long").alias(LOOKUP_ID))
        if judged:
            verdict_text = f.lit(None).cast("string") if poison is None else frame[poison].cast("string")
            ours.append(f.make_valid_utf8(reduce(f.coalesce, texts, verdict_text)).alias(POISON_COLUMN))  # Spark's texts may be any bytes
        frames[key] = frame.select(*columns.values(), *ours)
    return Written(frames, judged)


def _corrected(frame: DataFrame, output: Output | None) -> DataFrame:
    """Return a frame with the types of its output, where cells that do not fit are to be null: ``CORRECTIONS`` says which they are.

    Where a column must not be null, ``_MISFIT`` says what is wrong with its row.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    if output is None or not output.nulls:
        return frame
    news, corrections, misfits = dict[str, "Column"](), list["Column"](), list["Column"]()
    given = {field.name: field.type for field in arrow_schema(frame)}
    for field in output.columns or ():
        if field.name not in given or fits_type(given[field.name], field.type):
            continue
        cell = frame[quoted(field.name)]
        news[field.name] = kept = cell.try_cast(from_arrow_type(field.type, prefer_timestamp_ntz=True))
        bad = cell.isNotNull() & ~f.coalesce(_is_same(cell, kept, given[field.name], field.type), f.lit(False))  # noqa: FBT003
        text, why = cell.cast("string"), does_not_fit(field.type)
        if output.may_null(field):
            corrections.append(f.when(bad, f.struct(f.lit(field.name).alias("column"), text.alias("value"), f.lit(why).alias("why"))))
            news[field.name] = f.when(~bad, kept)
        else:
            misfits.append(f.when(bad, f.concat(f.lit(f"Column {field.name!r} of {output.named} {why}: "), text)))
    done = f.array_compact(f.array(*corrections))
    news[CORRECTIONS] = f.when(f.size(done) > 0, done).cast(from_arrow_type(corrections_field().type))
    return frame.withColumns(news | ({_MISFIT: f.coalesce(*misfits)} if misfits else {}))


_NO_INSTANT = r"^\s*T?\d{1,2}:|\.\d{6}\d*[1-9]"
"""Texts that Spark reads as an instant of today, or without the digits behind microseconds."""
_ZONED = r":\d{2}(\.\d*)?\s*[A-Za-z+-]"
"""Times with a zone, which Spark leaves out of times without one."""


def _is_same(cell: Column, kept: Column, given: pa.DataType, wanted: pa.DataType) -> Column:
    """Return whether a cast has kept all of a cell, as handlers' values are kept (``outputs.values``); null where it has not kept it."""
    from pyspark.sql import functions as f

    of, yes = pa.types, f.lit(True)  # noqa: FBT003
    if of.is_floating(wanted):
        infinite = f.abs(kept) == float("inf")
        if of.is_integer(given):
            return kept.cast("decimal(38, 0)") == cell
        return kept.isNotNull() & (~infinite | (f.abs(cell) == float("inf") if of.is_floating(given) else cell.cast("string").ilike("%inf%")))
    if of.is_floating(given):
        return kept.cast("double") == cell
    if of.is_timestamp(wanted):
        return kept.isNotNull() & ~cell.rlike(_NO_INSTANT if wanted.tz else f"{_NO_INSTANT}|{_ZONED}")
    if not (of.is_integer(given) or of.is_decimal(given)):  # text, of which a cast may leave digits or a time of the day out
        wider = "decimal(38, 18)" if of.is_decimal(wanted) else "timestamp_ntz" if of.is_date(wanted) else None
        return kept.isNotNull() if wider is None else kept.isNotNull() & f.coalesce(kept.cast(wider) == cell.try_cast(wider), yes)
    return kept == cell


def _wanted(frame: DataFrame, output: Output | None) -> dict[str, str]:
    """Return what to say of rows that do not fit an output, and the expression of Spark that is true of those that do.

    Columns must have a value where Spark knows no more than that they may be null; and the output's table may have conditions.
    """
    if output is None:
        return {}
    given = arrow_schema(frame)
    far = {f"A row does not fit {output.named}: {why}.": fits for why, fits in _far_from_delta_rs(output, given).items()}
    if output.columns is None:
        return far
    must = [field.name for field in output.columns if not field.nullable and frame.schema[field.name].nullable]
    found = {f"Column {name!r} of {output.named} must have a value; the row has none.": f"{quoted(name)} IS NOT NULL" for name in must}
    for field in (field for field in output.columns if field.name in given.names):
        if not fits_type(given.field(field.name).type, field.type) and (fits := _has_parts(quoted(field.name), field.type)):
            found[f"A part of column {field.name!r} of {output.named} must have a value; the row has none."] = fits
    rules = {} if output.rules is None else output.rules.for_spark()
    return found | far | {f"A row does not fit {output.named}: {why}.": fits for why, fits in rules.items()}


def _far_from_delta_rs(output: Output, given: pa.Schema) -> dict[str, str]:
    """Return why dates do not fit where delta-rs writes the rows once more, which knows none so far away, and what is true of those that do."""
    rules, again = output.rules, bool(output.keys)
    partitions = () if rules is None else rules.partitions
    if rules is None:
        again |= any(pa.types.is_timestamp(field.type) and field.type.tz is None for field in given)
    else:
        again |= bool(rules.conditions or rules.generated) or any(not field.nullable for field in output.columns or ())
        again |= any(field.name in partitions and not names_plainly(field.type) for field in given)
    return {
        f"the column {field.name!r} has a year before {-_FARTHEST} or after {_FARTHEST}, which delta-rs cannot write": (
            f"{quoted(field.name)} IS NULL OR year({quoted(field.name)}) BETWEEN {-_FARTHEST} AND {_FARTHEST}"
        )
        for field in given
        if (pa.types.is_date(field.type) and (again or field.name in partitions)) or (pa.types.is_timestamp(field.type) and field.name in partitions)
    }


def _has_parts(value: str, kind: Any, depth: int = 0) -> str:
    """Return the expression of Spark that is true of a value whose parts have values wherever its type says so; empty: it says so nowhere."""
    if pa.types.is_struct(kind):
        parts = [(f"{value}.{quoted(field.name)}", field) for field in kind]
        wanted = [
            *(f"{part} IS NOT NULL" for part, field in parts if not field.nullable),
            *(_has_parts(part, field.type, depth) for part, field in parts),
        ]
        fits = " AND ".join(filter(None, wanted))
    else:
        if pa.types.is_map(kind):
            values, field = f"map_values({value})", kind.item_field
        elif is_list(kind):
            values, field = value, kind.value_field
        else:
            return ""
        each = f"part{depth}"
        fits = " AND ".join(filter(None, [f"{each} IS NOT NULL" * (not field.nullable), _has_parts(each, field.type, depth + 1)]))
        fits = fits and f"forall({values}, {each} -> {fits})"
    return fits and f"({value} IS NULL OR ({fits}))"


def _with_all(frame: DataFrame, output: Output | None) -> DataFrame:
    """Return a frame with the columns that its output has and it does not, which are null."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    if output is None or output.columns is None or output.rules is None:
        return frame
    there = set(frame.columns)
    more = {field.name: f.lit(None).cast(from_arrow_type(field.type)) for field in output.columns if field.name not in there}
    return frame.withColumns(more) if more else frame


def verdicts_in(path: Path) -> dict[int, Failure]:
    """Return the messages that a file of results names; its statistics say when it names none. Raises TransformError."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        verdicts = [group.column(group.num_columns - 1).statistics for group in groups]  # the last column, as it was written
        if all(found is not None and found.null_count == group.num_rows for found, group in zip(verdicts, groups, strict=True)):
            return {}
        rows = file.read([LOOKUP_ID, POISON_COLUMN])
    rows = rows.filter(pc.is_valid(rows[POISON_COLUMN]))
    if rows[LOOKUP_ID].null_count:
        raise TransformError(f"The transformation returned {POISON_COLUMN} in a row whose {LOOKUP_ID} is null. Keep the column {LOOKUP_ID} as it is.")
    ids, texts = cast("list[int]", rows[LOOKUP_ID].to_pylist()), cast("list[str]", rows[POISON_COLUMN].to_pylist())
    return {number: failure_of_verdict(text) for number, text in sorted(zip(ids, texts, strict=True), key=lambda each: each[1] == RAISED)}


def failure_of_verdict(text: str) -> Failure:
    """Return the failure of a message that a transformation names with a text."""
    of_ours = text.startswith(_UNFIT)
    return Failure(FailureKind.EXCEPTION, UNFIT if of_ours else POISON_COLUMN, cut(text.removeprefix(_UNFIT) if of_ours else text, MAX_TEXT))


UNFIT = type_name(OutputRowError(""))
"""The type of failures of rows that do not fit their output."""


def landing_in(path: Path, named: Collection[int], *, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of results that land; ``lookup_id``, where the transformation has kept it, is their last column.

    :param named: lookup ids of messages whose rows do not.
    :param most: rows of a batch.
    """
    gone = pa.array(np.fromiter(named, np.int64, len(named)))
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        columns = [name for name in file.schema_arrow.names if name not in {POISON_COLUMN, PLACE}]
        for batch in file.iter_batches(batch_size=most, columns=columns) if columns not in ([], [LOOKUP_ID]) else ():
            rows = batch.filter(pc.invert(pc.is_in(batch.column(LOOKUP_ID), gone))) if len(gone) else batch
            if rows.num_rows:
                yield rows
