"""The Airflow of these tests: it parses, runs and answers, and lets users do what their roles allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.live.live_airflow import LiveAirflow

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


def test_a_dag_file_is_parsed_and_its_run_asked_for(airflow: LiveAirflow) -> None:
    dag_id = airflow.dag(TWO_TASKS)
    run = airflow.trigger(dag_id, {"number": 7})
    airflow.wait(run)
    assert airflow.tasks(run) == {"give": "success", "take": "success"}
    assert airflow.result(run, "give") == {"given": 7, "nothing": None}
    assert airflow.result(run, "take") == "7 taken"
    assert any("Returned value was" in entry["event"] for entry in airflow.log_entries(run, "take"))
    assert [run.run_id for run in airflow.runs(dag_id)] == [run.run_id]


def test_a_file_that_cannot_be_parsed_fails_with_its_error(airflow: LiveAirflow) -> None:
    with pytest.raises(pytest.fail.Exception, match="no_such_module"):
        airflow.dag("import no_such_module\nfrom airflow.sdk import DAG")
