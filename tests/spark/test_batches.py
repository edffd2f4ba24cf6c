"""Handlers of batches on Spark: tasks side by side, each with its frames, and exactly the culprits are charged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.handlers import Batching
from tests.given.drivers import Work

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
MESSAGES = 4_000
CULPRITS = {41: "raise", 1000: "kill", 1001: "named", 2500: "hang", 3999: "kill"}


@pytest.mark.campaign
def test_exactly_the_culprits_are_charged(tmp_path: Path, spark: SparkSession) -> None:
    work = Work(str(tmp_path / "store")).sent([CULPRITS.get(number, "good") for number in range(1, MESSAGES + 1)])
    receiving = replace(work.a_pass(spark), handler="tests.sessions.frame_handlers:script", batching=Batching("arrow", 1_500))

    result = receiving.run("run")

    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(CULPRITS), len(CULPRITS))
    assert (result.rollbacks, result.crashes, result.timeouts) == (10, 6, 2)
    kinds = {number: row["last_error"]["kind"] for number, row in work.rows().items()}  # type: ignore[index]  # a struct
    assert kinds == {number: {"raise": "exception", "named": "exception", "hang": "timeout"}.get(what, "crash") for number, what in CULPRITS.items()}
    assert result.rows_handed >= MESSAGES
