"""What a handler has of the conversation of its message: it acts on a copy, and what it did counts when its transaction commits.

Dialog state: what a delivery has to know of the conversations whose messages it claimed, and which messages overtake others.

The driver of a pass writes the state, and every task reads it. The order is from spec SB-41 to SB-49, section 11.1.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from airflow_poison.dialogs import acts
from airflow_poison.dialogs.acts import Change, ConversationEndpoint, ConversationState, Final, Outgoing
from airflow_poison.dialogs.services import Contract, SentBy, Service
from airflow_poison.dialogs.system_messages import BOTH_ENDED, DIALOG_TIMER, ERROR, is_system
from airflow_poison.rules.queue_disabling import FailureTracking
from airflow_poison.values.errors import ConversationError, InputError, SettingError
from airflow_poison.values.json_values import body_of
from airflow_poison.values.schema import MAX_BODY_BYTES

AS_ARRIVED = 2
"""The precedence of all that overtakes nothing."""


class Place(NamedTuple):
    """Where a message is received when that is not its place of arrival (spec SB-41).

    :param anchor: the lowest lookup id of the messages that still wait in its dialog when its turn comes: there it is received.
    :param precedence: 0 for a DialogTimer, 1 for an Error; 2 for all others, which have no exception.
    """

    anchor: int
    precedence: int


@dataclass(frozen=True, slots=True)
class DialogState:
    """The conversations of a claim.

    :param services: of the queue, by name.
    :param endpoints: this side's endpoints, by handle, as they are stored; a conversation that only begins has none.
    :param waiting: the types of the messages that have arrived and wait in the queue, by handle.
    :param exceptions: the messages that are received elsewhere than in the order of their lookup ids, by lookup id.
    :param begun: endpoints that are not stored yet, of conversations whose first message comes behind others, or is not among what was claimed.
    """

    services: Mapping[str, Service] = field(default_factory=dict)
    endpoints: Mapping[str, ConversationEndpoint] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exceptions: Mapping[int, Place] = field(default_factory=dict)
    begun: Mapping[str, ConversationEndpoint] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        record = {
            "services": {name: service.to_dict() for name, service in self.services.items()},
            "endpoints": [endpoint.to_dict() for endpoint in self.endpoints.values()],
            "waiting": {handle: list(types) for handle, types in self.waiting.items()},
            "exceptions": [[lookup_id, *place] for lookup_id, place in self.exceptions.items()],
            "begun": [endpoint.to_dict() for endpoint in self.begun.values()],
        }
        path.write_text(json.dumps(record))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        record = json.loads(path.read_text())
        endpoints, begun = ([ConversationEndpoint.from_dict(values) for values in record[name]] for name in ("endpoints", "begun"))
        return cls(
            {name: Service.from_dict(values) for name, values in record["services"].items()},
            {endpoint.handle: endpoint for endpoint in endpoints},
            {handle: tuple(types) for handle, types in record["waiting"].items()},
            {lookup_id: Place(anchor, precedence) for lookup_id, anchor, precedence in record["exceptions"]},
            {endpoint.handle: endpoint for endpoint in begun},
        )


# The order of receive --------------------------------------------------------------------------------------------------


_CLASSES: Mapping[str | None, int] = {DIALOG_TIMER: 0, ERROR: 1}


class WaitingMessages(NamedTuple):
    """A message that waits in the queue, as far as its place in the order goes.

    :param lookup_id: its place of arrival.
    :param handle: of its conversation; None: it belongs to none, and overtakes nothing.
    :param group: the conversation group; None: its conversation is a group of its own.
    :param priority: of its conversation (spec SB-48); all messages of a conversation have the same.
    """

    lookup_id: int
    handle: str | None = None
    group: str | None = None
    message_type: str | None = None
    priority: int = 5

    @property
    def precedence(self) -> int:
        """0 for a DialogTimer, 1 for an Error, 2 for all others (spec SB-41); EndDialog is one of the others (spec SB-42)."""
        return AS_ARRIVED if self.handle is None else _CLASSES.get(is_system(self.message_type), AS_ARRIVED)


def overtaking_messages(rows: Iterable[WaitingMessages]) -> Mapping[int, Place]:
    """Return the places of the messages that overtake others of their dialog, by lookup id; all others have (lookup id, 2).

    Sorted by (priority descending, anchor, precedence, lookup id), messages stand in the order in which one RECEIVE TOP(1) after the other takes
    them. The anchor is the lowest lookup id that still waits in the dialog when the message's turn has come: a dialog's place among others
    is its oldest message's, and a DialogTimer that arrived before an Error is gone when the Error's turn comes.

    :param rows: all that waits of each dialog.
    """
    dialogs: dict[str, list[WaitingMessages]] = defaultdict(list)
    for row in rows:
        if row.handle is not None:
            dialogs[row.handle].append(row)
    return {lookup_id: place for dialog in dialogs.values() for lookup_id, place in _places(dialog)}


def _places(dialog: list[WaitingMessages]) -> Iterable[tuple[int, Place]]:
    """Go through a dialog from the last message to the first: what has been passed is what is still there when a message's turn comes."""
    oldest: int | None = None
    for row in sorted(dialog, key=_in_dialog, reverse=True):
        oldest = row.lookup_id if oldest is None else min(oldest, row.lookup_id)
        if row.precedence != AS_ARRIVED:
            yield row.lookup_id, Place(oldest, row.precedence)


def _in_dialog(row: WaitingMessages) -> tuple[int, int]:
    return row.precedence, row.lookup_id


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BegunDelivery:
    """A delivery of a dialog's message, as it begins; picklable.

    :param saved: the endpoint at the savepoint: with what has arrived, before the message was received (spec SB-58).
    :param handed: the endpoint when the message has been received.
    """

    saved: ConversationEndpoint
    handed: ConversationEndpoint
    now: datetime


def _act(verb: Callable[Concatenate[Conversation, P], T]) -> Callable[Concatenate[Conversation, P], T]:
    """Let a verb act while its delivery is open, one at a time."""

    @wraps(verb)
    def act(self: Conversation, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            self._check_open(verb.__name__)
            return verb(self, *args, **kwargs)

    return act


class Conversation:
    """The conversation of a message, in the transaction that received it: one side of a dialog.

    A verb that is refused raises at once and changes nothing. What was done counts when the handler returns, and never when it raises, is killed
    or takes too long. Afterwards the object can be read, and every verb raises ConversationError.

    :param services: of the queue, by name.
    :param clock: returns the time.
    """

    def __init__(self, begun: BegunDelivery, services: Mapping[str, Service], clock: Callable[[], datetime] | None = None) -> None:
        self._begun, self._services = begun, services
        self._clock = clock or (lambda: begun.now)
        self._endpoint = begun.handed
        self._sent: tuple[Outgoing, ...] = ()
        self._at_savepoint = self._closed = False
        self._lock, self._process = RLock(), os.getpid()

    # What it is --------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> str:
        """This side's handle."""
        return self._endpoint.handle

    @property
    def conversation_id(self) -> str:
        """The id that both sides share."""
        return self._endpoint.conversation_id

    @property
    def group_id(self) -> str:
        """This side's conversation group (spec SB-47)."""
        return self._endpoint.group_id

    @property
    def state(self) -> ConversationState:
        """The state of this side, with what this delivery has done so far (spec SB-55)."""
        return self._endpoint.state

    @property
    def service(self) -> str:
        """This side's service."""
        return self._endpoint.service

    @property
    def far_service(self) -> str:
        """The partner's service."""
        return self._endpoint.far_service

    @property
    def contract(self) -> str:
        """The contract that the dialog follows."""
        return self._endpoint.contract

    @property
    def priority(self) -> int:
        """1 to 10 (spec SB-48)."""
        return self._endpoint.priority

    @property
    def expires_at(self) -> datetime | None:
        """When its lifetime ends, UTC; None: never."""
        return self._endpoint.expires_at

    @property
    def is_initiator(self) -> bool:
        """Whether this side has begun the dialog."""
        return self._endpoint.is_initiator

    @property
    def is_open(self) -> bool:
        """Whether this side has not ended it."""
        return self._endpoint.is_open

    @property
    def failures(self) -> int:
        """The failures that were tracked since the last success (spec SB-59)."""
        return self._endpoint.failures

    @property
    def sent(self) -> tuple[Outgoing, ...]:
        """What the partner gets when this delivery commits, in order, EndDialog and Error messages among them."""
        return tuple(message for message in self._sent if is_for_partner(message))

    def __repr__(self) -> str:
        return f"Conversation(handle={self.handle!r}, state={self.state.value}, service={self.service!r}, far_service={self.far_service!r})"

    # What a handler does -----------------------------------------------------------------------------------------

    @_act
    def send(self, body: object = b"", message_type: str | None = None) -> None:
        """Send to the partner (SEND ON CONVERSATION).

        :param body: bytes as they are, text as UTF-8, anything else as the JSON that a send makes of it; 64 MiB in one delivery.
        :param message_type: may be left out when the contract lets this side send exactly one.
        Raises ConversationSendError (8429) in a state that does not allow it (spec SB-43), SettingError for a type that this side may not send,
        InputError for a body that cannot be sent.
        """
        contract, content = self._contract(), body_of(body, "conversation.send()")
        size = len(content) + sum(len(message.body) for message in self._sent)
        if size > MAX_BODY_BYTES:
            raise InputError(
                f"One delivery may send {MAX_BODY_BYTES:,} bytes; with this message conversation {self.handle} would send {size:,}. Send less, or "
                "store the content and send where it is."
            )
        kind = self._only_type(contract) if message_type is None else _plain(message_type)
        self._take(acts.send(self._endpoint, kind, content, contract))

    reply = send

    @_act
    def end(self, error: int | None = None, description: str = "") -> None:
        """End this side of the dialog (END CONVERSATION, spec SB-54): its messages that still wait here are removed (spec SB-30).

        :param error: a code above 0 that the partner gets in an Error message, with ``description``; None: it gets EndDialog.
        Raises ConversationNotFoundError (8426) or ConversationEndedError (8427) when it has been ended, SettingError for other values.
        """
        self._take(acts.end(self._endpoint, error=error, description=_plain(description)))

    @_act
    def end_with_cleanup(self) -> None:
        """Remove everything of the dialog at this side without a message to the partner (spec SB-54). Raises ConversationNotFoundError (8426)."""
        self._take(acts.end_with_cleanup(self._endpoint))

    @_act
    def set_timer(self, timeout: timedelta | float) -> None:
        """Set the conversation timer, or start it again (BEGIN CONVERSATION TIMER, spec SB-56).

        :param timeout: above zero; a number is seconds.
        Raises ConversationTimerError (8458) in a state that does not allow it, SettingError for a time-out that is none.
        """
        self._take(acts.set_timer(self._endpoint, _span_of(timeout), self._clock()))

    @_act
    def roll_back_to_savepoint(self) -> None:
        """Undo what this delivery has done, the receive too: the message is back in its place, and nothing is counted (spec SB-8, SB-58).

        What is done from here on counts when the handler returns. The message is received again at once: track the failure, or end the
        conversation, or it comes back for ever.
        """
        self._endpoint, self._sent, self._at_savepoint = self._begun.saved, (), True

    @_act
    def track_failure(self, max_failures: int = 3) -> bool:
        """Count a failure; above ``max_failures`` clear the count and end the conversation with error 500 (spec SB-59).

        :return: whether it was ended.
        Raises SettingError for a ``max_failures`` below 0.
        """
        tracked = FailureTracking(max_failures).failed({self.handle: self.failures}, self.handle)
        self._take(acts.track_failure(self._endpoint, tracked.counts.get(self.handle, 0)))
        if tracked.end is not None:
            self._take(acts.end(self._endpoint, error=tracked.end.error, description=tracked.end.description))
        return tracked.end is not None

    @_act
    def clear_failures(self) -> None:
        """Begin to count failures anew (spec SB-59)."""
        self._take(acts.track_failure(self._endpoint, 0))

    # The transaction ---------------------------------------------------------------------------------------------

    @property
    def is_at_savepoint(self) -> bool:
        """Whether the delivery was rolled back to its savepoint."""
        return self._at_savepoint

    def close(self) -> Change | None:
        """End the delivery: no verb acts any more. Return what it did besides receiving its message; None: nothing."""
        with self._lock:
            self._closed = True
            before = self._begun.saved if self._at_savepoint else self._begun.handed
            return None if self._endpoint == before and not self._sent else Change(self._endpoint, self._sent)

    def _take(self, change: Change) -> None:
        drops = any(message.envelope.final is not Final.NO for message in change.sent)  # what has not left yet (spec SB-54)
        self._endpoint, self._sent = change.endpoint, (*(() if drops else self._sent), *change.sent)

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise ConversationError(
                f"conversation.{verb}(): the delivery of this message has ended, so nothing can be done in its transaction any more. "
                f"Nothing was changed in conversation {self.handle}; act before the handler returns."
            )
        if os.getpid() != self._process:
            raise ConversationError(
                f"conversation.{verb}(): this is not the process that has the message, so what is done here would be lost. "
                f"Nothing was changed in conversation {self.handle}; hand the result back to the handler, and act there."
            )

    def _contract(self) -> Contract:
        service = self._services.get(self.service)
        contract = None if service is None else service.contracts.get(self.contract)
        if contract is None:
            raise SettingError("contract", self.contract, f"a contract of service {self.service!r}; it was taken from it, give it back")
        return contract

    def _only_type(self, contract: Contract) -> str:
        allowed = contract.sent_by(SentBy.INITIATOR if self.is_initiator else SentBy.TARGET)
        if len(allowed) != 1:
            raise SettingError(
                "message_type", None, f"one of what contract {contract.name!r} lets this side send: {', '.join(sorted(allowed)) or '-'}"
            )
        return next(iter(allowed))


def is_for_partner(message: Outgoing) -> bool:
    """Whether the partner's application receives it: not messages that the local broker makes for this side, nor messages between brokers."""
    envelope = message.envelope
    return not envelope.is_local and envelope.final is not Final.CLEANUP and message.message_type != BOTH_ENDED


def _span_of(timeout: timedelta | float) -> timedelta:
    try:
        return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingError("timeout", timeout, "a duration, or seconds") from error


def _plain(text: str) -> str:
    """Return a text as nothing but that: an enumeration's member could be unpacked only where its module can be imported."""
    return str.__str__(text) if isinstance(text, str) else text
