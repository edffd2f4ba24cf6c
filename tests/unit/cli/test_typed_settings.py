"""Settings as people type them become the values that policies take."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import pytest

from airflow_poison.rules import SYSTEMS, described, policy_from_dict
from airflow_poison.rules.described import describe, typed_policy
from airflow_poison.values.errors import ConfigurationWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.filterwarnings("ignore::airflow_poison.values.errors.ConfigurationWarning")


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(described).failed == 0


@pytest.mark.parametrize(
    ("system", "settings", "name", "value"),
    [
        ("Msmq4", {"ReceiveRetryCount": "2"}, "receive_retry_count", 2),
        ("Msmq4", {"receive-retry-count": "2"}, "receive_retry_count", 2),
        ("Msmq4", {"receiveErrorHandling": "move"}, "receive_error_handling", "Move"),
        ("Msmq4", {"RetryCycleDelay": "1h30m"}, "retry_cycle_delay", 5400),
        ("Msmq4", {"retry_window": "* 22-23 * * MON-FRI Europe/Berlin"}, "retry_window", "* 22,23 * * 1-5 Europe/Berlin"),
        ("Msmq4", {"RetryCycleDelay": "PT30M"}, "retry_cycle_delay", 1800),
        ("Msmq4", {"RetryCycleDelay": "90"}, "retry_cycle_delay", 90),
        ("Msmq4", {"RetryCycleDelay": 90}, "retry_cycle_delay", 90),
        ("Msmq4", {"ExactlyOnce": "no"}, "exactly_once", False),
        ("Msmq4", {"max_received_message_size": "none"}, "max_received_message_size", None),
        ("Msmq4", {"max_received_message_size": "5"}, "max_received_message_size", 5),
        ("ServiceBroker", {"POISON_MESSAGE_HANDLING": "OFF"}, "poison_message_handling", False),
        ("ServiceBroker", {"is_poison_message_handling_enabled": "1"}, "poison_message_handling", True),
        ("ListenerPort", {"BOTHRESH": "5"}, "backout_threshold", 5),
        ("ListenerPort", {"Backout threshold": "5"}, "backout_threshold", 5),
        ("ListenerPort", {"HARDENBO": "YES"}, "harden_get_backout", True),
        ("ListenerPort", {"NOHARDENBO": "YES"}, "harden_get_backout", False),
        ("ListenerPort", {"HARDENBO": "MQQA_BACKOUT_NOT_HARDENED"}, "harden_get_backout", False),
        ("ListenerPort", {"backout_requeue_queue": ""}, "backout_requeue_queue", ""),
        ("ActivationSpecification", {"maxSequentialDeliveryFailures": "-1"}, "stop_endpoint_if_delivery_fails", False),
        ("ActivationSpecification", {"next_message": "None"}, "next_message", None),
        ("DefaultMessaging", {"Exception destination": "none"}, "exception_destination", "None"),
        ("DefaultMessaging", {"Default blocked destination retry interval": "4000"}, "blocked_retry_interval", 4),
        ("DefaultMessaging", {"Default blocked destination retry interval": "4s"}, "blocked_retry_interval", 4),
        ("DefaultMessaging", {"Blocked retry timeout in milliseconds": "4000"}, "blocked_retry_timeout", 4000),
        ("DefaultMessaging", {"exceptionDiscardReliability": "ReliablePersistent"}, "exception_discard_reliability", "reliable_persistent"),
    ],
)
def test_a_text_is_the_value_that_the_setting_needs(system: str, settings: Mapping[str, object], name: str, value: object) -> None:
    assert typed_policy(system, settings).to_dict()[name] == value


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_default_can_be_typed_as_it_is_shown(system: str) -> None:
    from airflow_poison.cli.simulation import default_of

    written = {setting.name: default_of(setting) for setting in describe(system).settings if setting.default != ""}
    assert typed_policy(system, written).to_dict() == policy_from_dict({"system": system}).to_dict()


@pytest.mark.parametrize("word", ["msmq4", "MSMQ-4", "Msmq4"])
def test_a_system_is_named_in_any_case(word: str) -> None:
    assert typed_policy(word).system == "Msmq4"


def test_a_later_group_overrides_an_earlier_one_whatever_words_they_use() -> None:
    policy = typed_policy("ListenerPort", {"backout_threshold": 5, "max_retries": 9}, {"BOTHRESH": "7"})
    assert (policy.to_dict()["backout_threshold"], policy.to_dict()["max_retries"]) == (7, 9)


@pytest.mark.parametrize(
    ("system", "settings", "words"),
    [
        ("Msmq5", {}, "nearest is Msmq4"),
        ("Msmq4", {"ReceiveRetries": "5"}, r"'ReceiveRetries'.*nearest is receive_retry_count"),
        ("ListenerPort", {"BOTHRES": "5"}, r"nearest is BOTHRESH \(backout_threshold\)"),
        ("Msmq3", {"MaxBatchSize": "5"}, r"'MaxBatchSize'.*a setting of Msmq3"),
        ("Msmq4", {"ReceiveRetryCount": "five"}, "receive_retry_count='five'.*whole number"),
        ("Msmq4", {"ReceiveRetryCount": "9" * 5000}, "whole number"),
        ("Msmq4", {"ReceiveErrorHandling": "Mve"}, "Fault, Drop, Reject, Move"),
        ("PoisonSubQueue", {"ReceiveErrorHandling": "move"}, "cannot be moved to a poison sub-queue again"),
        ("Msmq4", {"RetryCycleDelay": "soon"}, r"'soon'.*30m, 1h30m"),
        ("Msmq4", {"RetryCycleDelay": "40000d"}, "up to 36500 d"),
        ("ServiceBroker", {"transaction_timeout": "0s"}, "transaction_timeout='0' .*a duration from"),
        ("Msmq4", {"sessions": "maybe"}, "True or False"),
        ("Msmq4", {"ReceiveRetryCount": "1", "receive_retry_count": "2"}, "given twice"),
        ("ListenerPort", {"BOTHRESH": "1", "backout_threshold": "2"}, "given twice"),
        ("DefaultMessaging", {"Default blocked destination retry interval": "4s", "blocked_retry_interval": "3s"}, "given twice"),
        ("ActivationSpecification", {"maxSequentialDeliveryFailures": "x"}, "from -1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(system: str, settings: Mapping[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        typed_policy(system, settings)


def test_wcf_43_typed_settings_warn_as_others_do() -> None:
    with pytest.warns(ConfigurationWarning, match="whole batch"):
        typed_policy("Msmq4", {"ReceiveRetryCount": "0", "MaxBatchSize": "3"})
