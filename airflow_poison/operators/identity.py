"""The keys under which what a task instance does is remembered, and the id of this Airflow installation, which is a part of them."""

from __future__ import annotations

import logging
import re
import time
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import PoisonError, SettingError
from airflow_poison.core.passes.runs import installed, is_known, run_key
from airflow_poison.hooks.connection import INSTALLATION, INSTALLATION_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from airflow.sdk import Context

    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.queue_table import QueueTable
    from airflow_poison.hooks.poison import QueueHook


T = TypeVar("T")
log = logging.getLogger(__name__)


def task_key(
    context: Context, hook: QueueHook, table: QueueTable, *, handle: str = "", known: Callable[[QueueTable, str, str], bool] = is_known
) -> str:
    """Return the run key of a task instance for a queue: the same for each try (no try number), another for each map index and each Airflow.

    What a version before this one has begun goes on under the key that it had then, which says of no Airflow.

    :param handle: the conversation that is acted on.
    :param known: whether the queue has anything under a key.
    """
    former = former_key(context, table.uri)
    own = installed(_installation(hook), former)
    if own != former and known(table, former, handle):
        log.warning(
            "Queue %r knows this DAG, run and task from a version that did not record which Airflow a key is of. The task goes on where that one "
            "stopped. If that was another Airflow, and this one is to send: set resend=True, or a send_key of its own.",
            table.name,
        )
        return former
    return own


def own_key(context: Context, hook: QueueHook, place: str, *more: object) -> str:
    """Return a key of a task instance that no earlier version has left anywhere.

    :param place: the queue's URI, or what else the key is about.
    """
    return installed(_installation(hook), former_key(context, place, *more))


def former_key(context: Context, place: str, *more: object) -> str:
    """Return the key that versions used which did not record the Airflow."""
    task = context["ti"]
    return run_key(place, task.dag_id, task.run_id, task.task_id, task.map_index, *more)


def with_own_key(act: Callable[[str], T], context: Context, hook: QueueHook, place: str, *more: object, refused: type[Exception]) -> T:
    """Change something by hand under a task instance's key; where that is refused, under its former one: an earlier version may have done it.

    :param act: is given the key.
    :param refused: what ``act`` raises when it finds the work done, but not under its key.
    """
    own, former = own_key(context, hook, place, *more), former_key(context, place, *more)
    try:
        return act(own)
    except refused:
        if own == former:
            raise
    return act(former)


def actor(context: Any) -> str:
    """Return a task instance as events say who has acted."""
    task = context["ti"]
    return f"dag:{task.dag_id}/{task.run_id}/{task.task_id}"


def subscriber(context: Context, hook: QueueHook, table: QueueTable) -> str:
    """Return the name under which a task's alerts are remembered: the same in every run of its DAG, another for each Airflow.

    What the name has been told that earlier versions used, which says of no Airflow, counts as told to the new one.
    """
    task = context["ti"]
    about = (task.dag_id, task.task_id, task.map_index)
    installation, former = _installation(hook), run_key(*about)[:16]
    if not installation:
        return former
    name = run_key(installation, *about)[:16]
    if _renamed(table.snapshot().control, former, name) is not None:
        table.alter(lambda control: _renamed(control, former, name) or control, lambda _before, _after: (), SystemClock().now())
    return name


def _renamed(control: Control, former: str, name: str) -> Control | None:
    """Return the row with a subscriber's counters under its new name, too; None when it has them, or there are none."""
    there = {counter.removesuffix(f":{former}"): number for counter, number in control.counters.items() if counter.endswith(f":{former}")}
    if not there or any(counter.endswith(f":{name}") for counter in control.counters):
        return None
    return control.with_counters({f"{counter}:{name}": number for counter, number in there.items()})


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
    """Return the id; make it where there is none. Empty outside a task that Airflow runs: nobody can tell then which Airflow it is.

    A Variable can only be overwritten, so of two tasks that make the id at the same time the later one rules. An id counts when it is some seconds
    old: whoever had found none has written its own by then. A task that stands still between these two steps for longer is not caught.
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
    """Whether somebody may still overwrite an id. One that people have given counts at once."""
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
