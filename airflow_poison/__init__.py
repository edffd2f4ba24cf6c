"""Poison-message handling for Apache Airflow and Spark: queue tables, retry cycles, and the rules of the classic message queues.

The names below are the public face. Each is imported when it is first used (PEP 562): importing this package imports nothing,
because Airflow does so in every process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.delivery.handler_wrappers import track_failures
    from airflow_poison.desk.rules import Rule
    from airflow_poison.desk.selection import Selection
    from airflow_poison.dialogs.acts import Dialog, Envelope
    from airflow_poison.dialogs.as_rows import received_row
    from airflow_poison.dialogs.services import DEFAULT_CONTRACT, EVENT_NOTIFICATION, Contract, MessageType, SentBy, Service
    from airflow_poison.dialogs.system_messages import BrokerError, ErrorDocument
    from airflow_poison.dialogs.transaction import Conversation
    from airflow_poison.fsck.check import check, check_store
    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.declaration import Canary
    from airflow_poison.passes.maintain import maintain, repair
    from airflow_poison.passes.send import messages_to_batches, send
    from airflow_poison.passes.take import positions, reset_position, take
    from airflow_poison.passes.to_kafka import send_to_kafka, take_back_from_kafka
    from airflow_poison.queue import Queue, Store, protect
    from airflow_poison.rules.activation_specification import ActivationSpecification
    from airflow_poison.rules.default_messaging import DefaultMessaging
    from airflow_poison.rules.described import describe, typed_policy
    from airflow_poison.rules.listener_port import ListenerPort
    from airflow_poison.rules.msmq3 import Msmq3
    from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
    from airflow_poison.rules.outage import Outage
    from airflow_poison.rules.service_broker import ServiceBroker
    from airflow_poison.rules.simulation.replay import replay, simulate
    from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
    from airflow_poison.sources.delta_changes import DeltaChanges
    from airflow_poison.sources.files import Files
    from airflow_poison.sources.jdbc import Jdbc, Outbox
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.sources.protobuf import Protobuf
    from airflow_poison.sources.schemas import Avro, JsonSchema, Registry, Schema
    from airflow_poison.sources.source import Position, Reached, Source, Take
    from airflow_poison.store import open_store
    from airflow_poison.values import errors
    from airflow_poison.values.clock import SystemClock
    from airflow_poison.values.failures import ErrorHandler, PoisonRows, Postpone, Unprocessable
    from airflow_poison.values.json_text import read_json, write_json
    from airflow_poison.values.message import Message
    from airflow_poison.values.schema import SubQueue

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
    "Queue",
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
    "Store",
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
    "protect",
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
    "delivery.handler_wrappers": "track_failures",
    "desk.rules": "Rule",
    "desk.selection": "Selection",
    "dialogs.acts": "Dialog Envelope",
    "dialogs.as_rows": "received_row",
    "dialogs.services": "Contract DEFAULT_CONTRACT EVENT_NOTIFICATION MessageType SentBy Service",
    "dialogs.system_messages": "BrokerError ErrorDocument",
    "dialogs.transaction": "Conversation",
    "fsck.check": "check check_store",
    "passes.alter": "declare",
    "passes.declaration": "Canary Receive ReceiveOptions",
    "passes.maintain": "maintain repair",
    "passes.send": "messages_to_batches send",
    "passes.take": "positions reset_position take",
    "passes.to_kafka": "send_to_kafka take_back_from_kafka",
    "queue": "Queue Store protect",
    "rules.activation_specification": "ActivationSpecification",
    "rules.default_messaging": "DefaultMessaging",
    "rules.described": "describe typed_policy",
    "rules.listener_port": "ListenerPort",
    "rules.msmq3": "Msmq3",
    "rules.msmq4": "Msmq4 PoisonSubQueue",
    "rules.outage": "Outage",
    "rules.service_broker": "ServiceBroker",
    "rules.simulation.replay": "replay simulate",
    "rules.simulation.scripted_host": "Action Script Scripted",
    "sources.delta_changes": "DeltaChanges",
    "sources.files": "Files",
    "sources.jdbc": "Jdbc Outbox",
    "sources.kafka": "Kafka",
    "sources.protobuf": "Protobuf",
    "sources.schemas": "Avro JsonSchema Registry Schema",
    "sources.source": "Position Reached Source Take",
    "store": "open_store",
    "values.clock": "SystemClock",
    "values.failures": "ErrorHandler PoisonRows Postpone Unprocessable",
    "values.json_text": "read_json write_json",
    "values.message": "Message",
    "values.schema": "SubQueue",
}
"""The public names, by the module that has them."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "errors":
        return import_module(f"{__name__}.values.errors")
    for module, names in _HOMES.items():
        if name in names.split():
            value: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
