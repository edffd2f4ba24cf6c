"""What a restart of the endpoint, its host or the broker takes from a queue, and what stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import restart
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.policy import Restart
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import BLOCKED_BY, BLOCKED_UNTIL, NOT_BEFORE_RESTART, QueueState
from airflow_poison.store.files import Replacement
from airflow_poison.values.errors import MessageClaimedError
from airflow_poison.values.failures import FailureKind
from airflow_poison.values.schema import SubQueue, table_schema
from tests.given.passes import LEASE, DiedError, DyingEngine, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

SUBSCRIBED = {"told:alert:us": 7, "telling:alert:us": 9}
ZOS = ActivationSpecification(stop_endpoint_if_delivery_fails=False, zos=True)
HARDENED = ActivationSpecification(stop_endpoint_if_delivery_fails=False, zos=True, harden_get_backout=True)


@pytest.fixture
def under(store: QueueStore, tmp_path: Path) -> Callable[[Policy], Queue]:
    return lambda policy: a_queue(store, tmp_path, policy)


def put(queue: Queue, **cells: object) -> None:
    """Change the control row behind the verbs' back."""
    queue.table.alter(lambda control: replace(control, **cells))  # type: ignore[arg-type]  # the names are the fields'


def counted(queue: Queue, *abort_counts: int, place: str = "main", error: FailureKind | None = None) -> Queue:
    """Send messages and give them these abort counts, in one file of a sub-queue."""
    known = {file.path for file in queue.table.snapshot().files}
    queue.sent(*("good" for _ in abort_counts))
    [file] = [file for file in queue.table.snapshot().files if file.path not in known]
    cells = {"sub_queue": place, "last_error": None if error is None else {"kind": error.value}, "due_at": queue.clock.now() + LEASE}
    rows = [row | cells | {"abort_count": count} for row, count in zip(queue.table.read(file).to_pylist(), abort_counts, strict=True)]
    queue.table.replace_files([Replacement(file, pa.Table.from_pylist(rows, schema=table_schema()))], [])
    return queue


def control(queue: Queue) -> Control:
    return queue.table.snapshot().control


def abort_counts(queue: Queue, place: SubQueue | None = None) -> list[object]:
    return [row["abort_count"] for _, row in sorted(queue.rows(place).items())]


# Counters of the endpoint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "left"), [(Restart.ENDPOINT, {"rollbacks": 4}), (Restart.SERVER, {}), (Restart.BROKER, {})])
def test_sb_7_the_counter_is_in_memory_and_subscriptions_are_not(under: Callable[[Policy], Queue], what: Restart, left: dict[str, int]) -> None:
    queue = under(ServiceBroker())
    put(queue, counters=SUBSCRIBED | {"rollbacks": 4})
    assert dict(restart(queue.table, queue.clock, what).counters) == left
    assert dict(control(queue).counters) == SUBSCRIBED | left


@pytest.mark.parametrize(("what", "left"), [(Restart.ENDPOINT, 2), (Restart.SERVER, 0), (Restart.BROKER, 2)])
def test_wmq_8_zos_8_the_counter_lives_in_the_application_server(under: Callable[[Policy], Queue], what: Restart, left: int) -> None:
    queue = under(ActivationSpecification(failure_delivery_count=9, backout_threshold=0))
    put(queue, counters={"sequential_failures": 2})
    restart(queue.table, queue.clock, what)
    assert control(queue).counters.get("sequential_failures", 0) == left


# State --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [Restart.ENDPOINT, Restart.SERVER])
@pytest.mark.parametrize("state", [QueueState.STOPPED, QueueState.FAULTED])
def test_lp_8_a_halted_endpoint_starts_with_an_event(queue: Queue, what: Restart, state: QueueState) -> None:
    put(queue, state=state, reason="message 1")
    result = restart(queue.table, queue.clock, what)
    assert (result.before, result.after) == (state.value, "enabled")
    assert (control(queue).state, control(queue).reason) == (QueueState.ENABLED, "")
    assert queue.happened() == [("STARTED", None)]


def test_a_halted_reader_of_the_poison_sub_queue_starts_too(queue: Queue) -> None:
    put(queue, poison_state=QueueState.FAULTED, poison_reason="message 1")
    restart(queue.table, queue.clock, Restart.SERVER)
    assert control(queue).poison_state is QueueState.ENABLED
    assert queue.happened() == [("STARTED", None)]


@pytest.mark.parametrize("what", list(Restart))
def test_sb_12_a_disabled_queue_stays_disabled_and_goes_on_holding(queue: Queue, what: Restart) -> None:
    put(queue, state=QueueState.DISABLED, reason="five rollbacks")
    queue.sent("good")
    restart(queue.table, queue.clock, what)
    assert (control(queue).state, control(queue).reason) == (QueueState.DISABLED, "five rollbacks")
    assert sorted(queue.rows(SubQueue.TRANSMISSION)) == [1]
    assert queue.happened() == []


def test_zos_e8_a_restart_of_the_queue_manager_starts_no_endpoint_that_was_stopped(queue: Queue) -> None:
    put(queue, state=QueueState.STOPPED, reason="message 1")
    assert restart(queue.table, queue.clock, Restart.BROKER).after == "stopped"
    assert queue.happened() == []


# Counts of messages -------------------------------------------------------------------------------------------------


def test_zos_5_the_copies_counts_are_lost_with_the_queue_manager_in_every_sub_queue(under: Callable[[Policy], Queue]) -> None:
    queue = under(ZOS)
    counted(counted(counted(queue, 3, 0, 2), 4, place="poison"), 0, 0)
    untouched = {file.path for file in queue.table.snapshot().files if file.min_lookup_id == 5}
    version = queue.table.snapshot().version

    result = restart(queue.table, queue.clock, Restart.BROKER)

    assert (result.forgotten, result.returned) == (3, 0)
    assert abort_counts(queue) == [0, 0, 0, 0, 0, 0]
    assert queue.table.snapshot().version == version + 1
    assert untouched <= {file.path for file in queue.table.snapshot().files}


@pytest.mark.parametrize("what", [Restart.ENDPOINT, Restart.SERVER])
def test_zos_e7_a_restart_of_the_application_server_alone_keeps_them(under: Callable[[Policy], Queue], what: Restart) -> None:
    queue = counted(under(ZOS), 3, 0, 2)
    restart(queue.table, queue.clock, what)
    assert abort_counts(queue) == [3, 0, 2]


def test_zos_6_hardened_counts_survive(under: Callable[[Policy], Queue]) -> None:
    queue = counted(under(HARDENED), 3, 0, 2)
    assert restart(queue.table, queue.clock, Restart.BROKER).forgotten == 0
    assert abort_counts(queue) == [3, 0, 2]


def test_nothing_but_counts_changes(under: Callable[[Policy], Queue]) -> None:
    queue = counted(under(ZOS), 3, 1)
    before = queue.rows()
    restart(queue.table, queue.clock, Restart.BROKER)
    assert queue.rows() == {number: row | {"abort_count": 0} for number, row in before.items()}


# Blocks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "ends"), [(Restart.ENDPOINT, False), (Restart.SERVER, False), (Restart.BROKER, True)])
def test_dmp_10_a_restart_of_the_engine_ends_a_block(queue: Queue, what: Restart, ends: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    put(queue, counters=SUBSCRIBED | dict(control(queue).blocked(1, NOT_BEFORE_RESTART).counters))
    restart(queue.table, queue.clock, what)
    kept = set(control(queue).counters) - set(SUBSCRIBED)
    assert kept == (set() if ends else {BLOCKED_UNTIL, BLOCKED_BY})
    assert set(SUBSCRIBED) <= set(control(queue).counters)


def test_dmp_14_a_restart_of_the_engine_returns_messages_that_wait_alone_and_leaves_what_handlers_gave_back(queue: Queue) -> None:
    counted(queue, 5, place="postponed", error=FailureKind.EXCEPTION)
    counted(queue, 0, place="postponed", error=FailureKind.POSTPONED)
    result = restart(queue.table, queue.clock, Restart.BROKER)
    assert result.returned == 1
    assert (sorted(queue.rows(SubQueue.MAIN)), sorted(queue.rows(SubQueue.POSTPONED))) == ([1], [2])
    assert queue.counts(1) == (5, 0)
    assert queue.happened() == []


# While a pass receives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", list(Restart))
def test_a_queue_that_is_being_received_is_not_restarted(under: Callable[[Policy], Queue], what: Restart) -> None:
    queue = counted(under(ZOS), 3)
    assert queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9) is not None
    version = queue.table.snapshot().version
    with pytest.raises(MessageClaimedError, match="'orders' is being received"):
        restart(queue.table, queue.clock, what)
    assert queue.table.snapshot().version == version


def test_a_claim_of_a_dead_run_hinders_only_the_broker(under: Callable[[Policy], Queue]) -> None:
    """Its messages' counts lie in the journal of that run."""
    queue = under(ZOS).sent("good")
    with pytest.raises(DiedError):
        queue.receive(engine=DyingEngine)
    queue.clock.advance(LEASE + timedelta(seconds=1))
    restart(queue.table, queue.clock, Restart.SERVER)
    with pytest.raises(MessageClaimedError, match="run the receive task again"):
        restart(queue.table, queue.clock, Restart.BROKER)


def test_a_pass_that_claims_right_before_the_commit_is_told(under: Callable[[Policy], Queue], at_point: AtPoint) -> None:
    """Whichever message it has: its endpoint was opened with what it remembered before."""
    queue = counted(under(ZOS).sent("good"), 3)
    at_point.do("store.replace.after_files", lambda: queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=1))
    with pytest.raises(MessageClaimedError):
        restart(queue.table, queue.clock, Restart.BROKER)
    assert abort_counts(queue) == [0, 3]


def test_a_message_that_is_sent_right_before_the_commit_stays(under: Callable[[Policy], Queue], at_point: AtPoint) -> None:
    queue = counted(under(ZOS), 3)
    at_point.do("store.replace.before_commit", lambda: queue.sent("good"))
    restart(queue.table, queue.clock, Restart.BROKER)
    assert abort_counts(queue) == [0, 0]


@pytest.mark.parametrize("point", ["store.replace.after_files", "store.replace.before_commit", "store.replace.after_commit"])
def test_a_restart_that_dies_is_all_or_nothing(under: Callable[[Policy], Queue], at_point: AtPoint, point: str) -> None:
    queue = counted(counted(under(ZOS), 3, 1), 4)
    put(queue, counters=control(queue).blocked(1, NOT_BEFORE_RESTART).counters)

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        restart(queue.table, queue.clock, Restart.BROKER)
    done = point.endswith("after_commit")
    assert (abort_counts(queue), BLOCKED_BY in control(queue).counters) == (([0, 0, 0], False) if done else ([3, 1, 4], True))
    restart(queue.table, queue.clock, Restart.BROKER)
    assert abort_counts(queue) == [0, 0, 0]
