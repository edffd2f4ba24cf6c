"""Handlers around handlers: of sessions, whose items travel in one message (spec WCF-38, WCF-39), and of failures that the application tracks
itself, as in the sample of Service Broker's documentation (spec SB-58, SB-59).

Body of a sessiongram: ``APSG``, then for each item its length (4 bytes, big endian) and its bytes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_poison.delivery.handlers import FRAMES, HandlerRef, check_returned, load_handler, resolve_handler
from airflow_poison.rules.queue_disabling import FailureTracking
from airflow_poison.values.errors import HandlerNotFoundError, InputError
from airflow_poison.values.failures import Postpone, Unprocessable
from airflow_poison.values.message import Message

if TYPE_CHECKING:
    from airflow_poison.delivery.handlers import Batching, Handler, HandlerLike
    from airflow_poison.dialogs.transaction import Conversation

log = logging.getLogger(__name__)


MAGIC = b"APSG"
_LENGTH = struct.Struct(">I")
_MAX_ITEM = 0xFFFF_FFFF


class SessionNotConsumed(Exception):  # noqa: N818  (a rollback's reason, not an error of this package)
    """The handler returned before it had taken every item of the session; the whole session is rolled back (spec WCF-39)."""


def sessiongram(items: Sequence[bytes]) -> bytes:
    """Return the body of one message that carries these items.

    :raises InputError: no item, or an item of 4 GiB or more.
    """
    if not items:
        raise InputError("sessiongram([]): a session has at least one item.")
    pieces = [MAGIC]
    for number, item in enumerate(items):
        if len(item) > _MAX_ITEM:
            raise InputError(f"sessiongram: item {number} has {len(item)} bytes; an item has less than 4 GiB. Send it in parts.")
        pieces += (_LENGTH.pack(len(item)), item)
    return b"".join(pieces)


def items_of(body: bytes) -> list[bytes]:
    """Return the items of a sessiongram. Raises ValueError (a rollback like any other, spec WCF-29: a premature end) when it is none."""
    if not body.startswith(MAGIC):
        raise ValueError("The body is no sessiongram: it does not begin with 'APSG'. Send it as sessiongram([item, ...]).")
    items: list[bytes] = []
    offset = len(MAGIC)
    while offset < len(body):
        start = offset + _LENGTH.size
        if start > len(body):
            raise ValueError(f"The sessiongram ends within the length of item {len(items)}.")
        offset = start + int(_LENGTH.unpack_from(body, offset)[0])
        if offset > len(body):
            raise ValueError(f"The sessiongram ends within item {len(items)}: {offset - len(body)} bytes are missing.")
        items.append(body[start:offset])
    return items


class Session:
    """What a session handler receives: an iterable of messages, to be consumed to its end.

    :param gram: the message that carried the session; its counts are the session's (one abort count, one lookup id).
    """

    def __init__(self, gram: Message) -> None:
        self.gram = gram
        self._bodies = items_of(gram.body)
        self._taken = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Iterator[Message]:
        """Go on with the items that have not been taken."""
        while self._taken < len(self._bodies):
            body = self._bodies[self._taken]
            self._taken += 1
            yield self._item(body)

    def _item(self, body: bytes) -> Message:
        gram = self.gram
        return Message(
            body,
            lookup_id=gram.lookup_id,
            message_id=gram.message_id,
            priority=gram.priority,
            group_id=gram.group_id,
            conversation_id=gram.conversation_id,
            message_type=gram.message_type,
            properties=gram.properties,
            enqueued_at=gram.enqueued_at,
            expires_at=gram.expires_at,
            abort_count=gram.abort_count,
            move_count=gram.move_count,
            crash_count=gram.crash_count,
            queue=gram.queue,
        )

    def require_consumed(self) -> None:
        """Raise SessionNotConsumed when items are left (spec WCF-39)."""
        left = len(self._bodies) - self._taken
        if left:
            raise SessionNotConsumed(f"{left} of {len(self._bodies)} items of the session were not consumed; iterate over all of them.")


def session_handler(handler: Callable[[Session], object]) -> Callable[[Message], None]:
    """Return a handler of messages that hands the session to a handler of sessions."""

    def handle(message: Message) -> None:
        session = Session(message)
        check_returned(handler(session))
        session.require_consumed()

    return handle


def frame_handler(handler: Callable[[Any], object], batching: Batching) -> Callable[[Any], object]:
    """Return a handler that is called with what makes a frame. Raises HandlerNotFoundError: its library is not here."""
    module = FRAMES[batching.kind]
    try:
        import_module(module)
    except ImportError as error:
        raise HandlerNotFoundError(
            f"batch={batching.kind!r}: {module} cannot be imported where the handler runs ({error}). Install it there: pip install {module}."
        ) from error
    return lambda frame: handler(frame())


# Failures tracked by the application


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
