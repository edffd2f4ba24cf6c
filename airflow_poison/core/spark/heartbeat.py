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
NO_JVM = (Py4JError, OSError)
"""What every call says when the JVM is gone; the action says so, too."""


class Heartbeat:
    """Beats while its block runs, in a thread of its own; the block's Spark jobs carry a tag. A block that is interrupted has its jobs cancelled.

    :param tag: a name that no other job has.
    :param keep_alive: called with every beat; what it raises ends the jobs and stands in ``lost`` then.
    :param report: called with every beat that kept the claim.
    """

    def __init__(self, spark: SparkSession, tag: str, keep_alive: Callable[[], None], report: Callable[[], None]) -> None:
        self._spark, self._tag, self._keep_alive, self._report = spark, tag, keep_alive, report
        self._client: object = getattr(spark.sparkContext._gateway, "_gateway_client", None)  # noqa: SLF001  (there is no public way)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poison-heartbeat", daemon=True)
        self.lost: Exception | None = None

    def __enter__(self) -> Self:
        self._spark.addTag(self._tag)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if kind is not None:
            self._cancel()
        with suppress(*NO_JVM):
            self._spark.removeTag(self._tag)

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
            self._spark.interruptTag(self._tag)
