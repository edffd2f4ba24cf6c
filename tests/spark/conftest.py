"""One Spark session for all tests of this folder, without tasks of an earlier test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark.session import get_session
from tests.given.drivers import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="session")
def spark_of_all_tests() -> Iterator[SparkSession]:
    session = get_session("local[2]", SMALL)
    yield session
    session.stop()


@pytest.fixture
def spark(spark_of_all_tests: SparkSession) -> SparkSession:
    """A cancelled job has ended for its driver before its tasks have: until then they hold the cores that this test counts on."""
    overdue = time.monotonic() + PATIENCE_SECONDS
    while running := _running_tasks(spark_of_all_tests):
        assert time.monotonic() < overdue, f"an earlier test has left {running} tasks of Spark running"
        time.sleep(0.05)
    return spark_of_all_tests


def _running_tasks(spark: SparkSession) -> int:
    """Return how many tasks the executors run: also those of jobs that are over, which Spark's Python API does not tell."""
    return sum(executor.numRunningTasks() for executor in spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())
