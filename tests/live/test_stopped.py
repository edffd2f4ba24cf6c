"""Receives that are stopped in a real Airflow: by their time-out, and by a person while Spark is a server elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.live.beside import beside
from tests.live.live_airflow import END_SECONDS
from tests.spark.places.servers import connect_server

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

STOPPED = Path(__file__).parent / "dags" / "stopped.py"
TIMEOUT_SECONDS = 120


class Stopped:
    """A DAG whose receive hangs in the third of five messages."""

    def __init__(self, airflow: LiveAirflow, folder: Path, name: str, **environment: str) -> None:
        self.airflow, self.name, self._folder = airflow, name, folder
        self._calls = folder / "calls"
        self._environment = {"STOPPED_FOLDER": str(folder), "STOPPED_NAME": name, **environment}

    def started(self) -> tuple[Run, int]:
        """Return a run whose handler hangs, and the handler's process."""
        run = self.airflow.trigger(self.airflow.dag(STOPPED, environment=self._environment))
        self.airflow.until(lambda: len(self._lines()) == 3, "the handler hangs in the third message", run=run)
        return run, int(self._lines()[-1].split()[1])

    def table(self) -> QueueTable:
        """Open the queue."""
        return self.airflow.store.open(self.name)

    def goes_on(self) -> dict[str, int]:
        """Let another run receive; return its numbers."""
        (self._folder / "go on").touch()
        other = self.airflow.wait(self.airflow.trigger(self.name))
        result: dict[str, int] = self.airflow.result(other, "receive")
        assert Counter(line.split()[0] for line in self._lines()) == {"1": 1, "2": 1, "3": 2, "4": 1, "5": 1}
        assert self.table().snapshot().claims == ()
        return result

    def _lines(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@beside
def test_a_receive_that_takes_too_long_ends_and_any_other_run_goes_on_at_once(airflow: LiveAirflow, tmp_path: Path) -> None:
    stopped = Stopped(airflow, tmp_path, "timed-out", STOPPED_SECONDS=str(TIMEOUT_SECONDS))
    run, handler = stopped.started()

    airflow.wait(run, until="failed")

    assert "AirflowTaskTimeout" in airflow.log(run, "receive")
    airflow.until(lambda: not psutil.pid_exists(handler), "the handler has ended", END_SECONDS)
    result = stopped.goes_on()
    assert (result["received"], result["settled"], result["crashes"]) == (5, 5, 1)


def test_a_receive_on_a_spark_connect_server_that_is_marked_failed_ends_there(airflow: LiveAirflow, tmp_path: Path) -> None:
    """The server goes on; the job does not. No JVM is started by a task."""
    with connect_server(tmp_path, "local[2]") as server:
        lake = {"conn_type": "poison", "extra": {"store": str(airflow.store_root), "spark": server.name}}
        stopped = Stopped(airflow, tmp_path, "on-a-server", STOPPED_CONNECTION="lake", AIRFLOW_CONN_LAKE=json.dumps(lake))
        run, handler = stopped.started()
        assert "java" not in airflow.process_names().values()

        airflow.mark(run, "receive", "failed")

        airflow.wait(run, until="failed")
        airflow.until(lambda: not psutil.pid_exists(handler), "the handler has ended", END_SECONDS)
        assert server.process.poll() is None
        result = stopped.goes_on()
        assert (result["received"], result["settled"]) == (5, 5)
