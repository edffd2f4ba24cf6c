"""Arrivals: what time and the partner make of a conversation endpoint, and who receives what (spec sections 1.5 and 1.7). Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from airflow_poison.dialogs.acts import (
    SENDS,
    TIMES,
    Change,
    ConversationEndpoint,
    ConversationState,
    Outgoing,
    both_ended,
    changed,
    ended_with,
    local,
    local_error,
)
from airflow_poison.dialogs.system_messages import BOTH_ENDED, DIALOG_TIMER, END_DIALOG, ERROR, BrokerError, error_of, is_system

if TYPE_CHECKING:
    from airflow_poison.dialogs.services import Service

S = ConversationState
BY_CONVERSATION = "conversation"
"""What the event of a discarded message says in ``by``: it went because of the state of its conversation, and is no poison."""


def due(endpoint: ConversationEndpoint, now: datetime) -> tuple[Outgoing, ...]:
    """Return what the local broker puts into this side's queue: the messages of expired timers, the Error of an ended lifetime (spec SB-22).

    Asked again it returns the same: they are put there once for each ``local_key``.
    """
    if endpoint.due_at is None or endpoint.due_at > now:
        return ()
    timers = (*endpoint.expired_timers, (endpoint.timer_number, endpoint.timer_at))
    expired = [number for number, at in timers if at is not None and at <= now]
    found = [Outgoing(local(endpoint, timer=number), DIALOG_TIMER, priority=endpoint.priority) for number in expired]
    if endpoint.expires_at is not None and endpoint.expires_at <= now and endpoint.state is not S.ERROR:
        found.append(local_error(endpoint, BrokerError.LIFETIME))
    return tuple(found)


def local_key(message: Outgoing) -> str:
    """Return the key under which a message of ``due`` is put into the queue once."""
    envelope = message.envelope
    return f"timer:{envelope.to_handle}:{envelope.timer}" if envelope.timer else f"lifetime:{envelope.to_handle}"


def arrived(endpoint: ConversationEndpoint, waiting: Collection[str]) -> ConversationEndpoint:
    """Return an endpoint as it is with what has arrived for it and has not been received (spec SB-43, section 11.1).

    :param waiting: the types of these messages; timers change nothing.
    """
    systems = {is_system(name) for name in waiting}
    if ERROR in systems and endpoint.state in TIMES:
        return replace(endpoint, state=S.ERROR)
    if END_DIALOG in systems and endpoint.state in SENDS:
        return replace(endpoint, state=S.DISCONNECTED_INBOUND)
    if systems & {ERROR, END_DIALOG} and endpoint.state is S.DISCONNECTED_OUTBOUND:
        return replace(endpoint, state=S.CLOSED)
    return endpoint


def acknowledged(endpoint: ConversationEndpoint) -> ConversationEndpoint | None:
    """Return the endpoint of a dialog whose partner has ended it, too (spec SB-55); None: it did not wait for that."""
    return changed(endpoint, state=S.CLOSED) if endpoint.state is S.DISCONNECTED_OUTBOUND else None


def remembered(endpoint: ConversationEndpoint, message: Outgoing) -> ConversationEndpoint:
    """Return an endpoint that remembers what has arrived: its message waits where it is not read before it is back."""
    if is_system(message.message_type) == DIALOG_TIMER:
        after = _without_timer(endpoint, number := message.envelope.timer)
        return replace(after, expired_timers=(*after.expired_timers, (number, None)))
    after = arrived(endpoint, (message.message_type,))
    return endpoint if after == endpoint else changed(after)


@dataclass(frozen=True, slots=True)
class Handed:
    """The application receives the message.

    :param endpoint: as it is when that commits.
    """

    endpoint: ConversationEndpoint


@dataclass(frozen=True, slots=True)
class Discarded:
    """The application does not receive the message: it goes (spec SB-55).

    :param change: what its arrival means for the endpoint; None: nothing.
    """

    why: str
    change: Change | None = None


Reception = Handed | Discarded


def receive(endpoint: ConversationEndpoint | None, message: Outgoing, services: Mapping[str, Service], *, waiting: Collection[str] = ()) -> Reception:
    """Decide what a RECEIVE makes of the message of a dialog. An invalid one ends the dialog with an error for both sides (spec SB-38, SB-57).

    :param endpoint: this side, with what has arrived; None: it does not exist.
    :param services: of this queue, by name.
    :param waiting: the types of messages that have arrived in this dialog; for an endpoint that begins with this message.
    """
    if message.envelope.is_local:
        return _receive_local(endpoint, message)
    if endpoint is None:
        endpoint = begun_with(message)
    if endpoint is None or not endpoint.is_open or message.message_type == BOTH_ENDED:
        return _after_the_end(endpoint, message)
    system = is_system(message.message_type)
    if system == ERROR:
        return _receive_error(endpoint, message)
    if endpoint.has_received(message.envelope.sequence):
        return Discarded("it has been received before")
    if system == END_DIALOG:
        state = endpoint.state if endpoint.state is S.ERROR else S.DISCONNECTED_INBOUND
        return Handed(changed(_received(endpoint, message.envelope.sequence), state=state))
    return _receive_application(endpoint, message, services, waiting)


def _after_the_end(endpoint: ConversationEndpoint | None, message: Outgoing) -> Discarded:
    """Discard what arrives for a conversation that this side has ended (spec SB-55); ended with cleanup, it is gone (-8462).

    Who ended it because of an error of its own broker, a lifetime that has ended, say, acknowledged that before the partner had ended its side,
    and perhaps the acknowledgement was lost: the partner's EndDialog is acknowledged again.
    """
    system, acknowledges = is_system(message.message_type), message.message_type == BOTH_ENDED
    if endpoint is None:
        return Discarded("the conversation endpoint is gone", None if acknowledges else _gone(message))
    if endpoint.cleaned and system != ERROR and not acknowledges:
        return Discarded("the conversation was ended with cleanup", _gone(message, endpoint))
    if system == END_DIALOG and endpoint.state is S.CLOSED and endpoint.error_code is not None:
        return Discarded("the conversation was ended", both_ended(endpoint))
    over = (acknowledges or system is not None) and endpoint.state is S.DISCONNECTED_OUTBOUND
    return Discarded("the conversation was ended", Change(changed(endpoint, state=S.CLOSED)) if over else None)


def _receive_local(endpoint: ConversationEndpoint | None, message: Outgoing) -> Reception:
    if endpoint is None:
        return Discarded("the conversation was ended")
    if not endpoint.is_open:
        waits = endpoint.state is S.DISCONNECTED_OUTBOUND and not message.envelope.timer  # for an end that will not come: the partner is gone
        return Discarded("the conversation was ended", Change(changed(endpoint, state=S.CLOSED)) if waits else None)
    if not message.envelope.timer:
        return _receive_error(endpoint, message)
    number = message.envelope.timer
    if number not in dict(endpoint.expired_timers) and (endpoint.timer_at is None or number != endpoint.timer_number):
        return Discarded("the timer was set again before it expired, or has been received")
    after = _without_timer(endpoint, number)
    # Messages of earlier timers came into the queue before this one: one that is not there any more is not waited for.
    return Handed(replace(after, expired_timers=tuple((each, None if each < number else at) for each, at in after.expired_timers)))


def _without_timer(endpoint: ConversationEndpoint, number: int) -> ConversationEndpoint:
    """Return an endpoint that does not expect the message of a timer any more."""
    rest = tuple(timer for timer in endpoint.expired_timers if timer[0] != number)
    return changed(endpoint, expired_timers=rest, timer_at=None if number == endpoint.timer_number else endpoint.timer_at)


def _receive_error(endpoint: ConversationEndpoint, message: Outgoing) -> Reception:
    if endpoint.error_code is not None:
        return Discarded("an error of this conversation has been received before")
    document = error_of(message.body)
    return Handed(changed(endpoint, state=S.ERROR, error_code=document.code, error_text=document.description))


def _receive_application(endpoint: ConversationEndpoint, message: Outgoing, services: Mapping[str, Service], waiting: Collection[str]) -> Reception:
    problem = _problem(message, services)
    is_new = not endpoint.is_initiator and not endpoint.received and endpoint.error_code is None  # the application knows of none
    received = _received(endpoint, message.envelope.sequence)
    if problem is None:
        state = S.CONVERSING if endpoint.state is S.STARTED_INBOUND else endpoint.state
        return Handed(arrived(changed(received, state=state), waiting))
    change = ended_with(received, problem.error_there.document(problem.details))
    if is_new:  # it does not have to be ended here; a partner that has ended it learns that it is over
        return Discarded(problem.error_here.text, change if endpoint.state in SENDS else both_ended(received))
    sent = change.sent if endpoint.state in SENDS else ()  # a partner that has ended it gets no message
    here = local_error(endpoint, problem.error_here, problem.details)
    return Discarded(problem.error_here.text, Change(replace(change.endpoint, state=S.ERROR), (*sent, here)))


def _received(endpoint: ConversationEndpoint, sequence: int) -> ConversationEndpoint:
    """Take note of a sequence number. Whatever it leaves out may still come: nothing is lost where a later message overtakes."""
    if sequence > endpoint.received:
        gap = ((endpoint.received + 1, sequence - 1),) if sequence > endpoint.received + 1 else ()
        return replace(endpoint, received=sequence, missing=endpoint.missing + gap)
    gaps: list[tuple[int, int]] = []
    for first, last in endpoint.missing:
        gaps += [(first, sequence - 1), (sequence + 1, last)] if first <= sequence <= last else [(first, last)]
    return replace(endpoint, missing=tuple((first, last) for first, last in gaps if first <= last))


class _Problem(NamedTuple):
    """What is wrong with an arriving message: the error for each side."""

    error_there: BrokerError
    error_here: BrokerError
    details: str


def _problem(message: Outgoing, services: Mapping[str, Service]) -> _Problem | None:
    """Return what is wrong with an arriving message; None: nothing."""
    envelope = message.envelope
    service = services.get(envelope.to_service)
    if service is None:
        return _Problem(BrokerError.SERVICE_DROPPED, BrokerError.ENDPOINT_GONE, envelope.to_service)
    contract = service.contracts.get(envelope.contract)
    if contract is None:
        return _Problem(BrokerError.CONTRACT_DROPPED, BrokerError.ENDPOINT_GONE, envelope.contract)
    kind = contract.message_types.get(message.message_type)
    invalid = None if kind is None else kind.check(message.body)
    if invalid is None:
        return None
    return _Problem(BrokerError(invalid.number), BrokerError(invalid.number_here), f"{invalid.message_type}: {invalid.reason}")


def begun_with(message: Outgoing) -> ConversationEndpoint | None:
    """Return the endpoint that the first message of a dialog creates where it arrives; None: it is not that message."""
    envelope = message.envelope
    is_first = envelope.from_initiator and envelope.sequence == 1 and is_system(message.message_type) is None
    return _receiver(message) if is_first else None


def _receiver(message: Outgoing) -> ConversationEndpoint:
    """Return the side that a message goes to, as it knows of nothing else yet."""
    envelope = message.envelope
    return ConversationEndpoint(
        conversation_id=envelope.conversation_id,
        is_initiator=not envelope.from_initiator,
        service=envelope.to_service,
        far_service=envelope.from_service,
        contract=envelope.contract,
        group_id=envelope.to_group,
        initiator_group=envelope.group,
        state=S.STARTED_INBOUND,
        priority=message.priority,
        expires_at=envelope.expires_at,
    )


def _gone(message: Outgoing, endpoint: ConversationEndpoint | None = None) -> Change | None:
    """Return the message to the sender that this side is gone (-8462); an Error about an Error would go on for ever."""
    if is_system(message.message_type) == ERROR:
        return None
    return ended_with(endpoint or _receiver(message), BrokerError.ENDPOINT_GONE.document())
