"""The example of a transformation in a real Airflow with a real Spark, on a sample of the flights."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore

    from .conftest import Ran

FILE = Path(__file__).parents[2] / "dags" / "flight_arrivals.py"
EVERY = 200
KEY = ("carrier", "flight", "time_hour", "origin")


@pytest.mark.campaign
def test_every_flight_that_arrived_lands_once_and_the_others_end_in_poison(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    airflow_database: Path,
    run_dag: Callable[..., Ran],
    store: QueueStore,
    spark: SparkSession,
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    home = tmp_path / "flights"
    monkeypatch.setenv("FLIGHTS_HOME", str(home))
    monkeypatch.setenv("FLIGHTS_RETRY_CYCLE_DELAY", "0.001")
    monkeypatch.setenv("FLIGHTS_EVERY", str(EVERY))
    bag = DagBag(str(FILE))
    assert not bag.import_errors

    runs = [run_dag(bag.dags["flight_arrivals"], datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2, 3)]

    flights = pq.read_table(home / f"flights-{EVERY}.parquet").to_pylist()
    others = {row["tailnum"] for row in flights if row["carrier"] != "VX"}
    arrived = [row for row in flights if row["arr_delay"] is not None]
    hopeless = len(flights) - len(arrived)
    late = sum(row["tailnum"] not in others for row in arrived)
    assert hopeless
    assert late
    assert [run.state for run in runs] == ["success"] * 3
    passes: list[dict[str, Any]] = [run.returned["retry_cycle.receive"] for run in runs]
    failed = hopeless + late
    read = {"read": len(flights), "landed": len(flights) - failed, "filtered": 0, "messages": failed}
    assert [done["in_place"] for done in passes] == [read, {}, {}], "the file is taken once"
    assert [done["received"] for done in passes] == [failed, failed, hopeless]
    assert [done["settled"] for done in passes] == [0, late, 0]
    assert [done["poisoned"] for done in passes] == [0, 0, hopeless]
    assert sum(done["deliveries"] for done in passes) == 7 * late + 18 * hopeless

    landed = DeltaTable(str(home / "landed")).to_pyarrow_table().to_pylist()
    assert Counter(tuple(row[name] for name in KEY) for row in landed) == Counter(tuple(row[name] for name in KEY) for row in arrived)
    by_key = {tuple(row[name] for name in KEY): row for row in arrived}
    for row in landed:
        flight = by_key[tuple(row[name] for name in KEY)]
        assert row["made_up"] == flight["dep_delay"] - flight["arr_delay"]
        assert row["tailnum"] == flight["tailnum"]
        assert row["model"]
    assert not {"lookup_id", "_poison"} & landed[0].keys()

    poison = [row for row in store.open("flights").snapshot().files if row.sub_queue == SubQueue.POISON]
    assert sum(file.rows for file in poison) == hopeless
    alerts = [json.loads(line) for line in (home / "alerts.jsonl").read_text().splitlines()]
    assert [(alert["kind"], alert["count"]) for alert in alerts] == [("poison", hopeless)]
