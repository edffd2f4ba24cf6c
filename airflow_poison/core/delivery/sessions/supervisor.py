"""The life of one child process, seen from its parent: started when needed, watched, buried, and what its death means for a message."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.core.delivery.handlers import carry_by_value, load_types
from airflow_poison.core.delivery.sessions import output, platform, wire, zygote
from airflow_poison.core.delivery.sessions.output import OutputReader
from airflow_poison.core.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.core.delivery.sessions.wire import NOT_FOUND, READY, Answer, Setup, Tools
from airflow_poison.core.delivery.sessions.words import State, states_of
from airflow_poison.core.errors import HandlerNotFoundError, ServerSessionError
from airflow_poison.core.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.journal import Journal


LONGEST_LEAVE_SECONDS = 5.0
"""How long a child may take from closing its socket to its end."""


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


class Overdue:
    """A deadline.

    :param pause: how long to wait between two looks, seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.pause = 0.5

    def __call__(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._until


class Supervisor:
    """One child at a time, started anew when it has died."""

    def __init__(self, tools: Tools, journal: Journal) -> None:
        load_types(tools.unprocessable)
        self._journal, self._said = journal, output.path_beside(journal.path)
        self._carried = carry_by_value(tools, tools.policy, tools.clock, *tools.unprocessable)
        self.timeout = tools.policy.effective_transaction_timeout.total_seconds()
        self._child: zygote.ChildProcess | None = None
        self._output: OutputReader | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a child."""
        return self._child is not None

    def child(self) -> tuple[zygote.ChildProcess, OutputReader]:
        """Return the child, ready; start one when there is none. Raises HandlerNotFoundError, ServerSessionError."""
        if self._child is not None and self._output is not None:
            return self._child, self._output
        self.start()
        self.started(self.wait(Overdue(LONGEST_IDLE_SECONDS)))
        return self.living()

    def start(self) -> None:
        """Start a child; what it answers first is for ``started``."""
        said = output.create(self._said)
        try:
            child = self._child = zygote.start_child(self._journal.descriptor, self._journal.log_descriptor, said)
        finally:
            os.close(said)
        self._output = OutputReader(child.printed)
        folder = None
        with contextlib.suppress(OSError):
            folder = os.getcwd()  # noqa: PTH109  (a plain string travels)
        wire.send(child.control, Setup(list(sys.path), dict(os.environ), folder, self._carried))

    def started(self, answer: Answer | Death) -> None:
        """Take note of a child's first answer. Raises HandlerNotFoundError, ServerSessionError when it is not ready."""
        if isinstance(answer, Death):
            raise ServerSessionError(
                f"The server session ended ({answer.how}) while it was loading the handler; nothing was delivered by it. Import the handler's "
                f"module on this machine to see why. Its last output:\n{answer.output}"
            )
        _, output = self.living()
        output.end()
        if answer.what == READY:
            return
        self.end()
        if answer.what == NOT_FOUND:
            raise HandlerNotFoundError(answer.text)
        raise ServerSessionError(f"The server session cannot start: {answer.text}")

    def living(self) -> tuple[zygote.ChildProcess, OutputReader]:
        """Return the child, which has been started, and its output."""
        assert self._child is not None
        assert self._output is not None
        return self._child, self._output

    def descriptors(self) -> list[int]:
        """Return what becomes readable when the child says, prints or does anything."""
        child, output = self.living()
        candidates = (child.control.fileno(), child.ended, output.descriptor)
        return [descriptor for descriptor in candidates if descriptor is not None]

    def wait(self, overdue: Any) -> Any:
        """Wait for the child's answer, its death, or until it is overdue; keep reading its output. Returns an Answer or a Death."""
        poll = select.poll()
        for descriptor in self.descriptors():
            poll.register(descriptor, select.POLLIN)
        while True:
            said = self.take({descriptor for descriptor, _ in poll.poll(overdue.pause * 1000)}, overdue)
            if said is not None:
                return said

    def take(self, ready: set[int], overdue: Callable[[], bool]) -> Any:
        """Take what readable descriptors tell: an answer, a Death, or None when the child goes on."""
        child, output = self.living()
        if output.descriptor in ready:
            output.drain()
        if child.control.fileno() in ready:
            try:
                return wire.answer(child.control)
            except wire.PeerGoneError:
                return self.bury(timed_out=False)
        if child.ended in ready:
            return self.bury(timed_out=False)
        return self.bury(timed_out=True) if overdue() else None

    def bury(self, *, timed_out: bool, patience: float = LONGEST_LEAVE_SECONDS) -> Death:
        """Kill what is left of the child, read its last output and say how it ended.

        :param patience: how long to wait for its own end, seconds.
        """
        child, output = self.living()
        if timed_out:
            platform.kill_group(child.pid)
        elif child.ended is not None:
            _wait_for_end(child.ended, patience)
        status = zygote.reap_child(child)
        output.drain()
        tail = output.tail()
        output.end()
        output.close()
        self._child = self._output = None
        return Death(timed_out, _how(status), tail)

    def end(self) -> None:
        """End the child, with what it has started."""
        if self._child is not None and self._output is not None:
            zygote.reap_child(self._child)
            self._output.end()
            self._output.close()
            self._child = self._output = None

    def failure(self, death: Death) -> Failure:
        """Return what a child's death means for the message that it had."""
        trace = cut_front(death.output, MAX_TRACE)
        if death.timed_out:
            text = f"The handler took longer than the transaction timeout of {self.timeout:g} seconds and was killed."
            return Failure(FailureKind.TIMEOUT, "transaction timeout", text, trace)
        return Failure(FailureKind.CRASH, death.how, cut(f"The process that ran the handler ended: {death.how}.", MAX_TEXT), trace)


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


# Progress: no message of a child may stand still longer than the transaction timeout


LONGEST_IDLE_SECONDS = 300.0
"""How long a child may take while no message is with the handler: imports, conversions, rules."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.5, 0.01


class Watch:
    """A stopwatch that starts again whenever the open transaction changes.

    :param words: of the batch; None while the child loads the handler.
    :param timeout: of a transaction, seconds.
    """

    def __init__(self, words: NDArray[np.int32] | None, timeout: float) -> None:
        self._words, self._timeout = words, timeout
        self.pause = min(_LONGEST_PAUSE, max(timeout / 8, _SHORTEST_PAUSE))
        self._progress = self._look()
        self._since = self._looked = time.monotonic()

    def __call__(self) -> bool:
        """Look, at most every half pause, and say whether the transaction has been open for too long."""
        now = time.monotonic()
        if now - self._looked < self.pause / 2:
            return False
        self._looked, seen = now, self._look()
        if seen != self._progress:
            self._progress, self._since = seen, now
            return False
        limit = self._timeout if seen[0] >= 0 else max(self._timeout, LONGEST_IDLE_SECONDS)
        return now - self._since >= limit

    def _look(self) -> tuple[int, int, int]:
        """Say where the child is: the first row of the open transaction, its counts, and how many rows are settled."""
        if self._words is None:
            return (-1, 0, 0)
        states = states_of(self._words)
        is_open = (states == State.IN_FLIGHT) | (states == State.HELD)
        row = int(np.argmax(is_open))
        settled = int(np.count_nonzero((states == State.ENDED) | (states == State.COMMITTED)))
        return (row, int(self._words[row]) >> 8, settled) if is_open[row] else (-1, 0, settled)


def in_flight(words: NDArray[np.int32]) -> int:
    """Return the row that is with the handler, or -1."""
    flying = np.flatnonzero(states_of(words) == State.IN_FLIGHT)
    return int(flying[0]) if len(flying) else -1
