"""The settings of ServiceBroker: defaults, what is refused, what is warned about, JSON."""

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
from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.errors import ConfigurationWarning, MaxQueueReadersError, SettingError
from airflow_poison.values.schema import SubQueue

HANDLING_OFF = ServiceBroker.from_dict({"poison_message_handling": False})


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        pytest.param("rollback_limit", 5, id="SB-4"),
        pytest.param("scope", "queue", id="SB-7"),
        pytest.param("disables", "all_received", id="SB-9"),
        pytest.param("poison_message_handling", True, id="SB-11"),
        pytest.param("disabling", "synchronous", id="SB-13"),
        pytest.param("max_queue_readers", 1, id="SB-23"),
        pytest.param("inspection", "exempt", id="SB-33"),
        pytest.param("recovery_order", "end_then_enable", id="SB-34"),
        pytest.param("transaction_timeout", timedelta(minutes=10), id="ours"),
        pytest.param("database_name", "", id="SB-17 database"),
        pytest.param("schema_name", "dbo", id="SB-17 schema"),
    ],
)
def test_no_setting_given(setting: str, default: object) -> None:
    assert getattr(ServiceBroker(), setting) == default


REFUSED: list[tuple[str, Any]] = [
    ("poison_message_handling", "ON"),
    ("poison_message_handling", 1),
    ("rollback_limit", 0),
    ("rollback_limit", 2147483648),
    ("rollback_limit", 5.0),
    ("scope", "message"),
    ("disables", "none"),
    ("disabling", "later"),
    ("inspection", "count"),
    ("recovery_order", "enable"),
    ("max_queue_readers", -1),
    ("max_queue_readers", 32768),
    ("max_queue_readers", True),
    ("transaction_timeout", timedelta(0)),
    ("transaction_timeout", 600),
    ("database_name", None),
    ("schema_name", "a\x00"),
]


@pytest.mark.parametrize(("setting", "value"), REFUSED)
def test_sb_23_sb_e14_a_value_that_is_not_allowed_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        ServiceBroker(**{setting: value})

    assert (caught.value.setting, caught.value.value) == (setting, value)


def test_sb_23_up_to_32767_readers() -> None:
    assert ServiceBroker(max_queue_readers=32767).server_sessions == 32767
    with pytest.raises(MaxQueueReadersError, match="from 0 to 32767") as refused:
        ServiceBroker(max_queue_readers=32768)
    assert refused.value.number == 187


def test_sb_23_with_no_reader_nobody_receives_and_people_are_warned() -> None:
    with pytest.warns(ConfigurationWarning, match="no reader receives") as caught:
        policy = ServiceBroker(max_queue_readers=0)

    assert policy.server_sessions == 0
    assert caught[0].filename == __file__


def test_sb_11_without_poison_handling_people_are_warned_of_endless_deliveries() -> None:
    with pytest.warns(ConfigurationWarning, match="4,095") as caught:
        ServiceBroker(poison_message_handling=False)

    assert caught[0].filename == __file__


def test_the_defaults_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ServiceBroker()
        ServiceBroker(scope="conversation_group", max_queue_readers=4)


@pytest.mark.parametrize(
    ("policy", "halting", "stateless", "spreads"),
    [
        pytest.param(ServiceBroker(), True, False, False, id="SB-7 queue"),
        pytest.param(ServiceBroker(scope="conversation_group"), True, False, True, id="SB-7 conversation group"),
        pytest.param(HANDLING_OFF, False, True, True, id="SB-11 handling off"),
    ],
)
def test_what_decisions_depend_on(policy: ServiceBroker, halting: bool, stateless: bool, spreads: bool) -> None:  # noqa: FBT001
    assert (policy.halting, policy.stateless, policy.spreads_groups) == (halting, stateless, spreads)


def test_sb_12_the_endpoint_ends_as_disabled_and_a_group_is_with_one_reader_at_a_time() -> None:
    policy = ServiceBroker()

    assert (policy.halts_as, policy.reads, policy.locks_groups) == (Halted.DISABLED, SubQueue.MAIN, True)
    assert HANDLING_OFF.locks_groups


def test_the_transaction_timeout_is_ours() -> None:
    assert ServiceBroker(transaction_timeout=timedelta(seconds=3)).effective_transaction_timeout == timedelta(seconds=3)


@pytest.mark.parametrize(("switch", "on"), [("ON", True), ("off", False), ("Off", False), (True, True), (False, False)])
@pytest.mark.parametrize("name", ["POISON_MESSAGE_HANDLING", "poison_message_handling", "Poison_Message_Handling"])
def test_sb_11_the_manual_s_words(name: str, switch: object, on: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    policy = ServiceBroker.from_dict({"system": "ServiceBroker", name: switch, "MAX_QUEUE_READERS": 3})

    assert (policy.poison_message_handling, policy.max_queue_readers) == (on, 3)


@pytest.mark.parametrize("switch", ["yes", "", 1, None])
def test_sb_11_another_word_is_refused(switch: object) -> None:
    with pytest.raises(SettingError, match="poison_message_handling"):
        ServiceBroker.from_dict({"POISON_MESSAGE_HANDLING": switch})


def test_sb_11_alter_queue_takes_the_manual_s_words() -> None:
    altered = ServiceBroker(rollback_limit=3).altered({"POISON_MESSAGE_HANDLING": "OFF"})

    assert (altered.poison_message_handling, altered.rollback_limit) == (False, 3)


policies = st.builds(
    lambda **settings: ServiceBroker.from_dict(settings),
    poison_message_handling=st.booleans(),
    rollback_limit=st.integers(1, 2147483647),
    scope=st.sampled_from(["queue", "conversation_group"]),
    disables=st.sampled_from(["all_received", "at_limit"]),
    disabling=st.sampled_from(["synchronous", "background"]),
    inspection=st.sampled_from(["exempt", "strict", "browse"]),
    recovery_order=st.sampled_from(["end_then_enable", "enable_then_end"]),
    max_queue_readers=st.integers(0, 32767),
    transaction_timeout=st.integers(1, 100000),
    schema_name=st.sampled_from(["", "dbo", "Å"]),
)


@given(policies)
def test_json_and_pickle_keep_every_setting(policy: ServiceBroker) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
