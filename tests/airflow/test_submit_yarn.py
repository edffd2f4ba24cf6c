"""Passes over queues in a bucket, submitted to a real YARN: Hadoop's resource manager and node managers, on this machine."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from tests.spark.places.yarn import CONF, ENVIRONMENT, packed, web_address, yarn
from tools.servers import s3 as server
from tools.servers.spark import BESIDE_THE_TASK

from .conftest import define_connection
from .test_submit import POLICY, context, sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with yarn(tmp_path_factory.mktemp("yarn")) as settings:
        yield settings


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, str]]:
    with server.running() as port:
        yield server.options(f"http://{server.LOOPBACK}:{port}", "hush-hush")


@pytest.fixture(autouse=True)
def forgotten_pipes() -> Iterator[None]:
    """The provider's hook leaves the pipes of its processes to the garbage collector: it finds them here, where nobody minds."""
    yield
    gc.collect()


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"])
def test_a_submitted_pass_receives_and_tells_its_numbers(  # noqa: PLR0917  (fixtures)
    cluster: Path, options: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], deploy_mode: str
) -> None:
    """Driver and executors run the Python of a packed environment, which YARN puts beside them; the handler is a name, and its module was shipped."""
    name, calls = f"bucket-{uuid4().hex}", tmp_path / "calls"
    boto3.client(
        "s3", endpoint_url=options["AWS_ENDPOINT_URL"], aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
    ).create_bucket(Bucket=name)
    define_connection(monkeypatch, "poison_default", {"store": f"s3://{name}/queues", "storage_options": dict(options)})
    extra = {"deploy-mode": deploy_mode, "yarn_resourcemanager_webapp_address": web_address(cluster)}
    define_connection(monkeypatch, "spark_cluster", extra, conn_type="spark", host="yarn")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster))
    python = f"./{ENVIRONMENT}/bin/python"
    module = f"shipped_to_yarn_{deploy_mode}"
    note = f"with open({str(calls)!r}, 'a') as file:\n        file.write(message.text + ' ' + os.environ.get('PACKED', '') + chr(10))"
    (tmp_path / f"{module}.py").write_text(f"import os\n\ndef land(message):\n    {note}\n    assert message.text != 'bad'\n")
    table = sent(QueueHook().store(), "good", "bad", "good")
    task = QueueReceiveSubmitOperator(
        task_id="receive",
        queue_name="orders",
        policy=POLICY,
        handler=cast("Any", f"{module}:land"),
        spark_conn_id="spark_cluster",
        py_files=[str(tmp_path / f"{module}.py")],
        yarn_track_via_rm_api=deploy_mode == "cluster",
        conf={
            **CONF,
            **(BESIDE_THE_TASK if deploy_mode == "client" else {}),
            "spark.yarn.dist.archives": f"{packed(tmp_path)}#{ENVIRONMENT}",
            "spark.pyspark.python": python,
        },
    )

    numbers = task.execute(context())

    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["rollbacks"]) == (3, 2, 1, 2)
    assert Counter(calls.read_text().splitlines()) == {f"good {python}": 2, f"bad {python}": 2}
    assert {file.sub_queue: file.rows for file in table.snapshot().files} == {"poison": 1}
    assert "hush-hush" not in "".join(capfd.readouterr())
