"""Spark jobs: what the two kinds of sessions do differently, one interface that is chosen by the session; and the texts about a job that failed.

A *classic* session has its driver, a JVM, in this process's family: job groups, the status tracker, ``addPyFile``. A *Connect* session is a
client of a server: tags, progress messages, artifacts; no JVM is started and Py4J is not used. Everything else of this package is the same.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow_poison.spark import session
from airflow_poison.values import errors
from airflow_poison.values.texts import of_java

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Session


class JobProgress(NamedTuple):
    """How far the tasks of the running stages are."""

    done: int
    tasks: int


_QUERY, _SHIPPED = "sql.streaming.queryId", "ARTIFACT_ALREADY_EXISTS"
_PROPERTIES = "spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"


class ClassicJobs:
    """What a classic session runs jobs with."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def identity(self) -> str:
        """Names the session, by the application's id: no other one, here or elsewhere, has the same."""
        return str(self._context.applicationId)

    @property
    def local(self) -> bool:
        """Whether all tasks run on this machine, in processes that end with this one: the master is ``local[…]``."""
        return str(self._context.master).startswith("local")

    def cores(self) -> int | None:
        """Return how many tasks run at the same time, on the executors that have registered so far; None where only a job can find out."""
        return int(self._context.defaultParallelism)

    def ship(self, path: str, *, ours: bool = False) -> None:
        """Let every executor import a ``.py`` file, or what is in a ``.zip`` or ``.egg``.

        :param ours: it is this package, which another process of the session may have shipped.
        """
        del ours  # no other process has this session
        self._context.addPyFile(path)

    def watch(self, group: str, about: str, *, interrupts: bool = False) -> ClassicWatched:
        """Return what marks and cancels jobs, a job group.

        :param group: a name that no others have.
        :param about: what they do, for Spark's own pages.
        :param interrupts: cancelling interrupts their tasks.
        """
        return ClassicWatched(self._context, group, about, interrupts=interrupts)


class ClassicWatched:
    """The Spark jobs that one thread starts between ``begin`` and ``end``: a job group.

    Unlike a session's tags, any thread can cancel it, and the threads of other passes in this process have their own.
    """

    def __init__(self, context: SparkContext, group: str, about: str, *, interrupts: bool) -> None:
        self._context, self._group, self._about, self._interrupts = context, group, about, interrupts
        self._tracker = context.statusTracker()
        self._client: object = getattr(context._gateway, "_gateway_client", None)  # noqa: SLF001  (there is no public way)
        self._before: dict[str, str | None] = {}

    def begin(self) -> None:
        """Mark the jobs that the calling thread starts from now on: set their group."""
        self._before = {name: self._context.getLocalProperty(name) for name in _PROPERTIES}
        self._context.setJobGroup(self._group, self._about, self._interrupts)

    def end(self) -> None:
        """Mark no more of them; called by the same thread, which gets the group that it had before."""
        with _without_jvm():
            for name, value in self._before.items():
                self._context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away

    def cancel(self) -> None:
        """Cancel the marked jobs. Any thread may do so; nothing happens when Spark is gone."""
        with _without_jvm():
            self._context.cancelJobGroup(self._group)

    def progress(self) -> JobProgress | None:
        """Return how far they are: the tasks of the group's active stages; None while it is not known. Any thread may ask."""
        with _without_jvm():
            jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group)))
            ours = {stage_id for job in jobs for stage_id in job.stageIds}
            stages = filter(None, map(self._tracker.getStageInfo, sorted(ours.intersection(self._tracker.getActiveStageIds()))))
            found = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
            if found:
                return JobProgress(*map(sum, zip(*found, strict=True)))
        return None

    def works(self) -> bool:
        """Whether a task of theirs works now. Any thread may ask."""
        with _without_jvm():
            jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group)))
            stages = map(self._tracker.getStageInfo, {stage_id for job in jobs for stage_id in job.stageIds})
            return any(stage.numActiveTasks > 0 for stage in stages if stage is not None)
        return False

    def moved(self) -> int | None:
        """Return how many rows their stages have read and written, as far as executors have reported it, and how many tasks have ended.

        None: none of their tasks works. Any thread may ask.
        """
        with _without_jvm():
            store: Any = self._context._jsc.sc().statusStore()  # noqa: SLF001  (there is no public way)
            jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group)))
            ours = {stage_id for job in jobs for stage_id in job.stageIds}
            stages = [store.lastStageAttempt(each) for each in sorted(ours.intersection(self._tracker.getActiveStageIds()))]
            if any(stage.numActiveTasks() for stage in stages):
                rows = [stage.inputRecords() + stage.outputRecords() + stage.shuffleReadRecords() + stage.shuffleWriteRecords() for stage in stages]
                return int(sum(rows) + sum(stage.numCompleteTasks() for stage in stages))
        return None

    def repeated(self) -> bool:
        """Whether a task of theirs may have run more than once: what Spark has counted in one whose result others read is too much then."""
        jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group)))
        stages = filter(None, map(self._tracker.getStageInfo, {stage_id for job in jobs for stage_id in job.stageIds}))
        return any(each.currentAttemptId or each.numFailedTasks or each.numCompletedTasks > each.numTasks for each in stages)

    def hang_up(self) -> None:
        """Close the connection of the calling thread, which is not the one that runs the jobs; Py4J would leave that to the garbage collector."""
        of_this_thread = getattr(self._client, "get_thread_connection", None)
        connection = of_this_thread() if of_this_thread else None
        if connection is not None:
            connection.close()


class _ConnectJobs:
    """What a session of Spark Connect runs jobs with: the same, of a client."""

    local = False

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def identity(self) -> str:
        return str(cast("Session", self._spark).session_id)

    def cores(self) -> int | None:
        return None  # no call says it, only a job

    def ship(self, path: str, *, ours: bool = False) -> None:
        try:
            self._spark.addArtifacts(path, pyfile=True)
        except spark_errors() as error:  # of the same name, with other bytes: what foreachBatch calls is a process of its own
            if not (ours and _SHIPPED in str(error)):
                raise

    def watch(self, group: str, about: str, *, interrupts: bool = False) -> _ConnectWatched:
        del about, interrupts  # Spark's pages have no place for it, and its tags always interrupt
        return _ConnectWatched(self._spark, group)


class _ConnectWatched:
    """The Spark jobs that one thread starts, by a tag: a thread's requests carry it, and any thread of the session can interrupt what carries it."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark, self._tag = spark, tag
        self._runs_on = 0
        self._progress: JobProgress | None = None
        self._moved: int | None = None

    def begin(self) -> None:
        self._runs_on = threading.get_ident()
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(self._take)

    def end(self) -> None:
        self._spark.removeProgressHandler(self._take)
        self._spark.removeTag(self._tag)

    def cancel(self) -> None:
        with suppress(Exception):  # the action reports a server that cannot be reached
            self._spark.interruptTag(self._tag)

    def progress(self) -> JobProgress | None:
        return self._progress

    def works(self) -> bool:
        """Always: the server does not say for how long its tasks have waited."""
        return True

    def moved(self) -> int | None:
        """Return how many bytes their stages have read, and how many tasks have ended, by the server's last message; None: none of them works."""
        return self._moved

    def repeated(self) -> bool:
        """Whether a task may have run more than once: the server does not say."""
        return True

    def hang_up(self) -> None:
        """Have nothing to let go of."""

    def _take(self, stages: Iterable[object] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: FBT001  (Spark's)
        """Take note of a message of the server, which comes on the thread whose request it is about."""
        del operation_id, done
        found: list[Any] = [*(stages or ())]
        if found and threading.get_ident() == self._runs_on:
            tasks = sum(stage.num_completed_tasks for stage in found)
            self._progress = JobProgress(tasks, sum(stage.num_tasks for stage in found))
            self._moved = tasks + sum(stage.num_bytes_read for stage in found) if inflight_tasks else None


Jobs = ClassicJobs | _ConnectJobs
Watched = ClassicWatched | _ConnectWatched


def jobs_of(spark: SparkSession) -> Jobs:
    """Return what this kind of session runs jobs with."""
    return _ConnectJobs(spark) if is_connect(spark) else ClassicJobs(spark)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def streaming_query(spark: SparkSession) -> tuple[str, str] | None:
    """Return the id of the streaming query that calls here, which its checkpoint keeps, and the id of its run; None: none does.

    Raises InputError where several may be meant: on Spark Connect a micro-batch does not say it.
    """
    if not is_connect(spark):
        query = spark.sparkContext.getLocalProperty(_QUERY)
        return None if query is None else (query, spark.sparkContext.getLocalProperty(_PROPERTIES[0]) or "")  # a run is a group of jobs
    found = {str(query.id): str(query.runId) for query in spark.streams.active}
    if len(found) > 1:
        raise errors.InputError(
            f"{len(found)} streaming queries run in this session of Spark Connect, which does not say of which one a micro-batch is. Start each "
            "protected stream in a session of its own: SparkSession.builder.remote(...).create(). Nothing was taken."
        )
    return next(iter(found.items()), None)


def spark_errors() -> tuple[type[Exception], ...]:
    """Return what calls of Spark raise; of Py4J, too, which a client of a Spark Connect server need not have."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JError


def _without_jvm() -> suppress:
    """Suppress what every call says when the JVM is gone; the action says so, too."""
    from py4j.protocol import Py4JError

    return suppress(Py4JError, OSError)


# Jobs that failed: one error of ours, without the JVM's stack traces ----------------------------------------------------


_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n\s*at |\n\s*\nJVM stacktrace:|\Z)", re.DOTALL)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?\Z", re.DOTALL | re.MULTILINE)
_LONGEST = 2_000


def readable_error(error: Exception, key: str) -> errors.PoisonError:
    """Return what a task raised when it is an error of ours; otherwise a SparkJobError with the task's last words."""
    raised = _raised_by_a_task(error)
    if raised is not None and raised[0].startswith(f"{errors.__name__}."):
        return errors.recalled(raised[0].rpartition(".")[2], raised[1])
    return errors.SparkJobError(
        f"The Spark job of pass {key} failed: {why(error)}\n"
        "Nothing was committed. Spark's own log has the rest; run the task again: it goes on where this one stopped."
    )


def why(error: Exception) -> str:
    """Return a task's last words, or what Spark says."""
    raised = _raised_by_a_task(error)
    words = _without_python(error) if raised is None else ": ".join(filter(None, raised))
    return words.strip()[:_LONGEST]


def has_ended(error: Exception) -> bool:
    """Whether an error says that the JVM is not there any more."""
    return isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"


def _raised_by_a_task(error: Exception) -> tuple[str, str] | None:
    python = _PYTHON.search(str(error))
    return None if python is None else _raised(python[1])


def _without_python(error: Exception) -> str:
    """Return what the JVM or the Connect server says, or that there is none."""
    if has_ended(error):
        return f"its JVM has ended ({error})"
    text = session.why(error) if session.is_of_connect(error) else str(error)
    return of_java(text) or type(error).__name__


def _raised(traceback: str) -> tuple[str, str] | None:
    """Return type and text of the exception behind the last frame of a traceback."""
    frames = [match.end() for match in re.finditer(r"^  .*\n", traceback, re.MULTILINE)]
    match = _RAISED.search(traceback[frames[-1] :] if frames else traceback)
    return None if match is None else (match[1], (match[2] or "").strip())
