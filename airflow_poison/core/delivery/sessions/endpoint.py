"""An endpoint whose decisions depend on more than one message: the rules run here, the handlers in its server sessions.

For policies that count over messages, process several at a time, batch, or block a queue (not ``policy.stateless``). The receive loop asks
the policy in this process, which therefore knows every decision; a session is handed one message at a time. Dies a session, the loop goes
on with the receiver that it has; dies this process, the journal tells the next one which deliveries have been made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.core.delivery.ends import GiveBack, Stay
from airflow_poison.core.delivery.loop import ReceiveLoop, Sessions
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord
from airflow_poison.core.delivery.sessions.child import Call
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader
from airflow_poison.core.delivery.sessions.host import JournalHost
from airflow_poison.core.delivery.sessions.rows import Entries, Rows
from airflow_poison.core.delivery.sessions.session import Decided
from airflow_poison.core.delivery.sessions.words import COUNT_MASK, SETTLED, State, attempts_of, state_of
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Block, Halt, Halted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.sessions.callers import Callers
    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.delivery.sessions.child import Tools
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.delivery.sessions.rows import BatchEntry
    from airflow_poison.core.delivery.sessions.session import BatchReport
    from airflow_poison.core.policies.decisions import Counts, Deliver, Dispose, Park
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Policy

HALT_EVENTS: Mapping[Halted, EventType] = {
    Halted.DISABLED: EventType.QUEUE_DISABLED,
    Halted.STOPPED: EventType.STOPPED,
    Halted.FAULTED: EventType.FAULTED,
}
_GIVEN_UP = {FailureKind.UNPROCESSABLE, FailureKind.UNREADABLE}


class EndpointSession:
    """An open endpoint with its server sessions.

    :param stop_file: exists when an endpoint of the same queue in another task has halted; checked before each receive, None: never.
    :param record_all: also tell the routine events of every delivery.
    """

    def __init__(
        self, tools: Tools, callers: Callers, journal: Journal, carry: Carry, *, opening: Opening, stop_file: str | None, record_all: bool
    ) -> None:
        self._policy, self._clock, self._callers = tools.policy, tools.clock, callers
        self._journal, self._carry = journal, carry
        self._log, self._reader = FailureLog(journal.log_descriptor), FailureReader(journal.log_descriptor)
        self._receiver = tools.policy.open(opening)
        self._stop_file = Path(stop_file) if stop_file else None
        self._record_all, self._batches = record_all, self._receiver.batch_size() > 1
        self._closed = False  # nothing more is received: halted, blocked, or stopped from elsewhere

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended, the endpoint has halted, or the queue is blocked."""
        record = BatchRecord(batch, self._journal, self._reader, self._carry)
        delivery = _Delivery(self, batch, record)
        delivery.run()
        record.read_log()
        host = delivery.host
        return record.report(
            halted=delivery.halt is not None,
            crashes=host.crashes,
            timeouts=host.timeouts,
            decided=Decided(host.ends, delivery.halt, tuple(host.events) if self._record_all else ()),
        )

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint."""
        return self._receiver.counters()

    def close(self) -> None:
        """End the sessions and let go of the journal."""
        self._callers.close()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Delivery:
    """One batch in the hands of the endpoint."""

    def __init__(self, endpoint: EndpointSession, batch: pa.RecordBatch, record: BatchRecord) -> None:
        self._endpoint, self._policy = endpoint, endpoint._policy  # noqa: SLF001  (two halves of one thing)
        self._words = record.section.words
        initial = [int(value) for value in record.initial]
        now = endpoint._clock.now()  # noqa: SLF001
        self._entries = Entries(self._policy, batch, initial, now)
        self.host = EndpointHost(
            self._policy,
            endpoint._clock,  # noqa: SLF001
            self._words,
            section=record.section.number,
            log=endpoint._log,  # noqa: SLF001
            callers=endpoint._callers,  # noqa: SLF001
            holds=endpoint._batches,  # noqa: SLF001
        )
        self.halt: Halt | None = None
        endpoint._callers.load(batch, record.label)  # noqa: SLF001

    def run(self) -> None:
        """Settle what an earlier try has decided for good, then receive the rest."""
        self._resume()
        endpoint = self._endpoint
        if not endpoint._closed:  # noqa: SLF001
            rows = [row for row, value in enumerate(self._words) if state_of(value) not in SETTLED]
            source = Rows(self._policy, self._entries, rows, self._words)
            self.host.source = source
            loop = ReceiveLoop(endpoint._receiver, source, self.host, Sessions.of(self._policy))  # noqa: SLF001
            while not self._stopped_elsewhere() and loop.step():
                pass
            self.halt = loop.halt
            endpoint._closed = self.halt is not None or source.blocked or self._stopped_elsewhere()  # noqa: SLF001
        if self.halt is not None and endpoint._stop_file is not None:  # noqa: SLF001
            endpoint._stop_file.touch()  # noqa: SLF001
        for row, value in enumerate(self._words):
            if state_of(value) not in SETTLED and attempts_of(value):
                self.host.ends[row] = Stay(self.host.counts.get(row) or self._entries.entry(row).counts)

    def _resume(self) -> None:
        """Take over what a dead process had decided: verdicts of handlers hold, a halt holds, everything else is decided again."""
        now = self._endpoint._clock.now()  # noqa: SLF001
        for row, value in enumerate(self._words):
            state = state_of(value)
            if state is State.ENDED:
                entry, failure = self._entries.entry(row), self._known_failure(row)
                if failure is not None and failure.kind is FailureKind.POSTPONED:
                    self.host.ends[row] = GiveBack(entry.counts, now + failure.delay)
                elif failure is not None and failure.kind in _GIVEN_UP:
                    self.host.ends[row] = self._endpoint._receiver.give_up(entry, failure, now)  # noqa: SLF001
                else:
                    self._words[row] = value & COUNT_MASK | State.UNTOUCHED
            elif state is State.HALTED:
                how = self._policy.halts_as
                self.halt = Halt(how, self._entries.entry(row).counts, (HALT_EVENTS[how],))
                self.host.ends[row] = self.halt
                self._endpoint._closed = True  # noqa: SLF001

    def _known_failure(self, row: int) -> Failure | None:
        return self._endpoint._carry.failures.get(self._entries.entry(row).lookup_id)  # noqa: SLF001

    def _stopped_elsewhere(self) -> bool:
        stop = self._endpoint._stop_file  # noqa: SLF001
        return stop is not None and stop.exists()


class EndpointHost(JournalHost):
    """Journals, and remembers what was decided.

    :param holds: transactions receive several messages.
    :ivar ends: what became of each row that is not committed.
    :ivar counts: the counts of rows that were given back.
    :ivar events: the routine events, in order.
    """

    source: Rows

    def __init__(self, policy: Policy, clock: Clock, words: memoryview, *, section: int, log: FailureLog, callers: Callers, holds: bool) -> None:  # noqa: PLR0913
        super().__init__(policy, clock, words, section=section, log=log)
        self._callers, self._holds = callers, holds
        self._free = list(range(max(policy.server_sessions, 1)))
        self._busy: dict[int, int] = {}
        self.ends: dict[int, End] = {}
        self.counts: dict[int, Counts] = {}
        self.events: list[Event] = []
        self.crashes = self.timeouts = 0

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Hand the message to a session and wait for it."""
        self.begin(entry, delivery)
        return self.result(entry)

    def begin(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Store that the message is with a handler, then hand it over; one delivered at most once is committed already and stays so."""
        self._tell(EventType.DELIVERED, entry)
        if not delivery.at_most_once:
            self._store(entry.row, State.IN_FLIGHT)
        session = self._busy[entry.row] = self._free.pop(0)
        self._callers.begin(session, Call(entry.row, delivery.counts))

    def result(self, entry: BatchEntry) -> Failure | None:
        """Wait for the session; in a batch, what has been delivered is held until its transaction commits."""
        session = self._busy.pop(entry.row)
        failure = self._callers.result(session)
        self._free.append(session)
        if failure is not None:
            self.crashes += failure.kind is FailureKind.CRASH
            self.timeouts += failure.kind is FailureKind.TIMEOUT
        elif self._holds and state_of(self._words[entry.row]) is State.IN_FLIGHT:
            self._store(entry.row, State.HELD)
        return failure

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the commit."""
        super().committed(entries)
        for entry in entries:
            self._tell(EventType.COMMITTED, entry)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Store the rollback of every member."""
        super().rolled_back(entries, culprit, failure)
        for entry in entries:
            self.counts[entry.row] = entry.counts
            self._tell(EventType.ROLLED_BACK, entry)

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Store that no delivery follows, and remember why."""
        super().ended(entry, decision, failure)
        self.ends[entry.row] = decision
        if isinstance(decision, Block) and decision.whole_queue:
            self.source.blocked = True

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """Remember until when."""
        super().postponed(entry, failure)
        self.ends[entry.row] = GiveBack(entry.counts, self.now() + failure.delay)

    def _tell(self, event: EventType, entry: BatchEntry) -> None:
        self.events.append(Event(event, self.now(), entry.lookup_id, entry.counts.abort_count, entry.counts.move_count))
