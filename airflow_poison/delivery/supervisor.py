"""Child processes, seen from their parent: started when needed, watched, buried; and how one ended, as a failure.

Server sessions in child processes, handed whole batches or one message at a time; a child's death is charged here to the message that it had.

Whole batches are for policies whose decisions depend on the message alone (``policy.stateless``): the parent watches the child's progress in the
journal, and charges what it was doing when it died. ``host.py`` serves the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.delivery import platform, printed, wire, zygote
from airflow_poison.delivery.failurelog import FailureLog, Rollback
from airflow_poison.delivery.handlers import carry_by_value, load_types
from airflow_poison.delivery.journal import STATE_MASK, Journal, MessageState, attempts_of, left_open, pending, settle
from airflow_poison.delivery.printed import OutputReader
from airflow_poison.delivery.session import BatchRecord, BatchReport, StatelessSession
from airflow_poison.delivery.verdicts import MAX_TEXT, MAX_TRACE, PrivateBatch, cut, cut_front, output_of
from airflow_poison.delivery.wire import (
    DONE,
    NOT_FOUND,
    NOT_WRITTEN,
    READY,
    SEVERAL,
    SLOT_BYTES,
    UNLOAD,
    BatchCall,
    Call,
    Called,
    ChildReport,
    Handed,
    Load,
    Setup,
    Task,
    map_slot,
)
from airflow_poison.values.errors import HandlerNotFoundError, PoisonError, ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service


LONGEST_LEAVE_SECONDS = 5.0
"""How long a child may take from closing its socket to its end."""
LONGEST_IDLE_SECONDS = 300.0
"""How long a child may take while no message is with the handler: imports, conversions, rules."""
MAX_IDLE_DEATHS = 3
"""Children in a row that may die before a message has moved."""
_LONGEST_POLL_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended.

    :param timed_out: it was killed because a transaction took too long.
    :param how: its exit code or signal, in words.
    :param output: the end of what it printed.
    """

    timed_out: bool
    how: str
    output: str


class Child:
    """A child process as its parent sees it, started anew when it has died.

    :ivar ready: it has said that it is; ``refused``: why it cannot be.
    :ivar busy: it got a call, and has not answered.
    :ivar reply: its answer, until it is read.
    :ivar overdue: when its start or what it does has taken too long, monotonic seconds.
    :ivar watch: says whether it has, in place of that; None: there is a fixed time.
    :ivar leaving: when a child that has closed its socket has taken too long to end; None: it has not closed it.
    """

    def __init__(self, job: StageJob, journal: Journal) -> None:
        load_types(job.unprocessable)
        self._journal, self._last_output = journal, printed.path_beside(journal.path)
        self._carried = carry_by_value(job, job.policy, job.clock, *job.unprocessable)
        self._makes_columns = job.batching is not None or bool(job.outputs)
        self.timeout = job.policy.effective_transaction_timeout.total_seconds()
        self._process: zygote.ChildProcess | None = None
        self._output: OutputReader | None = None
        self.reply: ChildReport | Called | Handed | wire.CallReturned | Death | ServerSessionError | None = None
        self.refused: PoisonError | None = None
        self.overdue, self.idle_deaths = 0.0, 0
        self.watch: TransactionStopwatch | None = None
        self.is_gone()

    def is_gone(self) -> None:
        """Forget the process."""
        self.ready = self.busy = False
        self.leaving: float | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    @property
    def deadline(self) -> float | None:
        """When to look whether something has taken too long, monotonic seconds; None while nothing is under way."""
        if self.leaving is not None:
            return self.leaving
        if self.alive and not self.ready:
            return self.overdue
        return (self.overdue if self.watch is None else self.watch.due) if self.busy else None

    def start(self) -> None:
        """Start a child; what it answers first is for ``refusal``."""
        if self._makes_columns:
            zygote.preload("pandas")  # Arrow looks for it when it makes columns of Python values
        last_output = printed.create(self._last_output)
        try:
            journal = self._journal
            rows = () if journal.rows_descriptor < 0 else (journal.rows_descriptor,)
            process = self._process = zygote.start_child(journal.descriptor, journal.log_descriptor, last_output, *rows)
        finally:
            os.close(last_output)
        self._output = OutputReader(process.printed)
        folder = None
        with contextlib.suppress(OSError):
            folder = os.getcwd()  # noqa: PTH109  (a plain string travels)
        wire.send(process.control, Setup(list(sys.path), dict(os.environ), folder, self._carried))

    def refusal(self, answer: ChildReport | Death) -> PoisonError | None:
        """Return what is wrong with a child by its first answer: HandlerNotFoundError, ServerSessionError; None: it is ready."""
        if isinstance(answer, Death):
            return ServerSessionError(
                f"The server session ended ({answer.how}) while it was loading the handler; nothing was delivered by it. Import the handler's "
                f"module on this machine to see why. Its last output:\n{answer.output}"
            )
        _, output = self.living()
        output.end()
        if answer.what == READY:
            return None
        self.end()
        if answer.what == NOT_FOUND:
            return HandlerNotFoundError(answer.text)
        return ServerSessionError(f"The server session cannot start: {answer.text}")

    def living(self) -> tuple[zygote.ChildProcess, OutputReader]:
        """Return the process, which has been started, and its output."""
        assert self._process is not None
        assert self._output is not None
        return self._process, self._output

    def descriptors(self) -> list[int]:
        """Return what becomes readable when the child says, prints or does anything."""
        process, output = self.living()
        candidates = (process.control.fileno(), process.ended, output.descriptor)
        return [descriptor for descriptor in candidates if descriptor is not None]

    def bury(self, *, timed_out: bool, patience: float) -> Death:
        """Kill what is left of the child, read its last output and say how it ended.

        :param patience: how long to wait for its own end, seconds.
        """
        process, output = self.living()
        if timed_out:
            platform.kill_group(process.pid)
        elif process.ended is not None:
            _wait_for_end(process.ended, patience)
        status = zygote.reap_child(process)
        output.drain()
        tail = output.tail()
        output.end()
        output.close()
        self._process = self._output = None
        return Death(timed_out, _how(status), tail)

    def end(self) -> None:
        """End the child, with what it has started."""
        if self._process is not None and self._output is not None:
            zygote.reap_child(self._process)
            self._output.end()
            self._output.close()
            self._process = self._output = None

    def died_idle(self, death: Death, when: str = "before it had taken a message") -> None:
        """Count a death in which no message has moved. Raises ServerSessionError when there were too many in a row.

        :param when: it died, in words.
        """
        self.idle_deaths += 1
        if self.idle_deaths >= MAX_IDLE_DEATHS:
            raise ServerSessionError(
                f"The server session ended {MAX_IDLE_DEATHS} times in a row ({death.how}) {when}. "
                f"Look for what ends it at this machine (memory limits, an administrator). Its last output:\n{death.output}"
            )

    def failure(self, death: Death) -> Failure:
        """Return what a child's death means for the message that it had."""
        trace = cut_front(death.output, MAX_TRACE)
        if death.timed_out:
            text = f"The handler took longer than the transaction timeout of {self.timeout:g} seconds and was killed."
            return Failure(FailureKind.TIMEOUT, "transaction timeout", text, trace)
        return Failure(FailureKind.CRASH, death.how, cut(f"The process that ran the handler ended: {death.how}.", MAX_TEXT), trace)


class Children:
    """Child processes, all of them watched while one is waited for."""

    def __init__(self) -> None:
        self._all: list[Child] = []
        self._poll, self._watched = select.poll(), dict[int, Child]()

    def add(self, child: Child) -> None:
        """Watch one more child."""
        self._all.append(child)

    def end(self) -> None:
        """End all of them, with what they have started."""
        for child in self._all:
            self._forget_descriptors(child)
            child.end()
            child.is_gone()

    def start(self, child: Child) -> None:
        """Start a child that is not there; its first answer is read when it is made ready. Raises ServerSessionError, PeerGoneError."""
        if child.alive or child.refused is not None:
            return
        child.overdue = time.monotonic() + LONGEST_IDLE_SECONDS
        child.start()
        for descriptor in child.descriptors():
            self._poll.register(descriptor, select.POLLIN)
            self._watched[descriptor] = child

    def make_ready(self, child: Child) -> None:
        """Start a child and wait until it has started. Raises HandlerNotFoundError, ServerSessionError, PeerGoneError."""
        self.start(child)
        while not child.ready:
            if child.refused is not None:
                refused, child.refused = child.refused, None
                raise refused
            self._watch()

    def reply_of(self, child: Child) -> ChildReport | Called | Handed | wire.CallReturned | Death | ServerSessionError:
        """Wait for the end of a child's call."""
        while child.reply is None:
            self._watch()
        reply, child.reply = child.reply, None
        return reply

    def bury(self, child: Child, *, timed_out: bool = False, patience: float = LONGEST_LEAVE_SECONDS) -> Death:
        """End a child that has died, or is to; say how it ended."""
        self._forget_descriptors(child)
        child.is_gone()
        return child.bury(timed_out=timed_out, patience=patience)

    def _forget_descriptors(self, child: Child) -> None:
        for descriptor in [descriptor for descriptor, watched in self._watched.items() if watched is child]:
            self._ignore(descriptor)

    def _ignore(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _watch(self) -> None:
        """Wait until one of the children says something, prints, ends or is overdue, and take note of that."""
        deadline = min((child.deadline for child in self._all if child.deadline is not None), default=math.inf)
        patience = min(max(deadline - time.monotonic(), 0.0), _LONGEST_POLL_SECONDS)
        heard: dict[Child, list[int]] = {}
        for descriptor, _ in self._poll.poll(patience * 1000 + 1):
            heard.setdefault(self._watched[descriptor], []).append(descriptor)
        for child, descriptors in heard.items():
            self._listen(child, descriptors)
        if time.monotonic() >= deadline:
            self._end_overdue()

    def _listen(self, child: Child, ready: Sequence[int]) -> None:
        """Take what a child prints first: it was printed before it answered, and before it ended."""
        process, output = child.living()
        if output.descriptor in ready:
            output.drain()
        if process.control.fileno() in ready and child.leaving is None:
            try:
                self._answered(child, wire.answer(process.control))
            except wire.PeerGoneError:
                self._leaves(child, process)
        if process.ended in ready and child.alive:
            self._died(child)

    def _answered(self, child: Child, answer: Called | Handed | wire.CallReturned | ChildReport) -> None:
        if isinstance(answer, ChildReport) and not child.ready:
            self._started(child, answer)
        elif isinstance(answer, ChildReport) and answer.what != DONE:
            self.bury(child, patience=0.0)
            by_itself = f"The server session failed by itself, not by a message; nothing is lost, run the task again. {answer.text}"
            child.reply = platform.NotWrittenError(answer.text) if answer.what == NOT_WRITTEN else ServerSessionError(by_itself)
        else:
            child.reply, child.busy = answer, False

    def _leaves(self, child: Child, process: zygote.ChildProcess) -> None:
        """Its socket is closed: it is about to end. No other code waits for that."""
        self._ignore(process.control.fileno())
        if process.ended is None:
            self._died(child)
        else:
            child.leaving = time.monotonic() + LONGEST_LEAVE_SECONDS

    def _died(self, child: Child, *, timed_out: bool = False, patience: float = LONGEST_LEAVE_SECONDS) -> None:
        was_ready, busy = child.ready, child.busy
        death = self.bury(child, timed_out=timed_out, patience=patience)
        if not was_ready:
            self._started(child, death)
        elif busy:
            child.reply = death

    def _started(self, child: Child, answer: ChildReport | Death) -> None:
        """Take note of a child's first answer; an error in it is raised when the child is needed."""
        child.refused = child.refusal(answer)
        child.ready = child.refused is None
        if not child.ready:
            self._forget_descriptors(child)

    def _end_overdue(self) -> None:
        """End what is overdue, unless it has just spoken."""
        now = time.monotonic()
        for child in self._all:
            if child.deadline is None or child.deadline > now:
                continue
            if child.leaving is not None:
                self._died(child, patience=0.0)
            elif not (child.ready and child.watch is not None and not child.watch()) and not _has_spoken(child.living()[0]):
                self._died(child, timed_out=True)


def _has_spoken(process: zygote.ChildProcess) -> bool:
    poll = select.poll()
    poll.register(process.control, select.POLLIN)
    return bool(poll.poll(0))


def stream_of(batch: pa.RecordBatch) -> int:
    """Write a batch as an Arrow stream to a file without a name; return its descriptor."""
    descriptor = platform.anonymous_file("airflow-poison-batch")
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=0) as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_for_end(ended: int, patience: float) -> None:
    """Wait for a process whose socket is closed; it may still be on its way out."""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.poll(patience * 1000)


def _how(status: int | None) -> str:
    if status is None:
        return "killed together with its zygote"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"signal {signal.Signals(number).name if number in set(signal.Signals) else number}"  # most real-time signals have no name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


# Server sessions in child processes

_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.5, 0.01


class SupervisedSession(StatelessSession):
    """A server session in a child process."""

    def __init__(self, job: StageJob, journal: Journal, recovered: RecoveredAttempts) -> None:
        super().__init__(job, journal, recovered)
        self._masking = job.masking
        self._log = FailureLog(journal.log_descriptor)
        self._child, self._children = Child(job, journal), Children()
        self._children.add(self._child)

    def close(self) -> None:
        """End the child, with what it has started, and let go of the journal."""
        self._children.end()
        super().close()

    def _deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in the child; start and restart it as needed."""
        if self._journal.forced:  # a section says what is being delivered: so late that nothing but that can end the process
            self._children.make_ready(self._child)
        record, private = BatchRecord(batch, self._journal, self._reader, self._recovered), output_of(self._masking, batch)
        stream = stream_of(batch)
        crashes = timeouts = restarts = self._child.idle_deaths = 0
        try:
            while True:
                before = record.words.copy()
                answer = self._attempt(stream, record, private)
                if isinstance(answer, ChildReport):
                    break
                charged = self._charge(record, answer)
                restarts += 1
                timeouts += charged * answer.timed_out
                crashes += charged * (not answer.timed_out)
                if (before != record.words).any():  # every restart is paid for by a message that moved; otherwise only a few are allowed
                    self._child.idle_deaths = 0
                else:
                    self._child.died_idle(answer, f"with no message in its handler and {len(pending(record.words))} left to deliver")
        finally:
            os.close(stream)
        counts, searched = (restarts, crashes, timeouts), record.searched()
        return BatchReport(*record.outcome(), answer.halted, *counts, returned=record.returned(), not_landed=answer.not_landed, searched=searched)

    def _attempt(self, stream: int, record: BatchRecord, private: PrivateBatch | None) -> ChildReport | Death:
        """Have the child go on with the batch until it is done or dead."""
        child = self._child
        try:
            self._children.make_ready(child)
            process, output = child.living()
            output.begin(record.label, lambda: in_flight(record.words), private)
            wire.send(process.control, Task((record.section.number, record.section.offset, record.section.messages)), (stream,))
        except wire.PeerGoneError:
            return self._children.bury(child)
        child.busy, child.watch = True, TransactionStopwatch(record.words, child.timeout)
        reply = self._children.reply_of(child)
        if isinstance(reply, ServerSessionError):
            raise reply
        assert isinstance(reply, ChildReport | Death)
        if isinstance(reply, ChildReport):
            output.end()
        return reply

    def _charge(self, record: BatchRecord, death: Death) -> int:
        """Charge the message in flight, its text first; return how many there were."""
        charged = left_open(record.words).in_flight
        for row in charged:
            failure = self._child.failure(death)
            attempts = attempts_of(int(record.words[row]))
            self._log.append(Rollback(record.section.number, row, int(record.lookup_ids[row]), attempts, failure))
        settle(record.words, MessageState.TIMED_OUT if death.timed_out else MessageState.CRASHED)
        record.read_log()
        return len(charged)


class TransactionStopwatch:
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

    def _look(self) -> tuple[int, int, int, int]:
        """Say where the child is: the first row of the open transaction, its counts, how many rows are settled, and how many are in a batch."""
        states = self._words & STATE_MASK
        in_batch = states == MessageState.IN_BATCH
        is_open = (states == MessageState.IN_FLIGHT) | (states == MessageState.HELD) | in_batch
        row = int(np.argmax(is_open))
        settled = int(np.count_nonzero((states == MessageState.ENDED) | (states == MessageState.COMMITTED)))
        return (row, int(self._words[row]) >> 8, settled, int(np.count_nonzero(in_batch))) if is_open[row] else (-1, 0, settled, 0)


def in_flight(words: NDArray[np.int32]) -> int:
    """Return the row that is with the handler, or -1."""
    flying = np.flatnonzero(words & STATE_MASK == MessageState.IN_FLIGHT)
    return int(flying[0]) if len(flying) else -1


# One message at a time


_LARGEST_NUMBER = 0x7FFFFFFF


class _Session(Child):
    """A child that is handed one message at a time.

    :ivar serving: it has a batch; ``loaded``: it has the present one.
    :ivar call: what it was handed, None when it is free.
    :ivar change: what its handler did in its conversation, until that is asked for; ``rows``: what it returned.
    """

    def __init__(self, job: StageJob, journal: Journal) -> None:
        super().__init__(job, journal)
        self.slot = platform.anonymous_file("airflow-poison-slot")
        os.truncate(self.slot, SLOT_BYTES)
        self._taken = map_slot(self.slot)
        self.call: Call | None = None
        self.change: Change | None = None
        self.rows = b""
        self.number = 0

    def is_gone(self) -> None:
        """Forget the process."""
        super().is_gone()
        self.serving = self.loaded = False

    @property
    def row(self) -> int:
        """The message that it has; -1 when it has none."""
        return -1 if self.call is None else self.call.row

    @property
    def acknowledged(self) -> bool:
        """Whether the child has begun with what it was handed last."""
        return self._taken[0] == self.number


class ChildCallers:
    """A supervised child process for each session, started when first needed. All of them are watched while one is waited for."""

    side_by_side = True

    def __init__(self, job: StageJob, journal: Journal) -> None:
        load_types(job.unprocessable)
        self._job, self._journal = job, journal
        self._sessions: list[_Session] = []
        self._children = Children()
        self._batch: pa.RecordBatch | None = None
        self._stream = -1
        self._label: Callable[[int], str] = lambda _row: ""
        self._private: PrivateBatch | None = None
        self._services: Mapping[str, Service] | None = None

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int, services: Mapping[str, Service] | None = None) -> None:
        """Go on with another batch; each child gets it with its first message of it. All that are needed start at the same time."""
        for session in self._sessions:
            self._unload(session)
        self._forget_batch()
        self._batch, self._label, self._services = batch, label, services
        self._private = output_of(self._job.masking, batch)
        while len(self._sessions) < sessions:
            self._sessions.append(_Session(self._job, self._journal))
            self._children.add(self._sessions[-1])
        for session in self._sessions[:sessions]:
            with suppress(PoisonError, wire.PeerGoneError):  # reported when the session is needed
                self._children.start(session)

    def prepare(self, session: int) -> None:
        """Wait until a child has started, and give it the batch; meanwhile the others are watched."""
        given = self._sessions[session]
        while not given.loaded:
            try:
                self._make_ready(given)
            except wire.PeerGoneError:
                given.died_idle(self._children.bury(given))

    def begin(self, session: int, call: Call, opened: float) -> None:
        """Hand a message to a child; to a new one when it has died meanwhile."""
        self._hand_over(session, call, () if self._services is None else (call.begun,), opened)

    def _hand_over(self, session: int, call: Call, more: tuple[object, ...], opened: float | None = None) -> None:
        """Send a child a call, and what goes with it; a new one when it has died meanwhile.

        :param opened: when its transaction was begun, monotonic seconds; None: when the child got the call.
        """
        given = self._sessions[session]
        given.number = given.number % _LARGEST_NUMBER + 1
        while True:
            self.prepare(session)
            process, _ = given.living()
            try:
                wire.send_numbers(process.control, given.number, call.row, call.counts.abort_count, call.counts.move_count)
                for message in more:
                    wire.send(process.control, message)
            except wire.PeerGoneError:
                given.died_idle(self._children.bury(given))
            else:
                given.call, given.busy = call, True
                given.overdue = (time.monotonic() if opened is None else opened) + given.timeout
                return

    def result(self, session: int) -> Failure | None:
        """Wait for a child. Its death is a failure of the message that it had, if the handler had been called with it."""
        wanted = self._sessions[session]
        wanted.change, wanted.rows = None, b""
        while (reply := self._reply_of(wanted)) is not wire.RETURNED:
            if isinstance(reply, ServerSessionError):
                raise reply
            if not isinstance(reply, Death):
                assert isinstance(reply, Called)
                wanted.change, wanted.rows = reply.change, reply.rows
                return reply.failure
            if wanted.acknowledged:
                return wanted.failure(reply)
            wanted.died_idle(reply)
            assert wanted.call is not None
            self.begin(session, wanted.call, time.monotonic())
        return None

    def several(self, session: int, call: BatchCall) -> Handed:
        """Hand several messages to a child, and wait for it. Its death is a failure of all of them."""
        given = self._sessions[session]
        while True:
            self._hand_over(session, Call(SEVERAL, call.counts[0]), (call,))
            reply = self._reply_of(given)
            if isinstance(reply, ServerSessionError):
                raise reply
            if not isinstance(reply, Death):
                return reply if isinstance(reply, Handed) else Handed()
            if given.acknowledged:
                return Handed(given.failure(reply))
            given.died_idle(reply)

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, once."""
        change, self._sessions[session].change = self._sessions[session].change, None
        return change

    def rows(self, session: int) -> bytes:
        """Return the rows that the handler returned."""
        return self._sessions[session].rows

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""
        return self._sessions[session].acknowledged

    def close(self) -> None:
        """End the children, with what they have started."""
        self._forget_batch()
        self._children.end()
        for session in self._sessions:
            os.close(session.slot)
        self._sessions = []

    def _make_ready(self, session: _Session) -> None:
        self._children.make_ready(session)
        process, output = session.living()
        output.begin(self._label, lambda: session.row, self._private)
        wire.send(process.control, Load(self._services), (self._open_stream(), session.slot))
        session.serving = session.loaded = True

    def _unload(self, session: _Session) -> None:
        session.loaded = False
        if not session.serving:
            return
        process, output = session.living()
        output.end()
        try:
            wire.send_numbers(process.control, 0, UNLOAD, 0, 0)
        except wire.PeerGoneError:
            self._children.bury(session)
        else:
            session.serving = False

    def _reply_of(self, wanted: _Session) -> Called | Handed | wire.CallReturned | Death | ServerSessionError:
        """Wait for the end of a delivery; the session is free then, but for a death that still has to be judged."""
        reply = self._children.reply_of(wanted)
        assert not isinstance(reply, ChildReport), "no batch is delivered as a whole"
        if not isinstance(reply, Death) or wanted.acknowledged:
            wanted.call, wanted.idle_deaths = None, 0
        return reply

    def _open_stream(self) -> int:
        """Return the batch as a file; written once, when the first child needs it."""
        assert self._batch is not None
        if self._stream < 0:
            self._stream = stream_of(self._batch)
        return self._stream

    def _forget_batch(self) -> None:
        if self._stream >= 0:
            os.close(self._stream)
        self._batch, self._stream = None, -1
