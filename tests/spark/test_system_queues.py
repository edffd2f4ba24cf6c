"""Spark and the queues of a system, whose names begin with an underscore: Spark takes such files for hidden ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.given.drivers import POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.values.message import Message


def refuse_bad(message: Message) -> None:
    if message.text == "bad":
        raise ValueError(message.text)


@pytest.mark.parametrize("handling", ["Move", "Fault"], ids=["side by side", "in order"])
def test_dmp_6_a_system_exception_destination_can_be_received_from(spark: SparkSession, tmp_path: Path, handling: str) -> None:
    policy, clock = replace(POLICY, receive_error_handling=handling), SystemClock()
    table = declare(DeltaStore(str(tmp_path)), "_SYSTEM.Exception.Destination.ME1", policy, clock)
    send(table, messages_to_batches(["good", "good", "bad"]), key="sent", clock=clock)

    result = ReceivePass(table=table, policy=policy, handler=refuse_bad, engine=lambda: SparkEngine(spark), clock=clock, isolation="none").run("run")

    assert (result.received, result.settled, result.rollbacks) == (3, 2, 2)
