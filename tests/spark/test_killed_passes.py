"""Passes whose processes are really killed, in the middle of the stage: no success is repeated, no attempt forgotten, nothing lost."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.recovered import read_history
from airflow_poison.values.errors import SparkJobError
from tests.given.drivers import Ahead, Work, told

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import SparkSession

    from airflow_poison.passes.runs import ReceiveResult

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
MESSAGES = 600
BAD = range(7, MESSAGES, 10)
STRIKER = 101  # early in its task, so that much is left to do


def work(folder: Path, strike: str) -> Work:
    """A queue of two tasks; every tenth message fails always, one strikes once."""
    bodies = ["bad" if number in BAD else "good" for number in range(1, MESSAGES + 1)]
    bodies[STRIKER - 1] = strike
    return Work(str(folder / "store")).sent(bodies)


def in_flight(killed: Work) -> set[int]:
    """The messages that were with their handlers at a death, where they are several: no message is charged for it then."""
    return set(read_history(Path(killed.root, "orders", "_stage").glob("*/*/journal")).deaths)


def assert_each_received_once(done: Work, result: ReceiveResult, suspects: Collection[int] = ()) -> None:
    """The striker was charged for what it did, everybody else had exactly the deliveries that the policy says.

    :param suspects: those that were in flight when everything died, if there were several.

    One message of each other task may have been with its handler when everything died: returned and not recorded, or counted and
    delivered once more.
    """
    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(BAD), len(BAD))
    assert result.crashes == 0 if STRIKER in suspects else result.crashes >= 1
    assert sorted(done.rows()) == list(BAD)
    assert {(row["abort_count"], row["move_count"], row["sub_queue"]) for row in done.rows().values()} == {(0, 1, "poison")}
    assert done.table().snapshot().claims == ()
    expected = Counter(range(1, MESSAGES + 1)) + Counter([*BAD, STRIKER])
    calls = done.calls()
    assert set(calls) == set(expected)
    different = {number: calls[number] - expected[number] for number in expected if calls[number] != expected[number]}
    assert len(different) <= 1, different
    assert all(abs(more) == 1 for more in different.values())
    assert all(number in different or number == STRIKER for number, times in done.calls("done").items() if times > 1)


@pytest.fixture(params=["the same run", "another run after the lease"])
def rerun(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[[Work], ReceiveResult]:
    if request.param == "the same run":
        return lambda done: done.a_pass(spark).run("killed")
    return lambda done: done.a_pass(spark, Ahead()).run("another")


@pytest.mark.campaign
def test_a_pass_killed_with_all_its_processes_is_finished(tmp_path: Path, rerun: Callable[[Work], ReceiveResult]) -> None:
    killed = work(tmp_path, "all")
    driver = killed.start("killed")
    told(driver)
    assert driver.returncode == -signal.SIGKILL
    assert 0 < len(killed.calls()) < MESSAGES
    suspects = in_flight(killed)

    result = rerun(killed)

    assert_each_received_once(killed, result, suspects)


@pytest.mark.campaign
def test_a_pass_whose_jvm_was_killed_says_so_and_is_finished(tmp_path: Path, spark: SparkSession) -> None:
    killed = work(tmp_path, "jvm")

    said = told(killed.start("killed"))
    suspects = in_flight(killed)
    result = killed.a_pass(spark).run("killed")

    assert said["error"] == "SparkJobError"
    assert "its JVM has ended" in said["text"]
    assert "run the task again" in said["text"]
    assert_each_received_once(killed, result, suspects)


def test_a_pass_whose_python_worker_was_killed_says_so_and_is_finished(tmp_path: Path, spark: SparkSession) -> None:
    killed = work(tmp_path, "worker")

    with pytest.raises(SparkJobError, match="Python worker exited unexpectedly") as said:
        killed.a_pass(spark).run("killed")
    suspects = in_flight(killed)
    result = killed.a_pass(spark).run("killed")

    assert len(str(said.value).splitlines()) < 30
    assert "poison-heartbeat" not in {thread.name for thread in threading.enumerate()}
    assert_each_received_once(killed, result, suspects)


@pytest.mark.campaign
def test_a_driver_that_slept_while_its_claim_was_finished_commits_nothing(
    tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    slept = work(tmp_path, "stop")
    driver = slept.start("sleeper")
    request.addfinalizer(driver.kill)  # nobody else wakes it when the test fails
    _, status = os.waitpid(driver.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)

    result = slept.a_pass(spark, Ahead()).run("another")
    finished = slept.table().snapshot()
    os.kill(driver.pid, signal.SIGCONT)
    said = told(driver)

    assert said["error"] == "ClaimLostError"
    assert "This pass changes nothing" in said["text"] or "given up" in said["text"]
    assert slept.table().snapshot() == finished
    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(BAD), len(BAD))
    assert slept.calls() == Counter(range(1, MESSAGES + 1)) + Counter(BAD)
