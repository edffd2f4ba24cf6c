"""What the receive loop's decisions do in a server session: they are journaled; the files are the parent's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.failurelog import FailureLog, Rollback
from airflow_poison.core.delivery.sessions.words import COUNT_MASK, MAX_ATTEMPTS, SETTLED, State, attempts_of, counted, state_of
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Halt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.sessions.rows import BatchEntry
    from airflow_poison.core.policies.decisions import Counts, Deliver, Dispose, Park
    from airflow_poison.core.policies.seam import Policy

    Call = Callable[[int, Counts], Failure | None]
    """Calls the handler with the message of a row and the counts that it sees."""


class JournalHost:
    """Stores words and logs failures, in the order that words.py explains."""

    def __init__(self, policy: Policy, clock: Clock, words: memoryview, *, section: int, log: FailureLog, call: Call) -> None:
        self._policy, self._clock, self._words, self._section, self._log, self._call = policy, clock, words, section, log, call

    def now(self) -> datetime:
        """Return the endpoint's time."""
        return self._clock.now()

    def unreadable(self, entry: BatchEntry) -> Failure | None:
        """Ask the policy (spec WCF-29)."""
        why = self._policy.unreadable(entry)
        return None if why is None else Failure(FailureKind.UNREADABLE, "unreadable", why)

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Call the handler between two stores; one delivered at most once is committed already and stays so."""
        row = entry.row
        if delivery.at_most_once:
            return self._call(row, delivery.counts)
        self._store(row, State.IN_FLIGHT)
        failure = self._call(row, delivery.counts)
        if failure is None:
            self._store(row, State.HELD)
        return failure

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the last member first: that store decides."""
        for entry in reversed(entries):
            self._store(entry.row, State.COMMITTED)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count one attempt for every member (spec WCF-41)."""
        for entry in entries:
            self._log_failure(entry, failure, innocent=entry is not culprit)
        for entry in reversed(entries):
            value = self._words[entry.row]
            if state_of(value) not in SETTLED:
                self._words[entry.row] = counted(value, State.UNTOUCHED)

    def move(self, entry: BatchEntry, decision: Park | Dispose) -> bool:  # noqa: ARG002  (the seam's form)
        """Nobody else holds a claimed message."""
        return True

    def wait(self, entry: BatchEntry) -> None:
        """Never asked for: every move succeeds."""

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Halt, failure: Failure | None) -> None:
        """Store that no delivery follows; what it means is decided again, by the same policy, where the outcome is written."""
        if failure is not None and failure.kind is FailureKind.UNREADABLE:
            self._log_failure(entry, failure)
        self._store(entry.row, State.HALTED if isinstance(decision, Halt) else State.ENDED)

    def left_in_place(self, entry: BatchEntry, decision: Park | Dispose) -> None:
        """Never happens: every move succeeds."""

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """End it without a count; the parent puts it off."""
        self._log_failure(entry, failure)
        self._store(entry.row, State.ENDED)

    def _store(self, row: int, state: State) -> None:
        self._words[row] = self._words[row] & COUNT_MASK | state

    def _log_failure(self, entry: BatchEntry, failure: Failure, *, innocent: bool = False) -> None:
        attempts = attempts_of(self._words[entry.row])
        self._log.append(Rollback(self._section, entry.row, entry.lookup_id, attempts, failure, innocent))


class LastFailureHost(JournalHost):
    """For messages that depend on no other (``policy.stateless``): logs only the failure that a message ends with.

    A failure that the message outlives costs one store and no text. Killed in between, its attempts are known all the same.
    """

    tell: Callable[[Failure], Failure]
    """Returns a failure with its text."""
    _last: Failure | None = None

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count the attempt and keep the failure, unless it is the last that fits into a word."""
        (entry,) = entries
        value = counted(self._words[entry.row], State.UNTOUCHED)
        if attempts_of(value) == MAX_ATTEMPTS:
            self._log_failure(entry, self.tell(failure), innocent=entry is not culprit)
        self._last = failure
        self._words[entry.row] = value

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Halt, failure: Failure | None) -> None:
        """Log the failure, then store that no delivery follows."""
        last, self._last = failure or self._last, None
        if last is not None:
            self._log_failure(entry, self.tell(last))
        self._store(entry.row, State.HALTED if isinstance(decision, Halt) else State.ENDED)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Forget the failure that the message has outlived."""
        self._last = None
        super().committed(entries)


class ReplayingHost(JournalHost):
    """Answers from the journal until it meets the first delivery that is not recorded, then delivers.

    After a crash the receiver of a policy with a memory is the one of the batch's beginning; going through the batch again with the
    recorded outcomes brings it to where it was. A counted failure is known by its row and the attempts before it.
    """

    def __init__(self, inner: JournalHost, initial: Sequence[int], failures: dict[tuple[int, int], Failure]) -> None:
        super().__init__(inner._policy, inner._clock, inner._words, section=inner._section, log=inner._log, call=inner._call)  # noqa: SLF001
        self._attempts = [attempts_of(value) for value in initial]
        self._failures = failures
        self._live = False

    def live(self) -> bool:
        """Whether the replay is over."""
        return self._live

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Return the recorded outcome; without one, deliver."""
        if not self._live:
            attempts = self._attempts[entry.row]
            if (recorded := self._failures.get((entry.row, attempts))) is not None:
                return recorded
            value = self._words[entry.row]
            if attempts_of(value) > attempts or state_of(value) is State.COMMITTED:
                return None
            self._live = True
        return super().deliver(entry, delivery)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Recorded, but for a message that is consumed before its delivery."""
        if not self._live:
            value = self._words[entries[-1].row]
            if state_of(value) is State.COMMITTED or attempts_of(value) != self._attempts[entries[-1].row]:
                return
            self._live = True
        super().committed(entries)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Recorded already; only the attempts of the replay go on."""
        if self._live:
            super().rolled_back(entries, culprit, failure)
            return
        for entry in entries:
            if attempts_of(self._words[entry.row]) == self._attempts[entry.row] and state_of(self._words[entry.row]) not in SETTLED:
                self._words[entry.row] = counted(self._words[entry.row], State.UNTOUCHED)
            self._attempts[entry.row] += 1

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """Recorded already; the last store may be missing."""
        if self._live:
            super().postponed(entry, failure)
        else:
            self._store(entry.row, State.ENDED)
