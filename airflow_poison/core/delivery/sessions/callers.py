"""Callers: what an endpoint's server sessions do one delivery at a time. A child process each; or inline, one after the other."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.delivery.handlers import load_handler
from airflow_poison.core.delivery.sessions import wire
from airflow_poison.core.delivery.sessions.child import Call, Called, Load, load_types
from airflow_poison.core.delivery.sessions.failurelog import FailureLog
from airflow_poison.core.delivery.sessions.supervisor import Death, Supervisor, stream_of
from airflow_poison.core.delivery.sessions.work import Endpoint
from airflow_poison.core.errors import ServerSessionError
from airflow_poison.core.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_poison.core.delivery.sessions.child import Tools
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.failures import Failure

MAX_IDLE_DEATHS = 3
"""Times in a row that a session may die before it has taken a message."""


class Callers(Protocol):
    """The server sessions of one endpoint; numbered from 0."""

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str]) -> None:
        """Go on with another batch; nothing is under way.

        :param label: names the message of a row, for the log.
        """
        ...

    def begin(self, session: int, call: Call) -> None:
        """Hand a message to a session that is free."""
        ...

    def result(self, session: int) -> Failure | None:
        """Wait for the end of what a session does; None when the handler returned."""
        ...

    def close(self) -> None:
        """End all sessions."""
        ...


class InlineCallers:
    """Calls the handler in this process, when its result is asked for."""

    def __init__(self, tools: Tools, journal: Journal) -> None:
        handler, types = load_handler(tools.handler), load_types(tools.unprocessable)
        log = FailureLog(journal.log_descriptor)
        self._endpoint = Endpoint(tools.policy, handler=handler, clock=tools.clock, log=log, unprocessable=types)
        self._begun: dict[int, Call] = {}
        self._columns = Message.columns(None)

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str]) -> None:  # noqa: ARG002  (the seam's signature)
        """Go on with another batch."""
        self._columns = Message.columns(batch)

    def begin(self, session: int, call: Call) -> None:
        """Remember the call."""
        self._begun[session] = call

    def result(self, session: int) -> Failure | None:
        """Call the handler."""
        call = self._begun.pop(session)
        return self._endpoint.call(Message.view(self._columns, call.row, call.counts.abort_count, call.counts.move_count))

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(slots=True)
class _Session:
    """A child and what it does now.

    :param row: the message that it has, -1 when it is free.
    :param overdue: when the delivery has taken too long, monotonic seconds.
    """

    supervisor: Supervisor
    row: int = -1
    overdue: float = 0.0
    loaded: bool = False
    told: Called | Death | None = None


class ChildCallers:
    """A supervised child process for each session, started when first needed. All of them are watched while one is waited for."""

    def __init__(self, tools: Tools, journal: Journal, number: int) -> None:
        self._sessions = [_Session(Supervisor(tools, journal)) for _ in range(number)]
        self._batch: pa.RecordBatch | None = None
        self._stream = -1
        self._label: Callable[[int], str] = lambda _row: ""

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str]) -> None:
        """Go on with another batch; each child gets it with its first message of it."""
        self._forget_batch()
        self._batch, self._label = batch, label
        for session in self._sessions:
            session.loaded = False

    def begin(self, session: int, call: Call) -> None:
        """Hand a message to a child; start one when there is none. Raises ServerSessionError when it cannot be kept running."""
        given = self._sessions[session]
        death: Death | None = None
        for _ in range(MAX_IDLE_DEATHS):
            try:
                self._send(given, call)
            except wire.PeerGoneError:
                death = given.supervisor.bury(timed_out=False)
                given.loaded = False
            else:
                return
        assert death is not None
        raise ServerSessionError(
            f"The server session ended {MAX_IDLE_DEATHS} times in a row ({death.how}) before it had taken a message. "
            f"Look for what ends it at this machine (memory limits, an administrator). Its last output:\n{death.output}"
        )

    def result(self, session: int) -> Failure | None:
        """Wait for a child; a death is a failure of the message that it had."""
        wanted = self._sessions[session]
        while wanted.told is None:
            self._watch([busy for busy in self._sessions if busy.row >= 0 and busy.told is None])
        told, wanted.told, wanted.row = wanted.told, None, -1
        if isinstance(told, Death):
            return wanted.supervisor.failure(told)
        return told.failure

    def close(self) -> None:
        """End the children, with what they have started."""
        for session in self._sessions:
            session.supervisor.end()
        self._forget_batch()

    def _send(self, session: _Session, call: Call) -> None:
        if not session.supervisor.alive:
            session.loaded = False
        child, output = session.supervisor.child()
        if not session.loaded:
            output.begin(self._label, lambda: session.row)
            wire.send(child.control, Load(), (self._open_stream(),))
            session.loaded = True
        wire.send(child.control, call)
        session.row, session.overdue = call.row, time.monotonic() + session.supervisor.timeout

    def _watch(self, busy: Sequence[_Session]) -> None:
        """Wait until one of the children says something, dies, or is overdue; drain what all of them print."""
        poll = select.poll()
        for session in busy:
            for descriptor in session.supervisor.descriptors():
                poll.register(descriptor, select.POLLIN)
        left = min(session.overdue for session in busy) - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(max(left, 0.0) * 1000 + 1)}
        for session in busy:
            said = session.supervisor.take(ready, lambda late=session.overdue: time.monotonic() >= late)  # type: ignore[misc]  # a bound default
            if said is None:
                continue
            if isinstance(said, Death):
                session.loaded = False
            elif not isinstance(said, Called):
                session.supervisor.end()
                raise ServerSessionError(f"The server session failed by itself, not by a message; nothing is lost, run the task again. {said.text}")
            session.told = said

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
