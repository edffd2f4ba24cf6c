"""Plans in a real Airflow: an API server that dies while it applies one, a redrive that waits in the triggerer, and somebody who ends its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from tests.given.tables import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
REDRIVE = """
from airflow.sdk import DAG

from airflow_poison.operators.desk import QueueRedriveOperator

with DAG("redrive_{queue}", schedule=None):
    QueueRedriveOperator(task_id="redrive", queue_name="{queue}", canary=3, chunk=10, reason="the shop is open", deferrable=True, poll_interval=0.5)
"""


def refuse(message: Message) -> None:
    raise ValueError(message.text)


def land(message: Message) -> None:
    del message


def receive(table: QueueTable, key: str, handler: Callable[[Message], None]) -> int:
    return ReceivePass(table=table, policy=MOVE, handler=handler, engine=LocalEngine, clock=CLOCK, isolation="none").run(key).settled


def poisoned(airflow: LiveAirflow, name: str, messages: int) -> QueueTable:
    """Return a queue with nothing but poison."""
    table = declare(airflow.store, name, MOVE, CLOCK)
    send(table, messages_to_batches([f"{number}".encode() for number in range(messages)]), key="all", clock=CLOCK)
    receive(table, "before", refuse)
    assert places(table) == {"poison": messages}
    return table


def times_moved(table: QueueTable) -> set[int | None]:
    """Return the move counts of all messages."""
    return {count for file in table.snapshot().files for count in table.read(file)["move_count"].to_pylist()}


def the_plan(airflow: LiveAirflow, queue: str) -> dict[str, Any]:
    [found] = airflow.call("GET", f"/poison/api/plans?queue={queue}", user="viewer").body["plans"]
    return dict(found)


def task_instance(airflow: LiveAirflow, run: Run) -> dict[str, Any]:
    return dict(airflow.client.call("GET", f"{run.path}/taskInstances/redrive"))


def test_a_plan_whose_api_server_dies_is_resumed_and_does_each_message_once(airflow: LiveAirflow) -> None:
    table = poisoned(airflow, "night-shift", 400)
    body = {"queue": table.name, "selection": {"sub_queue": "poison"}, "action": {"verb": "put_back"}}
    planned = airflow.call("POST", "/poison/api/plan", body, user="op").body
    pace = {"rate": 50, "chunk": 25, "version": planned["version"]}
    airflow.call("POST", "/poison/api/apply", body | pace, user="op")
    airflow.until(lambda: places(table).get("main", 0) >= 50, "some chunks are done")
    airflow.kill("api-server", whole=True)
    left = places(table)
    assert 0 < left["main"] < 400
    airflow.restart("api-server")
    seen = the_plan(airflow, table.name)
    assert (seen["state"], seen["done"], seen["server"]["state"]) == ("running", left["main"], ""), "nobody goes on unless somebody asks for it"
    assert places(table) == left
    airflow.call("POST", "/poison/api/resume", {"queue": table.name, "plan": seen["plan"]}, user="op")
    airflow.until(lambda: the_plan(airflow, table.name)["state"] == "done", "the plan is done")
    assert (places(table), times_moved(table)) == ({"main": 400}, {2})
    assert the_plan(airflow, table.name)["done"] == 400


def test_a_redrive_waits_in_the_triggerer_also_when_that_dies(airflow: LiveAirflow) -> None:
    table = poisoned(airflow, "canaries", 50)
    run = airflow.trigger(airflow.dag(REDRIVE.format(queue=table.name)))
    airflow.wait_task(run, "redrive", until="deferred")
    assert places(table) == {"main": 3, "poison": 47}
    airflow.kill("triggerer", whole=True)
    assert receive(table, "canary", land) == 3  # while no triggerer runs
    airflow.restart("triggerer")
    airflow.wait(run)
    assert (places(table), times_moved(table)) == ({"main": 47}, {2})
    seen = the_plan(airflow, table.name)
    assert (seen["state"], seen["done"], seen["reason"]) == ("done", 50, "the shop is open")
    assert seen["who"].startswith(f"dag:redrive_{table.name}/{run.run_id}/redrive")


def test_a_triggerer_that_is_told_to_end_pauses_nothing(airflow: LiveAirflow) -> None:
    table = poisoned(airflow, "maintenance", 10)
    run = airflow.trigger(airflow.dag(REDRIVE.format(queue=table.name)))
    airflow.wait_task(run, "redrive", until="deferred")
    airflow.restart("triggerer")
    assert the_plan(airflow, table.name)["state"] == "canary"
    assert receive(table, "canary", land) == 3
    airflow.wait(run)
    assert places(table) == {"main": 7}


def test_whoever_ends_a_waiting_redrive_pauses_its_plan(airflow: LiveAirflow) -> None:
    """Nothing more is put back, also when the canary is received; who resumes the plan at the page has the rest done."""
    table = poisoned(airflow, "second-thoughts", 50)
    run = airflow.trigger(airflow.dag(REDRIVE.format(queue=table.name)))
    airflow.wait_task(run, "redrive", until="deferred")
    airflow.until(lambda: task_instance(airflow, run)["triggerer_job"], "a triggerer has its trigger")  # before, nobody would be told
    airflow.client.set_task_state(run, "redrive", "failed")
    airflow.until(lambda: the_plan(airflow, table.name)["state"] == "paused", "its plan is paused")
    assert receive(table, "canary", land) == 3
    assert places(table) == {"poison": 47}
    plan = the_plan(airflow, table.name)["plan"]
    airflow.call("POST", "/poison/api/resume", {"queue": table.name, "plan": plan, "reason": "it was right"}, user="op")
    airflow.until(lambda: the_plan(airflow, table.name)["state"] == "done", "the plan is done")
    assert places(table) == {"main": 47}
    assert the_plan(airflow, table.name)["who"].startswith(f"dag:{run.dag_id}/")
