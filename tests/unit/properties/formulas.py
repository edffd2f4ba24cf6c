"""How often a message is delivered at most: the formula of each system, from the specification alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.policy import Access, Policy
    from airflow_poison.rules.simulation.scripted_host import Script

GRANTED = {"granted"}
NOT_HARDENED = (False, None)


def most_deliveries(policy: Policy, script: Script, access: Mapping[str, Access]) -> int | None:
    """Return how often a message of a script can be delivered and counted; None: without a bound."""
    match policy:
        case Msmq4() | Msmq3():
            return _wcf(policy, script)
        case PoisonSubQueue():
            return policy.receive_retry_count + 1  # POI-4
        case DefaultMessaging():
            return _default_messaging(policy, script, access)
        case ActivationSpecification():
            return policy.backout_threshold * _lives(policy, script) or None  # WMQ-11, WMQ-13, ZOS-7
        case ListenerPort():
            return _listener_port(policy, script)
        case _:
            return None


def _wcf(policy: Msmq4 | Msmq3, script: Script) -> int | None:
    """WCF-7 and M3-1; on MSMQ 3.0 anew at each start (M3-10), and without a bound when a message can lose its count to others (M3-9)."""
    if not policy.exactly_once or not policy.transaction_scope_required:
        return 1  # WCF-12, WCF-37
    if isinstance(policy, Msmq4):
        return (policy.receive_retry_count + 1) * (policy.max_retry_cycles + 1)
    return (policy.receive_retry_count + 1) * _openings(script) if len(script.messages) <= policy.seen_table_size else None


def _default_messaging(policy: DefaultMessaging, script: Script, access: Mapping[str, Access]) -> int | None:
    """DMP-8, DMP-13, DMP-19; without a bound where a message only waits (DMP-12, DMP-17)."""
    if policy.exception_destination == "None" or not set(access.values()) <= GRANTED:
        return None
    return max(1, policy.max_failed_deliveries) * (1 if policy.persist_redelivery_count else _engine_runs(script))


def _listener_port(policy: ListenerPort, script: Script) -> int | None:
    """As often as the queue's threshold says; and as often as the port's limit says, and then once at each start (LP-2, LP-4, LP-8)."""
    bounds = [policy.backout_threshold * _lives(policy, script)] if policy.backout_threshold else []
    if _lives(policy, script) == 1:
        limit = max(policy.max_retries, 1) if policy.stop_rule == "reaches" else policy.max_retries + 1
        bounds.append(limit + _openings(script) - 1)
    return min(bounds, default=None)


def _lives(policy: ActivationSpecification | ListenerPort, script: Script) -> int:
    """How often a count begins at 0: at each run of the queue manager when it is only in the copy (ZOS-5, ZOS-6, ZOS-9)."""
    volatile = policy.zos and not policy.shared_queue and policy.harden_get_backout in NOT_HARDENED
    return _engine_runs(script) if volatile else 1


def _openings(script: Script) -> int:
    """How often an endpoint opens at most: at the start, and whenever people do something."""
    return 1 + len(script.actions)


def _engine_runs(script: Script) -> int:
    return 1 + sum(action.verb == "restart_broker" for action in script.actions)
