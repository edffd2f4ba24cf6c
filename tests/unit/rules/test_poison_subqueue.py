"""The rules of a service that reads a poison sub-queue."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Disposition, Halt, Halted, Return
from airflow_poison.rules.msmq4 import PoisonSubQueue
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import SubQueue
from tests.unit.rules.entries import NOW, RAISED, message

DROP = PoisonSubQueue(receive_retry_count=2, receive_error_handling="Drop")


def test_poi_1_it_reads_and_handles_the_messages_of_the_poison_sub_queue() -> None:
    assert PoisonSubQueue.reads is SubQueue.POISON
    assert isinstance(DROP.open().before(message(), NOW), Deliver)


@pytest.mark.parametrize("cycles", [0, 2, 9])
def test_poi_2_max_retry_cycles_is_ignored(cycles: int) -> None:
    receiver = PoisonSubQueue(receive_retry_count=2, max_retry_cycles=cycles, receive_error_handling="Drop").open()

    assert receiver.before(message(3, 1), NOW) == DROP.open().before(message(3, 1), NOW)


@pytest.mark.parametrize("retries", [0, 5])
@pytest.mark.parametrize("cycles", [0, 2])
def test_poi_3_poi_e4_move_is_refused_before_anything_is_received(retries: int, cycles: int) -> None:
    with pytest.raises(SettingError, match="Drop, Reject or Fault"):
        PoisonSubQueue(receive_retry_count=retries, max_retry_cycles=cycles, receive_error_handling="Move")


FINAL = [
    ("Fault", Halt(Halted.FAULTED, Counts(4, 7), (EventType.POISON_EXCEPTION, EventType.FAULTED))),
    ("Drop", Dispose(Disposition.DROP, Counts(3, 7), (EventType.POISON_EXCEPTION, EventType.DROPPED))),
    ("Reject", Dispose(Disposition.REJECT, Counts(3, 7), (EventType.POISON_EXCEPTION, EventType.REJECTED), to_dead_letter=True)),
]


@pytest.mark.parametrize(("handling", "decision"), FINAL)
def test_poi_4_after_its_attempts_a_message_is_disposed_of_without_cycles(handling: str, decision: Dispose | Halt) -> None:
    receiver = PoisonSubQueue(receive_retry_count=2, receive_error_handling=handling).open()

    assert [receiver.before(message(count, 7), NOW) for count in range(3)] == [Deliver(Counts(count, 7)) for count in range(3)]
    assert receiver.before(message(3, 7), NOW) == decision


@pytest.mark.parametrize("move_count", [1, 5, 999])
def test_poi_5_the_move_count_is_kept_and_ignored(move_count: int) -> None:
    receiver = DROP.open()

    assert receiver.before(message(0, move_count), NOW) == Deliver(Counts(0, move_count))
    assert receiver.after_rollback(message(0, move_count), RAISED, NOW) == Return(Counts(1, move_count))


def test_poi_2_the_other_settings_are_checked_like_those_of_the_application_queue() -> None:
    for settings in ({"receive_retry_count": -1}, {"max_retry_cycles": True}, {"receive_error_handling": "Skip"}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            PoisonSubQueue.from_dict(settings)


def test_poi_2_fault_is_the_default_and_halts() -> None:
    assert PoisonSubQueue().halting
    assert not DROP.halting
    assert DROP.stateless


def test_poi_4_the_largest_retry_count_means_for_ever() -> None:
    assert isinstance(PoisonSubQueue(receive_retry_count=2147483647).open().before(message(2147483647), NOW), Deliver)


def test_wcf_29_an_unreadable_message_is_disposed_of_at_once() -> None:
    policy = PoisonSubQueue(receive_error_handling="Reject", max_received_message_size=1)

    assert policy.unreadable(message(size=1)) is None
    assert policy.unreadable(message(size=2))
    decision = policy.open().give_up(message(), Failure(FailureKind.UNREADABLE), NOW)
    assert isinstance(decision, Dispose)
    assert decision.how is Disposition.REJECT


def test_wcf_22_a_drop_after_the_time_to_live_reaches_the_dead_letter_queue() -> None:
    decision = DROP.open().before(message(3, expires_at=NOW), NOW)

    assert isinstance(decision, Dispose)
    assert decision.to_dead_letter


def test_its_transactions_hold_one_message() -> None:
    receiver = DROP.open()
    receiver.transaction_aborted(became_poison=True)
    receiver.transaction_committed([])

    assert (receiver.batch_size(), receiver.commit_due(timedelta(0))) == (1, True)
    assert receiver.after_failed_move(message(3, 1)) == Counts(4, 1)
    assert DROP.effective_transaction_timeout == timedelta(minutes=1)


@given(st.builds(PoisonSubQueue, receive_retry_count=st.integers(0, 9), receive_error_handling=st.sampled_from(["Drop", "Reject", "Fault"])))
def test_json_and_pickle_keep_every_setting(policy: PoisonSubQueue) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
