"""What OpenLineage and the hook lineage are told of tasks."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.utils.state import TaskInstanceState
from deltalake import DeltaTable

from airflow_poison import Files, Msmq4
from airflow_poison.lineage import Lineage, convert_asset_to_openlineage, dataset, path_uri, sources_of
from airflow_poison.operators.manage import QueueMoveOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow.sdk import BaseOperator
    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore
    from tests.airflow.conftest import Ran

pytestmark = pytest.mark.long

pytest.importorskip("airflow.providers.openlineage")

REJECT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")


def refuse_bad(message: Any) -> None:
    if message.body == b"bad":
        raise ValueError("bad")


@pytest.fixture
def ran(run_dag: Callable[..., Ran], store: QueueStore) -> Callable[..., dict[str, BaseOperator]]:
    """Run a DAG; return its tasks as they ran."""

    def run(dag: DAG) -> dict[str, BaseOperator]:
        found: dict[str, Any] = {}
        for task in dag.tasks:
            task.on_success_callback = [lambda context: found.update({context["task"].task_id: context["task"]})]
        assert run_dag(dag).state == "success"
        return found

    return run


def datasets(task: BaseOperator) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return inputs and outputs as OpenLineage's own manager extracts them."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    run: Any = SimpleNamespace(run_id="run")
    found = ExtractorManager().extract_metadata(run, task, TaskInstanceState.SUCCESS, None)  # type: ignore[no-untyped-call]  # its constructor
    return [(each.namespace, each.name) for each in found.inputs], [(each.namespace, each.name) for each in found.outputs]


def test_a_receive_reads_its_queue_and_writes_where_messages_were_sent_on_to(
    ran: Callable[..., dict[str, BaseOperator]], store: QueueStore, spark: SparkSession
) -> None:
    bodies = [{"body": body, "dead_letter_queue": queue} for body, queue in (("good", None), ("bad", None), ("bad", "lawyers"))]
    with DAG("lineage_receive", schedule=None) as dag:
        send = QueueSendOperator(task_id="send", queue_name="orders", messages=bodies, body="body", properties=["dead_letter_queue"], policy=REJECT)
        send >> QueueReceiveOperator(task_id="receive", queue_name="orders", handler=refuse_bad)
    tasks = ran(dag)
    queue = ("poison://poison_default", "orders")
    assert datasets(tasks["send"]) == ([], [queue])
    assert datasets(tasks["receive"]) == ([queue], [("poison://poison_default", "orders.dead-letter"), ("poison://poison_default", "lawyers")])
    symlink = tasks["send"].get_openlineage_facets_on_complete(None).outputs[0].facets["symlinks"].identifiers[0]  # type: ignore[attr-defined]
    assert (symlink.namespace, symlink.name) == ("file", store.open("orders").uri)


def test_a_pass_that_sends_nothing_on_writes_nothing(ran: Callable[..., dict[str, BaseOperator]], spark: SparkSession) -> None:
    with DAG("lineage_quiet", schedule=None) as dag:
        send = QueueSendOperator(task_id="send", queue_name="orders", messages=["good"], policy=REJECT)
        send >> QueueReceiveOperator(task_id="receive", queues=["orders"], handler=refuse_bad)
    assert datasets(ran(dag)["receive"]) == ([("poison://poison_default", "orders")], [])


def test_a_send_reads_the_path_or_what_a_frame_came_from(
    ran: Callable[..., dict[str, BaseOperator]], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_poison.lineage._openlineage_listens", lambda: True)
    path = str(tmp_path / "arrivals")
    spark.range(3).selectExpr("id AS number").write.parquet(path)
    with DAG("lineage_send", schedule=None) as dag:
        QueueSendOperator(task_id="path", queue_name="paths", path=path, policy=REJECT)
        QueueSendOperator(task_id="frame", queue_name="frames", dataframe=lambda spark: spark.read.parquet(path).where("number > 0"), policy=REJECT)
        QueueSendOperator(task_id="made", queue_name="made", dataframe=lambda spark: spark.range(2), policy=REJECT)
    tasks = ran(dag)
    assert datasets(tasks["path"])[0] == datasets(tasks["frame"])[0] == [("file", path)]
    assert datasets(tasks["made"]) == ([], [("poison://poison_default", "made")])


def test_a_take_reads_its_source_when_something_is_new(ran: Callable[..., dict[str, BaseOperator]], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("1\n")
    with DAG("lineage_take", schedule=None) as dag:
        source = Files(f"{tmp_path}/*.json", settled=timedelta(0))
        first, second = (QueueSendOperator(task_id=name, queue_name="orders", source=source, policy=REJECT) for name in ("first", "second"))
        first >> second
    tasks = ran(dag)
    assert datasets(tasks["first"]) == ([("file", str(tmp_path))], [("poison://poison_default", "orders")])
    assert datasets(tasks["second"]) == ([], [])


def test_a_move_to_another_queue_is_lineage(ran: Callable[..., dict[str, BaseOperator]], store: QueueStore) -> None:
    with DAG("lineage_move", schedule=None) as dag:
        sends = [QueueSendOperator(task_id=f"to_{name}", queue_name=name, messages=["a"], policy=REJECT) for name in ("orders", "archive")]
        sends >> QueueMoveOperator(task_id="move", queue_name="orders", lookup_ids=[1], target="queue", to_queue="archive")
    assert datasets(ran(dag)["move"]) == ([("poison://poison_default", "orders")], [("poison://poison_default", "archive")])


def test_a_frame_is_not_asked_while_nobody_listens(spark: SparkSession) -> None:
    assert sources_of(spark.range(1)) == []


def test_whoever_collects_hook_lineage_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.lineage import HookLineageCollector

    collector = HookLineageCollector()  # type: ignore[no-untyped-call]  # its constructor
    monkeypatch.setattr("airflow_poison.lineage._collector", lambda: collector)
    lineage = Lineage()
    lineage.reads(self_ := object(), "poison://poison_default/orders", path_uri("data/x"))
    lineage.writes(self_, "poison://poison_default/bills")
    found = collector.collected_assets
    assert sorted(each.asset.uri.partition("://")[0] for each in found.inputs) == ["file", "poison"]
    assert [each.asset.uri for each in found.outputs] == ["poison://poison_default/bills"]


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("poison://mine/orders", "poison://mine", "orders"),
        ("poison://mine/orders?on=disabled", "poison://mine", "orders"),
        ("file:///data/arrivals", "file", "/data/arrivals"),
        ("s3a://bucket/a/b", "s3a://bucket", "a/b"),
        ("kafka://broker:9092/shop.orders", "kafka://broker:9092", "shop.orders"),
        ("postgres://db:5432/shop/public/orders", "postgres://db:5432", "shop.public.orders"),
    ],
)
def test_names_of_datasets(uri: str, namespace: str, name: str) -> None:
    found = dataset(uri)
    assert (found.namespace, found.name) == (namespace, name)


def test_the_asset_of_a_queue_is_its_dataset() -> None:
    found = convert_asset_to_openlineage(Asset("poison://poison_default/orders?on=disabled"), None)
    assert (found.namespace, found.name) == ("poison://poison_default", "orders")


def lengths(message: Any) -> dict[str, int]:
    return {"n": len(message.body)}


def test_an_output_is_a_dataset_with_its_columns(ran: Callable[..., dict[str, BaseOperator]], spark: SparkSession, tmp_path: Path) -> None:
    landed = str(tmp_path / "landed")
    with DAG("lineage_results", schedule=None) as dag:
        send = QueueSendOperator(task_id="send", queue_name="lengths", messages=["one", "three"], policy=REJECT)
        send >> QueueReceiveOperator(task_id="receive", queue_name="lengths", handler=lengths, output=landed, output_schema="n bigint")
    receive: Any = ran(dag)["receive"]

    assert DeltaTable(landed).to_pyarrow_table().sort_by("n").to_pylist() == [{"n": 3}, {"n": 5}]
    output = receive.get_openlineage_facets_on_complete(None).outputs[0]
    assert (output.namespace, output.name) == ("file", landed)
    assert [(field.name, field.type) for field in output.facets["schema"].fields] == [("n", "long")]


def test_an_output_is_an_outlet_whose_event_says_how_many_rows_have_landed() -> None:
    receive: Any = QueueReceiveOperator(task_id="receive", queue_name="lengths", handler=lengths, output="/lake/landed")
    event = SimpleNamespace(extra={"by": "another"})

    receive.note_landed({"output": 2}, {"outlet_events": {Asset("file:///lake/landed"): event}}, MemoryStore())

    assert [asset.uri for asset in receive.outlets] == ["file:///lake/landed"]
    assert event.extra == {"by": "another", "rows": 2, "queue": "lengths"}
