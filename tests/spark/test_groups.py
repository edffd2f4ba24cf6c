"""Conversation groups spread over the tasks of a Spark job: each is whole and in its order, and a halt in one task ends the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import declare, set_park_group
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.spark.grouped import Grouped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.rules.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
GROUPS = [f"g{number}" for number in range(12)]


def a_pass(folder: Path, spark: SparkSession, policy: Policy, messages: Sequence[tuple[str, str, int]]) -> tuple[ReceivePass, Grouped]:
    """A queue with messages (group, body, priority), in two sends, and a pass over it."""
    root = str(folder / "store")
    table = declare(DeltaStore(root, durable=False), "orders", policy, SystemClock())
    for half, part in enumerate((messages[: len(messages) // 2], messages[len(messages) // 2 :])):
        columns: dict[str, pa.Array[Any]] = {
            "group_id": pa.array([group for group, _, _ in part]),
            "body": pa.array([body.encode() for _, body, _ in part], pa.binary()),
            "priority": pa.array([priority for _, _, priority in part], pa.int32()),
        }
        send(table, [pa.RecordBatch.from_pydict(columns)], key=f"send-{half}", clock=SystemClock())
    handler = Grouped(root)
    return ReceivePass(table=table, policy=policy, handler=handler, engine=lambda: SparkEngine(spark), clock=SystemClock()), handler


@pytest.mark.parametrize("readers", [1, 2])
def test_sb_47_every_group_is_in_one_task_whole_and_in_its_order(tmp_path: Path, spark: SparkSession, readers: int) -> None:
    messages = [(GROUPS[number % 12], "twice" if number % 7 == 0 else "ok", 5 if number % 5 else 9) for number in range(480)]
    policy = ServiceBroker(scope="conversation_group", max_queue_readers=readers)
    receiving, handler = a_pass(tmp_path, spark, policy, messages)

    result = receiving.run("all")

    assert (result.received, result.settled) == (480, 480)
    calls = handler.deliveries()
    for group in GROUPS:
        mine = [(call.number, call.abort_count) for call in calls if call.group == group]
        in_order = sorted({number for number, _ in mine}, key=lambda number: (-messages[number - 1][2], number))
        assert mine == [(number, count) for number in in_order for count in range(3 if messages[number - 1][1] == "twice" else 1)]
    assert all(len({call.task for call in calls if call.group == group}) == 1 for group in GROUPS)
    assert len({call.task for call in calls}) == 2


def test_the_halt_of_one_task_ends_the_others(tmp_path: Path, spark: SparkSession) -> None:
    """The poison message is the first of its task. Its last rollback waits for the other task's first message, and that one for the halt."""
    messages = [("g0", "poison", 9)] + [(group, "until-halted", 5) for group in GROUPS for _ in range(10)]
    receiving, handler = a_pass(tmp_path, spark, ServiceBroker(scope="conversation_group"), messages)

    result = receiving.run("halted")

    calls = handler.deliveries()
    others = [call for call in calls if call.number != 1]
    assert Counter(call.number for call in calls)[1] == 5
    assert len(others) == 1, "the message that was with its handler when the other task halted"
    assert (result.settled, result.halted_messages, result.untouched) == (1, 1, 119)
    assert result.halted is not None
    assert result.halted["lookup_id"] == 1
    assert receiving.table.snapshot().control.state is QueueState.DISABLED
    assert [event.type.value for event in receiving.table.events()].count("QUEUE_DISABLED") == 1


def test_with_park_group_each_group_waits_behind_its_first_failure_in_one_task(tmp_path: Path, spark: SparkSession) -> None:
    """The failure of g0 and that of g1 come late in the queue's order of priorities; what is before them by lookup id is delivered, in that order."""
    messages = [(GROUPS[number % 12], "never" if number in {24, 61} else "ok", 9 if number % 5 else 5) for number in range(240)]
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")
    receiving, handler = a_pass(tmp_path, spark, policy, messages)
    set_park_group(receiving.table, SystemClock(), park_group=True)
    spark.conf.set(BATCH, "16")  # several to a task: within one the stage itself keeps the order

    try:
        result = receiving.run("parked")
    finally:
        spark.conf.unset(BATCH)

    failed = {"g0": 25, "g1": 62}
    behind = [number for number in range(1, 241) if number > failed.get(messages[number - 1][0], 999)]
    assert (result.settled, result.poisoned, result.behind, result.behind_groups) == (240 - 2 - len(behind), 2, len(behind), 2)
    calls = handler.deliveries()
    assert not {call.number for call in calls} & set(behind)
    for group in GROUPS:
        mine = [call.number for call in calls if call.group == group]
        assert mine == sorted(mine)
        assert len({call.task for call in calls if call.group == group}) == 1
    table = receiving.table
    left = pa.concat_tables([table.read(file) for file in table.snapshot().files if file.sub_queue == "main"]).sort_by("lookup_id")
    assert left["lookup_id"].to_pylist() == behind
    assert set(left["abort_count"].to_pylist()) == {0}
