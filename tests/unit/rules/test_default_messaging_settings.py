"""The settings of DefaultMessaging: defaults, what is refused, what is warned about, JSON and the console's words."""

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
from airflow_poison.rules.default_messaging import DefaultMessaging, ExceptionDestination, Reliability
from airflow_poison.values.errors import ConfigurationWarning, SettingError


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        pytest.param("max_failed_deliveries", 5, id="DMP-5"),
        pytest.param("exception_destination", "System", id="DMP-6"),
        pytest.param("blocked_retry_interval", timedelta(milliseconds=5000), id="DMP-9"),
        pytest.param("override_blocked_retry_timeout", False, id="DMP-10 box"),
        pytest.param("blocked_retry_timeout", -1, id="DMP-10"),
        pytest.param("destination_blocked", True, id="DMP-14 item 15"),
        pytest.param("negative_timeout", "never", id="DMP-15 item 16"),
        pytest.param("exception_discard_reliability", "best_effort_nonpersistent", id="DMP-16"),
        pytest.param("temporary_destination", False, id="DMP-16 temporary"),
        pytest.param("persist_redelivery_count", False, id="DMP-19 item 17"),
        pytest.param("strict_message_ordering", False, id="DMP-20"),
        pytest.param("auto_stop_sequential_message_failure", 0, id="DMP-20 stop"),
        ("messaging_engine", "ME1"),
        ("effective_transaction_timeout", timedelta(seconds=120)),
    ],
)
def test_dmp_no_setting_given(setting: str, default: object) -> None:
    assert getattr(DefaultMessaging(), setting) == default


REFUSED: list[tuple[str, Any]] = [
    ("max_failed_deliveries", -1),
    ("max_failed_deliveries", True),
    ("max_failed_deliveries", "5"),
    ("exception_destination", ""),
    ("exception_destination", "  "),
    ("exception_destination", None),
    ("exception_destination", "Specify"),
    ("messaging_engine", ""),
    ("messaging_engine", None),
    ("blocked_retry_interval", timedelta(seconds=-1)),
    ("blocked_retry_interval", 5000),
    ("override_blocked_retry_timeout", 1),
    ("blocked_retry_timeout", -2),
    ("blocked_retry_timeout", 0.5),
    ("blocked_retry_timeout", 2147483648),
    ("negative_timeout", "soon"),
    ("destination_blocked", None),
    ("persist_redelivery_count", "yes"),
    ("exception_discard_reliability", "none"),
    ("exception_discard_reliability", None),
    ("temporary_destination", 0),
    ("strict_message_ordering", "strict"),
    ("max_concurrency", 0),
    ("auto_stop_sequential_message_failure", -1),
    ("transaction_timeout", timedelta(0)),
]


@pytest.mark.parametrize(("setting", "value"), REFUSED, ids=str)
def test_a_value_that_is_not_allowed_is_refused_when_set(setting: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        DefaultMessaging(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert caught.value.allowed


@pytest.mark.parametrize("timeout", [-1, 0, 1, 2147483647])
def test_dmp_10_a_retry_timeout_of_minus_1_or_of_0_and_more_is_accepted(timeout: int) -> None:
    assert DefaultMessaging(blocked_retry_timeout=timeout).blocked_retry_timeout == timeout


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("System", "System"),
        ("system", "System"),
        (" SYSTEM ", "System"),
        ("None", "None"),
        ("none", "None"),
        ("errQ", "errQ"),
        ("Nonesuch", "Nonesuch"),
    ],
)
def test_dmp_6_system_and_none_are_words_and_everything_else_is_a_queue(given: str, meant: str) -> None:
    assert DefaultMessaging(exception_destination=given).exception_destination == meant


def test_dmp_6_whoever_writes_specify_is_told_to_give_the_name() -> None:
    with pytest.raises(SettingError, match="the name of the exception destination"):
        DefaultMessaging(exception_destination="Specify")


@pytest.mark.parametrize("given", ["ASSURED_PERSISTENT", "AssuredPersistent", "assured_persistent", Reliability.ASSURED_PERSISTENT])
def test_dmp_16_the_discard_reliability_can_be_written_as_the_product_writes_it(given: str) -> None:
    with pytest.warns(ConfigurationWarning, match="assured_persistent"):
        assert DefaultMessaging(exception_discard_reliability=given).exception_discard_reliability is Reliability.ASSURED_PERSISTENT


WARNED: list[Any] = [
    pytest.param({"strict_message_ordering": True, "auto_stop_sequential_message_failure": 2}, "CWSIV0906", id="DMP-20 CWSIV0906"),
    pytest.param({"exception_destination": "None", "auto_stop_sequential_message_failure": 2}, "CWSIV0907", id="DMP-20 CWSIV0907"),
    pytest.param({"strict_message_ordering": True, "max_concurrency": 2}, "CWSIV1101", id="DMP-20 CWSIV1101"),
    pytest.param({"temporary_destination": True}, "is lost", id="DMP-16 temporary"),
    pytest.param({"exception_discard_reliability": "reliable_persistent"}, "are lost", id="DMP-16 reliability"),
    pytest.param({"exception_destination": "None", "override_blocked_retry_timeout": True}, "never delivered again", id="DMP-10 never"),
]


@pytest.mark.parametrize(("settings", "text"), WARNED)
def test_settings_that_are_rarely_wanted_warn_their_author_and_nobody_else(settings: dict[str, Any], text: str) -> None:
    with pytest.warns(ConfigurationWarning, match=text) as caught:
        policy = DefaultMessaging(**settings)

    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(action="error"):
        assert policy_from_dict(policy.to_dict()) == policy
        assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    "settings",
    [
        {"strict_message_ordering": True, "auto_stop_sequential_message_failure": 1},
        {"exception_destination": "None"},
        {"exception_destination": "None", "override_blocked_retry_timeout": True, "blocked_retry_timeout": 0},
        {"exception_destination": "None", "override_blocked_retry_timeout": True, "negative_timeout": "engine_default"},
        {"override_blocked_retry_timeout": True},
        {"auto_stop_sequential_message_failure": 9, "max_concurrency": 9},
    ],
    ids=str,
)
def test_settings_that_mean_what_they_say_need_no_warning(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):
        DefaultMessaging(**settings)


def test_it_can_be_set_up_in_the_words_of_the_console() -> None:
    console = {
        "system": "DefaultMessaging",
        "Maximum failed deliveries": 3,
        "Exception destination": "None",
        "Default blocked destination retry interval": 7500,
        "Override messaging engine blocked retry timeout default": True,
        "sib.processor.blockedRetryTimeout": 10000,
        "PersistRedeliveryCount": True,
        "exceptionDiscardReliability": "EXPRESS_NONPERSISTENT",
        "maintainStrictOrder": True,
        "autoStopSequentialMessageFailure": 1,
    }

    policy = policy_from_dict(console)

    with pytest.warns(ConfigurationWarning):
        assert policy == DefaultMessaging(
            max_failed_deliveries=3,
            exception_destination=ExceptionDestination.NONE,
            blocked_retry_interval=timedelta(seconds=7.5),
            override_blocked_retry_timeout=True,
            blocked_retry_timeout=10000,
            persist_redelivery_count=True,
            exception_discard_reliability="express_nonpersistent",
            strict_message_ordering=True,
            auto_stop_sequential_message_failure=1,
        )


@pytest.mark.parametrize("value", ["5000", True, None])
def test_an_interval_in_the_console_s_word_that_is_no_number_is_named(value: object) -> None:
    with pytest.raises(SettingError, match="blocked_retry_interval"):
        DefaultMessaging.from_dict({"default blocked destination retry interval": value})


def test_altered_settings_may_use_the_console_s_words_too() -> None:
    assert DefaultMessaging().altered({"Default blocked destination retry interval": 250}).blocked_retry_interval == timedelta(milliseconds=250)


policies = st.builds(
    DefaultMessaging,
    max_failed_deliveries=st.integers(0, 2147483647),
    exception_destination=st.sampled_from(["System", "None", "errQ"]),
    messaging_engine=st.sampled_from(["ME1", "node01.server1-bus"]),
    blocked_retry_interval=st.timedeltas(timedelta(0), timedelta(days=400)),
    override_blocked_retry_timeout=st.booleans(),
    blocked_retry_timeout=st.integers(0, 2147483647),
    negative_timeout=st.sampled_from(["never", "engine_default"]),
    destination_blocked=st.booleans(),
    persist_redelivery_count=st.booleans(),
    strict_message_ordering=st.booleans(),
    auto_stop_sequential_message_failure=st.integers(0, 1),
    transaction_timeout=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
)


@given(policies)
def test_json_and_pickle_keep_every_setting(policy: DefaultMessaging) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
