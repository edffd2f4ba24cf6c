"""What a pass does behind a death at which several messages were in flight: they come first, alone; or everything comes one by one, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery import platform
from airflow_poison.delivery.journal import Journal, MessageState, word
from airflow_poison.delivery.stage import Order
from airflow_poison.passes.engines import LocalEngine
from tests.given.endpoints import broker, specification
from tests.given.passes import NO_RETRY, DiedError, calls, one_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue

SUSPECTS = (2, 4)


@dataclass
class DyingTasks(LocalEngine):
    """Leaves the journals of tasks that have died, each with a message in its hands."""

    words: Mapping[int, int]
    local: bool = True

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        for number, value in self.words.items():
            with Journal(Path(job.journal_folder), str(number)) as journal:
                journal.append(np.array([number], np.int64), np.array([value], np.int32))
        raise DiedError


@dataclass
class Watched(LocalEngine):
    """Notes what it is told to do."""

    jobs: list[StageJob] = field(default_factory=list)

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        self.jobs.append(job)
        super().run(table, claim, job, keep_alive=keep_alive)


@pytest.fixture
def engine() -> Watched:
    return Watched()


def die(queue: Queue, words: Mapping[int, int]) -> None:
    with pytest.raises(DiedError):
        queue.receive(engine=lambda: DyingTasks(words))


def order_of_calls(queue: Queue) -> list[int]:
    return [int(line.split()[1]) for line in Path(queue.handler.calls).read_text().splitlines() if line.startswith("call")]


def test_suspects_come_first_alone_and_then_everything_as_usual(queue: Queue, engine: Watched) -> None:
    queue = queue.having(policy=NO_RETRY).sent("good", "good", "good", "bad", "good")
    die(queue, dict.fromkeys(SUSPECTS, word(MessageState.IN_FLIGHT)))

    result = queue.receive(engine=lambda: engine)

    assert [(job.only, job.singly, job.forced) for job in engine.jobs] == [(SUSPECTS, True, True), ((), False, False)]
    assert order_of_calls(queue) == [2, 4, 1, 3, 5]
    assert (result.received, result.settled, result.poisoned, result.rollbacks, result.crashes) == (5, 4, 1, 1, 0)
    assert queue.rows()[4]["crash_count"] == 0


def test_the_only_one_in_flight_is_charged_and_comes_first_alone_too(queue: Queue, engine: Watched) -> None:
    queue = queue.having(policy=NO_RETRY.altered({"receive_retry_count": 1})).sent("good", "good", "good")
    die(queue, {3: word(MessageState.IN_FLIGHT)})

    result = queue.receive(engine=lambda: engine)

    assert [job.only for job in engine.jobs] == [(3,), ()]
    assert order_of_calls(queue) == [3, 1, 2]
    assert (result.settled, result.rollbacks, result.crashes) == (3, 1, 1)


@pytest.mark.parametrize("policy", [specification(3), broker(3), broker(1, scope="conversation_group")], ids=lambda policy: policy.system)
def test_where_order_is_promised_everything_comes_one_by_one_in_order(queue: Queue, engine: Watched, policy: Policy) -> None:
    queue = queue.having(policy=policy).sent(*["good"] * 5)
    die(queue, dict.fromkeys(SUSPECTS, word(MessageState.IN_FLIGHT)))

    result = queue.receive(engine=lambda: engine)

    assert [(job.only, job.singly, job.order) for job in engine.jobs] == [((), True, Order.QUEUE)]
    assert order_of_calls(queue) == [1, 2, 3, 4, 5]
    assert (result.settled, result.crashes) == (5, 0)


def test_an_ordinary_pass_is_one_run_that_forces_nothing(queue: Queue, engine: Watched) -> None:
    queue.sent("good").receive(engine=lambda: engine)

    assert [(job.only, job.alone, job.singly, job.forced) for job in engine.jobs] == [((), (), False, False)]


def test_timeouts_of_the_tries_before_are_in_the_result(queue: Queue) -> None:
    """Those of the message that is delivered alone, too. Inline nothing ends a handler, so the log is written here."""
    from airflow_poison.delivery.failurelog import FailureLog, Rollback
    from airflow_poison.values.failures import Failure, FailureKind

    queue = queue.having(policy=NO_RETRY.altered({"receive_retry_count": 3})).sent("good", "good")
    die(queue, {1: word(MessageState.TIMED_OUT, 2, 2)})
    (log,) = Path(queue.table.root).glob("_stage/*/*/journal/*.log")
    with log.open("ab") as file:
        for attempts in range(2):
            FailureLog(file.fileno()).append(Rollback(0, 0, 1, attempts, Failure(FailureKind.TIMEOUT, "transaction timeout")))

    result = queue.receive()

    assert (result.settled, result.rollbacks, result.crashes, result.timeouts) == (2, 2, 2, 2)


@pytest.mark.parametrize(("local", "journals", "careful"), [(True, {1: 0}, False), (False, {1: 0}, True), (False, {}, False)])
def test_a_driver_that_lives_takes_its_note_back_unless_another_machine_may_have_been_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, local: bool, journals: Mapping[int, int], careful: bool
) -> None:
    """Then such tries are none of those that make the next one careful. A message that a lost machine had alone is charged where all see that."""
    machines = iter(range(100))
    monkeypatch.setattr(platform, "machine", lambda: f"machine {next(machines)}")
    queue = queue.sent(*["good"] * 3)
    for _ in range(2):
        with pytest.raises(DiedError):
            queue.receive(engine=lambda: DyingTasks(journals, local=local))
    engine = Watched()

    queue.receive(engine=lambda: engine)

    alone = careful and bool(queue.table.node)
    assert [(job.only, job.forced) for job in engine.jobs] == [*([((1,), True)] if alone else []), ((), careful and not alone)]
    assert calls(queue.handler) == one_each(2 if alone else 1, 3)
