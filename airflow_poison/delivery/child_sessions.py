"""Server sessions in child processes, handed whole batches or one message at a time; a child's death is charged here to the message that it had.

Whole batches are for policies whose decisions depend on the message alone (``policy.stateless``): the parent watches the child's progress in the
journal, and charges what it was doing when it died. ``endpoint.py`` serves the others.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.delivery import platform, wire
from airflow_poison.delivery.failurelog import FailureLog, Rollback
from airflow_poison.delivery.handlers import load_types
from airflow_poison.delivery.journal import MessageState, attempts_of, left_open, pending, settle, states_of
from airflow_poison.delivery.session import BatchRecord, BatchReport, StatelessSession
from airflow_poison.delivery.supervisor import LONGEST_IDLE_SECONDS, Child, Children, Death, check_idle_deaths, stream_of
from airflow_poison.delivery.verdicts import output_of
from airflow_poison.delivery.wire import SEVERAL, SLOT_BYTES, UNLOAD, BatchCall, Call, Called, ChildReport, Handed, Load, Task, map_slot
from airflow_poison.values.errors import PoisonError, ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.journal import Journal
    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.delivery.verdicts import PrivateBatch
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service
    from airflow_poison.values.failures import Failure


_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.5, 0.01


@dataclass(slots=True)
class _Tally:
    restarts: int = 0
    crashes: int = 0
    timeouts: int = 0
    idle_deaths: int = 0


class SupervisedSession(StatelessSession):
    """A server session in a child process."""

    def __init__(self, job: StageJob, journal: Journal, carry: RecoveredAttempts) -> None:
        super().__init__(job, journal, carry)
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
        record, private = BatchRecord(batch, self._journal, self._reader, self._carry), output_of(self._masking, batch)
        stream = stream_of(batch)
        tally = _Tally()
        try:
            while True:
                before = record.words.copy()
                answer = self._attempt(stream, record, private)
                if isinstance(answer, ChildReport):
                    break
                self._charge(record, answer, tally)
                self._limit_restarts(before, record, answer, tally)
        finally:
            os.close(stream)
        counts, searched = (tally.restarts, tally.crashes, tally.timeouts), record.searched()
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
        child.busy, child.watch = True, Watch(record.words, child.timeout)
        told = self._children.told(child)
        if isinstance(told, ServerSessionError):
            raise told
        assert isinstance(told, ChildReport | Death)
        if isinstance(told, ChildReport):
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
        settle(record.words, MessageState.TIMED_OUT if death.timed_out else MessageState.CRASHED)
        record.read_log()
        tally.restarts += 1

    def _limit_restarts(self, before: NDArray[np.int32], record: BatchRecord, death: Death, tally: _Tally) -> None:
        """Every restart is paid for by a message that moved; otherwise only a few are allowed."""
        if (before != record.words).any():
            tally.idle_deaths = 0
            return
        tally.idle_deaths += 1
        when = f"with no message in its handler and {len(pending(record.words))} left to deliver"
        check_idle_deaths(tally.idle_deaths, death, when)


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

    def _look(self) -> tuple[int, int, int, int]:
        """Say where the child is: the first row of the open transaction, its counts, how many rows are settled, and how many are in a batch."""
        states = states_of(self._words)
        in_batch = states == MessageState.IN_BATCH
        is_open = (states == MessageState.IN_FLIGHT) | (states == MessageState.HELD) | in_batch
        row = int(np.argmax(is_open))
        settled = int(np.count_nonzero((states == MessageState.ENDED) | (states == MessageState.COMMITTED)))
        return (row, int(self._words[row]) >> 8, settled, int(np.count_nonzero(in_batch))) if is_open[row] else (-1, 0, settled, 0)


def in_flight(words: NDArray[np.int32]) -> int:
    """Return the row that is with the handler, or -1."""
    flying = np.flatnonzero(states_of(words) == MessageState.IN_FLIGHT)
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
        self.number = self.idle_deaths = 0

    def is_gone(self) -> None:
        """Forget the process."""
        super().is_gone()
        self.serving = self.loaded = False

    @property
    def row(self) -> int:
        """The message that it has; -1 when it has none."""
        return -1 if self.call is None else self.call.row

    @property
    def took_it(self) -> bool:
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
                _note_idle_death(given, self._children.bury(given))

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
                _note_idle_death(given, self._children.bury(given))
            else:
                given.call, given.busy = call, True
                given.overdue = (time.monotonic() if opened is None else opened) + given.timeout
                return

    def result(self, session: int) -> Failure | None:
        """Wait for a child. Its death is a failure of the message that it had, if the handler had been called with it."""
        wanted = self._sessions[session]
        wanted.change, wanted.rows = None, b""
        while (told := self._told(wanted)) is not wire.RETURNED:
            if isinstance(told, ServerSessionError):
                raise told
            if not isinstance(told, Death):
                assert isinstance(told, Called)
                wanted.change, wanted.rows = told.change, told.rows
                return told.failure
            if wanted.took_it:
                return wanted.failure(told)
            _note_idle_death(wanted, told)
            assert wanted.call is not None
            self.begin(session, wanted.call, time.monotonic())
        return None

    def several(self, session: int, call: BatchCall) -> Handed:
        """Hand several messages to a child, and wait for it. Its death is a failure of all of them."""
        given = self._sessions[session]
        while True:
            self._hand_over(session, Call(SEVERAL, call.counts[0]), (call,))
            told = self._told(given)
            if isinstance(told, ServerSessionError):
                raise told
            if not isinstance(told, Death):
                return told if isinstance(told, Handed) else Handed()
            if given.took_it:
                return Handed(given.failure(told))
            _note_idle_death(given, told)

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, once."""
        change, self._sessions[session].change = self._sessions[session].change, None
        return change

    def rows(self, session: int) -> bytes:
        """Return the rows that the handler returned."""
        return self._sessions[session].rows

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""
        return self._sessions[session].took_it

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

    def _told(self, wanted: _Session) -> Called | Handed | wire.CallReturned | Death | ServerSessionError:
        """Wait for the end of a delivery; the session is free then, but for a death that still has to be judged."""
        told = self._children.told(wanted)
        assert not isinstance(told, ChildReport), "no batch is delivered as a whole"
        if not isinstance(told, Death) or wanted.took_it:
            wanted.call, wanted.idle_deaths = None, 0
        return told

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


def _note_idle_death(session: _Session, death: Death) -> None:
    session.idle_deaths += 1
    check_idle_deaths(session.idle_deaths, death, "before it had taken a message")
