"""The settings and the rules of Msmq3, one rule each."""

from __future__ import annotations

import json
import pickle
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Disposition, Halt, Halted, Return
from airflow_poison.rules.msmq3 import Msmq3, Msmq3Receiver, SeenTable
from airflow_poison.rules.policy import Opening, Restart
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import SubQueue
from tests.unit.rules.entries import NOW, RAISED, Message

if TYPE_CHECKING:
    from datetime import datetime

DROP = Msmq3(receive_retry_count=2, receive_error_handling="Drop")
FAULT = Msmq3(receive_retry_count=2)
POISON_DROPPED = (EventType.POISON_EXCEPTION, EventType.DROPPED)


def entry(lookup_id: int = 1, counts: Counts = Counts(), expires_at: datetime | None = None) -> Message:  # noqa: B008  (frozen)
    return Message(counts, expires_at=expires_at, lookup_id=lookup_id)


def read(receiver: Msmq3Receiver, lookup_id: int = 1) -> int | None:
    """Receive a message; the abort count that the handler sees, None when it is not delivered."""
    decision = receiver.before(entry(lookup_id), NOW)
    return decision.counts.abort_count if isinstance(decision, Deliver) else None


def rolled_back(receiver: Msmq3Receiver, lookup_id: int = 1) -> int | None:
    shown = read(receiver, lookup_id)
    receiver.transaction_aborted(became_poison=shown is None)
    if shown is not None:
        receiver.after_rollback(entry(lookup_id, Counts(shown)), RAISED, NOW)
    return shown


def processed(receiver: Msmq3Receiver, lookup_id: int) -> int | None:
    shown = read(receiver, lookup_id)
    receiver.transaction_committed([entry(lookup_id)])
    return shown


# Counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_m3_1_m3_7_retries_and_one_more_deliveries_then_the_final_disposition(retries: int) -> None:
    receiver = replace(DROP, receive_retry_count=retries).open()

    assert [rolled_back(receiver) for _ in range(retries + 2)] == [*range(retries + 1), None]


def test_m3_7_the_entry_is_removed_with_the_final_disposition() -> None:
    receiver = replace(DROP, receive_retry_count=0).open()

    assert [rolled_back(receiver) for _ in range(4)] == [0, None, 0, None]


def test_m3_7_successful_reads_count_too_and_their_entries_stay() -> None:
    receiver = DROP.open()

    assert [processed(receiver, 1) for _ in range(4)] == [0, 1, 2, None]


def test_m3_4_the_count_that_is_stored_with_the_message_is_never_looked_at() -> None:
    receiver = DROP.open()

    assert receiver.before(entry(counts=Counts(99, 4)), NOW) == Deliver(Counts(0, 4))


def test_m3_4_m3_10_another_endpoint_counts_from_the_beginning() -> None:
    first = DROP.open()
    rolled_back(first)
    rolled_back(first)
    second = DROP.open(Opening(counters=first.counters()))

    assert [rolled_back(second) for _ in range(4)] == [0, 1, 2, None]


def test_m3_4_the_stored_count_is_that_of_all_rollbacks_and_never_falls() -> None:
    receiver = DROP.open()
    receiver.before(entry(counts=Counts(7, 4)), NOW)
    seen_by_the_handler = entry(counts=Counts(0, 4))

    assert receiver.after_rollback(seen_by_the_handler, RAISED, NOW) == Return(Counts(8, 4))


def test_m3_4_no_restart_touches_what_is_stored() -> None:
    assert {DROP.counts_after(Counts(3, 1), restart) for restart in Restart} == {Counts(3, 1)}


def test_m3_6_each_service_counts_separately() -> None:
    one, other = DROP.open(), DROP.open()

    assert [rolled_back(service) for service in (one, other, one, other, one, other, one)] == [0, 0, 1, 1, 2, 2, None]


def test_m3_6_without_fault_a_pass_may_spread_over_several_services_with_a_memory_each() -> None:
    assert (DROP.halting, DROP.stateless) == (False, False)
    assert (FAULT.halting, FAULT.stateless) == (True, False)
    assert FAULT.halts_as is Halted.FAULTED


def test_a_read_that_its_handler_postpones_is_not_counted() -> None:
    receiver = replace(DROP, receive_retry_count=0).open()
    postponed = [read(receiver) for _ in range(5)]

    assert postponed == [0, 0, 0, 0, 0]
    assert rolled_back(receiver) == 0
    assert read(receiver) is None


def test_a_postponed_neighbour_is_uncounted_even_when_others_are_read_in_between() -> None:
    receiver = DROP.open()
    rolled_back(receiver, 1)
    read(receiver, 1)

    assert [processed(receiver, 2), rolled_back(receiver, 1), rolled_back(receiver, 1), read(receiver, 1)] == [0, 1, 2, None]


# The table --------------------------------------------------------------------------------------------------------


def test_m3_5_m3_11_the_channel_counts_256_messages_by_default() -> None:
    receiver = Msmq3(receive_retry_count=9).open()
    rolled_back(receiver, 1)
    for lookup_id in range(2, 257):
        processed(receiver, lookup_id)
    assert rolled_back(receiver, 1) == 1

    processed(receiver, 257)
    assert rolled_back(receiver, 1) == 0


def test_m3_8_the_smallest_lookup_id_goes_not_the_one_that_was_read_longest_ago() -> None:
    table = SeenTable(3)
    for lookup_id in (5, 1, 3, 1):
        table.read(lookup_id)

    table.read(4)
    assert [number for number in range(6) if number in table] == [3, 4, 5]


def test_m3_8_a_message_that_is_in_the_table_displaces_nobody() -> None:
    table = SeenTable(2)
    for lookup_id in (1, 2, 2, 2, 1):
        table.read(lookup_id)

    assert (len(table), table.read(1), table.read(2)) == (2, 3, 4)


def test_m3_8_a_message_with_the_smallest_id_of_all_displaces_the_next_one_not_itself() -> None:
    table = SeenTable(2)
    for lookup_id in (2, 3, 1):
        table.read(lookup_id)

    assert [number for number in range(4) if number in table] == [1, 3]


def test_m3_9_an_oldest_message_that_others_displace_each_time_never_becomes_poison() -> None:
    receiver = replace(DROP, seen_table_size=4).open()
    for lookup_id in (2, 3, 4, 5):
        processed(receiver, lookup_id)

    shown = []
    for new in range(6, 30):
        shown.append(rolled_back(receiver, 1))
        processed(receiver, new)
    assert shown == [0] * 24


def test_uncounting_a_message_that_is_not_in_the_table_adds_none() -> None:
    table = SeenTable(1)
    table.read(1)
    table.remove(1)
    table.take_back(1)

    assert (len(table), table.read(1)) == (0, 1)


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 6))
def test_m3_5_the_table_never_holds_more_than_its_size(reads: list[int], size: int) -> None:
    table = SeenTable(size)
    for lookup_id in reads:
        table.read(lookup_id)
        assert lookup_id in table
        assert len(table) <= size


# Dispositions -----------------------------------------------------------------------------------------------------

FINAL = [
    pytest.param("Drop", Dispose(Disposition.DROP, Counts(3, 1), POISON_DROPPED), id="M3-7 Drop"),
    pytest.param("Fault", Halt(Halted.FAULTED, Counts(4, 1), (EventType.POISON_EXCEPTION, EventType.FAULTED)), id="M3-10 Fault"),
]


@pytest.mark.parametrize(("handling", "decision"), FINAL)
def test_m3_7_m3_10_the_exception_comes_first_then_the_disposition(handling: str, decision: Dispose | Halt) -> None:
    receiver = replace(DROP, receive_error_handling=handling).open()
    for _ in range(3):
        rolled_back(receiver)

    assert receiver.before(entry(counts=Counts(3, 1)), NOW) == decision


def test_wcf_22_a_drop_after_the_time_to_live_reaches_the_dead_letter_queue() -> None:
    receiver = replace(DROP, receive_retry_count=0).open()
    rolled_back(receiver)

    decision = receiver.before(entry(expires_at=NOW), NOW)
    assert isinstance(decision, Dispose)
    assert decision.to_dead_letter


def test_wcf_29_giving_up_is_the_final_disposition_at_once_and_forgets_the_message() -> None:
    receiver = DROP.open()
    rolled_back(receiver)

    assert receiver.give_up(entry(), Failure(FailureKind.UNREADABLE), NOW) == Dispose(Disposition.DROP, Counts(), POISON_DROPPED)
    assert read(receiver) == 0


def test_wcf_11_the_largest_retry_count_means_never_poison_here_too() -> None:
    policy = Msmq3(receive_retry_count=2147483647, receive_error_handling="Drop")
    receiver = policy.open()
    receiver._table._seen[1] = 2147483649

    assert receiver.before(entry(), NOW) == Deliver(Counts(2147483647))
    receiver = replace(policy, receive_retry_count=2147483646).open()
    receiver._table._seen[1] = 2147483647
    assert isinstance(receiver.before(entry(), NOW), Dispose)


def test_wcf_12_without_exactly_once_there_is_no_poison_handling() -> None:
    with pytest.warns(ConfigurationWarning, match="exactly_once=False"):
        policy = Msmq3(exactly_once=False, receive_retry_count=0)
    receiver = policy.open()

    assert [receiver.before(entry(counts=Counts(2)), NOW) for _ in range(3)] == [Deliver(Counts(2), at_most_once=True)] * 3
    assert not policy.halting
    assert receiver.give_up(entry(), RAISED, NOW) == Dispose(Disposition.DROP, Counts(), (EventType.DROPPED,))


def test_wcf_37_without_transaction_scope_the_message_is_consumed_before_the_call() -> None:
    with pytest.warns(ConfigurationWarning, match="transaction_scope_required=False"):
        policy = Msmq3(transaction_scope_required=False)

    assert policy.open().before(entry(), NOW) == Deliver(Counts(), at_most_once=True)


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("handling", "why"), [("Move", "no sub-queues"), ("Reject", "no negative acknowledgements")])
@pytest.mark.parametrize("exactly_once", [True, False])
def test_m3_3_move_and_reject_are_refused_before_anything_is_received(handling: str, why: str, exactly_once: bool) -> None:  # noqa: FBT001
    with pytest.raises(SettingError, match=why) as caught:
        Msmq3(receive_error_handling=handling, exactly_once=exactly_once)

    assert (caught.value.setting, caught.value.value) == ("receive_error_handling", handling)


@pytest.mark.parametrize("ignored", [{"max_retry_cycles": 7}, {"retry_cycle_delay": timedelta(hours=1)}])
def test_m3_2_cycles_and_their_delay_are_accepted_and_ignored(ignored: dict[str, Any]) -> None:
    receiver = replace(DROP, receive_retry_count=0, **ignored).open()

    assert rolled_back(receiver) == 0
    assert receiver.before(entry(), NOW) == Dispose(Disposition.DROP, Counts(), POISON_DROPPED)


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("receive_retry_count", 5),
        ("receive_error_handling", "Fault"),
        ("exactly_once", True),
        ("transaction_scope_required", True),
        ("max_received_message_size", None),
        pytest.param("seen_table_size", 256, id="M3-11"),
    ],
)
def test_m3_no_setting_given(setting: str, default: object) -> None:
    assert getattr(Msmq3(), setting) == default


REFUSED: list[tuple[str, Any]] = [
    ("receive_retry_count", -1),
    ("receive_retry_count", True),
    ("max_retry_cycles", -1),
    ("max_retry_cycles", 2147483648),
    ("retry_cycle_delay", timedelta(seconds=-1)),
    ("receive_error_handling", "Skip"),
    ("exactly_once", 1),
    ("transaction_scope_required", "yes"),
    ("transaction_timeout", timedelta(seconds=-1)),
    ("machine_transaction_timeout", timedelta(0)),
    ("machine_maximum_transaction_timeout", timedelta(0)),
    ("sessions", 0),
    ("max_received_message_size", 0),
    ("seen_table_size", 0),
    ("seen_table_size", 256.0),
]


@pytest.mark.parametrize(("setting", "value"), REFUSED, ids=str)
def test_wcf_11_a_value_that_is_not_allowed_is_refused_when_set(setting: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        Msmq3(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)


def test_what_all_queued_bindings_share_holds_here_too() -> None:
    policy = Msmq3(transaction_timeout=timedelta(seconds=30), max_received_message_size=10)

    assert policy.effective_transaction_timeout == timedelta(seconds=30)
    assert policy.unreadable(Message(size=10)) is None
    assert "11 bytes" in (policy.unreadable(Message(size=11)) or "")
    assert policy.reads is SubQueue.MAIN
    assert (policy.open().batch_size(), policy.server_sessions) == (1, 1)


def test_settings_that_lose_messages_warn_their_author_and_nobody_else() -> None:
    with pytest.warns(ConfigurationWarning) as caught:
        policy = Msmq3(exactly_once=False)

    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert policy_from_dict(policy.to_dict()) == policy


def test_it_can_be_set_up_in_the_words_of_the_manual() -> None:
    policy = policy_from_dict({"system": "Msmq3", "ReceiveRetryCount": 3, "ReceiveErrorHandling": "Drop", "MaxRetryCycles": 9})

    assert policy == Msmq3(receive_retry_count=3, receive_error_handling="Drop", max_retry_cycles=9)


policies = st.builds(
    Msmq3,
    receive_retry_count=st.integers(0, 2147483647),
    max_retry_cycles=st.integers(0, 2147483647),
    retry_cycle_delay=st.timedeltas(timedelta(0), timedelta(days=400)),
    receive_error_handling=st.sampled_from(["Fault", "Drop"]),
    sessions=st.booleans(),
    max_received_message_size=st.none() | st.integers(1, 2**31 - 1),
    seen_table_size=st.integers(1, 2147483647),
)


@given(policies)
def test_json_and_pickle_keep_every_setting(policy: Msmq3) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_a_receiver_is_carried_with_its_table() -> None:
    rolled_back(receiver := DROP.open())
    receiver.before(entry(counts=Counts(5)), NOW)
    carried: Msmq3Receiver = pickle.loads(pickle.dumps(receiver))

    assert carried.after_rollback(entry(counts=Counts(1)), RAISED, NOW) == Return(Counts(6))
    assert [rolled_back(carried), rolled_back(carried)] == [2, None]
