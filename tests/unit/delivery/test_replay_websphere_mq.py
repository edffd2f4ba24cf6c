"""What replays show of WebSphere MQ beyond the worked examples as data: order, sessions, restarts, headers, reports."""

from __future__ import annotations

from base64 import b64decode
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import websphere_mq
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Counts, Halted, Report
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.rules.websphere_mq import parse
from tests.unit.delivery.websphere_mq import NEVER_STOPS, delivered, port, specification, starts

if TYPE_CHECKING:
    from airflow_poison.rules.listener_port import ListenerPort

TEN = {f"m{number}": "rb*" for number in range(1, 11)}


def test_wmq_1_what_follows_a_rollback_depends_on_what_the_bean_is_bound_to() -> None:
    # Given a limit of 2, two sessions, and two messages that fail once each
    script = Script({"a": "rb ok", "b": "rb ok"})

    stopped = replay(specification(failure_delivery_count=2, max_server_sessions=2), script)
    going_on = replay(port(max_retries=2, max_sessions=2), script)

    assert (stopped.story(), delivered(stopped)) == (["STOPPED"], ["a", "b"])
    assert (going_on.story(), delivered(going_on)) == ([], ["a", "b", "a", "b"])


@pytest.mark.parametrize("early", [0, 1, 2])
def test_wmq_e3_wmq_20_five_to_seven_deliveries_one_stop_and_all_ten_still_there(early: int) -> None:
    policy = specification(failure_delivery_count=3, max_server_sessions=5, backout_threshold=5, early_hand_out=early)

    result = replay(policy, Script(TEN))

    assert 5 <= len(result.deliveries) <= 7
    assert result.story() == ["STOPPED"]
    assert {message.place for message in result.messages} == {"main"}
    assert result.counters == {"sequential_failures": len(result.deliveries)}


def test_wmq_19_different_poison_messages_stop_the_endpoint_before_any_reaches_the_threshold() -> None:
    result = replay(specification(failure_delivery_count=3, max_server_sessions=3, backout_threshold=5), Script({"a": "rb*", "b": "rb*", "c": "rb*"}))

    assert result.story() == ["STOPPED"]
    assert all(message.counts == Counts(1) for message in result.messages)


def test_wmq_16_two_poison_messages_in_a_row_add_up_with_one_session_too() -> None:
    policy = specification(failure_delivery_count=6, backout_threshold=5)

    result = replay(policy, Script({"a": "rb*", "b": "rb*"}))

    assert result.story() == ["REQUEUED", "STOPPED"]
    assert delivered(result) == ["a"] * 5 + ["b"]
    assert result.counters == {"sequential_failures": 6}


def test_wmq_14_item_21_a_requeue_that_resets_the_counter_keeps_the_endpoint_going() -> None:
    policy = specification(failure_delivery_count=6, backout_threshold=5, requeue_resets_counter=True)

    result = replay(policy, Script({"a": "rb*", "b": "rb*"}))

    assert result.story() == ["REQUEUED", "REQUEUED"]
    assert result.halted is None


def test_wmq_e1_wmq_14_after_the_requeue_the_counter_is_still_1() -> None:
    result = replay(specification(failure_delivery_count=5, backout_threshold=1), "rb*")

    assert (result.story(), result.counters) == (["REQUEUED"], {"sequential_failures": 1})


def test_wmq_18_a_success_in_any_session_sets_the_counter_to_0() -> None:
    # Given five sessions whose results come in session order: four failures and, in between, one success
    result = replay(specification(failure_delivery_count=3, max_server_sessions=5), Script({"a": "rb", "b": "rb", "c": "ok", "d": "rb", "e": "rb"}))

    assert result.halted is None
    assert result.counters == {"sequential_failures": 0}


def test_wmq_21_only_an_endpoint_that_never_stops_always_moves_its_poison_messages() -> None:
    script = Script(TEN)

    ticked = replay(specification(failure_delivery_count=11, backout_threshold=5), script)
    not_ticked = replay(specification(**NEVER_STOPS, failure_delivery_count=11, backout_threshold=5), script)

    assert "STOPPED" in ticked.story()
    assert not_ticked.story() == ["REQUEUED"] * 10


@pytest.mark.parametrize("limit", [0, 7])
@pytest.mark.parametrize("sessions", [1, 5])
def test_wmq_e5_wmq_11_not_ticked_and_threshold_0_is_endless(limit: int, sessions: int) -> None:
    policy = specification(**NEVER_STOPS, failure_delivery_count=limit, max_server_sessions=sessions)

    result = replay(policy, Script({"p": "rb*", "g": "ok"}), most_receives=100)

    assert result.endless
    assert result.story() == []
    assert result.message("p").counts == Counts(100 if sessions == 1 else 99)
    assert result.message("g").place == ("main" if sessions == 1 else "processed")


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 4))
def test_wmq_13_deliveries_of_hopeless_messages_are_the_threshold_detections_one_more(threshold: int, messages: int, sessions: int) -> None:
    policy = specification(**NEVER_STOPS, backout_threshold=threshold, max_server_sessions=sessions)

    result = replay(policy, Script({f"m{number}": "rb*" for number in range(messages)}))

    assert {(message.deliveries, message.receives, message.place) for message in result.messages} == {(threshold, threshold + 1, "B.Q")}


def test_wmq_12_wmq_5_a_requeue_waits_until_the_stopped_endpoint_starts_again() -> None:
    policy = specification(failure_delivery_count=3, backout_threshold=3)

    stopped = replay(policy, "rb*")
    restarted = replay(policy, Script("rb*", actions=starts(10)))

    assert (stopped.message().place, stopped.message().counts, stopped.receives) == ("main", Counts(3), 3)
    assert (restarted.message().place, restarted.receives, len(restarted.deliveries)) == ("B.Q", 4, 3)


def test_wmq_15_what_was_rolled_back_is_at_the_top_again() -> None:
    result = replay(specification(**NEVER_STOPS), Script({"a": "ok", "p": "rb rb ok", "g": "ok"}))

    assert delivered(result) == ["a", "p", "p", "p", "g"]


@pytest.mark.parametrize("sessions", [1, 3])
def test_wmq_15_a_started_endpoint_begins_at_the_top(sessions: int) -> None:
    policy = specification(failure_delivery_count=0, max_server_sessions=sessions)

    result = replay(policy, Script({"p": "rb*"}, dict.fromkeys("abcdef", "ok"), actions=starts(10, 20)))

    first_of_each_start = [next(call.message for call in result.deliveries if call.at == timedelta(seconds=at)) for at in (0, 10, 20)]
    assert first_of_each_start == ["p", "p", "p"]


@pytest.mark.parametrize(
    ("next_message", "order"),
    [
        pytest.param(None, ["m1", "m2", "m3", "m4", "m5", "m1", "m2", "m3", "m4", "m5"], id="WMQ-29 sweep"),
        pytest.param("top", ["m1", "m2", "m1", "m2", "m3", "m4", "m3", "m4", "m5", "m5"], id="WMQ-29 item 22 top"),
    ],
)
def test_with_two_sessions_the_browse_moves_on(next_message: str | None, order: list[str]) -> None:
    policy = specification(**NEVER_STOPS, max_server_sessions=2, next_message=next_message)

    assert delivered(replay(policy, Script({f"m{number}": "rb ok" for number in range(1, 6)}))) == order


def test_wmq_29_within_a_round_the_sweep_wraps_but_never_to_a_message_in_flight() -> None:
    result = replay(specification(**NEVER_STOPS, max_server_sessions=5), Script({"a": "rb ok", "b": "rb ok"}))

    assert delivered(result) == ["a", "b", "a", "b"]


def test_wmq_23_a_new_threshold_takes_effect_when_the_endpoint_starts_again() -> None:
    # Given one failing delivery every 10 s, and BOTHRESH lowered from 9 to 2 at 25 s
    policy = specification(**NEVER_STOPS, backout_threshold=9)
    lowered = Action(25, "alter", settings={"BOTHRESH": 2})

    without = replay(policy, Script("rb(10)*", actions=[lowered]))
    restarted = replay(policy, Script("rb(10)*", actions=[lowered, Action(50, "restart")]))

    assert len(without.deliveries) == 9
    assert len(restarted.deliveries) == 5
    assert restarted.message().place == "B.Q"


def test_wmq_10_item_20_with_plain_equality_a_lowered_threshold_is_missed() -> None:
    policy = specification(**NEVER_STOPS, backout_threshold=9, compare="equals")
    script = Script("rb(10)*", actions=[Action(50, "alter", settings={"BOTHRESH": 2}), Action(50, "restart")])

    assert replay(policy, script, most_receives=50).endless


def test_wmq_27_wmq_e9_an_inactive_endpoint_delivers_nothing_until_it_is_resumed() -> None:
    policy = specification(endpoint_initial_state="INACTIVE")

    waiting = replay(policy, "ok")
    resumed = replay(policy, Script("ok", actions=starts(60)))

    assert (delivered(waiting), waiting.halted, waiting.message().place) == ([], Halted.STOPPED, "main")
    assert (resumed.story(), resumed.message().place) == (["STARTED"], "processed")


@pytest.mark.parametrize("outcome", ["rb", "timeout", "crash", "before_operation"], ids=lambda outcome: f"WMQ-26 {outcome}")
def test_a_failure_before_during_or_after_the_delivery_stops_the_default_endpoint(outcome: str) -> None:
    result = replay(specification(), outcome)

    assert result.story() == ["STOPPED"]
    assert (result.message().counts, result.counters) == (Counts(1), {"sequential_failures": 1})


def test_wmq_26_a_delivery_longer_than_the_transaction_is_a_failure() -> None:
    result = replay(specification(transaction_timeout=30), "ok(31)")

    assert (result.story(), result.elapsed) == (["STOPPED"], timedelta(seconds=30))


@pytest.mark.parametrize("policy", [specification(failure_delivery_count=5), port(max_retries=5)], ids=lambda policy: policy.system)
def test_an_unprocessable_message_goes_at_once(policy: ActivationSpecification | ListenerPort) -> None:
    result = replay(policy, Script({"p": "rb unprocessable", "g": "ok"}))

    assert result.story() == ["REQUEUED"]
    assert (result.message("p").place, delivered(result)) == ("B.Q", ["p", "p", "g"])


def test_an_unprocessable_message_is_no_rollback_for_the_counter() -> None:
    result = replay(specification(failure_delivery_count=2), Script({"a": "unprocessable", "b": "rb rb"}))

    assert result.story() == ["REQUEUED", "STOPPED"]
    assert result.counters == {"sequential_failures": 2}


def test_wmq_24_an_unreadable_message_is_dead_lettered_without_a_delivery() -> None:
    result = replay(specification(backout_requeue_queue=""), Scripted("p", unreadable="no JMS message"))

    assert (result.story(), delivered(result)) == (["DEAD_LETTERED"], [])
    assert parse(b64decode(result.message("p").headers["mq.dead_letter_header"])).reason == 2364


DEAD_LETTERED = [
    pytest.param("", Access.GRANTED, id="WMQ-E7 empty"),
    pytest.param("B.Q", websphere_mq.access_with({"Get", "Inquire", "Pass All Context", "Put"}), id="WMQ-E7 Set All Context missing"),
    pytest.param("B.Q", websphere_mq.access_with({"Get", "Inquire", "Put", "Set All Context"}), id="WMQ-E7 Pass All Context missing"),
]


@pytest.mark.parametrize(("queue", "access"), DEAD_LETTERED)
def test_the_header_of_a_dead_lettered_message_names_its_queue(queue: str, access: Access) -> None:
    policy = specification(**NEVER_STOPS, backout_threshold=2, backout_requeue_queue=queue, queue_manager="QM1")

    result = replay(policy, "rb*", queue="test", access={"B.Q": access})

    written = b64decode(result.message().headers["mq.dead_letter_header"])
    header = parse(written)
    assert (len(written), header.reason, header.destination, header.queue_manager) == (172, 2362, "test", "QM1")
    assert result.message().place == "SYSTEM.DEAD.LETTER.QUEUE"


def test_wmq_e7_exception_with_data_sends_100_bytes_besides() -> None:
    asked = {"JMS_IBM_Report_Exception": "MQRO_EXCEPTION_WITH_DATA", "JMSReplyTo": "R.Q"}

    result = replay(specification(**NEVER_STOPS, backout_threshold=2), Script(Scripted("p", "rb*", properties=asked)))

    assert result.reports == (Report(to="R.Q", feedback=2362, data=100),)
    assert (result.message("p").place, result.message("p").headers) == ("B.Q", {})


def test_a_message_that_no_queue_takes_waits_and_lets_others_pass() -> None:
    policy = specification(**NEVER_STOPS, backout_threshold=2, backout_requeue_queue="")

    result = replay(policy, Script({"p": "rb*", "g": "ok"}), access={"SYSTEM.DEAD.LETTER.QUEUE": Access.MISSING})

    assert result.story() == ["BLOCKED"]
    assert (result.message("p").deliveries, result.message("g").place) == (2, "processed")


def test_wmq_28_wmq_e5_a_limit_that_must_be_exceeded_stops_one_failure_later() -> None:
    reaches = replay(specification(failure_delivery_count=3), "rb*")
    more_than = replay(specification(failure_delivery_count=3, stop_rule="more_than"), "rb*")

    assert (len(reaches.deliveries), len(more_than.deliveries)) == (3, 4)


def test_wmq_8_the_counter_goes_on_over_passes_and_begins_anew_after_the_server() -> None:
    policy = specification(failure_delivery_count=0)

    again = replay(policy, Script("rb*", actions=starts(10)))
    reset = replay(policy, Script("rb*", actions=[Action(10, "restart_server")]))
    on_start = replay(specification(failure_delivery_count=0, reset_on_start=True), Script("rb*", actions=starts(10)))

    assert [result.counters["sequential_failures"] for result in (again, reset, on_start)] == [2, 1, 1]


def test_wmq_8_reset_on_start_resets_at_a_start_and_at_no_change_of_a_setting() -> None:
    policy = specification(failure_delivery_count=0, reset_on_start=True)
    changes = [Action(5, "alter", settings={"BOTHRESH": 7}), Action(6, "alter", settings={"reset_on_start": False})]

    stopped = replay(policy, Script("rb*", actions=changes[:1]))
    started = replay(policy, Script("rb*", actions=[*changes, *starts(10)]))

    assert [result.counters["sequential_failures"] for result in (stopped, started)] == [1, 2]


def test_wmq_26_a_delivery_that_the_close_of_the_endpoint_rolls_back_counts_for_c() -> None:
    script = Script(Scripted("p", "ok(10)"), actions=[Action(5, "close")])

    result = replay(ActivationSpecification(max_server_sessions=1, failure_delivery_count=3), script)

    assert (result.message("p").counts.abort_count, dict(result.counters)) == (1, {"sequential_failures": 1})


def test_wmq_29_at_the_end_of_the_queue_the_sweep_begins_again_at_the_top() -> None:
    # Given a message that was processed before two others arrive, of which the second has a higher priority
    policy = specification(**NEVER_STOPS, max_server_sessions=2)

    result = replay(policy, Script(Scripted("a"), Scripted("b", at=10), Scripted("c", at=10, priority=9)))

    assert delivered(result) == ["a", "c", "b"]
