"""Each kind of bad input, caused once in a real Airflow: a clear error that names what is wrong and the next step, and nothing is lost or sent."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, task

from airflow_poison import Msmq4, ServiceBroker
from airflow_poison.assets import queue_asset
from airflow_poison.operators.manage import QueueAlterOperator, QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.declaration import importable_types
from airflow_poison.sensors import QueueDisabledSensor, QueueMessagesSensor
from airflow_poison.values.errors import (
    ErrorHandlerError,
    HandlerNotFoundError,
    InputError,
    JavaError,
    MessageTooLargeError,
    NewerFormatError,
    QueueNotFoundError,
    QueuesFailedError,
    SettingError,
    SparkDistributionError,
    SparkJobError,
    StoreUnreachableError,
    SystemChangeError,
)
from airflow_poison.values.events import EventType

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow.sdk import BaseOperator
    from pyspark.sql import SparkSession

    from airflow_poison import Message
    from airflow_poison.store import QueueStore

    from .conftest import Ran

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@pytest.fixture
def error_of(run_dag: Callable[..., Ran], request: pytest.FixtureRequest) -> Callable[..., BaseException]:
    """Run one task that must fail, and return its error."""

    def run(make: Callable[..., BaseOperator], **parameters: Any) -> BaseException:
        with DAG(f"bad_{abs(hash(request.node.name))}", schedule=None) as dag:
            make(task_id="task", **parameters)
        ran = run_dag(dag)
        assert ran.tasks["task"] == "failed"
        return ran.errors["task"]

    return run


@pytest.fixture
def orders(store: QueueStore) -> QueueStore:
    """A store whose queue ``orders`` holds one message."""
    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.send import messages_to_batches, send
    from airflow_poison.values.clock import SystemClock

    send(declare(store, "orders", POLICY, SystemClock()), messages_to_batches([b"{}"]), key="first", clock=SystemClock())
    return store


def messages(store: QueueStore) -> int:
    return sum(file.rows for file in store.open("orders").snapshot().files)


def frame(spark: SparkSession) -> Any:
    return spark.createDataFrame([("a", 1, ["x"])], "text string, number int, list array<string>")


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        ({"body": "txet"}, ["body='txet'", "'text', 'number', 'list'"]),
        ({"body": "text", "properties": ["text", "missing"]}, ["properties='missing'"]),
        ({"body": "number"}, ["body='number'", "is int", "body=['number']"]),
        ({"body": "text", "group": "list"}, ["group='list'", "is list<", "text, a number or a date"]),
        ({"body": "text", "priority": "list"}, ["priority='list'", "is list<", "whole numbers"]),
        ({"body": "text", "expires_after": "list"}, ["expires_after='list'", "is list<", "seconds"]),
    ],
)
def test_a_frame_that_does_not_fit_its_mapping_names_the_column_and_sends_nothing(
    orders: QueueStore, spark: SparkSession, error_of: Callable[..., BaseException], mapping: dict[str, Any], named: list[str]
) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", dataframe=frame, **mapping)
    assert isinstance(error, InputError)
    for text in named:
        assert text in str(error)
    assert messages(orders) == 1


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ([{"number": 1}, {"numbre": 2}], ["priority='number'", "numbre"]),
        ([{"number": 11}], ["priority='number'", "11", "0 to 10"]),
        ([{"number": 1}, 7], ["messages[1] is int"]),
        ([b"bare"], ["priority='number'", "no columns"]),
    ],
)
def test_plain_messages_that_do_not_fit_are_refused_and_nothing_is_sent(
    orders: QueueStore, error_of: Callable[..., BaseException], sent: list[object], named: list[str]
) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", messages=sent, priority="number")
    assert isinstance(error, InputError)
    for text in named:
        assert text in str(error)
    assert messages(orders) == 1


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"path": "in.csv", "format": "cvs"}, ["path='in.csv' as format='cvs'", "DATA_SOURCE_NOT_FOUND", "Spark itself reads csv, json, orc"]),
        ({"path": "s3a://nobody/in.csv", "format": "csv"}, ["path='s3a://nobody/in.csv' as format='csv'", "S3AFileSystem", "spark.jars.packages"]),
        ({"table": "nowhere"}, ["table='nowhere'", "TABLE_OR_VIEW_NOT_FOUND"]),
        ({"dataframe": lambda spark: spark.sql("select 1 as a, 2 as b, 3 as A")}, ["column 'a' is there twice"]),
        ({"dataframe": lambda spark: spark.sql("select array(named_struct('a', 1, 'a', 2)) as s")}, ["two fields in column 's' are named 'a'"]),
        ({"dataframe": frame, "priority": 3}, ["priority=3: expected the name of a column"]),
        ({"dataframe": frame, "expires_after": timedelta.max}, ["expires_after=", "no date"]),
    ],
)
def test_what_spark_cannot_send_is_one_error_without_a_dump(
    orders: QueueStore, spark: SparkSession, error_of: Callable[..., BaseException], source: dict[str, Any], named: list[str]
) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", **source)
    assert isinstance(error, InputError)
    assert "\n" not in str(error)
    assert str(error).endswith("Nothing was sent.")
    for text in named:
        assert text in str(error)
    assert messages(orders) == 1


def test_a_path_that_spark_cannot_read_is_named(
    orders: QueueStore, spark: SparkSession, error_of: Callable[..., BaseException], tmp_path: Path
) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", path=str(tmp_path / "nowhere"), format="json")
    assert isinstance(error, InputError)
    assert "nowhere" in str(error)
    assert "format='json'" in str(error)


def test_a_file_that_spark_cannot_read_is_named_with_the_way_on(
    orders: QueueStore, spark: SparkSession, error_of: Callable[..., BaseException], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [str(number) for number in range(10_000)]}), tmp_path / "in.parquet")
    content = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "in.parquet").write_bytes(content[:50] + b"\xff" * 300 + content[350:])

    error = error_of(QueueSendOperator, queue_name="orders", dataframe=lambda spark: spark.read.parquet(str(tmp_path / "in.parquet")))
    assert isinstance(error, SparkJobError)
    for text in ("in.parquet", "Nothing was sent. Repair that file or move it away", "source=Files(...)"):
        assert text in str(error)
    assert messages(orders) == 1


def test_a_function_that_returns_no_frame_is_refused(orders: QueueStore, spark: SparkSession, error_of: Callable[..., BaseException]) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", dataframe=lambda _spark: [1])
    assert isinstance(error, InputError)
    assert "returned list" in str(error)


def test_a_message_above_the_size_limit_is_refused(
    orders: QueueStore, error_of: Callable[..., BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_poison.passes import send

    monkeypatch.setattr(send, "MAX_BODY_BYTES", 10)
    error = error_of(QueueSendOperator, queue_name="orders", messages=[b"short", b"longer than ten"])
    assert isinstance(error, MessageTooLargeError)
    assert "15 bytes" in str(error)
    assert messages(orders) == 1


@pytest.mark.parametrize("given", [{}, {"path": "/a", "table": "b"}])
def test_a_send_needs_exactly_one_source_when_the_dag_is_parsed(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="exactly one of path, table, dataframe, messages and source"):
        QueueSendOperator(task_id="send", queue_name="orders", **given)


def test_a_queue_that_does_not_exist_is_named(store: QueueStore, error_of: Callable[..., BaseException]) -> None:
    error = error_of(QueueSendOperator, queue_name="ordres", messages=[b"a"])
    assert isinstance(error, QueueNotFoundError)
    assert "ordres" in str(error)


def test_a_policy_with_a_bad_value_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SettingError, match=r"receive_retry_count=-1 is not allowed; allowed: .*0"):
        Msmq4(receive_retry_count=-1)
    with pytest.raises(SettingError, match="retry_cycle_delay"):
        Msmq4(retry_cycle_delay=timedelta(seconds=-1))


def test_a_handler_that_cannot_be_imported_fails_before_anything_is_claimed(orders: QueueStore, error_of: Callable[..., BaseException]) -> None:
    before = orders.open("orders").snapshot().version
    error = error_of(QueueReceiveOperator, queue_name="orders", handler="shop.arrivals:land")
    assert isinstance(error, HandlerNotFoundError)
    assert "shop.arrivals" in str(error)
    assert orders.open("orders").snapshot().version == before


def test_an_error_handler_that_is_none_is_refused_before_anything_is_claimed(orders: QueueStore, error_of: Callable[..., BaseException]) -> None:
    error = error_of(QueueReceiveOperator, queue_name="orders", handler="json:loads", error_handler=dict)
    assert isinstance(error, ErrorHandlerError)
    assert messages(orders) == 1


def test_a_notifier_that_cannot_be_called_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SettingError, match="on_poison='slack'"):
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", on_poison=["slack"])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="on_poison='slack'"):
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", on_poison="slack")  # type: ignore[arg-type]


def test_a_store_that_cannot_be_reached_is_named(error_of: Callable[..., BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for store in (str(tmp_path / "file" / "store"), "s3://nobody/here"):
        define_connection(monkeypatch, "poison_default", {"store": store})
        error = error_of(QueueSendOperator, queue_name="orders", messages=[b"a"], policy=POLICY)
        assert isinstance(error, StoreUnreachableError)
        assert store in str(error)


def test_a_missing_java_is_said_before_a_jvm_is_tried_and_the_message_waits(
    orders: QueueStore, error_of: Callable[..., BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow_poison.spark import session

    monkeypatch.setattr(session, "running_session", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    error = error_of(QueueReceiveOperator, queue_name="orders", handler="json:loads")
    assert isinstance(error, JavaError)
    assert str(tmp_path) in str(error)
    assert messages(orders) == 1


def test_mixed_spark_distributions_are_said_with_their_repair(
    orders: QueueStore, error_of: Callable[..., BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_poison.spark import session

    monkeypatch.setattr(session, "version", lambda name: {"pyspark": "4.1.3", "pyspark-client": "4.2.0"}[name])
    error = error_of(QueueReceiveOperator, queue_name="orders", handler="json:loads")
    assert isinstance(error, SparkDistributionError)
    assert "pyspark-client 4.2.0" in str(error)
    assert "pip install --force-reinstall" in str(error)


def test_a_queue_of_a_newer_version_is_refused(orders: QueueStore, error_of: Callable[..., BaseException]) -> None:
    from dataclasses import replace

    orders.open("orders").alter(lambda control: replace(control, format_version=99))
    error = error_of(QueueDisabledSensor, queue_name="orders")
    assert isinstance(error, NewerFormatError)


def test_an_unknown_field_of_the_connection_is_named(error_of: Callable[..., BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_default", {"store": "/tmp", "strage_options": "{}"})
    error = error_of(QueueDisabledSensor, queue_name="orders")
    assert isinstance(error, SettingError)
    assert "strage_options" in str(error)
    assert "storage_options" in str(error)


def test_a_connection_id_that_is_not_defined_is_no_embedded_store(error_of: Callable[..., BaseException]) -> None:
    error = error_of(QueueDisabledSensor, queue_name="orders", conn_id="poison_typo")
    assert "poison_typo" in str(error)


def nothing(message: Message) -> None:
    """Settle the message: a handler."""


@pytest.mark.parametrize(
    "door",
    [
        lambda **more: QueueReceiveOperator(handler=nothing, **more),
        lambda **more: QueueReceiveOperator(handler=nothing, task_id=more["task_id"], queues=[{"queue_name": "orders", "policy": more["policy"]}]),
        lambda **more: task.receive(queue_name=more.pop("queue_name"), **more)(nothing)(),  # type: ignore[call-arg]  # Airflow's stub: the pass gives it
        QueueReturnOperator,
        lambda **more: QueueReceiveSubmitOperator(handler=nothing, **more),
        lambda **more: QueueSendOperator(messages=["more"], **more),
    ],
    ids=["receive", "receive from several", "decorator", "return, first in a retry_cycle", "submit", "send"],
)
def test_a_policy_of_another_system_is_refused_at_every_door_before_anything_is_claimed_or_sent(
    door: Callable[..., BaseOperator], orders: QueueStore, error_of: Callable[..., BaseException]
) -> None:
    version = orders.open("orders").snapshot().version
    error = error_of(door, queue_name="orders", policy=ServiceBroker())
    assert isinstance(error, SystemChangeError | QueuesFailedError)
    assert "has the rules of Msmq4" in str(error)
    assert "airflow poison alter orders --system ServiceBroker" in str(error)
    assert orders.open("orders").snapshot().version == version


def test_a_queue_that_was_altered_to_the_system_is_received_by_its_rules(
    orders: QueueStore, run_dag: Callable[..., Ran], caplog: pytest.LogCaptureFixture
) -> None:
    with DAG("altered", schedule=None) as dag:
        altered = QueueAlterOperator(task_id="alter", queue_name="orders", action="alter", system="ServiceBroker")
        altered >> QueueReturnOperator(task_id="return", queue_name="orders", policy=ServiceBroker(database_name="sales"))
    ran = run_dag(dag)
    assert ran.tasks == {"alter": "success", "return": "success"}
    assert ran.returned["alter"]["changed"]["system"] == ["Msmq4", "ServiceBroker"]
    table = orders.open("orders")
    assert table.snapshot().control.policy == ServiceBroker(database_name="sales").to_dict()
    by_hand, declared = table.events()
    assert (by_hand.type, declared.type) == (EventType.POLICY_CHANGED, EventType.POLICY_CHANGED)
    assert declared.details["changed"] == "database_name:  -> sales"
    assert declared.details["run"].startswith("task return of DAG altered, run ")
    assert "other settings now, which this run declares: database_name" in caplog.text


@pytest.mark.parametrize(
    ("make", "parameters", "says"),
    [
        (QueueReceiveOperator, {"max_messages": "{{ 'many' }}"}, "max_messages='many'"),
        (QueueReceiveOperator, {"services": ["warehouse"]}, "services='warehouse' is not allowed; allowed: a list of Service"),
        (QueueSendOperator, {"send_key": "{{ ' ' }}", "messages": ["more"]}, "send_key=' ' is not allowed; allowed: a name for what is sent once"),
        (
            QueueSendOperator,
            {"send_key": "{{ none }}", "messages": ["more"]},
            "send_key='None' is not allowed; allowed: a name for what is sent once",
        ),
        (QueueSendOperator, {"options": "{{ none }}", "path": "/x", "format": "csv"}, "options='None' is not allowed; allowed: text by name"),
        (
            QueueAlterOperator,
            {"action": "alter", "settings": "max_retry_cycles=1"},
            "settings='max_retry_cycles=1' is not allowed; allowed: values by name",
        ),
        (QueueMessagesSensor, {"queue_name": None, "queue_names": "orders"}, "queue_names='orders' is not allowed; allowed: a list of queue names"),
        (QueueMessagesSensor, {"queue_name": None, "queue_names": []}, "at least one"),
    ],
)
def test_a_parameter_of_another_type_is_a_setting_error_and_changes_nothing(
    orders: QueueStore, error_of: Callable[..., BaseException], make: Any, parameters: dict[str, Any], says: str
) -> None:
    version = orders.open("orders").snapshot().version
    handler = {"handler": nothing, "isolation": "none"} if make is QueueReceiveOperator else {}
    error = error_of(make, **{"queue_name": "orders", **handler, **parameters})
    assert isinstance(error, SettingError)
    assert says in str(error)
    assert orders.open("orders").snapshot().version == version


@pytest.mark.parametrize("what", ["path", "table", "messages"])
def test_a_template_that_leaves_nothing_to_send_is_no_success(orders: QueueStore, error_of: Callable[..., BaseException], what: str) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", format="json", render_template_as_native_obj=True, **{what: "{{ none }}"})
    assert isinstance(error, InputError)
    assert "nothing says what to send: the template of path, table or messages has the value None" in str(error)


def test_a_list_that_a_template_has_made_text_of_is_not_sent(orders: QueueStore, error_of: Callable[..., BaseException]) -> None:
    error = error_of(QueueSendOperator, queue_name="orders", messages="{{ ['a', 'b'] }}")
    assert isinstance(error, InputError)
    assert "is str; expected a list of messages. A template makes text of a list, unless the task has render_template_as_native_obj=True" in str(
        error
    )


def test_a_send_key_may_be_a_number(orders: QueueStore, run_dag: Callable[..., Ran]) -> None:
    for key, repeated in (("{{ 5 }}", False), ("5", True)):
        with DAG(f"number_{repeated}", schedule=None, render_template_as_native_obj=True) as dag:
            QueueSendOperator(task_id="send", queue_name="orders", messages=["more"], send_key=key)
        assert run_dag(dag).returned["send"]["repeated"] is repeated


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: importable_types("json:JSONDecodeError"), "a list of exception types"),
        (lambda: importable_types(cast("Any", [ValueError("one")])), "exception types, not exceptions"),
        (lambda: queue_asset("orders", poll_interval=0), "poll_interval=0 is not allowed; allowed: seconds, above 0"),
    ],
)
def test_a_dag_file_tells_what_no_task_could_use(make: Callable[[], object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        make()
