"""What a server session is, and its record of one batch: the section of the journal, what earlier tries did, failures read back from the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from airflow_poison.core.delivery.sessions.words import COUNT_MASK, STATE_MASK, State, state_of, states_of
from airflow_poison.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.sessions.dialogs import Conversed
    from airflow_poison.core.delivery.sessions.failurelog import FailureReader, Rollback
    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.core.events import Event
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.decisions import Halt


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

    :param words: int32, one per row, see words.py; never in flight or held.
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
