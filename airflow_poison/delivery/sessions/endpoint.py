"""An endpoint whose decisions depend on more than one message: the rules run here, the handlers in its server sessions.

For policies that count over messages, process several at a time, batch, or block a queue (not ``policy.stateless``). The receive loop asks
the policy in this process, which therefore knows every decision; a session is handed one message at a time. Dies a session, the loop goes
on with the receiver that it has; if this process dies, the journal has the deliveries that were made for the next one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from airflow_poison.delivery.ends import GiveBack, Stay
from airflow_poison.delivery.outage import Watch
from airflow_poison.delivery.private import PrivateBatch
from airflow_poison.delivery.sessions.dialogs import Dialogs
from airflow_poison.delivery.sessions.failurelog import FailureLog, FailureReader
from airflow_poison.delivery.sessions.host import DialogHost, EndpointHost
from airflow_poison.delivery.sessions.journal import COUNT_MASK, STATE_MASK, MessageState, attempts_of, pending, states_of
from airflow_poison.delivery.sessions.returned import RowsWriter
from airflow_poison.delivery.sessions.rows import Entries, rows_of
from airflow_poison.delivery.sessions.session import BatchRecord, BatchReport, Decided, ServerSession, lookup_ids_of
from airflow_poison.delivery.sessions.watched import EndpointWatch
from airflow_poison.rules.decisions import HALT_EVENTS, Block, Halt
from airflow_poison.rules.loop import ReceiveLoop, Sessions
from airflow_poison.values.errors import PoisonError, ServerSessionError
from airflow_poison.values.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from airflow_poison.delivery.ends import End
    from airflow_poison.delivery.sessions.host import Callers
    from airflow_poison.delivery.sessions.journal import Journal
    from airflow_poison.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.delivery.sessions.rows import BatchEntry, Rows
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.dialogs.dialog_state import DialogState


class EndpointSession(ServerSession):
    """An open endpoint with its server sessions.

    :param at_hand: the conversations of the messages; None: the queue has none. With them each transaction receives one message, and a
        conversation group is with one session at a time, whatever the policy says.
    """

    def __init__(self, job: StageJob, callers: Callers, journal: Journal, carry: RecoveredAttempts, at_hand: DialogState | None = None) -> None:
        self.job, self.callers, self.carry = job, callers, carry
        self.log = FailureLog(journal.log_descriptor)
        self.dialogs = None if at_hand is None else Dialogs(at_hand, carry, self.log)
        self.receiver = job.policy.open(job.opening)
        single = at_hand is not None  # what a rolled-back message did to its conversation must concern no other
        self.sessions = replace(Sessions() if job.singly else Sessions.of(job.policy), batches=not single)
        self.force = journal.force if journal.forced else None
        self.keep = RowsWriter(journal.rows_descriptor).append if job.outputs else None
        self.batches = self.receiver.batch_size() > 1 and not single
        self.halted = bool((states_of(carry.words) == MessageState.HALTED).any())
        self.closed = self.halted or job.closed  # nothing more is received: halted, blocked, or stopped from elsewhere
        self.watch = None if job.detection is None else Watch(job.detection, job.clock.now)
        self._journal, self._reader = journal, FailureReader(journal.log_descriptor)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended, the endpoint has halted, or the queue is blocked."""
        again = [] if self.dialogs is None else self.dialogs.load(batch, lookup_ids_of(batch))
        record = BatchRecord(batch, self._journal, self._reader, self.carry, again)
        delivery = _Delivery(self, batch, record)
        try:
            delivery.run()
        finally:
            if delivery.halt is not None:
                self._halt()
        host = delivery.host
        return BatchReport(
            *record.outcome(),
            halted=self.halted,
            crashes=host.crashes,
            timeouts=host.timeouts,
            decided=Decided(host.ends, delivery.halt, tuple(host.events)),
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


class _Delivery:
    """One batch in the hands of the endpoint."""

    def __init__(self, endpoint: EndpointSession, batch: pa.RecordBatch, record: BatchRecord) -> None:
        job = endpoint.job
        self._endpoint, self._policy, self._record = endpoint, job.policy, record
        self._words = record.section.words
        opening = replace(job.opening, counters={})  # of the messages alone
        self._entries = Entries(job.policy, batch, record.initial.tolist(), job.clock.now(), opening)
        self._blocked = False
        self._doubtful: dict[int, Halt | Block] = {}
        self.host = (EndpointHost if endpoint.dialogs is None else partial(DialogHost, endpoint.dialogs))(
            job,
            record.section,
            endpoint.log,
            endpoint.callers,
            holds=endpoint.batches,
            sessions=endpoint.sessions.number,
            force=endpoint.force,
            keep=endpoint.keep,
        )
        self.halt: Halt | None = None
        self._batch = batch

    def run(self) -> None:
        """Settle what an earlier try has decided for good, then receive the rest."""
        endpoint = self._endpoint
        self._resume()
        if not endpoint.closed:
            rows = pending(self._record.words).tolist()
            dialogs = endpoint.dialogs
            source = self.host.source = rows_of(self._policy, self._entries, rows, self._words, dialogs=dialogs is not None)
            source.blocked = self._blocked
            services = None if dialogs is None else dialogs.services
            endpoint.callers.load(self._batch, self._record.label, min(len(rows), endpoint.sessions.number), services)
            loop = ReceiveLoop(endpoint.receiver, self.host.received(source), self.host, endpoint.sessions)
            self._receive(loop, self._step(loop, source), self._watched())
            endpoint.closed = source.blocked or endpoint.stopped_elsewhere()
        for row in pending(self._record.words).tolist():
            if attempts_of(self._words[row]):
                self.host.ends[row] = Stay(self.host.counts.get(row) or self._entries.entry(row).counts)

    def _step(self, loop: ReceiveLoop[BatchEntry], source: Rows) -> Callable[[], bool]:
        """Return what carries out one transaction, or one of several messages where the handler takes batches."""
        if self._endpoint.job.batching is None:
            return loop.step
        from airflow_poison.delivery.sessions.ordered import OrderedBatches

        return OrderedBatches(self._endpoint, self._record, self.host, source, loop).step

    def _watched(self) -> EndpointWatch | None:
        endpoint = self._endpoint
        if endpoint.watch is None:
            return None
        if endpoint.job.masking is not None:
            endpoint.watch.hide = PrivateBatch(endpoint.job.masking, self._batch).said
        grouped = self._policy.locks_groups or endpoint.dialogs is not None
        watched = self.host.watched = EndpointWatch(endpoint.watch, self._batch, self._policy, self._entries, self.host, grouped=grouped)
        return watched

    def _receive(self, loop: ReceiveLoop[BatchEntry], step: Callable[[], bool], watched: EndpointWatch | None) -> None:
        """Receive until there is nothing more; what is in flight when something of ours fails is not given up for that."""
        stopped = self._endpoint.stopped_elsewhere
        try:
            if watched is not None:
                watched.loop, watched.receiver = loop, self._endpoint.receiver
                if stopped() or watched.begin():
                    return
                for row, decision in self._doubtful.items():
                    loop.end(replace(self._entries.entry(row), counts=decision.counts), decision, None)
            while not stopped() and step() and not (watched is not None and watched.judge()):
                pass
            if watched is not None and stopped():
                loop.finish()
        except PoisonError:
            for _ in range(self._endpoint.sessions.number):
                with suppress(ServerSessionError):
                    loop.finish()
            raise
        finally:
            self.halt = loop.halt

    def _resume(self) -> None:
        """Take over what dead processes had decided: what their words say holds, everything else is decided again."""
        initial = self._record.initial
        for row in np.flatnonzero((initial != 0) & (states_of(initial) != MessageState.CARRIED)).tolist():
            decision = self._known_end(row, MessageState(initial[row] & STATE_MASK))
            state = MessageState.UNTOUCHED
            if self._is_doubtful(decision, row):
                self._doubtful[row] = decision
            elif decision is not None:
                self.host.resumed(row, decision)
                state = MessageState.ENDED
            if row in self._doubtful:
                pass
            elif isinstance(decision, Halt):
                self.halt, state = decision, MessageState.HALTED
            elif isinstance(decision, Block) and decision.whole_queue:
                self._blocked = True
            self._words[row] = int(initial[row]) & COUNT_MASK | state
        if self.halt is not None:
            self._endpoint.closed = True

    def _is_doubtful(self, decision: End | None, row: int) -> TypeGuard[Halt | Block]:
        """Whether a halt or a block, which no process lived to carry out, may come from an outage: others are tried first."""
        if self._endpoint.watch is None or states_of(self._record.initial[row]) in {MessageState.ENDED, MessageState.HALTED}:
            return False
        failure = self._endpoint.carry.failures.get(int(self._record.lookup_ids[row]))
        halts = isinstance(decision, Halt) or (isinstance(decision, Block) and decision.whole_queue)
        return halts and failure is not None and failure.kind is FailureKind.EXCEPTION

    def _known_end(self, row: int, state: MessageState) -> End | None:
        """Return what has become of a message; None when it has to be delivered again."""
        endpoint, now = self._endpoint, self._endpoint.job.clock.now()
        lookup_id = int(self._record.lookup_ids[row])
        failure = endpoint.carry.failures.get(lookup_id)
        entry = self._entries.entry(row, failure)
        if state is MessageState.HALTED:
            how = self._policy.halts_as
            return Halt(how, entry.counts, (HALT_EVENTS[how],), endpoint.carry.halts.get(lookup_id, {}))
        if failure is not None and state is MessageState.ENDED and failure.kind is FailureKind.POSTPONED:
            return GiveBack(entry.counts, now + failure.delay)
        if failure is not None and (
            failure.kind is FailureKind.UNPROCESSABLE or (state is MessageState.ENDED and failure.kind is FailureKind.UNREADABLE)
        ):
            return endpoint.receiver.give_up(entry, failure, now)
        return entry.led_to or (self._entries.next_end(row) if state is MessageState.ENDED else None)
