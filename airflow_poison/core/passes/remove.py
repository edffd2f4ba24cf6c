"""Remove: take messages out of a queue for good, by lookup id (spec WCF-25) or by conversation (spec SB-30)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.errors import SettingError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.message import Message
from airflow_poison.core.passes.message_rows import MessageRow
from airflow_poison.core.passes.messages import Change, Chosen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.queue_table import QueueTable

BY_HAND = "hand"
"""What the event of something that people did says in ``by``."""


MOST_SHOWN = 100
"""How many removed messages ``to_dict`` shows."""


@dataclass(frozen=True, slots=True)
class RemoveResult:
    """What a removal took out, message by message."""

    queue: str
    messages: tuple[MessageRow, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain values: the number of messages, and the first 100 of them; bodies are cut at 64 KiB, and say so."""
        shown = [message.to_dict() for message in self.messages[:MOST_SHOWN]]
        return {"queue": self.queue, "removed": len(self.messages), "messages": shown, "more": len(self.messages) - len(shown)}


def remove(table: QueueTable, lookup_id: int, clock: Clock) -> Message:
    """Take a message out of whichever sub-queue it is in, in one commit, and return it. Its neighbours stay as they are.

    Raises MessageNotFoundError, and MessageClaimedError while a pass has the message.
    """
    [batch] = _removed(table, Chosen.ids([lookup_id]), clock).combine_chunks().to_batches()
    counts = [batch.column(name)[0].as_py() or 0 for name in ("abort_count", "move_count")]
    return Message.view(Message.columns(batch, table.name), 0, counts[0], counts[1])


def remove_messages(
    table: QueueTable, clock: Clock, lookup_ids: Collection[int] | None = None, conversation_id: str | None = None, *, run: str | None = None
) -> RemoveResult:
    """Take messages out of whichever sub-queues they are in, all in one commit, and return them.

    :param lookup_ids: which.
    :param conversation_id: all messages of a conversation instead, also those that wait in ``transmission``; none is no error (spec SB-30).
    :param run: a key: that a message is gone because a removal with the same key has taken it out is no error.
    Raises MessageNotFoundError for a lookup id that is not there, MessageClaimedError while a pass has one of them; then all stay.
    """
    if (lookup_ids is None) == (conversation_id is None):
        raise SettingError("lookup_ids", lookup_ids, "either lookup_ids or conversation_id")
    chosen = Chosen.ids(lookup_ids) if lookup_ids is not None else Chosen(conversation_id=conversation_id)
    return RemoveResult(table.name, tuple(MessageRow.of(_removed(table, chosen, clock, run))))


def _removed(table: QueueTable, chosen: Chosen, clock: Clock, run: str | None = None) -> pa.Table:
    now = clock.now()

    def told(rows: pa.Table) -> Iterator[Event]:
        for lookup_id, *counts in zip(*(rows[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count")), strict=True):
            yield Event(EventType.DROPPED, now, lookup_id, counts[0] or 0, counts[1] or 0, {"place": "", "by": BY_HAND})

    return Change(chosen, become=lambda _rows: None, told=told, run=run).commit(table, now)
