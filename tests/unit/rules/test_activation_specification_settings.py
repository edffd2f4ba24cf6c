"""The settings of an activation specification and its queue: defaults, what is refused, what is warned about, other words, JSON."""

from __future__ import annotations

import json
import pickle
import warnings
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Halted
from airflow_poison.values.errors import ConfigurationHint, ConfigurationWarning, SettingError

QUEUE = {"backout_threshold": 5, "backout_requeue_queue": "B.Q"}


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        pytest.param("stop_endpoint_if_delivery_fails", True, id="WMQ-3 stop"),
        pytest.param("failure_delivery_count", 0, id="WMQ-3 N"),
        pytest.param("backout_threshold", 0, id="WMQ-3 BOTHRESH"),
        pytest.param("backout_requeue_queue", "", id="WMQ-3 BOQNAME"),
        pytest.param("max_server_sessions", 10, id="WMQ-E9 S"),
        pytest.param("dead_letter_queue", "SYSTEM.DEAD.LETTER.QUEUE", id="WMQ-10"),
        pytest.param("stop_rule", "reaches", id="WMQ-7"),
        pytest.param("reset_on_start", False, id="WMQ-8"),
        pytest.param("compare", "at_least", id="WMQ-10 item 20"),
        pytest.param("requeue_resets_counter", False, id="WMQ-14"),
        pytest.param("counter_over_broker_restart", "kept", id="ZOS-8"),
        pytest.param("endpoint_initial_state", "ACTIVE", id="WMQ-27"),
        pytest.param("effective_transaction_timeout", timedelta(seconds=120), id="total transaction lifetime"),
    ],
)
def test_wmq_e9_nothing_set(setting: str, default: object) -> None:
    with warnings.catch_warnings(action="error"):
        assert getattr(ActivationSpecification(), setting) == default


@pytest.mark.parametrize(
    ("manual", "setting", "value"),
    [
        ("stopEndpointIfDeliveryFails", "stop_endpoint_if_delivery_fails", False),
        ("Stop endpoint if message delivery fails", "stop_endpoint_if_delivery_fails", False),
        ("failureDeliveryCount", "failure_delivery_count", 4),
        ("Number of sequential delivery failures before suspending endpoint", "failure_delivery_count", 4),
        ("BOTHRESH", "backout_threshold", 2),
        ("bothresh", "backout_threshold", 2),
        ("BOQNAME", "backout_requeue_queue", "B.Q"),
        ("DEADQ", "dead_letter_queue", "D.Q"),
        ("Maximum server sessions", "max_server_sessions", 3),
        ("maxPoolDepth", "max_server_sessions", 3),
        ("WAS_EndpointInitialState", "endpoint_initial_state", "INACTIVE"),
    ],
)
def test_wmq_2_the_manuals_words_are_accepted(manual: str, setting: str, value: object) -> None:
    assert getattr(ActivationSpecification.from_dict({manual: value}), setting) == value


REFUSED: list[tuple[str, Any]] = [
    ("failure_delivery_count", -1),
    ("backout_threshold", -1),
    ("max_server_sessions", 0),
    ("failure_delivery_count", 2147483648),
    ("failure_delivery_count", True),
    ("backout_threshold", 2.0),
    ("stop_endpoint_if_delivery_fails", 1),
    ("stop_rule", "maximum"),
    ("reset_on_start", "yes"),
    ("requeue_resets_counter", 0),
    ("counter_over_broker_restart", "lost"),
    ("endpoint_initial_state", "PAUSED"),
    ("compare", ">"),
    ("zos", 1),
    ("shared_queue", None),
    ("harden_get_backout", "YES"),
    ("backout_requeue_queue", "a;b"),
    ("backout_requeue_queue", None),
    ("dead_letter_queue", ""),
    ("queue_manager", "Q" * 49),
    ("queue_manager", None),
    ("transaction_timeout", timedelta(0)),
    ("transaction_timeout", 120),
    ("next_message", "random"),
    ("early_hand_out", 3),
    ("early_hand_out", -1),
]


@pytest.mark.parametrize(("setting", "value"), REFUSED, ids=lambda value: str(value)[:40])
def test_wmq_e9_a_value_that_is_not_allowed_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=setting) as caught:
        ActivationSpecification(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert caught.value.allowed


WARNED = [
    pytest.param(QUEUE | {"failure_delivery_count": 3}, ConfigurationWarning, "stops at failure 3 in a row, before", id="WMQ-E9 N 3 BOTHRESH 5"),
    pytest.param(QUEUE | {"failure_delivery_count": 5}, ConfigurationWarning, "stops at failure 5 in a row, before", id="WMQ-16 N = BOTHRESH"),
    pytest.param(QUEUE, ConfigurationWarning, "stops at failure 1 in a row, before", id="WMQ-16 N 0"),
    pytest.param(
        QUEUE | {"failure_delivery_count": 6, "max_server_sessions": 1},
        ConfigurationHint,
        "poison messages in a row",
        id="WMQ-E9 N 6 BOTHRESH 5 S 1",
    ),
    pytest.param(
        QUEUE | {"failure_delivery_count": 6, "max_server_sessions": 5},
        ConfigurationHint,
        "counter is shared",
        id="WMQ-E9 N 6 BOTHRESH 5 S 5, WMQ-19",
    ),
    pytest.param(
        QUEUE | {"failure_delivery_count": 5, "stop_rule": "more_than", "max_server_sessions": 1},
        ConfigurationHint,
        "at failure 6",
        id="WMQ-16 WMQ-28 more_than",
    ),
    pytest.param(
        {"backout_threshold": 5, "stop_endpoint_if_delivery_fails": False},
        ConfigurationWarning,
        "SYSTEM.DEAD.LETTER.QUEUE will be used",
        id="WMQ-E9 BOQNAME empty",
    ),
    pytest.param(
        QUEUE | {"zos": True, "backout_threshold": 256, "stop_endpoint_if_delivery_fails": False},
        ConfigurationWarning,
        "never reached on z/OS",
        id="ZOS-9 BOTHRESH 256",
    ),
    pytest.param({"harden_get_backout": False}, ConfigurationHint, "always kept", id="ZOS-9 not z/OS"),
]


@pytest.mark.parametrize(("settings", "category", "text"), WARNED)
def test_settings_that_are_rarely_wanted_warn_their_author_and_nobody_else(
    settings: dict[str, Any], category: type[ConfigurationWarning], text: str
) -> None:
    with pytest.warns(ConfigurationWarning, match=text) as caught:
        policy = ActivationSpecification(**settings)

    assert [warning.category for warning in caught] == [category]
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert policy_from_dict(policy.to_dict()) == policy
        assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"stop_endpoint_if_delivery_fails": False} | QUEUE, id="WMQ-21 WMQ-16 stop not ticked"),
        pytest.param({"failure_delivery_count": 3}, id="WMQ-16 BOTHRESH 0"),
        pytest.param(QUEUE | {"failure_delivery_count": 6, "max_server_sessions": 1, "requeue_resets_counter": True}, id="WMQ-16 a requeue resets"),
        pytest.param(QUEUE | {"zos": True, "backout_threshold": 255, "stop_endpoint_if_delivery_fails": False}, id="ZOS-9 BOTHRESH 255"),
    ],
)
def test_safe_settings_do_not_warn(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):
        ActivationSpecification(**settings)


@pytest.mark.parametrize(
    ("sessions", "chosen", "sweeps"),
    [
        pytest.param(1, None, False, id="WMQ-15 top for S = 1"),
        pytest.param(2, None, True, id="WMQ-29 sweep for S > 1"),
        pytest.param(1, "sweep", True, id="WMQ-29 item 22 sweep"),
        pytest.param(5, "top", False, id="WMQ-29 item 22 top"),
    ],
)
def test_which_message_is_next(sessions: int, chosen: str | None, sweeps: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    assert ActivationSpecification(max_server_sessions=sessions, next_message=chosen).sweeps is sweeps


def test_wmq_17_server_sessions_are_what_is_processed_at_the_same_time() -> None:
    policy = ActivationSpecification(max_server_sessions=7, early_hand_out=2)

    assert (policy.server_sessions, policy.early_hand_out) == (7, 2)


@pytest.mark.parametrize(("state", "halted"), [("ACTIVE", None), ("INACTIVE", Halted.STOPPED)])
def test_wmq_27_the_initial_state_decides_whether_a_new_endpoint_receives(state: str, halted: Halted | None) -> None:
    assert ActivationSpecification(endpoint_initial_state=state).starts_halted is halted


def test_wmq_27_a_name_that_was_not_found_anywhere_is_none() -> None:
    with pytest.raises(SettingError, match="WAS_ENDPOINT_INITIALLY_PAUSED"):
        ActivationSpecification.from_dict({"WAS_ENDPOINT_INITIALLY_PAUSED": True})


@pytest.mark.parametrize(
    ("most", "stop", "limit"), [(-1, False, 0), (0, True, 0), (1, True, 1)], ids=["WMQ-28 never", "WMQ-28 first", "WMQ-28 second"]
)
def test_libertys_one_setting_says_all(most: int, stop: bool, limit: int) -> None:  # noqa: FBT001  (a parameter of the test)
    policy = ActivationSpecification.from_dict({"maxSequentialDeliveryFailures": most})

    assert (policy.stop_endpoint_if_delivery_fails, policy.failure_delivery_count) == (stop, limit)
    assert policy.stop_rule == "more_than"


@pytest.mark.parametrize(
    "others",
    [
        {"maxSequentialDeliveryFailures": -2},
        {"maxSequentialDeliveryFailures": "1"},
        {"maxSequentialDeliveryFailures": 1, "maxsequentialdeliveryfailures": 2},
        {"maxSequentialDeliveryFailures": 1, "failure_delivery_count": 5},
        {"maxSequentialDeliveryFailures": 1, "failureDeliveryCount": 5},
        {"maxSequentialDeliveryFailures": 1, "stop_rule": "reaches"},
    ],
    ids=str,
)
def test_wmq_28_libertys_setting_contradicts_what_it_replaces(others: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        ActivationSpecification.from_dict(others)


def test_wmq_22_somebody_must_have_made_the_backout_queue() -> None:
    policy = ActivationSpecification(backout_requeue_queue="B.Q")

    assert policy.destinations == ("B.Q",)
    assert ActivationSpecification().destinations == ()


def test_wmq_10_every_queue_manager_has_its_dead_letter_queue() -> None:
    assert ActivationSpecification(backout_requeue_queue="SYSTEM.DEAD.LETTER.QUEUE").destinations == ()
    assert ActivationSpecification(backout_requeue_queue="D.Q", dead_letter_queue="D.Q").destinations == ()


def test_wmq_24_decisions_look_at_what_the_sender_asks_for() -> None:
    assert ActivationSpecification().reads_properties


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "stop_endpoint_if_delivery_fails": st.booleans(),
            "failure_delivery_count": st.integers(0, 2147483647),
            "stop_rule": st.sampled_from(["reaches", "more_than", "equals"]),
            "reset_on_start": st.booleans(),
            "requeue_resets_counter": st.booleans(),
            "counter_over_broker_restart": st.sampled_from(["kept", "reset"]),
            "max_server_sessions": st.integers(1, 100),
            "endpoint_initial_state": st.sampled_from(["ACTIVE", "INACTIVE"]),
            "backout_threshold": st.integers(0, 2147483647),
            "backout_requeue_queue": st.sampled_from(["", "B.Q"]),
            "dead_letter_queue": st.sampled_from(["D.Q", "_dead"]),
            "queue_manager": st.sampled_from(["", "QM1"]),
            "compare": st.sampled_from(["at_least", "equals"]),
            "zos": st.booleans(),
            "harden_get_backout": st.none() | st.booleans(),
            "shared_queue": st.booleans(),
            "transaction_timeout": st.timedeltas(timedelta(microseconds=1), timedelta(days=400)),
            "next_message": st.none() | st.sampled_from(["sweep", "top"]),
            "early_hand_out": st.integers(0, 2),
        },
    )
)
def test_json_and_pickle_keep_every_setting(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        policy = ActivationSpecification(**settings)

    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
