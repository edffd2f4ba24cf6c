"""Passes over queues in a bucket, submitted to Kubernetes by a real ``spark-submit``: the API server is a stand-in, whose pods are processes here."""

from __future__ import annotations

import gc
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from tests.spark.places.kubernetes import IMAGE, kubernetes
from tools.servers import s3 as server
from tools.servers.spark import BESIDE_THE_TASK

from .conftest import define_connection
from .test_submit import POLICY, context, sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.spark.places.kubernetes import Kubernetes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Kubernetes]:
    with kubernetes(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, str]]:
    with server.running() as port:
        yield server.options(f"http://{server.LOOPBACK}:{port}", "hush-hush")


@pytest.fixture(autouse=True)
def forgotten_pipes() -> Iterator[None]:
    """The provider's hook leaves the pipes of its processes to the garbage collector: it finds them here, where nobody minds."""
    yield
    gc.collect()


def environment(pod: Mapping[str, Any]) -> dict[str, str]:
    [container] = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"])
def test_a_submitted_pass_receives_and_tells_its_numbers(  # noqa: PLR0917  (fixtures)
    cluster: Kubernetes,
    options: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    deploy_mode: str,
) -> None:
    """Driver and executors run the Python of the image, under its name there."""
    name, calls, uploads = f"bucket-{uuid4().hex}", tmp_path / "calls", tmp_path / "uploads"
    boto3.client(
        "s3", endpoint_url=options["AWS_ENDPOINT_URL"], aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
    ).create_bucket(Bucket=name)
    define_connection(monkeypatch, "poison_default", {"store": f"s3://{name}/queues", "storage_options": dict(options)})
    define_connection(monkeypatch, "spark_cluster", {"deploy-mode": deploy_mode}, conn_type="spark", host=cluster.master)
    client = "airflow.providers.apache.spark.hooks.spark_submit.kube_client"  # of a provider that is not installed here
    monkeypatch.setattr(client, object(), raising=False)
    module = f"shipped_to_kubernetes_{deploy_mode}"
    (tmp_path / f"{module}.py").write_text(
        f"def land(message):\n    with open({str(calls)!r}, 'a') as file:\n        file.write(message.text + chr(10))\n"
        "    assert message.text != 'bad'\n"
    )
    table = sent(QueueHook().store(), "good", "bad", "good")
    task = QueueReceiveSubmitOperator(
        task_id="receive",
        queue_name="orders",
        policy=POLICY,
        handler=cast("Any", f"{module}:land"),
        spark_conn_id="spark_cluster",
        py_files=[str(tmp_path / f"{module}.py")],
        conf={
            **cluster.conf,
            **(BESIDE_THE_TASK if deploy_mode == "client" else {"spark.kubernetes.file.upload.path": f"file://{uploads}"}),
            "spark.pyspark.python": "python3",
        },
    )

    numbers = task.execute(context())

    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["rollbacks"]) == (3, 2, 1, 2)
    assert Counter(calls.read_text().split()) == {"good": 2, "bad": 2}
    assert {file.sub_queue: file.rows for file in table.snapshot().files} == {"poison": 1}
    assert "hush-hush" not in "".join(capfd.readouterr())
    assert len(cluster.pods("executor")) == 2
    assert {pod["spec"]["containers"][0]["image"] for pod in cluster.posted["pods"]} == {IMAGE}
    if deploy_mode == "client":
        assert cluster.pods("driver") == []
        return
    [driver] = cluster.pods("driver")
    *run, application = driver["spec"]["containers"][0]["args"]
    assert run == ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "--class", "org.apache.spark.deploy.PythonRunner"]
    assert application.startswith(f"file://{uploads}/spark-upload-"), "the archive, which holds this package and the handler's module"
    assert environment(driver)["PYSPARK_PYTHON"] == "python3"
    settings = cluster.posted["configmaps"][0]["data"]["spark.properties"]
    assert "spark.submit.pyFiles=\n" in settings
    assert "hush-hush" not in json.dumps(cluster.posted), "credentials are in the archive alone"
