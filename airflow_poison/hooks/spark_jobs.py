"""Stop what Spark does for a task that is being killed, and leave a Spark Connect server when a task has ended."""

from __future__ import annotations

import sys
import threading
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


PATIENCE_SECONDS = 2.0
"""Of a task that is being killed: Airflow gives it five seconds."""


def cancel_jobs(log: Log) -> None:
    """Cancel the jobs of this process's Spark, if it has one.

    A signal handler may have interrupted a call to Spark, so another thread does it.
    """
    if "pyspark" not in sys.modules:
        return
    cancelling = threading.Thread(target=_cancel, args=(log,), name="poison-cancel", daemon=True)
    cancelling.start()
    cancelling.join(PATIENCE_SECONDS)


def leave_server() -> None:
    """End this process's sessions with Spark Connect servers, if it has any: they forget what was shipped to them."""
    if "pyspark.sql.connect.session" in sys.modules:
        from airflow_poison.core.spark.session import leave

        leave()


def _cancel(log: Log) -> None:
    from airflow_poison.core.spark.session import connected_sessions, running_session

    try:
        for session in connected_sessions():
            session.interruptAll()
        classic = running_session()
        if classic is not None:
            classic.sparkContext.cancelAllJobs()
    except Exception as error:  # noqa: BLE001  (py4j and grpc raise many kinds; nothing more can be done here)
        log.warning("The Spark job could not be cancelled (%s); a local one ends with this process.", error)
