"""What the tests of conversations share: a service, messages of dialogs, and what became of their conversations."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.dialogs.acts import ConversationEndpoint, ConversationState, Envelope, Outgoing, target_handle
from airflow_poison.dialogs.services import Contract, MessageType, SentBy, Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument
from airflow_poison.dialogs.transaction import DialogState
from airflow_poison.values.schema import DIALOG, message_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_poison.delivery.session import BatchReport

AT = datetime(2026, 1, 1, tzinfo=UTC)
ORDER, QUESTION, ANSWER = "Order", "Question", "Answer"
ORDERING = Contract(
    "Ordering", {ORDER: SentBy.INITIATOR, QUESTION: SentBy.ANY, ANSWER: SentBy.TARGET}, [MessageType(QUESTION, schema={"type": "object"})]
)
BILLING = Contract("Billing", {"Bill": SentBy.INITIATOR, "Receipt": SentBy.TARGET})
SHOP = Service("Shop", [ORDERING, BILLING])


def endpoint(name: str = "d1", *, initiator: bool = False, **others: Any) -> ConversationEndpoint:
    """The target's side of a dialog in which nothing has been received, unless told otherwise."""
    handle = name if initiator else target_handle(name)
    given: dict[str, Any] = {
        "conversation_id": name,
        "is_initiator": initiator,
        "service": "Shop",
        "far_service": "Customers",
        "contract": "Ordering",
        "group_id": handle,
        "initiator_group": name,
        "state": ConversationState.CONVERSING,
    }
    return ConversationEndpoint(**given | others)


def message(name: str = "d1", sequence: int = 1, body: bytes | str = b"", message_type: str = ORDER, **envelope: Any) -> Outgoing:
    """A message of the initiator, for the target's side."""
    given: dict[str, Any] = {
        "conversation_id": name,
        "from_initiator": True,
        "from_service": "Customers",
        "to_service": "Shop",
        "contract": "Ordering",
        "group": name,
        "sequence": sequence,
    }
    return Outgoing(Envelope(**given | envelope), message_type, body.encode() if isinstance(body, str) else body)


def end_dialog(name: str = "d1", sequence: int = 2) -> Outgoing:
    return message(name, sequence, message_type=END_DIALOG)


def error(name: str = "d1", code: int = 127, sequence: int = 2) -> Outgoing:
    return message(name, sequence, ErrorDocument(code, "no").to_xml(), ERROR)


def timer(name: str = "d1", number: int = 1) -> Outgoing:
    return message(name, 0, message_type=DIALOG_TIMER, timer=number)


def dialog_batch(messages: Sequence[Outgoing | bytes | str], first_id: int = 0) -> pa.RecordBatch:
    """Return a batch of messages with consecutive lookup ids; plain bodies are messages of no dialog."""
    schema = message_schema().append(pa.field("move_count", pa.int32()))
    rows = [_row(each) | {"lookup_id": first_id + number, "abort_count": 0, "move_count": 0} for number, each in enumerate(messages)]
    return pa.RecordBatch.from_pylist([{"priority": 5, **row} for row in rows], schema=schema)


def _row(each: Outgoing | bytes | str) -> dict[str, Any]:
    if not isinstance(each, Outgoing):
        return {"body": each.encode() if isinstance(each, str) else each}
    envelope = each.envelope
    return {
        "conversation_id": envelope.to_handle,
        "group_id": envelope.to_group,
        "message_type": each.message_type,
        "body": each.body,
        "priority": each.priority,
        "properties": [(DIALOG, envelope.to_text())],
    }


def dialog_state(endpoints: Iterable[ConversationEndpoint] = (), waiting: Mapping[str, tuple[str, ...]] | None = None) -> DialogState:
    """What a pass has at hand of these conversations.

    :param waiting: types by the conversation's name, of the target's side.
    """
    named = {target_handle(name): types for name, types in (waiting or {}).items()}
    return DialogState({"Shop": SHOP}, {each.handle: each for each in endpoints}, named)


@dataclass
class Seen:
    """What became of conversations, over batches."""

    endpoints: dict[str, ConversationEndpoint] = field(default_factory=dict)
    sent: list[Outgoing] = field(default_factory=list)
    discarded: int = 0

    def add(self, report: BatchReport) -> Seen:
        assert report.conversed is not None
        for each in report.conversed.endpoints:
            self.endpoints[each.conversation_id] = each
        self.sent += report.conversed.sent
        self.discarded += report.conversed.discarded
        return self

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Conversation, type and body of what was sent."""
        return [(each.envelope.conversation_id, short(each.message_type), each.body.decode()) for each in self.sent]

    def state(self, name: str = "d1") -> str:
        return self.endpoints[name].state.value

    def to_json(self) -> str:
        return json.dumps(
            {
                "states": {name: each.to_dict() for name, each in sorted(self.endpoints.items())},
                "sent": [[*told, each.envelope.sequence] for told, each in zip(self.told, self.sent, strict=True)],
                "discarded": self.discarded,
            }
        )


def short(message_type: str) -> str:
    return message_type.rsplit("/", 1)[-1]
