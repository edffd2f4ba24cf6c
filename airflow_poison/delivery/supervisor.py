"""Child processes, seen from their parent: started when needed, watched, buried; and how one ended, as a failure."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.delivery import output, platform, wire, zygote
from airflow_poison.delivery.handlers import carry_by_value, load_types
from airflow_poison.delivery.output import OutputReader
from airflow_poison.delivery.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.delivery.wire import DONE, NOT_FOUND, READY, Called, ChildReport, Handed, Setup
from airflow_poison.values.errors import HandlerNotFoundError, PoisonError, ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_poison.delivery.child_sessions import Watch
    from airflow_poison.delivery.journal import Journal
    from airflow_poison.delivery.stage import StageJob


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
    :ivar told: its answer, until it is read.
    :ivar overdue: when its start or what it does has taken too long, monotonic seconds.
    :ivar watch: says whether it has, in place of that; None: there is a fixed time.
    :ivar leaving: when a child that has closed its socket has taken too long to end; None: it has not closed it.
    """

    def __init__(self, job: StageJob, journal: Journal) -> None:
        load_types(job.unprocessable)
        self._journal, self._said = journal, output.path_beside(journal.path)
        self._carried = carry_by_value(job, job.policy, job.clock, *job.unprocessable)
        self._takes_batches = job.batching is not None
        self.timeout = job.policy.effective_transaction_timeout.total_seconds()
        self._process: zygote.ChildProcess | None = None
        self._output: OutputReader | None = None
        self.told: ChildReport | Called | Handed | wire.CallReturned | Death | ServerSessionError | None = None
        self.refused: PoisonError | None = None
        self.overdue = 0.0
        self.watch: Watch | None = None
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
        if self._takes_batches:
            zygote.preload("pandas")  # Arrow looks for it when it makes columns of Python values
        said = output.create(self._said)
        try:
            journal = self._journal
            rows = () if journal.rows_descriptor < 0 else (journal.rows_descriptor,)
            process = self._process = zygote.start_child(journal.descriptor, journal.log_descriptor, said, *rows)
        finally:
            os.close(said)
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

    def told(self, child: Child) -> ChildReport | Called | Handed | wire.CallReturned | Death | ServerSessionError:
        """Wait for the end of a child's call."""
        while child.told is None:
            self._watch()
        told, child.told = child.told, None
        return told

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
            child.told = ServerSessionError(
                f"The server session failed by itself, not by a message; nothing is lost, run the task again. {answer.text}"
            )
        else:
            child.told, child.busy = answer, False

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
            child.told = death

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


def check_idle_deaths(deaths: int, death: Death, when: str) -> None:
    """Raise ServerSessionError for a session that has died too often in a row without having got on.

    :param when: it died, in words.
    """
    if deaths >= MAX_IDLE_DEATHS:
        raise ServerSessionError(
            f"The server session ended {MAX_IDLE_DEATHS} times in a row ({death.how}) {when}. "
            f"Look for what ends it at this machine (memory limits, an administrator). Its last output:\n{death.output}"
        )


def stream_of(batch: pa.RecordBatch) -> int:
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
