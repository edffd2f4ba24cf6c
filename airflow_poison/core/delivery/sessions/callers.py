"""Callers: what an endpoint's server sessions do one delivery at a time. Here inline, one after the other; ``childcallers.py`` has processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.delivery.handlers import load_handler
from airflow_poison.core.delivery.sessions.child import load_types
from airflow_poison.core.delivery.sessions.failurelog import FailureLog
from airflow_poison.core.delivery.sessions.work import Endpoint, Views

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_poison.core.delivery.sessions.child import Call, Tools
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.failures import Failure


class Callers(Protocol):
    """The server sessions of one endpoint; numbered from 0."""

    side_by_side: bool
    """Whether a message is with its handler as soon as it has been handed over."""

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int) -> None:
        """Go on with another batch; nothing is under way.

        :param label: names the message of a row, for the log.
        :param sessions: how many sessions have something to do.
        """
        ...

    def prepare(self, session: int) -> None:
        """Make a session that is free ready to take a message. Raises ServerSessionError, HandlerNotFoundError."""
        ...

    def begin(self, session: int, call: Call, opened: float) -> None:
        """Hand a message to a session that is ready. Raises ServerSessionError: no handler has seen it.

        :param opened: when its transaction was begun, monotonic seconds.
        """
        ...

    def result(self, session: int) -> Failure | None:
        """Wait for the end of what a session does; None when the handler returned. Raises ServerSessionError."""
        ...

    def has_taken(self, session: int) -> bool:
        """Whether a handler has been called with what a session was handed last."""
        ...

    def close(self) -> None:
        """End all sessions."""
        ...


class InlineCallers:
    """Calls the handler in this process, when its result is asked for."""

    side_by_side = False

    def __init__(self, tools: Tools, journal: Journal) -> None:
        handler, types = load_handler(tools.handler), load_types(tools.unprocessable)
        log = FailureLog(journal.log_descriptor)
        self._endpoint = Endpoint(tools.policy, handler=handler, clock=tools.clock, log=log, unprocessable=types)
        self._begun: dict[int, Call] = {}
        self._views: Views | None = None

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int) -> None:  # noqa: ARG002  (the seam's signature)
        """Go on with another batch."""
        self._views = Views(batch)

    def prepare(self, session: int) -> None:
        """There is nothing to start."""

    def begin(self, session: int, call: Call, opened: float) -> None:  # noqa: ARG002  (nothing here ends a handler)
        """Remember the call."""
        self._begun[session] = call

    def result(self, session: int) -> Failure | None:
        """Call the handler."""
        call = self._begun.pop(session)
        assert self._views is not None, "a batch is loaded before it is called for"
        return self._endpoint.call(self._views.message(call.row, call.counts.abort_count, call.counts.move_count))

    def has_taken(self, session: int) -> bool:  # noqa: ARG002  (the seam's signature)
        """Always: it is called at once."""
        return True

    def close(self) -> None:
        """There is nothing to end."""
