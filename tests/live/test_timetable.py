"""RetryCycleTimetable in the real scheduler: cycles with nothing waiting, with something waiting, and after a pause of ten intervals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values.clock import SystemClock
from tests.live.beside import beside
from tools.airflow.client import API

if TYPE_CHECKING:
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

DELAY = timedelta(seconds=10)
PAUSE = 10 * DELAY

CYCLES = f"""
from datetime import timedelta

from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import RetryCycleTimetable

POLICY = Msmq4(
    receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(seconds={DELAY.total_seconds():.0f}), receive_error_handling="Move"
)


def refuse(message):
    raise ValueError("no")


with DAG("cycles", schedule=RetryCycleTimetable(POLICY), catchup=False, max_active_runs=1):
    retry_cycle("cycled", POLICY, refuse, conn_id="poison_quick")
"""


def facts(airflow: LiveAirflow, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = airflow.client.call("GET", run.path)
    return found


def moment(found: dict[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(found[name])


def wait_for_pause(airflow: LiveAirflow, dag_id: str) -> None:
    """Pause the DAG for ten intervals."""
    airflow.client.pause(dag_id, paused=True)
    until = datetime.now(UTC) + PAUSE
    airflow.until(lambda: datetime.now(UTC) >= until, "ten intervals have passed")
    airflow.client.pause(dag_id, paused=False)


@beside
def test_cycles_follow_the_delay_with_nothing_and_something_waiting_and_a_pause_makes_no_pile(airflow: LiveAirflow) -> None:
    poison = {"conn_type": "poison", "extra": {"store": str(airflow.store_root), "spark": "auto"}}
    dag_id = airflow.dag(CYCLES, environment={"AIRFLOW_CONN_POISON_QUICK": json.dumps(poison)})

    airflow.wait(airflow.wait_for_run(dag_id, 3))  # nothing waits
    shown = airflow.client.call("GET", f"{API}/dags/{quote(dag_id)}")
    assert shown["timetable_summary"] == "every 10 seconds"
    assert shown["timetable_description"] == "Every 10 seconds. A run while nothing waits starts no Spark."
    assert moment(shown, "next_dagrun_run_after").timestamp() % DELAY.total_seconds() == 0

    queue = airflow.store.open("cycled")
    send(queue, messages_to_batches([b"bad"]), key="one", clock=SystemClock())
    airflow.until(lambda: {file.sub_queue for file in queue.snapshot().files} == {"poison"}, "the message is poison after its cycle")
    airflow.wait_for_run(dag_id, len(airflow.runs(dag_id)) + 1)

    before = len(airflow.runs(dag_id))
    wait_for_pause(airflow, dag_id)
    airflow.wait(airflow.wait_for_run(dag_id, before + 4))

    runs = [facts(airflow, run) for run in airflow.runs(dag_id)[: before + 4]]
    assert {run["state"] for run in runs} == {"success"}
    intervals = [(moment(run, "data_interval_start"), moment(run, "data_interval_end")) for run in runs]
    assert all(earlier[1] == later[0] for earlier, later in pairwise(intervals)), "cycles follow each other without a hole"
    assert all(end.timestamp() % DELAY.total_seconds() == 0 for _, end in intervals)
    assert all(moment(run, "run_after") == end for run, (_, end) in zip(runs, intervals, strict=True))
    after = intervals[before : before + 3]
    assert max(end - start for start, end in after) >= PAUSE - 2 * DELAY, "one run stands for the pause"
    airflow.remove_dag(dag_id)
