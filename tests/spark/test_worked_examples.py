"""The main worked examples of every system, through real Spark passes on real queue tables, each handler in a child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store import open_store
from tests.conformance.agreement import assert_as_the_example_says, keeps_order
from tests.conformance.main_examples import MAIN
from tests.conformance.passes import Player

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.conformance.examples.shape import Example


@pytest.mark.parametrize("example", MAIN, ids=lambda example: example.id)
def test_worked_example_on_spark(example: Example, spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))

    played = Player(example, store, lambda: SparkEngine(spark), tmp_path, isolation="process").play()

    one_at_a_time = example.policy.server_sessions == 1
    assert_as_the_example_says(example, played, in_order=keeps_order(example) and one_at_a_time)
