"""What the rules do over time: deliveries, moves, closings, sessions, batches. Through the public replay."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest

from airflow_poison.rules.decisions import Counts, Halted
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.values.errors import ConfigurationWarning, ErrorHandlerError, InputError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import PoisonErrorHandler

MINUTE = 60


def move(retries: int, cycles: int, **settings: Any) -> Msmq4:
    return Msmq4(receive_retry_count=retries, max_retry_cycles=cycles, receive_error_handling="Move", **settings)


def unsafe(**settings: Any) -> Msmq4:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        return Msmq4(**settings)


def calls(script: Script, policy: Msmq4) -> list[str]:
    return [call.message for call in replay(policy, script).deliveries]


def test_wcf_1_an_abort_leaves_the_message_for_another_attempt_until_the_maximum_is_exceeded() -> None:
    result = replay(move(1, 0), "rb rb")

    assert result.story(routine=True) == ["DELIVERED", "ROLLED_BACK", "DELIVERED", "ROLLED_BACK", "POISON_EXCEPTION", "MOVED_POISON"]


@pytest.mark.parametrize("cause", ["rb", "crash", "timeout", "before_operation"])
def test_wcf_2_every_cause_counts_alike(cause: str) -> None:
    result = replay(move(1, 1), f"{cause}*")

    assert (result.message().place, result.message().counts, result.receives) == ("poison", Counts(0, 3), 6)
    assert len(result.deliveries) == (0 if cause == "before_operation" else 4)


@pytest.mark.parametrize(("retries", "cycles"), [(0, 0), (3, 0), (0, 3), (6, 3)])
def test_wcf_7_wcf_17_deliveries_receives_exceptions_and_waiting_follow_the_formula(retries: int, cycles: int) -> None:
    result = replay(move(retries, cycles), "rb*")

    assert len(result.deliveries) == (retries + 1) * (cycles + 1)
    assert result.receives == (retries + 2) * (cycles + 1)
    assert result.exceptions == cycles + 1
    assert result.story().count("MOVED_RETRY") == cycles
    assert result.waited == result.elapsed == cycles * timedelta(minutes=30)
    assert result.message().counts == Counts(0, 2 * cycles + 1)


def test_wcf_8_a_message_delivered_successfully_is_never_retried() -> None:
    assert len(replay(Msmq4(), "ok rb*").deliveries) == 1


def test_wcf_9_counts_survive_a_restart() -> None:
    # Given two timeouts of a minute each, with a restart between them
    script = Script("timeout*", actions=[Action(60, "restart")])

    assert [call.counts.abort_count for call in replay(move(1, 0), script).deliveries] == [0, 1]


def test_wcf_10_both_counts_are_readable_in_the_operation() -> None:
    result = replay(move(1, 1), "rb rb rb ok")

    assert [call.counts for call in result.deliveries] == [Counts(0, 0), Counts(1, 0), Counts(0, 2), Counts(1, 2)]


def test_wcf_18_wcf_e11_an_error_handler_is_called_once_for_each_cycle() -> None:
    handler = PoisonErrorHandler()

    replay(move(5, 2), Script(Scripted("a"), Scripted("m", "rb*")), error_handler=handler)

    assert handler.lookup_ids == [2, 2, 2]


def test_wcf_27_an_error_handler_class_is_installed_when_the_host_opens() -> None:
    class NeedsParameters(PoisonErrorHandler):
        def __init__(self, path: str) -> None:
            super().__init__()

    replay(move(0, 0), "rb", error_handler=PoisonErrorHandler)
    with pytest.raises(ErrorHandlerError):
        replay(move(0, 0), "rb", error_handler=NeedsParameters)


def test_wcf_19_wcf_e11_a_locked_message_is_tried_50_times_left_and_moved_at_the_next_receive() -> None:
    result = replay(move(0, 1), Script(Scripted("m", "rb*", locked=50)), until=timedelta(minutes=1))

    assert result.story() == ["POISON_EXCEPTION", "POISON_EXCEPTION", "MOVED_RETRY"]
    left, moved = (event for event in result.events if event.type is EventType.POISON_EXCEPTION)
    assert (left.abort_count, left.move_count) == (2, 0)
    assert moved.at - result.started == timedelta(seconds=4.9)
    assert result.receives == 3


def test_wcf_19_30_a_message_that_was_locked_for_a_while_waits_from_its_move() -> None:
    # Given 49 failed tries, so the move happens after 4.9 s
    message = replay(move(0, 1), Script(Scripted("m", "rb*", locked=49)), until=timedelta(minutes=1)).message()

    assert message.receives == 2
    assert message.due_at == replay(move(0, 1), "ok").started + timedelta(minutes=30, seconds=4)


def test_wcf_20_each_cycle_can_have_its_own_sub_queue() -> None:
    policy = move(0, 2, retry_subqueues="per_cycle")

    assert [replay(policy, "rb*", until=timedelta(minutes=at)).message().place for at in (0, 31, 61)] == ["retry1", "retry2", "poison"]


def test_wcf_21_a_fault_stops_the_listener_and_faults_again_after_a_restart_without_a_delivery() -> None:
    script = Script(Scripted("x", "rb*"), Scripted("y"), actions=[Action(MINUTE, "open")])
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=0)

    result = replay(policy, script)

    assert result.story("x") == ["POISON_EXCEPTION", "FAULTED", "POISON_EXCEPTION", "FAULTED"]
    assert [event.type for event in result.events if not event.details] == [EventType.STARTED]
    assert [call.message for call in result.deliveries] == ["x", "x"]
    assert result.message("x").counts == Counts(4, 0)
    assert replay(policy, Script(Scripted("x", "rb*"))).message("x").counts == Counts(3, 0)
    assert result.halted is Halted.FAULTED


def test_wcf_21_wcf_25_an_operator_takes_the_message_out_by_lookup_id_and_starts_the_host_again() -> None:
    script = Script({"x": "rb*", "y": "ok"}, actions=[Action(MINUTE, "remove", "x"), Action(MINUTE, "open")])
    handler = PoisonErrorHandler()

    result = replay(Msmq4(receive_retry_count=0, max_retry_cycles=0), script, error_handler=handler)

    assert handler.lookup_ids == [result.message("x").lookup_id]
    assert (result.message("x").place, result.message("y").place, result.halted) == ("removed", "processed", None)


def test_wcf_28_e10_a_message_put_back_from_poison_gets_one_cycle() -> None:
    script = Script("rb*", actions=[Action(2 * 3600, "put_back", "m")])

    result = replay(move(5, 2), script)

    again = [call.counts for call in result.deliveries[18:]]
    assert again == [Counts(count, 6) for count in range(6)]
    assert result.story()[-3:] == ["RETURNED", "POISON_EXCEPTION", "MOVED_POISON"]
    assert result.message().counts == Counts(0, 7)


def test_wcf_28_wcf_44_wcf_e10_a_message_put_back_in_receive_context_mode_gets_no_delivery() -> None:
    script = Script("rb*", actions=[Action(7200, "put_back", "m")])

    result = replay(move(1, 1, receive_context=True), script)

    assert len(result.deliveries) == 4
    assert result.story()[-3:] == ["RETURNED", "POISON_EXCEPTION", "MOVED_POISON"]


@pytest.mark.parametrize("retries", range(4))
@pytest.mark.parametrize("cycles", range(3))
def test_wcf_44_receive_context_mode_makes_the_same_number_of_deliveries(retries: int, cycles: int) -> None:
    result = replay(move(retries, cycles, receive_context=True), "rb*")

    assert len(result.deliveries) == (retries + 1) * (cycles + 1)
    assert result.message().place == "poison"


def test_wcf_29_a_message_that_cannot_be_decoded_is_poison_at_its_first_receive() -> None:
    result = replay(Msmq4(receive_error_handling="Reject"), Script(Scripted("m", unreadable="invalid XML")))

    assert (result.message().place, result.receives, len(result.deliveries)) == ("dead_letter", 1, 0)


def test_wcf_29_a_premature_end_of_the_data_is_an_ordinary_abort() -> None:
    result = replay(move(1, 0), "before_operation(0) ok")

    assert result.message().place == "processed"
    assert [call.counts.abort_count for call in result.deliveries] == [1]


def test_wcf_31_after_downtime_everything_overdue_moves_at_once() -> None:
    script = Script(Scripted("a", "rb ok"), Scripted("b", "rb ok", at=60), actions=[Action(120, "close"), Action(7200, "open")])

    result = replay(move(0, 1), script)

    assert [(event.at - result.started).total_seconds() for event in result.events if event.type is EventType.RETURNED] == [7200, 7200]


@pytest.mark.parametrize(("order", "returns"), [("due_time", [1800, 1805, 1821]), ("head_timer", [1800, 1821, 1821])])
def test_wcf_32_a_head_timer_lets_an_earlier_head_delay_others(order: str, returns: list[int]) -> None:
    # Given that a is in front of b and was parked 16 s after it
    script = Script(Scripted("x", "rb ok"), Scripted("a", "postpone(20) rb ok", at=1), Scripted("b", "rb ok", at=5))

    result = replay(move(0, 1, return_order=order), script)

    events = [event for event in result.events if event.type is EventType.RETURNED]
    assert [(event.at - result.started).total_seconds() for event in events] == returns
    assert [event.details["message"] for event in events] == (["x", "b", "a"] if order == "due_time" else ["x", "a", "b"])


def test_wcf_33_messages_are_received_by_priority_then_lookup_id_also_after_a_return() -> None:
    script = Script(Scripted("a", "rb ok"), Scripted("b", at=1800), Scripted("c", at=1800, priority=7))

    assert calls(script, move(0, 1)) == ["a", "c", "a", "b"]


def test_wcf_34_wcf_36_an_error_before_the_operation_costs_the_timeout_and_counts() -> None:
    result = replay(move(3, 0), "before_operation*2 ok")

    assert [(call.at, call.counts.abort_count) for call in result.deliveries] == [(timedelta(minutes=2), 2)]
    assert result.receives == 3


def test_wcf_34_a_host_closed_during_the_timeout_aborts_at_once_and_counts() -> None:
    script = Script("timeout ok", actions=[Action(20, "close"), Action(30, "open")])

    result = replay(Msmq4(), script)

    assert [(call.at.total_seconds(), call.counts.abort_count) for call in result.deliveries] == [(0, 0), (30, 1)]
    assert [(e.at - result.started).total_seconds() for e in result.events if e.type is EventType.ROLLED_BACK] == [20]


def test_wcf_35_a_delivery_longer_than_the_timeout_is_rolled_back() -> None:
    result = replay(Msmq4(transaction_timeout=timedelta(seconds=10)), "ok(11) ok(10)")

    assert [(call.at.total_seconds(), call.counts.abort_count) for call in result.deliveries] == [(0, 0), (10, 1)]
    assert result.elapsed == timedelta(seconds=20)


@pytest.mark.parametrize("setting", ["exactly_once", "transaction_scope_required"], ids=["WCF-12", "WCF-37"])
def test_wcf_e11_a_message_consumed_before_its_call_is_lost_by_a_failure(setting: str) -> None:
    result = replay(unsafe(**{setting: False}, receive_retry_count=0), Script({"x": "rb", "y": "ok"}))

    assert (result.message("x").place, result.message("y").place) == ("lost", "processed")
    assert result.story() == []
    assert (len(result.deliveries), result.message("x").counts) == (2, Counts(0, 0))


def test_wcf_38_e8_a_session_repeats_as_a_whole() -> None:
    script = Script(Scripted("S", items={"i1": "ok*", "i2": "rb ok*", "i3": "ok*"}))

    result = replay(move(1, 0, sessions=True), script)

    assert [call.items for call in result.deliveries] == [("i1", "i2"), ("i1", "i2", "i3")]
    assert result.message("S").place == "processed"


def test_wcf_39_items_that_were_not_consumed_roll_the_session_back() -> None:
    script = Script(Scripted("S", items={"i1": "ok*", "i2": "unconsumed ok", "i3": "ok"}))

    result = replay(move(1, 0, sessions=True), script)

    assert [(call.items, call.counts.abort_count) for call in result.deliveries] == [(("i1",), 0), (("i1", "i2", "i3"), 1)]


def test_wcf_39_only_a_policy_with_sessions_takes_them() -> None:
    with pytest.raises(InputError, match="sessions=True"):
        replay(move(1, 0), Script(Scripted("S", items={"i1": "ok"})))


def test_wcf_40_wcf_41_a_failing_member_rolls_its_batch_back_and_everybody_is_counted() -> None:
    script = Script({"a": "ok*", "b": "rb ok", "c": "ok"})

    result = replay(move(1, 0, max_batch_size=3), script)

    seen = [(call.message, call.counts.abort_count) for call in result.deliveries]
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("c", 0)]
    assert result.story() == []


def test_wcf_40_a_member_that_is_poison_rolls_the_batch_back_and_leaves() -> None:
    script = Script(Scripted("a"), Scripted("b", abort_count=9), Scripted("c"))

    result = replay(move(1, 0, max_batch_size=3), script)

    assert [(call.message, call.counts.abort_count) for call in result.deliveries] == [("a", 0), ("a", 1), ("c", 0)]
    assert result.message("b").place == "poison"
    assert result.story("a", routine=True) == ["DELIVERED", "ROLLED_BACK", "DELIVERED", "COMMITTED"]
    after = [event.type for event in result.events][-4:]
    assert after == ["DELIVERED", "COMMITTED", "DELIVERED", "COMMITTED"]


@pytest.mark.parametrize(("fallback", "third"), [("first_abort", ["a"]), ("when_poison", ["a", "b"])])
def test_wcf_40_what_an_abort_without_poison_does_to_the_next_transaction(fallback: str, third: list[str]) -> None:
    # Given that a commits in the second transaction, alone or together with b
    script = Script({"a": "ok*", "b": "rb ok"})
    result = replay(move(3, 0, max_batch_size=2, batch_fallback=fallback), script)

    story = [(event.type, event.details["message"]) for event in result.events][4:]
    first_commit = next(n for n, (kind, _) in enumerate(story) if kind is EventType.COMMITTED)
    assert [name for _, name in story[:first_commit]] == third


def test_wcf_42_batches_come_back_after_twice_their_size_of_single_commits() -> None:
    names = [f"m{n}" for n in range(8)]
    script = Script(Scripted("bad", "rb ok"), *(Scripted(name) for name in names))

    result = replay(move(1, 0, max_batch_size=2), script)

    kinds = "".join({"DELIVERED": "d", "COMMITTED": "c", "ROLLED_BACK": "r"}[event.type] for event in result.events)
    assert kinds == "dr" + "dc" * 4 + "ddcc" * 2 + "dc"


def test_wcf_42_a_drop_is_no_commit() -> None:
    # Given 4 single commits are needed: bad is dropped in between
    script = Script(Scripted("bad", "rb rb"), *(Scripted(f"m{n}") for n in range(6)))
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Drop", max_batch_size=2)

    kinds = [event.type for event in replay(policy, script).events if event.details["message"] != "bad"]

    shown = "".join({"DELIVERED": "d", "COMMITTED": "c"}[kind] for kind in kinds)
    assert shown == "dc" * 4 + "ddcc"


def test_wcf_42_a_restart_goes_back_to_batches() -> None:
    script = Script(Scripted("bad", "rb ok"), Scripted("m1", at=10), Scripted("m2", at=10), actions=[Action(10, "restart")])

    kinds = [event.type for event in replay(move(1, 0, max_batch_size=2), script).events][4:]

    assert kinds == ["DELIVERED", "DELIVERED", "COMMITTED", "COMMITTED"]


def test_wcf_42_a_restart_between_two_transactions_goes_back_to_batches() -> None:
    script = Script({"bad": "rb(5) ok", "m1": "ok"}, actions=[Action(5, "restart")])

    kinds = [event.type for event in replay(move(1, 0, max_batch_size=2), script).events][2:]

    assert kinds == ["DELIVERED", "DELIVERED", "COMMITTED", "COMMITTED"]


def test_wcf_42_a_batch_commits_when_more_than_80_percent_of_the_timeout_has_passed() -> None:
    script = Script({"a": "ok(48)", "b": "ok(1)", "c": "ok"})

    kinds = [event.type for event in replay(move(1, 0, max_batch_size=9), script).events]

    assert kinds == ["DELIVERED", "DELIVERED", "COMMITTED", "COMMITTED", "DELIVERED", "COMMITTED"]


def test_wcf_43_without_retries_one_failing_member_makes_all_members_poison() -> None:
    policy = unsafe(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3)

    result = replay(policy, Script({"a": "ok", "b": "ok", "c": "rb"}))

    assert [message.place for message in result.messages] == ["poison"] * 3


def test_wcf_30_a_delay_of_0_returns_the_message_before_the_next_receive() -> None:
    script = Script({"a": "rb ok", "b": "ok"})

    assert calls(script, move(0, 1, retry_cycle_delay=timedelta(0))) == ["a", "a", "b"]


def test_poi_1_what_is_in_poison_is_read_and_handled_without_waiting() -> None:
    result = replay(PoisonSubQueue(receive_error_handling="Reject"), Script(Scripted("p", "rb*", move_count=5)))

    assert (result.message("p").place, len(result.deliveries), result.elapsed) == ("dead_letter", 6, timedelta(0))


def test_poi_4_a_fault_leaves_the_message_in_poison() -> None:
    result = replay(PoisonSubQueue(receive_retry_count=1), "rb*")

    assert (result.message().place, result.message().counts, result.halted) == ("poison", Counts(3, 0), Halted.FAULTED)


def test_poi_6_the_sub_queues_names_have_at_most_32_characters_and_need_no_creation() -> None:
    policy = move(0, 2147483647, retry_subqueues="per_cycle")
    last = Script(Scripted("m", "rb", move_count=2 * 2147483646))

    place = replay(policy, last, until=timedelta(0)).message().place
    assert place.startswith("retry")
    assert len(place) <= 32


def test_an_unprocessable_message_goes_to_its_end_without_retries() -> None:
    result = replay(move(5, 2), "rb unprocessable")

    assert result.story() == ["POISON_EXCEPTION", "MOVED_POISON"]
    assert (len(result.deliveries), result.waited) == (2, timedelta(0))


def test_a_postponed_message_waits_uncounted_and_its_batch_commits() -> None:
    script = Script({"a": "ok", "b": "postpone(60) ok", "c": "ok"})

    result = replay(move(1, 0, max_batch_size=3), script)

    assert [(call.message, call.at.total_seconds(), call.counts) for call in result.deliveries] == [
        ("a", 0, Counts()),
        ("b", 0, Counts()),
        ("c", 0, Counts()),
        ("b", 60, Counts()),
    ]
    assert {message.place for message in result.messages} == {"processed"}
