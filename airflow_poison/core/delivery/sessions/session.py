"""Server sessions: deliver Arrow batches to a handler, in a supervised child process or inline; what one is, and its record of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.delivery.sessions.failurelog import FailureReader
from airflow_poison.core.delivery.sessions.journal import COUNT_MASK, STATE_MASK, Journal, State, state_of, states_of
from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
from airflow_poison.core.delivery.sessions.wire import Tools
from airflow_poison.core.delivery.sessions.work import BatchWork, Views, endpoint_of
from airflow_poison.core.errors import InputError, SettingError
from airflow_poison.core.policies.opening import FIRST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.conversations.dialog_state import DialogState
    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.handlers import HandlerLike, HandlerRef
    from airflow_poison.core.delivery.sessions.dialogs import Conversed
    from airflow_poison.core.delivery.sessions.failurelog import Rollback
    from airflow_poison.core.delivery.sessions.host import Callers
    from airflow_poison.core.delivery.sessions.wire import Call
    from airflow_poison.core.events import Event
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.decisions import Halt
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy


def lookup_ids_of(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the lookup ids of a batch. Raises InputError when one is null."""
    column = batch.column("lookup_id")
    if column.null_count:
        raise InputError(
            f"{column.null_count} of {batch.num_rows} messages have no lookup id; attempts are journaled by it. Number the messages before delivery."
        )
    ids: NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return ids


class BatchRecord:
    """One batch in the journal.

    :param journal: where its section is begun.
    :param reader: of the journal's log.
    :param again: the rows that are delivered again, although an earlier try had committed them.
    """

    def __init__(self, batch: pa.RecordBatch, journal: Journal, reader: FailureReader, carry: RecoveredAttempts, again: Sequence[int] = ()) -> None:
        self.lookup_ids = lookup_ids_of(batch)
        self.initial = carry.words_for(self.lookup_ids)
        self.initial[list(again)] &= COUNT_MASK
        self._carry, self._reader = carry, reader
        self.section = journal.append(self.lookup_ids, self.initial)
        self.words = self.section.as_array()
        self._rollbacks: list[Rollback] = []

    def label(self, row: int) -> str:
        """Name the message of a row, for the log."""
        return f"[message {self.lookup_ids[row]}] " if 0 <= row < len(self.lookup_ids) else ""

    def read_log(self) -> None:
        """Read what has been appended since the last time."""
        self._rollbacks += (entry for entry in self._reader.news() if entry.section == self.section.number)

    def report(
        self,
        *,
        halted: bool,
        restarts: int = 0,
        crashes: int = 0,
        timeouts: int = 0,
        decided: Decided | None = None,
        conversed: Conversed | None = None,
    ) -> BatchReport:
        """Return the report; the words are a copy."""
        return BatchReport(report_words(self.words), self._failures(), halted, restarts, crashes, timeouts, decided, conversed)

    def _failures(self) -> dict[int, Failure]:
        failures: dict[int, Failure] = {}
        if self._carry.failures:
            for row in np.flatnonzero(self.initial):
                known = self._carry.failures.get(int(self.lookup_ids[row]))
                if known is not None:
                    failures[int(row)] = known
        failures.update((entry.row, entry.failure) for entry in self._rollbacks)
        committed = np.isin(states_of(self.words), (State.COMMITTED, State.CARRIED)).tolist()
        return {row: failure for row, failure in failures.items() if not committed[row]}


def carried_report(batch: pa.RecordBatch, carry: RecoveredAttempts, *, halted: bool) -> BatchReport | None:
    """Return the report of a batch that needs no delivery (settled, empty, or behind a halt); None when it needs one."""
    ids = lookup_ids_of(batch)
    words = carry.words_for(ids)
    if not halted:
        states = states_of(words)
        before_halt = words[: int(np.argmax(states == State.HALTED))] if (states == State.HALTED).any() else words
        halted = len(before_halt) < len(words)
        if (~np.isin(states_of(before_halt), (State.CARRIED, State.ENDED))).any():
            return None
    failures = {
        int(row): carry.failures[int(ids[row])]
        for row in np.flatnonzero(words)
        if int(ids[row]) in carry.failures and state_of(int(words[row])) is not State.CARRIED
    }
    return BatchReport(report_words(words), failures, halted)


@dataclass(frozen=True, slots=True)
class Decided:
    """What an endpoint decided about a batch, where the decisions cannot be made again from the words.

    :param ends: what became of each row that is not committed and was received.
    :param halt: what ended receiving in this batch.
    :param events: the routine events of every delivery, in order; empty when they were not asked for.
    """

    ends: Mapping[int, End]
    halt: Halt | None = None
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of each message of one batch.

    :param words: int32, one per row, see journal.py; never in flight or held.
    :param failures: the last failure by row, of messages that are not committed.
    :param halted: whether the endpoint has halted, here or in an earlier batch.
    :param restarts: children started anew within this batch.
    :param crashes: deliveries of this batch that ended a child.
    :param timeouts: deliveries of this batch that took longer than the transaction timeout.
    :param decided: None where the words say it all.
    :param conversed: what became of conversations; None: the queue has none.
    """

    words: NDArray[np.int32]
    failures: dict[int, Failure] = field(default_factory=dict)
    halted: bool = False
    restarts: int = 0
    crashes: int = 0
    timeouts: int = 0
    decided: Decided | None = None
    conversed: Conversed | None = None


def report_words(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return words for a report: what an earlier try committed is committed."""
    return np.where((words & STATE_MASK) == State.CARRIED, words - State.CARRIED + State.COMMITTED, words).astype(np.int32)


class ServerSession(ABC):
    """Delivers batches, one after the other, and keeps the policy's memory between them."""

    @abstractmethod
    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended.

        :param batch: columns of ``message_schema()`` and ``move_count``, rows in receive order, lookup ids not null.
        :raises ServerSessionError: the child cannot be kept running, or the journal cannot be written.
        """

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint: nothing where each decision depends on its message alone."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End what was started, and let go of the journal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Opened


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
