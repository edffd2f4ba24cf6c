"""QueueBeginDialogOperator: begin dialogs with another service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import InputError
from airflow_poison.core.policies import checked_policy
from airflow_poison.hooks.conversations import ConversationHook
from airflow_poison.links.queue import MessagesLink, QueueLink
from airflow_poison.operators.dialogs import dialogs
from airflow_poison.operators.identity import task_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.policies.policy import Policy


class QueueBeginDialogOperator(BaseOperator):
    """Begin dialogs with another service, and send their first messages, in one commit: all or none (spec SB-36, SB-48). Starts no JVM.

    Running the task again (retry, clear) begins nothing twice. That the partner's queue is disabled is no error: the messages wait at this side
    (spec SB-19). A partner that does not exist answers with an Error message (spec SB-57).

    Returns ``{"queue", "conversations", "sent", "removed", "repeated", "states", "arrived", "waiting"}``: the handles at this side, in the order of
    the dialogs, and how many messages have arrived at partners or wait for them.

    :param queue_name: the queue of the service that begins them (``queue`` is the executor's). (templated)
    :param service: this side's. (templated)
    :param far_service: the partner's. (templated)
    :param contract: one of the service's. (templated)
    :param messages: one dialog's first messages, pairs of message type and body or dicts with ``message_type`` and ``body``; a body is text, bytes
        or a JSON value. (templated)
    :param dialogs: several dialogs instead: dicts with ``messages`` and, when wanted, ``group_id`` (a related conversation's), ``priority``,
        ``lifetime`` and ``timer``. (templated)
    :param lifetime: how long a dialog may last at most, a duration or its text; None: for ever. (templated)
    :param priority: 1 to 10, of messages and dialog. (templated)
    :param timer: a conversation timer of this side, set at once (spec SB-56). (templated)
    :param services: declared on the queue first.
    :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "service",
        "far_service",
        "contract",
        "messages",
        "dialogs",
        "lifetime",
        "priority",
        "timer",
        "conn_id",
    )
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), MessagesLink())

    def __init__(
        self,
        *,
        queue_name: str,
        service: str,
        far_service: str,
        contract: str,
        messages: Sequence[object] | None = None,
        dialogs: Sequence[object] | None = None,
        lifetime: timedelta | str | None = None,
        priority: int | str | None = None,
        timer: timedelta | str | None = None,
        services: Sequence[Service] = (),
        policy: Policy | None = None,
        conn_id: str = ConversationHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (messages is None) == (dialogs is None):
            raise InputError(f"{self.task_id}: give either messages, of one dialog, or dialogs.")
        self.queue_name = queue_name
        self.service = service
        self.far_service = far_service
        self.contract = contract
        self.messages = messages
        self.dialogs = dialogs
        self.lifetime = lifetime
        self.priority = priority
        self.timer = timer
        self.services = tuple(services)
        self.policy = checked_policy(policy)
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Begin what is not begun yet.

        Raises ServiceNotFoundError, QueueNotFoundError, SettingError, InputError, ConversationLockedError; then nothing was begun.
        """
        hook = ConversationHook(self.conn_id)
        given = [{"messages": self.messages}] if self.dialogs is None else self.dialogs
        begun = dialogs(given, lifetime=self.lifetime, priority=self.priority, timer=self.timer)
        table = hook.declare_services(self.queue_name, self.services, self.policy)
        result = hook.begin_dialogs(
            self.queue_name,
            service=self.service,
            far_service=self.far_service,
            contract=self.contract,
            dialogs=begun,
            key=task_key(context, hook, table),
        )
        when = "by an earlier try" if result.repeated else "now"
        self.log.info("%s dialogs with %r were begun %s; %s messages.", len(result.conversations), self.far_service, when, f"{result.sent:,}")
        if result.waiting:
            self.log.warning("%s messages wait at this side for a disabled queue.", f"{result.waiting:,}")
        return result.to_dict()
