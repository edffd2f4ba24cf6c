"""Replays of the WebSphere default messaging provider: what the worked examples' data cannot say."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.values.errors import ConfigurationWarning
from airflow_poison.values.events import EventType
from tests.conformance.examples.default_messaging import E6, E8, SYSTEM

HOUR = timedelta(hours=1)


def lenient(**settings: Any) -> DefaultMessaging:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        return DefaultMessaging(**settings)


KEPT = DefaultMessaging(exception_destination="None", max_failed_deliveries=2)
NEVER = lenient(exception_destination="None", max_failed_deliveries=2, override_blocked_retry_timeout=True)


def test_dmp_18_dmp_e8_the_header_of_the_message_of_dmp_e1() -> None:
    script = Script(Scripted("m", "rb(60)*", properties={"kind": "order"}))

    result = replay(DefaultMessaging(), script, queue="orders")

    headers, fifth_rollback = result.message().headers, result.started + 5 * timedelta(seconds=60)
    assert headers["JMS_IBM_ExceptionReason"] == "SIRC0035"
    assert headers["JMS_IBM_ExceptionProblemDestination"] == "orders"
    assert datetime.fromtimestamp(int(headers["JMS_IBM_ExceptionTimestamp"]) / 1000, UTC) == fifth_rollback
    assert all(name.startswith("JMS_IBM_Exception") for name in headers)


def test_dmp_8_dmp_e1_one_exceptioned_event_and_the_message_is_not_back_in_between() -> None:
    result = replay(DefaultMessaging(), "rb*")

    assert [str(event.type) for event in result.events][-2:] == ["ROLLED_BACK", "EXCEPTIONED"]
    assert [event.abort_count for event in result.events if event.type is EventType.ROLLED_BACK] == [1, 2, 3, 4, 5]
    assert result.receives == 5


def test_dmp_10_0_milliseconds_redeliver_at_once() -> None:
    policy = DefaultMessaging(exception_destination="None", max_failed_deliveries=1, override_blocked_retry_timeout=True, blocked_retry_timeout=0)

    result = replay(policy, {"x": "rb rb rb ok", "y": "ok"})

    assert result.elapsed == timedelta(0)
    assert [call.message for call in result.deliveries] == ["x", "x", "x", "x", "y"]
    assert result.story("x") == ["BLOCKED"] * 3


def test_dmp_10_never_means_never() -> None:
    result = replay(NEVER, {"x": "rb rb ok", "y": "ok"}, until=1000 * HOUR)

    assert len(result.deliveries) == 2
    assert (result.message("x").place, result.message("y").place) == ("main", "main")


def test_dmp_10_never_without_a_blocked_destination_concerns_that_message_alone() -> None:
    policy = lenient(exception_destination="None", max_failed_deliveries=1, override_blocked_retry_timeout=True, destination_blocked=False)

    result = replay(policy, {"x": "rb ok", "y": "ok"}, until=1000 * HOUR)

    assert (result.message("x").deliveries, result.message("y").place) == (1, "processed")


def test_dmp_15_the_product_s_minus_1_is_the_engine_s_interval() -> None:
    policy = DefaultMessaging(
        exception_destination="None", max_failed_deliveries=1, override_blocked_retry_timeout=True, negative_timeout="engine_default"
    )

    assert replay(policy, "rb ok").elapsed == timedelta(seconds=5)


def test_dmp_10_dmp_19_a_restart_of_the_messaging_engine_ends_any_wait_and_sets_the_count_to_0() -> None:
    script = Script(Scripted("x", "rb rb rb ok"), Scripted("y"), actions=[Action(100, "restart_broker")])

    result = replay(NEVER, script)

    assert [(call.message, call.at.total_seconds(), call.counts.abort_count) for call in result.deliveries] == [
        ("x", 0, 0),
        ("x", 0, 1),
        ("x", 100, 0),
        ("x", 100, 1),
        ("y", 100, 0),
    ]


def test_dmp_19_a_persisted_count_survives_the_restart() -> None:
    policy = lenient(exception_destination="None", max_failed_deliveries=2, override_blocked_retry_timeout=True, persist_redelivery_count=True)
    script = Script(Scripted("x", "rb rb rb"), actions=[Action(100, "restart_broker")])

    result = replay(policy, script)

    assert [call.counts.abort_count for call in result.deliveries] == [0, 1, 2]
    assert result.story() == ["BLOCKED", "BLOCKED"]


@pytest.mark.parametrize("restart", ["restart", "restart_server", "crash"])
def test_dmp_19_restarts_of_the_reader_keep_the_count_and_the_wait(restart: str) -> None:
    result = replay(KEPT, Script(Scripted("x", "rb rb rb ok"), actions=[Action(2, restart)]))

    assert [(call.at.total_seconds(), call.counts.abort_count) for call in result.deliveries] == [(0, 0), (0, 1), (5, 2), (10, 3)]


def test_dmp_14_the_removal_of_the_message_ends_any_wait() -> None:
    script = Script(Scripted("x", "rb*"), Scripted("y"), actions=[Action(100, "remove", "x")])

    result = replay(NEVER, script)

    assert (result.message("x").place, result.message("y").place) == ("removed", "processed")
    assert result.deliveries[-1].at == timedelta(seconds=100)


def test_dmp_14_messages_that_arrive_while_the_destination_is_blocked_wait_too() -> None:
    result = replay(KEPT, Script(Scripted("x", "rb rb ok"), Scripted("urgent", at=2, priority=10)))

    assert [(call.message, call.at.total_seconds()) for call in result.deliveries] == [("x", 0), ("x", 0), ("urgent", 5), ("x", 5)]


def test_dmp_12_with_none_a_hopeless_message_is_delivered_for_ever_and_its_count_grows() -> None:
    result = replay(KEPT, "rb*", until=timedelta(seconds=60))

    assert [call.counts.abort_count for call in result.deliveries] == list(range(14))
    assert result.story() == ["BLOCKED"] * 13


def test_dmp_17_dmp_e6_a_missing_destination_is_warned_about() -> None:
    missing = E6[1]

    result = replay(missing.policy, missing.script, access=missing.access)

    assert result.events[-1].details["warning"].startswith("CWSIP0291")
    assert result.events[-1].details["place"] == SYSTEM


def test_dmp_17_dmp_e6_without_authority_nothing_is_delivered_until_a_restart() -> None:
    policy = DefaultMessaging(exception_destination="errQ", max_failed_deliveries=3)
    script = Script({"x": "rb*", "y": "ok"}, actions=[Action(3600, "restart_broker")])

    result = replay(policy, script, access={"errQ": Access.DENIED})

    assert [call.at.total_seconds() for call in result.deliveries] == [0, 0, 0, 3600, 3600, 3600]
    assert result.message("y").place == "main"
    assert all(event.details["warning"].startswith("CWSIP0313") for event in result.events if event.type is EventType.BLOCKED)


def test_dmp_17_while_no_exception_destination_can_be_had_sending_is_tried_again() -> None:
    result = replay(DefaultMessaging(max_failed_deliveries=1), "rb rb rb ok", access={SYSTEM: Access.MISSING})

    assert [call.at.total_seconds() for call in result.deliveries] == [0, 5, 10, 15]
    assert result.message().place == "processed"


@pytest.mark.parametrize(("example", "code"), [(E8[1], "CWSIV0906"), (E8[2], "CWSIV0907")])
def test_dmp_20_dmp_e8_a_forced_stop_says_so(example: Any, code: str) -> None:
    result = replay(example.policy, example.script)

    stops = [event for event in result.events if event.type is EventType.STOPPED]
    assert stops
    assert all(code in stop.details["warning"] for stop in stops)


def test_dmp_20_strict_ordering_lets_nobody_overtake_a_message_that_waits() -> None:
    policy = DefaultMessaging(exception_destination="None", max_failed_deliveries=1, strict_message_ordering=True, destination_blocked=False)

    result = replay(policy, {"x": "rb ok", "y": "ok"})

    assert [call.message for call in result.deliveries] == ["x", "x", "y"]


def test_dmp_20_several_sessions_stop_once_and_take_in_what_is_in_flight() -> None:
    policy = DefaultMessaging(max_concurrency=4, auto_stop_sequential_message_failure=2)

    result = replay(policy, {"a": "rb*", "b": "rb*", "c": "rb*", "d": "ok", "e": "ok"})

    assert result.story() == ["STOPPED"]
    assert [message.counts.abort_count for message in result.messages] == [1, 1, 1, 0, 0]
    assert [message.place for message in result.messages] == ["main", "main", "main", "processed", "main"]
    assert dict(result.counters) == {}


def test_dmp_20_a_crash_begins_a_new_sequence() -> None:
    policy = DefaultMessaging(auto_stop_sequential_message_failure=3)

    crashed = replay(policy, Script(Scripted("m", "rb(10) rb(10) rb rb ok"), actions=[Action(20, "crash")]))
    undisturbed = replay(policy, Script(Scripted("m", "rb(10) rb(10) rb rb ok")))

    assert crashed.message().place == "processed"
    assert (undisturbed.story(), len(undisturbed.deliveries)) == (["STOPPED"], 3)


def test_dmp_2_unprocessable_messages_go_to_the_exception_destination_at_once_or_wait() -> None:
    moved, kept = replay(DefaultMessaging(), "unprocessable"), replay(KEPT, "unprocessable ok")

    assert (moved.message().place, len(moved.deliveries)) == (SYSTEM, 1)
    assert (kept.story(), kept.elapsed, kept.message().place) == (["BLOCKED"], timedelta(seconds=5), "processed")
