"""Conversations in the table: versions of endpoints in ``_conversation``, and in ``_transmission`` what is on its way to the partner."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_poison.dialogs.endpoint import ConversationEndpoint, Envelope, Outgoing
from airflow_poison.values.schema import CONVERSATION, DEFAULT_PRIORITY, DIALOG, TRANSMISSION_QUEUE, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

MESSAGE_COLUMNS = ("message_type", "body", "priority", "properties")
"""What ``table_to_messages`` reads."""
_SENT = ("message_id", "priority", "group_id", "conversation_id", "message_type", "body", "properties", "enqueued_at")


def endpoints_to_table(endpoints: Iterable[ConversationEndpoint], now: datetime | None = None) -> pa.Table:
    """Return rows of the ``_conversation`` partition (``table_schema()``): one for each version of an endpoint.

    :param now: when these versions are made: how long it is known that a conversation has ended counts from here. None: ``transact`` fills it in.
    """
    import pyarrow as pa

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
    import numpy as np
    import pyarrow as pa

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
    import pyarrow as pa

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
