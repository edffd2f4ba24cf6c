"""What an endpoint's decisions do: its server sessions are handed messages, and what became of them is journaled and remembered."""

from __future__ import annotations

import time
from bisect import insort
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.ends import GiveBack
from airflow_poison.core.delivery.sessions.child import Call
from airflow_poison.core.delivery.sessions.host import JournalHost
from airflow_poison.core.delivery.sessions.words import STATE_MASK, State
from airflow_poison.core.errors import PoisonError, ServerSessionError
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Block, Deliver, Dispose, Halt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.loop import Source
    from airflow_poison.core.delivery.sessions.callers import Callers
    from airflow_poison.core.delivery.sessions.failurelog import FailureLog
    from airflow_poison.core.delivery.sessions.rows import BatchEntry, Rows
    from airflow_poison.core.policies.decisions import Counts, Park
    from airflow_poison.core.policies.policy import Policy


class EndpointHost(JournalHost):
    """Journals, and remembers what was decided.

    :param holds: transactions receive several messages.
    :param record_all: remember the routine events too.
    :param sessions: how many there are.
    :param force: called when a message has been marked, before a handler gets it; None where no machine is feared for.
    :ivar ends: what became of each row that is not committed.
    :ivar counts: the counts of rows that were given back.
    :ivar events: the routine events, in order.
    """

    source: Rows

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        words: memoryview,
        *,
        section: int,
        log: FailureLog,
        callers: Callers,
        holds: bool,
        record_all: bool,
        sessions: int = 1,
        force: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(policy, clock, words, section=section, log=log)
        self._callers, self._holds, self._record_all = callers, holds, record_all
        self._force = force
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
        if self._record_all:
            self.events.append(Event(event, self.now(), entry.lookup_id, entry.counts.abort_count, entry.counts.move_count))
