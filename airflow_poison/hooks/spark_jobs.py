"""Stop what Spark does for a task that is being killed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Log(Protocol):
        """The part of a logger that is used."""

        @property
        def warning(self) -> Callable[..., object]:
            """Log a warning."""
            ...


def cancel_jobs(log: Log) -> None:
    """Cancel the jobs of this process's Spark, if it has one.

    Inside a signal handler py4j may refuse every call; the JVM ends with the task's process then, which stops its jobs as well.
    """
    if "pyspark" not in sys.modules:
        return
    from airflow_poison.core.spark.session import running_session

    try:
        session = running_session()
        if session is not None:
            session.sparkContext.cancelAllJobs()
    except Exception as error:  # noqa: BLE001  (py4j raises many kinds; nothing more can be done here)
        log.warning("The Spark job could not be cancelled (%s); it ends with this process.", error)
