"""A message as RECEIVE would show it: the columns of a Service Broker queue (spec SB-50 to SB-52)."""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING

from airflow_poison.dialogs.endpoint import Envelope
from airflow_poison.dialogs.services import SYSTEM_MESSAGE_TYPES
from airflow_poison.dialogs.system_messages import is_system
from airflow_poison.rules.recovery import Validation
from airflow_poison.values.schema import DIALOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_poison.dialogs.services import Contract, Service
    from airflow_poison.values.message import Message


class StatusInQueue(IntEnum):
    """The column ``status`` of a queue, as the page of CREATE QUEUE numbers it (spec SB-51)."""

    RECEIVED = 0  # and retained
    READY = 1
    INCOMPLETE = 2
    SENT = 3  # and retained


class StatusInReceive(IntEnum):
    """The column ``status`` of a row that RECEIVE returns, as its own page numbers it (spec SB-51)."""

    READY = 0
    RECEIVED = 1


def received_row(
    message: Message, services: Mapping[str, Service], status: StatusInQueue | StatusInReceive = StatusInQueue.READY
) -> dict[str, object]:
    """Return the columns of a message, in their order; beside each is SQL Server's type.

    The numbers of a service, a contract and a message type are None: here they have names only.

    :param services: of the queue, by name.
    Raises ValueError when the message belongs to no conversation.
    """
    text = message.properties.get(DIALOG)
    if text is None:
        raise ValueError(f"message {message.lookup_id} belongs to no conversation: it has no property {DIALOG!r}.")
    envelope = Envelope.from_text(text)
    service = services.get(envelope.to_service)
    contract = None if service is None else service.contracts.get(envelope.contract)
    name = message.message_type or ""
    kind = SYSTEM_MESSAGE_TYPES.get(is_system(name) or "") or (contract.message_types.get(name) if contract else None)
    return {
        "status": int(status),  # tinyint
        "priority": message.priority,  # tinyint
        "queuing_order": message.lookup_id,  # bigint
        "conversation_group_id": message.group_id,  # uniqueidentifier
        "conversation_handle": message.conversation_id,  # uniqueidentifier
        "message_sequence_number": envelope.sequence,  # bigint
        "service_name": envelope.to_service,  # nvarchar(512)
        "service_id": None,  # int
        "service_contract_name": envelope.contract,  # nvarchar(256)
        "service_contract_id": None,  # int
        "message_type_name": message.message_type,  # nvarchar(256)
        "message_type_id": None,  # int
        "validation": str(Validation.NONE if kind is None else kind.validation).ljust(2),  # nchar(2)
        "message_body": message.body or None,  # varbinary(max)
    }


# How a body is validated ------------------------------------------------------------------------------------------------


def validation_of(services: Mapping[str, Service], message_type: str | None, properties: Mapping[str, str]) -> Validation | None:
    """Return the validation of a message; None when no contract of the queue's services names its type.

    :param services: of the queue, by name.
    :param properties: of the message, among them the envelope of a dialog's.
    """
    if message_type is None:
        return None
    if (system := is_system(message_type)) is not None:
        return Validation(SYSTEM_MESSAGE_TYPES[system].validation)
    for contract in _contracts(services, properties):
        if (kind := contract.message_types.get(message_type)) is not None:
            return Validation(kind.validation)
    return None


def _contracts(services: Mapping[str, Service], properties: Mapping[str, str]) -> Iterator[Contract]:
    """Yield the contract of the message's dialog, then all others of the services."""
    with suppress(KeyError, ValueError, TypeError):  # no message of a dialog, or its service has changed since
        envelope = Envelope.from_text(properties[DIALOG])
        yield services[envelope.to_service].contracts[envelope.contract]
    for service in services.values():
        yield from service.contracts.values()
