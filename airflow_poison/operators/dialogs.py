"""Operators on conversations, and how dialogs and messages are read that a DAG file, a template or another task gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.links import EventsLink, MessagesLink, QueueLink
from airflow_poison.notifications import Targets, listed, notify_ended
from airflow_poison.operators.base import QueueOperator, number, task_key
from airflow_poison.rules import checked_policy
from airflow_poison.rules.queue_disabling import REMOVAL, EndConversation
from airflow_poison.rules.settings import whole_number
from airflow_poison.values.clock import EXAMPLES, read_duration
from airflow_poison.values.errors import InputError, SettingError
from airflow_poison.values.json_values import body_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_poison.dialogs.acts import Dialog
    from airflow_poison.dialogs.services import Service
    from airflow_poison.queue import Queue
    from airflow_poison.rules.policy import Policy


REMOVAL_ERROR = REMOVAL.error or 0
"""The code with which people end the conversation of a poison message (spec SB-26)."""
_DIALOG = ("messages", "group_id", "priority", "lifetime", "timer")
_MESSAGE = ("message_type", "body")


def messages(given: object) -> list[tuple[str, bytes]]:
    """Return types and bodies of messages. Raises InputError.

    :param given: pairs of type and body, or dicts with ``message_type`` and ``body``. A body is text, bytes, or a JSON value; none is empty.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InputError(f"messages: {given!r}; expected a list of (message type, body). Nothing was sent.")
    return [_message(each) for each in given]


def dialogs(given: object, **common: Any) -> list[Dialog]:
    """Return dialogs. Raises InputError and SettingError.

    :param given: dicts with ``messages`` and, when wanted, ``group_id``, ``priority``, ``lifetime`` and ``timer``.
    :param common: these settings for dialogs that have none of their own.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InputError(f"dialogs: {given!r}; expected a list of dicts with {', '.join(_DIALOG)}. Nothing was sent.")
    return [_dialog(each, common) for each in given]


def span(name: str, given: timedelta | str | float | None) -> timedelta | None:
    """Return a duration: a timedelta, seconds, or text of either (``1h30m``); empty text is none. Raises SettingError."""
    if given is None or isinstance(given, timedelta) or not str(given).strip():
        return given if isinstance(given, timedelta) else None
    found = read_duration(str(given))
    if found is None:
        raise SettingError(name, given, f"a duration such as {EXAMPLES}")
    return found


def ended_with_error(error: int | str, description: str) -> EndConversation:
    """Return the error that the partner of an ended conversation gets. Raises SettingError for an invalid code."""
    return EndConversation(whole_number("error", number("error", error), least=1), description)


def _dialog(given: object, common: Mapping[str, Any]) -> Dialog:
    from airflow_poison.dialogs.acts import Dialog

    if isinstance(given, Dialog):
        return given
    if not isinstance(given, Mapping) or "messages" not in given or set(given) - set(_DIALOG):
        raise InputError(f"dialogs: {given!r}; expected a dict with {', '.join(_DIALOG)}, of which messages must be there. Nothing was sent.")
    settings = {**common, **{name: value for name, value in given.items() if value is not None}}
    priority = number("priority", settings.get("priority"))
    return Dialog(
        messages=messages(settings["messages"]),
        group_id=settings.get("group_id"),
        lifetime=span("lifetime", settings.get("lifetime")),
        timer=span("timer", settings.get("timer")),
        **({} if priority is None else {"priority": priority}),
    )


def _message(given: object) -> tuple[str, bytes]:
    parts = [given.get(name) for name in _MESSAGE] if isinstance(given, Mapping) and not set(given) - set(_MESSAGE) else given
    if not isinstance(parts, list | tuple) or len(parts) != len(_MESSAGE) or not isinstance(parts[0], str):
        raise InputError(f"messages: {given!r}; expected (message type, body), or a dict with {' and '.join(_MESSAGE)}. Nothing was sent.")
    return parts[0], b"" if parts[1] is None else body_of(parts[1], f"messages: the body of a {parts[0]!r}")


class QueueBeginDialogOperator(QueueOperator):
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (messages is None) == (dialogs is None):
            raise InputError(f"{self.task_id}: give either messages, of one dialog, or dialogs.")
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

    def execute(self, context: Context) -> dict[str, object]:
        """Begin what is not begun yet.

        Raises ServiceNotFoundError, QueueNotFoundError, SettingError, InputError, ConversationLockedError; then nothing was begun.
        """
        hook = QueueHook(self.conn_id)
        given = [{"messages": self.messages}] if self.dialogs is None else self.dialogs
        begun = dialogs(given, lifetime=self.lifetime, priority=self.priority, timer=self.timer)
        queue = hook.queue(self.queue_name, self.policy, self.services)
        sides = {"service": self.service, "far_service": self.far_service, "contract": self.contract}
        result = queue.begin_dialogs(**sides, dialogs=begun, key=task_key(context, hook, queue.table.uri))
        when = "by an earlier try" if result.repeated else "now"
        self.log.info("%s dialogs with %r were begun %s; %s messages.", len(result.conversations), self.far_service, when, f"{result.sent:,}")
        if result.waiting:
            self.log.warning("%s messages wait at this side for a disabled queue.", f"{result.waiting:,}")
        return result.to_dict()


class ConversationOperator(QueueOperator):
    """Acts on a conversation of the queue of this side.

    :param conversation: its handle at this side. (templated)
    :param wait: how long to wait while a pass holds the conversation's group, a duration or its text. (templated)
    """

    def __init__(self, *, conversation: str, wait: timedelta | str = timedelta(0), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conversation = conversation
        self.wait = wait

    def _opened(self, context: Context) -> tuple[Queue, str]:
        hook = QueueHook(self.conn_id)
        queue = hook.queue(self.queue_name)
        return queue, task_key(context, hook, queue.table.uri)


class QueueSendOnConversationOperator(ConversationOperator):
    """Send on a conversation, in one commit: all or none. Starts no JVM.

    Running the task again sends nothing twice. Works also while the conversation's own queue is disabled (spec SB-20).

    Returns ``{"queue", "conversations", "sent", "removed", "repeated", "states", "arrived", "waiting"}``.

    :param messages: pairs of message type and body or dicts with ``message_type`` and ``body``; a body is text, bytes or a JSON value. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conversation", "messages", "wait", "conn_id")
    ui_color = "#e8f4e5"
    operator_extra_links = (QueueLink(), MessagesLink())

    def __init__(self, *, messages: Sequence[object], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.messages = messages

    def execute(self, context: Context) -> dict[str, object]:
        """Send what is not sent yet.

        Raises ConversationNotFoundError (8426), ConversationSendError (8429), ConversationLockedError, SettingError, InputError; then nothing was
        sent.
        """
        queue, key = self._opened(context)
        result = queue.send_on(self.conversation, messages(self.messages), key=key, wait=span("wait", self.wait) or timedelta(0))
        if result.repeated:
            self.log.info("An earlier try has sent these messages; nothing was sent now.")
        else:
            self.log.info("Sent %s messages on conversation %s.", f"{result.sent:,}", self.conversation)
        if result.waiting:
            self.log.warning("%s messages wait at this side for a disabled queue.", f"{result.waiting:,}")
        return result.to_dict()


class QueueEndConversationOperator(ConversationOperator):
    """End this side of a conversation (spec SB-26, SB-54), also while its queue is disabled (spec SB-21). Starts no JVM.

    All messages of the conversation leave the queue (spec SB-30). The partner gets EndDialog, or with ``error`` an Error message (spec SB-32); with
    ``cleanup`` nothing. The application at this side gets no message: remove its state for the conversation in ``on_conversation_ended``
    (spec SB-31). Running the task again ends nothing twice, and calls the notifiers again.

    Returns ``{"queue", "conversations", "sent", "removed", "repeated", "states", "arrived", "waiting"}``: ``removed`` messages of the queue.

    :param error: an error code above 0 that the partner gets; None: the conversation ends without an error. (templated)
    :param description: what the partner reads, together with ``error``. (templated)
    :param cleanup: remove everything at this side without a message to the partner.
    :param enable: also enable the queue, in the order of its settings: by default the conversation ends first, so that no pass receives the message
        again, unless ``recovery_order`` says otherwise (spec SB-34).
    :param on_conversation_ended: notifiers, or functions of the context, called after the commit, at least once. The context has
        ``conversation_ended``: a dict with ``queue``, ``conversation`` (the handle), ``conversation_id``, ``group_id``, ``service``,
        ``far_service``, ``error``, ``description`` and ``cleanup``.
    :param reason: why, for the events. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conversation", "error", "description", "wait", "reason", "conn_id")
    ui_color = "#fbe3e4"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        error: int | str | None = None,
        description: str = "",
        cleanup: bool = False,
        enable: bool = False,
        on_conversation_ended: Targets = None,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reason = reason
        self.error = error
        self.description = description
        self.cleanup = cleanup
        self.enable = enable
        self.on_conversation_ended = listed("on_conversation_ended", on_conversation_ended)

    def execute(self, context: Context) -> dict[str, object]:
        """End it.

        Raises ConversationNotFoundError (8426), ConversationEndedError (8427), ConversationLockedError, SettingError; then nothing has changed.
        """
        queue, key = self._opened(context)
        result = queue.end_conversation(
            self.conversation,
            key=key,
            error=number("error", self.error),
            description=self.description,
            cleanup=self.cleanup,
            enable=self.enable,
            wait=span("wait", self.wait) or timedelta(0),
            on_conversation_ended=lambda ended: notify_ended(self.on_conversation_ended, ended, context, self.log),
            reason=self.reason,
        )
        if result.repeated:
            self.log.info("An earlier try has ended conversation %s.", self.conversation)
        else:
            self.log.info("Ended conversation %s; %s messages left the queue.", self.conversation, f"{result.removed:,}")
        return result.to_dict()
