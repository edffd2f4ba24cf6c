"""Rows that handlers return in Spark's tasks land once, also of a job that has failed and is run again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError
from tests.spark.landing import Landing

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.rules.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")


def a_pass(folder: Path, spark: SparkSession, policy: Policy, bodies: list[str], isolation: str) -> ReceivePass:
    table = declare(DeltaStore(str(folder / "store"), durable=False), "orders", policy, SystemClock())
    send(table, [pa.RecordBatch.from_pydict({"body": pa.array([body.encode() for body in bodies], pa.binary())})], key="send", clock=SystemClock())
    return ReceivePass(
        table=table,
        policy=policy,
        handler=Landing(str(folder / "killed")),
        engine=lambda: SparkEngine(spark),
        clock=SystemClock(),
        isolation=isolation,
        outputs=outputs_of(folder / "out"),
    )


def landed(folder: Path) -> Counter[int]:
    ids: list[Any] = DeltaTable(str(folder / "out")).to_pyarrow_table()["id"].to_pylist()
    return Counter(ids)


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("policy", [POLICY, ServiceBroker()], ids=["side by side", "in order"])
def test_each_row_lands_once(tmp_path: Path, spark: SparkSession, policy: Policy, isolation: str) -> None:
    bodies = ["none" if number % 5 == 0 else "bad" if number % 97 == 96 and policy is POLICY else "good" for number in range(600)]
    receiving = a_pass(tmp_path, spark, policy, bodies, isolation)

    result = receiving.run("run")

    expected = {number for number, body in enumerate(bodies, 1) if body == "good"}
    assert landed(tmp_path) == Counter(expected)
    assert dict(result.landed) == {"output": len(expected)}


def test_a_job_that_fails_lands_nothing_twice_when_it_is_run_again(tmp_path: Path, spark: SparkSession) -> None:
    bodies = ["good"] * 300 + ["kill"] + ["good"] * 299
    receiving = a_pass(tmp_path, spark, POLICY, bodies, "none")

    with pytest.raises(PoisonError):
        receiving.run("run")
    result = receiving.run("run")

    assert landed(tmp_path) == Counter(range(1, 601))
    assert (result.settled, result.crashes) == (600, 1)
