"""QueueRemoveOperator: take messages out of a queue for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import MessageNotFoundError
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.identity import with_own_key
from airflow_poison.operators.lookup_ids import lookup_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class QueueRemoveOperator(BaseOperator):
    """Take messages out of a queue by lookup id or by conversation (spec WCF-25, SB-30), all or none. Starts no JVM.

    Returns ``{"queue", "removed", "messages", "more"}``: their number, and the first 100 of them as ``QueueInspectOperator`` shows them. A body of
    more than 64 KiB is cut there, and says so: whoever wants to keep it inspects or copies the message first. That an earlier try of the same task
    instance has removed a message is no error; it is not shown again.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param conversation_id: all messages of a conversation instead; none is no error. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "conversation_id", "conn_id")
    ui_color = "#fbe3e4"

    def __init__(
        self,
        *,
        queue_name: str,
        lookup_ids: Sequence[int] | int | str | None = None,
        conversation_id: str | None = None,
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lookup_ids = lookup_ids
        self.conversation_id = conversation_id
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Remove them. Raises SettingError, QueueNotFoundError, MessageNotFoundError, MessageClaimedError; then all stay."""
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.passes.move import remove_messages

        hook = QueueHook(self.conn_id)
        table = hook.queue(self.queue_name)
        numbers = None if self.lookup_ids is None else lookup_ids(self.lookup_ids)
        result = with_own_key(
            lambda run: remove_messages(table, SystemClock(), numbers, self.conversation_id, run=run),
            context,
            hook,
            table.uri,
            refused=MessageNotFoundError,
        )
        self.log.info("Removed %s messages of %r.", f"{len(result.messages):,}", self.queue_name)
        return result.to_dict()
