"""The parent's side of a server session that is handed whole batches: watches its progress, and charges what it was doing when it died.

For policies whose decisions depend on the message alone (``policy.stateless``); ``endpoint.py`` serves the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions import wire
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord, ServerSession, carried_report
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.core.delivery.sessions.supervisor import Death, Supervisor, Watch, in_flight, stream_of
from airflow_poison.core.delivery.sessions.wire import DONE, Answer, Task, Tools
from airflow_poison.core.delivery.sessions.words import State, attempts_of, left_open, pending, settle
from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.batchrecord import BatchReport
    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.recovered import Carry

MAX_IDLE_DEATHS = 3
"""Children in a row that may die without any message having moved."""


@dataclass(slots=True)
class _Tally:
    restarts: int = 0
    crashes: int = 0
    timeouts: int = 0
    idle_deaths: int = 0


class SupervisedSession(ServerSession):
    """A server session in a child process."""

    def __init__(self, tools: Tools, journal: Journal, carry: Carry) -> None:
        self._journal, self._carry, self._halted = journal, carry, False
        self._log, self._reader = FailureLog(journal.log_descriptor), FailureReader(journal.log_descriptor)
        self._supervisor = Supervisor(tools, journal)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in the child; start and restart it as needed."""
        report = carried_report(batch, self._carry, halted=self._halted)
        if report is None:
            if self._journal.forced:  # a section tells what is being delivered: so late that nothing but that can end the process
                self._supervisor.child()
            record = BatchRecord(batch, self._journal, self._reader, self._carry)
            report = self._deliver(batch, record)
        self._halted = report.halted
        return report

    def close(self) -> None:
        """End the child, with what it has started, and let go of the journal."""
        self._supervisor.end()
        self._journal.close()

    def _deliver(self, batch: pa.RecordBatch, record: BatchRecord) -> BatchReport:
        stream = stream_of(batch)
        tally = _Tally()
        try:
            while True:
                before = record.words.copy()
                answer = self._attempt(stream, record)
                if isinstance(answer, Answer):
                    break
                self._charge(record, answer, tally)
                self._limit_restarts(before, record, answer, tally)
        finally:
            os.close(stream)
        record.read_log()
        return record.report(halted=answer.halted, restarts=tally.restarts, crashes=tally.crashes, timeouts=tally.timeouts)

    def _attempt(self, stream: int, record: BatchRecord) -> Answer | Death:
        """Have the child go on with the batch until it is done or dead."""
        try:
            child, output = self._supervisor.child()
            output.begin(record.label, lambda: in_flight(record.words))
            wire.send(child.control, Task((record.section.number, record.section.offset, record.section.messages)), (stream,))
        except wire.PeerGoneError:
            return self._supervisor.bury(timed_out=False)
        answer: Answer | Death = self._supervisor.wait(Watch(record.words, self._supervisor.timeout))
        if isinstance(answer, Answer):
            output.end()
        if isinstance(answer, Answer) and answer.what != DONE:
            self._supervisor.end()
            raise ServerSessionError(f"The server session failed by itself, not by a message; nothing is lost, run the task again. {answer.text}")
        return answer

    def _charge(self, record: BatchRecord, death: Death, tally: _Tally) -> None:
        """Charge the message in flight, its text first."""
        for row in left_open(record.words).in_flight:
            failure = self._supervisor.failure(death)
            attempts = attempts_of(int(record.words[row]))
            self._log.append(Rollback(record.section.number, row, int(record.lookup_ids[row]), attempts, failure))
            tally.timeouts += death.timed_out
            tally.crashes += not death.timed_out
        settle(record.words, State.TIMED_OUT if death.timed_out else State.CRASHED)
        record.read_log()
        tally.restarts += 1

    def _limit_restarts(self, before: NDArray[np.int32], record: BatchRecord, death: Death, tally: _Tally) -> None:
        """Every restart is paid for by a message that moved; otherwise only a few are allowed."""
        if (before != record.words).any():
            tally.idle_deaths = 0
            return
        tally.idle_deaths += 1
        if tally.idle_deaths >= MAX_IDLE_DEATHS:
            raise ServerSessionError(
                f"The server session ended {MAX_IDLE_DEATHS} times in a row ({death.how}) with no message in its handler and "
                f"{len(pending(record.words))} left to deliver. "
                f"Look for what ends it at this machine (memory limits, an administrator). Its last output:\n{death.output}"
            )
