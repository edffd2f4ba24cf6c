"""Who a task instance is: the key under which its send or its pass is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.passes.keys import run_key

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_key(context: Context, queue_uri: str, *more: object) -> str:
    """Return the run key of a task instance for a queue: the same for each try (no try number), another for each map index."""
    task = context["ti"]
    return run_key(queue_uri, task.dag_id, task.run_id, task.task_id, task.map_index, *more)


def subscriber(context: Context) -> str:
    """Return the name under which a task's alerts are remembered: the same in every run of its DAG."""
    task = context["ti"]
    return run_key(task.dag_id, task.task_id, task.map_index)[:16]
