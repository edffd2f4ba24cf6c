"""Callers: what an endpoint's server sessions do one delivery at a time. Here inline, one after the other; ``childcallers.py`` has processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.delivery.handlers import load_handler
from airflow_poison.core.delivery.sessions.child import load_types
from airflow_poison.core.delivery.sessions.failurelog import FailureLog
from airflow_poison.core.delivery.sessions.work import Endpoint, Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.sessions.child import Call, Tools
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.failures import Failure


class Callers(Protocol):
    """The server sessions of one endpoint; numbered from 0."""

    side_by_side: bool
    """Whether a message is with its handler as soon as it has been handed over."""

    def load(self, batch: pa.RecordBatch, label: Callable[[int], str], sessions: int, services: Mapping[str, Service] | None = None) -> None:
        """Go on with another batch; nothing is under way.

        :param label: names the message of a row, for the log.
        :param sessions: how many sessions have something to do.
        :param services: of the queue; None: it has no conversations.
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

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation, in the delivery whose result was taken last; None: nothing."""
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
        self._endpoint = Endpoint(tools.policy, handler=handler, clock=tools.clock, log=log, unprocessable=types, queue=tools.queue)
        self._begun: dict[int, Call] = {}
        self._changes: dict[int, Change | None] = {}
        self._views: Views | None = None
        self._services: Mapping[str, Service] = {}

    def load(
        self,
        batch: pa.RecordBatch,
        label: Callable[[int], str],  # noqa: ARG002  (the seam's signature)
        sessions: int,  # noqa: ARG002  (the seam's signature)
        services: Mapping[str, Service] | None = None,
    ) -> None:
        """Go on with another batch."""
        self._views, self._services = Views(batch, self._endpoint.queue), services or {}

    def prepare(self, session: int) -> None:
        """There is nothing to start."""

    def begin(self, session: int, call: Call, opened: float) -> None:  # noqa: ARG002  (nothing here ends a handler)
        """Remember the call."""
        self._begun[session] = call

    def result(self, session: int) -> Failure | None:
        """Call the handler."""
        call = self._begun.pop(session)
        assert self._views is not None, "a batch is loaded before it is called for"
        message, change = self._views.message(call.row, call.counts.abort_count, call.counts.move_count), None
        if call.begun is None:
            failure = self._endpoint.call(message)
        else:
            failure, change = self._endpoint.call_in_dialog(message, call.begun, self._services)
        self._changes[session] = change
        return failure and self._endpoint.tell(failure)

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation."""
        return self._changes.pop(session, None)

    def has_taken(self, session: int) -> bool:  # noqa: ARG002  (the seam's signature)
        """Always: it is called at once."""
        return True

    def close(self) -> None:
        """There is nothing to end."""
