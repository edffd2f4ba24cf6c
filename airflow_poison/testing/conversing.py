"""Conversations for unit tests of handlers: no queue, no partner; what a handler sends is there to be looked at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_poison.core.conversations.endpoint import ConversationEndpoint, ConversationState, target_handle
from airflow_poison.core.conversations.services import DEFAULT_CONTRACT, Contract, SentBy, Service
from airflow_poison.core.conversations.transaction import BegunDelivery, Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

_ID = "a-conversation"


def conversation(
    sends: Sequence[str] = (),
    *,
    contract: Contract | None = None,
    state: ConversationState | str = ConversationState.CONVERSING,
    is_initiator: bool = False,
    failures: int = 0,
    now: datetime | None = None,
) -> Conversation:
    """Return a conversation for ``Message(..., conversation=conversation())``: its verbs are those of a real one, and raise its errors.

    :param sends: the message types that this side may send; empty: those of ``contract``, and without one type ``DEFAULT``.
    :param state: of this side, for example ``DI``: the partner has ended it.
    :param failures: what was tracked before.
    :param now: for timers; None: the present.
    """
    given = contract or (Contract("Contract", dict.fromkeys(sends, SentBy.ANY)) if sends else DEFAULT_CONTRACT)
    handle = _ID if is_initiator else target_handle(_ID)
    endpoint = ConversationEndpoint(
        conversation_id=_ID,
        is_initiator=is_initiator,
        service="Service",
        far_service="FarService",
        contract=given.name,
        group_id=handle,
        initiator_group=_ID,
        state=ConversationState(state),
        failures=failures,
    )
    return Conversation(BegunDelivery(endpoint, endpoint, now or datetime.now(UTC)), {"Service": Service("Service", [given])})
