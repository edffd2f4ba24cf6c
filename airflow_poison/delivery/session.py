"""Server sessions: deliver Arrow batches to a handler, in a supervised child process or inline; what one is, and its record of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from airflow_poison.delivery.batches import Calls
from airflow_poison.delivery.failurelog import UNRECORDED, FailureReader, Rollback
from airflow_poison.delivery.journal import COUNT_MASK, STATE_MASK, SUSPECTS, Journal, MessageState, attempts_of
from airflow_poison.delivery.returned import RowsReader
from airflow_poison.delivery.work import Endpoint
from airflow_poison.values.errors import InputError, ServerSessionError, SettingError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.dialogs import Conversed
    from airflow_poison.delivery.host import Callers
    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.returned import ReturnedBy
    from airflow_poison.delivery.settlement import End
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.delivery.wire import BatchCall, Call, Called, Handed
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service
    from airflow_poison.dialogs.transaction import DialogState
    from airflow_poison.rules.decisions import Halt
    from airflow_poison.values.events import Event
    from airflow_poison.values.failures import Failure


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

    def __init__(
        self, batch: pa.RecordBatch, journal: Journal, reader: FailureReader, recovered: RecoveredAttempts, again: Sequence[int] = ()
    ) -> None:
        self.lookup_ids = lookup_ids_of(batch)
        self.initial = recovered.words_for(self.lookup_ids)
        self.initial[list(again)] &= COUNT_MASK
        self._recovered, self._reader = recovered, reader
        self.section = journal.append(self.lookup_ids, self.initial)
        self.words = self.section.as_array()
        self._rollbacks: list[Rollback] = []
        self._rows = None if journal.rows_descriptor < 0 else RowsReader(journal.rows_descriptor, at_end=True)

    def label(self, row: int) -> str:
        """Name the message of a row, for the log."""
        return f"[message {self.lookup_ids[row]}] " if 0 <= row < len(self.lookup_ids) else ""

    def read_log(self) -> None:
        """Read what has been appended since the last time."""
        self._rollbacks += (entry for entry in self._reader.news() if entry.section == self.section.number)

    def returned(self) -> Sequence[ReturnedBy]:
        """Return the rows that committed deliveries of this batch returned, as they travel; asked once, when it is done.

        Raises ServerSessionError when the record of one cannot be found, so that nothing settles without its rows.
        """
        if self._rows is None:
            return ()
        states = self.words & STATE_MASK
        early = (states == MessageState.CARRIED) & (self.initial & STATE_MASK != MessageState.CARRIED)  # before its turn, see ``outage.py``
        committed = (states == MessageState.COMMITTED) | early
        wanted = dict(zip(self.lookup_ids[committed].tolist(), attempts_of(self.words[committed]).tolist(), strict=True))
        found = self._rows.returned_by(wanted)
        if lost := wanted.keys() - {lookup_id for each in found for lookup_id in each.lookup_ids}:
            raise ServerSessionError(
                f"What {len(lost)} delivered message(s) returned, {min(lost)} among them, cannot be found beside the attempt journal. Nothing was "
                "committed: look at that disk, then run the task again; it delivers them again."
            )
        return found

    def searched(self) -> Searched:
        """Return the records of searches of this batch; asked once, when it is done."""
        self.read_log()
        searches = [each for each in self._reader.searches if each.section == self.section.number]
        self._reader.searches.clear()
        return Searched(
            sum(each.probe for each in searches),
            sum(each.rows for each in searches),
            tuple(each.unstable for each in searches if each.unstable is not None),
        )

    def outcome(self) -> tuple[NDArray[np.int32], dict[int, Failure]]:
        """Return the words, copied, and the failures of the report."""
        self.read_log()
        failures = _failures(self.lookup_ids, self.initial, self.words, self._recovered, self._rollbacks)
        ended = np.isin(self.words & STATE_MASK, (MessageState.ENDED, MessageState.HALTED)) & (attempts_of(self.words) > 0)
        for row in np.flatnonzero(ended).tolist():
            failures.setdefault(row, UNRECORDED)
        return report_words(self.words), failures


def _failures(
    ids: NDArray[np.int64], initial: NDArray[np.int32], words: NDArray[np.int32], recovered: RecoveredAttempts, rollbacks: Iterable[Rollback] = ()
) -> dict[int, Failure]:
    """Return the last failure of each row that is not committed: of this session, else of earlier tries."""
    rows = np.flatnonzero(initial).tolist() if recovered.failures else ()
    failures = {row: recovered.failures[int(ids[row])] for row in rows if int(ids[row]) in recovered.failures}
    failures.update((entry.row, entry.failure) for entry in rollbacks)
    committed = np.isin(words & STATE_MASK, (MessageState.COMMITTED, MessageState.CARRIED)).tolist()
    return {row: failure for row, failure in failures.items() if not committed[row]}


def recovered_report(batch: pa.RecordBatch, recovered: RecoveredAttempts, *, halted: bool) -> BatchReport | None:
    """Return the report of a batch that needs no delivery (settled, empty, or behind a halt); None when it needs one."""
    ids = lookup_ids_of(batch)
    words = recovered.words_for(ids)
    if not halted:
        states = words & STATE_MASK
        before_halt = words[: int(np.argmax(states == MessageState.HALTED))] if (states == MessageState.HALTED).any() else words
        halted = len(before_halt) < len(words)
        if (~np.isin(before_halt & STATE_MASK, (MessageState.CARRIED, MessageState.ENDED))).any():
            return None
    return BatchReport(report_words(words), _failures(ids, words, words, recovered), halted)


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
class Searched:
    """What calls with batches of several did.

    :param probes: calls with parts of a batch that had failed, to find out which messages made it fail.
    :param rows_handed: messages in all calls with a batch or a part of one.
    :param unstable: reports of batches that failed although their parts did not.
    """

    probes: int = 0
    rows_handed: int = 0
    unstable: tuple[Mapping[str, str], ...] = ()


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
    :param returned: the rows that committed deliveries returned, as they travel; not those of earlier tries.
    :param not_landed: how many deliveries returned rows although no output is declared.
    :param searched: what calls with batches of several did.
    """

    words: NDArray[np.int32]
    failures: dict[int, Failure] = field(default_factory=dict)
    halted: bool = False
    restarts: int = 0
    crashes: int = 0
    timeouts: int = 0
    decided: Decided | None = None
    conversed: Conversed | None = None
    returned: Sequence[ReturnedBy] = ()
    not_landed: int = 0
    searched: Searched = Searched()


def report_words(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return words for a report: what an earlier try committed is committed, and the suspects of a search do not matter any more."""
    states = words & STATE_MASK
    words = np.where(states == MessageState.CARRIED, words - MessageState.CARRIED + MessageState.COMMITTED, words)
    return np.where(np.isin(states, SUSPECTS), words & COUNT_MASK, words).astype(np.int32)


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


class StatelessSession(ServerSession):
    """For policies whose decisions depend on the message alone: what earlier tries have settled needs no delivery, nor what is behind a halt."""

    def __init__(self, job: StageJob, journal: Journal, recovered: RecoveredAttempts) -> None:
        self._journal, self._recovered, self._halted = journal, recovered, job.closed
        self._reader = FailureReader(journal.log_descriptor)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended."""
        report = recovered_report(batch, self._recovered, halted=self._halted) or self._deliver(batch)
        self._halted = report.halted
        return report

    @abstractmethod
    def _deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch that needs it."""

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()


def open_session(job: StageJob, partition: str, recovered: RecoveredAttempts, dialog_state: DialogState | None = None) -> ServerSession:
    """Open a server session.

    :param partition: names the journal, which is made in an existing folder on a local disk, with its log.
    :param recovered: what earlier tries did; committed and ended messages are not delivered.
    :param dialog_state: the conversations of the messages; None: the queue has none.
    :raises HandlerNotFoundError: the handler or an exception type cannot be used.
    :raises ClaimLostError: the journal folder is gone.
    """
    at_most_once = not all(getattr(job.policy, name, True) for name in ("exactly_once", "transaction_scope_required"))
    journal = Journal(
        Path(job.journal_folder), partition, forced=job.forced, keeps_rows=bool(job.outputs), at_most_once=at_most_once, share=job.share
    )
    stateless = job.policy.stateless and dialog_state is None
    try:
        callers: Callers
        if job.isolation == "none":
            if stateless:
                return InlineSession(job, journal, recovered)
            callers = InlineCallers(job, journal)
        else:
            from airflow_poison.delivery.supervisor import ChildCallers, SupervisedSession

            if stateless:
                return SupervisedSession(job, journal, recovered)
            callers = ChildCallers(job, journal)
        from airflow_poison.delivery.host import EndpointSession

        return EndpointSession(job, callers, journal, recovered, dialog_state)
    except BaseException:
        journal.close()
        raise


def check_isolation(isolation: str) -> None:
    """Raise SettingError unless it is ``process`` or ``none``."""
    if isolation not in {"process", "none"}:
        raise SettingError("isolation", isolation, "'process' or 'none'")


# Inline: for trusted handlers and for debugging. A crash ends the worker, nothing ends a handler that hangs; the next try still has the journal


class InlineSession(StatelessSession):
    """A server session without a process of its own: the handler runs in the worker itself, with the same journal and the same report."""

    def __init__(self, job: StageJob, journal: Journal, recovered: RecoveredAttempts) -> None:
        super().__init__(job, journal, recovered)
        self._endpoint = Endpoint(job, journal.log_descriptor, journal.rows_descriptor)

    def _deliver(self, batch: pa.RecordBatch) -> BatchReport:
        record, endpoint = BatchRecord(batch, self._journal, self._reader, self._recovered), self._endpoint
        halted = endpoint.deliver(batch, record.section)
        return BatchReport(*record.outcome(), halted, returned=record.returned(), not_landed=endpoint.take_not_landed(), searched=record.searched())


class InlineCallers:
    """Calls the handler in this process, when its result is asked for."""

    side_by_side = False

    def __init__(self, job: StageJob, journal: Journal) -> None:
        self._endpoint = Endpoint(job, journal.log_descriptor)
        self._begun: dict[int, Call] = {}
        self._called: dict[int, Called] = {}
        self._calls: Calls | None = None

    def load(
        self,
        batch: pa.RecordBatch,
        label: Callable[[int], str],  # noqa: ARG002  (the interface's signature)
        sessions: int,  # noqa: ARG002  (the interface's signature)
        services: Mapping[str, Service] | None = None,
    ) -> None:
        """Go on with another batch."""
        self._calls = Calls(self._endpoint, batch, services)

    def prepare(self, session: int) -> None:
        """There is nothing to start."""

    def begin(self, session: int, call: Call, opened: float) -> None:  # noqa: ARG002  (nothing here ends a handler)
        """Remember the call."""
        self._begun[session] = call

    def result(self, session: int) -> Failure | None:
        """Call the handler."""
        assert self._calls is not None, "a batch is loaded before it is called for"
        called = self._called[session] = self._calls.one(self._begun.pop(session))
        return called.failure

    def several(self, session: int, call: BatchCall) -> Handed:  # noqa: ARG002  (the interface's signature)
        """Call the handler with several messages."""
        assert self._calls is not None, "a batch is loaded before it is called for"
        return self._calls.several(call)

    def change(self, session: int) -> Change | None:
        """Return what the handler did in its conversation."""
        return self._called[session].change

    def rows(self, session: int) -> bytes:
        """Return the rows that the handler returned."""
        return self._called[session].rows

    def has_taken(self, session: int) -> bool:  # noqa: ARG002  (the interface's signature)
        """Always: it is called at once."""
        return True

    def close(self) -> None:
        """There is nothing to end."""
