"""What Service Broker's rules make of whole queues: what the worked examples in data form do not say."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.queue_disabling import FailureTracking, QueueDisabledDocument, RecoveryOrder, RecoveryStep
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.values.events import EventType

HANDLING_OFF = ServiceBroker.from_dict({"poison_message_handling": False})


def test_sb_5_16_17_exactly_one_event_with_the_document_of_this_queue_at_this_time() -> None:
    result = replay(ServiceBroker(), Script(Scripted("m1", "rb*", at=7), "ok"), queue="ExpenseQueue")

    [event] = [event for event in result.events if event.type is EventType.QUEUE_DISABLED]
    document = QueueDisabledDocument.from_xml(event.details["document"])
    assert (document.queue, document.post_time) == ("ExpenseQueue", result.started + timedelta(seconds=7))
    assert event.details["error"] == "rb"


def test_sb_5_sb_e14_a_queue_that_people_set_to_off_makes_no_event() -> None:
    result = replay(ServiceBroker(), Script(Scripted("m1", at=10), actions=[Action(5, "disable")]))

    assert (result.halted, result.story(), result.message("m1").place) == (Halted.DISABLED, [], "main")


def test_sb_3_without_detection_the_same_message_is_received_for_ever() -> None:
    result = replay(HANDLING_OFF, {"m1": "rb*", "m2": "ok"}, most_receives=1000)

    assert result.endless
    assert (result.message("m1").deliveries, result.message("m2").deliveries) == (1000, 0)


def test_sb_18_a_disabled_queue_receives_nothing_whoever_waits() -> None:
    result = replay(ServiceBroker(), Script({"m1": "rb*"}, Scripted("late", at=60)))

    assert (result.halted, result.message("late").receives, result.message("late").place) == (Halted.DISABLED, 0, "main")


def test_sb_19_23_what_was_sent_meanwhile_is_received_in_order_when_the_queue_is_on_again() -> None:
    late = [Scripted(f"late{number}", at=60 + number, group="g") for number in range(3)]
    result = replay(ServiceBroker(), Script({"m1": "rb*5 ok"}, *late, actions=[Action(600, "enable")]))

    calls = [(delivery.at.total_seconds(), delivery.message) for delivery in result.deliveries[5:]]
    assert calls == [(600, "m1"), (600, "late0"), (600, "late1"), (600, "late2")]
    assert result.story() == ["QUEUE_DISABLED", "QUEUE_ENABLED"]


def test_sb_24_setting_it_to_on_removes_nothing() -> None:
    result = replay(ServiceBroker(), Script({"m1": "rb*"}, actions=[Action(10, "enable"), Action(20, "enable")]))

    assert (result.message("m1").deliveries, result.message("m1").place) == (15, "main")
    assert result.story().count("QUEUE_DISABLED") == 3


def test_sb_7_set_to_on_while_it_is_on_resets_the_counter_and_makes_no_event() -> None:
    result = replay(ServiceBroker(), Script(Scripted("m1", "rb(1)*8 ok"), actions=[Action(4, "enable")]))

    assert (result.halted, result.story(), result.message("m1").place) == (None, [], "processed")


@pytest.mark.parametrize("order", RecoveryOrder)
def test_sb_15_34_both_recovery_orders_end_in_the_same_state_when_nobody_reads_in_between(order: RecoveryOrder) -> None:
    verbs = {RecoveryStep.END_CONVERSATION: Action(60, "remove", "m1"), RecoveryStep.ENABLE: Action(60, "enable")}
    result = replay(ServiceBroker(recovery_order=order), Script({"m1": "rb*", "m2": "ok"}, actions=[verbs[step] for step in order.steps]))

    ends = {message.name: (message.place, message.deliveries) for message in result.messages}
    assert ends == {"m1": ("removed", 5), "m2": ("processed", 1)}
    assert result.halted is None


def test_sb_e3_healthy_traffic_hides_the_poison_from_the_queue_s_counter_only() -> None:
    script = Script(Scripted("m1", "rb*5 ok", group="g1"), *(Scripted(f"h{number}") for number in range(5)))

    assert replay(ServiceBroker(max_queue_readers=2), script).halted is None
    assert replay(ServiceBroker(max_queue_readers=2, scope="conversation_group"), script).halted is Halted.DISABLED


def test_sb_9_of_three_readers_those_under_way_count_and_disable_nothing_more() -> None:
    result = replay(ServiceBroker(max_queue_readers=3), {"a": "rb*", "b": "rb*", "c": "rb*"})

    assert (len(result.deliveries), result.counters, result.story()) == (6, {"rollbacks": 6}, ["QUEUE_DISABLED"])


def test_sb_2_invalid_requests_never_disable_the_queue_and_are_kept() -> None:
    script = Script(*({f"m{number}": "unprocessable"} for number in range(7)))
    result = replay(ServiceBroker(), script, queue="ExpenseQueue")

    assert {message.place for message in result.messages} == {"ExpenseQueue.dead-letter"}
    assert (result.halted, result.counters, result.story()) == (None, {}, ["DEAD_LETTERED"] * 7)


def test_sb_2_corrupt_messages_are_never_delivered_and_reset_nothing() -> None:
    script = Script(Scripted("m1", "rb*2 postpone(10) rb*3"), *(Scripted(f"x{number}", unreadable="truncated") for number in range(7)))
    result = replay(ServiceBroker(), script, queue="q")

    assert [message.place for message in result.messages] == ["main", *["q.dead-letter"] * 7]
    assert (result.halted, result.counters) == (Halted.DISABLED, {"rollbacks": 5})


def test_sb_8_a_postponed_message_counts_nothing() -> None:
    result = replay(ServiceBroker(), {"m1": "rb*4 postpone(10)"})

    assert (result.halted, result.counters) == (None, {})
    assert replay(ServiceBroker(), Script({"m1": "rb*4 postpone(10)"}), until=timedelta(seconds=5)).counters == {"rollbacks": 4}


def test_sb_8_after_a_savepoint_the_next_full_rollback_counts() -> None:
    result = replay(ServiceBroker(), {"m1": "rb*4 savepoint rb*4 ok"})

    assert (result.halted, result.message("m1").deliveries, result.message("m1").place) == (None, 10, "processed")


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        pytest.param("restart", Halted.DISABLED, id="SB-7 the reader alone"),
        pytest.param("crash", None, id="SB-7 killed"),
        pytest.param("restart_server", None, id="SB-7 the server"),
        pytest.param("restart_broker", None, id="SB-7 the database engine"),
    ],
)
def test_a_restart_of_the_engine_loses_the_counter(verb: str, expected: Halted | None) -> None:
    result = replay(ServiceBroker(), Script(Scripted("m1", "rb(1)*8 ok"), actions=[Action(4, verb)]))

    assert result.halted is expected


@pytest.mark.parametrize("verb", ["restart", "crash", "restart_server", "restart_broker"])
def test_sb_12_a_disabled_queue_stays_disabled_over_a_restart(verb: str) -> None:
    result = replay(ServiceBroker(), Script({"m1": "rb*", "m2": "ok"}, actions=[Action(60, verb)]))

    assert (result.halted, len(result.deliveries)) == (Halted.DISABLED, 5)


def test_sb_7_11_switching_poison_handling_off_and_on_again_starts_anew() -> None:
    off, on = ({"POISON_MESSAGE_HANDLING": switch} for switch in ("OFF", "ON"))
    actions = [
        Action(4, "alter", settings=off),
        Action(4, "restart"),
        Action(10, "alter", settings=on),
        Action(10, "restart"),
        Action(14, "close"),
    ]
    result = replay(ServiceBroker(), Script(Scripted("m1", "rb(1)*"), actions=actions))

    assert (result.halted, len(result.deliveries), result.counters) == (None, 14, {"rollbacks": 4})


@pytest.mark.parametrize(("sixth", "place", "counters"), [("ok", "processed", {}), ("rb", "main", {"rollbacks": 6}), ("savepoint", "main", {})])
def test_sb_13_in_the_background_the_sixth_delivery_slips_in_whatever_comes_of_it(sixth: str, place: str, counters: dict[str, int]) -> None:
    result = replay(ServiceBroker(disabling="background"), {"m1": f"rb*5 {sixth} rb*", "m2": "ok"})

    assert (result.halted, result.story(), len(result.deliveries)) == (Halted.DISABLED, ["QUEUE_DISABLED"], 6)
    assert (result.message("m1").place, result.message("m2").place, result.counters) == (place, "main", counters)


@pytest.mark.parametrize("sixth", ["postpone(60)", "unprocessable"])
def test_sb_13_the_receive_after_it_finds_the_queue_disabled(sixth: str) -> None:
    result = replay(ServiceBroker(disabling="background"), {"m1": f"rb*5 {sixth} rb*", "m2": "ok"})

    assert (result.halted, len(result.deliveries), result.message("m2").place) == (Halted.DISABLED, 6, "main")


def test_sb_13_of_several_readers_one_more_delivery_slips_in() -> None:
    messages = {"m1": "rb*", **{f"h{number}": "rb*" for number in range(9)}}
    result = replay(ServiceBroker(disabling="background", max_queue_readers=4), messages)

    assert (result.halted, len(result.deliveries), result.story()) == (Halted.DISABLED, 9, ["QUEUE_DISABLED"])


def test_sb_23_a_queue_without_readers_is_left_alone() -> None:
    result = replay(ServiceBroker.from_dict({"MAX_QUEUE_READERS": 0}), {"m1": "ok"})

    assert (result.receives, result.message("m1").place, result.halted) == (0, "main", None)


def test_sb_25_an_application_that_tracks_failures_removes_the_poison_message_without_anybody_s_help() -> None:
    tracking, counts, outcomes = FailureTracking(), dict[str, int](), list[str]()
    while "ok" not in outcomes:
        tracked = tracking.failed(counts, "d1")
        counts, outcomes = dict(tracked.counts), [*outcomes, "ok" if tracked.end else "savepoint"]
    result = replay(ServiceBroker(), {"m1": " ".join(outcomes), "m2": "ok"})

    assert [(message.place, message.deliveries) for message in result.messages] == [("processed", 4), ("processed", 1)]
    assert (result.halted, result.story()) == (None, [])


def test_sb_58_tracking_in_the_handler_keeps_the_queue_s_counter_at_0() -> None:
    result = replay(ServiceBroker(), {"m1": "savepoint*50 ok"})

    assert (result.halted, result.counters, result.story()) == (None, {}, [])


outcomes = st.lists(st.sampled_from(["ok", "rb", "savepoint", "crash", "timeout", "unprocessable", "rb*4", "rb*5"]), min_size=1, max_size=6)


@given(st.lists(outcomes, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from(["queue", "conversation_group"]))
def test_sb_4_10_18_disabled_once_or_everything_is_received(scripts: list[list[str]], readers: int, scope: str) -> None:
    script = Script({f"m{number}": " ".join(words) for number, words in enumerate(scripts)})
    result = replay(ServiceBroker(max_queue_readers=readers, scope=scope), script)

    left = [message for message in result.messages if message.place == "main"]
    assert result.story().count("QUEUE_DISABLED") == (1 if left else 0)
    assert (result.halted is Halted.DISABLED) == bool(left)
    assert max(result.counters.values(), default=0) <= 4 + readers


def test_sb_23_two_readers_never_have_messages_of_one_group_at_the_same_time() -> None:
    result = replay(ServiceBroker(max_queue_readers=2), Script(Scripted("a", "rb ok", group="g"), Scripted("b", group="g"), Scripted("c")))

    assert [delivery.message for delivery in result.deliveries] == ["a", "c", "a", "b"]


def test_sb_7_to_switch_poison_handling_off_forgets_the_counter_at_once() -> None:
    # Given four rollbacks, and an endpoint that is closed while the handling is switched off and on again
    messages = [Scripted("m1", "rb*4 postpone(10) rb*4 ok")]
    switched = [Action(5, "alter", settings={"POISON_MESSAGE_HANDLING": status}) for status in ("OFF", "ON")]

    kept = replay(ServiceBroker(), Script(*messages, actions=[Action(5, "close"), Action(5, "open")]))
    forgotten = replay(ServiceBroker(), Script(*messages, actions=[Action(5, "close"), *switched, Action(5, "open")]))

    assert (kept.halted, kept.message("m1").deliveries) == (Halted.DISABLED, 6)
    assert (forgotten.halted, forgotten.message("m1").place) == (None, "processed")
