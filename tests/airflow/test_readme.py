"""The code of the README is the code that works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_poison.core.store import QueueStore

    from .conftest import Ran

README = Path(__file__).parents[2] / "README.md"


def code() -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return next(block for block in blocks if "retry_cycle(" in block)


def test_the_example_runs(tmp_path: Path, run_dag: Callable[..., Ran], store: QueueStore, spark: SparkSession) -> None:
    flights = [{"carrier": "UA", "flight": 1545, "arr_delay": 11}, {"carrier": "AA", "flight": 1141, "arr_delay": None}]
    (tmp_path / "arrivals.json").write_text("\n".join(json.dumps(flight) for flight in flights))
    path = re.search(r'path="([^"]+)"', code())
    assert path is not None
    names: dict[str, Any] = {}
    exec(code().replace(path[1], str(tmp_path / "arrivals.json")).replace("minutes=30", "minutes=0"), names)

    ran = run_dag(names["send"].dag)

    assert ran.state == "success"
    done = ran.returned["retry_cycle.receive"]
    assert (done["received"], done["settled"], done["parked"], done["deliveries"]) == (2, 1, 1, 7)
