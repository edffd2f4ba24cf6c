"""The main job in a real Airflow with a real Spark: send, return, receive, alert."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, BaseNotifier

from airflow_poison import ErrorHandler, Message, Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonMessageError
from airflow_poison.values.schema import SubQueue

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore

    from .conftest import Ran

NO_DELAY = timedelta(0)
ONE_CYCLE = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=NO_DELAY, receive_error_handling="Move")
ONCE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class FileNotifier(BaseNotifier):
    """Appends each alert to a file, as one JSON line."""

    template_fields: Sequence[str] = ("line",)

    def __init__(self, path: Path, line: str = "{{ poison_alert.queue }}: {{ poison_alert.event }} x {{ poison_alert.count }}") -> None:
        super().__init__()
        self.path = path
        self.line = line

    def notify(self, context: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"line": self.line, **context["poison_alert"]}) + "\n")


def only_even(message: Message) -> None:
    if message.json()["number"] % 2:
        raise ValueError(f"{message.json()['number']} is odd")


def never(message: Message) -> None:
    raise RuntimeError("no plane")


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr("id AS number", "concat('g', id % 3) AS airline", "CAST(id % 2 AS int) AS urgency")


def cycle(dag_id: str, policy: Policy, handler: Callable[[Message], object], **alerts: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        sent = QueueSendOperator(
            task_id="send", queue_name="orders", dataframe=numbers, group="airline", priority="urgency", properties=["airline"], policy=policy
        )
        sent >> retry_cycle("orders", policy, handler, **alerts)
    return dag


def cycle_only(dag_id: str, policy: Policy, handler: Callable[[Message], object], **alerts: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        retry_cycle("orders", policy, handler, **alerts)
    return dag


def alerts_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def waiting(store: QueueStore) -> dict[str, int]:
    snapshot = store.open("orders").snapshot()
    return {place.value: sum(file.rows for file in snapshot.files if file.sub_queue == place) for place in SubQueue}


@pytest.mark.long
def test_messages_go_through_their_cycles_and_the_hopeless_ones_end_in_poison_with_one_alert(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession, tmp_path: Path
) -> None:
    notifier = FileNotifier(tmp_path / "alerts")
    first = run_dag(cycle("cycles", ONE_CYCLE, only_even, on_poison=notifier))
    assert first.state == "success", first
    assert first.returned["send"] == {"queue": "orders", "sent": 10, "first_lookup_id": 1, "repeated": False, "held": 0, "malformed": 0}
    received = first.returned["retry_cycle.receive"]
    assert (received["received"], received["settled"], received["parked"], received["deliveries"]) == (10, 5, 5, 15)
    assert alerts_in(tmp_path / "alerts") == []

    second = run_dag(cycle_only("cycles_again", ONE_CYCLE, only_even, on_poison=notifier))
    assert second.returned["retry_cycle.return"]["returned"] == 5
    assert second.returned["retry_cycle.receive"]["poisoned"] == 5
    assert waiting(store) == {"main": 0, "retry": 0, "poison": 5, "postponed": 0, "transmission": 0}
    [alert] = alerts_in(tmp_path / "alerts")
    assert alert["line"] == "orders: MOVED_POISON x 5"
    assert (alert["queue"], alert["count"], len(alert["lookup_ids"]), alert["kind"]) == ("orders", 5, 5, "poison")
    assert "put_back" in alert["what_to_do"]
    assert alert["key"]

    QueueHook().queue("orders").put_back(alert["lookup_ids"][:2])
    third = run_dag(cycle_only("cycles_after_put_back", ONE_CYCLE, lambda _message: None, on_poison=notifier))
    assert third.returned["retry_cycle.receive"]["settled"] == 2
    assert waiting(store)["poison"] == 3


def test_sent_messages_carry_what_was_mapped(store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    with DAG("mapped", schedule=None) as dag:
        QueueSendOperator(
            task_id="send",
            queue_name="orders",
            dataframe=lambda spark: numbers(spark).selectExpr("*", "concat('m', number) AS id", "'order' AS kind", "'c' AS dialog"),
            body=["number", "airline"],
            group="airline",
            priority="urgency",
            properties=["airline", "urgency"],
            message_id="id",
            message_type="kind",
            conversation="dialog",
            expires_after=timedelta(days=1),
            policy=ONE_CYCLE,
        )
    ran = run_dag(dag)
    assert ran.state == "success", ran
    table = store.open("orders")
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    row = next(row for row in rows if row["message_id"] == "m7")
    assert len(rows) == 10
    assert json.loads(row["body"]) == {"number": 7, "airline": "g1"}
    assert (row["group_id"], row["priority"], row["message_type"], row["conversation_id"]) == ("g1", 1, "order", "c")
    assert dict(row["properties"]) == {"airline": "g1", "urgency": "1"}
    assert row["expires_at"] - row["enqueued_at"] >= timedelta(hours=23, minutes=59)
    assert not list(Path(table.uri).glob("_stage/send-*"))


def test_running_a_send_again_sends_nothing_twice_and_resend_sends_anew(store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession) -> None:
    def sender(dag_id: str, *, resend: bool) -> DAG:
        with DAG(dag_id, schedule=None) as dag:
            QueueSendOperator(task_id="send", queue_name="orders", dataframe=numbers, policy=ONE_CYCLE, resend=resend)
        return dag

    assert run_dag(sender("once", resend=False), WHEN).returned["send"]["repeated"] is False
    again = run_dag(sender("once", resend=False), WHEN)
    assert again.returned["send"] == {"queue": "orders", "sent": 10, "first_lookup_id": 1, "repeated": True, "held": 0, "malformed": 0}
    assert waiting(store)["main"] == 10
    run_dag(sender("anew", resend=True), WHEN)
    run_dag(sender("anew", resend=True), WHEN)
    assert waiting(store)["main"] == 30


@pytest.mark.long
def test_a_faulting_message_fails_task_and_run_names_the_message_and_alerts_once(
    store: QueueStore, run_dag: Callable[..., Ran], spark: SparkSession, tmp_path: Path
) -> None:
    notifier = FileNotifier(tmp_path / "alerts")
    ran = run_dag(cycle("faults", FAULT, never, on_queue_disabled=[notifier]))
    assert (ran.state, ran.tasks["retry_cycle.receive"], ran.tasks["retry_cycle.alert"]) == ("failed", "failed", "success")
    halted_by = ran.returned["retry_cycle.receive"]["halted"]["lookup_id"]
    error = str(ran.errors["retry_cycle.receive"])
    assert f"Message {halted_by} of queue 'orders' halted it (faulted): RuntimeError: no plane" in error
    assert f"QueueHook().queue('orders').remove({halted_by})" in error
    assert "QueueHook().queue('orders').enable()" in error
    [alert] = alerts_in(tmp_path / "alerts")
    assert (alert["event"], alert["lookup_ids"]) == ("FAULTED", [halted_by])
    assert str(halted_by) in alert["reason"]

    again = run_dag(cycle_only("faults_still", FAULT, never, on_queue_disabled=[notifier]))
    assert again.tasks["retry_cycle.receive"] == "failed"
    assert "is faulted" in str(again.errors["retry_cycle.receive"])

    QueueHook().queue("orders").remove(halted_by)
    assert QueueHook().queue("orders").enable().before == "faulted"
    healed = run_dag(cycle_only("faults_no_more", FAULT, lambda _message: None, on_queue_disabled=[notifier]))
    assert healed.returned["retry_cycle.receive"]["settled"] == 9


def test_a_pass_with_nothing_due_starts_no_spark(store: QueueStore, run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueHook, "spark", lambda _self: (_ for _ in ()).throw(AssertionError("Spark was started")))
    ran = run_dag(cycle_only("idle", ONE_CYCLE, never))
    assert ran.state == "success", ran
    assert ran.returned["retry_cycle.receive"]["received"] == 0


class Answers(ErrorHandler):
    """Deals with the first message alone."""

    def handle_error(self, error: BaseException) -> bool:
        return isinstance(error, PoisonMessageError) and error.lookup_id == 1


@pytest.mark.parametrize(("bad", "state"), [(1, "success"), (2, "failed")], ids=["True", "False"])
def test_wcf_26_an_error_handler_that_does_not_deal_with_a_message_fails_the_task_after_the_commit(
    store: QueueStore, run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, bad: int, state: str
) -> None:
    define_connection(monkeypatch, "poison_default", {"store": store.uri, "spark": "auto"})
    with DAG("answered", schedule=None) as dag:
        sent = QueueSendOperator(task_id="send", queue_name="orders", messages=["x"] * bad, policy=ONCE)
        sent >> QueueReceiveOperator(task_id="receive", queue_name="orders", handler=never, isolation="none", error_handler=Answers)
    ran = run_dag(dag)

    assert ran.tasks["receive"] == state
    assert store.open("orders").snapshot().depth(SubQueue.POISON, SystemClock().now()).messages == bad
    if state == "failed":
        assert "did not deal with 1 poison message of queue 'orders': [2]" in str(ran.errors["receive"])


def test_a_small_pass_starts_no_spark(store: QueueStore, run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """In child processes all the same: a handler that ends its process is charged for it, and nobody else is."""
    define_connection(monkeypatch, "poison_default", {"store": store.uri, "spark": "auto"})
    monkeypatch.setattr(QueueHook, "spark", lambda _self: (_ for _ in ()).throw(AssertionError("Spark was started")))
    table = declare(store, "orders", ONE_CYCLE, SystemClock())
    send(table, messages_to_batches(["good", "exit", "good"]), key="sent", clock=SystemClock())

    ran = run_dag(cycle_only("small", ONE_CYCLE, lambda message: os._exit(7) if message.text == "exit" else None))

    received = ran.returned["retry_cycle.receive"]
    assert (received["settled"], received["parked"], received["crashes"]) == (2, 1, 1 + ONE_CYCLE.receive_retry_count)
