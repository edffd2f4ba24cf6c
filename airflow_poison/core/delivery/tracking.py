"""Failures tracked by the application: a handler around a handler, as in the sample of Service Broker's documentation (spec SB-58, SB-59)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.handlers import HandlerRef, check_returned, load_handler, resolve_handler
from airflow_poison.core.failures import Postpone, Unprocessable
from airflow_poison.core.policies.recovery import FailureTracking

if TYPE_CHECKING:
    from airflow_poison.core.conversations.transaction import Conversation
    from airflow_poison.core.delivery.handlers import Handler, HandlerLike
    from airflow_poison.core.message import Message

log = logging.getLogger(__name__)


def track_failures(handler: HandlerLike, max_failures: int = 3) -> TrackedHandler:
    """Return a handler that tracks the failures of another one, for ``handler=``: one count a conversation, kept with it.

    A failure rolls back to the savepoint and is counted: the message is back in its place, and the queue's own counter stays 0. The failure
    after ``max_failures`` ends the conversation with error 500, 'Unable to process message.', which removes its messages here. A success clears
    the count. When the partner has ended the dialog (Error, EndDialog), so does this side; the handler does not get these messages.
    ``Postpone`` and ``Unprocessable`` mean what they always do, and messages that are in no dialog are handled as ever.

    :param handler: an importable name, or a callable.
    :param max_failures: failures that are forgiven, at least zero; with the default the fourth ends it.
    :raises HandlerNotFoundError: the handler cannot be used. SettingError: for ``max_failures``.
    """
    return TrackedHandler(resolve_handler(handler), FailureTracking(max_failures).max_failures)


@dataclass(slots=True)
class TrackedHandler:
    """What ``track_failures`` returns; picklable."""

    handler: HandlerRef
    max_failures: int
    _loaded: Handler | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self, message: Message) -> None:
        """Handle a message."""
        if self._loaded is None:
            self._loaded = load_handler(self.handler)
        conversation = message.conversation
        if conversation is None:
            check_returned(self._loaded(message))
        elif message.is_error or message.is_end_dialog:
            conversation.clear_failures()
            conversation.end()
        else:
            self._track(message, conversation, self._loaded)

    def __reduce__(self) -> tuple[type[TrackedHandler], tuple[HandlerRef, int]]:
        return type(self), (self.handler, self.max_failures)

    def _track(self, message: Message, conversation: Conversation, handler: Handler) -> None:
        try:
            check_returned(handler(message))
        except (Postpone, Unprocessable):
            raise
        except Exception:
            conversation.roll_back_to_savepoint()
            ended = conversation.track_failure(self.max_failures)
            what = "that was one too many, and the conversation was ended" if ended else f"{conversation.failures} of {self.max_failures} forgiven"
            log.warning("Message %s of conversation %s failed; %s.", message.lookup_id, conversation.handle, what, exc_info=True)
        else:
            if conversation.failures and conversation.is_open:
                conversation.clear_failures()
