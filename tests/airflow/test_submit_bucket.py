"""Passes over queues in a bucket, submitted to a cluster whose machines share nothing else: neither with each other nor with the task."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.submitted import Submission
from airflow_poison.values.clock import SystemClock
from tests.given.waiting import until
from tests.spark.places.servers import apart
from tools.servers import s3 as server

from .conftest import define_connection
from .test_submit import CONF, POLICY, Store, begun, called, context, sent, writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tools.servers.spark import Cluster

MODES = pytest.mark.parametrize("deploy_mode", ["client", "cluster"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with mounts of their own; what the task's machine keeps, they do not see."""
    with apart(tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("task-node")) as nodes:
        yield nodes.cluster


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, str]]:
    with server.running() as port:
        yield server.options(f"http://{server.LOOPBACK}:{port}", "hush-hush")


@pytest.fixture
def client(options: Mapping[str, str]) -> Any:
    return boto3.client("s3", endpoint_url=options["AWS_ENDPOINT_URL"], aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")


@pytest.fixture
def bucket(options: Mapping[str, str], client: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket of the store that the default connection names."""
    name = f"bucket-{uuid4().hex}"
    client.create_bucket(Bucket=name)
    define_connection(monkeypatch, "poison_default", {"store": f"s3://{name}/queues", "storage_options": dict(options)})
    return name


@pytest.fixture
def submitted(cluster: Cluster, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueueReceiveSubmitOperator]]:
    assert bucket
    host, _, port = cluster.url.rpartition(":")
    define_connection(monkeypatch, "spark_cluster", {"rest-port": cluster.rest_port}, conn_type="spark", host=host, port=int(port))

    def make(handler: object, deploy_mode: str, **more: Any) -> QueueReceiveSubmitOperator:
        return QueueReceiveSubmitOperator(
            task_id="receive",
            queue_name="orders",
            policy=POLICY,
            handler=cast("Any", handler),
            spark_conn_id="spark_cluster",
            deploy_mode=deploy_mode,
            driver_memory="512m",
            conf=CONF,
            **more,
        )

    yield make
    gc.collect()  # the provider's hook leaves the pipes of its processes to the garbage collector


def staged(client: Any, bucket: str) -> list[str]:
    found = client.list_objects_v2(Bucket=bucket, Prefix="queues/orders/_stage/").get("Contents", [])
    return [each["Key"] for each in found]


@MODES
def test_a_driver_without_a_shared_folder_receives_and_tells_its_numbers(  # noqa: PLR0917  (fixtures)
    submitted: Callable[..., QueueReceiveSubmitOperator],
    client: Any,
    bucket: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    deploy_mode: str,
) -> None:
    """The handler is a name, and its module was shipped; what the driver was sent is nobody's any more when the task has ended."""
    calls = tmp_path / "calls"
    module = f"shipped_{deploy_mode}"
    writes = f"with open({str(calls)!r}, 'a') as file:\n        file.write(message.text + chr(10))"
    code = f"def land(message):\n    {writes}\n    assert message.text != 'bad'\n"
    (tmp_path / f"{module}.py").write_text(code)
    table = sent(QueueHook().store(), "good", "bad", "good")

    numbers = submitted(f"{module}:land", deploy_mode, py_files=[str(tmp_path / f"{module}.py")]).execute(context())

    assert (numbers["received"], numbers["settled"], numbers["poisoned"], numbers["rollbacks"]) == (3, 2, 1, 2)
    assert Counter(calls.read_text().split()) == {"good": 2, "bad": 2}
    assert {file.sub_queue: file.rows for file in table.snapshot().files} == {"poison": 1}
    assert staged(client, bucket) == []
    assert "hush-hush" not in "".join(capfd.readouterr())


@MODES
def test_a_driver_that_is_killed_leaves_what_the_next_one_needs(
    submitted: Callable[..., QueueReceiveSubmitOperator], tmp_path: Path, deploy_mode: str
) -> None:
    table = sent(QueueHook().store(), "one", "linger", "three")
    calls, known = tmp_path / "calls", Store()
    task = submitted(writes(calls), deploy_mode)
    ended: list[BaseException] = []
    trying = begun(task, context(known), ended=ended)
    until(lambda: called(calls)["linger"], "the handler lingers")

    task.on_kill()

    trying.join(120)
    assert len(ended) == 1
    until(lambda: len(table.expired(SystemClock().now())) == 1, "the claim is given up")
    Path(f"{calls}.go").touch()
    numbers = submitted(writes(calls), deploy_mode).execute(context(known))
    assert (numbers["received"], numbers["settled"]) == (3, 3)
    assert called(calls)["three"] == 1


def test_what_a_driver_has_told_another_worker_of_airflow_reads(
    submitted: Callable[..., QueueReceiveSubmitOperator], client: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task dies when the driver has ended; its next try is on a machine that has seen nothing of it, and needs no Spark."""
    sent(QueueHook().store(), "good", "good")
    doomed = context()

    def die(value: object, **_: object) -> None:
        raise KeyboardInterrupt

    doomed["ti"].xcom_push = die  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        submitted(writes(tmp_path / "calls"), "client").execute(doomed)
    assert [name.rpartition("/")[2] for name in staged(client, bucket)] == ["begun.json", "outcome.json"], "and neither code nor credentials"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PATH", "")
    assert submitted(writes(tmp_path / "calls"), "client").execute(context())["received"] == 2
    assert staged(client, bucket) == []


def test_a_driver_whose_result_was_told_by_another_one_leaves_nothing(bucket: str) -> None:
    assert bucket
    table = sent(QueueHook().store(), "good")
    mine = Submission(table, "run")
    with mine.kept():
        mine.write_outcome({"result": None})
    assert not Submission(table, "run").attempts()
