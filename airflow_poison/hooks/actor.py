"""Who acts where a hook is used: the task that runs here, else the user of the shell or script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.values.actor import acting, shell_user

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def actor_here() -> str:
    """Return ``dag:<dag_id>/<run_id>/<task_id>`` in a task, else ``shell:<user>@<host>``."""
    from airflow.sdk import get_current_context

    try:
        task = get_current_context()["ti"]
    except RuntimeError:
        return shell_user()
    return f"dag:{task.dag_id}/{task.run_id}/{task.task_id}"


def acting_here(reason: str = "") -> AbstractContextManager[None]:
    """Record the events of a block with who acts here, and why."""
    return acting(actor_here(), reason)
