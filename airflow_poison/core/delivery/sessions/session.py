"""Open a server session: deliver Arrow batches to a handler, in a supervised child process or inline."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.delivery.sessions.carry import Carry
from airflow_poison.core.delivery.sessions.journalfile import Journal
from airflow_poison.core.delivery.sessions.words import STATE_MASK, State
from airflow_poison.core.errors import SettingError
from airflow_poison.core.policies.opening import FIRST

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.conversations.dialog_state import DialogState
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.delivery.handlers import HandlerLike, HandlerRef
    from airflow_poison.core.delivery.sessions.callers import Callers
    from airflow_poison.core.delivery.sessions.child import Tools
    from airflow_poison.core.delivery.sessions.dialogs import Conversed
    from airflow_poison.core.events import Event
    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.decisions import Halt
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy


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


class ServerSession(Protocol):
    """Delivers batches, one after the other, and keeps the policy's memory between them."""

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver each message of a batch until it is committed or has ended.

        :param batch: columns of ``message_schema()`` and ``move_count``, rows in receive order, lookup ids not null.
        :raises ServerSessionError: the child cannot be kept running, or the journal cannot be written.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Return what the queue keeps for the next endpoint."""
        ...

    def close(self) -> None:
        """End the child and let go of the journal."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_session(
    *,
    policy: Policy,
    handler: HandlerLike | HandlerRef,
    journal_folder: str | Path,
    partition: str,
    isolation: str = "process",
    carry: Carry | str | Path | None = None,
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
    known = Carry.load(Path(carry)) if isinstance(carry, (str, Path)) else carry or Carry()
    journal = Journal(Path(journal_folder), partition, forced=forced)
    try:
        from airflow_poison.core.delivery.sessions.child import Tools

        tools = Tools(policy, reference, clock or SystemClock(), unprocessable, opening.queue)
        if not policy.stateless or at_hand is not None:
            callers = _callers(tools, journal, isolation)
            from airflow_poison.core.delivery.sessions.endpoint import EndpointSession

            return EndpointSession(
                tools, callers, journal, known, opening=opening, stop_file=stop_file, record_all=record_all, singly=singly, at_hand=at_hand
            )
        if isolation == "none":
            from airflow_poison.core.delivery.sessions.inline import InlineSession

            return InlineSession(tools, journal, known)
        from airflow_poison.core.delivery.sessions.supervised import SupervisedSession

        return SupervisedSession(tools, journal, known)
    except BaseException:
        journal.close()
        raise


def _callers(tools: Tools, journal: Journal, isolation: str) -> Callers:
    if isolation == "none":
        from airflow_poison.core.delivery.sessions.callers import InlineCallers

        return InlineCallers(tools, journal)
    from airflow_poison.core.delivery.sessions.childcallers import ChildCallers

    return ChildCallers(tools, journal)


def check_isolation(isolation: str) -> None:
    """Raise SettingError unless it is ``process`` or ``none``."""
    if isolation not in {"process", "none"}:
        raise SettingError("isolation", isolation, "'process' or 'none'")


def report_words(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return words for a report: what an earlier try committed is committed."""
    return np.where((words & STATE_MASK) == State.CARRIED, words - State.CARRIED + State.COMMITTED, words).astype(np.int32)
