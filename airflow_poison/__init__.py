"""Poison-message handling for Apache Airflow and Spark: queue tables, retry cycles, and the rules of the classic message queues.

The names below are the public face. Each is imported when it is first used (PEP 562): importing this package imports nothing,
because Airflow does so in every process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.core import errors
    from airflow_poison.core.checking.check import check, check_store
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.conversations.acts import Dialog
    from airflow_poison.core.conversations.endpoint import Envelope
    from airflow_poison.core.conversations.receive_columns import received_row
    from airflow_poison.core.conversations.services import DEFAULT_CONTRACT, EVENT_NOTIFICATION, Contract, MessageType, SentBy, Service
    from airflow_poison.core.conversations.system_messages import BrokerError, ErrorDocument
    from airflow_poison.core.conversations.transaction import Conversation
    from airflow_poison.core.delivery.handler_wrappers import track_failures
    from airflow_poison.core.desk.plans import Canary
    from airflow_poison.core.desk.rules import Rule
    from airflow_poison.core.desk.selection import Selection
    from airflow_poison.core.failures import ErrorHandler, PoisonRows, Postpone, Unprocessable
    from airflow_poison.core.json_text import read_json, write_json
    from airflow_poison.core.message import Message
    from airflow_poison.core.passes.alter import declare
    from airflow_poison.core.passes.maintain import maintain
    from airflow_poison.core.passes.repair import repair
    from airflow_poison.core.passes.send import messages_to_batches, send
    from airflow_poison.core.passes.take import positions, reset_position, take
    from airflow_poison.core.passes.to_kafka import send_to_kafka, take_back_from_kafka
    from airflow_poison.core.policies.activation_specification import ActivationSpecification
    from airflow_poison.core.policies.default_messaging import DefaultMessaging
    from airflow_poison.core.policies.described import describe, typed_policy
    from airflow_poison.core.policies.listener_port import ListenerPort
    from airflow_poison.core.policies.msmq3 import Msmq3
    from airflow_poison.core.policies.msmq4 import Msmq4
    from airflow_poison.core.policies.outage import Outage
    from airflow_poison.core.policies.poison_subqueue import PoisonSubQueue
    from airflow_poison.core.policies.service_broker import ServiceBroker
    from airflow_poison.core.schema import SubQueue
    from airflow_poison.core.simulation.replay import replay, simulate
    from airflow_poison.core.simulation.script import Action, Script, Scripted
    from airflow_poison.core.sources.decoding import Schema
    from airflow_poison.core.sources.delta_changes import DeltaChanges
    from airflow_poison.core.sources.files import Files
    from airflow_poison.core.sources.jdbc import Jdbc
    from airflow_poison.core.sources.kafka import Kafka
    from airflow_poison.core.sources.outbox import Outbox
    from airflow_poison.core.sources.protobuf import Protobuf
    from airflow_poison.core.sources.registry import Registry
    from airflow_poison.core.sources.schemas import Avro, JsonSchema
    from airflow_poison.core.sources.source import Position, Reached, Source, Take
    from airflow_poison.core.store import open_store

__version__ = "0.1.0"
__all__ = [
    "DEFAULT_CONTRACT",
    "EVENT_NOTIFICATION",
    "Action",
    "ActivationSpecification",
    "Avro",
    "BrokerError",
    "Canary",
    "Contract",
    "Conversation",
    "DefaultMessaging",
    "DeltaChanges",
    "Dialog",
    "Envelope",
    "ErrorDocument",
    "ErrorHandler",
    "Files",
    "Jdbc",
    "JsonSchema",
    "Kafka",
    "ListenerPort",
    "Message",
    "MessageType",
    "Msmq3",
    "Msmq4",
    "Outage",
    "Outbox",
    "PoisonRows",
    "PoisonSubQueue",
    "Position",
    "Postpone",
    "Protobuf",
    "Reached",
    "Registry",
    "Rule",
    "Schema",
    "Script",
    "Scripted",
    "Selection",
    "SentBy",
    "Service",
    "ServiceBroker",
    "Source",
    "SubQueue",
    "SystemClock",
    "Take",
    "Unprocessable",
    "__version__",
    "check",
    "check_store",
    "declare",
    "describe",
    "errors",
    "maintain",
    "messages_to_batches",
    "open_store",
    "positions",
    "read_json",
    "received_row",
    "repair",
    "replay",
    "reset_position",
    "send",
    "send_to_kafka",
    "simulate",
    "take",
    "take_back_from_kafka",
    "track_failures",
    "typed_policy",
    "write_json",
]

_HOMES = {
    "checking.check": "check check_store",
    "clock": "SystemClock",
    "conversations.acts": "Dialog",
    "conversations.endpoint": "Envelope",
    "conversations.receive_columns": "received_row",
    "conversations.services": "Contract DEFAULT_CONTRACT EVENT_NOTIFICATION MessageType SentBy Service",
    "conversations.system_messages": "BrokerError ErrorDocument",
    "conversations.transaction": "Conversation",
    "delivery.handler_wrappers": "track_failures",
    "desk.plans": "Canary",
    "desk.rules": "Rule",
    "desk.selection": "Selection",
    "failures": "ErrorHandler PoisonRows Postpone Unprocessable",
    "json_text": "read_json write_json",
    "message": "Message",
    "passes.alter": "declare",
    "passes.maintain": "maintain",
    "passes.repair": "repair",
    "passes.send": "messages_to_batches send",
    "passes.take": "positions reset_position take",
    "passes.to_kafka": "send_to_kafka take_back_from_kafka",
    "policies.activation_specification": "ActivationSpecification",
    "policies.default_messaging": "DefaultMessaging",
    "policies.described": "describe typed_policy",
    "policies.listener_port": "ListenerPort",
    "policies.msmq3": "Msmq3",
    "policies.msmq4": "Msmq4",
    "policies.outage": "Outage",
    "policies.poison_subqueue": "PoisonSubQueue",
    "policies.service_broker": "ServiceBroker",
    "schema": "SubQueue",
    "simulation.replay": "replay simulate",
    "simulation.script": "Action Script Scripted",
    "sources.decoding": "Schema",
    "sources.delta_changes": "DeltaChanges",
    "sources.files": "Files",
    "sources.jdbc": "Jdbc",
    "sources.kafka": "Kafka",
    "sources.outbox": "Outbox",
    "sources.protobuf": "Protobuf",
    "sources.registry": "Registry",
    "sources.schemas": "Avro JsonSchema",
    "sources.source": "Position Reached Source Take",
    "store": "open_store",
}
"""The public names, by the module of the core that has them."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "errors":
        return import_module(f"{__name__}.core.errors")
    for module, names in _HOMES.items():
        if name in names.split():
            value: object = getattr(import_module(f"{__name__}.core.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
