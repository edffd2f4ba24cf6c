"""Measure an Airflow task over ten messages without a JVM: from the start of ``execute`` to its end, in a new process each time, as Airflow does.

What is before and after that (a process, Airflow's imports, the DAG file) is Airflow's own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from airflow.sdk import Context

_MESSAGES = 10


def task_seconds(rounds: int) -> float:
    """Return the seconds of ``execute``, the median of so many new processes."""
    return statistics.median(_of_a_new_process() for _ in range(max(rounds, 3)))


def _of_a_new_process() -> float:
    import pyarrow as pa  # not above: the measured process imports what a task does, and no more

    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.send import send
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.store import open_store
    from airflow_poison.values.clock import SystemClock

    with tempfile.TemporaryDirectory() as home:
        clock, store = SystemClock(), open_store(f"{home}/store")
        bodies = pa.array([b"{}"] * _MESSAGES, pa.binary())
        send(declare(store, "orders", Msmq4(), clock), [pa.RecordBatch.from_pydict({"body": bodies})], key="ten", clock=clock)
        connection = {"conn_type": "poison", "extra": {"store": store.uri, "spark": "auto"}}
        environment = {
            "AIRFLOW_HOME": home,
            "AIRFLOW_CONN_POISON_DEFAULT": json.dumps(connection),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        }
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name]
        printed = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True).stdout
        return float(printed.splitlines()[-1])


def handler(message: object) -> None:
    """Be called."""
    del message


def main() -> None:
    """Run a task; print how long it took."""
    from airflow_poison.operators.receive import QueueReceiveOperator

    instance = SimpleNamespace(dag_id="shop", run_id="one", task_id="receive", map_index=-1, xcom_push=lambda **_: None)
    task = QueueReceiveOperator(task_id="receive", queue_name="orders", handler="benchmarks.task:handler")
    started = time.perf_counter()
    result = task.execute(cast("Context", {"ti": instance}))
    seconds = time.perf_counter() - started
    assert result["settled"] == _MESSAGES, result
    print(seconds)


if __name__ == "__main__":
    main()
