"""A few varied scripts of every system, drawn at random: passes in turn on Spark and here, with real child processes, do what the replay does."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.engines import SupervisedEngine
from airflow_poison.rules import SYSTEMS
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.store import open_store
from tests.conformance.agreement import assert_agree, keeps_order, replayed
from tests.conformance.passes import Player
from tests.unit.properties.varied import varied_examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_poison.passes.engines import Engine


@pytest.fixture
def engine(spark: SparkSession) -> Callable[[], Engine]:
    """One pass is delivered on Spark, the next one here, as one that is small."""
    here = cycle([False, True])
    return lambda: SupervisedEngine() if next(here) else SparkEngine(spark)


@pytest.mark.campaign
@pytest.mark.parametrize("system", SYSTEMS)
def test_passes_do_what_the_replay_does(system: str, engine: Callable[[], Engine], tmp_path: Path) -> None:
    for number, example in enumerate(varied_examples(system, most=3, in_tasks=True, most_passes=5)):
        folder = tmp_path / str(number)
        folder.mkdir()

        played = Player(example, open_store(str(folder / "store")), engine, folder, isolation="process").play()

        one_at_a_time = example.policy.server_sessions == 1
        assert_agree(replayed(example), played, in_order=keeps_order(example) and one_at_a_time)
