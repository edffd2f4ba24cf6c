"""Who a task instance is: the key under which its send or its pass is remembered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from airflow_poison.core.passes.runs import installed, is_known, run_key
from airflow_poison.operators.installation import installation_id

if TYPE_CHECKING:
    from collections.abc import Callable

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
    if _handed_on(table.snapshot().control, former, name) is not None:
        from airflow_poison.core.clock import SystemClock

        table.alter(lambda control: _handed_on(control, former, name) or control, lambda _before, _after: (), SystemClock().now())
    return name


def _handed_on(control: Control, former: str, name: str) -> Control | None:
    """Return the row with a subscriber's counters under its new name, too; None when it has them, or there are none."""
    there = {counter.removesuffix(f":{former}"): number for counter, number in control.counters.items() if counter.endswith(f":{former}")}
    if not there or any(counter.endswith(f":{name}") for counter in control.counters):
        return None
    return control.with_counters({f"{counter}:{name}": number for counter, number in there.items()})


def _installation(hook: QueueHook) -> str:
    return hook.settings.installation or installation_id()
