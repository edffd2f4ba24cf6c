"""Conversations in the table: versions of endpoints in ``_conversation``, and in ``_transmission`` what is on its way to the partner.

A message as RECEIVE would show it: the columns of a Service Broker queue (spec SB-50 to SB-52).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from airflow_poison.dialogs.acts import ConversationEndpoint, Envelope, Outgoing
from airflow_poison.dialogs.services import SYSTEM_MESSAGE_TYPES, Contract, Service
from airflow_poison.dialogs.system_messages import is_system
from airflow_poison.rules.queue_disabling import Validation
from airflow_poison.values.libraries import np, pa
from airflow_poison.values.schema import CONVERSATION, DEFAULT_PRIORITY, DIALOG, TRANSMISSION_QUEUE, table_schema

if TYPE_CHECKING:
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


MESSAGE_COLUMNS = ("message_type", "body", "priority", "properties")
"""What ``table_to_messages`` reads."""
_SENT = ("message_id", "priority", "group_id", "conversation_id", "message_type", "body", "properties", "enqueued_at")


def endpoints_to_table(endpoints: Iterable[ConversationEndpoint], now: datetime | None = None) -> pa.Table:
    """Return rows of the ``_conversation`` partition (``table_schema()``): one for each version of an endpoint.

    :param now: when these versions are made: how long it is known that a conversation has ended counts from here. None: ``transact`` fills it in.
    """
    rows = [
        {
            "lookup_id": endpoint.version,
            "message_id": endpoint.conversation_id,
            "priority": endpoint.priority,
            "group_id": endpoint.group_id,
            "conversation_id": endpoint.handle,
            "message_type": endpoint.state.value,
            "body": json.dumps(endpoint.to_dict()).encode(),
            "enqueued_at": now,
            "due_at": endpoint.due_at,
            "sub_queue": CONVERSATION,
            "move_count": 0,
        }
        for endpoint in endpoints
    ]
    return pa.Table.from_pylist(rows, schema=table_schema())


def newest(rows: pa.Table) -> pa.Table:
    """Return of each handle (``conversation_id``) the row with the highest version (``lookup_id``), in the order in which they stand."""
    if not rows.num_rows:
        return rows
    handles = rows.column("conversation_id").combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    order = np.lexsort((rows.column("lookup_id").to_numpy(), handles))
    last = np.append(handles[order][1:] != handles[order][:-1], True)
    return rows.take(pa.array(np.sort(order[last])))


def table_to_endpoints(rows: pa.Table) -> dict[str, ConversationEndpoint]:
    """Return the newest of the versions in these rows, by handle."""
    counting = newest(rows)
    cells = zip(*(counting.column(name).to_pylist() for name in ("conversation_id", "body")), strict=True)
    return {str(handle): ConversationEndpoint.from_dict(json.loads(body or b"")) for handle, body in cells}


def messages_to_table(messages: Iterable[Outgoing], now: datetime) -> pa.Table:
    """Return messages of dialogs as rows of the ``_transmission`` partition (``table_schema()``), addressed to who receives them."""
    rows = [_message(message, now) | {"sub_queue": TRANSMISSION_QUEUE, "move_count": 0} for message in messages]
    return pa.Table.from_pylist(rows, schema=table_schema())


def arriving(messages: Iterable[Outgoing], now: datetime) -> list[pa.RecordBatch]:
    """Return messages of dialogs as they are appended to the queue that receives them."""
    return messages_to_table(messages, now).select(list(_SENT)).combine_chunks().to_batches()


def table_to_messages(rows: pa.Table) -> Iterator[Outgoing | None]:
    """Return the messages of dialogs of these rows, with the columns ``MESSAGE_COLUMNS``; None for a row that is none."""
    for message_type, body, priority, properties in zip(*(rows.column(name).to_pylist() for name in MESSAGE_COLUMNS), strict=True):
        text = dict(properties or ()).get(DIALOG)
        yield None if text is None else Outgoing(Envelope.from_text(text), message_type or "", body or b"", priority or DEFAULT_PRIORITY)


def _message(message: Outgoing, now: datetime) -> dict[str, Any]:
    envelope = message.envelope
    side = "initiator" if envelope.from_initiator else "target"
    return {
        "message_id": f"{envelope.conversation_id}:{side}:{envelope.sequence}" if envelope.sequence else None,
        "priority": message.priority,
        "group_id": envelope.to_group,
        "conversation_id": envelope.to_handle,
        "message_type": message.message_type,
        "body": message.body,
        "properties": [(DIALOG, envelope.to_text())],
        "enqueued_at": now,
    }
