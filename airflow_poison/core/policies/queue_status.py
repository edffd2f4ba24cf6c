"""The status of a Service Broker queue: its columns, and what a disabled queue refuses (spec SB-11, SB-12, SB-18 to SB-23)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_poison.core.errors import QueueHaltedError, RetentionError


class Statement(StrEnum):
    """What can be done with a queue, as far as its status matters."""

    RECEIVE = "RECEIVE"
    GET_CONVERSATION_GROUP = "GET CONVERSATION GROUP"
    SEND = "SEND"  # on a conversation whose own queue this is
    END_CONVERSATION = "END CONVERSATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The columns of ``sys.service_queues`` about a queue's status.

    :param is_receive_enabled: messages can be received.
    :param is_enqueue_enabled: messages can be added. While they cannot, those that arrive wait at their senders, who are not told
        (spec SB-19); so do the messages of timers and lifetimes, which keep running (spec SB-22).
    :param is_activation_enabled: readers are started for it.
    :param is_poison_message_handling_enabled: consecutive rollbacks disable it.
    :param is_retention_enabled: it keeps messages until their conversation ends.
    """

    is_receive_enabled: bool = True
    is_enqueue_enabled: bool = True
    is_activation_enabled: bool = False
    is_poison_message_handling_enabled: bool = True
    is_retention_enabled: bool = False

    def switched(self, *, on: bool) -> QueueStatus:
        """Return the status after STATUS = ON or OFF; activation and poison handling keep theirs (spec SB-12)."""
        return replace(self, is_receive_enabled=on, is_enqueue_enabled=on)

    def error(self, statement: Statement) -> int | None:
        """Return the number of the error with which a statement fails; None when it works (spec SB-18, SB-20, SB-21)."""
        if self.is_receive_enabled:
            return None
        match statement:
            case Statement.RECEIVE | Statement.GET_CONVERSATION_GROUP:
                return QueueHaltedError.number
            case Statement.SEND:
                return RetentionError.number if self.is_retention_enabled else None
            case Statement.END_CONVERSATION:
                return None
