"""QueueSendOnConversationOperator: send further messages on a conversation."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.hooks.conversations import ConversationHook
from airflow_poison.links.queue import MessagesLink, QueueLink
from airflow_poison.operators.dialogs import messages, span
from airflow_poison.operators.identity import task_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class QueueSendOnConversationOperator(BaseOperator):
    """Send on a conversation, in one commit: all or none. Starts no JVM.

    Running the task again sends nothing twice. Works also while the conversation's own queue is disabled (spec SB-20).

    Returns ``{"queue", "conversations", "sent", "removed", "repeated", "states", "arrived", "waiting"}``.

    :param queue_name: the queue of this side (``queue`` is the executor's). (templated)
    :param conversation: its handle at this side. (templated)
    :param messages: pairs of message type and body or dicts with ``message_type`` and ``body``; a body is text, bytes or a JSON value. (templated)
    :param wait: how long to wait while a pass holds the conversation's group, a duration or its text. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conversation", "messages", "wait", "conn_id")
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), MessagesLink())

    def __init__(
        self,
        *,
        queue_name: str,
        conversation: str,
        messages: Sequence[object],
        wait: timedelta | str = timedelta(0),
        conn_id: str = ConversationHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.conversation = conversation
        self.messages = messages
        self.wait = wait
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Send what is not sent yet.

        Raises ConversationNotFoundError (8426), ConversationSendError (8429), ConversationLockedError, SettingError, InputError; then nothing was
        sent.
        """
        hook = ConversationHook(self.conn_id)
        key = task_key(context, hook, hook.queue(self.queue_name), handle=self.conversation)
        wait = span("wait", self.wait) or timedelta(0)
        result = hook.send_on(self.queue_name, self.conversation, messages(self.messages), key=key, wait=wait)
        if result.repeated:
            self.log.info("An earlier try has sent these messages; nothing was sent now.")
        else:
            self.log.info("Sent %s messages on conversation %s.", f"{result.sent:,}", self.conversation)
        if result.waiting:
            self.log.warning("%s messages wait at this side for a disabled queue.", f"{result.waiting:,}")
        return result.to_dict()
