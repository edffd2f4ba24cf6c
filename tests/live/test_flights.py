"""The example of a year of flights, on a sample of them, in the real scheduler: it makes its runs by itself, every retry cycle delay."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from airflow_poison.values.schema import SubQueue
from tests.live.beside import beside

if TYPE_CHECKING:
    from tests.live.live_airflow import LiveAirflow

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_arrivals.py"
EVERY = 500
DELAY = "5"


@beside
def test_hopeless_flights_end_in_poison_and_late_planes_are_cured_by_a_retry_cycle(airflow: LiveAirflow, tmp_path: Path) -> None:
    home = tmp_path / "flights"
    settings = {"FLIGHTS_HOME": str(home), "FLIGHTS_RETRY_CYCLE_DELAY": DELAY, "FLIGHTS_EVERY": str(EVERY)}
    dag_id = airflow.dag(DAG_FILE, environment=settings)

    runs = [airflow.wait(airflow.wait_for_run(dag_id, number)) for number in (1, 2, 3)]
    airflow.remove_dag(dag_id)

    with (home / f"flights-{EVERY}.csv").open(newline="") as file:
        flights = [(row["carrier"], row["arr_delay"].lstrip("-").isdigit()) for row in csv.DictReader(file)]
    hopeless, late = sum(not arrived for _, arrived in flights), sum(carrier == "VX" and arrived for carrier, arrived in flights)
    assert hopeless
    assert late
    sends = [airflow.result(run, "send_flights") for run in runs]
    assert [(sent["sent"], sent["repeated"]) for sent in sends] == [(len(flights), False), (len(flights), True), (len(flights), True)]
    passes = [airflow.result(run, "retry_cycle.receive") for run in runs]
    assert [done["received"] for done in passes] == [len(flights), hopeless + late, hopeless]
    assert [done["settled"] for done in passes] == [len(flights) - hopeless - late, late, 0]
    assert [done["poisoned"] for done in passes] == [0, 0, hopeless]
    snapshot = airflow.store.open("flights").snapshot()
    waiting = {place.value: snapshot.depth(place, datetime.now(UTC)).messages for place in SubQueue}
    assert {place: messages for place, messages in waiting.items() if messages} == {"poison": hopeless}
    landed = DeltaTable(str(home / "landed")).to_pyarrow_table(columns=["carrier"]).num_rows
    assert landed == len(flights) - hopeless
    alerts = [json.loads(line) for line in (home / "alerts.jsonl").read_text().splitlines()]
    assert [(alert["kind"], alert["count"]) for alert in alerts] == [("poison", hopeless)]
