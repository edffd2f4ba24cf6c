"""The heartbeat of a pass: keeps its claim while a Spark action runs, and cancels the action's jobs when that fails."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SECONDS = 1.0
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
NO_JVM = (Py4JError, OSError)
"""What every call says when the JVM is gone; the action says so, too."""


class Heartbeat:
    """Beats while its block runs, in a thread of its own. A block that is interrupted has its jobs cancelled.

    The block's Spark jobs are a job group: unlike a session's tags, which only the thread that set them can use, any thread can cancel a
    group, and the threads of other passes in this process have their own.

    :param group: a name that no other job group has.
    :param about: what the jobs do, for Spark's own pages.
    :param keep_alive: called with every beat; what it raises ends the jobs and stands in ``lost`` then.
    :param report: called with every beat that kept the claim.
    """

    def __init__(self, spark: SparkSession, group: str, about: str, keep_alive: Callable[[], None], report: Callable[[], None]) -> None:
        self._context, self._group, self._about = spark.sparkContext, group, about
        self._keep_alive, self._report = keep_alive, report
        self._before: dict[str, str | None] = {}
        self._client: object = getattr(self._context._gateway, "_gateway_client", None)  # noqa: SLF001  (there is no public way)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poison-heartbeat", daemon=True)
        self.lost: Exception | None = None

    def __enter__(self) -> Self:
        self._before = {name: self._context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        self._context.setJobGroup(self._group, self._about)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if kind is not None:
            self._cancel()
        with suppress(*NO_JVM):
            for name, value in self._before.items():
                self._context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away

    def _run(self) -> None:
        try:
            while not self._stopped.wait(SECONDS):
                if self.lost is None:
                    self._beat()
                if self.lost is not None:
                    self._cancel()  # with every beat: the job may not have begun
        finally:
            self._hang_up()

    def _beat(self) -> None:
        try:
            self._keep_alive()
        except Exception as error:  # noqa: BLE001  (whatever it is ends the run: the engine raises it)
            self.lost = error
        else:
            with suppress(*NO_JVM):
                self._report()

    def _hang_up(self) -> None:
        """Close this thread's own connection to the JVM; Py4J would leave that to the garbage collector."""
        of_this_thread = getattr(self._client, "get_thread_connection", None)
        connection = of_this_thread() if of_this_thread else None
        if connection is not None:
            connection.close()

    def _cancel(self) -> None:
        with suppress(*NO_JVM):
            self._context.cancelJobGroup(self._group)
