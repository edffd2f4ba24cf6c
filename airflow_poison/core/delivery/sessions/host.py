"""What the receive loop's decisions do in a server session: they are journaled; the files are the parent's business."""

from __future__ import annotations

from dataclasses import replace
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
    from airflow_poison.core.policies.decisions import Block, Counts, Deliver, Dispose, Park
    from airflow_poison.core.policies.policy import Policy

    Call = Callable[[int, Counts], Failure | None]
    """Calls the handler with the message of a row and the counts that it sees."""


_ENDED_THE_PROCESS = {FailureKind.CRASH: State.CRASHED, FailureKind.TIMEOUT: State.TIMED_OUT}


class JournalHost:
    """Stores words and logs failures, in the order that words.py explains; who calls the handler is for the subclasses to say."""

    def __init__(self, policy: Policy, clock: Clock, words: memoryview, *, section: int, log: FailureLog) -> None:
        self._policy, self._clock, self._words, self._section, self._log = policy, clock, words, section, log

    def now(self) -> datetime:
        """Return the endpoint's time."""
        return self._clock.now()

    def unreadable(self, entry: BatchEntry) -> Failure | None:
        """Ask the policy (spec WCF-29)."""
        why = self._policy.unreadable(entry)
        return None if why is None else Failure(FailureKind.UNREADABLE, "unreadable", why)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the last member first: that store decides."""
        for entry in reversed(entries):
            self._store(entry.row, State.COMMITTED)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count one attempt for every member (spec WCF-41)."""
        for entry in entries:
            innocent = entry is not culprit
            self._log_failure(entry, _of_another(failure) if innocent else failure, innocent=innocent)
        for entry in reversed(entries):
            value = self._words[entry.row]
            if state_of(value) not in SETTLED:
                state = _ENDED_THE_PROCESS.get(failure.kind, State.UNTOUCHED) if entry is culprit else State.UNTOUCHED
                self._words[entry.row] = counted(value, state, crash=state is not State.UNTOUCHED)

    def move(self, entry: BatchEntry, decision: Park | Dispose) -> bool:  # noqa: ARG002  (the seam's form)
        """Nobody else holds a claimed message."""
        return True

    def wait(self, entry: BatchEntry) -> None:
        """Never asked for: every move succeeds."""

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Store that no delivery follows; what it means is decided again, by the same policy, where the outcome is written."""
        if failure is not None and failure.kind is FailureKind.UNREADABLE:
            self._log_failure(entry, failure)
        self._store(entry.row, State.HALTED if isinstance(decision, Halt) else State.ENDED)

    def halted(self, decision: Halt) -> None:
        """Nothing to store: no message is the cause."""

    def left_in_place(self, entry: BatchEntry, decision: Park | Dispose) -> None:
        """Never happens: every move succeeds."""

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """End it without a count; the parent puts it off."""
        self._log_failure(entry, failure)
        self._store(entry.row, State.ENDED)

    def back_at_savepoint(self, entry: BatchEntry) -> None:
        """Store that it is with no handler any more."""
        self._store(entry.row, State.UNTOUCHED)

    def _store(self, row: int, state: State) -> None:
        self._words[row] = self._words[row] & COUNT_MASK | state

    def _log_failure(self, entry: BatchEntry, failure: Failure, *, innocent: bool = False) -> None:
        attempts = attempts_of(self._words[entry.row])
        self._log.append(Rollback(self._section, entry.row, entry.lookup_id, attempts, failure, innocent))


def _of_another(failure: Failure) -> Failure:
    """Return a failure as the innocent members of its batch have it: a verdict on the culprit is none on them."""
    return replace(failure, kind=FailureKind.EXCEPTION) if failure.kind is FailureKind.UNPROCESSABLE else failure


class LastFailureHost(JournalHost):
    """For messages that depend on no other (``policy.stateless``): logs only the failure that a message ends with.

    A failure that the message outlives costs one store and no text. Killed in between, its attempts are known all the same.

    :param tell: returns a failure with its text.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        words: memoryview,
        *,
        section: int,
        log: FailureLog,
        call: Call,
        tell: Callable[[Failure], Failure],
    ) -> None:
        super().__init__(policy, clock, words, section=section, log=log)
        self._call, self._tell = call, tell
        self._last: Failure | None = None

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Call the handler; one delivered at most once is committed already and stays so."""
        if not delivery.at_most_once:
            self._store(entry.row, State.IN_FLIGHT)
        return self._call(entry.row, delivery.counts)

    def begin(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Never asked for: this process is a single server session."""
        raise NotImplementedError

    def result(self, entry: BatchEntry) -> Failure | None:
        """Never asked for: this process is a single server session."""
        raise NotImplementedError

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count the attempt and keep the failure, unless it is the last that fits into a word."""
        (entry,) = entries
        value = counted(self._words[entry.row], State.UNTOUCHED)
        if attempts_of(value) == MAX_ATTEMPTS:
            self._log_failure(entry, self._tell(failure), innocent=entry is not culprit)
        self._last = failure
        self._words[entry.row] = value

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Log the failure, then store that no delivery follows."""
        last, self._last = failure or self._last, None
        if last is not None:
            self._log_failure(entry, self._tell(last))
        self._store(entry.row, State.HALTED if isinstance(decision, Halt) else State.ENDED)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Forget the failure that the message has outlived."""
        self._last = None
        super().committed(entries)
