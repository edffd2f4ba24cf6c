"""The example of a year of flights, on a sample of them, in the real scheduler: it makes its runs by itself, every retry cycle delay."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
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

    rows = pq.read_table(home / f"flights-{EVERY}.parquet", columns=["carrier", "arr_delay"]).to_pylist()
    flights = [(row["carrier"], row["arr_delay"] is not None) for row in rows]
    hopeless, late = sum(not arrived for _, arrived in flights), sum(carrier == "VX" and arrived for carrier, arrived in flights)
    assert hopeless
    assert late
    passes = [airflow.result(run, "retry_cycle.receive") for run in runs]
    failed = hopeless + late
    read = {"read": len(flights), "landed": len(flights) - failed, "filtered": 0, "messages": failed}
    assert [done["in_place"] for done in passes] == [read, {}, {}], "the file is taken once"
    assert [done["received"] for done in passes] == [failed, failed, hopeless]
    assert [done["settled"] for done in passes] == [0, late, 0]
    assert [done["poisoned"] for done in passes] == [0, 0, hopeless]
    snapshot = airflow.store.open("flights").snapshot()
    waiting = {place.value: snapshot.depth(place, datetime.now(UTC)).messages for place in SubQueue}
    assert {place: messages for place, messages in waiting.items() if messages} == {"poison": hopeless}
    landed = DeltaTable(str(home / "landed")).to_pyarrow_table(columns=["carrier"]).num_rows
    assert landed == len(flights) - hopeless
    alerts = [json.loads(line) for line in (home / "alerts.jsonl").read_text().splitlines()]
    assert [(alert["kind"], alert["count"]) for alert in alerts] == [("poison", hopeless)]
