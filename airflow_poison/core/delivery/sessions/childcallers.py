"""An endpoint's server sessions as child processes, all of them watched while one is waited for."""

from __future__ import annotations

import math
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.handlers import load_types
from airflow_poison.core.delivery.sessions import platform, wire
from airflow_poison.core.delivery.sessions.supervisor import LONGEST_IDLE_SECONDS, LONGEST_LEAVE_SECONDS, Death, Supervisor, stream_of
from airflow_poison.core.delivery.sessions.wire import SLOT_BYTES, UNLOAD, Answer, Call, Called, Load, map_slot
from airflow_poison.core.errors import PoisonError, ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.wire import Tools
    from airflow_poison.core.delivery.sessions.zygote import ChildProcess
    from airflow_poison.core.failures import Failure

MAX_IDLE_DEATHS = 3
"""Times in a row that a session may die before it has taken a message."""
_LONGEST_POLL_SECONDS = 3_600.0
_LARGEST_NUMBER = 0x7FFFFFFF


class _Session:
    """A child and what it does now.

    :ivar ready: it has said that it is; ``refused``: why it cannot be.
    :ivar serving: it has a batch; ``loaded``: it has the present one.
    :ivar call: what it was handed, None when it is free.
    :ivar told: what came of it, until it is asked for; ``change``: what its handler did in its conversation, until that is asked for.
    :ivar overdue: when its start or its delivery has taken too long, monotonic seconds.
    :ivar leaving: when a child that has closed its socket has taken too long to end; None: it has not closed it.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.slot = platform.anonymous_file("airflow-poison-slot")
        os.truncate(self.slot, SLOT_BYTES)
        self._taken = map_slot(self.slot)
        self.descriptors: list[int] = []
        self.call: Call | None = None
        self.told: Called | wire.Returned | Death | ServerSessionError | None = None
        self.change: Change | None = None
        self.refused: PoisonError | None = None
        self.number = self.idle_deaths = 0
        self.overdue = 0.0
        self.is_gone()

    def is_gone(self) -> None:
        """Forget the child."""
        self.ready = self.serving = self.loaded = False
        self.leaving: float | None = None

    @property
    def row(self) -> int:
        """The message that it has; -1 when it has none."""
        return -1 if self.call is None else self.call.row

    @property
    def took_it(self) -> bool:
        """Whether the child has begun with what it was handed last."""
        return self._taken[0] == self.number

    @property
    def deadline(self) -> float | None:
        """When something must have happened, monotonic seconds; None while nothing is under way."""
        if self.leaving is not None:
            return self.leaving
        starting = self.supervisor.alive and not self.ready
        return self.overdue if starting or (self.call is not None and self.told is None) else None


class ChildCallers:
    """A supervised child process for each session, started when first needed. All of them are watched while one is waited for."""

    side_by_side = True

    def __init__(self, tools: Tools, journal: Journal) -> None:
        load_types(tools.unprocessable)
        self._tools, self._journal = tools, journal
        self._sessions: list[_Session] = []
        self._poll, self._watched = select.poll(), dict[int, _Session]()
        self._batch: pa.RecordBatch | None = None
        self._stream = -1
        self._label: Callable[[int], str] = lambda _row: ""
        self._services: Mapping[str, Service] | None = None

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int, services: Mapping[str, Service] | None = None) -> None:
        """Go on with another batch; each child gets it with its first message of it. All that are needed start at the same time."""
        for session in self._sessions:
            self._unload(session)
        self._forget_batch()
        self._batch, self._label, self._services = batch, label, services
        while len(self._sessions) < sessions:
            self._sessions.append(_Session(Supervisor(self._tools, self._journal)))
        for session in self._sessions[:sessions]:
            with suppress(PoisonError, wire.PeerGoneError):  # told when the session is needed
                self._start(session)

    def prepare(self, session: int) -> None:
        """Wait until a child has started, and give it the batch; meanwhile the others are watched."""
        given = self._sessions[session]
        while not given.loaded:
            try:
                self._make_ready(given)
            except wire.PeerGoneError:
                _note_idle_death(given, self._bury(given))

    def begin(self, session: int, call: Call, opened: float) -> None:
        """Hand a message to a child; to a new one when it has died meanwhile."""
        given = self._sessions[session]
        given.number = given.number % _LARGEST_NUMBER + 1
        while True:
            self.prepare(session)
            child, _ = given.supervisor.living()
            try:
                wire.send_numbers(child.control, given.number, call.row, call.counts.abort_count, call.counts.move_count)
                if self._services is not None:
                    wire.send(child.control, call.begun)
            except wire.PeerGoneError:
                _note_idle_death(given, self._bury(given))
            else:
                given.call, given.overdue = call, opened + given.supervisor.timeout
                return

    def result(self, session: int) -> Failure | None:
        """Wait for a child. Its death is a failure of the message that it had, if the handler had been called with it."""
        wanted = self._sessions[session]
        wanted.change = None
        while (told := self._told(wanted)) is not wire.RETURNED:
            if isinstance(told, ServerSessionError):
                raise told
            if not isinstance(told, Death):
                assert isinstance(told, Called)
                wanted.change = told.change
                return told.failure
            if wanted.took_it:
                return wanted.supervisor.failure(told)
            _note_idle_death(wanted, told)
            assert wanted.call is not None
            self.begin(session, wanted.call, time.monotonic())
        return None

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, once."""
        change, self._sessions[session].change = self._sessions[session].change, None
        return change

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""
        return self._sessions[session].took_it

    def close(self) -> None:
        """End the children, with what they have started."""
        self._forget_batch()
        for session in self._sessions:
            session.supervisor.end()
            os.close(session.slot)
        self._sessions = []

    # Children ----------------------------------------------------------------------------------------------------

    def _start(self, session: _Session) -> None:
        if session.supervisor.alive or session.refused is not None:
            return
        session.overdue = time.monotonic() + LONGEST_IDLE_SECONDS
        session.supervisor.start()
        session.descriptors = session.supervisor.descriptors()
        for descriptor in session.descriptors:
            self._poll.register(descriptor, select.POLLIN)
            self._watched[descriptor] = session

    def _make_ready(self, session: _Session) -> None:
        self._start(session)
        while not session.ready:
            if session.refused is not None:
                refused, session.refused = session.refused, None
                raise refused
            self._watch()
        child, output = session.supervisor.living()
        output.begin(self._label, lambda: session.row)
        wire.send(child.control, Load(self._services), (self._open_stream(), session.slot))
        session.serving = session.loaded = True

    def _unload(self, session: _Session) -> None:
        session.loaded = False
        if not session.serving:
            return
        child, output = session.supervisor.living()
        output.end()
        try:
            wire.send_numbers(child.control, 0, UNLOAD, 0, 0)
        except wire.PeerGoneError:
            self._bury(session)
        else:
            session.serving = False

    def _bury(self, session: _Session, *, timed_out: bool = False, patience: float = LONGEST_LEAVE_SECONDS) -> Death:
        self._forget_descriptors(session)
        session.is_gone()
        return session.supervisor.bury(timed_out=timed_out, patience=patience)

    def _forget_descriptors(self, session: _Session) -> None:
        for descriptor in session.descriptors:
            self._ignore(descriptor)
        session.descriptors = []

    def _ignore(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # Watching ----------------------------------------------------------------------------------------------------

    def _told(self, wanted: _Session) -> Called | wire.Returned | Death | ServerSessionError:
        """Wait for the end of a delivery; the session is free then, but for a death that still has to be judged."""
        while wanted.told is None:
            self._watch()
        told, wanted.told = wanted.told, None
        if not isinstance(told, Death) or wanted.took_it:
            wanted.call, wanted.idle_deaths = None, 0
        return told

    def _watch(self) -> None:
        """Wait until one of the children says something, prints, ends or is overdue, and take note of that."""
        deadline = min((session.deadline for session in self._sessions if session.deadline is not None), default=math.inf)
        patience = min(max(deadline - time.monotonic(), 0.0), _LONGEST_POLL_SECONDS)
        heard: dict[_Session, list[int]] = {}
        for descriptor, _ in self._poll.poll(patience * 1000 + 1):
            heard.setdefault(self._watched[descriptor], []).append(descriptor)
        for session, descriptors in heard.items():
            self._listen(session, descriptors)
        if time.monotonic() >= deadline:
            self._end_overdue()

    def _listen(self, session: _Session, ready: Sequence[int]) -> None:
        """Take what a child prints first: it was printed before it answered, and before it ended."""
        child, output = session.supervisor.living()
        if output.descriptor in ready:
            output.drain()
        if child.control.fileno() in ready and session.leaving is None:
            try:
                self._answered(session, wire.answer(child.control))
            except wire.PeerGoneError:
                self._leaves(session, child)
        if child.ended in ready and session.supervisor.alive:
            self._died(session)

    def _answered(self, session: _Session, answer: Called | wire.Returned | Answer) -> None:
        if not isinstance(answer, Answer):
            session.told = answer
        elif not session.ready:
            self._started(session, answer)
        else:
            self._bury(session, patience=0.0)
            session.told = ServerSessionError(
                f"The server session failed by itself, not by a message; nothing is lost, run the task again. {answer.text}"
            )

    def _leaves(self, session: _Session, child: ChildProcess) -> None:
        """Its socket is closed: it is about to end. Nobody else waits for that."""
        self._ignore(child.control.fileno())
        if child.ended is None:
            self._died(session)
        else:
            session.leaving = time.monotonic() + LONGEST_LEAVE_SECONDS

    def _died(self, session: _Session, *, timed_out: bool = False, patience: float = LONGEST_LEAVE_SECONDS) -> None:
        was_ready, busy = session.ready, session.call is not None and session.told is None
        death = self._bury(session, timed_out=timed_out, patience=patience)
        if not was_ready:
            self._started(session, death)
        elif busy:
            session.told = death

    def _started(self, session: _Session, answer: Answer | Death) -> None:
        """Take note of a child's first answer; what is wrong with it is told when the session is needed."""
        try:
            session.supervisor.started(answer)
        except PoisonError as error:
            session.refused = error
            self._forget_descriptors(session)
        else:
            session.ready = True

    def _end_overdue(self) -> None:
        """End what is overdue, unless it has just spoken."""
        now = time.monotonic()
        for session in self._sessions:
            if session.deadline is None or session.deadline > now:
                continue
            if session.leaving is not None:
                self._died(session, patience=0.0)
            elif not _has_spoken(session.supervisor.living()[0]):
                self._died(session, timed_out=True)

    # Batches -----------------------------------------------------------------------------------------------------

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


def _has_spoken(child: ChildProcess) -> bool:
    poll = select.poll()
    poll.register(child.control, select.POLLIN)
    return bool(poll.poll(0))


def _note_idle_death(session: _Session, death: Death) -> None:
    """Raise ServerSessionError when it was one too many."""
    session.idle_deaths += 1
    if session.idle_deaths >= MAX_IDLE_DEATHS:
        raise ServerSessionError(
            f"The server session ended {MAX_IDLE_DEATHS} times in a row ({death.how}) before it had taken a message. "
            f"Look for what ends it at this machine (memory limits, an administrator). Its last output:\n{death.output}"
        )
