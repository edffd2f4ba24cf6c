"""A conversation endpoint: the state of one side of a dialog, and its messages to the other side.

Acts: what an application does on a conversation, and the states and sequence numbers of its endpoint (spec sections 1.5, 1.7). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self
from uuid import UUID, uuid5

from airflow_poison.dialogs.services import Contract, SentBy
from airflow_poison.dialogs.system_messages import BOTH_ENDED, END_DIALOG, ERROR, BrokerError, ErrorDocument
from airflow_poison.rules import settings
from airflow_poison.values.errors import (
    ConversationEndedError,
    ConversationNotFoundError,
    ConversationSendError,
    ConversationTimerError,
    SettingError,
)
from airflow_poison.values.schema import DIALOG

_TARGETS = UUID("3c5b5f5e-7c0f-5c7e-9f0e-5b1f0a6d4d11")
"""The namespace of target handles."""
_INSTANTS = frozenset({"expires_at", "timer_at", "began_at"})


class ConversationState(StrEnum):
    """The state of one side of a dialog (spec SB-55)."""

    STARTED_OUTBOUND = "SO"  # begun here, nothing sent yet
    STARTED_INBOUND = "SI"  # begun by the partner, whose first message is not complete yet
    CONVERSING = "CO"
    DISCONNECTED_INBOUND = "DI"  # the partner has ended it
    DISCONNECTED_OUTBOUND = "DO"  # ended here, the partner has not yet
    ERROR = "ER"
    CLOSED = "CD"


def target_handle(conversation_id: str) -> str:
    """Return the handle of the target's side; the initiator's is the conversation's id itself."""
    return str(uuid5(_TARGETS, conversation_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEndpoint:
    """One side of a dialog.

    :param conversation_id: shared by both sides.
    :param is_initiator: whether this side has begun the dialog.
    :param service: this side's; ``far_service``: the partner's.
    :param group_id: this side's conversation group (spec SB-47).
    :param initiator_group: the initiator's group; the target sends it along, so that messages come to it.
    :param priority: 1 to 10, fixed when the endpoint is created (spec SB-48).
    :param expires_at: when the dialog's lifetime ends; None: never.
    :param timer_at: when the conversation timer expires; None: it is not set (spec SB-56).
    :param timer_number: raised whenever the timer is set; the message of one that was set again before it expired is void.
    :param expired_timers: timers besides the one that is set, whose messages are still to be received: the number of each, and since when its
        message is due; None: it is not waited for, its message was given back for later, or people have taken it out.
    :param sent: messages sent so far; the sequence number of the last one.
    :param received: the highest sequence number received, Error messages left out: they overtake.
    :param missing: lower ones that have not been received, first and last of each gap: their messages were postponed, parked or given up,
        and may come back.
    :param error_code: of the Error message that was received; None: there was none.
    :param cleaned: ended with cleanup: a sender to it gets the error that it is gone.
    :param failures: failures that the application has tracked (spec SB-59).
    :param version: raised by each change; the highest one counts.
    """

    conversation_id: str
    is_initiator: bool
    service: str
    far_service: str
    contract: str
    group_id: str
    initiator_group: str
    state: ConversationState
    priority: int = 5
    expires_at: datetime | None = None
    timer_at: datetime | None = None
    timer_number: int = 0
    expired_timers: tuple[tuple[int, datetime | None], ...] = ()
    sent: int = 0
    received: int = 0
    missing: tuple[tuple[int, int], ...] = ()
    error_code: int | None = None
    error_text: str = ""
    cleaned: bool = False
    failures: int = 0
    began_at: datetime | None = None
    version: int = 0

    @property
    def handle(self) -> str:
        """This side's handle."""
        return self.conversation_id if self.is_initiator else target_handle(self.conversation_id)

    @property
    def far_handle(self) -> str:
        """The partner's handle."""
        return target_handle(self.conversation_id) if self.is_initiator else self.conversation_id

    @property
    def is_open(self) -> bool:
        """Whether this side has not ended it yet."""
        return self.state not in {ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED}

    def has_received(self, sequence: int) -> bool:
        """Whether the partner's message of this number has been received."""
        return sequence <= self.received and not any(first <= sequence <= last for first, last in self.missing)

    @property
    def due_at(self) -> datetime | None:
        """When its timer or its lifetime ends next; None: never."""
        if not self.is_open:
            return None
        lifetime = None if self.state is ConversationState.ERROR else self.expires_at
        return min((at for at in (self.timer_at, lifetime, *(at for _, at in self.expired_timers)) if at is not None), default=None)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; what has its default is left out."""
        defaults = {field.name: field.default for field in fields(self)}
        shown = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        if self.expired_timers:
            shown["expired_timers"] = [(number, at and at.isoformat()) for number, at in self.expired_timers]
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in shown.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the endpoint of ``to_dict()``."""
        given: dict[str, Any] = {
            name: datetime.fromisoformat(value) if name in _INSTANTS and value is not None else value for name, value in values.items()
        }
        if given.pop("timer_put_off", False):  # as earlier releases have stored it
            given["expired_timers"] = [(given["timer_number"], None)]
        missing = tuple((first, last) for first, last in given.get("missing", ()))
        expired = tuple((number, at and datetime.fromisoformat(at)) for number, at in given.get("expired_timers", ()))
        return cls(**given | {"state": ConversationState(given["state"]), "missing": missing, "expired_timers": expired})


class Final(StrEnum):
    """What a message that ends a dialog does with those before it that have not left yet (spec SB-54)."""

    NO = ""
    ERROR = "error"  # they are dropped
    CLEANUP = "cleanup"  # they are dropped, and so is this one: the partner gets no message


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a message of a dialog says besides its type and body.

    :param sequence: its number among the messages of its sender in this dialog, from 1; 0 for those that the local broker makes.
    :param group: the initiator's conversation group.
    :param timer: the number of the timer that has expired; 0: it is no timer message.
    """

    conversation_id: str
    from_initiator: bool
    from_service: str
    to_service: str
    contract: str
    group: str
    sequence: int = 0
    expires_at: datetime | None = None
    final: Final = Final.NO
    timer: int = 0

    @property
    def to_handle(self) -> str:
        """The handle of the side that receives it."""
        return target_handle(self.conversation_id) if self.from_initiator else self.conversation_id

    @property
    def to_group(self) -> str:
        """The conversation group of the side that receives it; a target's group is its only conversation."""
        return self.to_handle if self.from_initiator else self.group

    def turned(self) -> Self:
        """Return the envelope for the other direction."""
        return replace(self, from_initiator=not self.from_initiator, from_service=self.to_service, to_service=self.from_service)

    @property
    def is_local(self) -> bool:
        """Whether the local broker has made it: a timer message, or an Error about the dialog itself (spec SB-38)."""
        return not self.sequence

    def to_text(self) -> str:
        """Return it as the value of a message's property."""
        values = {name: value for name, value in asdict(self).items() if value not in {None, "", 0}}
        return json.dumps(values | {"from_initiator": self.from_initiator}, default=datetime.isoformat)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the envelope of ``to_text()``. Raises ValueError, KeyError or TypeError for anything else."""
        values = dict(json.loads(text))
        at = values.pop("expires_at", None)
        return cls(**values | {"final": Final(values.get("final", "")), "expires_at": None if at is None else datetime.fromisoformat(at)})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the envelope of a message with these properties; None for one of no dialog, and for an envelope that cannot be read."""
        try:
            return cls.from_text(properties[DIALOG])
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of a dialog on its way.

    :param priority: with which it is received.
    """

    envelope: Envelope
    message_type: str
    body: bytes = b""
    priority: int = 5


@dataclass(frozen=True, slots=True)
class Change:
    """What became of an endpoint.

    :param sent: what leaves, in order: to the partner, or, where the envelope is local, into this side's own queue.
    """

    endpoint: ConversationEndpoint
    sent: tuple[Outgoing, ...] = ()


S = ConversationState
LOWEST_PRIORITY, DEFAULT_PRIORITY, HIGHEST_PRIORITY = 1, 5, 10
LONGEST_DESCRIPTION = 3_000
_WHY = {
    S.DISCONNECTED_INBOUND: "The partner has ended it: receive what is left, then end this side.",
    S.DISCONNECTED_OUTBOUND: "This side has ended it. Begin another one.",
    S.ERROR: "An Error message has arrived: receive it and what is left, then end this side.",
}


def begin(conversation_id: str, dialog: Dialog, *, service: str, far_service: str, contract: str, now: datetime) -> ConversationEndpoint:
    """Begin a dialog: the initiator's side of it, with nothing sent. Raises SettingError for a priority or a lifetime that is not allowed."""
    settings.whole_number("priority", dialog.priority, least=LOWEST_PRIORITY, most=HIGHEST_PRIORITY)
    if dialog.lifetime is not None:
        settings.duration("lifetime", dialog.lifetime, timedelta(microseconds=1))
    group = dialog.group_id or conversation_id
    return ConversationEndpoint(
        conversation_id=conversation_id,
        is_initiator=True,
        service=service,
        far_service=far_service,
        contract=contract,
        group_id=group,
        initiator_group=group,
        state=S.STARTED_OUTBOUND,
        priority=dialog.priority,
        expires_at=None if dialog.lifetime is None else now + dialog.lifetime,
        began_at=now,
    )


def send(endpoint: ConversationEndpoint, message_type: str, body: bytes, contract: Contract) -> Change:
    """Send on a conversation. Its body is validated where it arrives.

    Raises ConversationSendError (8429) in a state that does not allow it: an Error or EndDialog message has arrived, or this side has ended
    the dialog (spec SB-43, section 11.1); SettingError for a type that this side may not send (spec SB-36).
    """
    _refuse_closed(endpoint)
    if endpoint.state not in SENDS:
        raise ConversationSendError(
            f"Error 8429: nothing can be sent on conversation {endpoint.handle}: its endpoint is in state {endpoint.state.value}, "
            f"expected one of {', '.join(sorted(SENDS))}. {_WHY[endpoint.state]}",
            endpoint.state.value,
        )
    allowed = contract.sent_by(SentBy.INITIATOR if endpoint.is_initiator else SentBy.TARGET)
    if message_type not in allowed:
        raise SettingError(
            "message_type", message_type, f"what contract {contract.name!r} lets this side send: {', '.join(sorted(allowed)) or 'nothing'}"
        )
    after = changed(endpoint, state=S.CONVERSING, sent=endpoint.sent + 1)
    return Change(after, (to_partner(after, message_type, body),))


def end(endpoint: ConversationEndpoint, *, error: int | None = None, description: str = "") -> Change:
    """End this side of a dialog (spec SB-54). Its messages that still wait in the queue are to be removed (spec SB-30).

    Without an error EndDialog follows what was sent before; with one the partner gets an Error message, and what has not left yet is dropped.
    The partner gets nothing when it has ended the dialog already, or has never heard of it (section 11.1); its broker learns that both have.

    :param error: the code, 1 to 2147483647.
    :param description: what the partner reads, at most 3,000 characters.
    Raises ConversationEndedError (8427) when this side has ended it and the partner has not yet, ConversationNotFoundError (8426) when both
    have, SettingError for a code or a description that is not allowed.
    """
    if error is not None:
        settings.whole_number("error", error, least=1)
    if len(description) > LONGEST_DESCRIPTION:
        allowed = f"at most {LONGEST_DESCRIPTION:,} characters; it has {len(description):,}"
        raise SettingError("description", f"{description[:40]}...", allowed)
    if description and error is None:
        raise SettingError("description", description, "only together with an error")
    _refuse_closed(endpoint)
    if endpoint.state is S.DISCONNECTED_OUTBOUND:
        raise ConversationEndedError(
            f"Error 8427: conversation {endpoint.handle} has been ended here already; its endpoint is in state {endpoint.state.value} until the "
            "partner ends its side, too. There is nothing left to do."
        )
    if endpoint.state is S.STARTED_OUTBOUND:
        return Change(changed(endpoint, state=S.CLOSED, timer_at=None))
    if endpoint.state in {S.DISCONNECTED_INBOUND, S.ERROR}:
        return both_ended(endpoint)
    if error is None:
        after = changed(endpoint, state=S.DISCONNECTED_OUTBOUND, sent=endpoint.sent + 1, timer_at=None)
        return Change(after, (to_partner(after, END_DIALOG),))
    return ended_with(endpoint, ErrorDocument(error, description))


def end_with_cleanup(endpoint: ConversationEndpoint) -> Change:
    """Remove everything of a dialog at this side, without a message to the partner (spec SB-54). Raises ConversationNotFoundError (8426)."""
    _refuse_closed(endpoint)
    return _closed(endpoint, END_DIALOG, final=Final.CLEANUP, cleaned=True)


def set_timer(endpoint: ConversationEndpoint, timeout: timedelta, now: datetime) -> Change:
    """Set the conversation timer, or start it again (spec SB-45, SB-56). One that has expired is not started again: its message is received (SB-22).

    Raises ConversationTimerError (8458) in a state that does not allow it, SettingError for a time-out that is not above zero.
    """
    settings.duration("timeout", timeout, timedelta(microseconds=1))
    _refuse_closed(endpoint)
    if endpoint.state not in TIMES:
        raise ConversationTimerError(
            f"Error 8458: no timer can be set on conversation {endpoint.handle}: its endpoint is in state {endpoint.state.value}, "
            f"expected one of {', '.join(sorted(TIMES))}. {_WHY[endpoint.state]}"
        )
    before, expired = endpoint.timer_at, endpoint.expired_timers
    if before is not None and before <= now:
        expired = (*expired, (endpoint.timer_number, before))
    return Change(changed(endpoint, timer_at=now + timeout, timer_number=endpoint.timer_number + 1, expired_timers=expired))


def track_failure(endpoint: ConversationEndpoint, failures: int) -> Change:
    """Keep the application's count of failures with the conversation (spec SB-59)."""
    return Change(endpoint if endpoint.failures == failures else changed(endpoint, failures=failures))


def _refuse_closed(endpoint: ConversationEndpoint) -> None:
    if endpoint.state is S.CLOSED:
        raise ConversationNotFoundError(f"Error 8426: there is no conversation {endpoint.handle} any more: it has been ended. Begin another one.")


# What acts and arrivals have in common ---------------------------------------------------------------------------------


SENDS = frozenset({S.STARTED_OUTBOUND, S.STARTED_INBOUND, S.CONVERSING})
"""The states in which this side may send."""
TIMES = SENDS | {S.DISCONNECTED_INBOUND}
"""The states in which it may set a timer."""


def changed(endpoint: ConversationEndpoint, **changes: object) -> ConversationEndpoint:
    """Return the next version of an endpoint."""
    return replace(endpoint, version=endpoint.version + 1, **changes)  # type: ignore[arg-type]  # names and types are those of the class


def ended_with(endpoint: ConversationEndpoint, document: ErrorDocument) -> Change:
    """Close an endpoint and send the partner an error, which drops what has not left yet (spec SB-54)."""
    return _closed(endpoint, ERROR, document.to_xml(), Final.ERROR)


def both_ended(endpoint: ConversationEndpoint) -> Change:
    """Close an endpoint and inform the partner's broker that this side has ended the dialog, too."""
    return _closed(endpoint, BOTH_ENDED)


def _closed(endpoint: ConversationEndpoint, message_type: str, body: bytes = b"", final: Final = Final.NO, *, cleaned: bool = False) -> Change:
    after = changed(endpoint, state=S.CLOSED, sent=endpoint.sent + 1, timer_at=None, cleaned=cleaned or endpoint.cleaned)
    return Change(after, (to_partner(after, message_type, body, final),))


def _from_this_side(endpoint: ConversationEndpoint) -> Envelope:
    return Envelope(
        conversation_id=endpoint.conversation_id,
        from_initiator=endpoint.is_initiator,
        from_service=endpoint.service,
        to_service=endpoint.far_service,
        contract=endpoint.contract,
        group=endpoint.initiator_group,
    )


def to_partner(endpoint: ConversationEndpoint, message_type: str, body: bytes = b"", final: Final = Final.NO) -> Outgoing:
    """Return the message with the last sequence number of an endpoint."""
    envelope = replace(_from_this_side(endpoint), sequence=endpoint.sent, expires_at=endpoint.expires_at, final=final)
    return Outgoing(envelope, message_type, body, endpoint.priority)


def local(endpoint: ConversationEndpoint, timer: int = 0) -> Envelope:
    """Return the envelope of a message that the local broker makes for this side: it comes as if from the partner."""
    return replace(_from_this_side(endpoint).turned(), timer=timer)


def local_error(endpoint: ConversationEndpoint, problem: BrokerError, details: str = "") -> Outgoing:
    """Return an Error message that the local broker makes for this side (spec SB-38)."""
    return Outgoing(local(endpoint), ERROR, problem.document(details).to_xml(), endpoint.priority)


def undeliverable(message: Outgoing, problem: BrokerError) -> Outgoing:
    """Return the Error that the sender of a message gets into its own queue, because the message cannot be delivered (spec SB-57)."""
    back = replace(message.envelope.turned(), sequence=0, final=Final.NO)
    return Outgoing(back, ERROR, problem.document(message.envelope.to_service).to_xml(), message.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """A dialog that is to be begun, with its first messages.

    :param messages: types and bodies, at least one: the partner learns of a dialog by its first message.
    :param group_id: the group of a conversation that it is related to; None: a group of its own (spec SB-47).
    :param priority: 1 to 10 (spec SB-48).
    :param lifetime: how long it may last at most, above zero; None: for ever (spec SB-57).
    :param timer: a conversation timer of this side, set at once; None: none.
    """

    messages: Sequence[tuple[str, bytes]]
    group_id: str | None = None
    priority: int = DEFAULT_PRIORITY
    lifetime: timedelta | None = None
    timer: timedelta | None = None
