"""Sensors: what they wait for, what a poke costs, and how they defer."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.sensors import QueueDisabledSensor, QueueEnabledSensor, QueueMessagesSensor, QueuePoisonSensor, QueueRetryDueSensor
from airflow_poison.triggers import QueueTrigger
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError, SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.sensors import QueueSensor
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
log = logging.getLogger(__name__)
NOTHING: Any = {}
CYCLE = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")


def never(message: Message) -> None:
    raise ValueError(message.text)


@pytest.fixture
def orders(store: QueueStore) -> QueueTable:
    return declare(store, "orders", CYCLE, CLOCK)


def put(queue: QueueTable, key: str = "given", number: int = 1) -> None:
    send(queue, messages_to_batches([b"x"] * number), key=key, clock=CLOCK)


def poke(sensor: QueueSensor) -> Any:
    found = sensor.poke(NOTHING)
    return found.xcom_value if found.is_done else None


def test_each_sensor_sees_its_condition(store: QueueStore, orders: QueueTable) -> None:
    messages = QueueMessagesSensor(task_id="messages", queue_name="orders", count=2)
    due = QueueRetryDueSensor(task_id="due", queue_name="orders")
    poisoned = QueuePoisonSensor(task_id="poison", queue_name="orders")
    disabled = QueueDisabledSensor(task_id="disabled", queue_name="orders")
    enabled = QueueEnabledSensor(task_id="enabled", queue_name="orders")

    put(orders, "one")
    assert poke(messages) is None
    put(orders, "two")
    assert poke(messages)["messages"] == 2

    assert poke(due) is None
    ReceivePass(table=orders, policy=CYCLE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("one")
    assert poke(due) == {"queue": "orders", "due": 2, "postponed": 0, "waiting": 2, "next_due_at": None}

    assert poke(poisoned) is None
    orders.move_files(lambda snapshot: list(snapshot.files), SubQueue.POISON, CLOCK.now())
    assert poke(poisoned)["messages"] == 2

    assert (poke(disabled), poke(enabled)["state"]) == (None, "enabled")
    disable(orders, CLOCK, "stocktaking")
    assert poke(disabled) == {"queue": "orders", "sub_queue": "main", "state": "disabled", "reason": "stocktaking"}
    assert poke(enabled) is None
    enable(orders, CLOCK)
    assert (poke(disabled), poke(enabled)["queue"]) == (None, "orders")


def test_several_queues_any_of_them_or_all(store: QueueStore, orders: QueueTable) -> None:
    bills = declare(store, "bills", CYCLE, CLOCK)
    anyone = QueueMessagesSensor(task_id="any", queue_names=["orders", "bills"])
    everyone = QueueMessagesSensor(task_id="all", queue_names=["orders", "bills"], match="all")
    put(bills)
    assert [found["queue"] for found in poke(anyone)] == ["bills"]
    assert poke(everyone) is None
    put(orders)
    assert [found["queue"] for found in poke(everyone)] == ["orders", "bills"]


def test_a_poke_takes_less_than_50_milliseconds_and_starts_no_jvm(store: QueueStore, orders: QueueTable) -> None:
    for number in range(60):
        put(orders, str(number), 10)
    took, unchanged = list[float](), list[float]()
    for _ in range(15):
        sensor = QueueRetryDueSensor(task_id="due", queue_name="orders")
        for spans in (took, unchanged):
            began = time.perf_counter()
            assert poke(sensor) is None
            spans.append(time.perf_counter() - began)
    first, again = min(took), min(unchanged)  # the others have waited for the processor, too
    log.info("a poke: %.1f ms, of an unchanged queue: %.2f ms", 1_000 * first, 1_000 * again)
    assert first < 0.05
    assert again < 0.01


def test_a_deferrable_sensor_defers_with_its_condition_unless_it_is_met_already(orders: QueueTable) -> None:
    sensor = QueueMessagesSensor(task_id="wait", queue_name="orders", count=2, deferrable=True, poke_interval=7, timeout=600)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(NOTHING)
    assert isinstance(deferred.value.trigger, QueueTrigger)
    assert deferred.value.trigger.serialize()[1] == {
        "queue_names": ["orders"],
        "condition": {"system": "messages", "sub_queue": "main", "count": 2, "age": None},
        "every": False,
        "conn_id": "poison_default",
        "poll_interval": 7.0,
    }
    assert deferred.value.timeout == timedelta(seconds=600)
    assert deferred.value.method_name == "execute_complete"
    put(orders, number=2)
    assert sensor.execute(NOTHING)["messages"] == 2


def test_what_the_triggerer_found_is_what_a_poke_would_have_returned(orders: QueueTable) -> None:
    facts = {"queue": "orders", "messages": 2}
    one = QueueMessagesSensor(task_id="one", queue_name="orders")
    many = QueueMessagesSensor(task_id="many", queue_names=["orders", "bills"])
    assert one.execute_complete(NOTHING, {"met": [facts]}) == facts
    assert many.execute_complete(NOTHING, {"met": [facts]}) == [facts]


def test_what_the_triggerer_could_not_look_at_fails_the_task_with_its_error(orders: QueueTable) -> None:
    told = {"error": "QueueNotFoundError", "message": "There is no queue 'orders'."}
    with pytest.raises(QueueNotFoundError, match="no queue 'orders'"):
        QueueEnabledSensor(task_id="wait", queue_name="orders").execute_complete(NOTHING, told)
    with pytest.raises(AirflowSkipException):
        QueueEnabledSensor(task_id="soft", queue_name="orders", never_fail=True).execute_complete(NOTHING, told)


def test_deferral_works_in_a_run_as_airflow_is_told(orders: QueueTable, run_dag: Callable[..., Ran], tmp_path: Path) -> None:
    with DAG("deferring", schedule=None) as dag:
        QueueEnabledSensor(task_id="enabled", queue_name="orders", deferrable=True)
        QueueDisabledSensor(task_id="missing", queue_name="missing", deferrable=True)
    ran = run_dag(dag)
    assert ran.tasks == {"enabled": "success", "missing": "failed"}
    assert ran.returned["enabled"]["state"] == "enabled"
    assert isinstance(ran.errors["missing"], QueueNotFoundError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either queue_name or queue_names"),
        ({"queue_name": "orders", "queue_names": ["orders"]}, "either queue_name or queue_names"),
        ({"queue_name": "orders", "match": "most"}, "match='most' is not allowed; allowed: any, all"),
        ({"queue_name": "orders", "count": 0}, "count=0"),
        ({"queue_name": "orders", "sub_queue": "poson"}, "sub_queue='poson'"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        QueueMessagesSensor(task_id="wait", **arguments)
