"""Conversations of a connection's queues: services, and what an application does in dialogs outside a receive pass."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.hooks.connection import acting_here
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_poison.dialogs.acts import Dialog
    from airflow_poison.dialogs.services import Service
    from airflow_poison.passes.conversations import ConversationRow, UnsentMessage
    from airflow_poison.passes.dialogs import ActResult
    from airflow_poison.passes.recovery import ConversationEnded
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.queue_table import QueueTable

_AT_ONCE = timedelta(0)


class ConversationHook(QueueHook):
    """Opens the queues of a connection, and does in conversations what applications do (spec sections 1.5 to 1.7).

    What an act sends leaves at once; what a disabled queue does not take stays at this side until it is enabled (spec SB-19). A conversation is
    named by its handle at this side. An act is done once for each ``key``, and waits up to ``wait`` while a pass holds the conversation's group.

    :param conn_id: connection of type ``poison``.
    """

    def declare_services(self, queue_name: str, services: Iterable[Service], policy: Policy | None = None) -> QueueTable:
        """Let services receive from a queue: CREATE SERVICE, or ALTER SERVICE where the queue has it already. Return the queue.

        :param policy: makes the queue when it is missing and records this policy in it; without it the queue must exist.
        Raises QueueNotFoundError, and SettingError for a queue without Service Broker's rules, or a name that another queue's service has.
        """
        return self.queue(queue_name, policy, tuple(services))

    def drop_service(self, queue_name: str, service: str) -> None:
        """Take a service from its queue: DROP SERVICE. A sender to it gets an Error message (spec SB-57). Raises ServiceNotFoundError."""
        from airflow_poison.passes.conversations import drop_service

        drop_service(self.queue(queue_name), service, SystemClock())

    def event_notifications(self, queue_name: str) -> dict[str, str]:
        """Return the services that get a message whenever the queue is disabled, by the names of the notifications."""
        from airflow_poison.passes.event_notifications import notifications

        return dict(notifications(self.queue(queue_name).snapshot().control))

    def create_event_notification(self, queue_name: str, name: str, service: str, *, reason: str = "") -> None:
        """Have a service get a message whenever the queue is disabled: CREATE EVENT NOTIFICATION … FOR BROKER_QUEUE_DISABLED (spec SB-16).

        The message is of the contract ``EVENT_NOTIFICATION``, in a dialog of its own; its body is the document EVENT_INSTANCE (spec SB-17).

        :param name: of the notification; the same name and service again change nothing.
        :param service: of any queue of the store.
        :param reason: why; recorded in the queue's history with who did it.
        Raises QueueNotFoundError, ServiceNotFoundError, and SettingError for a service without that contract or a name that is taken.
        """
        from airflow_poison.passes.event_notifications import create

        with acting_here(reason):
            create(self.store(), self.queue(queue_name), name, service, SystemClock())

    def drop_event_notification(self, queue_name: str, name: str, *, reason: str = "") -> None:
        """End what ``create_event_notification`` has begun. Raises SettingError for a name that is none."""
        from airflow_poison.passes.event_notifications import drop

        with acting_here(reason):
            drop(self.queue(queue_name), name, SystemClock())

    def begin_dialogs(self, queue_name: str, *, service: str, far_service: str, contract: str, dialogs: Sequence[Dialog], key: str) -> ActResult:
        """Begin dialogs and send their first messages, all in one commit (spec SB-36, SB-48).

        :param queue_name: the queue of the service that begins them.
        :param key: a second call with the same key begins nothing, and returns the same handles.
        Raises ServiceNotFoundError, SettingError, InputError, and ConversationLockedError while a pass holds the group of a dialog.
        """
        from airflow_poison.passes.dialogs import begin_dialogs

        table = self.queue(queue_name)
        done = begin_dialogs(table, service=service, far_service=far_service, contract=contract, dialogs=dialogs, key=key, clock=SystemClock())
        return self._leave(table, done)

    def send_on(
        self, queue_name: str, conversation: str, messages: Sequence[tuple[str, bytes]], *, key: str, wait: timedelta = _AT_ONCE
    ) -> ActResult:
        """Send messages, types and bodies, on a conversation.

        Raises ConversationNotFoundError (8426), ConversationSendError (8429), ConversationLockedError, SettingError, InputError.
        """
        from airflow_poison.passes.dialogs import send_on

        table = self.queue(queue_name)
        return self._leave(table, send_on(table, conversation, messages, key=key, clock=SystemClock(), wait=wait))

    def set_timer(self, queue_name: str, conversation: str, timeout: timedelta, *, key: str, wait: timedelta = _AT_ONCE) -> ActResult:
        """Set the conversation timer of this side, or start it again (spec SB-45, SB-56).

        Raises ConversationNotFoundError (8426), ConversationTimerError (8458), ConversationLockedError, SettingError.
        """
        from airflow_poison.passes.dialogs import set_timer

        table = self.queue(queue_name)
        return self._leave(table, set_timer(table, conversation, timeout, key=key, clock=SystemClock(), wait=wait))

    def end_conversation(
        self,
        queue_name: str,
        conversation: str,
        *,
        key: str,
        error: int | None = None,
        description: str = "",
        cleanup: bool = False,
        enable: bool = False,
        wait: timedelta = _AT_ONCE,
        on_conversation_ended: Callable[[ConversationEnded], object] = lambda _ended: None,
        reason: str = "",
    ) -> ActResult:
        """End this side of a conversation, whether or not its queue is enabled (spec SB-21, SB-26, SB-54). All its messages go (spec SB-30).

        The parameters are those of QueueEndConversationOperator; ``on_conversation_ended`` is called with the ended conversation.
        Raises ConversationNotFoundError (8426), ConversationEndedError (8427), ConversationLockedError, SettingError.
        """
        from airflow_poison.passes.recovery import Ending

        ending = Ending(
            self.queue(queue_name),
            SystemClock(),
            self.store(),
            error=error,
            description=description,
            cleanup=cleanup,
            told=on_conversation_ended,
            wait=wait,
        )
        with acting_here(reason):
            return ending.end_and_enable(conversation, key) if enable else ending.end(conversation, key)[0]

    def conversations(self, queue_name: str, *, conversation: str | None = None, ended: bool = False) -> tuple[ConversationRow, ...]:
        """Return the conversation endpoints of a queue, sorted by handle, as ``sys.conversation_endpoints`` shows them.

        :param conversation: only this one, a handle.
        :param ended: also those that this side remembers only because they have ended.
        Raises ConversationNotFoundError (8426) for a handle that the queue does not know.
        """
        from airflow_poison.passes.conversations import conversations

        return conversations(self.queue_to_read(queue_name), handle=conversation, ended=ended)

    def transmission_queue(self, queue_name: str) -> tuple[UnsentMessage, ...]:
        """Return what waits at this side until the partners' queues take it, and why, as ``sys.transmission_queue`` shows it (spec SB-19)."""
        from airflow_poison.passes.conversations import transmission_queue

        return transmission_queue(self.store(), self.queue_to_read(queue_name))

    def _leave(self, table: QueueTable, done: ActResult) -> ActResult:
        from airflow_poison.passes.recovery import left

        return left(self.store(), table, done, SystemClock())
