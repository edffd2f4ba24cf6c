"""One DAG that alerts for many queues, in a real Airflow: it runs when something happens, and tells each thing once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy
    from tests.live.live_airflow import LiveAirflow

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")

ALERTS = """
from datetime import timedelta

from airflow_poison.dags import queue_alerts
from tests.live.alert_file import AlertFile

alerts = queue_alerts(
    "alerts_of_the_team",
    ["team_orders", "team_bills"],
    on_queue_disabled=AlertFile(),
    on_poison=AlertFile(),
    on_backlog=AlertFile(),
    backlog_older_than=timedelta(seconds=20),
    look_every=timedelta(seconds=20),
    poll_interval=0.5,
)
"""


def never(message: Message) -> None:
    raise ValueError("no")


def put(airflow: LiveAirflow, name: str, policy: Policy, key: str, *, receive: bool = True) -> None:
    table = declare(airflow.store, name, policy, CLOCK)
    send(table, messages_to_batches([b"bad"]), key=key, clock=CLOCK)
    if receive:
        ReceivePass(table=table, policy=policy, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=airflow.store).run(key)


def told(airflow: LiveAirflow) -> Counter[tuple[str, str]]:
    return Counter((alert["queue"], alert["event"]) for queue in ("team_orders", "team_bills") for alert in airflow.alerts(queue))


def test_a_team_is_told_in_one_place_of_each_thing_once(airflow: LiveAirflow) -> None:
    declare(airflow.store, "team_orders", MOVE, CLOCK)
    declare(airflow.store, "team_bills", ServiceBroker(), CLOCK)
    dag_id = airflow.dag(ALERTS)
    assert dag_id == "alerts_of_the_team"
    _until_watched(airflow)

    put(airflow, "team_orders", MOVE, "one")
    airflow.until(lambda: told(airflow)["team_orders", "MOVED_POISON"] == 1, "the poison of orders is told")
    put(airflow, "team_bills", ServiceBroker(), "two")
    airflow.until(lambda: told(airflow)["team_bills", "QUEUE_DISABLED"] == 1, "the halt of bills is told")
    airflow.until(lambda: told(airflow)["team_bills", "BACKLOG_TOO_OLD"] == 1, "the backlog of bills is told")
    airflow.kill("triggerer", whole=True)
    put(airflow, "team_orders", MOVE, "three")  # while no triggerer runs
    airflow.restart("triggerer")
    airflow.until(lambda: told(airflow)["team_orders", "MOVED_POISON"] == 2, "the poison of orders is told again")
    runs = airflow.runs(dag_id)
    airflow.clear(runs[0], "team_orders", "team_bills")
    airflow.wait_for_run(dag_id, len(runs) + 1)
    airflow.until(lambda: all(run.ended for run in airflow.runs(dag_id)), "all runs have ended")

    assert told(airflow) == {
        ("team_orders", "MOVED_POISON"): 2,
        ("team_bills", "QUEUE_DISABLED"): 1,
        ("team_bills", "BACKLOG_TOO_OLD"): 1,
    }
    keys = [alert["key"] for queue in ("team_orders", "team_bills") for alert in airflow.alerts(queue)]
    assert len(set(keys)) == 4
    assert {run.state for run in airflow.runs(dag_id)} == {"success"}
    airflow.remove_dag(dag_id)


def _until_watched(airflow: LiveAirflow) -> None:
    """Wait until the watchers have written down where they begin: what happens before is not theirs to tell."""
    wanted = {f"airflow_poison.{what}.{queue}" for what in ("poisoned", "disabled") for queue in ("team_orders", "team_bills")}
    airflow.until(lambda: wanted <= _states(airflow), "the watchers have begun")


def _states(airflow: LiveAirflow) -> set[str]:
    with sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True) as database:
        return {str(key) for (key,) in database.execute("SELECT key FROM asset_state_store").fetchall()}
