"""A cycle over queues in an object store, in a real Airflow, with a real server: what the connection says is all that differs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest
from airflow.sdk import DAG

from airflow_poison import Message, Msmq4
from airflow_poison.core.schema import SubQueue
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.sensors.queue import QueuePoisonSensor
from tests.store.s3 import server

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Ran

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, retry_cycle_delay=timedelta(0), receive_error_handling="Move")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a store that the default connection names."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with server.running() as port:
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        url, name = f"http://{server.LOOPBACK}:{port}", f"bucket-{uuid4().hex}"
        boto3.client("s3", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1").create_bucket(Bucket=name)
        store = f"s3://{name}/queues"
        extra = {"store": store, "spark": "auto", "storage_options": {"AWS_ENDPOINT_URL": url, **keys}}
        define_connection(monkeypatch, "poison_default", extra)
        yield store


def test_a_cycle_needs_nothing_but_the_connection(root: str, run_dag: Callable[..., Ran]) -> None:
    def land(message: Message) -> None:
        if message.text == "exit":
            os._exit(7)
        if message.text == "bad":
            raise ValueError("no good")

    with DAG("bucket", schedule=None) as dag:
        sent = QueueSendOperator(task_id="send", queue_name="orders", policy=POLICY, messages=["good", "bad", "exit", "also good"])
        received = QueueReceiveOperator(task_id="receive", queue_name="orders", policy=POLICY, handler=land)
        seen = QueuePoisonSensor(task_id="see", queue_name="orders", poke_interval=1, timeout=30)
        sent >> received >> seen

    ran = run_dag(dag)

    assert ran.state == "success", ran.errors
    hook = QueueHook()
    table = hook.queue_to_read("orders")
    assert table.uri == f"{root}/orders"
    assert ran.returned["receive"]["settled"] == 2
    (file,) = [file for file in table.snapshot().files if file.sub_queue == SubQueue.POISON]
    assert [row["body"] for row in table.read(file).to_pylist()] == [b"bad", b"exit"]
    assert hook.put_back("orders") == 2
