"""What the pages show of conversations, as plain values."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import ConversationState
from airflow_poison.core.errors import ConversationNotFoundError
from airflow_poison.core.policies.recovery import REMOVAL
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui.opened import DAMAGED, NotThereError, opened, opened_store
from airflow_poison.ui.reading import without_body

if TYPE_CHECKING:
    from airflow_poison.core.passes.conversations import ConversationRow
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

log = logging.getLogger(__name__)
S = ConversationState
_OVER = frozenset({S.DISCONNECTED_OUTBOUND, S.CLOSED})
_TELLS = frozenset({S.STARTED_INBOUND, S.CONVERSING})


def conversations(conn_id: str, name: str, limit: int, *, ended: bool) -> dict[str, object]:
    """Return the conversations of a queue; those with failures, errors and waiting messages first. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.conversations import conversations as browse

    def urgency(row: ConversationRow) -> tuple[int, bool, int, str]:
        return -row.failures, row.error is None, -sum(row.waiting.values()), row.handle

    with opened(conn_id, name) as table:
        rows = sorted(browse(table, ended=ended), key=urgency)
    shown = [row.to_dict() for row in rows[:limit]]
    return {"conn_id": conn_id, "queue": name, "at": SystemClock().now().isoformat(), "conversations": shown, "more": len(rows) - len(shown)}


def conversation(conn_id: str, name: str, handle: str, limit: int) -> dict[str, object]:
    """Return one conversation: what waits for it, what has not left for its partner, and what ends it. Raises NotThereError, NotReadableError."""
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.conversations import conversation as browse

    with opened(conn_id, name) as table:
        try:
            seen = browse(table, handle, limit)
        except ConversationNotFoundError as error:
            why = "nothing of it was received, it was forgotten after its end, or the handle is the partner's"
            raise NotThereError(f"Queue {name!r} has no conversation {handle!r}: {why}.") from error
        halts = _halts(table, handle)
        return {
            "conn_id": conn_id,
            "queue": name,
            "at": SystemClock().now().isoformat(),
            "conversation": {**seen.row.to_dict(), "far_handle": seen.row.far_handle},
            "far_queue": _far_queue(opened_store(conn_id), seen.row.far_service),
            "messages": [without_body(row) for row in seen.messages],
            "more": seen.more,
            "unsent": dict(seen.unsent),
            "halts": halts,
            "ended_by": _command(conn_id, name, seen.row, enable=halts),
        }


def _halts(table: QueueTable, handle: str) -> bool:
    """Return whether it is a message of this conversation that has halted the queue."""
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen

    suspect = table.snapshot().control.halted_by
    return suspect is not None and any(row.conversation_id == handle for row in look_up(table, Chosen.ids([suspect])))


def _far_queue(store: QueueStore, service: str) -> dict[str, object] | None:
    """Return the queue of the partner's service; None when there is none, or it cannot be found out."""
    from airflow_poison.core.passes.services import Directory

    try:
        found = Directory(store).queue_of(service)
        return None if found is None else {"queue": found.name, "state": found.snapshot().control.state.value}
    except DAMAGED as error:
        log.warning("The queue of service %r cannot be looked for: %s", service, error)
        return None


def _command(conn_id: str, name: str, row: ConversationRow, *, enable: bool) -> str | None:
    """Return what a person types to end a conversation as the manual removes a poison message (spec SB-26); None: this side has ended it.

    The partner is told an error where it has not ended its side.
    """
    state = ConversationState(row.state)
    if state in _OVER:
        return None
    words = ["airflow", "poison", "end-conversation", name, row.handle]
    if state in _TELLS:
        words += ["--error", str(REMOVAL.error), "--description", REMOVAL.description]
    if enable:
        words.append("--enable")
    if conn_id != QueueHook.default_conn_name:
        words += ["--conn-id", conn_id]
    return shlex.join(words)
