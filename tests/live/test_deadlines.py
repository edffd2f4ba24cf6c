"""A poison message that lies too long misses a deadline of Airflow; one that is looked after in time does not."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.move import put_back, remove_messages
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from tests.live.beside import beside
from tests.live.deadline_file import MISSED

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

CLOCK = SystemClock()
DAGS = Path(__file__).parents[2] / "dags"
LIMIT = 90
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def never(message: Message) -> None:
    raise ValueError("no")


def receive(airflow: LiveAirflow, queue: QueueTable, key: str) -> None:
    ReceivePass(table=queue, policy=MOVE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=airflow.store).run(key)


def poison(airflow: LiveAirflow, queue: QueueTable, key: str, messages: int) -> None:
    send(queue, messages_to_batches([b"bad"] * messages), key=key, clock=CLOCK)
    receive(airflow, queue, key)


def missed(airflow: LiveAirflow) -> list[dict[str, str]]:
    file = airflow.home / MISSED
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@beside
def test_the_deadline_is_missed_exactly_by_the_messages_that_stay_poison_for_so_long(airflow: LiveAirflow) -> None:
    queue = declare(airflow.store, "transfers", MOVE, CLOCK)
    settings = {"POISON_DEADLINE": str(LIMIT), "POISON_DEADLINE_NOTIFIER": "tests.live.deadline_file.DeadlineFile"}
    dag_id = airflow.dag(DAGS / "poison_deadline.py", environment=settings)
    airflow.until(lambda: _watched(airflow), "the watcher has begun")

    poison(airflow, queue, "one", 30)
    first = _waiting(airflow, dag_id, 1)
    poison(airflow, queue, "two", 2)
    second = _waiting(airflow, dag_id, 2)
    remove_messages(queue, CLOCK, [31])
    put_back(queue, CLOCK, [32])  # and poison again: a deadline of its own
    airflow.wait(second)
    receive(airflow, queue, "three")
    third = _waiting(airflow, dag_id, 3)
    remove_messages(queue, CLOCK, range(1, 30))  # 30 stays

    airflow.until(lambda: {line["run_id"] for line in missed(airflow)} >= {first.run_id, third.run_id}, "both are told")
    assert datetime.now(UTC) >= _queued(airflow, first) + timedelta(seconds=LIMIT)
    assert [airflow.client.run(run).state for run in (first, second, third)] == ["running", "success", "running"]
    remove_messages(queue, CLOCK, [30, 32])
    for run in (first, third):
        airflow.wait(run)

    told = missed(airflow)
    late = [run.run_id for run in (first, second, third) if _lasted(airflow, run) > timedelta(seconds=LIMIT)]  # on a busy machine the second, too
    assert sorted(line["run_id"] for line in told) == sorted(late)
    assert told[0]["text"] == f"A message has been in transfers;poison for too long: see the run {told[0]['run_id']} of {dag_id}."
    assert [airflow.result(run, "until_they_are_gone")["messages"] for run in (first, second, third)] == [30, 2, 1]
    airflow.remove_dag(dag_id)


def _waiting(airflow: LiveAirflow, dag_id: str, number: int) -> Run:
    run = airflow.wait_for_run(dag_id, number)
    airflow.wait_task(run, "until_they_are_gone", until="deferred")
    return run


def _queued(airflow: LiveAirflow, run: Run) -> datetime:
    return datetime.fromisoformat(airflow.client.call("GET", run.path)["queued_at"])


def _lasted(airflow: LiveAirflow, run: Run) -> timedelta:
    return datetime.fromisoformat(airflow.client.call("GET", run.path)["end_date"]) - _queued(airflow, run)


def _watched(airflow: LiveAirflow) -> bool:
    with sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True) as database:
        return bool(database.execute("SELECT 1 FROM asset_state_store WHERE key = 'airflow_poison.poisoned.transfers'").fetchall())
