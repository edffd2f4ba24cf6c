"""What the receive loop's decisions do where they depend on more than one message: server sessions get messages, conversations are updated.

An endpoint whose decisions depend on more than one message: the rules run here, the handlers in its server sessions.

For policies that count over messages, process several at a time, batch, or block a queue (not ``policy.stateless``). The receive loop asks
the policy in this process, which therefore knows every decision; a session is handed one message at a time. Dies a session, the loop goes
on with the receiver that it has; if this process dies, the journal has the deliveries that were made for the next one.
"""

from __future__ import annotations

import os
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from airflow_poison.delivery.batches import OrderedBatches
from airflow_poison.delivery.dialogs import Dialogs
from airflow_poison.delivery.failurelog import FailureLog, FailureReader
from airflow_poison.delivery.journal import (
    COUNT_MASK,
    SETTLED,
    STATE_MASK,
    Journal,
    MessageState,
    Section,
    attempts_of,
    counted,
    pending,
    release,
    state_of,
)
from airflow_poison.delivery.outage import EndpointWatch, Watch
from airflow_poison.delivery.platform import NotWrittenError
from airflow_poison.delivery.returned import RowsWriter
from airflow_poison.delivery.rows import BatchEntry, Entries, Rows, rows_of
from airflow_poison.delivery.session import BatchRecord, BatchReport, Decided, ServerSession, lookup_ids_of
from airflow_poison.delivery.settlement import End, GiveBack, Stay
from airflow_poison.delivery.verdicts import PrivateBatch
from airflow_poison.delivery.wire import BatchCall, Call, Handed
from airflow_poison.delivery.work import JournalHost
from airflow_poison.dialogs.arrivals import BY_CONVERSATION
from airflow_poison.rules.decisions import HALT_EVENTS, Block, Counts, Deliver, Dispose, Disposition, Halt, Park
from airflow_poison.rules.loop import ReceiveLoop, Sessions
from airflow_poison.values.errors import PoisonError, ServerSessionError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service
    from airflow_poison.dialogs.transaction import DialogState


class EndpointSession(ServerSession):
    """An open endpoint with its server sessions.

    :param dialog_state: the conversations of the messages; None: the queue has none. With them each transaction receives one message, and a
        conversation group is with one session at a time, whatever the policy says.
    """

    def __init__(
        self, job: StageJob, callers: Callers, journal: Journal, recovered: RecoveredAttempts, dialog_state: DialogState | None = None
    ) -> None:
        self.job, self.callers, self.recovered = job, callers, recovered
        self.log = FailureLog(journal.log_descriptor)
        self.dialogs = None if dialog_state is None else Dialogs(dialog_state, recovered, self.log)
        self.receiver = job.policy.open(job.opening)
        single = dialog_state is not None  # what a rolled-back message did to its conversation must concern no other
        self.sessions = replace(Sessions() if job.singly else Sessions.of(job.policy), batches=not single)
        self.force = journal.force if journal.forced else None
        self.keep = RowsWriter(journal.rows_descriptor) if job.outputs else None
        self.batches = self.receiver.batch_size() > 1 and not single
        self.halted = bool((recovered.words & STATE_MASK == MessageState.HALTED).any())
        self.closed = self.halted or job.closed  # nothing more is received: halted, blocked, or stopped from elsewhere
        self.watch = None if job.detection is None else Watch(job.detection, job.clock.now)
        self._journal, self._reader = journal, FailureReader(journal.log_descriptor)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended, the endpoint has halted, or the queue is blocked."""
        again = [] if self.dialogs is None else self.dialogs.load(batch, lookup_ids_of(batch))
        record = BatchRecord(batch, self._journal, self._reader, self.recovered, again)
        delivery = _Delivery(self, batch, record)
        try:
            delivery.run()
        except NotWrittenError:
            release(record.words)
            raise
        finally:
            if delivery.halt is not None:
                self._halt()
        return BatchReport(
            *record.outcome(),
            halted=self.halted,
            crashes=delivery.crashes,
            timeouts=delivery.timeouts,
            decided=Decided(delivery.ends, delivery.halt, tuple(delivery.events)),
            conversed=None if self.dialogs is None else self.dialogs.take(),
            returned=record.returned(),
            searched=record.searched(),
        )

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint."""
        return self.receiver.counters()

    def stopped_elsewhere(self) -> bool:
        """Whether an endpoint in another task has halted, or an outage was found."""
        if self.watch is not None and self.watch.stopped():
            return True
        return self.job.stop_file is not None and os.path.exists(self.job.stop_file)  # noqa: PTH110  (asked for every message)

    def close(self) -> None:
        """End the sessions and let go of the journal."""
        try:
            self.callers.close()
        finally:
            self._journal.close()

    def _halt(self) -> None:
        self.halted = self.closed = True
        if self.job.stop_file is not None:
            Path(self.job.stop_file).touch()


_ENDED_THE_PROCESS = {FailureKind.CRASH: MessageState.CRASHED, FailureKind.TIMEOUT: MessageState.TIMED_OUT}


class EndpointHost(JournalHost):
    """Journals, and remembers what was decided; what deliveries do in conversations is journaled before words say that they are committed.

    :param holds: transactions receive several messages.
    :param sessions: how many there are.
    :param force: called when a message has been marked, before a handler gets it; None where no machine is feared for.
    :param dialogs: the conversations (spec SB-30, SB-54, SB-55, SB-58); None: the queue has none.
    :ivar delivered: the rows of a batch whose handler has returned, and whose turn in the loop is now; ``at``: when that was.
    :ivar free: sessions without a message; ``busy``: the sessions of rows that are with a handler.
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
        keep: RowsWriter | None = None,
        dialogs: Dialogs | None = None,
    ) -> None:
        super().__init__(job, section, log, keep)
        self._callers, self._holds, self._force, self._dialogs = callers, holds, force, dialogs
        self.free = list(range(max(sessions, 1)))
        self.busy: dict[int, int] = {}
        self._waiting: dict[int, Deliver] = {}
        self._opened: float | None = None
        self._done: dict[int, Change | None] = {}  # in conversations, by deliveries that are not committed
        self._consumed: set[int] = set()
        self.watched: EndpointWatch | None = None
        self.ends: dict[int, End] = {}
        self.counts: dict[int, Counts] = {}
        self.events: list[Event] = []
        self.crashes = self.timeouts = 0
        self.delivered: frozenset[int] = frozenset()
        self.at: datetime | None = None

    def now(self) -> datetime:
        """Return the endpoint's time; for the messages of a batch the one at which it was decided that they are delivered."""
        return self.at or super().now()

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Hand the message to a session and wait for it; in a batch it has been with its handler already, which returned."""
        if entry.row in self.delivered:
            self._log_event(EventType.DELIVERED, entry)
            return None
        self.begin(entry, delivery)
        return self.result(entry)

    def begin(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Hand the message to the first free session; where only one handler is called at a time, it waits for its turn."""
        self._log_event(EventType.DELIVERED, entry)
        self.busy[entry.row] = self.free.pop(0)
        if self._callers.side_by_side:
            self._hand_over(entry, delivery)
        else:
            self._waiting[entry.row] = delivery

    def result(self, entry: BatchEntry) -> Failure | None:
        """Wait for the session; in a batch, what has been delivered is held until its transaction commits."""
        row = entry.row
        if not self._callers.side_by_side:
            self._hand_over(entry, self._waiting.pop(row))
        session = self.busy.pop(row)
        try:
            failure = self._callers.result(session)
        except ServerSessionError:
            if self.words[row] & STATE_MASK == MessageState.IN_FLIGHT and not self._callers.has_taken(session):
                self._store(row, MessageState.UNTOUCHED)
            raise
        insort(self.free, session)
        if self._dialogs is not None:
            self._done[row] = self._callers.change(session)
        if failure is None and self._keep is not None:
            self._take_rows(entry, session, self._keep)
        if failure is not None:
            self.crashes += failure.kind is FailureKind.CRASH
            self.timeouts += failure.kind is FailureKind.TIMEOUT
        elif self._holds and self.words[row] & STATE_MASK == MessageState.IN_FLIGHT:
            self._store(row, MessageState.HELD)
        if self.watched is not None and self.words[row] & STATE_MASK != MessageState.COMMITTED:  # else it was gone before its delivery
            self.watched.ended(entry, failure)
        if self._dialogs is not None and row in self._consumed:  # the message is gone, so what the delivery did counts by itself
            self._consumed.remove(row)
            change = self._done.pop(row, None)
            self._dialogs.done(row, change if failure is None else None)
        return failure

    def _take_rows(self, entry: BatchEntry, session: int, keep: RowsWriter) -> None:
        """Hold what a delivery returned until its transaction commits; one delivered at most once is committed already."""
        row, value = entry.row, self.words[entry.row]
        returned = self._callers.rows(session)
        if value & STATE_MASK == MessageState.COMMITTED:
            keep.append_one(entry.lookup_id, attempts_of(value), returned)
        else:
            self._rows[row] = returned

    def _keep_rows(self, entries: Sequence[BatchEntry], keep: RowsWriter) -> None:
        """Write down what deliveries returned; of a batch that was decided it is written down already."""
        if not self.delivered:
            super()._keep_rows(entries, keep)

    # With a watch for outages

    def withholds(self, entry: BatchEntry) -> bool:
        """Ask the watch."""
        return self.watched is not None and self.watched.withholds(entry)

    def carried(self, entry: BatchEntry) -> None:
        """Record that a message was committed before others that come before it: an open transaction is not judged by it."""
        if self._holds:
            self._store(entry.row, MessageState.CARRIED)

    def taken_back(self, entry: BatchEntry) -> None:
        """Forget a delivery that failed and is not counted."""
        self._done.pop(entry.row, None)
        self._opened = None
        self._store(entry.row, MessageState.UNTOUCHED)

    # What the receive loop decides

    def discards(self, entry: BatchEntry) -> bool:
        """Receive a message from its conversation; whether that has discarded it."""
        discarded = None if self._dialogs is None else self._dialogs.receive(entry.row, self.now())
        if discarded is None:
            return False
        details = {"by": BY_CONVERSATION, "why": discarded.why}
        self._end(entry, Dispose(Disposition.DROP, entry.counts, (EventType.DROPPED,), details=details), None)
        return True

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the commit. What deliveries did in conversations is written down before, and only then others see it."""
        dialogs = self._dialogs
        changes = [] if dialogs is None else [dialogs.written(entry.row, self._done.pop(entry.row, None)) for entry in entries]
        self._opened = None
        super().committed(entries)
        for entry in entries:
            self._log_event(EventType.COMMITTED, entry)
        if dialogs is not None:
            reach("delivery.dialogs.after_word")
            for change in changes:
                dialogs.committed(change)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count one attempt for every member (spec WCF-41)."""
        self._opened = None
        for entry in entries:
            self._done.pop(entry.row, None)
            innocent = entry is not culprit
            self._log_failure(entry, _of_another(failure) if innocent else failure, innocent=innocent)
        for entry in reversed(entries):
            value = self.words[entry.row]
            if state_of(value) not in SETTLED:
                state = _ENDED_THE_PROCESS.get(failure.kind, MessageState.UNTOUCHED) if entry is culprit else MessageState.UNTOUCHED
                self.words[entry.row] = counted(value, state, crash=state is not MessageState.UNTOUCHED)
        for entry in entries:
            self.counts[entry.row] = entry.counts
            self._log_event(EventType.ROLLED_BACK, entry)

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Store that no delivery follows, and remember why; the message leaves its conversation."""
        if self._dialogs is not None and (for_good := _leaves_for_good(decision)) is not None:
            self._dialogs.left(entry.row, for_good=for_good)
        self._end(entry, decision, failure)

    def _end(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        if isinstance(decision, Halt):
            self._log.append_halt(entry.lookup_id, decision.details)
        if failure is not None and failure.kind is FailureKind.UNREADABLE:
            self._log_failure(entry, failure)
        self._store(entry.row, MessageState.HALTED if isinstance(decision, Halt) else MessageState.ENDED)
        self.ends[entry.row] = decision
        if isinstance(decision, Block) and decision.whole_queue:
            self.source.blocked = True

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """Remember until when; the message leaves its conversation for a while."""
        if self._dialogs is not None:
            self._dialogs.left(entry.row, for_good=False)
        self._opened = None
        super().postponed(entry, failure)
        self.ends[entry.row] = GiveBack(entry.counts, self.now() + failure.delay)

    def back_at_savepoint(self, entry: BatchEntry) -> None:
        """Keep what was done in the conversation since; the message is back."""
        if self._dialogs is not None:
            self._dialogs.back_at_savepoint(entry.row, self._done.pop(entry.row, None))
        super().back_at_savepoint(entry)

    def resumed(self, row: int, decision: End) -> None:
        """Remember what an earlier try had decided for good, and what that meant for the conversation."""
        if self._dialogs is not None and (for_good := _leaves_for_good(decision)) is not None:
            self._dialogs.had_left(row, for_good=for_good, now=self.now())
        self.ends[row] = decision

    def _hand_over(self, entry: BatchEntry, delivery: Deliver) -> None:
        """Store that the message is with a handler, then hand it over; one delivered at most once is committed already and stays so."""
        row, session = entry.row, self.busy[entry.row]
        self._callers.prepare(session)
        before = self.words[row]
        if self._opened is None or not self._holds:
            self._opened = time.monotonic()
        if not delivery.at_most_once:
            self._store(row, MessageState.IN_FLIGHT)
        if self._force is not None:
            self._force()
        try:
            self._callers.begin(session, self._call(row, delivery), self._opened)
        except PoisonError:
            self.words[row] = before  # no handler has seen it
            raise

    def _call(self, row: int, delivery: Deliver) -> Call:
        if self._dialogs is None:
            return Call(row, delivery.counts)
        if delivery.at_most_once:
            self._consumed.add(row)
        return Call(row, delivery.counts, self._dialogs.begun(row))

    def _log_event(self, event: EventType, entry: BatchEntry) -> None:
        if self._job.record_all:
            self.events.append(Event(event, self.now(), entry.lookup_id, entry.counts.abort_count, entry.counts.move_count))


def _of_another(failure: Failure) -> Failure:
    """Return a failure as the innocent members of its batch have it: a verdict on the culprit is none on them."""
    return replace(failure, kind=FailureKind.EXCEPTION) if failure.kind is FailureKind.UNPROCESSABLE else failure


def _leaves_for_good(end: End) -> bool | None:
    """Return whether a message leaves its queue for good; None: it does not leave its place."""
    if isinstance(end, Stay | Halt) or (isinstance(end, Block) and end.whole_queue):
        return None
    return isinstance(end, Dispose) and end.how is not Disposition.MOVE_TO_POISON


class _Delivery(EndpointHost):
    """One batch in the hands of the endpoint."""

    def __init__(self, endpoint: EndpointSession, batch: pa.RecordBatch, record: BatchRecord) -> None:
        super().__init__(
            endpoint.job,
            record.section,
            endpoint.log,
            endpoint.callers,
            holds=endpoint.batches,
            sessions=endpoint.sessions.number,
            force=endpoint.force,
            keep=endpoint.keep,
            dialogs=endpoint.dialogs,
        )
        job = endpoint.job
        self._endpoint, self._record, self._batch = endpoint, record, batch
        opening = replace(job.opening, counters={})  # of the messages alone
        self._entries = Entries(job.policy, batch, record.initial.tolist(), job.clock.now(), opening)
        self._blocked = False
        self._doubtful: dict[int, Halt | Block] = {}
        self.halt: Halt | None = None

    def run(self) -> None:
        """Settle what an earlier try has decided for good, then receive the rest."""
        endpoint, dialogs = self._endpoint, self._dialogs
        self._resume()
        if not endpoint.closed:
            rows = pending(self._record.words).tolist()
            source = self.source = rows_of(self.policy, self._entries, rows, self.words, None if dialogs is None else self.discards)
            source.blocked = self._blocked
            services = None if dialogs is None else dialogs.services
            endpoint.callers.load(self._batch, self._record.label, min(len(rows), endpoint.sessions.number), services)
            self._receive(ReceiveLoop(endpoint.receiver, source, self, endpoint.sessions))
            endpoint.closed = source.blocked or endpoint.stopped_elsewhere()
        for row in pending(self._record.words).tolist():
            if attempts_of(self.words[row]):
                self.ends[row] = Stay(self.counts.get(row) or self._entries.entry(row).counts)

    def _receive(self, loop: ReceiveLoop[BatchEntry]) -> None:
        """Receive until there is nothing more; what is in flight when something of ours fails is not given up for that."""
        endpoint, stopped = self._endpoint, self._endpoint.stopped_elsewhere
        step = loop.step if endpoint.job.batching is None else OrderedBatches(endpoint, self._record, self, self.source, loop).step
        watched = None
        if endpoint.watch is not None:
            if endpoint.job.masking is not None:
                endpoint.watch.hide = PrivateBatch(endpoint.job.masking, self._batch).masked
            grouped = self.policy.locks_groups or self._dialogs is not None
            watched = self.watched = EndpointWatch(endpoint.watch, self._batch, self._entries, self, loop, endpoint.receiver, grouped=grouped)
        try:
            if watched is not None:
                if stopped() or watched.begin():
                    return
                for row, decision in self._doubtful.items():
                    loop.end(replace(self._entries.entry(row), counts=decision.counts), decision, None)
            while not stopped() and step() and not (watched is not None and watched.judge()):
                pass
            if watched is not None and stopped():
                loop.finish()
        except PoisonError:
            for _ in range(endpoint.sessions.number):
                with suppress(ServerSessionError):
                    loop.finish()
            raise
        finally:
            self.halt = loop.halt

    def _resume(self) -> None:
        """Take over what dead processes had decided: what their words say holds, everything else is decided again."""
        initial = self._record.initial
        for row in np.flatnonzero((initial != 0) & (initial & STATE_MASK != MessageState.CARRIED)).tolist():
            decision = self._known_end(row, MessageState(initial[row] & STATE_MASK))
            state = MessageState.UNTOUCHED
            if self._is_doubtful(decision, row):
                self._doubtful[row] = decision
            elif decision is not None:
                self.resumed(row, decision)
                state = MessageState.ENDED
            if row in self._doubtful:
                pass
            elif isinstance(decision, Halt):
                self.halt, state = decision, MessageState.HALTED
            elif isinstance(decision, Block) and decision.whole_queue:
                self._blocked = True
            self.words[row] = int(initial[row]) & COUNT_MASK | state
        if self.halt is not None:
            self._endpoint.closed = True

    def _is_doubtful(self, decision: End | None, row: int) -> TypeGuard[Halt | Block]:
        """Whether a halt or a block, which no process lived to carry out, may come from an outage: others are tried first."""
        if self._endpoint.watch is None or self._record.initial[row] & STATE_MASK in {MessageState.ENDED, MessageState.HALTED}:
            return False
        failure = self._endpoint.recovered.failures.get(int(self._record.lookup_ids[row]))
        halts = isinstance(decision, Halt) or (isinstance(decision, Block) and decision.whole_queue)
        return halts and failure is not None and failure.kind is FailureKind.EXCEPTION

    def _known_end(self, row: int, state: MessageState) -> End | None:
        """Return what has become of a message; None when it has to be delivered again."""
        endpoint, now = self._endpoint, self._job.clock.now()
        lookup_id = int(self._record.lookup_ids[row])
        failure = endpoint.recovered.failures.get(lookup_id)
        entry = self._entries.entry(row, failure)
        if state is MessageState.HALTED:
            how = self.policy.halts_as
            return Halt(how, entry.counts, (HALT_EVENTS[how],), endpoint.recovered.halts.get(lookup_id, {}))
        if failure is not None and state is MessageState.ENDED and failure.kind is FailureKind.POSTPONED:
            return GiveBack(entry.counts, now + failure.delay)
        if failure is not None and (
            failure.kind is FailureKind.UNPROCESSABLE or (state is MessageState.ENDED and failure.kind is FailureKind.UNREADABLE)
        ):
            return endpoint.receiver.give_up(entry, failure, now)
        return entry.resumed_end or (self._entries.next_end(row) if state is MessageState.ENDED else None)


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
        """Wait for the end of a session's call; None when the handler returned. Raises ServerSessionError."""

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, in the delivery whose result was taken last; None: nothing."""

    def rows(self, session: int) -> bytes:
        """Return the rows that the handler returned, as they travel, in the delivery whose result was taken last."""

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""

    def close(self) -> None:
        """End all sessions."""


class BatchCallers(Callers, Protocol):
    """Server sessions whose handlers take batches."""

    def several(self, session: int, call: BatchCall) -> Handed:
        """Hand several messages to a session that is free, and wait for its end. Raises ServerSessionError."""
