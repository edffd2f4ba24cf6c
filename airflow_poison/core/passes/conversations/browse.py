"""Browse: the conversation endpoints of a queue, as ``sys.conversation_endpoints`` shows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import ConversationState
from airflow_poison.core.passes.conversations import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.conversations.endpoint import ConversationEndpoint
    from airflow_poison.core.store.seam import QueueTable


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
