"""An outage on Spark: every task stops, in processes of their own, and the pass is settled by a second job from the journals."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import declare
from airflow_poison.passes.due import return_due
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from tests.given.transforms import SCHEMA, bodies, cast, looked_up
from tests.spark.away import Away

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_poison.rules.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
OUTAGE = Outage(at_least=30, probe=10)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("policy", "messages"), [(Msmq4(receive_error_handling="Move"), 3_000), (ServiceBroker(), 200), (ServiceBroker(scope="conversation_group"), 200)]
)
def test_every_task_stops_and_nothing_is_charged_until_the_database_is_back(
    tmp_path: Path, spark: SparkSession, policy: Policy, messages: int
) -> None:
    clock, handler = VirtualClock(), Away(str(tmp_path))
    table = declare(DeltaStore(str(tmp_path / "store"), durable=False), "orders", policy, clock)
    bodies = pa.array([b"good"] * messages, pa.binary())
    send(table, [pa.RecordBatch.from_pydict({"body": bodies})], key="send", clock=clock)
    receiving = ReceivePass(table=table, policy=policy, handler=handler, engine=lambda: SparkEngine(spark), clock=clock, outage=OUTAGE)
    Path(tmp_path, "away").touch()

    first = receiving.run("first")

    assert first.outage is not None
    assert first.outage["error"].startswith("ConnectionError: no route")
    assert 0 < len(handler.calls()) <= 2 * OUTAGE.at_least
    assert first.untouched == messages
    rows = [row for file in table.snapshot().files for row in table.read(file, ["abort_count", "last_error", "crash_count"]).to_pylist()]
    assert len(rows) == messages
    assert all(not row["abort_count"] and not row["crash_count"] and row["last_error"] is None for row in rows)

    clock.advance(timedelta(minutes=5))
    assert receiving.run("probe").outage is not None
    assert 0 < len(handler.calls()) <= OUTAGE.probe

    Path(tmp_path, "away").unlink()
    clock.advance(timedelta(minutes=5))
    over = receiving.run("over")

    assert (over.settled, over.outage, over.passes) == (messages, None, 2)
    assert len(handler.calls()) == messages
    assert table.snapshot().control.outage() is None


@pytest.mark.campaign
def test_a_transformation_is_stopped_after_a_few_jobs_and_goes_on_when_the_database_is_back(tmp_path: Path, spark: SparkSession) -> None:
    clock, away = VirtualClock(), Path(tmp_path, "away")
    table = declare(DeltaStore(str(tmp_path / "store"), durable=False), "orders", Msmq4(receive_error_handling="Move"), clock)
    send(
        table,
        [pa.RecordBatch.from_pydict({"body": pa.array([body.encode() for body in bodies(400, {7: "raise"})], pa.binary())})],
        key="send",
        clock=clock,
    )
    lines: list[str] = []
    receiving = ReceivePass(
        table=table,
        policy=Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move"),
        handler=Transformation(looked_up(str(away)), SCHEMA),
        engine=lambda: SparkEngine(spark, lines.append),
        clock=clock,
        outage=OUTAGE,
        outputs=outputs_of(str(tmp_path / "out")),
    )
    away.touch()

    first = receiving.run("first")

    assert first.outage is not None
    assert first.outage["error"] == "ConnectionError: no route to the registry"
    assert (first.untouched, first.settled) == (400, 0)

    clock.advance(timedelta(minutes=5))
    assert receiving.run("probe").outage is not None

    away.unlink()
    clock.advance(timedelta(minutes=5))
    over = receiving.run("over")

    assert (over.settled, over.poisoned, over.outage, dict(over.landed)) == (399, 1, None, {"output": 399})
    (left,) = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    assert (left["lookup_id"], left["sub_queue"], left["last_error"]["type"]) == (7, "poison", "ValueError")
    assert table.snapshot().control.outage() is None


@pytest.mark.campaign
def test_a_transformation_that_fails_of_what_comes_back_from_retry_charges_it(tmp_path: Path, spark: SparkSession) -> None:
    clock, policy = VirtualClock(), Msmq4(receive_retry_count=0, max_retry_cycles=1, receive_error_handling="Move")
    table = declare(DeltaStore(str(tmp_path / "store"), durable=False), "orders", policy, clock)
    kinds = dict.fromkeys(range(1, 9), "raise")
    send(table, [pa.RecordBatch.from_pydict({"body": pa.array([body.encode() for body in bodies(60, kinds)], pa.binary())})], key="send", clock=clock)
    receiving = ReceivePass(
        table=table, policy=policy, handler=Transformation(cast, SCHEMA), engine=lambda: SparkEngine(spark), clock=clock, outage=Outage()
    )

    first = receiving.run("first")
    clock.advance(policy.retry_cycle_delay + timedelta(seconds=1))
    return_due(table, clock)
    second = receiving.run("second")

    assert (first.settled, first.parked, first.outage) == (52, 8, None)
    assert (second.received, second.poisoned, second.outage) == (8, 8, None)
