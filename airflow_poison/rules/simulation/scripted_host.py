"""The host of a replay: handlers whose outcomes are scripted, and decisions carried out in memory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Halt, Park, Report
from airflow_poison.rules.simulation.script import Outcome, OutcomeKind
from airflow_poison.values.errors import PoisonMessageError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_poison.rules.simulation.replay_queue import Held, ReplayQueue
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.failures import ErrorHandler

PROCESSED = "processed"
LOST = "lost"

_FAILURES = {
    OutcomeKind.RB: FailureKind.EXCEPTION,
    OutcomeKind.TIMEOUT: FailureKind.TIMEOUT,
    OutcomeKind.CRASH: FailureKind.CRASH,
    OutcomeKind.UNPROCESSABLE: FailureKind.UNPROCESSABLE,
    OutcomeKind.BEFORE_OPERATION: FailureKind.TIMEOUT,
    OutcomeKind.POSTPONE: FailureKind.POSTPONED,
    OutcomeKind.SAVEPOINT: FailureKind.SAVEPOINT,
    OutcomeKind.UNCONSUMED: FailureKind.EXCEPTION,
}
_LASTS_FOR_THE_TIMEOUT = {OutcomeKind.TIMEOUT, OutcomeKind.BEFORE_OPERATION}


class ScriptedHost:
    """The ``Host`` of a replay."""

    def __init__(self, source: ReplayQueue, error_handler: ErrorHandler | None) -> None:
        self._source, self._ledger, self._error_handler = source, source.ledger, error_handler
        self._begun: dict[int, _Begun] = {}

    def now(self) -> datetime:
        """Return the virtual time."""
        return self._source.clock.now()

    def unreadable(self, entry: Held) -> Failure | None:
        """Say why the channel cannot hand the message over: the script says so, or the policy."""
        reason = entry.message.unreadable or self._source.opened.unreadable(entry)
        return Failure(FailureKind.UNREADABLE, text=reason) if reason else None

    def deliver(self, entry: Held, delivery: Deliver) -> Failure | None:
        """Let the next outcome of the message happen."""
        self.begin(entry, delivery)
        return self.result(entry)

    def begin(self, entry: Held, delivery: Deliver) -> None:
        """Call the handler; what comes of it is scripted."""
        began = self.now()
        outcome, items = _work(entry)
        if outcome.kind is not OutcomeKind.BEFORE_OPERATION:
            entry.deliveries += 1
            self._ledger.write(EventType.DELIVERED, entry)
            self._ledger.deliveries.append(ScriptedDelivery(entry.name, began - self._ledger.started, delivery.counts, outcome.kind, items))
        self._begun[entry.lookup_id] = _Begun(outcome, delivery, began)

    def result(self, entry: Held) -> Failure | None:
        """Let the time of the delivery go by."""
        begun = self._begun.pop(entry.lookup_id)
        failure = self._spend(begun)
        if failure is not None and begun.delivery.at_most_once:
            entry.place = LOST
        return failure

    def committed(self, entries: Sequence[Held]) -> None:
        """The messages are gone."""
        for entry in entries:
            entry.place = PROCESSED
            self._ledger.write(EventType.COMMITTED, entry)

    def rolled_back(self, entries: Sequence[Held], culprit: Held | None, failure: Failure) -> None:
        """Write the rollback down for each message."""
        for entry in entries:
            reason = failure.text if entry is culprit or culprit is None else f"with {culprit.name}"
            self._ledger.write(EventType.ROLLED_BACK, entry, error=reason)

    def withholds(self, entry: Held) -> bool:  # noqa: ARG002  (the seam's signature)
        """Never: a replay has no outages."""
        return False

    def move(self, entry: Held, decision: Park | Dispose) -> bool:  # noqa: ARG002  (the seam's signature)
        """Fail as often as the script says that a reader holds the message."""
        if not entry.locked:
            return True
        entry.locked -= 1
        return False

    def wait(self, entry: Held) -> None:  # noqa: ARG002  (the seam's signature)
        """Let the time between two tries go by."""
        if self._source.receiver is not None:
            self._source.spend(self._source.receiver.move_interval, interruptible=False)

    def ended(self, entry: Held, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Put the message where it goes, and record the event."""
        place = self._source.carry_out(entry, decision)
        entry.counts = decision.counts
        facts = {"place": place} | ({"error": failure.text or failure.kind} if failure is not None else {})
        if isinstance(decision, Dispose | Block | Halt):
            facts |= decision.details
        for event in decision.events:
            self._tell(event, entry, **({} if event is EventType.POISON_EXCEPTION else facts))

    def halted(self, decision: Halt) -> None:
        """Record that the endpoint has ended receiving."""
        for event in decision.events:
            self._ledger.write(event, None, **decision.details)

    def left_in_place(self, entry: Held, decision: Park | Dispose) -> None:
        """Record the event without the move."""
        for event in decision.events[:-1]:
            self._tell(event, entry, error="the message is held by somebody else")

    def postponed(self, entry: Held, failure: Failure) -> None:
        """Let the message wait as long as its handler asked for."""
        self._source.postpone(entry, failure.delay)

    def back_at_savepoint(self, entry: Held) -> None:
        """Nothing is recorded: the message is where it was."""

    def _tell(self, event: EventType, entry: Held, **facts: str) -> None:
        self._ledger.write(event, entry, **facts)
        if event is EventType.POISON_EXCEPTION and self._error_handler is not None:
            self._error_handler.handle_error(PoisonMessageError(entry.lookup_id, self._source.queue))

    def _spend(self, begun: _Begun) -> Failure | None:
        """Let the delivery take its time, no longer than the transaction; who closes the endpoint meanwhile rolls it back."""
        outcome = begun.outcome
        timeout = self._source.opened.effective_transaction_timeout
        postponed = outcome.kind is OutcomeKind.POSTPONE
        span = timedelta(0) if outcome.span is None or postponed else outcome.span
        if not begun.delivery.at_most_once:
            if outcome.kind in _LASTS_FOR_THE_TIMEOUT and outcome.span is None:
                span = timeout
            elif span > timeout:
                outcome, span = Outcome(OutcomeKind.TIMEOUT), timeout
        left = max(begun.at + span - self.now(), timedelta(0))
        if not self._source.spend(left):
            return Failure(FailureKind.CRASH, text="the endpoint was closed during the delivery")
        if outcome.kind is OutcomeKind.OK:
            return None
        delay = outcome.span if outcome.span is not None and postponed else timedelta(0)
        return Failure(_FAILURES[outcome.kind], text=outcome.kind, delay=delay)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A delivery under way."""

    outcome: Outcome
    delivery: Deliver
    at: datetime


def _work(entry: Held) -> tuple[Outcome, tuple[str, ...]]:
    """Return the outcome of one delivery; a session works its items off in order until one is not ``ok`` (spec WCF-38)."""
    if not entry.items:
        return next(entry.outcomes), ()
    worked: list[str] = []
    for name, outcomes in entry.items.items():
        outcome = next(outcomes)
        if outcome.kind is OutcomeKind.UNCONSUMED:
            return outcome, tuple(worked)
        worked.append(name)
        if outcome.kind is not OutcomeKind.OK:
            return outcome, tuple(worked)
    return Outcome(OutcomeKind.OK), tuple(worked)


class PlayedEvents:
    """Everything that happened, in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = self.last = clock.now()
        self.events: list[Event] = []
        self.deliveries: list[ScriptedDelivery] = []
        self.reports: list[Report] = []

    def write(self, event: EventType, held: Held | None = None, **details: str) -> None:
        """Write down an event of now, with the counts that the message has."""
        self.last = at = self._clock.now()
        if held is None:
            self.events.append(Event(event, at, details=details))
            return
        named = {"message": held.name, **details}
        self.events.append(Event(event, at, held.lookup_id, held.counts.abort_count, held.counts.move_count, named))


@dataclass(frozen=True, slots=True)
class ScriptedDelivery:
    """One call of the handler.

    :param message: the message's name.
    :param at: when the call began, after the start.
    :param counts: what the handler saw.
    :param outcome: how the call ended, as scripts write it; how it would have, where the endpoint was closed or the clock stopped before.
    :param items: the items of a session that were worked on, the failing one included.
    """

    message: str
    at: timedelta
    counts: Counts
    outcome: str
    items: tuple[str, ...] = ()
