"""What operators share: QueueOperator, the base of those on one queue; how parameters are read; how Spark is left when a task ends or is killed."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.identity import actor
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_poison.desk.plans import Canary, PlanView
    from airflow_poison.notifications import Log
    from airflow_poison.store.queue_table import QueueTable


class QueueOperator(BaseOperator):
    """Does something with one queue of a connection.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist, unless a ``policy`` makes it. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")

    def __init__(self, *, queue_name: str, conn_id: str = QueueHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.conn_id = conn_id


def lookup_ids_of(given: Sequence[int] | int | str) -> list[int]:
    """Return lookup ids from a list, a number, or their text: ``"7"``, ``"[7, 8]"``, ``"7, 8"``. Raises SettingError."""
    value: object = given
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except ValueError:
            value = given
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list | tuple) or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise SettingError("lookup_ids", given, "whole numbers: 7, [7, 8] or text of them")
    return list(numbers)


def one_lookup_id(given: int | str) -> int:
    """Return the one lookup id that is given. Raises SettingError."""
    numbers = lookup_ids_of(given)
    if len(numbers) != 1:
        raise SettingError("lookup_id", given, "one whole number")
    return numbers[0]


def whole(parameter: str, given: int | str) -> int:
    """Return a number that is given, or what a template leaves of one. Raises SettingError."""
    try:
        return int(given)
    except (TypeError, ValueError):
        raise SettingError(parameter, given, "a whole number, or text of one") from None


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
        from airflow_poison.spark.session import leave

        leave()


def _cancel(log: Log) -> None:
    from airflow_poison.spark.session import connected_sessions, running_session

    try:
        for session in connected_sessions():
            session.interruptAll()
        classic = running_session()
        if classic is not None:
            classic.sparkContext.cancelAllJobs()
    except Exception as error:  # noqa: BLE001  (py4j and grpc raise many kinds; nothing more can be done here)
        log.warning("The Spark job could not be cancelled (%s); a local one ends with this process.", error)


def declare_parking(table: QueueTable, park_group: bool | None) -> None:  # noqa: FBT001  (the setting's value)
    """Record whether messages of a queue wait behind earlier ones of their groups; None: as it is recorded. Raises SettingError."""
    from airflow_poison.passes.alter import set_park_group

    if park_group is not None:
        set_park_group(table, SystemClock(), park_group)


# Redrives for new handlers ------------------------------------------------------------------------------------------


def redrive_by_itself(table: QueueTable, canary: Canary | None, context: Context, log: Log, version: str | None = None) -> None:
    """Redrive for a new handler where the queue is set so, and log what comes of it.

    :param canary: is recorded first; None: what is recorded rules. :param version: of the handler; None: only go on with what is under way.
    """
    from airflow_poison.desk.redrive import redrive, set_redrive

    clock = SystemClock()
    if canary is not None:
        set_redrive(table, canary, clock)
    for view in redrive(table, clock, version, who=actor(context)):
        log.warning("Redrive for a new handler: %s", logged(view))


def logged(view: PlanView) -> str:
    """Return a line about a plan."""
    return f"plan {view.plan}, {view.action.verb.value} ({view.reason}): {view.state}, {view.done:,} of {view.messages:,} done"
