"""The same passes on ``local[2]``, on a real standalone cluster with two workers, and on a real Spark Connect server."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.due import return_due
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import ClaimLostError, ReceiveStoppedError, SparkJobError
from tests.given.drivers import POLICY, told
from tests.given.endpoints import specification
from tests.spark.grouped import Grouped
from tests.spark.places.place import CONNECT, LOCAL
from tests.spark.places.task import BAD, MESSAGES, Task, bodies, cycles, gateway_is_there, until_gone, what_this_process_has

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.places.place import Place


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def test_what_fails_is_retried_parked_returned_and_poisoned_and_the_rest_is_settled(place: Place, root: str) -> None:
    task = Task(root, cycles(1)).sent(bodies())

    first = place.call(task.receive, "first")
    returned = return_due(task.table(), SystemClock())
    second = place.call(task.receive, "second")

    assert (first.received, first.settled, first.parked, first.deliveries) == (MESSAGES, MESSAGES - len(BAD), len(BAD), MESSAGES + len(BAD))
    assert returned.returned == len(BAD)
    assert (second.received, second.poisoned, second.rollbacks) == (len(BAD), len(BAD), 2 * len(BAD))
    assert task.calls() == Counter(range(1, MESSAGES + 1)) + Counter([*BAD] * 3)
    assert {row["sub_queue"] for row in task.rows().values()} == {"poison"}


def test_a_handler_that_ends_its_process_is_charged_alone(place: Place, root: str) -> None:
    task = Task(root).sent(bodies(exit=20, segfault=120, kill=220))

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned, result.crashes) == (MESSAGES - len(BAD) - 3, len(BAD) + 3, 6)
    assert task.calls() == Counter(range(1, MESSAGES + 1)) + Counter([*BAD, 20, 120, 220])
    kinds = Counter(row["last_error"]["kind"] for row in task.rows().values())  # type: ignore[index]  # a struct
    assert kinds == {"exception": len(BAD), "crash": 3}


def test_the_message_that_kills_its_executor_is_charged_alone(place: Place, root: str) -> None:
    """A cluster starts the executor and the task again; where all tasks run in one process, the next run goes on."""
    local = place.where.name == LOCAL
    task = Task(root).sent(bodies(**{"worker" if local else "jvm": 101}))

    if local:
        with pytest.raises(SparkJobError, match="Python worker exited"):
            place.call(task.receive, "run")
    result = place.call(task.receive, "run")

    assert (result.received, result.settled, result.poisoned, result.crashes) == (MESSAGES, MESSAGES - len(BAD), len(BAD), 1)
    repeated = task.calls() - Counter(range(1, MESSAGES + 1)) - Counter(BAD)
    assert repeated[101] == 1
    assert len(repeated) <= 2, "at most one more, of the other task of a process that was killed"
    assert {row["crash_count"] for row in task.rows().values()} == {0}


def test_a_killed_driver_leaves_what_the_next_run_goes_on_with(place: Place, root: str) -> None:
    task = Task(root).sent(bodies(driver=101))
    driver = place.where.start("tests.spark.places.drive", root, "killed")
    told(driver)
    assert driver.returncode == -signal.SIGKILL

    result = place.call(task.receive, "killed")

    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(BAD), len(BAD))
    assert sorted(task.rows()) == list(BAD)
    different = task.calls() - Counter(range(1, MESSAGES + 1)) - Counter(BAD)
    assert set(task.calls()) == set(range(1, MESSAGES + 1))
    assert sum(different.values()) <= 3, different
    assert task.table().snapshot().claims == ()


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_what_a_server_goes_on_with_after_its_client_was_killed_is_shut_out_by_the_next_run(place: Place, root: str) -> None:
    """The handler hangs: only the fence ends it (``GRACE_SECONDS`` later), and the next run waits for that."""
    task = Task(root, replace(POLICY, transaction_timeout=timedelta(minutes=5))).sent(["good", "linger", "good"])
    driver = place.where.start("tests.spark.places.drive", root, "killed")
    handlers = task.until_lingering()
    driver.kill()
    told(driver)

    receiving = place.begin(task.receive, "killed")
    until_gone(handlers)
    task.go_on()

    result = receiving.result()
    assert (result.received, result.settled) == (3, 3)
    assert task.calls() == Counter({1: 1, 2: 2, 3: 1})


def test_a_queue_in_one_order_is_received_in_it_and_halts_where_it_must(place: Place, root: str) -> None:
    fault = replace(POLICY, receive_error_handling="Fault")
    good = ["good"] * 80
    task = Task(root, fault).sent([*good[:60], "bad", *good[:19]], priorities=[number % 3 for number in range(80)])

    result = place.call(task.receive, "run")

    in_order = sorted(range(1, 81), key=lambda number: (-((number - 1) % 3), number))
    reached = in_order[: in_order.index(61) + 1]
    assert task.order() == [*reached, 61]
    assert (result.settled, result.halted_messages, result.untouched) == (len(reached) - 1, 1, 80 - len(reached))
    assert task.table().snapshot().control.state is QueueState.FAULTED


def test_every_conversation_group_is_in_one_task_and_in_its_order(place: Place, root: str) -> None:
    names = [f"g{number % 6}" for number in range(120)]
    words = ["twice" if number % 9 == 0 else "ok" for number in range(120)]
    handler = Grouped(root)
    policy = ServiceBroker(scope="conversation_group", max_queue_readers=2)
    task = Task(root, policy, handler).sent(words, groups=names)

    result = place.call(task.receive, "run")

    assert (result.received, result.settled) == (120, 120)
    deliveries = handler.deliveries()
    for name in set(names):
        mine = [call.number for call in deliveries if call.group == name]
        assert mine == sorted(mine)
        assert len({call.task for call in deliveries if call.group == name}) == 1
    assert len({call.task for call in deliveries}) == 2


def test_a_system_that_counts_over_messages_stops_at_its_limit(place: Place, root: str) -> None:
    policy = specification(1, failures=3, backout_threshold=2)
    task = Task(root, policy).sent(["good", "bad", "good", "bad", "bad", "good"])

    result = place.call(task.receive, "run")

    assert result.halted is not None
    assert result.halted["how"] == "stopped"
    assert task.table().snapshot().control.state is QueueState.STOPPED
    assert result.counters == {"sequential_failures": 3}


def test_a_lost_claim_ends_the_job_and_its_handlers(place: Place, root: str) -> None:
    task = Task(root, replace(POLICY, transaction_timeout=timedelta(minutes=5)), lease=timedelta(seconds=3)).sent(["good", "linger", "good"])
    receiving = place.begin(task.receive, "loser")
    handlers = task.until_lingering()

    table = task.table()
    [claim] = table.snapshot().claims
    assert table.take_over(claim, lease=timedelta(minutes=2), now=SystemClock().now()) is not None

    with pytest.raises(ClaimLostError):
        receiving.result()
    until_gone(handlers)
    assert [held.epoch for held in table.snapshot().claims] == [2]


def test_a_pass_that_is_stopped_ends_its_job_and_any_other_goes_on_at_once(place: Place, root: str) -> None:
    task = Task(root, replace(POLICY, transaction_timeout=timedelta(minutes=5))).sent(["good", "linger", "good"])
    with pytest.raises(ReceiveStoppedError):
        place.call(task.receive_until_stopped, "stopped")
    until_gone(task.until_lingering())

    task.go_on()
    result = place.call(task.receive, "another")

    charged = 1 if place.where.name == LOCAL else 0  # elsewhere a machine may have been lost with its marks: it is delivered alone instead
    assert (result.received, result.settled, result.crashes) == (3, 3, charged)
    assert task.calls() == Counter({1: 1, 2: 2, 3: 1})


def test_no_jvm_is_started_where_there_is_a_server_and_no_grpc_where_there_is_none(place: Place, root: str) -> None:
    assert place.call(Task(root).sent(["good"]).receive, "run").settled == 1

    children, imported = place.call(what_this_process_has)

    remote = place.where.name == CONNECT
    assert ("java" in children) == (not remote)
    assert bool(imported) == remote
    assert place.call(gateway_is_there) == (not remote)
