"""The parent's side of a server session: hands batches to a child, watches its progress, and charges what it was doing when it died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from airflow_poison.core.delivery.handlers import carry_by_value
from airflow_poison.core.delivery.sessions import launcher, platform, wire
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord, carried_report
from airflow_poison.core.delivery.sessions.child import DONE, NOT_FOUND, READY, Answer, Setup, Task, Tools, load_types
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.core.delivery.sessions.outputreader import OutputReader
from airflow_poison.core.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.core.delivery.sessions.watch import Watch, in_flight
from airflow_poison.core.delivery.sessions.words import State, attempts_of, left_open, pending, settle
from airflow_poison.core.delivery.sessions.work import Replay
from airflow_poison.core.errors import HandlerNotFoundError, ServerSessionError
from airflow_poison.core.failures import Failure, FailureKind

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.delivery.sessions.session import BatchReport

MAX_IDLE_DEATHS = 3
"""Children in a row that may die without any message having moved."""


@dataclass(slots=True)
class _Tally:
    restarts: int = 0
    crashes: int = 0
    timeouts: int = 0
    idle_deaths: int = 0


@dataclass(frozen=True, slots=True)
class _Death:
    """How a child ended."""

    timed_out: bool
    how: str
    output: str


class SupervisedSession:
    """A server session in a child process."""

    def __init__(self, tools: Tools, journal: Journal, carry: Carry) -> None:
        load_types(tools.unprocessable)
        self._journal, self._carry, self._halted = journal, carry, False
        self._log, self._reader = FailureLog(journal.log_descriptor), FailureReader(journal.log_descriptor)
        policy = tools.policy
        self._carried = carry_by_value(tools, policy, tools.clock, *tools.unprocessable)
        self._timeout = policy.effective_transaction_timeout.total_seconds()
        self._child: launcher.ChildProcess | None = None
        self._output: OutputReader | None = None
        self._receiver: bytes | None = None  # after the last batch; None while it is fresh, or the policy keeps nothing in memory
        self._child_is_current = False  # whether the child's receiver is that of the last batch

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in the child; start and restart it as needed."""
        report = carried_report(batch, self._carry, halted=self._halted)
        if report is None:
            record = BatchRecord(batch, self._journal, self._reader, self._carry)
            report = self._deliver(batch, record)
        self._halted = report.halted
        return report

    def close(self) -> None:
        """End the child, with what it has started, and let go of the journal."""
        self._end_child()
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One batch -----------------------------------------------------------------------------------------------------

    def _deliver(self, batch: pa.RecordBatch, record: BatchRecord) -> BatchReport:
        stream = _stream_of(batch)
        tally = _Tally()
        try:
            while True:
                before = record.words.copy()
                answer = self._attempt(stream, record, again=tally.restarts > 0)
                if isinstance(answer, Answer):
                    break
                self._charge(record, answer, tally)
                self._limit_restarts(before, record, answer, tally)
        finally:
            os.close(stream)
        self._receiver, self._child_is_current = answer.receiver, True
        record.read_log()
        return record.report(halted=answer.halted, restarts=tally.restarts, crashes=tally.crashes, timeouts=tally.timeouts)

    def _attempt(self, stream: int, record: BatchRecord, *, again: bool) -> Answer | _Death:
        """Have the child go on with the batch until it is done or dead."""
        try:
            child, output = self._living_child()
            output.begin(record.label, lambda: in_flight(record.words))
            replay = Replay([int(value) for value in record.initial], record.recorded()) if again else None
            section = (record.section.number, record.section.offset, record.section.messages)
            receiver = None if self._child_is_current else self._receiver
            self._child_is_current = False
            wire.send(child.control, Task(section, receiver, replay), (stream,))
        except wire.PeerGoneError:
            return self._bury(timed_out=False)
        answer = self._wait(child, output, record.words)
        if isinstance(answer, Answer):
            output.end()
        if isinstance(answer, Answer) and answer.what != DONE:
            self._end_child()
            raise ServerSessionError(f"The server session failed by itself, not by a message; nothing is lost, run the task again. {answer.text}")
        return answer

    def _wait(self, child: launcher.ChildProcess, output: OutputReader, words: NDArray[np.int32] | None) -> Answer | _Death:
        """Wait for the child's answer, its death, or too long a transaction; keep reading its output."""
        poll = select.poll()
        for descriptor in (child.control.fileno(), child.ended, output.descriptor):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        watch = Watch(words, self._timeout)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(watch.pause * 1000)}
            if output.descriptor in ready:
                output.drain()
            if child.control.fileno() in ready:
                return self._answer(child)
            if child.ended in ready:
                return self._bury(timed_out=False)
            if watch.overdue():
                return self._bury(timed_out=True)

    def _answer(self, child: launcher.ChildProcess) -> Answer | _Death:
        try:
            answer, _ = wire.receive(child.control)
        except wire.PeerGoneError:
            return self._bury(timed_out=False)
        assert isinstance(answer, Answer)
        return answer

    # Life and death of the child -------------------------------------------------------------------------------------

    def _living_child(self) -> tuple[launcher.ChildProcess, OutputReader]:
        """Return the child, ready; start one when there is none. Raises HandlerNotFoundError, ServerSessionError."""
        if self._child is not None and self._output is not None:
            return self._child, self._output
        child = self._child = launcher.start_child(self._journal.descriptor, self._journal.log_descriptor)
        output = self._output = OutputReader(child.printed)
        self._child_is_current = self._receiver is None
        folder = None
        with contextlib.suppress(OSError):
            folder = os.getcwd()  # noqa: PTH109  (a plain string travels)
        wire.send(child.control, Setup(list(sys.path), dict(os.environ), folder, self._carried))
        answer = self._wait(child, output, None)
        if isinstance(answer, Answer):
            output.end()
        match answer:
            case _Death():
                raise ServerSessionError(
                    f"The server session ended ({answer.how}) while it was loading the handler; nothing was delivered by it. Import the handler's "
                    f"module on this machine to see why. Its last output:\n{answer.output}"
                )
            case Answer(what=what, text=text) if what != READY:
                self._end_child()
                if what == NOT_FOUND:
                    raise HandlerNotFoundError(text)
                raise ServerSessionError(f"The server session cannot start: {text}")
            case _:
                return child, output

    def _bury(self, *, timed_out: bool) -> _Death:
        """Kill what is left of the child, read its last output and say how it ended."""
        child, output = self._child, self._output
        assert child is not None
        assert output is not None
        if timed_out:
            platform.kill_group(child.pid)
        elif child.ended is not None:
            _wait_for_end(child.ended)
        status = launcher.reap_child(child)
        output.drain()
        tail = output.tail()
        output.end()
        output.close()
        self._child = self._output = None
        return _Death(timed_out, _how(status), tail)

    def _end_child(self) -> None:
        if self._child is not None and self._output is not None:
            launcher.reap_child(self._child)
            self._output.close()
            self._child = self._output = None

    def _charge(self, record: BatchRecord, death: _Death, tally: _Tally) -> None:
        """Charge the message in flight, its text first; finish what the child had left between two stores."""
        open_transaction = left_open(record.words)
        if (row := open_transaction.culprit) is not None:
            failure = self._failure(death, in_flight=open_transaction.in_flight is not None)
            attempts = attempts_of(int(record.words[row]))
            self._log.append(Rollback(record.section.number, row, int(record.lookup_ids[row]), attempts, failure))
        settle(record.words, State.TIMED_OUT if death.timed_out else State.CRASHED)
        record.read_log()
        if open_transaction.in_flight is not None:
            tally.timeouts += death.timed_out
            tally.crashes += not death.timed_out
        tally.restarts += 1

    def _failure(self, death: _Death, *, in_flight: bool) -> Failure:
        trace = cut_front(death.output, MAX_TRACE)
        if not in_flight:
            return Failure(FailureKind.CRASH, death.how, "The process ended while the transaction of this message was open.", trace)
        if death.timed_out:
            text = f"The handler took longer than the transaction timeout of {self._timeout:g} seconds and was killed."
            return Failure(FailureKind.TIMEOUT, "transaction timeout", text, trace)
        return Failure(FailureKind.CRASH, death.how, cut(f"The process that ran the handler ended: {death.how}.", MAX_TEXT), trace)

    def _limit_restarts(self, before: NDArray[np.int32], record: BatchRecord, death: _Death, tally: _Tally) -> None:
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


def _stream_of(batch: pa.RecordBatch) -> int:
    """Write a batch as an Arrow stream to a file without a name; return its descriptor."""
    import pyarrow as pa

    descriptor = platform.anonymous_file("airflow-poison-batch")
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=0) as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_for_end(ended: int) -> None:
    """Wait for a process whose socket is closed; it may still be on its way out."""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.poll(5_000)


def _how(status: int | None) -> str:
    if status is None:
        return "killed together with its zygote"
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
