"""A pass that died is finished by whoever comes next: nothing that succeeded is repeated, no attempt is forgotten."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.engines import LocalEngine
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import ClaimLostError, ConservationError
from airflow_poison.values.schema import SubQueue
from tests.given.endpoints import broker, specification
from tests.given.passes import LEASE, NO_RETRY, DiedError, DyingEngine, NoEngine, calls, one_each

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

RETRIES = Msmq4(receive_retry_count=3, max_retry_cycles=0, receive_error_handling="Move")
POINTS = [
    "store.seal.before_rename",
    "store.seal.after_rename",
    "store.finish.before_links",
    "store.finish.after_links",
    "store.finish.before_commit",
]
WITH_A_MANIFEST = POINTS[1:]


def die() -> None:
    raise DiedError


@pytest.fixture
def mixed(queue: Queue) -> Queue:
    """Six messages, two of which fail whenever they are delivered."""
    return queue.having(policy=RETRIES).sent("good", "bad", "good", "good", "bad", "good")


def assert_received_once(queue: Queue) -> None:
    assert calls(queue.handler) == one_each(1, 6) + Counter({2: 3, 5: 3})
    assert sorted(queue.rows()) == sorted(queue.rows(SubQueue.POISON)) == [2, 5]
    assert [queue.counts(number) for number in (2, 5)] == [(0, 1), (0, 1)]
    snapshot = queue.table.snapshot()
    assert (snapshot.claims, snapshot.outbox) == ((), ())


@pytest.mark.parametrize("point", POINTS)
def test_a_pass_that_died_is_finished_by_its_own_run_key(mixed: Queue, at_point: AtPoint, point: str) -> None:
    at_point.do(point, die)
    with pytest.raises(DiedError):
        mixed.receive()

    result = mixed.receive()

    assert (result.received, result.settled, result.poisoned, result.rollbacks, result.deliveries) == (6, 4, 2, 8, 12)
    assert_received_once(mixed)


def test_a_pass_says_which_messages_a_pass_that_died_still_holds(mixed: Queue, at_point: AtPoint) -> None:
    at_point.do("store.seal.before_rename", die)
    with pytest.raises(DiedError):
        mixed.receive()

    result = mixed.receive("another")

    [claim] = mixed.table.snapshot().claims
    assert (result.received, result.held, result.held_until) == (0, 6, claim.expires_at.isoformat())
    mixed.receive()
    assert mixed.receive("another").held == 0


@pytest.mark.parametrize("point", WITH_A_MANIFEST)
def test_a_sealed_pass_is_finished_without_an_engine(mixed: Queue, at_point: AtPoint, point: str) -> None:
    at_point.do(point, die)
    with pytest.raises(DiedError):
        mixed.receive()

    assert mixed.receive(engine=NoEngine()).received == 6


def test_a_pass_that_died_behind_its_commit_is_not_done_again(mixed: Queue, at_point: AtPoint) -> None:
    at_point.do("store.finish.after_commit", die)
    with pytest.raises(DiedError):
        mixed.receive()

    assert mixed.receive(engine=NoEngine()).received == 0
    assert_received_once(mixed)


@pytest.mark.parametrize("point", POINTS)
def test_a_pass_that_halted_and_died_still_halts(queue: Queue, at_point: AtPoint, point: str) -> None:
    queue.sent("good", "bad", "good")
    at_point.do(point, die)
    policy = replace(NO_RETRY, receive_error_handling="Fault")
    with pytest.raises(DiedError):
        queue.receive(policy=policy)

    result = queue.receive(policy=policy)

    assert queue.table.snapshot().control.state is QueueState.FAULTED
    assert (result.settled, result.halted_messages, result.untouched) == (1, 1, 1)
    assert calls(queue.handler) == one_each(1, 2)


ENDPOINTS = {
    "ActivationSpecification": specification(2, failures=1),
    "ServiceBroker": broker(2, rollback_limit=1),
    "ServiceBroker, groups": broker(1, rollback_limit=1, scope="conversation_group"),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_endpoint_that_halted_and_died_still_halts_and_tells_the_same(queue: Queue, at_point: AtPoint, name: str, point: str) -> None:
    """Also where everything that it had staged is lost, and only its journals are left (the first point)."""
    policy = ENDPOINTS[name]
    queue.sent("bad", "good", "good", "good")
    at_point.do(point, die)
    with pytest.raises(DiedError):
        queue.receive(policy=policy)
    delivered = calls(queue.handler)

    result = queue.receive(policy=policy)

    assert calls(queue.handler) == delivered
    assert queue.table.snapshot().control.state.value == policy.halts_as.value
    assert (result.halted_messages, result.settled + result.untouched) == (1, 3)
    (halt,) = [event for event in queue.table.events() if event.type.value in {"STOPPED", "QUEUE_DISABLED"}]
    assert halt.lookup_id == 1
    assert {"code", "text"} <= set(halt.details) or "<EVENT_INSTANCE" in halt.details["document"]


def test_wmq_8_the_counter_goes_over_passes_but_not_over_a_dead_one(queue: Queue, at_point: AtPoint) -> None:
    """Two failures in a row in the first pass. The third would stop the endpoint; it comes when a dead pass is resumed, which counts anew."""
    policy = specification(1, failures=3, backout_threshold=2)
    queue.sent("bad").receive("first", policy=policy)
    assert queue.table.snapshot().control.endpoint_counters == {"sequential_failures": 2}

    at_point.do("delivery.stage.before_batch", die)
    with pytest.raises(DiedError):
        queue.sent("bad").receive("second", policy=policy)
    result = queue.receive("second", policy=policy)

    assert result.halted is None
    assert calls(queue.handler) == Counter({1: 2, 2: 2})
    assert queue.table.snapshot().control.endpoint_counters == {"sequential_failures": 2}


def test_wmq_8_without_a_death_the_third_failure_stops_it(queue: Queue) -> None:
    policy = specification(1, failures=3, backout_threshold=2)
    queue.sent("bad").receive("first", policy=policy)

    result = queue.sent("bad").receive("second", policy=policy)

    assert result.halted is not None
    assert result.counters == {"sequential_failures": 3}
    assert calls(queue.handler) == Counter({1: 2, 2: 1})


def test_what_was_delivered_before_the_outcome_was_staged_is_not_delivered_again(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive(engine=DyingEngine)

    mixed.receive()

    assert_received_once(mixed)


def test_a_pass_that_dies_again_and_again_loses_nothing(mixed: Queue) -> None:
    for _ in range(4):
        with pytest.raises(DiedError):
            mixed.receive(engine=DyingEngine)

    mixed.receive()

    assert_received_once(mixed)


def test_another_run_waits_for_the_lease(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=DyingEngine)
    mixed.clock.advance(LEASE - timedelta(seconds=1))

    assert mixed.receive("another", engine=NoEngine()).received == 0


def test_another_run_takes_over_and_then_receives_for_itself(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=DyingEngine)
    mixed.sent("good")
    mixed.clock.advance(LEASE)

    result = mixed.receive("another")

    assert (result.passes, result.received, result.settled, result.poisoned) == (2, 7, 5, 2)
    assert calls(mixed.handler) == one_each(1, 7) + Counter({2: 3, 5: 3})


def test_after_a_takeover_the_dead_run_finds_nothing_left(mixed: Queue) -> None:
    with pytest.raises(DiedError):
        mixed.receive("dead", engine=DyingEngine)
    mixed.clock.advance(LEASE)
    mixed.receive("another")

    assert mixed.receive("dead", engine=NoEngine()).received == 0
    assert_received_once(mixed)


def test_a_halt_that_was_taken_over_ends_the_run(queue: Queue) -> None:
    policy = replace(NO_RETRY, receive_error_handling="Fault")
    with pytest.raises(DiedError):
        queue.sent("bad").receive("dead", policy=policy, engine=DyingEngine)
    queue.sent("good").clock.advance(LEASE)

    result = queue.receive("another", policy=policy)

    assert (result.passes, result.received) == (1, 1)
    assert calls(queue.handler) == {1: 1}


@pytest.mark.parametrize("point", ["store.seal.before_rename", "store.finish.before_links", "store.finish.after_links", "store.finish.before_commit"])
def test_a_pass_that_lost_its_claim_commits_nothing(mixed: Queue, at_point: AtPoint, point: str) -> None:
    """It slept at this point while another one became the holder."""

    def lose() -> None:
        mixed.clock.advance(LEASE)
        (claim,) = mixed.table.expired(mixed.clock.now())
        assert mixed.table.take_over(claim, lease=LEASE, now=mixed.clock.now()) is not None

    at_point.do(point, lose)

    with pytest.raises(ClaimLostError, match="not held any more"):
        mixed.receive("sleeper")

    assert sorted(mixed.rows(SubQueue.MAIN)) == [1, 2, 3, 4, 5, 6]
    assert [name for name, _ in mixed.happened() if name == "MOVED_POISON"] == []


@pytest.mark.parametrize("point", ["store.seal.before_rename", "store.finish.before_links", "store.finish.after_links", "store.finish.before_commit"])
def test_a_pass_whose_claim_was_finished_by_another_one_changes_nothing_more(mixed: Queue, at_point: AtPoint, point: str) -> None:
    def be_overtaken() -> None:
        mixed.clock.advance(LEASE)
        assert mixed.receive("another").received == 6

    at_point.do(point, be_overtaken)

    with suppress(ClaimLostError):  # sealed before it slept, it may also find its work done
        mixed.receive("sleeper")

    assert_received_once(mixed)
    assert [name for name, _ in mixed.happened()].count("MOVED_POISON") == 2


def test_a_lost_claim_ends_the_delivery(mixed: Queue) -> None:
    class Overtaken(LocalEngine):
        def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
            mixed.clock.advance(LEASE)
            assert table.take_over(claim, lease=LEASE, now=mixed.clock.now()) is not None
            super().run(table, claim, job, keep_alive=keep_alive)

    with pytest.raises(ClaimLostError):
        mixed.receive("sleeper", engine=Overtaken)

    assert calls(mixed.handler) == {}


def test_a_renewed_claim_is_the_one_that_is_finished(mixed: Queue) -> None:
    """The pass takes three leases; nobody else can have its claim."""

    class Slow(LocalEngine):
        def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
            for _ in range(9):
                mixed.clock.advance(LEASE / 3)
                keep_alive()
                assert table.expired(mixed.clock.now()) == []
            super().run(table, claim, job, keep_alive=keep_alive)

    assert mixed.receive(engine=Slow).received == 6
    assert_received_once(mixed)


def cut(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def double(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([rows.slice(0, 1), rows])


@pytest.mark.parametrize("spoil", [cut, double])
@pytest.mark.parametrize("where", ["in", "out"])
def test_an_engine_that_loses_or_doubles_a_message_commits_nothing(mixed: Queue, spoil: Callable[[pa.Table], pa.Table], where: str) -> None:
    class Spoilt:
        """The table as a broken engine sees it."""

        def __init__(self, table: QueueTable) -> None:
            self._table = table

        def bring(self, files: object) -> None:
            self._table.bring(files)  # type: ignore[arg-type]  # handed through

        def read(self, file: object) -> pa.Table:
            rows: pa.Table = self._table.read(file)  # type: ignore[arg-type]  # handed through
            return spoil(rows) if where == "in" else rows

        def stage_table(self, claim: Claim, rows: pa.Table) -> None:
            self._table.stage_table(claim, spoil(rows) if where == "out" else rows)

    class Broken(LocalEngine):
        def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
            super().run(Spoilt(table), claim, job, keep_alive=keep_alive)  # type: ignore[arg-type]  # as much as is used

    before = mixed.table.snapshot().files

    with pytest.raises(ConservationError, match=r"claimed 6 messages.*Nothing was committed"):
        mixed.receive(engine=Broken)

    assert mixed.table.snapshot().files == before


def test_a_pass_can_be_finished_under_a_policy_with_fewer_attempts(queue: Queue) -> None:
    with pytest.raises(DiedError):
        queue.sent("bad", "good").receive(policy=RETRIES, engine=DyingEngine)

    result = queue.receive(policy=NO_RETRY)

    assert (result.poisoned, result.settled) == (1, 1)
    assert queue.counts(1) == (0, 1)
    assert calls(queue.handler) == Counter({1: 4, 2: 1})


def test_a_pass_can_be_finished_under_a_policy_with_more_attempts(queue: Queue) -> None:
    with pytest.raises(DiedError):
        queue.sent("bad", "good").receive(policy=NO_RETRY, engine=DyingEngine)

    result = queue.receive(policy=RETRIES)

    assert (result.untouched, result.settled) == (1, 1)
    assert queue.counts(1) == (1, 0), "the attempt is not forgotten"
