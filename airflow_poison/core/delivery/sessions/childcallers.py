"""An endpoint's server sessions as child processes, all of them watched while one is waited for."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.handlers import load_types
from airflow_poison.core.delivery.sessions import platform, wire
from airflow_poison.core.delivery.sessions.supervisor import Child, Children, Death, idle_limit_reached, stream_of
from airflow_poison.core.delivery.sessions.wire import SLOT_BYTES, UNLOAD, Answer, Call, Called, Load, map_slot
from airflow_poison.core.errors import PoisonError, ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.wire import Tools
    from airflow_poison.core.failures import Failure

_LARGEST_NUMBER = 0x7FFFFFFF


class _Session(Child):
    """A child that is handed one message at a time.

    :ivar serving: it has a batch; ``loaded``: it has the present one.
    :ivar call: what it was handed, None when it is free.
    :ivar change: what its handler did in its conversation, until that is asked for.
    """

    def __init__(self, tools: Tools, journal: Journal) -> None:
        super().__init__(tools, journal)
        self.slot = platform.anonymous_file("airflow-poison-slot")
        os.truncate(self.slot, SLOT_BYTES)
        self._taken = map_slot(self.slot)
        self.call: Call | None = None
        self.change: Change | None = None
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

    def __init__(self, tools: Tools, journal: Journal) -> None:
        load_types(tools.unprocessable)
        self._tools, self._journal = tools, journal
        self._sessions: list[_Session] = []
        self._children = Children()
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
            self._sessions.append(_Session(self._tools, self._journal))
            self._children.add(self._sessions[-1])
        for session in self._sessions[:sessions]:
            with suppress(PoisonError, wire.PeerGoneError):  # told when the session is needed
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
        given = self._sessions[session]
        given.number = given.number % _LARGEST_NUMBER + 1
        while True:
            self.prepare(session)
            process, _ = given.living()
            try:
                wire.send_numbers(process.control, given.number, call.row, call.counts.abort_count, call.counts.move_count)
                if self._services is not None:
                    wire.send(process.control, call.begun)
            except wire.PeerGoneError:
                _note_idle_death(given, self._children.bury(given))
            else:
                given.call, given.busy, given.overdue = call, True, opened + given.timeout
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
                return wanted.failure(told)
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
        self._children.end()
        for session in self._sessions:
            os.close(session.slot)
        self._sessions = []

    def _make_ready(self, session: _Session) -> None:
        self._children.make_ready(session)
        process, output = session.living()
        output.begin(self._label, lambda: session.row)
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

    def _told(self, wanted: _Session) -> Called | wire.Returned | Death | ServerSessionError:
        """Wait for the end of a delivery; the session is free then, but for a death that still has to be judged."""
        told = self._children.told(wanted)
        assert not isinstance(told, Answer), "no batch is delivered as a whole"
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
    """Raise ServerSessionError when it was one too many."""
    session.idle_deaths += 1
    if (error := idle_limit_reached(session.idle_deaths, death, "before it had taken a message")) is not None:
        raise error
