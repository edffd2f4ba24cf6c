"""The installed wheel, in an Airflow of its own: what ``make compat`` runs in the oldest and the newest environment."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

import airflow_poison

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:::airflow_poison"),
]  # Airflow and its dependencies warn of themselves

PACKAGE = Path(airflow_poison.__file__).parent
NOT_INSTALLED = {"__pycache__", "frontend"}
"""Folders: what a run leaves, and the sources of the page, of which the built page is installed."""
SOURCE = Path(__file__).parents[2] / "airflow_poison"
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "airflow_poison.") if not module.name.endswith("__main__"))
WITH_SUBMIT = {"airflow_poison.operators.submit"}
"""Modules of the extra ``submit``, which is not installed here: the environment of the development has it."""
AIRFLOW = tuple(int(number) for number in version("apache-airflow").split(".")[:2])

DAG_FILE = """
from airflow.sdk import DAG
from airflow_poison import Msmq4
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle

RULES = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")


def price(message):
    if message.text == "plum":
        raise LookupError("nobody knows what a plum costs")


with DAG("orders", schedule=None):
    QueueSendOperator(task_id="send", queue_name="orders", messages=["apple", "plum", "pear"], policy=RULES) >> retry_cycle("orders", RULES, price)
"""


def test_it_is_the_installed_package_that_is_tested() -> None:
    assert "site-packages" in PACKAGE.parts


def test_it_has_every_file_of_the_source() -> None:
    def files(folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not NOT_INSTALLED & {*path.parts}}

    assert files(PACKAGE) == files(SOURCE)
    assert MODULES


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name: str) -> None:
    if name in WITH_SUBMIT:
        with pytest.raises(AirflowOptionalProviderFeatureException, match=r"pip install 'airflow-poison\[submit\]'"):
            importlib.import_module(name)
    else:
        importlib.import_module(name)


def test_a_dag_sends_receives_and_sets_poison_aside_when_airflow_runs_it_by_itself(tmp_path: Path) -> None:
    """As a user does: a new home, ``airflow db migrate``, and ``airflow dags test``, with Spark in the task."""
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "orders.py").write_text(DAG_FILE)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_POISON_DEFAULT": json.dumps({"conn_type": "poison", "extra": {"store": str(tmp_path / "store"), "spark": "local[2]"}}),
    }

    def airflow(*words: str) -> str:
        ran = subprocess.run(
            [Path(sys.executable).with_name("airflow"), *words], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
        return ran.stdout

    airflow("db", "migrate")
    airflow("dags", "test", "orders")
    [orders] = json.loads(airflow("poison", "list", "--output", "json"))["queues"]

    assert {place: queue["messages"] for place, queue in orders["sub_queues"].items()} == {
        "main": 0,
        "retry": 0,
        "poison": 1,
        "postponed": 0,
        "transmission": 0,
    }
