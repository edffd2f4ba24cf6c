"""Jobs of a classic session: a job group, which any thread can cancel, and the status tracker."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from airflow_poison.core.spark.jobs import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
NO_JVM = (Py4JError, OSError)
"""What every call says when the JVM is gone; the action says so, too."""


class ClassicJobs:
    """See ``jobs.Jobs``."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def identity(self) -> str:
        """The application's id."""
        return str(self._context.applicationId)

    @property
    def local(self) -> bool:
        """Whether the master is ``local[…]``."""
        return str(self._context.master).startswith("local")

    def cores(self) -> int | None:
        """Return the cores of the executors that have registered so far."""
        return int(self._context.defaultParallelism)

    def ship(self, path: str) -> None:
        """Add the file to the application."""
        self._context.addPyFile(path)

    def watch(self, group: str, about: str) -> ClassicWatched:
        """Return a job group."""
        return ClassicWatched(self._context, group, about)


class ClassicWatched:
    """A job group. Unlike a session's tags, any thread can cancel it, and the threads of other passes in this process have their own."""

    def __init__(self, context: SparkContext, group: str, about: str) -> None:
        self._context, self._group, self._about = context, group, about
        self._tracker = context.statusTracker()
        self._client: object = getattr(context._gateway, "_gateway_client", None)  # noqa: SLF001  (there is no public way)
        self._before: dict[str, str | None] = {}

    def begin(self) -> None:
        """Set the group of this thread's jobs."""
        self._before = {name: self._context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        self._context.setJobGroup(self._group, self._about)

    def end(self) -> None:
        """Give the thread the group that it had before."""
        with suppress(*NO_JVM):
            for name, value in self._before.items():
                self._context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away

    def cancel(self) -> None:
        """Cancel the group's jobs."""
        with suppress(*NO_JVM):
            self._context.cancelJobGroup(self._group)

    def progress(self) -> Progress | None:
        """Return the tasks of the group's active stages."""
        with suppress(*NO_JVM):
            jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group)))
            ours = {stage_id for job in jobs for stage_id in job.stageIds}
            stages = filter(None, map(self._tracker.getStageInfo, sorted(ours.intersection(self._tracker.getActiveStageIds()))))
            found = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
            if found:
                return Progress(*map(sum, zip(*found, strict=True)))
        return None

    def hang_up(self) -> None:
        """Close this thread's own connection to the JVM; Py4J would leave that to the garbage collector."""
        of_this_thread = getattr(self._client, "get_thread_connection", None)
        connection = of_this_thread() if of_this_thread else None
        if connection is not None:
            connection.close()
