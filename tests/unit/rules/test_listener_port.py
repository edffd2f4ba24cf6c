"""The decisions and the settings of a listener port."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Counts, Dispose, Halt, Halted, Return
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.policy import Opening, Restart
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, RAISED, message

QUEUE = {"backout_threshold": 3, "backout_requeue_queue": "B.Q"}
UNPROCESSABLE = Failure(FailureKind.UNPROCESSABLE)


def test_lp_1_lp_6_the_defaults() -> None:
    with warnings.catch_warnings(action="error"):
        policy = ListenerPort()

    assert (policy.max_retries, policy.max_sessions, policy.stop_rule, policy.backout_threshold) == (0, 1, "reaches", 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_retries", -1),
        ("max_retries", 2147483648),
        ("max_retries", True),
        ("max_sessions", 0),
        ("stop_rule", "equals"),
        ("stop_rule", "never"),
        ("backout_threshold", -1),
        ("early_hand_out", 3),
    ],
    ids=lambda value: f"LP-E8 {value}",
)
def test_a_value_that_is_not_allowed_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=setting) as caught:
        ListenerPort(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)


def test_lp_1_the_range_of_maximum_retries() -> None:
    assert ListenerPort(max_retries=2147483647).max_retries == 2147483647


@pytest.mark.parametrize("word", ["maxRetries", "Maximum retries", "max_retries"])
def test_lp_1_the_manuals_words_are_accepted(word: str) -> None:
    assert ListenerPort.from_dict({word: 4}).max_retries == 4
    assert ListenerPort.from_dict({"Maximum sessions": 2}).server_sessions == 2


@pytest.mark.parametrize("word", ["MAX.RECOVERY.RETRIES", "RECOVERY.RETRY.INTERVAL"])
def test_lp_5_lp_e8_what_concerns_lost_connections_is_no_setting_of_the_rules(word: str) -> None:
    with pytest.raises(SettingError, match=word):
        ListenerPort.from_dict({word: 5})


@pytest.mark.parametrize(
    ("rule", "retries", "count"),
    [
        pytest.param("reaches", 0, 1, id="LP-2 R 0: the first failure"),
        pytest.param("reaches", 1, 1, id="LP-2 R 1"),
        pytest.param("reaches", 3, 3, id="LP-2 R 3"),
        pytest.param("more_than", 0, 1, id="LP-2 item 23 R 0"),
        pytest.param("more_than", 3, 4, id="LP-2 item 23 R 3"),
    ],
)
def test_the_port_stops_when_the_messages_count(rule: str, retries: int, count: int) -> None:
    policy = ListenerPort(stop_rule=rule, max_retries=retries)

    for before in range(count - 1):
        assert policy.open().after_rollback(message(before), RAISED, NOW) == Return(Counts(before + 1))
    decision = policy.open().after_rollback(message(count - 1), RAISED, NOW)

    assert isinstance(decision, Halt)
    assert (decision.how, decision.counts, decision.events) == (Halted.STOPPED, Counts(count), (EventType.STOPPED,))


def test_lp_5_the_stop_names_its_message() -> None:
    decision = ListenerPort(max_retries=2).open(Opening(queue="orders")).after_rollback(message(1), RAISED, NOW)

    assert isinstance(decision, Halt)
    assert decision.details["code"] == "WMSG0036E"
    assert "orders" in decision.details["text"]


def test_lp_8_a_message_beyond_the_limit_stops_the_port_again() -> None:
    assert isinstance(ListenerPort(max_retries=2).open().after_rollback(message(7), RAISED, NOW), Halt)


def test_lp_3_failures_of_different_messages_do_not_add_up() -> None:
    receiver = ListenerPort(max_retries=2, max_sessions=9).open()

    assert all(receiver.after_rollback(message(), RAISED, NOW) == Return(Counts(1)) for _ in range(9))
    assert receiver.counters() == {}


def test_lp_6_what_other_sessions_have_does_not_stop_the_port_twice() -> None:
    receiver = ListenerPort(max_sessions=3).open()

    decisions = [receiver.after_rollback(message(), RAISED, NOW) for _ in range(3)]

    assert [type(decision) for decision in decisions] == [Halt, Return, Return]
    assert all(decision.counts == Counts(1) for decision in decisions)


def test_lp_3_with_one_session_a_decision_depends_on_the_message_alone() -> None:
    assert ListenerPort().stateless
    assert not ListenerPort(max_sessions=2).stateless
    assert not ListenerPort(next_message="sweep").stateless
    assert ListenerPort().halting
    assert ListenerPort(max_sessions=2).halting


@pytest.mark.parametrize(("sessions", "sweeps"), [(1, False), (2, True)], ids=["LP-6 top", "LP-6 section 11.1 sweep"])
def test_with_several_sessions_a_listener_port_sweeps_likewise(sessions: int, sweeps: bool) -> None:  # noqa: FBT001
    assert ListenerPort(max_sessions=sessions).sweeps is sweeps


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.TIMEOUT, FailureKind.CRASH])
def test_lp_2_every_rollback_counts(kind: FailureKind) -> None:
    assert ListenerPort(max_retries=5).open().after_rollback(message(1), Failure(kind), NOW) == Return(Counts(2))


def test_an_unprocessable_message_is_no_rollback_and_goes_where_a_requeue_would_go() -> None:
    receiver = ListenerPort(backout_requeue_queue="B.Q").open()

    assert receiver.after_rollback(message(1), UNPROCESSABLE, NOW) == Return(Counts(1))
    decision = receiver.give_up(message(1), UNPROCESSABLE, NOW)

    assert isinstance(decision, Dispose)
    assert (decision.destination, decision.events) == ("B.Q", (EventType.REQUEUED,))


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        pytest.param(QUEUE | {"max_retries": 2}, True, id="LP-4 R < BOTHRESH"),
        pytest.param(QUEUE | {"max_retries": 3}, True, id="LP-4 R = BOTHRESH"),
        pytest.param(QUEUE | {"max_retries": 4}, False, id="LP-4 R > BOTHRESH"),
        pytest.param(QUEUE | {"max_retries": 3, "stop_rule": "more_than"}, False, id="LP-4 item 23"),
        pytest.param({"max_retries": 0}, False, id="LP-4 BOTHRESH 0"),
    ],
)
def test_a_port_that_stops_before_the_requeue_warns(settings: dict[str, Any], warned: bool) -> None:  # noqa: FBT001
    with warnings.catch_warnings(record=True, action="always") as caught:
        ListenerPort(**settings)

    assert [(warning.category, warning.filename) for warning in caught] == [(ConfigurationWarning, __file__)] * warned
    assert all("before it is requeued" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("restart", Restart)
def test_lp_2_the_count_is_kept_over_every_restart(restart: Restart) -> None:
    assert ListenerPort().counts_after(Counts(2), restart) == Counts(2)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_retries": st.integers(0, 2147483647),
            "max_sessions": st.integers(1, 100),
            "stop_rule": st.sampled_from(["reaches", "more_than"]),
            "backout_threshold": st.integers(0, 2147483647),
            "backout_requeue_queue": st.sampled_from(["", "B.Q"]),
            "zos": st.booleans(),
            "next_message": st.none() | st.sampled_from(["sweep", "top"]),
            "early_hand_out": st.integers(0, 2),
        },
    )
)
def test_json_and_pickle_keep_every_setting(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        policy = ListenerPort(**settings)

    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert pickle.loads(pickle.dumps(policy.open())).policy == policy
