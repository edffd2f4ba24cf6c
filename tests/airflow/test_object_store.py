"""A cycle over queues in an object store, in a real Airflow, with a real server: what the connection says is all that differs."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable

from airflow_poison import Message, Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.sensors import QueuePoisonSensor
from airflow_poison.values.schema import SubQueue
from tests.given import proxy
from tools.servers import s3 as server

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.given.proxy import Request

    from .conftest import Ran

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, retry_cycle_delay=timedelta(0), receive_error_handling="Move")


@pytest.fixture
def server_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server; this node's folder is the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with server.running() as port:
        yield port


def new_bucket(port: int) -> tuple[Any, str]:
    """Return a client of the server, and the name of a new bucket."""
    url, name = f"http://{server.LOOPBACK}:{port}", f"bucket-{uuid4().hex}"
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")
    client.create_bucket(Bucket=name)
    return client, name


@pytest.fixture
def root(server_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a store that the default connection names."""
    store = f"s3://{new_bucket(server_port)[1]}/queues"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    options = {"AWS_ENDPOINT_URL": f"http://{server.LOOPBACK}:{server_port}", **keys}
    define_connection(monkeypatch, "poison_default", {"store": store, "spark": "auto", "storage_options": options})
    return store


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
    table = hook.queue("orders").reading
    assert table.uri == f"{root}/orders"
    assert ran.returned["receive"]["settled"] == 2
    (file,) = [file for file in table.snapshot().files if file.sub_queue == SubQueue.POISON]
    assert [row["body"] for row in table.read(file).to_pylist()] == [b"bad", b"exit"]
    assert hook.queue("orders").put_back() == 2


SECRET = "hush-hush-hush"


@pytest.mark.parametrize("in_bucket", [True, False], ids=["queues in the bucket", "queues in a folder"])
def test_a_connection_of_the_amazon_provider_says_who_asks_for_the_queues_and_for_their_outputs(
    server_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    run_dag: Callable[..., Ran],
    *,
    in_bucket: bool,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    client, bucket = new_bucket(server_port)
    store, output = f"s3://{bucket}/queues" if in_bucket else str(tmp_path / "queues"), f"s3://{bucket}/landed"
    asked: set[str] = set()

    def note(request: Request) -> None:
        asked.add(request.headers["authorization"].partition("Credential=")[2].partition("/")[0])

    with proxy.in_front_of(server_port) as way:
        way.plan = note
        lake = {"conn_type": "aws", "login": "the-lakes-own", "password": SECRET, "extra": {"region_name": "us-east-1", "endpoint_url": way.url}}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
        define_connection(monkeypatch, "poison_default", {"store": store, "spark": "auto", "aws_conn_id": "lake"})

        with DAG(f"lake_{in_bucket}", schedule=None) as dag:
            sent = QueueSendOperator(task_id="send", queue_name="orders", policy=POLICY, messages=["one", "three"])
            received = QueueReceiveOperator(
                task_id="receive", queue_name="orders", handler=lambda message: {"n": len(message.text)}, output=output, output_schema="n bigint"
            )
            sent >> received
        ran = run_dag(dag)

        assert ran.state == "success", ran.errors
        assert ran.returned["receive"]["landed"] == {"output": 2}
        options = dict(QueueHook().store().options_for(output))
        landed = DeltaTable(output, storage_options={"allow_http": "true", **options}).to_pyarrow_table()
        assert sorted(row["n"] for row in landed.to_pylist()) == [3, 5]
    assert asked == {"the-lakes-own"}
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    objects = [client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for page in pages for each in page["Contents"]]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert [content for content in (*objects, *files) if SECRET.encode() in content] == []
    assert SECRET not in "".join(capfd.readouterr())
