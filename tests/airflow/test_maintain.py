"""Maintenance in a DAG: a real run, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.manage import QueueMaintainOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore

    from .conftest import Ran

CLOCK = SystemClock()


def test_a_queue_is_maintained_and_the_result_tells_what_was_done(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    table = declare(store, "maintained", Msmq4(), CLOCK)
    for number in range(4):
        send(table, [pa.RecordBatch.from_pydict({"body": pa.array([b"x"], pa.binary())})], key=str(number), clock=CLOCK)
    with DAG("tidy", schedule=None) as dag:
        QueueMaintainOperator(task_id="maintain", queue_name="{{ 'maintained' }}", retention="{{ '0s' }}", min_files=2)
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    returned = ran.returned["maintain"]
    assert (returned["compacted"]["files"], returned["removed"]["expired"], returned["expired_claims"]) == (4, 4, [])
    [file] = table.snapshot().files
    assert file.rows == 4


def test_the_hook_maintains(store: QueueStore) -> None:
    declare(store, "orders", Msmq4(), CLOCK)
    assert QueueHook().queue("orders").maintain().to_dict()["relayed"] == 0


def test_a_missing_queue_and_a_wrong_retention_fail_the_task(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    declare(store, "orders", Msmq4(), CLOCK)
    with DAG("wrong", schedule=None) as dag:
        QueueMaintainOperator(task_id="missing", queue_name="other")
        QueueMaintainOperator(task_id="long", queue_name="orders", retention="a week")
    errors = run_dag(dag).errors
    assert isinstance(errors["missing"], QueueNotFoundError)
    assert isinstance(errors["long"], SettingError)
