"""A few varied scripts of every system, drawn at random: Spark passes with real child processes do what the replay does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.core.policies import SYSTEMS
from airflow_poison.core.spark.engine import SparkEngine
from airflow_poison.core.store import open_store
from tests.conformance.agreement import assert_agree, keeps_order, replayed
from tests.conformance.passes import Player
from tests.unit.properties.varied import varied_examples

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("system", SYSTEMS)
def test_passes_on_spark_do_what_the_replay_does(system: str, spark: SparkSession, tmp_path: Path) -> None:
    for number, example in enumerate(varied_examples(system, most=3, in_tasks=True, most_passes=5)):
        folder = tmp_path / str(number)
        folder.mkdir()

        played = Player(example, open_store(str(folder / "store")), lambda: SparkEngine(spark), folder, isolation="process").play()

        one_at_a_time = example.policy.server_sessions == 1
        assert_agree(replayed(example), played, in_order=keeps_order(example) and one_at_a_time)
