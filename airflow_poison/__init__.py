"""Poison-message handling for Apache Airflow and Spark: queue tables, retry cycles, and the rules of the classic message queues.

The names below are the public face. Each is imported when it is first used (PEP 562): importing this package imports nothing,
because Airflow does so in every process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.core.conversations.acts import Dialog
    from airflow_poison.core.conversations.services import Contract, MessageType, Service
    from airflow_poison.core.conversations.transaction import Conversation
    from airflow_poison.core.delivery.replay import replay
    from airflow_poison.core.delivery.tracking import track_failures
    from airflow_poison.core.failures import Postpone, Unprocessable
    from airflow_poison.core.message import Message
    from airflow_poison.core.policies.activation_specification import ActivationSpecification
    from airflow_poison.core.policies.default_messaging import DefaultMessaging
    from airflow_poison.core.policies.listener_port import ListenerPort
    from airflow_poison.core.policies.msmq3 import Msmq3
    from airflow_poison.core.policies.msmq4 import Msmq4
    from airflow_poison.core.policies.poison_subqueue import PoisonSubQueue
    from airflow_poison.core.policies.service_broker import ServiceBroker

__version__ = "0.1.0"
__all__ = [
    "ActivationSpecification",
    "Contract",
    "Conversation",
    "DefaultMessaging",
    "Dialog",
    "ListenerPort",
    "Message",
    "MessageType",
    "Msmq3",
    "Msmq4",
    "PoisonSubQueue",
    "Postpone",
    "Service",
    "ServiceBroker",
    "Unprocessable",
    "__version__",
    "replay",
    "track_failures",
]

_HOMES = {
    "ActivationSpecification": "policies.activation_specification",
    "Contract": "conversations.services",
    "Conversation": "conversations.transaction",
    "Dialog": "conversations.acts",
    "MessageType": "conversations.services",
    "Service": "conversations.services",
    "DefaultMessaging": "policies.default_messaging",
    "ListenerPort": "policies.listener_port",
    "Msmq3": "policies.msmq3",
    "ServiceBroker": "policies.service_broker",
    "Message": "message",
    "Msmq4": "policies.msmq4",
    "PoisonSubQueue": "policies.poison_subqueue",
    "Postpone": "failures",
    "Unprocessable": "failures",
    "replay": "delivery.replay",
    "track_failures": "delivery.tracking",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value: object = getattr(import_module(f"{__name__}.core.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
