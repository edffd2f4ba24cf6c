"""QueueEndConversationOperator: end a conversation, and with it a poison message."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.hooks.conversations import ConversationHook
from airflow_poison.links.queue import EventsLink, QueueLink
from airflow_poison.notifications.targets import listed, tell_ended
from airflow_poison.operators.dialogs import number, span
from airflow_poison.operators.identity import task_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_poison.notifications.targets import Targets


class QueueEndConversationOperator(BaseOperator):
    """End this side of a conversation (spec SB-26, SB-54), also while its queue is disabled (spec SB-21). Starts no JVM.

    All messages of the conversation leave the queue (spec SB-30). The partner gets EndDialog, or with ``error`` an Error message (spec SB-32); with
    ``cleanup`` nothing. The application here gets no message: whoever keeps state for the conversation removes it in ``on_conversation_ended``
    (spec SB-31). Running the task again ends nothing twice, and tells again.

    Returns ``{"queue", "conversations", "sent", "removed", "repeated", "states", "arrived", "waiting"}``: ``removed`` messages of the queue.

    :param queue_name: the queue of this side (``queue`` is the executor's). (templated)
    :param conversation: its handle at this side. (templated)
    :param error: a code above 0 that the partner is told; None: the conversation ends without an error. (templated)
    :param description: what the partner reads, together with ``error``. (templated)
    :param cleanup: remove everything here without telling the partner.
    :param enable: also enable the queue, in the order that its settings want: the conversation ends first, so that nobody receives the message
        again, unless ``recovery_order`` says otherwise (spec SB-34).
    :param wait: how long to wait while a pass holds the conversation's group, a duration or its text. (templated)
    :param on_conversation_ended: notifiers, or functions of the context, told after the commit, at least once. The context has
        ``conversation_ended``: a dict with ``queue``, ``conversation`` (the handle), ``conversation_id``, ``group_id``, ``service``,
        ``far_service``, ``error``, ``description`` and ``cleanup``.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conversation", "error", "description", "wait", "conn_id")
    ui_color = "#fbe3e4"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        queue_name: str,
        conversation: str,
        error: int | str | None = None,
        description: str = "",
        cleanup: bool = False,
        enable: bool = False,
        wait: timedelta | str = timedelta(0),
        on_conversation_ended: Targets = None,
        conn_id: str = ConversationHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.conversation = conversation
        self.error = error
        self.description = description
        self.cleanup = cleanup
        self.enable = enable
        self.wait = wait
        self.on_conversation_ended = listed("on_conversation_ended", on_conversation_ended)
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """End it.

        Raises ConversationNotFoundError (8426), ConversationEndedError (8427), ConversationLockedError, SettingError; then nothing has changed.
        """
        hook = ConversationHook(self.conn_id)
        result = hook.end_conversation(
            self.queue_name,
            self.conversation,
            key=task_key(context, hook, hook.queue(self.queue_name), handle=self.conversation),
            error=number("error", self.error),
            description=self.description,
            cleanup=self.cleanup,
            enable=self.enable,
            wait=span("wait", self.wait) or timedelta(0),
            on_conversation_ended=lambda ended: tell_ended(self.on_conversation_ended, ended, context, self.log),
        )
        if result.repeated:
            self.log.info("An earlier try has ended conversation %s.", self.conversation)
        else:
            self.log.info("Ended conversation %s; %s messages left the queue.", self.conversation, f"{result.removed:,}")
        return result.to_dict()
