"""A pass that is ended gives its claim up: the next one goes on at once, with every attempt that was made."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes import delivering
from airflow_poison.passes.browse import overview
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.spark.nodes import EVERY
from airflow_poison.spark.shares import GRACE_SECONDS
from airflow_poison.store.bucket_folder import BucketFolder
from airflow_poison.values.errors import ClaimLostError, ExecutorError, ReceiveStoppedError, SparkJobError, StoreUnreachableError
from tests.given.passes import LEASE, NO_RETRY, DiedError, DyingEngine, NoEngine, a_queue, calls, one_each
from tests.store.conftest import bucket_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.delivery.handlers import HandlerRef, Transformation
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.outputs.output import Output
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue
    from tests.given.points import AtPoint


@dataclass
class Ended(LocalEngine):
    """Delivers everything, and is ended before its outcome is staged."""

    by: BaseException
    first: Callable[[QueueTable, Claim], object] = field(default=lambda _table, _claim: None)

    def __call__(self) -> Ended:
        return self

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        super().run(table, claim, job, keep_alive=keep_alive)
        self.first(table, claim)
        raise self.by


@pytest.fixture
def mixed(queue: Queue) -> Queue:
    return queue.having(policy=NO_RETRY).sent("good", "bad", "good")


@pytest.mark.parametrize("by", [ReceiveStoppedError("asked"), SparkJobError("lost"), OSError("full"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_another_run_goes_on_at_once_and_repeats_nothing(mixed: Queue, by: BaseException) -> None:
    said: list[str] = []
    with pytest.raises(type(by)):
        mixed.receive("ended", engine=Ended(by), progress=said.append)

    seen = overview(mixed.table, mixed.clock)
    assert ([claim.given_up for claim in seen.claims], seen.expired_claims) == ([True], 0)

    result = mixed.receive("another")

    assert (result.received, result.settled, result.poisoned) == (3, 2, 1)
    assert calls(mixed.handler) == one_each(1, 3)
    assert any("given up" in line for line in said)


def test_an_interrupt_of_somebody_elses_kind_is_named(mixed: Queue) -> None:
    class TimeOut(BaseException):
        pass

    with pytest.raises(TimeOut):
        mixed.receive("ended", engine=Ended(TimeOut()), interrupts=(TimeOut,))

    assert mixed.receive("another").received == 3


def test_its_own_run_goes_on_with_it_and_receives_nothing_else(mixed: Queue) -> None:
    with pytest.raises(SparkJobError):
        mixed.receive("ended", engine=Ended(SparkJobError("lost")))
    mixed.sent("good")

    assert (mixed.receive("ended").received, mixed.receive("ended").received) == (3, 1)


def test_what_dies_gives_nothing_up(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=Ended(DiedError()))

    assert mixed.receive("another", engine=NoEngine()).received == 0
    mixed.clock.advance(LEASE)
    assert mixed.receive("another").received == 3


def test_a_claim_whose_journal_may_still_be_written_expires_by_itself(mixed: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "PATIENCE_SECONDS", 0.1)
    files = []

    def write_on(table: QueueTable, claim: Claim) -> None:
        for journal in Path(table.stage(claim), "journal").glob("*.journal"):
            files.append(journal.open("rb"))
            fcntl.flock(files[-1].fileno(), fcntl.LOCK_EX)

    with pytest.raises(ReceiveStoppedError):
        mixed.receive("ended", engine=Ended(ReceiveStoppedError("asked"), write_on))
    assert len(files) == 1

    assert mixed.receive("another", engine=NoEngine()).received == 0
    files[0].close()
    mixed.clock.advance(LEASE)
    assert mixed.receive("another").received == 3


class Apart(Ended):
    """Delivers on another node, which this process does not see."""

    local = False


def test_tasks_on_other_nodes_are_shut_out_and_the_next_run_waits_until_they_have_ended(tmp_path: Path) -> None:
    queue = a_queue(bucket_store(tmp_path), tmp_path).having(policy=NO_RETRY).sent("good", "bad", "good")
    zombies: list[Callable[[str, int, bytes], None]] = []

    def leave_one_behind(table: QueueTable, claim: Claim) -> None:
        share = table.sharing(claim)
        assert share is not None
        zombies.append(share)
        share("0-1.journal", 0, b"a section")

    with pytest.raises(SparkJobError):
        queue.receive("ended", engine=Apart(SparkJobError("lost"), leave_one_behind))

    with pytest.raises(ClaimLostError, match="shut out"):
        zombies[0]("0-1.journal", 9, b"the next section")
    assert queue.receive("another", engine=NoEngine()).received == 0
    queue.clock.advance(delivering.ENDED_WITHIN)
    assert queue.receive("another").received == 3
    assert queue.table.snapshot().claims == ()


def test_its_own_run_does_not_wait_for_tasks_on_other_nodes(tmp_path: Path) -> None:
    queue = a_queue(bucket_store(tmp_path), tmp_path).having(policy=NO_RETRY).sent("good", "bad", "good")
    with pytest.raises(KeyboardInterrupt):
        queue.receive("ended", engine=Apart(KeyboardInterrupt()))

    result = queue.receive("ended")

    assert (result.received, result.settled, result.poisoned) == (3, 2, 1)


def test_a_run_that_dies_between_shutting_its_tasks_out_and_giving_up_holds_nobody_up_for_longer(tmp_path: Path, at_point: AtPoint) -> None:
    queue = a_queue(bucket_store(tmp_path), tmp_path).having(policy=NO_RETRY).sent("good", "bad", "good")
    at_point.do("pass.release.after_close", _die)
    with pytest.raises(DiedError):
        queue.receive("ended", engine=Apart(SparkJobError("lost")))

    queue.clock.advance(LEASE)

    assert queue.receive("another").received == 3


def test_a_store_that_does_not_answer_leaves_the_claim_to_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose tasks could not be shut out keeps it, and what ended the pass is told."""
    queue = a_queue(bucket_store(tmp_path), tmp_path).having(policy=NO_RETRY).sent("good", "bad", "good")

    def fail(*_: object) -> None:
        raise StoreUnreachableError("no answer")

    with monkeypatch.context() as patch, pytest.raises(SparkJobError):
        queue.receive("ended", engine=Apart(SparkJobError("lost"), lambda *_: patch.setattr(BucketFolder, "close", fail)))

    queue.clock.advance(delivering.ENDED_WITHIN)
    assert queue.receive("another", engine=NoEngine()).received == 0
    queue.clock.advance(LEASE)
    assert queue.receive("another").received == 3


def test_who_waits_for_tasks_on_other_nodes_waits_longer_than_they_need() -> None:
    assert delivering.ENDED_WITHIN.total_seconds() > EVERY + GRACE_SECONDS


def _die() -> None:
    raise DiedError


def test_a_claim_that_was_lost_stays_with_whoever_has_it(mixed: Queue) -> None:
    def take(table: QueueTable, claim: Claim) -> None:
        assert table.take_over(claim, lease=LEASE, now=mixed.clock.now()) is not None

    with pytest.raises(SparkJobError):
        mixed.receive("ended", engine=Ended(SparkJobError("shut out"), take))

    assert mixed.table.expired(mixed.clock.now()) == []
    with pytest.raises(ClaimLostError):
        mixed.table.renew(_first_holder(mixed), lease=LEASE, now=mixed.clock.now())


def _first_holder(queue: Queue) -> Claim:
    [held] = queue.table.snapshot().claims
    return replace(held, epoch=1, attempt=held.earlier[0], earlier=())


class Unready(LocalEngine):
    """Its executors lack something."""

    asked = 0

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        Unready.asked += 1
        raise ExecutorError(f"cannot load {handler.name}")


def test_an_engine_that_cannot_deliver_says_so_before_anything_is_claimed(mixed: Queue) -> None:
    before = mixed.table.snapshot()

    with pytest.raises(ExecutorError, match="cannot load"):
        mixed.receive(engine=Unready)

    assert mixed.table.snapshot() == before


def test_an_engine_that_cannot_deliver_says_so_before_the_claim_of_a_dead_run_is_taken_over(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=DyingEngine)
    mixed.clock.advance(2 * LEASE)
    before = mixed.table.snapshot()

    for key in ("dead", "another"):
        with pytest.raises(ExecutorError, match="cannot load"):
            mixed.receive(key, engine=Unready)

    assert mixed.table.snapshot() == before


def test_the_engine_of_a_pass_is_made_once_however_many_claims_it_has(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=DyingEngine)
    mixed.clock.advance(2 * LEASE)
    made: list[LocalEngine] = []

    def engine() -> LocalEngine:
        made.append(LocalEngine())
        return made[-1]

    mixed.sent("good")
    assert mixed.receive("another", engine=engine).passes == 2
    assert len(made) == 1


def test_an_engine_is_not_asked_where_there_is_nothing_to_claim(queue: Queue) -> None:
    assert queue.receive(engine=NoEngine()).received == 0
    queue.sent("good")
    assert queue.table.claim("held", lease=LEASE, now=queue.clock.now(), max_messages=9) is not None
    assert queue.receive("another", engine=NoEngine()).received == 0


def test_a_file_that_is_gone_because_another_run_has_the_claim_is_told_as_that(mixed: Queue) -> None:
    def shut_out(table: QueueTable, claim: Claim) -> None:
        taken = table.take_over(claim, lease=LEASE, now=mixed.clock.now())
        assert taken is not None
        table.journals(taken)

    with pytest.raises(ClaimLostError, match="is not held any more"):
        mixed.receive("slept", engine=Ended(FileNotFoundError("carry"), shut_out))


def test_a_file_that_is_gone_from_a_claim_that_is_held_is_told_as_it_is(mixed: Queue) -> None:
    with pytest.raises(FileNotFoundError, match="of the handler"):
        mixed.receive("ended", engine=Ended(FileNotFoundError("of the handler")))
