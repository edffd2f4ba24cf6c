"""Halts: how an endpoint is halted, and by which message, as people are shown it before they decide (spec SB-15, SB-28)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alter import ENDPOINTS
from airflow_poison.core.passes.conversations.browse import conversations
from airflow_poison.core.passes.conversations.ending import open_endpoint
from airflow_poison.core.passes.inspect import inspect
from airflow_poison.core.passes.messages import named
from airflow_poison.core.policies.inspection import Inspection
from airflow_poison.core.policies.settings import choice
from airflow_poison.core.store.control import HALTED_BY, POISON_HALTED_BY, QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.passes.conversations.browse import ConversationRow
    from airflow_poison.core.passes.message_rows import MessageRow
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.queue_table import QueueTable

Endpoints = StrEnum("Endpoints", ["MAIN", "POISON", "ANY"])
"""Which endpoint of a queue is meant: that of ``main``, the reader of the poison sub-queue, or the first of the two that is halted."""
SUSPECTS: Mapping[SubQueue, str] = {SubQueue.MAIN: HALTED_BY, SubQueue.POISON: POISON_HALTED_BY}
"""The counter of the control row that names an endpoint's suspect."""


@dataclass(frozen=True, slots=True)
class HaltedEndpoint:
    """A halt, as somebody has seen it.

    :param sub_queue: what the endpoint reads: ``main`` or ``poison``.
    :param state: ``disabled``, ``stopped`` or ``faulted``.
    :param reason: why, one line.
    :param lookup_id: the suspect: the message that halted it; None: no single one.
    :param version: of the queue, when it was seen.
    """

    queue: str
    sub_queue: SubQueue
    state: QueueState
    reason: str
    lookup_id: int | None
    version: int = -1

    @property
    def name(self) -> str:
        """The endpoint, as people write it: ``orders`` or ``orders;poison``."""
        return named(self.queue, self.sub_queue)

    @property
    def identity(self) -> tuple[str, str, str, int | None]:
        """What tells this halt from others, but not when it was seen."""
        return self.sub_queue.value, self.state.value, self.reason, self.lookup_id

    def holds(self, control: Control) -> bool:
        """Whether the endpoint is still halted in this way."""
        state, reason = control.endpoint(self.sub_queue)
        return (state, reason, control.counters.get(SUSPECTS[self.sub_queue])) == (self.state, self.reason, self.lookup_id)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"sub_queue": self.sub_queue.value, "state": self.state.value}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Return the halt of its plain values."""
        number = told["lookup_id"]
        place, state = SubQueue(told["sub_queue"]), QueueState(told["state"])
        return cls(told["queue"], place, state, told["reason"], None if number is None else int(number), int(told["version"]))


def halted_endpoint(table: QueueTable, which: Endpoints | str = Endpoints.ANY) -> HaltedEndpoint | None:
    """Return how an endpoint is halted; None when it receives. Of both, the one that reads ``main`` comes first. Raises SettingError."""
    snapshot, wanted = table.snapshot(), choice("sub_queue", which, Endpoints)
    for place in ENDPOINTS if wanted is Endpoints.ANY else (SubQueue(wanted.value),):
        state, reason = snapshot.control.endpoint(place)
        if state is not QueueState.ENABLED:
            return HaltedEndpoint(table.name, place, state, reason, snapshot.control.counters.get(SUSPECTS[place]), snapshot.version)
    return None


def suspect_conversation(table: QueueTable, message: MessageRow | None) -> ConversationRow | None:
    """Return the conversation of a suspect, where it is one of the queue's services and has not ended here."""
    endpoint = None if message is None else open_endpoint(table, message.conversation_id)
    return None if endpoint is None else conversations(table, handle=endpoint.handle)[0]


def suspect(table: QueueTable, clock: Clock, halt: HaltedEndpoint) -> tuple[MessageRow | None, int]:
    """Return the suspect, and how many other messages of its conversation are in the queue. Nothing is changed (spec SB-28, SB-33)."""
    if halt.lookup_id is None:
        return None, 0
    seen = inspect(table, clock, lookup_id=halt.lookup_id, mode=Inspection.BROWSE).messages
    if not seen or not seen[0].conversation_id:
        return (seen[0] if seen else None), 0
    together = inspect(table, clock, conversation_id=seen[0].conversation_id, mode=Inspection.BROWSE)
    return seen[0], len(together.messages) + together.more - 1
