"""QueueInspectOperator: look at messages without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links.queue import EventsLink, QueueLink
from airflow_poison.operators.lookup_ids import one_lookup_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class QueueInspectOperator(BaseOperator):
    """Look at a message, at a conversation's next one, or, without either, at the suspect: what halted the queue, else its head. Starts no JVM.

    Returns ``{"queue", "mode", "state", "messages", "more"}``. A message is a dict of the queue table's columns; its body is text where it is UTF-8,
    else Base64 (``body_encoding``), of its first 64 KiB (``body_bytes`` is the whole length, ``body_cut`` says whether something is missing).
    No message is no error: ``messages`` is empty.

    The log has what Service Broker's inspection prints (spec SB-27): ``No message available.``; for a message whose type a contract of the queue's
    services names, ``Empty message.``, the XML, or ``No validation -- binary message:`` and the bytes.

    ``browse`` reads everything. ``exempt`` and ``strict`` see what a receive would get, wait up to 2 s while a pass has it, and fail for a halted
    queue; ``strict`` counts as a rollback, which may disable the queue (spec SB-33).

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param lookup_id: the message. (templated)
    :param conversation_id: the conversation. (templated)
    :param mode: ``browse``, ``exempt`` or ``strict``; None: as the queue's settings say, else ``browse``. (templated)
    :param every: all messages of the conversation, at most 100, instead of the one that a receive gets.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_id", "conversation_id", "mode", "conn_id")
    ui_color = "#e3ecf7"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        queue_name: str,
        lookup_id: int | str | None = None,
        conversation_id: str | None = None,
        mode: str | None = None,
        every: bool = False,
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lookup_id = lookup_id
        self.conversation_id = conversation_id
        self.mode = mode
        self.every = every
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Look. Raises QueueHaltedError, QueueNotFoundError, SettingError."""
        del context
        from airflow_poison.core.passes.services import printed_body
        from airflow_poison.core.policies.recovery import NO_MESSAGE

        number = None if self.lookup_id is None else one_lookup_id(self.lookup_id)
        hook = QueueHook(self.conn_id)
        result = hook.inspect(self.queue_name, lookup_id=number, conversation_id=self.conversation_id, mode=self.mode, every=self.every)
        table = hook.queue(self.queue_name) if result.messages else None
        for message in result.messages:
            self.log.info(
                "Message %s in %s: abort count %s, move count %s, %s bytes. %s",
                message.lookup_id,
                message.sub_queue,
                message.abort_count,
                message.move_count,
                len(message.body),
                message.reason or "",
            )
            if table is not None and (shown := printed_body(table, message)) is not None:
                self.log.info("%s", shown)
        if not result.messages:
            self.log.info(NO_MESSAGE)
        return result.to_dict()
