"""What the two kinds of Spark sessions do differently: one seam, chosen by the session.

A *classic* session has its driver, a JVM, in this process's family: job groups, the status tracker, ``addPyFile``. A *Connect* session is a
client of a server: tags, progress messages, artifacts; no JVM is started and Py4J is not used. Everything else of this package is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Progress(NamedTuple):
    """How far the tasks of the running stages are."""

    done: int
    tasks: int


class Watched(Protocol):
    """The Spark jobs that one thread starts between ``begin`` and ``end``."""

    def begin(self) -> None:
        """Mark the jobs that the calling thread starts from now on."""
        ...

    def end(self) -> None:
        """Mark no more of them; called by the same thread."""
        ...

    def cancel(self) -> None:
        """Cancel the marked jobs. Any thread may do so; nothing happens when Spark is gone."""
        ...

    def progress(self) -> Progress | None:
        """Return how far they are; None while nobody knows. Any thread may ask."""
        ...

    def hang_up(self) -> None:
        """Let go of what the calling thread, which is not the one that runs the jobs, has used."""
        ...


class Jobs(Protocol):
    """What a session runs jobs with."""

    @property
    def identity(self) -> str:
        """Names the session: no other one, here or elsewhere, has the same."""
        ...

    @property
    def local(self) -> bool:
        """Whether all tasks run on this machine, in processes that end with this one."""
        ...

    def cores(self) -> int | None:
        """Return how many tasks run at the same time; None where only a job can tell."""
        ...

    def ship(self, path: str) -> None:
        """Let every executor import a ``.py`` file, or what is in a ``.zip`` or ``.egg``."""
        ...

    def watch(self, group: str, about: str) -> Watched:
        """Return what marks and cancels jobs.

        :param group: a name that no others have.
        :param about: what they do, for Spark's own pages.
        """
        ...


def jobs_of(spark: SparkSession) -> Jobs:
    """Return what this kind of session runs jobs with."""
    if is_connect(spark):
        from airflow_poison.core.spark.connect import ConnectJobs

        return ConnectJobs(spark)
    from airflow_poison.core.spark.classic import ClassicJobs

    return ClassicJobs(spark)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")
