"""A reader of the poison sub-queue is an endpoint of its own: it reads poison only, and what halts it halts nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import enable
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import QueueHaltedError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, DiedError, DyingEngine, calls

if TYPE_CHECKING:
    from airflow_poison.passes.alerts import Alert
    from tests.given.passes import Queue

DROPPING = PoisonSubQueue(receive_retry_count=0, receive_error_handling="Drop")
FAULTING = PoisonSubQueue(receive_retry_count=0, receive_error_handling="Fault")


@pytest.fixture
def poisoned(queue: Queue) -> Queue:
    """Message 1 is in the poison sub-queue, messages 2 and 3 are in the application queue."""
    queue.sent("bad")
    queue.receive("earlier")
    return queue.sent("good", "good")


def test_reads_poison_only(poisoned: Queue) -> None:
    result = poisoned.receive(policy=DROPPING)

    assert (result.received, result.dropped) == (1, 1)
    assert sorted(poisoned.rows(SubQueue.MAIN)) == [2, 3]


def test_when_it_faults_the_application_queue_still_receives(poisoned: Queue) -> None:
    faulted = poisoned.receive("reader", policy=FAULTING)

    result = poisoned.receive("application")

    assert faulted.halted is not None
    assert result.settled == 2
    assert poisoned.table.snapshot().control.state is QueueState.ENABLED


def test_when_it_faults_its_next_pass_is_refused_with_message_and_next_step(poisoned: Queue) -> None:
    poisoned.receive("reader", policy=FAULTING)

    with pytest.raises(QueueHaltedError, match=r"'orders;poison' is faulted: message 1 .*BadMessageError.*enable the queue"):
        poisoned.receive("reader again", policy=FAULTING)


def test_when_it_faults_the_store_refuses_its_claim_too(poisoned: Queue) -> None:
    poisoned.receive("reader", policy=FAULTING)

    with pytest.raises(QueueHaltedError, match="faulted"):
        poisoned.table.claim("another", lease=LEASE, now=poisoned.clock.now(), max_messages=1, sub_queue=SubQueue.POISON)


def test_when_the_application_queue_faults_the_poison_is_still_read(poisoned: Queue) -> None:
    faulting = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")
    poisoned.sent("bad").receive("application", policy=faulting)

    result = poisoned.receive("reader", policy=DROPPING)

    assert poisoned.table.snapshot().control.state is QueueState.FAULTED
    assert result.dropped == 1


def test_enabling_starts_it_again(poisoned: Queue) -> None:
    poisoned.receive("reader", policy=FAULTING)

    enabled = enable(poisoned.table, poisoned.clock)

    assert enabled.before == "faulted"
    assert "message 1 of queue 'orders;poison'" in enabled.reason
    assert poisoned.happened()[-1][0] == "STARTED"
    assert poisoned.receive("reader again", policy=DROPPING).dropped == 1


def test_alerts_say_who_halted(poisoned: Queue) -> None:
    poisoned.receive("reader", policy=FAULTING)
    told: list[Alert] = []

    send_alerts(poisoned.table, "us", {"notes": told.append}, poisoned.clock)

    reasons = [alert.reason for alert in told if alert.event == "FAULTED"]
    assert len(reasons) == 1
    assert "Message 1 of queue 'orders;poison' halted it" in reasons[0]


def test_its_dead_claim_is_not_finished_by_the_application_queue(poisoned: Queue) -> None:
    """Another policy and another handler would get messages that were never theirs."""
    with pytest.raises(DiedError):
        poisoned.receive("reader", policy=DROPPING, engine=DyingEngine)
    poisoned.clock.advance(2 * LEASE)

    result = poisoned.receive("application")

    assert (result.passes, result.settled) == (1, 2)
    assert sorted(poisoned.rows(SubQueue.POISON)) == [1]
    assert poisoned.receive("another reader", policy=DROPPING).dropped == 1


def test_what_its_handler_postpones_stays_poison(queue: Queue) -> None:
    queue.sent("later")
    queue.table.move_files(lambda snapshot: snapshot.files, SubQueue.POISON, queue.clock.now())

    result = queue.receive("reader", policy=DROPPING)
    queue.receive("application")

    assert (result.postponed, result.rollbacks) == (1, 0)
    assert sorted(queue.rows(SubQueue.POISON)) == [1]
    assert calls(queue.handler) == {1: 1}
    assert queue.counts(1) == (0, 1)
