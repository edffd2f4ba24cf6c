"""What is imported when: DAG files parse in milliseconds, and Airflow configures itself without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import house

HEAVY = {"pyspark", "py4j", "deltalake", "pyarrow", "pandas", "numpy", "cloudpickle"}

EVERY_PART = Path(__file__).with_name("every_part.py")


def imported_by(code: str, home: Path) -> set[str]:
    """Return the modules that a fresh interpreter has after the code."""
    script = f"{code}\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db"}
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=env)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_importing_the_package_and_its_provider_info_imports_nothing(tmp_path: Path) -> None:
    nothing = imported_by("import importlib, typing", tmp_path)
    found = imported_by("import airflow_poison.get_provider_info as info; info.get_provider_info()", tmp_path)
    assert {name for name in found - nothing if not name.startswith("airflow_poison")} <= {"__future__"}
    assert {name for name in found if name.startswith("airflow_poison.") and house.room_of(name) in house.inside()} == set()


def test_a_dag_file_with_every_part_imports_no_heavy_library(tmp_path: Path) -> None:
    assert (
        imported_by(EVERY_PART.read_text(), tmp_path) & HEAVY == imported_by("from airflow.sdk import DAG, BaseOperator, TaskGroup", tmp_path) & HEAVY
    )


SCHEDULED = """
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
"""
ASKED = """
again = DagSerialization.from_dict(DagSerialization.to_dict(scheduled))
print(again.timetable.summary, again.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=TimeRestriction(None, None, False)))
"""


def test_the_scheduler_asks_for_the_next_run_without_a_store(tmp_path: Path) -> None:
    without = imported_by(SCHEDULED, tmp_path)
    assert (imported_by(f"{EVERY_PART.read_text()}\n{SCHEDULED}\n{ASKED}", tmp_path) - without) & (
        HEAVY | {"airflow_poison.store.delta_store"}
    ) == set()
    assert not (tmp_path / "poison").exists()


def test_every_public_name_is_offered_and_an_unknown_one_is_refused() -> None:
    import airflow_poison

    for name in airflow_poison.__all__:
        assert getattr(airflow_poison, name) is not None
    assert set(airflow_poison.__all__) <= set(dir(airflow_poison))
    with pytest.raises(AttributeError, match="Msmq4"):
        _ = airflow_poison.Msmq5
