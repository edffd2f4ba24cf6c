"""What the operators promise beyond the main job: handlers in DAG files, mapping, alerts that fail, error handlers, kills."""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task

from airflow_poison import Message, Msmq4, Postpone, ServiceBroker
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.dialogs import QueueBeginDialogOperator
from airflow_poison.operators.manage import QueueAlertOperator, QueueReturnOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import AlertError, ExecutorError, HandlerNotFoundError, PoisonMessageError, QueueNotFoundError, SettingError
from airflow_poison.values.failures import ErrorHandler
from tests.given.waiting import until
from tests.sessions import sample_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.delivery.handlers import HandlerRef, Transformation
    from airflow_poison.outputs.output import Output
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def bodies(store: QueueStore) -> list[bytes]:
    table = store.open("orders")
    return sorted(body or b"" for file in table.snapshot().files for body in table.read(file).column("body").to_pylist())


def never(message: Message) -> None:
    raise ValueError("no")


class Noted(ErrorHandler):
    """Remembers every error of this process."""

    errors: list[BaseException] = []  # noqa: RUF012  (shared on purpose: a handler is made anew for each pass)

    def handle_error(self, error: BaseException) -> bool:
        self.errors.append(error)
        return True


DAG_FILE = """
from airflow.sdk import DAG
from airflow_poison import Msmq4, Unprocessable
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle

GOOD = {"one", "two"}
POLICY = Msmq4(receive_retry_count=3, max_retry_cycles=0, receive_error_handling="Move")


class UnknownNumberError(Exception):
    pass


def check(text):
    if text == "never":
        raise Unprocessable(text)
    if text not in GOOD:
        raise UnknownNumberError(text)


def land(message):
    check(message.text)


with DAG("by_value", schedule=None):
    sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["one", "two", "three", "never"], policy=POLICY)
    sent >> retry_cycle("orders", POLICY, land)
"""


def test_a_handler_defined_in_a_dag_file_is_carried_with_all_that_it_uses(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession, tmp_path: Path
) -> None:
    """Airflow loads DAG files under module names that no other process can import."""
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "arrivals_dag.py").write_text(DAG_FILE)
    bag = DagBag(str(tmp_path / "arrivals_dag.py"))
    assert bag.import_errors == {}
    dag = bag.dags["by_value"]
    assert "alert" not in "".join(dag.task_ids)
    ran = run_dag(dag)
    assert ran.state == "success", ran
    result = ran.returned["retry_cycle.receive"]
    assert (result["settled"], result["poisoned"], result["deliveries"]) == (2, 2, 2 + 4 + 1)
    assert any("UnknownNumberError: three" in error["error"] for error in result["errors"])
    assert bodies(store) == [b"never", b"three"]


def test_an_exception_type_of_a_dag_file_is_refused_where_a_name_is_needed(store: QueueStore) -> None:
    kind = type("OddError", (Exception,), {"__module__": "unusual_prefix_1234_arrivals"})
    with pytest.raises(SettingError, match="raise Unprocessable instead"):
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", unprocessable=[kind])


def test_messages_come_from_an_earlier_task_and_each_mapped_task_sends_its_own(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("mapped_sends", schedule=None) as dag:

        @task
        def make() -> list[list[str]]:
            return [["a", "b"], ["c"]]

        QueueSendOperator.partial(task_id="send", queue_name="orders", policy=MOVE).expand(messages=make())
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert bodies(store) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("key", "count", "warned"), [("once", 1, True), ("each {{ ti.map_index }}", 2, False)])
def test_one_send_key_for_all_instances_of_a_mapped_task_warns(  # noqa: PLR0917
    key: str,
    count: int,
    warned: bool,  # noqa: FBT001
    store: QueueStore,
    run_dag: Callable[..., Ran],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with DAG(f"mapped_key_{warned}", schedule=None) as dag:
        QueueSendOperator.partial(task_id="send", queue_name="orders", policy=MOVE, send_key=key).expand(messages=[["a"], ["c"]])
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    sent = bodies(store)
    assert len(sent) == count, "Airflow runs the instances of a mapped task in no fixed order: with one key, whichever runs first is sent"
    assert set(sent) <= {b"a", b"c"}
    assert len(set(sent)) == count
    assert ("give each a send_key of its own" in capsys.readouterr().out) == warned


def test_a_send_key_makes_a_send_the_same_in_every_run(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    for dag_id in ("first", "second"):
        with DAG(dag_id, schedule=None) as dag:
            QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], policy=MOVE, send_key="the 'a' of {{ dag.dag_id[:0] }}all")
        ran = run_dag(dag)
    assert ran.returned["send"] == {"queue": "orders", "sent": 1, "first_lookup_id": 1, "repeated": True, "held": 0, "malformed": 0}


@pytest.mark.parametrize(("changed", "more", "warned"), [("before", {}, True), ("between", {}, False), ("before", {"send_key": "once"}, False)])
def test_a_path_whose_files_an_earlier_run_has_sent_warns(  # noqa: PLR0917
    changed: str,
    more: dict[str, Any],
    warned: bool,  # noqa: FBT001
    store: QueueStore,
    run_dag: Callable[..., Ran],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    os.utime(tmp_path / "x.jsonl", (1_000_000_000, 1_000_000_000))
    with DAG(f"daily_{changed}_{warned}_{len(more)}", schedule=None) as dag:
        QueueSendOperator(task_id="send", queue_name="orders", path=str(tmp_path / "x.jsonl"), format="json", policy=MOVE, **more)

    first = run_dag(dag, datetime(2026, 1, 1, tzinfo=UTC))
    assert "has sent the same" not in capsys.readouterr().out
    if changed == "between":
        (tmp_path / "x.jsonl").write_text('{"a": 2}\n')
    second = run_dag(dag, datetime(2026, 1, 2, tzinfo=UTC))

    assert (first.state, second.state) == ("success", "success")
    assert capsys.readouterr().out.count("has sent the same messages. For a file once over all runs set send_key") == warned


def test_an_alert_of_a_queue_that_no_send_has_made_fails_unless_it_is_a_teardown(store: QueueStore) -> None:
    with DAG("daily", schedule=None):
        alert = QueueAlertOperator(task_id="alert", queue_name="orders")
    with pytest.raises(QueueNotFoundError):
        alert.execute({})

    assert alert.as_teardown(on_failure_fail_dagrun=False).execute({}) == []
    assert not store.names()


def test_a_notifier_that_fails_fails_only_the_alert_and_the_next_run_gives_it_again_with_the_same_key(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession
) -> None:
    keys: list[str] = []
    works = False

    def tell(context: Any) -> None:
        keys.append(context["poison_alert"]["key"])
        if not works:
            raise ConnectionError("no network")

    def run() -> Ran:
        with DAG("fails_to_alert", schedule=None) as dag:
            sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], policy=MOVE, send_key="once")
            sent >> retry_cycle("orders", MOVE, never, on_poison=tell)
        return run_dag(dag)

    ran = run()
    assert (ran.state, ran.tasks["retry_cycle.receive"], ran.tasks["retry_cycle.alert"]) == ("success", "success", "failed")
    assert isinstance(ran.errors["retry_cycle.alert"], AlertError)
    assert "no network" in str(ran.errors["retry_cycle.alert"])
    works = True
    ran = run()
    assert ran.tasks["retry_cycle.alert"] == "success"
    assert len(keys) == 2
    assert len(set(keys)) == 1
    run()
    assert len(keys) == 2


@pytest.mark.long
def test_a_receive_alone_alerts_and_tells_its_error_handler_and_not_of_the_past(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession
) -> None:
    alerts: list[dict[str, Any]] = []
    Noted.errors.clear()

    table = declare(store, "orders", MOVE, SystemClock())
    send(table, messages_to_batches([b"past"]), key="past", clock=SystemClock())
    assert ReceivePass(table=table, policy=MOVE, handler=never, engine=LocalEngine, clock=SystemClock(), isolation="none").run("past").poisoned == 1
    with DAG("alone", schedule=None) as dag:
        sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["b"])
        sent >> QueueReceiveOperator(
            task_id="receive",
            queue_name="orders",
            handler=never,
            on_poison=lambda context: alerts.append(context["poison_alert"]),
            error_handler=Noted,
        )
    ran = run_dag(dag)
    assert ran.state == "success", ran
    assert [(alert["event"], alert["lookup_ids"]) for alert in alerts] == [("MOVED_POISON", [2])]
    assert [(type(error), getattr(error, "lookup_id", None)) for error in Noted.errors] == [(PoisonMessageError, 2)]


def test_the_recorded_policy_rules_a_receive_that_brings_none(store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Drop")
    with DAG("recorded", schedule=None) as dag:
        sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], policy=policy)
        sent >> QueueReceiveOperator(task_id="receive", queue_name="orders", handler=never, max_messages="{{ 5 }}")
    result = run_dag(dag).returned["receive"]
    assert (result["deliveries"], result["dropped"]) == (3, 1)


def test_a_kill_cancels_the_spark_job(spark: SparkSession) -> None:
    ended: list[BaseException] = []

    def slow() -> None:
        def sleep(rows: Any) -> Any:
            time.sleep(60)
            return rows

        try:
            spark.sparkContext.parallelize(range(2), 2).mapPartitions(sleep).collect()
        except Exception as error:  # noqa: BLE001  (whatever Spark raises)
            ended.append(error)

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    until(spark.sparkContext.statusTracker().getActiveStageIds)
    QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads").on_kill()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert "cancel" in str(ended[0])


def test_a_kill_that_py4j_refuses_is_logged_and_raises_nothing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession as Session

    from airflow_poison.operators.base import cancel_jobs

    def refuse() -> None:
        raise Py4JError("An error occurred while calling o22.sc")

    monkeypatch.setattr(Session, "getActiveSession", staticmethod(refuse))
    with caplog.at_level(logging.WARNING):
        cancel_jobs(logging.getLogger("task"))
    assert "o22.sc" in caplog.text


class ThreeThenLater:
    """A handler that fails; the fourth delivery of the first run gives the message back."""

    def __init__(self, folder: Path) -> None:
        self.calls, self.second_run = folder / "calls", folder / "second run"

    def __call__(self, message: Message) -> None:
        with self.calls.open("a") as file:
            file.write(f"{message.abort_count}\n")
        if message.abort_count == 3 and not self.second_run.exists():
            raise Postpone(timedelta(0))
        raise ValueError("no")


class Unready(LocalEngine):
    """Its executors lack something."""

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        raise ExecutorError(f"cannot load {handler.name}. Nothing was claimed.")


@pytest.mark.long
def test_executors_that_cannot_work_are_found_before_anything_is_claimed_and_the_rerun_is_no_crash(
    store: QueueStore, run_dag: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, when = ThreeThenLater(tmp_path), datetime(2026, 1, 1, tzinfo=UTC)
    table = declare(store, "orders", ServiceBroker(), SystemClock())
    send(table, messages_to_batches(["bad"]), key="sent", clock=SystemClock())
    with DAG("unready", schedule=None) as dag:
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler=handler)

    made: list[LocalEngine] = []

    def run_on(engine: type[LocalEngine]) -> Ran:
        def make(*_: object) -> LocalEngine:
            made.append(engine())
            return made[-1]

        with monkeypatch.context() as patched:
            patched.setattr(QueueHook, "engine", make)
            return run_dag(dag, when)

    assert run_on(LocalEngine).state == "success"
    handler.second_run.touch()
    before = table.snapshot().control.endpoint_counters
    assert 3 in before.values(), before
    error = run_on(Unready).errors["receive"]
    assert isinstance(error, ExecutorError)
    assert (table.snapshot().claims, table.snapshot().control.endpoint_counters) == ((), before)

    assert "disabled" in str(run_on(LocalEngine).errors["receive"])
    assert handler.calls.read_text().split() == ["0", "1", "2", "3", "3", "4"], "five rollbacks of the message halt the queue, in whichever passes"
    assert [type(engine) for engine in made] == [LocalEngine, Unready, LocalEngine], "one engine for each pass"


DOORS: list[Callable[..., object]] = [
    lambda handler, policy: QueueReceiveOperator(task_id="receive", queue_name="orders", handler=handler, policy=policy),
    lambda handler, policy: QueueReceiveOperator(task_id="receive", queues=["orders"], handler=handler, policy=policy),
    lambda handler, policy: QueueReceiveOperator(task_id="receive", queues=[{"queue_name": "orders", "handler": handler, "policy": policy}]),
    lambda handler, policy: QueueReceiveSubmitOperator(task_id="receive", queue_name="orders", handler=handler, policy=policy),
    lambda handler, policy: retry_cycle("orders", policy, handler),
    lambda handler, policy: task.receive(queue_name="orders", policy=policy)(handler)(),
]
NAMES = ["operator", "queues", "queue entry", "submit", "retry_cycle", "decorator"]


@pytest.mark.parametrize("door", DOORS, ids=NAMES)
@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (sample_handlers.yields, "generator function"),
        (sample_handlers.yields_later, "generator function"),
        (sample_handlers.later_in_part, "coroutine function"),
        (sample_handlers.runs_later, "coroutine function"),
        (sample_handlers.method_later, "coroutine function"),
        (sample_handlers.Yields, "is a class"),
        (sample_handlers.two_arguments, "with a message alone"),
        ("shop.arrivals.land", "module:function"),
        (7, "not something callable"),
    ],
)
def test_what_can_be_no_handler_is_refused_when_the_dag_is_parsed(door: Callable[..., object], handler: object, says: str) -> None:
    with DAG("refused", schedule=None), pytest.raises(HandlerNotFoundError, match=says):
        door(handler, MOVE)


@pytest.mark.parametrize(
    "door",
    [
        *DOORS,
        lambda _handler, policy: QueueReturnOperator(task_id="return", queue_name="orders", policy=policy),
        lambda _handler, policy: QueueSendOperator(task_id="send", queue_name="orders", messages=["a"], policy=policy),
        lambda _handler, policy: task.send(queue_name="orders", policy=policy)(list)(),
        lambda _handler, policy: QueueBeginDialogOperator(
            task_id="begin", queue_name="orders", service="a", far_service="b", contract="c", messages=["a"], policy=policy
        ),
        lambda _handler, policy: QueueHook().queue("orders", policy).table,
    ],
    ids=[*NAMES, "return", "send", "send decorator", "begin dialog", "hook"],
)
@pytest.mark.parametrize("policy", ["Msmq4", Msmq4, "MSMQ"], ids=["name", "class", "no system"])
def test_what_is_no_policy_is_refused_with_what_is_wanted(door: Callable[..., object], policy: object, store: QueueStore) -> None:
    with (
        DAG("no_policy", schedule=None),
        pytest.raises(SettingError, match=r"policy=.* is not allowed; allowed: a policy of airflow_poison: Msmq4\(\)"),
    ):
        door(never, policy)
    assert store.names() == []
