"""Sensors, triggers, watchers and the example DAGs in the real scheduler and triggerer."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue
from tests.live.beside import beside
from tools.airflow.client import API

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

CLOCK = SystemClock()
DAGS = Path(__file__).parents[2] / "dags"
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")

SENSORS = """
from airflow.sdk import DAG

from airflow_poison.sensors import QueueDisabledSensor
from airflow_poison.sensors import QueueEnabledSensor

with DAG("many_sensors", schedule=None, max_active_tasks=100):
    for number in range(50):
        QueueDisabledSensor(task_id=f"wait_{number}", queue_name=f"watched_{number % 5}", poke_interval=1)
    QueueEnabledSensor(task_id="missing", queue_name="nobody_made_it", poke_interval=1)
"""

WATCHED = """
from airflow.sdk import DAG, task

from airflow_poison.assets import happened, queue_asset

POISONED = queue_asset("ledger", on=("poisoned",), poll_interval=0.5)

with DAG("told_of_poison", schedule=[POISONED], catchup=False, max_active_runs=1):

    @task(inlets=[POISONED])
    def note(**context):
        return happened(context, POISONED)

    note()
"""

MESSAGE_QUEUE = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

trigger = MessageQueueTrigger(scheme="poison", queue_name="letters", poll_interval=0.5)
letters = Asset("letters", watchers=[AssetWatcher(name="letters came", trigger=trigger)])

with DAG("letters_came", schedule=[letters], catchup=False):

    @task
    def note(triggering_asset_events=None):
        return [event.extra["payload"] for event in triggering_asset_events[letters]]

    note()
"""


def never(message: Message) -> None:
    raise ValueError(message.text)


def put(queue: QueueTable, key: str, *amounts: int) -> None:
    send(queue, messages_to_batches([json.dumps({"amount": amount}).encode() for amount in amounts]), key=key, clock=CLOCK)


def poison(airflow: LiveAirflow, queue: QueueTable, key: str) -> None:
    put(queue, key, 0)
    ReceivePass(table=queue, policy=MOVE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=airflow.store).run(key)


def waiting(queue: QueueTable) -> dict[str, int]:
    snapshot = queue.snapshot()
    return {place.value: depth.messages for place in SubQueue if (depth := snapshot.depth(place, CLOCK.now())).messages}


def moment(airflow: LiveAirflow, run: Run, name: str) -> datetime:
    return datetime.fromisoformat(airflow.client.call("GET", run.path)[name])


@beside
def test_fifty_deferred_sensors_wait_in_the_triggerer_and_go_on_when_their_queue_is_disabled(airflow: LiveAirflow) -> None:
    queues = [declare(airflow.store, f"watched_{number}", MOVE, CLOCK) for number in range(5)]
    dag_id = airflow.dag(SENSORS, environment={"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "true"})
    run = airflow.trigger(dag_id)
    airflow.until(lambda: list(airflow.tasks(run).values()).count("deferred") >= 50, "50 tasks are deferred", run=run)
    for queue in queues:
        disable(queue, CLOCK, "a test")
    airflow.wait(run, "failed")
    states = airflow.tasks(run)
    assert states.pop("missing") == "failed"
    assert set(states.values()) == {"success"}
    assert len(states) == 50
    assert airflow.result(run, "wait_7") == {"queue": "watched_2", "sub_queue": "main", "state": "disabled", "reason": "a test"}
    assert any("no queue 'nobody_made_it'" in json.dumps(entry) for entry in airflow.log_entries(run, "missing"))
    for queue in queues:
        enable(queue, CLOCK)


def told_of(airflow: LiveAirflow, dag_id: str, number: int) -> list[dict[str, Any]]:
    """What the runs of a DAG were told, once they have been told of so many messages."""

    def told() -> list[dict[str, Any]] | None:
        runs = [run for run in airflow.runs(dag_id) if run.state == "success"]
        payloads = [payload for run in runs for payload in airflow.result(run, "note")]
        return payloads if sum(payload["count"] for payload in payloads) >= number else None

    return airflow.until(told, f"{dag_id} is told of {number} messages")


def test_nothing_is_lost_or_repeated_when_the_triggerer_is_killed_between_two_events(airflow: LiveAirflow) -> None:
    queue = declare(airflow.store, "ledger", MOVE, CLOCK)
    dag_id = airflow.dag(WATCHED)
    airflow.until(lambda: _position_is_stored(airflow), "the watcher has stored its position")

    poison(airflow, queue, "one")
    told_of(airflow, dag_id, 1)
    airflow.kill("triggerer", whole=True)  # perhaps before it has heard that Airflow has recorded the event: then it tells it again
    poison(airflow, queue, "two")  # while no triggerer runs
    poison(airflow, queue, "three")
    airflow.restart("triggerer")
    told_of(airflow, dag_id, 3)
    poison(airflow, queue, "four")
    payloads = told_of(airflow, dag_id, 4)

    assert [number for payload in payloads for number in payload["lookup_ids"]] == [1, 2, 3, 4]
    recorded = [event["extra"].get("payload", {}) for event in airflow.client.pages(f"{API}/assets/events", "asset_events", order_by="timestamp")]
    events = [json.dumps(payload, sort_keys=True) for payload in recorded if payload.get("queue") == "ledger"]
    assert len(set(events)) == len(payloads)
    assert len(events) <= len(payloads) + 1  # word for word, if at all
    airflow.remove_dag(dag_id)


def _position_is_stored(airflow: LiveAirflow) -> bool:
    with sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True) as database:
        return bool(database.execute("SELECT 1 FROM asset_state_store WHERE key LIKE 'airflow_poison.poisoned.ledger'").fetchall())


@beside
def test_the_example_that_runs_when_a_retry_is_due_runs_at_that_instant_and_without_polling_by_schedule(airflow: LiveAirflow) -> None:
    declare(airflow.store, "payments", MOVE, CLOCK)
    dag_id = airflow.dag(DAGS / "retry_when_due.py", environment={"PAYMENTS_RETRY_CYCLE_DELAY": "30"})
    queue = airflow.store.open("payments")
    put(queue, "first", 10, 0, 20)
    airflow.until(lambda: waiting(queue) == {"retry": 1}, "two payments are made and one waits")
    [due_at] = [file.max_due_at for file in queue.snapshot().files]
    assert due_at is not None

    def made_then() -> list[datetime]:  # others are of the schedule, or of messages that arrived during a run
        by_event = [run for run in airflow.runs(dag_id) if run.run_id.startswith("asset_triggered__")]
        return [at for run in by_event if (at := moment(airflow, run, "queued_at")) >= due_at]

    airflow.until(lambda: bool(made_then()), "a run is made for the message that is due")
    assert min(made_then()) - due_at < timedelta(seconds=10)
    airflow.until(lambda: waiting(queue) == {"poison": 1}, "the message that cannot be paid is poison")
    airflow.until(lambda: all(run.ended for run in airflow.runs(dag_id)), "all runs have ended")
    assert {run.state for run in airflow.runs(dag_id)} == {"success"}
    airflow.remove_dag(dag_id)


@beside
def test_the_example_that_runs_by_schedule_runs_every_retry_cycle_delay(airflow: LiveAirflow) -> None:
    dag_id = airflow.dag(DAGS / "retry_by_schedule.py", environment={"REFUNDS_RETRY_CYCLE_DELAY": "15"})
    airflow.wait(airflow.wait_for_run(dag_id))
    queue = airflow.store.open("refunds")
    put(queue, "first", 10, 0)
    airflow.until(lambda: waiting(queue) == {"poison": 1}, "one refund is made, the other is poison after its cycles")
    moments = [moment(airflow, run, "run_after") for run in airflow.runs(dag_id)]
    assert len(moments) >= 3
    assert all(later - earlier >= timedelta(seconds=15) for earlier, later in pairwise(moments))  # more when Airflow is late
    airflow.remove_dag(dag_id)


@beside
def test_a_message_queue_trigger_of_the_scheme_poison_fires(airflow: LiveAirflow) -> None:
    queue = declare(airflow.store, "letters", MOVE, CLOCK)
    dag_id = airflow.dag(MESSAGE_QUEUE)
    sent = datetime.now(UTC)
    put(queue, "one", 1, 2)
    run = airflow.wait(airflow.wait_for_run(dag_id))
    assert moment(airflow, run, "queued_at") - sent < timedelta(seconds=60)
    [payload] = airflow.result(run, "note")
    assert (payload["event"], payload["queue"], payload["count"]) == ("messages", "letters", 2)
    airflow.remove_dag(dag_id)
