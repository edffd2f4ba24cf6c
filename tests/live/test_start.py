"""The Airflow of these tests: it parses, runs and answers, and lets users do what their roles allow."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.live.beside import beside

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.live_airflow import LiveAirflow

FILE_SENSOR = """
import os

from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import DAG

with DAG("waits_for_a_file", schedule=None):
    FileSensor(task_id="wait", filepath=os.environ["AWAITED"], poke_interval=1)
"""

TWO_TASKS = """
from airflow.sdk import DAG, task

with DAG("two_tasks", schedule=None):

    @task
    def give(dag_run=None):
        return {"given": dag_run.conf["number"], "nothing": None}

    @task
    def take(given):
        return f"{given['given']} taken"

    take(give())
"""


@beside
def test_a_dag_file_is_parsed_and_its_run_asked_for(airflow: LiveAirflow) -> None:
    dag_id = airflow.dag(TWO_TASKS)
    run = airflow.trigger(dag_id, {"number": 7})
    airflow.wait(run)
    assert airflow.tasks(run) == {"give": "success", "take": "success"}
    assert airflow.result(run, "give") == {"given": 7, "nothing": None}
    assert airflow.result(run, "take") == "7 taken"
    assert any("Returned value was" in entry["event"] for entry in airflow.log_entries(run, "take"))
    assert [run.run_id for run in airflow.runs(dag_id)] == [run.run_id]


@pytest.mark.parametrize(
    ("user", "may_read", "may_trigger", "may_define"),
    [(None, 401, 401, 401), ("viewer", 200, 403, 403), ("user", 200, 200, 403), ("op", 200, 200, 201), ("admin", 200, 200, 201)],
)
def test_users_do_what_their_roles_allow(airflow: LiveAirflow, user: str | None, may_read: int, may_trigger: int, may_define: int) -> None:
    dag_id = airflow.dag(f"from airflow.sdk import DAG\n\ndag = DAG('rights_of_{user}', schedule=None)")
    connection = {"connection_id": f"of_{user}", "conn_type": "poison"}
    assert airflow.call("GET", f"/api/v2/dags/{dag_id}", user=user).status == may_read
    assert airflow.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None}, user=user).status == may_trigger
    assert airflow.call("POST", "/api/v2/connections", connection, user=user).status == may_define


def test_a_killed_triggerer_is_started_again_and_the_deferred_task_goes_on(airflow: LiveAirflow, tmp_path: Path) -> None:
    awaited = tmp_path / "awaited"
    settings = {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "true", "AIRFLOW_CONN_FS_DEFAULT": "fs://", "AWAITED": str(awaited)}
    run = airflow.trigger(airflow.dag(FILE_SENSOR, environment=settings))
    airflow.wait_task(run, "wait", until="deferred")

    airflow.kill("triggerer", whole=True)
    awaited.touch()
    airflow.restart("triggerer")

    airflow.wait(run)


def test_nothing_listens_beyond_loopback(airflow: LiveAirflow) -> None:
    found = set()
    for process_id in airflow.process_names():
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = psutil.Process(process_id).net_connections("inet")
            found |= {connection.laddr.ip.removeprefix("::ffff:") for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert found == {"127.0.0.1"}


def test_a_file_that_cannot_be_parsed_fails_with_its_error(airflow: LiveAirflow) -> None:
    with pytest.raises(pytest.fail.Exception, match="no_such_module"):
        airflow.dag("import no_such_module\nfrom airflow.sdk import DAG")
