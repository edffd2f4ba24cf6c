"""A conversation endpoint: the state of one side of a dialog, and its messages to the other side."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID, uuid5

from airflow_poison.values.schema import DIALOG

if TYPE_CHECKING:
    from collections.abc import Mapping

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
