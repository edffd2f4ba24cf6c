"""What operators share: QueueOperator, the base of those on one queue; how parameters are read; how Spark is left when a task ends or is killed.

The keys under which what a task instance does is remembered, and the id of this Airflow installation, which is a part of them.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Required, TypedDict

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from airflow_poison.hooks.connection import INSTALLATION, INSTALLATION_ALLOWED
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.passes.declaration import whole
from airflow_poison.passes.runs import installed, run_key
from airflow_poison.values.errors import PoisonError, SettingError

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context, TaskGroup

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.notifications import Log


def task_key(context: Context, hook: QueueHook, place: str, *more: object) -> str:
    """Return the run key of a task instance: the same for each try (no try number), another for each map index and each Airflow.

    :param place: the queue's URI, or what else the key is about.
    """
    task = context["ti"]
    return installed(_installation(hook), run_key(place, task.dag_id, task.run_id, task.task_id, task.map_index, *more))


def actor(context: Any) -> str:
    """Return a task instance as events say who has acted."""
    task = context["ti"]
    return f"dag:{task.dag_id}/{task.run_id}/{task.task_id}"


def subscriber(context: Context, hook: QueueHook) -> str:
    """Return the name under which a task's alerts are remembered: the same in every run of its DAG, another for each Airflow."""
    task = context["ti"]
    installation = _installation(hook)
    return run_key(*([installation] if installation else []), task.dag_id, task.task_id, task.map_index)[:16]


def _installation(hook: QueueHook) -> str:
    return hook.settings.installation or installation_id()


VARIABLE = "airflow_poison_installation"
"""The Airflow Variable that keeps the id."""
SETTLED = 3.0  # seconds
_CLOCKS = 60.0  # seconds by which the clocks of two workers may differ
_MADE = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{16}")
_TIME = "%Y%m%dT%H%M%SZ"
_ABOUT = (
    "The id of this Airflow in the keys of airflow-poison's tasks. Do not change it, and keep it when the database is moved: under another id, tasks "
    "that run again send again. A copy of the database that becomes another Airflow needs another id: delete it there."
)


def installation_id() -> str:
    """Return the id; make it where there is none. Empty outside a task that Airflow runs, because it is not known then which Airflow it is.

    A Variable can only be overwritten, so of two tasks that make the id at the same time the later one rules. An id counts when it is some seconds
    old: another task that found none has written its own by then. A task that stands still between these two steps for longer is not caught.
    Raises SettingError for a Variable that holds no id, and PoisonError when it cannot be read or written.
    """
    comms = _supervisor()
    if comms is None:
        return ""
    seen = None
    while True:
        found = _read(comms)
        if found is None:
            found = _made(comms)
        if not INSTALLATION.fullmatch(found):
            raise SettingError(f"Variable {VARIABLE}", found, INSTALLATION_ALLOWED)
        if found == seen or not _is_young(found):
            return found
        seen = found
        time.sleep(SETTLED)


def _read(comms: Any) -> str | None:
    """Return what the metadata database has. ``Variable.get`` would not do: it takes an API server that fails for one that has no such Variable."""
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable

    try:
        answer = comms.send(GetVariable(key=VARIABLE))
    except AirflowRuntimeError as error:
        answer = error.error
    if not isinstance(answer, ErrorResponse):
        return answer.value or ""
    if answer.error is ErrorType.VARIABLE_NOT_FOUND:
        return None
    raise PoisonError(_unusable(f"{answer.error.value}: {answer.detail}"))


def _made(comms: Any) -> str:
    """Write a new id; return the one that is there then."""
    from airflow.sdk import Variable

    try:
        Variable.set(VARIABLE, f"{datetime.now(UTC).strftime(_TIME)}-{token_hex(8)}", _ABOUT)
    except AirflowRuntimeError as error:
        raise PoisonError(_unusable(str(error))) from error
    found = _read(comms)
    if found is None:
        raise PoisonError(_unusable("it was written, and is not there"))
    return found


def _is_young(found: str) -> bool:
    """Whether another task may still overwrite an id. An id that was set by hand counts at once."""
    made = _MADE.fullmatch(found)
    if made is None:
        return False
    age = (datetime.now(UTC) - datetime.strptime(made[1], _TIME).replace(tzinfo=UTC)).total_seconds()
    return -_CLOCKS <= age < SETTLED


def _supervisor() -> Any:
    """Return what connects a task with Airflow; None outside of one."""
    from airflow.sdk.execution_time import task_runner

    return getattr(task_runner, "SUPERVISOR_COMMS", None)


def _unusable(why: str) -> str:
    return (
        f"The id of this Airflow, the Variable {VARIABLE}, cannot be read or made: {why}. Without it the keys of two Airflows on one store could "
        "meet. Run the task again, or set 'installation' in the extra of the poison connection. Nothing was done."
    )


class OperatorOptions(TypedDict, total=False):
    """What every operator of Airflow takes; see ``BaseOperator``."""

    task_id: Required[str]
    owner: str
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    params: Any
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: Any
    queue: str
    pool: str | None
    pool_slots: int
    execution_timeout: timedelta | None
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Any
    post_execute: Any
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    inlets: Any
    outlets: Any
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


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
        except (ValueError, RecursionError):
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


def number(parameter: str, given: int | str | None) -> int | None:
    """Return the same; None for nothing, and for empty text. Raises SettingError."""
    return None if given is None or not str(given).strip() else whole(parameter, given)


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


# Redrives for new handlers ------------------------------------------------------------------------------------------


def plan_line(view: PlanView) -> str:
    """Return a line about a plan."""
    return f"plan {view.plan}, {view.action.verb.value} ({view.reason}): {view.state}, {view.done:,} of {view.messages:,} done"
