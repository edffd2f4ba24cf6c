"""The ladder of a message: what each of its deliveries sees while its handler goes on raising ordinary exceptions, and that they come to an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.rows import BatchEntry
from airflow_poison.core.delivery.sessions.words import MAX_ATTEMPTS
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Counts, Deliver, Return

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.core.policies.decisions import AfterRollback, BeforeDelivery, Block, Dispose, Halt, Park
    from airflow_poison.core.policies.policy import Policy

RAISED = Failure(FailureKind.EXCEPTION)
"""A handler's exception that has not been told yet: the last one that was raised."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One delivery.

    :param stored: the counts that the message has before it is received.
    :param seen: those that the delivery sees.
    """

    stored: Counts
    seen: Counts


class Ladder:
    """The deliveries of all messages that come with the same counts, for policies whose decisions depend on the message alone.

    The policy is asked for a rung when the first message gets there. It is asked at a receiver of its own: nothing has happened yet.

    :ivar first: the first delivery, what ``rung(0)`` returns.
    :ivar end: what follows the last rung, as far as these counts tell: that no delivery follows, and whether the endpoint halts. None: it is not
        known yet, or the receive loop has to see to it.
    """

    def __init__(self, policy: Policy, stored: Counts, now: datetime) -> None:
        self._receiver, self._now = policy.open(), now
        self._entry = BatchEntry(0, 0, 0, None, stored)
        self._rungs: list[Rung] = []
        self._reads_more = policy.reads_properties
        self._over = False
        self.end: Park | Dispose | Block | Halt | None = None
        self._climb(Return(stored))
        self.first = self._rungs[0] if self._rungs else None

    def rung(self, attempts: int) -> Rung | None:
        """Return the delivery after so many rollbacks; None where none follows, and where the receive loop has to see to it."""
        if attempts == len(self._rungs) and not self._over:
            self._climb(self._receiver.after_rollback(self._entry, RAISED, self._now))
        return None if attempts >= len(self._rungs) else self._rungs[attempts]

    def _climb(self, after: AfterRollback) -> None:
        """Note the next delivery, or the end. What is consumed before its delivery is for the loop, and so is the last attempt of a word."""
        self._over = True
        if len(self._rungs) == MAX_ATTEMPTS:
            return
        decision: AfterRollback | BeforeDelivery = after
        if isinstance(after, Return):
            self._entry.counts = after.counts
            decision = self._receiver.before(self._entry, self._now)
        if isinstance(decision, Deliver):
            if not decision.at_most_once:
                self._rungs.append(Rung(self._entry.counts, decision.counts))
                self._entry.counts = decision.counts
                self._over = False
        elif not isinstance(decision, Return) and not self._reads_more:
            self.end = decision
