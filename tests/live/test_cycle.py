"""The life of a queue in a real Airflow with real Spark: cycles, a halt, and a task that a person stops."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from airflow_poison.store.control import QueueState
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.live.beside import beside
from tests.live.live_airflow import END_SECONDS

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow

DAGS = Path(__file__).parent / "dags"


def messages(table: QueueTable) -> dict[str, int]:
    snapshot = table.snapshot()
    found = {place.value: sum(file.rows for file in snapshot.files if file.sub_queue == place) for place in SubQueue}
    return {place: number for place, number in found.items() if number}


def all_due(table: QueueTable) -> bool:
    retry = table.snapshot().depth(SubQueue.RETRY, datetime.now(UTC))
    return retry.due == retry.messages


def happened(table: QueueTable) -> Counter[EventType]:
    return Counter(event.type for event in table.events())


@beside
def test_messages_go_through_their_cycles_and_the_hopeless_ones_end_in_poison_with_one_alert(airflow: LiveAirflow) -> None:
    dag_id = airflow.dag(DAGS / "odd_numbers.py")

    first = airflow.wait(airflow.trigger(dag_id))

    assert airflow.tasks(first) == dict.fromkeys(("send", "retry_cycle.return", "retry_cycle.receive", "retry_cycle.alert"), "success")
    received = airflow.result(first, "retry_cycle.receive")
    assert (received["received"], received["settled"], received["parked"], received["deliveries"]) == (10, 5, 5, 15)
    table = airflow.store.open("numbers")
    assert messages(table) == {"retry": 5}
    assert airflow.alerts("numbers") == []

    airflow.until(lambda: all_due(table), "all that waits in retry is due")
    second = airflow.wait(airflow.trigger(dag_id))

    assert airflow.result(second, "send")["repeated"]
    assert airflow.result(second, "retry_cycle.return")["returned"] == 5
    assert airflow.result(second, "retry_cycle.receive")["poisoned"] == 5
    assert messages(table) == {"poison": 5}
    assert table.snapshot().claims == ()
    assert happened(table) == {EventType.POISON_EXCEPTION: 10, EventType.MOVED_RETRY: 5, EventType.RETURNED: 5, EventType.MOVED_POISON: 5}
    [alert] = airflow.alerts("numbers")
    assert alert["line"] == "numbers: MOVED_POISON x 5"
    assert (alert["dag_id"], alert["run_id"]) == (dag_id, second.run_id)


@beside
def test_a_message_that_always_fails_disables_its_queue_and_fails_the_run(airflow: LiveAirflow) -> None:
    dag_id = airflow.dag(DAGS / "disabled_orders.py")

    run = airflow.wait(airflow.trigger(dag_id), until="failed")

    assert airflow.tasks(run) == {
        "send": "success",
        "retry_cycle.return": "success",
        "retry_cycle.receive": "failed",
        "retry_cycle.alert": "success",
    }
    table = airflow.store.open("orders")
    control = table.snapshot().control
    assert (control.state, control.halted_by) == (QueueState.DISABLED, 2)
    assert messages(table) == {"main": 2}
    assert happened(table)[EventType.QUEUE_DISABLED] == 1
    assert airflow.result(run, "retry_cycle.receive")["halted"]["lookup_id"] == 2
    [alert] = airflow.alerts("orders")
    assert (alert["kind"], alert["event"], alert["lookup_ids"]) == ("queue_disabled", "QUEUE_DISABLED", [2])


def test_a_receive_that_is_marked_failed_stops_and_any_other_run_goes_on_at_once_where_it_stopped(airflow: LiveAirflow, tmp_path: Path) -> None:
    """It gives its claim up: nobody waits for the end of its lease."""
    dag_id = airflow.dag(DAGS / "stuck.py", environment={"STUCK_FOLDER": str(tmp_path)})
    run = airflow.trigger(dag_id)
    calls = tmp_path / "calls"
    airflow.until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 3, "the handler hangs in the third message", run=run)
    handler = int(calls.read_text().split()[-1])
    assert "java" in airflow.process_names().values()

    airflow.mark(run, "receive", "failed")

    airflow.wait(run, until="failed")
    airflow.until(lambda: not psutil.pid_exists(handler), "the handler has ended", END_SECONDS)
    airflow.until(lambda: "java" not in airflow.process_names().values(), "Spark has ended", END_SECONDS)
    table = airflow.store.open("stuck")
    assert messages(table) == {"main": 5}

    (tmp_path / "go on").touch()
    other = airflow.wait(airflow.trigger(dag_id))
    result = airflow.result(other, "receive")
    assert (result["received"], result["settled"], result["crashes"]) == (5, 5, 1)
    assert Counter(line.split()[0] for line in calls.read_text().splitlines()) == {"1": 1, "2": 1, "3": 2, "4": 1, "5": 1}

    airflow.clear(run, "receive")
    airflow.wait(run)
    assert airflow.result(run, "receive")["received"] == 0
    assert table.snapshot().claims == ()
