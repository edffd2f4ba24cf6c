"""Changes of conversation endpoints, and the messages that come of them: what acts and arrivals have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import Change, ConversationEndpoint, ConversationState, Envelope, Final, Outgoing
from airflow_poison.core.conversations.services import BOTH_ENDED, ERROR

if TYPE_CHECKING:
    from airflow_poison.core.conversations.error_document import BrokerError, ErrorDocument

SENDS = frozenset({ConversationState.STARTED_OUTBOUND, ConversationState.STARTED_INBOUND, ConversationState.CONVERSING})
"""The states in which this side may send."""
TIMES = SENDS | {ConversationState.DISCONNECTED_INBOUND}
"""The states in which it may set a timer."""


def changed(endpoint: ConversationEndpoint, **changes: object) -> ConversationEndpoint:
    """Return the next version of an endpoint."""
    return replace(endpoint, version=endpoint.version + 1, **changes)  # type: ignore[arg-type]  # names and types are those of the class


def ended_with(endpoint: ConversationEndpoint, document: ErrorDocument) -> Change:
    """Close an endpoint and tell the partner an error, which drops what has not left yet (spec SB-54)."""
    after = changed(endpoint, state=ConversationState.CLOSED, sent=endpoint.sent + 1, timer_at=None)
    return Change(after, (to_partner(after, ERROR, document.to_xml(), final=Final.ERROR),))


def both_ended(endpoint: ConversationEndpoint) -> Change:
    """Close an endpoint and tell the partner's broker that this side has ended the dialog, too."""
    after = changed(endpoint, state=ConversationState.CLOSED, sent=endpoint.sent + 1, timer_at=None)
    return Change(after, (to_partner(after, BOTH_ENDED),))


def to_partner(endpoint: ConversationEndpoint, message_type: str, body: bytes = b"", final: Final = Final.NO) -> Outgoing:
    """Return the message with the last sequence number of an endpoint."""
    envelope = Envelope(
        conversation_id=endpoint.conversation_id,
        from_initiator=endpoint.is_initiator,
        from_service=endpoint.service,
        to_service=endpoint.far_service,
        contract=endpoint.contract,
        group=endpoint.initiator_group,
        sequence=endpoint.sent,
        expires_at=endpoint.expires_at,
        final=final,
    )
    return Outgoing(envelope, message_type, body, endpoint.priority)


def local(endpoint: ConversationEndpoint, timer: int = 0) -> Envelope:
    """Return the envelope of a message that the local broker makes for this side: it comes as if from the partner."""
    return Envelope(
        conversation_id=endpoint.conversation_id,
        from_initiator=not endpoint.is_initiator,
        from_service=endpoint.far_service,
        to_service=endpoint.service,
        contract=endpoint.contract,
        group=endpoint.initiator_group,
        timer=timer,
    )


def local_error(endpoint: ConversationEndpoint, problem: BrokerError, details: str = "") -> Outgoing:
    """Return an Error message that the local broker makes for this side (spec SB-38)."""
    return Outgoing(local(endpoint), ERROR, problem.document(details).to_xml(), endpoint.priority)


def undeliverable(message: Outgoing, problem: BrokerError) -> Outgoing:
    """Return the Error that the sender of a message gets into its own queue, because the message cannot be delivered (spec SB-57)."""
    back = replace(message.envelope, from_initiator=not message.envelope.from_initiator, sequence=0, final=Final.NO)
    back = replace(back, from_service=message.envelope.to_service, to_service=message.envelope.from_service)
    return Outgoing(back, ERROR, problem.document(message.envelope.to_service).to_xml(), message.priority)
