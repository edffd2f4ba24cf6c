"""The hook and the sensor: connections, the embedded default, and what people do by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import write_deltalake

from airflow_poison import Msmq4, PoisonSubQueue
from airflow_poison.hooks.connection import StoreConnection, spark_master, spark_settings
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.ask import QueueAskOperator
from airflow_poison.operators.manage import QueueInspectOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.sensors import QueueDisabledSensor, QueuePoisonGoneSensor
from airflow_poison.spark.session import without_secrets
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.errors import CheckpointDamagedError, MessageNotFoundError, QueueNameError, SettingError, SparkDistributionError
from airflow_poison.values.schema import SubQueue
from tests.given.landing import settle
from tests.given.passes import a_queue
from tests.unit.passes.test_output_tables import POLICY, rows

from .conftest import HOME, define_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control

    from .conftest import Ran


class Connection:
    def __init__(self, conn_type: str, host: str, port: int | None = None) -> None:
        self.conn_type, self.host, self.port = conn_type, host, port


def disable(store: QueueStore, name: str) -> None:
    def change(control: Control) -> Control:
        return replace(control, state=QueueState.DISABLED, reason="somebody looks at it")

    store.open(name).alter(change)


def test_without_a_connection_the_store_is_a_folder_of_airflows_home() -> None:
    hook = QueueHook()
    assert hook.settings.store == str(HOME / "poison")
    assert hook.settings.spark == "local[*]"
    works, why = hook.test_connection()
    assert (works, why.startswith(f"No queue yet: the store's folder {HOME / 'poison'} does not exist. The first send makes it")) == (True, True)


def test_none_of_a_template_is_no_queue() -> None:
    with pytest.raises(SettingError, match=r"queue_name='None' is not allowed; .* a template whose value is none"):
        QueueHook().queue("None", Msmq4())


def test_a_connection_names_store_options_and_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"store": "/queues", "storage_options": '{"region": "eu"}', "spark": "spark://host:7077", "spark_conf": {"spark.executor.cores": 2}}
    define_connection(monkeypatch, "poison_big", extra)
    settings = QueueHook("poison_big").settings
    assert settings == StoreConnection("/queues", {"region": "eu"}, "spark://host:7077", {"spark.executor.cores": "2"})


@pytest.mark.parametrize(
    ("fields", "belongs"),
    [
        ({"host": "/data/queues"}, "host=.*into the field store"),
        ({"schema": "queues"}, "schema=.*into the field store"),
        ({"port": 9000}, "port=.*storage_options"),
        ({"login": "hush"}, "login=.*storage_options, or credentials_conn_id"),
        ({"password": "hush"}, "password=.*storage_options, or credentials_conn_id"),
        ({"extra": "{'store': '/hush'}"}, "extra=.*a JSON object"),
        ({"extra": '["hush"]'}, "extra=.*a JSON object"),
    ],
)
def test_a_field_of_a_connection_that_is_not_read_is_refused(fields: dict[str, Any], belongs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "poison", **fields}))

    with pytest.raises(SettingError, match=f"lake.{belongs}") as caught:
        _ = QueueHook("lake").settings

    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("value", "durable"), [(None, True), ("", True), (True, True), ("true", True), (False, False), (" False ", False)])
def test_a_connection_switches_durability_off_by_name(value: object, durable: bool) -> None:  # noqa: FBT001
    assert StoreConnection.parse({"durable": value}, "poison_default").durable is durable


def test_durability_is_switched_off_for_the_embedded_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_default", {"durable": "false"})

    assert QueueHook().settings == StoreConnection(str(HOME / "poison"), durable=False)
    assert QueueHook().store()._durable is False  # type: ignore[attr-defined]  # the folder's own store


@pytest.mark.parametrize(
    ("given", "spark", "small_pass"),
    [
        ({}, "local[*]", 0),
        ({"spark": "auto"}, "local[*]", 20_000),
        ({"spark": "auto", "small_pass": "500"}, "local[*]", 500),
        ({"spark": "spark://host:7077", "small_pass": 30}, "spark://host:7077", 30),
    ],
)
def test_a_connection_says_which_passes_need_no_spark(given: dict[str, object], spark: str, small_pass: int) -> None:
    settings = StoreConnection.parse(given, "poison_default")

    assert (settings.spark, settings.small_pass) == (spark, small_pass)


@pytest.mark.parametrize("given", ["many", -1, True, "1.5"])
def test_a_small_pass_is_a_number_of_messages(given: object) -> None:
    with pytest.raises(SettingError, match=r"small_pass=.*a whole number of messages"):
        StoreConnection.parse({"small_pass": given}, "poison_default")


def test_a_word_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(SettingError, match="durable='sometimes'"):
        StoreConnection.parse({"durable": "sometimes"}, "poison_default")


def test_a_store_that_cannot_be_opened_is_said_by_the_connection_test(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_far", {"store": "s3://nobody/here"})
    works, why = QueueHook("poison_far").test_connection()
    assert not works
    assert "s3://nobody/here" in why


@pytest.mark.parametrize("secret", ["{'key': 'hush'", '["hush"]'])
def test_bad_storage_options_are_refused_without_showing_them(secret: str) -> None:
    with pytest.raises(SettingError, match="storage_options") as caught:
        StoreConnection.parse({"storage_options": secret}, "poison_default")
    assert "hush" not in str(caught.value)


# Credentials of another connection --------------------------------------------------------------------------------------


def options(monkeypatch: pytest.MonkeyPatch, lake: dict[str, Any], store: str, **extra: Any) -> dict[str, str]:
    """Return the options of a store whose connection names the connection ``lake`` for credentials."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    define_connection(monkeypatch, "poison_far", {"store": store, "credentials_conn_id": "lake", **extra})
    return dict(QueueHook("poison_far").settings.storage_options)


AWS = {"conn_type": "aws", "login": "an id", "password": "hushhush", "extra": {"aws_session_token": "a token", "region_name": "eu-west-1"}}
OF_AWS = {"AWS_ACCESS_KEY_ID": "an id", "AWS_SECRET_ACCESS_KEY": "hushhush", "AWS_SESSION_TOKEN": "a token", "AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize(
    ("lake", "store", "found"),
    [
        (AWS, "s3://bucket/queues", OF_AWS),
        (AWS, "s3a://bucket/queues", OF_AWS),
        ({"conn_type": "aws", "extra": {"endpoint_url": "http://there"}}, "s3://bucket", {"AWS_ENDPOINT_URL": "http://there"}),
        (
            {"conn_type": "aws", "extra": {"endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "http://of-s3"}}}},
            "s3://bucket",
            {"AWS_ENDPOINT_URL": "http://of-s3"},
        ),
        ({"conn_type": "google_cloud_platform", "extra": {"key_path": "/key.json"}}, "gs://bucket", {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}),
        (
            {"conn_type": "google_cloud_platform", "extra": {"extra__google_cloud_platform__keyfile_dict": '{"private_key": "hushhush"}'}},
            "gs://bucket",
            {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "hushhush"}'},
        ),
        ({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": {"a": 1}}}, "gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"a": 1}'}),
        ({"conn_type": "google_cloud_platform"}, "gs://bucket", {}),
        (
            {"conn_type": "wasb", "login": "shop", "password": "hushhush"},
            "abfss://box@shop.dfs.core.windows.net/queues",
            {"AZURE_STORAGE_ACCOUNT_NAME": "shop", "AZURE_STORAGE_ACCOUNT_KEY": "hushhush"},
        ),
        (
            {"conn_type": "wasb", "login": "shop", "extra": {"sas_token": "https://shop.blob.core.windows.net/box?sv=1&sig=hushhush"}},
            "az://box/queues",
            {"AZURE_STORAGE_ACCOUNT_NAME": "shop", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=hushhush"},
        ),
    ],
)
def test_credentials_come_from_a_connection_of_the_store_s_own_provider(
    monkeypatch: pytest.MonkeyPatch, lake: dict[str, Any], store: str, found: dict[str, str]
) -> None:
    assert options(monkeypatch, lake, store) == found


def test_a_connection_for_credentials_may_be_named_as_the_amazon_provider_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(monkeypatch, AWS, "s3://bucket", credentials_conn_id="", aws_conn_id="lake") == OF_AWS
    with pytest.raises(SettingError, match=r"aws_conn_id='other'.*one of credentials_conn_id and aws_conn_id"):
        options(monkeypatch, AWS, "s3://bucket", aws_conn_id="other")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"aws_region": "here"}, {name: OF_AWS[name] for name in OF_AWS if name != "AWS_REGION"}),
        ({"AWS_SSE_BUCKET_KEY_ENABLED": "true"}, OF_AWS),
        ({"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "my own"}, {"AWS_REGION": "eu-west-1"}),
    ],
)
def test_storage_options_win_and_of_who_asks_all_is_theirs_or_nothing(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kept: dict[str, str]
) -> None:
    assert options(monkeypatch, AWS, "s3://bucket", storage_options=given) == kept | given


@pytest.mark.parametrize(
    ("lake", "store", "why"),
    [
        (
            {"conn_type": "postgres", "password": "hushhush"},
            "s3://bucket",
            "lake' is not allowed; allowed: a connection of type aws, .* type postgres",
        ),
        ({"conn_type": "wasb", "password": "hushhush"}, "s3://bucket", "a connection of type aws, as the store s3://bucket wants.*of type wasb"),
        ({"conn_type": "aws", "login": "id"}, "s3://bucket", r"lake\.password=.*login and password, or neither"),
        ({"conn_type": "aws", "password": "hushhush"}, "s3://bucket", r"lake\.login="),
        ({"conn_type": "aws", "extra": {"role_arn": "hushhush"}}, "s3://bucket", r"lake\.extra\.role_arn=.*login and password .*storage_options"),
        ({"conn_type": "google_cloud_platform", "extra": {"impersonation_chain": "hushhush"}}, "gs://bucket", "impersonation_chain.*keyfile_dict"),
        ({"conn_type": "wasb", "extra": {"tenant_id": "hushhush"}}, "az://box", "tenant_id.*sas_token"),
    ],
)
def test_what_a_connection_for_credentials_cannot_say_here_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, lake: dict[str, Any], store: str, why: str
) -> None:
    with pytest.raises(SettingError, match=why) as caught:
        options(monkeypatch, lake, store)
    assert "hushhush" not in str(caught.value)


def test_a_connection_for_credentials_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_far", {"store": "s3://bucket", "credentials_conn_id": "nowhere"})
    works, why = QueueHook("poison_far").test_connection()
    assert not works
    assert "poison_far.extra.credentials_conn_id='nowhere' is not allowed; allowed: a connection of type aws; no connection has this id" in why


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AWS_SECRET_ACCESS_KEY", "azure_storage_sas_token", "GOOGLE_SERVICE_ACCOUNT_KEY"])
def test_secrets_among_the_options_are_masked_and_in_no_text_of_the_settings(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    masked: list[object] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    define_connection(monkeypatch, "poison_far", {"store": "s3://bucket", "storage_options": {name: "hushhush", "AWS_REGION": "eu-west-1"}})
    settings = QueueHook("poison_far").settings
    assert "hushhush" in masked
    assert "eu-west-1" not in masked
    assert "hushhush" not in repr(settings)


def test_the_options_of_a_store_serve_outputs_in_object_stores_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    options(monkeypatch, AWS, "s3://bucket/queues")
    far = QueueHook("poison_far").store()
    assert [far.options_for(uri) for uri in ("s3a://lake/landed", "gs://lake/landed", "/lake/landed")] == [OF_AWS, {}, {}]
    options(monkeypatch, AWS, "/queues")
    folder = QueueHook("poison_far").store()
    assert [folder.options_for(uri) for uri in ("s3://lake/landed", "/lake/landed")] == [OF_AWS, {}]


# Spark -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spark", "connection", "master"),
    [
        ("local[2]", None, "local[2]"),
        ("yarn", None, "yarn"),
        ("sc://host:15002/;use_ssl=true;token=hush", None, "sc://host:15002/;use_ssl=true;token=hush"),
        ("spark_cluster", Connection("spark", "spark://host", 7077), "spark://host:7077"),
        ("spark_cluster", Connection("spark", "yarn"), "yarn"),
        ("spark_cluster", Connection("spark", "host", 7077), "spark://host:7077"),
    ],
)
def test_spark_is_a_master_or_the_id_of_a_spark_connection(spark: str, connection: Any, master: str) -> None:
    assert spark_master(spark, lambda _conn_id: connection) == master


def test_a_connection_of_type_spark_connect_names_a_server_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = {"conn_type": "spark_connect", "host": "host", "port": 443, "password": "hush", "extra": {"use_ssl": True}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))

    url = spark_master("lake", QueueHook.get_connection)

    assert url.startswith("sc://host:443/;")
    assert {"token=hush", "use_ssl=True"} <= set(url.partition("/;")[2].split(";"))
    assert without_secrets(url) == "sc://host:443"


def test_without_the_spark_provider_a_connection_of_type_spark_connect_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_connect", None)

    with pytest.raises(SparkDistributionError, match=r"'lake' of type spark_connect .*pip install 'airflow-poison\[submit\]'.*sc://host:port"):
        spark_master("lake", lambda _conn_id: Connection("spark_connect", "host"))


def test_a_connection_that_is_no_spark_is_refused() -> None:
    with pytest.raises(SettingError, match=r"sc://host:port \(Spark Connect\)"):
        spark_master("lake", lambda _conn_id: Connection("", "host"))


def test_a_word_that_is_no_spark_and_no_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_default", {"spark": "automatic"})
    with pytest.raises(SettingError, match=r"spark='automatic' .*auto, local\[\*\].*no connection has this id"):
        QueueHook().spark()


@pytest.mark.parametrize(
    ("conf", "files", "tasks"),
    [
        ({}, (), None),
        ({"spark.submit.pyFiles": "/a/b.zip, /c.py", "spark.default.parallelism": "12"}, ("/a/b.zip", "/c.py"), 12),
    ],
)
def test_what_is_shipped_and_how_many_tasks_there_are_may_stand_in_spark_conf(
    conf: dict[str, str], files: tuple[str, ...], tasks: int | None
) -> None:
    settings = StoreConnection.parse({"spark_conf": conf}, "poison_default")
    assert (settings.py_files, settings.parallelism) == (files, tasks)


@pytest.mark.parametrize("number", ["0", "many", "-1"])
def test_a_parallelism_that_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(SettingError, match="whole number"):
        _ = StoreConnection.parse({"spark_conf": {"spark.default.parallelism": number}}, "poison_default").parallelism


def test_the_reader_of_a_poison_sub_queue_does_not_rule_the_queue(store: QueueStore) -> None:
    hook, policy = QueueHook(), Msmq4(receive_retry_count=3)
    hook.queue("orders", policy)
    hook.queue("orders", PoisonSubQueue(receive_error_handling="Drop"))
    assert dict(store.open("orders").snapshot().control.policy) == policy.to_dict()


def test_enabling_a_disabled_queue_records_that_and_enabling_again_does_nothing(store: QueueStore) -> None:
    hook = QueueHook()
    queue = hook.queue("orders", Msmq4()).table
    disable(store, "orders")
    done = hook.queue("orders").enable()
    assert (done.before, done.reason) == ("disabled", "somebody looks at it")
    assert [event.type.value for event in queue.events()] == ["QUEUE_ENABLED"]
    version = queue.snapshot().version
    assert hook.queue("orders").enable().before == "enabled"
    assert queue.snapshot().version == version


def test_the_sensor_ends_when_the_queue_is_disabled_and_says_why(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    QueueHook().queue("orders", Msmq4())
    sensor = QueueDisabledSensor(task_id="look", queue_name="orders")
    assert not sensor.poke({}).is_done
    disable(store, "orders")
    with DAG("sensor", schedule=None) as dag:
        QueueDisabledSensor(task_id="wait", queue_name="orders", timeout=5)
    told = {"queue": "orders", "sub_queue": "main", "state": "disabled", "reason": "somebody looks at it"}
    assert run_dag(dag).returned["wait"] == told


def test_a_look_of_the_sensor_costs_50_milliseconds_at_most(store: QueueStore) -> None:
    """The best of ten counts: other processes may have the machine meanwhile."""
    QueueHook().queue("orders", Msmq4())
    sensor = QueueDisabledSensor(task_id="look", queue_name="orders")
    times = []
    for _ in range(10):
        started = time.perf_counter()
        sensor.poke({})
        times.append(time.perf_counter() - started)
    assert min(times) <= 0.05, times


def test_a_look_of_the_sensor_needs_neither_a_jvm_nor_pandas(store: QueueStore) -> None:
    QueueHook().queue("orders", Msmq4())
    code = (
        "import sys\nfrom airflow_poison.store import open_store\n"
        f"print(open_store({store.uri!r}).open('orders').snapshot().control.state.value)\n"
        "print([name for name in ('pyspark', 'py4j', 'pandas') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["enabled", "[]"]


def test_a_connection_of_another_type_is_refused_instead_of_taken_for_the_embedded_store(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "warehouse", {}, conn_type="postgres")
    with pytest.raises(SettingError, match=r"warehouse\.conn_type='postgres' is not allowed; allowed: poison"):
        QueueHook("warehouse").store()


@pytest.mark.parametrize("act", ["inspect", "remove", "put_back", "move", "send_to"])
@pytest.mark.parametrize("given", ["7", 1.5, ["a"]])
def test_lookup_ids_that_are_none_are_refused_by_name(store: QueueStore, act: str, given: Any) -> None:
    queue = QueueHook().queue("orders", Msmq4())
    with pytest.raises(SettingError, match=r"lookup_ids?="):
        queue.inspect(lookup_id=given) if act == "inspect" else getattr(queue, act)(given)


@pytest.mark.parametrize("name", [5, None, "", "orders;poison"])
def test_what_is_no_queue_name_is_refused_as_one(store: QueueStore, name: Any) -> None:
    with pytest.raises(QueueNameError, match="cannot be a queue's name"):
        QueueHook().queue(name).overview()


READERS: dict[str, Callable[[], object]] = {
    "inspect": lambda: QueueInspectOperator(task_id="inspect", queue_name="orders").execute({}),
    "ask": lambda: QueueAskOperator(task_id="ask", queue_name="orders").execute({}),
    "poison gone": lambda: QueuePoisonGoneSensor(task_id="wait", queue_name="orders", deferrable=True).execute({"triggering_asset_events": {}}),
    "conversations": lambda: QueueHook().queue("orders").conversations(),
}


@pytest.mark.parametrize("reader", READERS)
def test_who_only_reads_leaves_a_damaged_checkpoint_as_it_is(store: QueueStore, reader: str) -> None:
    QueueHook().queue("orders", Msmq4())
    Path(store.uri, "orders", "_delta_log", "_last_checkpoint").write_text('{"version": 1, "size": 3}')
    before = {path: path.stat().st_mtime_ns for path in Path(store.uri).rglob("*")}
    with pytest.raises(CheckpointDamagedError):
        READERS[reader]()
    assert {path: path.stat().st_mtime_ns for path in Path(store.uri).rglob("*")} == before


def test_a_field_that_there_is_not_is_refused_without_its_value_which_may_be_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_default", {"aws_secret_access_key": "hush-hush"})

    with pytest.raises(SettingError, match=r"poison_default\.extra\.aws_secret_access_key='…' is not allowed; allowed: the fields ") as refused:
        QueueHook().store()

    assert "hush" not in repr(refused.value)


def test_rows_that_wait_for_an_output_are_listed_and_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)
    out = tmp_path / "out"
    write_deltalake(str(out), pa.table({"n": pa.array([], pa.int64())}))
    queue = settle(queue, out)
    define_connection(monkeypatch, "waiting", {"store": str(tmp_path / "store")})
    hook = QueueHook("waiting")

    (waits,) = hook.queue("orders").waiting_rows()
    assert (waits.uri, waits.rows, hook.queue("orders").take_out_rows([2, 4], "main", reason="the output wants positive numbers")) == (
        str(out),
        5,
        2,
    )
    assert (hook.queue("orders").waiting_rows(), sorted(row["n"] for row in rows(out))) == ((), [5, 7, 9])
    assert {number: row["body"] for number, row in queue.rows(SubQueue.MAIN).items()} == {2: b"-1", 4: b"-2"}
    assert {event.details.get("why") for event in hook.store().open("orders").events()} == {"the output wants positive numbers"}
    with pytest.raises(MessageNotFoundError):
        hook.queue("orders").take_out_rows()


def test_rows_that_an_output_refuses_are_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)
    out = tmp_path / "out"
    write_deltalake(str(out), pa.table({"n": pa.array([], pa.int64())}))
    queue = settle(queue, out)
    define_connection(monkeypatch, "waiting", {"store": str(tmp_path / "store")})
    hook = QueueHook("waiting")

    assert hook.queue("orders").take_out_refused_rows(reason="the output wants positive numbers") == 2

    assert (hook.queue("orders").waiting_rows(), sorted(row["n"] for row in rows(out))) == ((), [5, 7, 9])
    assert sorted(queue.rows(SubQueue.POISON)) == [2, 4]
    assert hook.queue("orders").take_out_refused_rows() == 0


def test_a_connection_of_the_spark_provider_says_where_spark_runs_instead_of_the_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_POISON_DEFAULT", json.dumps({"conn_type": "poison", "extra": {"store": str(tmp_path), "spark": "local[2]"}}))
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": "spark://host", "port": 7077}))
    assert QueueHook().settings.spark == "local[2]"
    hook = QueueHook(spark_conn_id="cluster")
    assert (hook.settings.store, spark_master(hook.settings.spark, hook.get_connection)) == (str(tmp_path), "spark://host:7077")
    received = QueueReceiveOperator(task_id="receive", queue_name="orders", handler="shop:land", spark_conn_id="cluster")
    sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], spark_conn_id="cluster")
    with DAG("cycles", schedule=None) as dag:
        retry_cycle("orders", Msmq4(), "shop:land", spark_conn_id="cluster")
    tasks = [received, sent, dag.get_task("retry_cycle.receive")]
    assert [getattr(task, "spark_conn_id", None) for task in tasks] == ["cluster"] * 3


def test_the_settings_of_a_spark_connection_are_those_of_the_session_and_what_is_for_spark_submit_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"queue": "night", "namespace": "", "deploy-mode": "client", "spark.executor.memory": "2g", "spark.cores.max": 4}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    expected = {"spark.yarn.queue": "night", "spark.executor.memory": "2g", "spark.cores.max": "4"}
    assert spark_settings("cluster", QueueHook.get_connection) == expected
    assert spark_settings("local[2]", QueueHook.get_connection) == {}
