"""Browse: the conversation endpoints of a queue, as ``sys.conversation_endpoints`` shows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import ConversationState, target_handle
from airflow_poison.core.passes.browse import look_up
from airflow_poison.core.passes.conversations import ledger
from airflow_poison.core.passes.messages import Chosen, find

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.conversations.endpoint import ConversationEndpoint
    from airflow_poison.core.passes.message_rows import MessageRow
    from airflow_poison.core.store.files import Snapshot
    from airflow_poison.core.store.queue_table import QueueTable

COUNTED_ROWS, COUNTED_BYTES = 10_000, 8 * 1024 * 1024
"""So much of endpoints and waiting messages is read to count conversations."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """One side of a dialog, with what has arrived for it.

    :param handle: of this side. :param state: SO, SI, CO, DI, DO, ER or CD (spec SB-55).
    :param lifetime: when the dialog's lifetime ends. :param dialog_timer: when the conversation timer expires.
    :param waiting: how many messages of each type wait in the queue.
    :param error: code and text of the Error message that was received.
    :param cleaned: this side has ended it with cleanup: the partner was not told.
    """

    handle: str
    conversation_id: str
    group_id: str
    is_initiator: bool
    service: str
    far_service: str
    contract: str
    state: str
    priority: int
    lifetime: datetime | None
    dialog_timer: datetime | None
    sent: int
    waiting: Mapping[str, int]
    failures: int
    error: tuple[int, str] | None
    began_at: datetime | None
    cleaned: bool = False

    @property
    def far_handle(self) -> str:
        """The partner's handle."""
        return target_handle(self.conversation_id) if self.is_initiator else self.conversation_id

    @classmethod
    def of(cls, endpoint: ConversationEndpoint, waiting: Mapping[str, int]) -> ConversationRow:
        """Return the row of an endpoint."""
        return cls(
            handle=endpoint.handle,
            conversation_id=endpoint.conversation_id,
            group_id=endpoint.group_id,
            is_initiator=endpoint.is_initiator,
            service=endpoint.service,
            far_service=endpoint.far_service,
            contract=endpoint.contract,
            state=endpoint.state.value,
            priority=endpoint.priority,
            lifetime=endpoint.expires_at,
            dialog_timer=endpoint.timer_at,
            sent=endpoint.sent,
            waiting=dict(waiting),
            failures=endpoint.failures,
            error=None if endpoint.error_code is None else (endpoint.error_code, endpoint.error_text),
            began_at=endpoint.began_at,
            cleaned=endpoint.cleaned,
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain values; instants in ISO 8601."""
        values = asdict(self)
        for name in ("lifetime", "dialog_timer", "began_at"):
            values[name] = None if values[name] is None else values[name].isoformat()
        return values | {"error": None if self.error is None else {"code": self.error[0], "description": self.error[1]}}


def conversations(table: QueueTable, *, handle: str | None = None, ended: bool = False) -> tuple[ConversationRow, ...]:
    """Return the conversation endpoints of a queue, sorted by handle.

    :param handle: only this one. :param ended: also those that this side remembers only because they have ended (CD).
    Raises ConversationNotFoundError (8426) for a handle that the queue does not know.
    """
    snapshot = table.snapshot()
    if handle is not None:
        found = ledger.endpoint(table, snapshot, handle)
        types = ledger.waiting(table, snapshot, {handle}).get(handle, [])
        return (ConversationRow.of(found, {name: types.count(name) for name in sorted(set(types))}),)
    rows = (ConversationRow.of(endpoint, waiting) for endpoint, waiting in ledger.seen(table, snapshot))
    return tuple(row for row in rows if ended or row.state != ConversationState.CLOSED)


def number(table: QueueTable) -> int | None:
    """Return how many conversations go on; None where more would have to be read for it than whoever only passes by should wait for."""
    snapshot = table.snapshot()
    looked_at = [*snapshot.conversations, *snapshot.files]
    if sum(file.rows for file in looked_at) > COUNTED_ROWS or sum(file.size for file in looked_at) > COUNTED_BYTES:
        return None
    return len(conversations(table))


@dataclass(frozen=True, slots=True)
class ConversationView:
    """One side of a dialog, and what lies in the queue for it and for its partner.

    :param messages: the first that wait for this side, in the order in which they came, wherever in the queue.
    :param more: how many were left out.
    :param unsent: how many messages of each type are here on their way to the partner: its queue does not take them, or nobody has carried them yet
        (spec SB-19).
    """

    row: ConversationRow
    messages: tuple[MessageRow, ...]
    more: int
    unsent: Mapping[str, int]


def conversation(table: QueueTable, handle: str, limit: int) -> ConversationView:
    """Return one conversation endpoint of a queue with its messages. Raises ConversationNotFoundError (8426).

    :param limit: how many messages, at least 1.
    """
    [row] = conversations(table, handle=handle)
    snapshot = table.snapshot()
    numbers = sorted(number for holder in find(table, snapshot, Chosen(conversation_id=handle)) for number in holder.lookup_ids)
    first = look_up(table, Chosen.ids(numbers[:limit]))
    return ConversationView(row, first, len(numbers) - len(first), _unsent(table, snapshot, row.far_handle))


def _unsent(table: QueueTable, snapshot: Snapshot, far_handle: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in snapshot.transmissions:
        rows = table.read(file, ["conversation_id", "message_type"])
        for handle, message_type in zip(rows["conversation_id"].to_pylist(), rows["message_type"].to_pylist(), strict=True):
            if handle == far_handle:
                found[message_type or ""] = found.get(message_type or "", 0) + 1
    return dict(sorted(found.items()))
