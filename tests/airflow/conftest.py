"""A real Airflow for tests: its home and database are made once, before airflow is imported."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
import warnings
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow import fresh
from tests.given import forked

HOME = Path(os.environ.get("AIRFLOW_POISON_TESTS_HOME") or tempfile.mkdtemp(prefix="airflow-poison-tests-"))
if "AIRFLOW_POISON_TESTS_HOME" not in os.environ:  # a test that has several Airflows gives each its own
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from airflow.sdk import DAG
    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Airflow and its own dependencies warn of themselves: only this package's warnings are errors here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::airflow_poison"))


forked.preload(*(*fresh.PRELOADED, "tests.airflow.task_process"), environment={"AIRFLOW__CORE__UNIT_TEST_MODE": "False", "PYTHONWARNINGS": "ignore"})


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> Path:
    """Make the database; return a copy of it as it was when it was new."""
    new = HOME / "new.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from airflow.models.variable import Variable
        from airflow.utils.db import initdb

        initdb()
        with closing(sqlite3.connect(HOME / "airflow.db")) as database, closing(sqlite3.connect(new)) as copy:
            database.backup(copy)
        Variable.set("airflow_poison_installation", "tests")  # the first task of a new database waits while it makes its id
    gc.freeze()
    return new


@dataclass(frozen=True)
class Ran:
    """What a DAG run did: the states of the run and its tasks, what tasks returned, and the errors that they failed with."""

    state: str
    tasks: dict[str, str]
    returned: dict[str, Any]
    errors: dict[str, BaseException] = field(default_factory=dict)


@pytest.fixture
def run_dag(airflow_database: Path) -> Callable[..., Ran]:
    """Give ``run`` a database."""
    return run


def run(dag: DAG, when: datetime | None = None) -> Ran:
    """Run a DAG for real: serialized into the database first (or a run cannot be made), then ``dag.test()``.

    With ``when``, running it a second time runs the same run again, as clearing it does.
    """
    errors: dict[str, BaseException] = {}

    def note(context: Any) -> None:
        errors[context["ti"].task_id] = context["exception"]

    for task in dag.tasks:
        task.on_failure_callback = [note]
    serialize(dag)
    dag_run = dag.test() if when is None else dag.test(logical_date=when, run_after=when)
    tasks = dag_run.get_task_instances()
    return Ran(str(dag_run.state), {task.task_id: str(task.state) for task in tasks}, _returned(dag.dag_id, dag_run.run_id), errors)


def serialize(dag: DAG) -> None:
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with create_session() as session:
        if session.get(DagBundleModel, "tests") is None:
            session.add(DagBundleModel(name="tests"))
            session.commit()
        SerializedDAG.bulk_write_to_db("tests", None, [dag], session=session)
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="tests", session=session)


def _returned(dag_id: str, run_id: str) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = select(XComModel).where(XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == "return_value")
        return {row.task_id: XComModel.deserialize_value(row) for row in session.scalars(wanted)}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests: what the tasks find running."""
    from airflow_poison.spark.session import get_session

    session = get_session("local[2]", {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of its end when pytest has closed its streams


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueStore:
    """A store of the test's own, behind the default connection."""
    from airflow_poison.store import open_store

    define_connection(monkeypatch, "poison_default", {"store": str(tmp_path / "store"), "spark": "local[2]"})
    return open_store(str(tmp_path / "store"))


def define_connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, extra: dict[str, Any], **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "poison", **fields, "extra": extra}))
