"""Consecutive rollbacks of receiving transactions, and the queues that they disable (spec SB-4 to SB-11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROLLBACK_LIMIT = 5
"""The rollback that disables a queue; a constant in the product (spec SB-4)."""


class Scope(StrEnum):
    """What has a counter (spec section 11, item 1)."""

    QUEUE = "queue"
    CONVERSATION_GROUP = "conversation_group"  # each group of each queue


class Disables(StrEnum):
    """Which queues a transaction that received from several of them disables (spec section 11, item 2)."""

    ALL_RECEIVED = "all_received"  # also those whose own counter is lower
    AT_LIMIT = "at_limit"


@dataclass(frozen=True, slots=True)
class Received:
    """One conversation group that a transaction received messages from; one message or many, it makes no difference.

    :param poison_message_handling: whether the queue is counted and can be disabled at all (spec SB-11).
    """

    queue: str
    group: str = ""
    poison_message_handling: bool = True


Counter = tuple[str, str]
"""The queue, and with scope ``conversation_group`` its group."""


@dataclass(slots=True)
class RollbackCounters:
    """The counters of one or several queues.

    :param limit: the rollback in a row that disables, at least 1.
    :param counts: those that are not zero.
    :param disabled: the queues that these counters have disabled. They are counted on and disabled no more (spec section 11.1).
    """

    limit: int = ROLLBACK_LIMIT
    scope: Scope = Scope.QUEUE
    disables: Disables = Disables.ALL_RECEIVED
    counts: dict[Counter, int] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)

    def rolled_back(self, received: Iterable[Received]) -> tuple[str, ...]:
        """Count the full rollback of one transaction; return the queues that it disables, each one once (spec SB-7, SB-9).

        :param received: what the transaction received. A RECEIVE without a row, or that failed, received nothing (spec SB-8).
        """
        counted = list(dict.fromkeys(self.counter(one) for one in received if one.poison_message_handling))
        for counter in counted:
            self.counts[counter] = self.counts.get(counter, 0) + 1
        at_limit = [counter for counter in counted if self.counts[counter] >= self.limit and counter[0] not in self.disabled]
        victims = counted if at_limit and self.disables is Disables.ALL_RECEIVED else at_limit
        queues = tuple(dict.fromkeys(queue for queue, _ in victims if queue not in self.disabled))
        self.disabled.update(queues)
        return queues

    def committed(self, received: Iterable[Received]) -> None:
        """Begin anew with what a transaction received that has committed, also after a rollback to a savepoint (spec SB-7, SB-8)."""
        for one in received:
            self.counts.pop(self.counter(one), None)

    def enabled(self, queue: str) -> None:
        """Begin anew with a queue that is set to ON, also when it is ON already (spec SB-7, section 11.1)."""
        self.disabled.discard(queue)
        self.not_handled(queue)

    def not_handled(self, queue: str) -> None:
        """Forget the counters of a queue whose poison handling is switched off (spec SB-7)."""
        for counter in [counter for counter in self.counts if counter[0] == queue]:
            del self.counts[counter]

    def count(self, one: Received) -> int:
        """Return how many rollbacks in a row there were."""
        return self.counts.get(self.counter(one), 0)

    def counter(self, one: Received) -> Counter:
        """Return which counter counts it."""
        return one.queue, one.group if self.scope is Scope.CONVERSATION_GROUP else ""
