"""The settings of Msmq4: defaults, what is refused, what is warned about, JSON."""

from __future__ import annotations

import json
import pickle
import warnings
from datetime import timedelta
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.wcf import ReceiveErrorHandling
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.schema import SubQueue


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        pytest.param("receive_retry_count", 5, id="WCF-3"),
        pytest.param("max_retry_cycles", 2, id="WCF-4"),
        pytest.param("retry_cycle_delay", timedelta(seconds=1800), id="WCF-5"),
        pytest.param("receive_error_handling", ReceiveErrorHandling.FAULT, id="WCF-6"),
        pytest.param("exactly_once", True, id="WCF-12"),
        pytest.param("transaction_timeout", timedelta(0), id="WCF-35"),
        pytest.param("retry_subqueues", "one", id="WCF-20"),
        pytest.param("return_order", "due_time", id="WCF-32"),
        pytest.param("batch_fallback", "first_abort", id="WCF-40"),
        pytest.param("receive_context", False, id="WCF-44"),
        pytest.param("max_received_message_size", None, id="WCF-29"),
    ],
)
def test_wcf_e11_no_setting_given(setting: str, default: object) -> None:
    assert getattr(Msmq4(), setting) == default


REFUSED: list[tuple[str, Any]] = [
    ("receive_retry_count", -1),
    ("receive_retry_count", 2147483648),
    ("receive_retry_count", True),
    ("receive_retry_count", 5.0),
    ("receive_retry_count", "5"),
    ("max_retry_cycles", -1),
    ("max_retry_cycles", 2147483648),
    ("max_retry_cycles", False),
    ("retry_cycle_delay", timedelta(seconds=-1)),
    ("retry_cycle_delay", 1800),
    ("retry_cycle_delay", timedelta.max),
    ("receive_error_handling", "Skip"),
    ("receive_error_handling", "move"),
    ("receive_error_handling", None),
    ("exactly_once", 1),
    ("transaction_scope_required", "yes"),
    ("transaction_timeout", timedelta(seconds=-1)),
    ("machine_transaction_timeout", timedelta(0)),
    ("machine_maximum_transaction_timeout", timedelta(0)),
    ("max_batch_size", -1),
    ("batch_fallback", "never"),
    ("sessions", 0),
    ("receive_context", None),
    ("retry_subqueues", "two"),
    ("return_order", "random"),
    ("max_received_message_size", 0),
    ("max_received_message_size", True),
]


@pytest.mark.parametrize(("setting", "value"), REFUSED, ids=str)
def test_wcf_11_wcf_e11_a_value_that_is_not_allowed_is_refused_when_set(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=setting) as caught:
        Msmq4(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert caught.value.allowed


@pytest.mark.parametrize("handling", ["Fault", "Drop", "Reject", "Move"])
def test_wcf_6_the_four_values_are_accepted_as_text_and_as_enum(handling: str) -> None:
    assert Msmq4(receive_error_handling=handling) == Msmq4(receive_error_handling=ReceiveErrorHandling(handling))
    assert type(Msmq4(receive_error_handling=handling).receive_error_handling) is ReceiveErrorHandling


def test_wcf_5_a_pendulum_duration_is_a_delay() -> None:
    policy = Msmq4(retry_cycle_delay=pendulum.duration(minutes=10))

    assert policy == Msmq4(retry_cycle_delay=timedelta(minutes=10))
    assert type(policy.retry_cycle_delay) is timedelta


def test_wcf_39_batching_is_not_allowed_with_sessions() -> None:
    with pytest.raises(SettingError, match="sessions"):
        Msmq4(sessions=True, max_batch_size=2)

    Msmq4(sessions=True, max_batch_size=1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param({"receive_retry_count": 0, "max_batch_size": 2}, "receive_retry_count=0", id="WCF-43"),
        pytest.param({"exactly_once": False}, "exactly_once=False", id="WCF-12"),
        pytest.param({"transaction_scope_required": False}, "transaction_scope_required=False", id="WCF-37"),
        pytest.param({"transaction_timeout": timedelta(hours=1)}, "transaction_timeout=1:00:00 .* caps it.* after 0:10:00", id="WCF-35"),
        pytest.param({"machine_transaction_timeout": timedelta(hours=1)}, "machine_transaction_timeout=1:00:00 .* caps it", id="WCF-35 machine"),
    ],
)
def test_settings_that_are_rarely_wanted_warn_their_author_and_nobody_else(settings: dict[str, Any], text: str) -> None:
    with pytest.warns(ConfigurationWarning, match=text) as caught:
        policy = Msmq4(**settings)

    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert policy_from_dict(policy.to_dict()) == policy
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_wcf_43_a_retry_or_no_batching_needs_no_warning() -> None:
    with warnings.catch_warnings(action="error"):
        Msmq4(receive_retry_count=1, max_batch_size=2)
        Msmq4(receive_retry_count=0, max_batch_size=1)


def test_wcf_35_a_timeout_that_is_not_capped_needs_no_warning() -> None:
    hour = timedelta(hours=1)
    with warnings.catch_warnings(action="error"):
        Msmq4(transaction_timeout=timedelta(minutes=10))
        Msmq4(transaction_timeout=hour, machine_maximum_transaction_timeout=hour)
        Msmq4(transaction_timeout=timedelta(minutes=1), machine_transaction_timeout=hour)


@pytest.mark.parametrize("policy", [Msmq3, PoisonSubQueue])
def test_wcf_35_every_queued_binding_warns_of_a_timeout_that_is_capped(policy: type[Msmq3 | PoisonSubQueue]) -> None:
    with pytest.warns(ConfigurationWarning, match="caps it") as caught:
        policy(transaction_timeout=timedelta(hours=1))
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:.*caps it:airflow_poison.values.errors.ConfigurationWarning")
@pytest.mark.parametrize(
    ("service", "machine", "maximum", "effective"),
    [(0, 60, 600, 60), (30, 60, 600, 30), (120, 60, 600, 120), (601, 60, 600, 600), (0, 900, 600, 600)],
)
def test_wcf_35_wcf_e11_the_transaction_timeout(service: int, machine: int, maximum: int, effective: int) -> None:
    policy = Msmq4(
        transaction_timeout=timedelta(seconds=service),
        machine_transaction_timeout=timedelta(seconds=machine),
        machine_maximum_transaction_timeout=timedelta(seconds=maximum),
    )

    assert policy.effective_transaction_timeout == timedelta(seconds=effective)


def test_wcf_21_only_fault_ends_the_listener() -> None:
    halting = [handling for handling in ReceiveErrorHandling if Msmq4(receive_error_handling=handling).halting]

    assert halting == [ReceiveErrorHandling.FAULT]


def test_wcf_9_without_batching_a_decision_depends_on_the_message_alone() -> None:
    assert Msmq4().stateless
    assert Msmq4(max_batch_size=1).stateless
    assert not Msmq4(max_batch_size=2).stateless


def test_wcf_12_which_sub_queue_is_read_chooses_the_rules() -> None:
    assert (Msmq4.reads, PoisonSubQueue.reads) == (SubQueue.MAIN, SubQueue.POISON)
    assert type(policy_from_dict({"system": "Msmq4"})) is Msmq4
    assert type(policy_from_dict({"system": "PoisonSubQueue"})) is PoisonSubQueue


durations = st.timedeltas(timedelta(0), timedelta(days=400))
spans = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))
policies = st.builds(
    Msmq4,
    receive_retry_count=st.integers(1, 2147483647),
    max_retry_cycles=st.integers(0, 2147483647),
    retry_cycle_delay=durations,
    receive_error_handling=st.sampled_from(ReceiveErrorHandling),
    transaction_timeout=durations,
    machine_transaction_timeout=spans,
    machine_maximum_transaction_timeout=spans,
    max_batch_size=st.integers(0, 100),
    batch_fallback=st.sampled_from(["first_abort", "when_poison"]),
    receive_context=st.booleans(),
    retry_subqueues=st.sampled_from(["one", "per_cycle"]),
    return_order=st.sampled_from(["due_time", "head_timer"]),
    max_received_message_size=st.none() | st.integers(1, 2**31 - 1),
)


@pytest.mark.filterwarnings("ignore:.*caps it:airflow_poison.values.errors.ConfigurationWarning")
@given(policies)
def test_json_and_pickle_keep_every_setting(policy: Msmq4) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_durations_are_seconds_in_json() -> None:
    stored = Msmq4(retry_cycle_delay=timedelta(minutes=30)).to_dict()

    assert (stored["system"], stored["retry_cycle_delay"]) == ("Msmq4", 1800)


@pytest.mark.parametrize(
    ("stored", "parts"),
    [
        ({"system": "Msmq4", "receivRetryCount": 3}, ["receivRetryCount", "receive_retry_count"]),
        ({"system": "Msmq4", "retry_delay": 3}, ["retry_delay", "retry_cycle_delay"]),
        ({"system": "Msmq4", "retry_cycle_delay": "3"}, ["retry_cycle_delay", "seconds"]),
        ({"system": "Msmq4", "retry_cycle_delay": float("nan")}, ["retry_cycle_delay", "seconds"]),
        ({"system": "Msmq4", "retry_cycle_delay": True}, ["retry_cycle_delay", "seconds"]),
        ({"system": "Msmq4", "receive_retry_count": 1.0}, ["receive_retry_count"]),
        ({"system": "Msmq5"}, ["system", "Msmq4", "PoisonSubQueue"]),
        ({}, ["system", "Msmq4"]),
    ],
)
def test_stored_settings_that_are_wrong_are_named(stored: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        policy_from_dict(stored)

    for part in parts:
        assert part in str(caught.value)


def test_the_settings_of_one_system_are_not_those_of_another() -> None:
    with pytest.raises(SettingError, match="PoisonSubQueue"):
        PoisonSubQueue.from_dict(Msmq4().to_dict())
