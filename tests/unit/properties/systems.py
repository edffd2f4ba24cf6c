"""Strategies that draw valid settings of every messaging system."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from airflow_poison.rules import policy_class
from airflow_poison.rules.activation_specification import CounterOverBrokerRestart, InitialState
from airflow_poison.rules.decisions import ReturnOrder
from airflow_poison.rules.default_messaging import NegativeTimeout, Reliability
from airflow_poison.rules.msmq4 import BatchFallback, RetrySubqueues
from airflow_poison.rules.queue_disabling import Disables, Inspection, RecoveryOrder, Scope
from airflow_poison.rules.service_broker import Disabling
from airflow_poison.rules.wcf import ReceiveErrorHandling
from airflow_poison.rules.websphere_mq import Compare, NextMessage, StopRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.policy import Policy

    Strategies = Mapping[str, st.SearchStrategy[Any]]

SIZE_LIMIT = 100
TICK = 10.0
"""All instants of drawn settings and scripts are multiples of so many seconds."""

mostly = st.sampled_from([True, True, True, True, False])
seldom = mostly.map(lambda flag: not flag)
spans = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))
delays = st.sampled_from([TICK, 3 * TICK]).map(lambda seconds: timedelta(seconds=seconds))
names = st.text("ABCD.Q", max_size=8)
size_limits = st.none() | st.just(SIZE_LIMIT)

_TIMEOUTS: Strategies = {
    "transaction_timeout": st.just(timedelta(0)) | spans,
    "machine_transaction_timeout": spans,
    "machine_maximum_transaction_timeout": spans,
}
_WEBSPHERE_MQ: Strategies = {
    "backout_threshold": st.integers(0, 4),
    "backout_requeue_queue": st.sampled_from(["", "B.Q"]),
    "dead_letter_queue": st.sampled_from(["SYSTEM.DEAD.LETTER.QUEUE", "D.Q"]),
    "compare": st.sampled_from(Compare),
    "zos": st.booleans(),
    "harden_get_backout": st.none() | st.booleans(),
    "shared_queue": seldom,
    "next_message": st.none() | st.sampled_from(NextMessage),
    "early_hand_out": st.integers(0, 2),
}

PLAYED: Mapping[str, Strategies] = {
    "Msmq4": {
        "receive_retry_count": st.integers(0, 3),
        "max_retry_cycles": st.integers(0, 3),
        "retry_cycle_delay": delays,
        "retry_window": st.none() | st.sampled_from(["22:00-06:00 Europe/Berlin", "Mon-Fri 01:30-02:15 America/Santiago"]),
        "receive_error_handling": st.sampled_from(ReceiveErrorHandling),
        "exactly_once": mostly,
        "transaction_scope_required": mostly,
        "max_batch_size": st.integers(0, 3),
        "batch_fallback": st.sampled_from(BatchFallback),
        "receive_context": st.booleans(),
        "retry_subqueues": st.sampled_from(RetrySubqueues),
        "return_order": st.sampled_from(ReturnOrder),
        "max_received_message_size": size_limits,
    },
    "Msmq3": {
        "receive_retry_count": st.integers(0, 3),
        "max_retry_cycles": st.integers(0, 3),
        "retry_cycle_delay": delays,
        "receive_error_handling": st.sampled_from(["Fault", "Drop"]),
        "exactly_once": mostly,
        "transaction_scope_required": mostly,
        "max_received_message_size": size_limits,
        "seen_table_size": st.sampled_from([1, 2, 256]),
    },
    "PoisonSubQueue": {
        "receive_retry_count": st.integers(0, 3),
        "max_retry_cycles": st.integers(0, 3),
        "receive_error_handling": st.sampled_from(["Fault", "Drop", "Reject"]),
        "max_received_message_size": size_limits,
    },
    "ServiceBroker": {
        "poison_message_handling": mostly,
        "rollback_limit": st.integers(1, 5),
        "scope": st.sampled_from(Scope),
        "disables": st.sampled_from(Disables),
        "disabling": st.sampled_from(Disabling),
        "max_queue_readers": st.sampled_from([0, 1, 1, 1, 2, 3]),
    },
    "DefaultMessaging": {
        "max_failed_deliveries": st.integers(0, 4),
        "exception_destination": st.sampled_from(["System", "None", "None", "errQ"]),
        "blocked_retry_interval": delays,
        "override_blocked_retry_timeout": st.booleans(),
        "blocked_retry_timeout": st.sampled_from([-1, 20_000]),
        "negative_timeout": st.sampled_from(NegativeTimeout),
        "destination_blocked": st.booleans(),
        "persist_redelivery_count": st.booleans(),
        "exception_discard_reliability": st.sampled_from(Reliability),
        "temporary_destination": seldom,
        "strict_message_ordering": st.booleans(),
        "max_concurrency": st.integers(1, 3),
        "auto_stop_sequential_message_failure": st.sampled_from([0, 0, 0, 1, 3]),
    },
    "ActivationSpecification": {
        **_WEBSPHERE_MQ,
        "stop_endpoint_if_delivery_fails": mostly,
        "failure_delivery_count": st.integers(0, 4),
        "stop_rule": st.sampled_from(StopRule),
        "reset_on_start": st.booleans(),
        "requeue_resets_counter": st.booleans(),
        "counter_over_broker_restart": st.sampled_from(CounterOverBrokerRestart),
        "max_server_sessions": st.integers(1, 3),
        "endpoint_initial_state": st.sampled_from([InitialState.ACTIVE, InitialState.ACTIVE, InitialState.ACTIVE, InitialState.INACTIVE]),
    },
    "ListenerPort": {
        **_WEBSPHERE_MQ,
        "max_retries": st.integers(0, 4),
        "stop_rule": st.sampled_from([StopRule.REACHES, StopRule.MORE_THAN]),
        "max_sessions": st.integers(1, 3),
    },
}
"""By system, the settings that make a difference to scripts."""

OTHERS: Mapping[str, Strategies] = {
    "Msmq4": {**_TIMEOUTS, "sessions": st.booleans()},
    "Msmq3": {**_TIMEOUTS, "sessions": st.booleans()},
    "PoisonSubQueue": _TIMEOUTS,
    "ServiceBroker": {
        "inspection": st.sampled_from(Inspection),
        "recovery_order": st.sampled_from(RecoveryOrder),
        "transaction_timeout": spans,
        "database_name": names,
        "schema_name": names,
    },
    "DefaultMessaging": {"messaging_engine": st.sampled_from(["ME1", "node.server"]), "transaction_timeout": spans},
    "ActivationSpecification": {"queue_manager": names, "transaction_timeout": spans},
    "ListenerPort": {"queue_manager": names, "transaction_timeout": spans},
}
"""By system, all other settings."""


def settings_of(system: str, **fixed: object) -> st.SearchStrategy[Policy]:
    """Draw settings that scripts can tell apart.

    :param fixed: values that are not drawn.
    """
    return st.fixed_dictionaries({**PLAYED[system], **{name: st.just(value) for name, value in fixed.items()}}).map(lambda drawn: made(system, drawn))


def every_setting_of(system: str) -> st.SearchStrategy[Policy]:
    """Draw every setting, small numbers and large ones."""
    return st.fixed_dictionaries({**PLAYED[system], **OTHERS[system]}).map(lambda drawn: made(system, drawn))


def made(system: str, drawn: Mapping[str, Any]) -> Policy:
    """Construct a policy without its warnings: they are other tests' subject."""
    if drawn.get("sessions") and drawn.get("max_batch_size", 0) > 1:
        drawn = {**drawn, "max_batch_size": 1}
    with warnings.catch_warnings(action="ignore"):
        return policy_class(system)(**drawn)
