"""Handlers that do everything wrong, thousands of messages in one pass: the culprits are charged, everybody else is settled once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark.jobs import readable_error
from airflow_poison.values.errors import ServerSessionError, SparkJobError
from tests.given.drivers import Work

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
MESSAGES = 4_000
CULPRITS = {40: "bad", 41: "exit", 1000: "kill", 1001: "kill", 1700: "segfault", 2500: "hang", 2501: "bad", 3999: "exit"}
LOUD = (42, 1002, 2502)


@pytest.mark.campaign
def test_exactly_the_culprits_are_charged(tmp_path: Path, spark: SparkSession) -> None:
    bodies = [CULPRITS.get(number, "print" if number in LOUD else "good") for number in range(1, MESSAGES + 1)]
    work = Work(str(tmp_path / "store")).sent(bodies)

    result = work.a_pass(spark).run("run")

    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(CULPRITS), len(CULPRITS))
    assert (result.rollbacks, result.crashes, result.timeouts) == (16, 12, 2)
    assert work.calls() == Counter(range(1, MESSAGES + 1)) + Counter(list(CULPRITS))
    assert work.calls("done") == Counter(set(range(1, MESSAGES + 1)) - set(CULPRITS))
    kinds = {number: row["last_error"]["kind"] for number, row in work.rows().items()}  # type: ignore[index]  # a struct
    assert kinds == {number: {"bad": "exception", "hang": "timeout"}.get(what, "crash") for number, what in CULPRITS.items()}


TASK = """Job aborted due to stage failure: Task 0 failed 1 times: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "engine.py", line 51, in deliver
    yield from deliver_partition(job, str(number), read_share(shares[number]))
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:645)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


def test_an_error_of_ours_comes_out_of_the_job_as_it_was() -> None:
    error = readable_error(Exception(TASK.format(raised="airflow_poison.values.errors.ServerSessionError: It ended.\nLast output: x")), "run")

    assert (type(error), str(error)) == (ServerSessionError, "It ended.\nLast output: x")


@pytest.mark.parametrize(
    ("raised", "why"),
    [("OSError: [Errno 28] No space left", "failed: OSError: [Errno 28] No space left\n"), ("AssertionError", "failed: AssertionError\n")],
)
def test_other_errors_come_with_the_next_step(raised: str, why: str) -> None:
    error = readable_error(Exception(TASK.format(raised=raised)), "run")

    assert isinstance(error, SparkJobError)
    assert why in str(error)
    assert "\tat " not in str(error)
    assert "run the task again" in str(error)
