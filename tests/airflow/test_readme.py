"""The code of the README is the code that works."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore

    from .conftest import Ran

README = Path(__file__).parents[2] / "README.md"


def code(number: int = 0) -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return [block for block in blocks if "retry_cycle(" in block][number]


def test_the_example_runs(tmp_path: Path, run_dag: Callable[..., Ran], store: QueueStore, spark: SparkSession) -> None:
    flights = [{"carrier": "UA", "flight": 1545, "arr_delay": "11"}, {"carrier": "AA", "flight": 1141, "arr_delay": "never"}]
    (tmp_path / "arrivals.json").write_text("\n".join(json.dumps(flight) for flight in flights))
    path, output = re.search(r'path="([^"]+)"', code()), re.search(r'output="([^"]+)"', code())
    assert path is not None
    assert output is not None
    changed = code().replace(path[1], str(tmp_path / "arrivals.json")).replace(output[1], str(tmp_path / "landed"))
    names: dict[str, Any] = {}
    exec(changed, names)

    ran = run_dag(names["send"].dag)

    assert ran.state == "success"
    done = ran.returned["retry_cycle.receive"]
    assert (done["received"], done["settled"], done["parked"], done["deliveries"]) == (2, 1, 1, 7)
    assert DeltaTable(str(tmp_path / "landed")).to_pyarrow_table().to_pylist() == [{"carrier": "UA", "flight": 1545, "minutes_late": 11}]
    (told,) = store.open("arrivals").snapshot().files
    assert store.open("arrivals").read(told, ["last_error"])["last_error"][0]["message"].as_py() == "no delay: never"


def test_the_example_of_a_source_runs(tmp_path: Path, run_dag: Callable[..., Ran], store: QueueStore, spark: SparkSession) -> None:
    """On a folder instead of the topic; tests/live/test_kafka.py takes the topic itself."""
    fares = [{"carrier": "UA", "fare": "99.50"}, {"carrier": "AA", "fare": "much"}, {"carrier": "VX"}]
    (tmp_path / "fares.json").write_text("\n".join(json.dumps(fare) for fare in fares))
    found = re.search(r'Kafka\("fares", ', code(1))
    assert found is not None
    changed = code(1).replace(found[0], f'Files("{tmp_path}/*.json", settled=timedelta(0), ').replace("/lake/fares", str(tmp_path / "landed"))
    names: dict[str, Any] = {}
    exec(code(), names)
    exec(
        "from airflow_poison import Files\n"
        + changed.replace('with DAG("fares"', 'with (dag := DAG("fares"').replace("max_active_runs=1):", "max_active_runs=1)):"),
        names,
    )

    ran = run_dag(names["dag"])

    assert ran.state == "success", ran.errors
    assert (ran.returned["take"]["sent"], ran.returned["take"]["malformed"]) == (3, 1)
    assert DeltaTable(str(tmp_path / "landed")).to_pyarrow_table().to_pylist() == [{"carrier": "UA", "fare": Decimal("99.50")}]
    table = store.open("fares")
    kept = {file.sub_queue: table.read(file)["last_error"][0]["type"].as_py() for file in table.snapshot().files}
    assert kept.keys() == {"retry", "poison"}
    assert kept["poison"] == "MalformedError"
