"""The keys under which what a task instance does is remembered, and the id of this Airflow installation, which is a part of them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from airflow_poison.hooks.connection import INSTALLATION, INSTALLATION_ALLOWED
from airflow_poison.passes.runs import installed, run_key
from airflow_poison.values.errors import PoisonError, SettingError

if TYPE_CHECKING:
    from typing import Any

    from airflow.sdk import Context

    from airflow_poison.hooks.poison import QueueHook


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
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
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
    from airflow.sdk.exceptions import AirflowRuntimeError

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
