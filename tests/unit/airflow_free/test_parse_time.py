"""DAG files that use this package are parsed in at most 300 ms beyond Airflow's own import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_poison.get_provider_info import get_provider_info

MOST_SECONDS = 0.3
TRIES = 5
ROOT = Path(__file__).parents[3]
EVERY_PART = Path(__file__).with_name("every_part.py")
FILES = [EVERY_PART, *sorted((ROOT / "dags").glob("*.py"))]
SUPERCLASSES = """
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.hitl import HITLOperator
"""
"""Operators of other providers that some of this package's are; a file that uses those imports them, too."""

MEASURE = """
import gc, os, time
from airflow.sdk import DAG, BaseHook, BaseNotifier, BaseOperator, BaseSensorOperator, TaskGroup
{own}
DAG("warm", schedule=None)
BaseOperator(task_id="warm")
gc.freeze()
for file in {files!r}:
    if os.fork():
        assert os.wait()[1] == 0, file
        continue
    started = time.process_time()
    exec(compile(open(file).read(), file, "exec"), {{"__name__": "parsed", "__file__": file}})
    print(file, time.process_time() - started, flush=True)
    os._exit(0)
"""
"""Each file in a process of its own that has Airflow; processor time, because what others do on the machine meanwhile is not the file's. Nor is the
garbage collector's walk through Airflow's own objects."""


def imports(file: Path, package: str) -> list[str]:
    """Return the import statements of a file, at its top, that import from a package."""
    found = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
    return [ast.unparse(node) for node in found if node.module and node.module.partition(".")[0] == package]


def measured(home: Path) -> dict[Path, float]:
    """Return how many seconds it takes to execute each DAG file where what the files take from Airflow itself has been imported."""
    own = [line for file in FILES for line in imports(file, "airflow")]
    code = MEASURE.format(own="\n".join([*own, SUPERCLASSES]), files=[str(file) for file in FILES])
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},  # compiled once, as where Airflow runs
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "dags"), *filter(None, [os.environ.get("PYTHONPATH")])]),  # Airflow adds its DAGs folder
    }
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True, env=env)
    found = dict(line.rsplit(" ", 1) for line in ran.stdout.splitlines() if line.startswith("/"))
    return {file: float(found[str(file)]) for file in FILES}


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, float]:
    """The least of some tries for each file; there are as many tries as it takes until all are short enough."""
    least = dict.fromkeys(FILES, float("inf"))
    for _ in range(TRIES):
        least = {file: min(least[file], tried) for file, tried in measured(tmp_path_factory.mktemp("airflow")).items()}
        if max(least.values()) <= MOST_SECONDS:
            break
    return least


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_file_is_parsed_in_time(file: Path, seconds: dict[Path, float]) -> None:
    assert seconds[file] <= MOST_SECONDS


def test_the_file_with_every_part_has_every_part() -> None:
    """Whatever the provider tells Airflow of."""
    info: dict[str, list[dict[str, list[str]]]] = get_provider_info()  # type: ignore[assignment]  # JSON
    modules = {module for kind in ("operators", "sensors") for entry in info[kind] for module in entry["python-modules"]}
    text = EVERY_PART.read_text()
    assert {module for module in modules if f"from {module} import" not in text} == set()
    assert [entry["name"] for entry in info["task-decorators"] if f"@task.{entry['name']}(" not in text] == []
