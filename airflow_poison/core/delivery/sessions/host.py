"""What the receive loop's decisions do in a server session: they are journaled; the files are the parent's business."""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.delivery.ends import GiveBack
from airflow_poison.core.delivery.loop import Host
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, Rollback
from airflow_poison.core.delivery.sessions.journal import COUNT_MASK, MAX_ATTEMPTS, SETTLED, STATE_MASK, State, attempts_of, counted, state_of
from airflow_poison.core.delivery.sessions.wire import Call
from airflow_poison.core.errors import PoisonError, ServerSessionError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Block, Deliver, Dispose, Halt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.loop import Source
    from airflow_poison.core.delivery.sessions.journal import Section
    from airflow_poison.core.delivery.sessions.rows import BatchEntry, Rows
    from airflow_poison.core.delivery.stage import StageJob
    from airflow_poison.core.policies.decisions import Counts, Park

    CallHandler = Callable[[int, Counts], Failure | None]
    """Calls the handler with the message of a row and the counts that it sees."""


_ENDED_THE_PROCESS = {FailureKind.CRASH: State.CRASHED, FailureKind.TIMEOUT: State.TIMED_OUT}


class JournalHost(Host["BatchEntry"]):
    """Stores words and logs failures, in the order that journal.py explains; who calls the handler is for the subclasses to say."""

    def __init__(self, job: StageJob, section: Section, log: FailureLog) -> None:
        self._job, self._words, self._section, self._log = job, section.words, section.number, log

    def now(self) -> datetime:
        """Return the endpoint's time."""
        return self._job.clock.now()

    def unreadable(self, entry: BatchEntry) -> Failure | None:
        """Ask the policy (spec WCF-29)."""
        why = self._job.policy.unreadable(entry)
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

    def __init__(self, job: StageJob, section: Section, log: FailureLog, call: CallHandler, tell: Callable[[Failure], Failure]) -> None:
        super().__init__(job, section, log)
        self._call, self._tell = call, tell
        self._last: Failure | None = None

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Call the handler; one delivered at most once is committed already and stays so."""
        if not delivery.at_most_once:
            self._store(entry.row, State.IN_FLIGHT)
        return self._call(entry.row, delivery.counts)

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


# Where decisions depend on more than one message: server sessions are handed messages, and what became of them is remembered


class EndpointHost(JournalHost):
    """Journals, and remembers what was decided.

    :param holds: transactions receive several messages.
    :param sessions: how many there are.
    :param force: called when a message has been marked, before a handler gets it; None where no machine is feared for.
    :ivar ends: what became of each row that is not committed.
    :ivar counts: the counts of rows that were given back.
    :ivar events: the routine events, in order.
    """

    source: Rows

    def __init__(
        self,
        job: StageJob,
        section: Section,
        log: FailureLog,
        callers: Callers,
        *,
        holds: bool,
        sessions: int = 1,
        force: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(job, section, log)
        self._callers, self._holds, self._force = callers, holds, force
        self._free = list(range(max(sessions, 1)))
        self._busy: dict[int, int] = {}
        self._waiting: dict[int, Deliver] = {}
        self._opened: float | None = None
        self.ends: dict[int, End] = {}
        self.counts: dict[int, Counts] = {}
        self.events: list[Event] = []
        self.crashes = self.timeouts = 0

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Hand the message to a session and wait for it."""
        self.begin(entry, delivery)
        return self.result(entry)

    def begin(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Hand the message to the first free session; where only one handler is called at a time, it waits for its turn."""
        self._tell(EventType.DELIVERED, entry)
        self._busy[entry.row] = self._free.pop(0)
        if self._callers.side_by_side:
            self._hand_over(entry, delivery)
        else:
            self._waiting[entry.row] = delivery

    def result(self, entry: BatchEntry) -> Failure | None:
        """Wait for the session; in a batch, what has been delivered is held until its transaction commits."""
        row = entry.row
        if not self._callers.side_by_side:
            self._hand_over(entry, self._waiting.pop(row))
        session = self._busy.pop(row)
        try:
            failure = self._callers.result(session)
        except ServerSessionError:
            if self._words[row] & STATE_MASK == State.IN_FLIGHT and not self._callers.has_taken(session):
                self._store(row, State.UNTOUCHED)
            raise
        insort(self._free, session)
        self._taken(entry, session)
        if failure is not None:
            self.crashes += failure.kind is FailureKind.CRASH
            self.timeouts += failure.kind is FailureKind.TIMEOUT
        elif self._holds and self._words[row] & STATE_MASK == State.IN_FLIGHT:
            self._store(row, State.HELD)
        return failure

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the commit."""
        self._opened = None
        super().committed(entries)
        for entry in entries:
            self._tell(EventType.COMMITTED, entry)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Store the rollback of every member."""
        self._opened = None
        super().rolled_back(entries, culprit, failure)
        for entry in entries:
            self.counts[entry.row] = entry.counts
            self._tell(EventType.ROLLED_BACK, entry)

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Store that no delivery follows, and remember why."""
        if isinstance(decision, Halt):
            self._log.append_halt(entry.lookup_id, decision.details)
        super().ended(entry, decision, failure)
        self.ends[entry.row] = decision
        if isinstance(decision, Block) and decision.whole_queue:
            self.source.blocked = True

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """Remember until when."""
        self._opened = None
        super().postponed(entry, failure)
        self.ends[entry.row] = GiveBack(entry.counts, self.now() + failure.delay)

    def _hand_over(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Store that the message is with a handler, then hand it over; one delivered at most once is committed already and stays so."""
        row, session = entry.row, self._busy[entry.row]
        self._callers.prepare(session)
        before = self._words[row]
        if self._opened is None or not self._holds:
            self._opened = time.monotonic()
        if not delivery.at_most_once:
            self._store(row, State.IN_FLIGHT)
        if self._force is not None:
            self._force()
        try:
            self._callers.begin(session, self._call(row, delivery), self._opened)
        except PoisonError:
            self._words[row] = before  # no handler has seen it
            raise

    def _call(self, row: int, delivery: Deliver) -> Call:
        """Return what a session is handed."""
        return Call(row, delivery.counts)

    def _taken(self, entry: BatchEntry, session: int) -> None:
        """Take what else a session has to tell of a delivery: nothing here."""

    def received(self, source: Rows) -> Source[BatchEntry]:
        """Return what of the source is received."""
        return source

    def resumed(self, row: int, decision: End) -> None:
        """Remember what an earlier try had decided for good."""
        self.ends[row] = decision

    def _tell(self, event: EventType, entry: BatchEntry) -> None:
        if self._job.record_all:
            self.events.append(Event(event, self.now(), entry.lookup_id, entry.counts.abort_count, entry.counts.move_count))


class Callers(Protocol):
    """The server sessions of one endpoint; numbered from 0."""

    side_by_side: bool
    """Whether a message is with its handler as soon as it has been handed over."""

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int, services: Mapping[str, Service] | None = None) -> None:
        """Go on with another batch; nothing is under way.

        :param label: names the message of a row, for the log.
        :param sessions: how many sessions have something to do.
        :param services: of the queue; None: it has no conversations.
        """

    def prepare(self, session: int) -> None:
        """Make a session that is free ready to take a message. Raises ServerSessionError, HandlerNotFoundError."""

    def begin(self, session: int, call: Call, opened: float) -> None:
        """Hand a message to a session that is ready. Raises ServerSessionError: no handler has seen it.

        :param opened: when its transaction was begun, monotonic seconds.
        """

    def result(self, session: int) -> Failure | None:
        """Wait for the end of what a session does; None when the handler returned. Raises ServerSessionError."""

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, in the delivery whose result was taken last; None: nothing."""

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""

    def close(self) -> None:
        """End all sessions."""
