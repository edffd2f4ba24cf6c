"""The example of a handler of messages in a real Airflow with a real Spark, on a sample of the flights; and its handler alone."""

from __future__ import annotations

import csv
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import Message
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import DAG
    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore

    from .conftest import Ran

FILE = Path(__file__).parents[2] / "dags" / "flight_arrivals_by_message.py"
EVERY = 200


@dataclass(frozen=True)
class Example:
    """The DAG as Airflow loads it, with its own folder."""

    dag: DAG
    home: Path
    names: dict[str, Any]
    """The names of the DAG file's module."""

    def flights(self) -> list[dict[str, str]]:
        with self.names["flights_csv"]().open(newline="") as file:
            return list(csv.DictReader(file))

    def first(self, *, landed: bool, airline: str) -> Message:
        """Return the message of the first flight of an airline that did (not) arrive."""
        flight = next(row for row in self.flights() if (row["arr_delay"].lstrip("-").isdigit()) == landed and row["carrier"] == airline)
        body = {name: value if value not in {"", "NA"} else None for name, value in flight.items()}
        return Message(json.dumps(body).encode())


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_database: Path) -> Example:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("FLIGHTS_HOME", str(tmp_path / "flights"))
    monkeypatch.setenv("FLIGHTS_RETRY_CYCLE_DELAY", "0.001")
    monkeypatch.setenv("FLIGHTS_EVERY", str(EVERY))
    bag = DagBag(str(FILE))
    assert not bag.import_errors
    dag = bag.dags["flight_arrivals_by_message"]
    receive: Any = dag.get_task("retry_cycle.receive")
    return Example(dag, tmp_path / "flights", receive.function.__globals__)


@pytest.mark.long
def test_hopeless_flights_end_in_poison_and_late_planes_are_cured_by_a_retry_cycle(
    example: Example, run_dag: Callable[..., Ran], store: QueueStore, spark: SparkSession
) -> None:
    runs = [run_dag(example.dag, datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2, 3)]

    flights = example.flights()
    hopeless = sum(not row["arr_delay"].lstrip("-").isdigit() for row in flights)
    late = sum(row["carrier"] == "VX" and row["arr_delay"].lstrip("-").isdigit() for row in flights)
    assert hopeless
    assert late
    assert [run.state for run in runs] == ["success"] * 3
    sends = [run.returned["send_flights"] for run in runs]
    assert [(send["sent"], send["repeated"]) for send in sends] == [(len(flights), False), (len(flights), True), (len(flights), True)]
    passes = [run.returned["retry_cycle.receive"] for run in runs]
    assert [done["received"] for done in passes] == [len(flights), hopeless + late, hopeless]
    assert [done["settled"] for done in passes] == [len(flights) - hopeless - late, late, 0]
    assert [done["parked"] for done in passes] == [hopeless + late, hopeless, 0]
    assert [done["poisoned"] for done in passes] == [0, 0, hopeless]
    assert sum(done["deliveries"] for done in passes) == len(flights) - hopeless - late + 7 * late + 18 * hopeless
    snapshot = store.open("flights_by_message").snapshot()
    waiting = {name: snapshot.depth(name, datetime.now(UTC)).messages for name in (SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON)}
    assert waiting == {SubQueue.MAIN: 0, SubQueue.RETRY: 0, SubQueue.POISON: hopeless}
    alerts = [json.loads(line) for line in (example.home / "alerts.jsonl").read_text().splitlines()]
    assert [(alert["kind"], alert["count"]) for alert in alerts] == [("poison", hopeless)]


def test_a_flight_without_arrival_data_cannot_land(example: Example) -> None:
    message = example.first(landed=False, airline="EV")
    with pytest.raises(example.names["NoArrivalDataError"], match="air_time"):
        example.names["land"](message)


def test_a_flight_lands_once_its_plane_is_registered(example: Example) -> None:
    message = example.first(landed=True, airline="VX")
    example.names["add_planes"](late=False)
    with pytest.raises(example.names["UnknownPlaneError"], match="is not in the registry"):
        example.names["land"](message)

    example.names["add_planes"](late=True)

    example.names["land"](message)


def test_planes_are_added_once(example: Example) -> None:
    assert example.names["add_planes"](late=False) > 0
    assert example.names["add_planes"](late=False) == 0


def test_the_handler_reads_the_registry_and_cannot_change_it(example: Example) -> None:
    example.names["add_planes"](late=False)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        example.names["registry"]().execute("DELETE FROM plane")
