"""A redrive task in a process of its own, as Airflow starts one for each try: the same task instance, whoever starts it and however often."""

from __future__ import annotations

import json
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tests.given import forked

if TYPE_CHECKING:
    from airflow.sdk import Context


def start(run_id: str, **arguments: Any) -> forked.Started:
    """Start a try of the task instance; it finds the connection, and where it is killed, in the environment."""
    return forked.Started(main, run_id, json.dumps(arguments))


def main(run_id: str, arguments: str) -> None:
    """Run one try; SIGTERM tells it of its end, as Airflow's task runner does."""
    from airflow_poison.operators.desk import QueueRedriveOperator

    instance = SimpleNamespace(dag_id="shop", run_id=run_id, task_id="redrive", map_index=-1)
    task = QueueRedriveOperator(task_id="redrive", queue_name="orders", deferrable=False, **json.loads(arguments))
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    numbers = task.execute(cast("Context", {"ti": instance}))
    sys.stdout.write(f"\ndone {numbers['done']} of {numbers['messages']} {numbers['state']}\n")
