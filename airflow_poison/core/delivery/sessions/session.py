"""Open a server session: deliver Arrow batches to a handler, in a supervised child process or inline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord, ServerSession, carried_report
from airflow_poison.core.delivery.sessions.failurelog import FailureReader
from airflow_poison.core.delivery.sessions.journal import Journal
from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
from airflow_poison.core.delivery.sessions.wire import Tools
from airflow_poison.core.delivery.sessions.work import BatchWork, Views, endpoint_of
from airflow_poison.core.errors import SettingError
from airflow_poison.core.policies.policy import FIRST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.conversations.dialog_state import DialogState
    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.handlers import HandlerLike, HandlerRef
    from airflow_poison.core.delivery.sessions.batchrecord import BatchReport
    from airflow_poison.core.delivery.sessions.host import Callers
    from airflow_poison.core.delivery.sessions.wire import Call
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.policy import Opening, Policy


def open_session(
    *,
    policy: Policy,
    handler: HandlerLike | HandlerRef,
    journal_folder: str | Path,
    partition: str,
    isolation: str = "process",
    carry: RecoveredAttempts | str | Path | None = None,
    unprocessable: tuple[str | type[BaseException], ...] = (),
    clock: Clock | None = None,
    opening: Opening = FIRST,
    stop_file: str | None = None,
    record_all: bool = False,
    singly: bool = False,
    forced: bool = False,
    at_hand: DialogState | None = None,
) -> ServerSession:
    """Open a server session.

    :param handler: as in ``resolve_handler``.
    :param journal_folder: an existing folder on a local disk; it gets one journal file and one log.
    :param partition: names the journal.
    :param isolation: ``process``, or ``none``: inline, for trusted handlers and debugging. Then a crash ends the worker, nothing ends a
        handler that hangs, and what it prints goes where the worker's output goes.
    :param carry: what earlier tries did, or the path of a saved one; committed and ended messages are not delivered.
    :param unprocessable: exception types, or ``module:Type``, that mean what ``Unprocessable`` means.
    :param opening: what the endpoint finds.
    :param stop_file: where endpoints of the same queue tell each other that one has halted; None: there is only one.
    :param record_all: also tell the routine events of every delivery, where the endpoint knows them.
    :param singly: one message at a time, however many sessions the policy would have.
    :param forced: what is about to be delivered is on disk first (``Journal``).
    :param at_hand: the conversations of the messages; None: the queue has none.
    :raises HandlerNotFoundError: the handler or an exception type cannot be used.
    :raises ClaimLostError: the journal folder is gone.
    """
    check_isolation(isolation)
    reference = resolve_handler(handler)
    known = RecoveredAttempts.load(Path(carry)) if isinstance(carry, (str, Path)) else carry or RecoveredAttempts()
    journal = Journal(Path(journal_folder), partition, forced=forced)
    try:
        tools = Tools(policy, reference, clock or SystemClock(), unprocessable, opening.queue)
        if not policy.stateless or at_hand is not None:
            from airflow_poison.core.delivery.sessions.endpoint import EndpointSession

            callers = InlineCallers(tools, journal) if isolation == "none" else _child_callers(tools, journal)
            return EndpointSession(
                tools, callers, journal, known, opening=opening, stop_file=stop_file, record_all=record_all, singly=singly, at_hand=at_hand
            )
        if isolation == "none":
            return InlineSession(tools, journal, known)
        from airflow_poison.core.delivery.sessions.child_sessions import SupervisedSession

        return SupervisedSession(tools, journal, known)
    except BaseException:
        journal.close()
        raise


def _child_callers(tools: Tools, journal: Journal) -> Callers:
    from airflow_poison.core.delivery.sessions.child_sessions import ChildCallers

    return ChildCallers(tools, journal)


def check_isolation(isolation: str) -> None:
    """Raise SettingError unless it is ``process`` or ``none``."""
    if isolation not in {"process", "none"}:
        raise SettingError("isolation", isolation, "'process' or 'none'")


# Inline


class InlineSession(ServerSession):
    """A server session without a process of its own: the handler runs in the worker itself, with the same journal and the same report.

    For trusted handlers and for debugging. A crash ends the worker, a hang is not ended by anybody; the journal still tells the next try.
    """

    def __init__(self, tools: Tools, journal: Journal, carry: RecoveredAttempts) -> None:
        self._journal, self._carry, self._halted = journal, carry, False
        self._reader = FailureReader(journal.log_descriptor)
        self._endpoint = endpoint_of(tools, journal.log_descriptor)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in this process."""
        report = carried_report(batch, self._carry, halted=self._halted)
        if report is None:
            record = BatchRecord(batch, self._journal, self._reader, self._carry)
            self._halted = self._endpoint.deliver(BatchWork(batch, record.section.words, record.section.number))
            record.read_log()
            report = record.report(halted=self._halted)
        self._halted = report.halted
        return report

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()


class InlineCallers:
    """Calls the handler in this process, when its result is asked for."""

    side_by_side = False

    def __init__(self, tools: Tools, journal: Journal) -> None:
        self._endpoint = endpoint_of(tools, journal.log_descriptor)
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
