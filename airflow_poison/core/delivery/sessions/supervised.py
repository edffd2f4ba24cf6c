"""The parent's side of a server session that is handed whole batches: watches its progress, and charges what it was doing when it died.

For policies whose decisions depend on the message alone (``policy.stateless``); ``endpoint.py`` serves the others.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.core.delivery.sessions import wire
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord, ServerSession, carried_report
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.core.delivery.sessions.supervisor import LONGEST_IDLE_SECONDS, Child, Children, Death, idle_limit_reached, stream_of
from airflow_poison.core.delivery.sessions.wire import Answer, Task, Tools
from airflow_poison.core.delivery.sessions.words import State, attempts_of, left_open, pending, settle, states_of
from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.batchrecord import BatchReport
    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.recovered import Carry


_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.5, 0.01


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
        self._child, self._children = Child(tools, journal), Children()
        self._children.add(self._child)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in the child; start and restart it as needed."""
        report = carried_report(batch, self._carry, halted=self._halted)
        if report is None:
            if self._journal.forced:  # a section tells what is being delivered: so late that nothing but that can end the process
                self._children.make_ready(self._child)
            record = BatchRecord(batch, self._journal, self._reader, self._carry)
            report = self._deliver(batch, record)
        self._halted = report.halted
        return report

    def close(self) -> None:
        """End the child, with what it has started, and let go of the journal."""
        self._children.end()
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
        child = self._child
        try:
            self._children.make_ready(child)
            process, output = child.living()
            output.begin(record.label, lambda: in_flight(record.words))
            wire.send(process.control, Task((record.section.number, record.section.offset, record.section.messages)), (stream,))
        except wire.PeerGoneError:
            return self._children.bury(child)
        child.busy, child.watch = True, Watch(record.words, child.timeout)
        told = self._children.told(child)
        if isinstance(told, ServerSessionError):
            raise told
        assert isinstance(told, Answer | Death)
        if isinstance(told, Answer):
            output.end()
        return told

    def _charge(self, record: BatchRecord, death: Death, tally: _Tally) -> None:
        """Charge the message in flight, its text first."""
        for row in left_open(record.words).in_flight:
            failure = self._child.failure(death)
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
        when = f"with no message in its handler and {len(pending(record.words))} left to deliver"
        if (error := idle_limit_reached(tally.idle_deaths, death, when)) is not None:
            raise error


class Watch:
    """No message of a child may stand still longer than the transaction timeout: a stopwatch that starts again whenever the open transaction changes.

    :param words: of the batch.
    :param timeout: of a transaction, seconds.
    """

    def __init__(self, words: NDArray[np.int32], timeout: float) -> None:
        self._words, self._timeout = words, timeout
        self._pause = min(_LONGEST_PAUSE, max(timeout / 8, _SHORTEST_PAUSE))
        self._progress = self._look()
        self._since = self._looked = time.monotonic()

    @property
    def due(self) -> float:
        """When to look next, monotonic seconds."""
        return self._looked + self._pause

    def __call__(self) -> bool:
        """Look, at most every half pause, and say whether the transaction has been open for too long."""
        now = time.monotonic()
        if now - self._looked < self._pause / 2:
            return False
        self._looked, seen = now, self._look()
        if seen != self._progress:
            self._progress, self._since = seen, now
            return False
        limit = self._timeout if seen[0] >= 0 else max(self._timeout, LONGEST_IDLE_SECONDS)
        return now - self._since >= limit

    def _look(self) -> tuple[int, int, int]:
        """Say where the child is: the first row of the open transaction, its counts, and how many rows are settled."""
        states = states_of(self._words)
        is_open = (states == State.IN_FLIGHT) | (states == State.HELD)
        row = int(np.argmax(is_open))
        settled = int(np.count_nonzero((states == State.ENDED) | (states == State.COMMITTED)))
        return (row, int(self._words[row]) >> 8, settled) if is_open[row] else (-1, 0, settled)


def in_flight(words: NDArray[np.int32]) -> int:
    """Return the row that is with the handler, or -1."""
    flying = np.flatnonzero(states_of(words) == State.IN_FLIGHT)
    return int(flying[0]) if len(flying) else -1
