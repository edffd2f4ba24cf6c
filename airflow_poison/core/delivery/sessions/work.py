"""The delivering process's work on one batch, the same in a child process and inline: a lean loop, and the receive loop where it matters.

Decisions depend on the message alone here (``policy.stateless``). When a message is fresh, the lean loop asks the policy once for
each pair of counts in the batch, and then only stores, calls and stores. Everything else goes through ``ReceiveLoop``. The lean loop
asks ``policy.unreadable`` about the largest body first: readability may depend on the size, and larger is never more readable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.core.delivery.loop import ReceiveLoop
from airflow_poison.core.delivery.sessiongram import session_handler
from airflow_poison.core.delivery.sessions.host import LastFailureHost
from airflow_poison.core.delivery.sessions.rows import BatchEntry, Entries, OneRow
from airflow_poison.core.delivery.sessions.verdicts import failure_of, kind_of
from airflow_poison.core.delivery.sessions.words import SETTLED, State
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.message import Message
from airflow_poison.core.policies.decisions import Counts, Deliver, Halt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.conversations.endpoint import Change
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.conversations.transaction import Begun
    from airflow_poison.core.delivery.sessions.failurelog import FailureLog
    from airflow_poison.core.delivery.sessions.lastoutput import LastOutput
    from airflow_poison.core.message import _Columns
    from airflow_poison.core.policies.seam import Policy, Receiver

_SLICE, _SLICES = 1_024, 4
RAISED = Failure(FailureKind.EXCEPTION)
"""A handler's exception that has not been told yet: the last one that was raised."""

BACK_AT_SAVEPOINT = Failure(FailureKind.SAVEPOINT, "savepoint", "the handler rolled back to its savepoint")


@dataclass(slots=True)
class BatchWork:
    """One batch to deliver.

    :param number: of its section in the journal.
    """

    batch: pa.RecordBatch
    words: memoryview
    number: int


class Views:
    """The messages of a batch as handlers see them; columns are converted a slice at a time."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._columns: Callable[[int], _Columns] = lru_cache(_SLICES)(partial(_columns_of, batch))

    def message(self, row: int, abort_count: int, move_count: int) -> Message:
        """Return the message of a row with the counts of this delivery."""
        number, at = divmod(row, _SLICE)
        return Message.view(self._columns(number), at, abort_count, move_count)


def _columns_of(batch: pa.RecordBatch, number: int) -> _Columns:
    return Message.columns(batch.slice(number * _SLICE, _SLICE))


class Endpoint:
    """A policy's receiver, the handler and what is needed between them; lives as long as the process that delivers.

    :ivar at: its only element is the row that is being delivered; captured output is labelled by it.
    :ivar last: keeps what the message in hand prints; None: nobody does.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        handler: Callable[[Message], object],
        clock: Clock,
        log: FailureLog,
        unprocessable: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._policy, self._clock, self._log = policy, clock, log
        self.receiver: Receiver = policy.open()
        self._handler = session_handler(handler) if getattr(policy, "sessions", False) else handler  # type: ignore[arg-type]  # takes a session then
        self._unprocessable = unprocessable
        self._process = os.getpid()
        self._raised: BaseException | None = None
        self.at = [-1]
        self.last: LastOutput | None = None

    def deliver(self, work: BatchWork) -> bool:
        """Deliver what is not settled; return whether a message halted the endpoint."""
        return _BatchDelivery(self, work).run()

    def call(self, message: Message) -> Failure | None:
        """Hand a message to the handler; whatever it raises becomes a failure."""
        if self.last is not None:
            self.last.forget()
        try:
            self._handler(message)
        except BaseException as error:  # noqa: BLE001  (SystemExit too is a rollback of this message, not the end of the session)
            return self.failure(error)
        self._only_here()
        return None

    def call_in_dialog(self, message: Message, begun: Begun, services: Mapping[str, Service]) -> tuple[Failure | None, Change | None]:
        """Hand the message of a dialog to the handler; return what it did in its conversation, too, besides receiving it.

        Who rolled back to the savepoint and returned has the message back, and what was done since (spec SB-58).
        """
        from airflow_poison.core.conversations.transaction import Conversation

        conversation = Conversation(begun, services, lambda: max(begun.now, self._clock.now()))
        failure = self.call(message.within(conversation))
        change = conversation.close()
        if failure is None and conversation.is_at_savepoint:
            return BACK_AT_SAVEPOINT, change
        return failure, (change if failure is None else None)

    def failure(self, error: BaseException) -> Failure:
        """Classify what a handler raised; the text of a plain exception is made when it is told, and most never are."""
        self._only_here(error)
        if self._policy.stateless and kind_of(error, self._unprocessable) is FailureKind.EXCEPTION:
            self._raised = error
            return RAISED
        return failure_of(error, self._unprocessable)

    def tell(self, failure: Failure) -> Failure:
        """Return a failure with its text."""
        if failure is not RAISED:
            return failure
        assert self._raised is not None
        return failure_of(self._raised, self._unprocessable)

    def _only_here(self, error: BaseException | None = None) -> None:
        """End a process that the handler forked and that came back out of it: the session is its parent's."""
        if os.getpid() != self._process:
            code = error.code if isinstance(error, SystemExit) else error is not None
            os._exit(code if isinstance(code, int) else 1)


class _BatchDelivery:
    """One batch in the hands of one endpoint."""

    def __init__(self, endpoint: Endpoint, work: BatchWork) -> None:
        self._endpoint, self._batch, self._words = endpoint, work.batch, work.words
        policy, clock = endpoint._policy, endpoint._clock  # noqa: SLF001  (two halves of one thing)
        self._policy, self._now = policy, clock.now()
        self._entries = Entries(policy, work.batch, list(work.words), self._now)
        log = endpoint._log  # noqa: SLF001
        self._host = LastFailureHost(policy, clock, work.words, section=work.number, log=log, call=self._call, tell=endpoint.tell)
        self._views = Views(work.batch)
        self._first_failure: Failure | None = None

    def run(self) -> bool:
        """Deliver; return whether a message halted the endpoint."""
        return self._each_alone([row for row, value in enumerate(self._words) if value & 0xFF not in SETTLED])

    def _each_alone(self, rows: list[int]) -> bool:
        seen = self._fresh_counts()
        return any(self._some_alone(rows[start : start + _SLICE], seen) for start in range(0, len(rows), _SLICE))

    def _some_alone(self, rows: list[int], seen: Sequence[Counts | None] | None) -> bool:
        """The lean loop: nothing here that is not needed for every message."""
        first = rows[0]
        columns = Message.columns(self._batch.slice(first, rows[-1] - first + 1))
        words, at, view, handler = self._words, self._endpoint.at, Message.view, self._endpoint._handler  # noqa: SLF001
        in_flight, committed = int(State.IN_FLIGHT), int(State.COMMITTED)
        for row in rows:
            counts = seen[row] if seen is not None and not words[row] else None
            if counts is None:
                if self._through_the_loop(row, None):
                    return True
                continue
            words[row] = in_flight
            at[0] = row
            try:
                handler(view(columns, row - first, counts.abort_count, counts.move_count))
            except BaseException as error:  # noqa: BLE001  (as in Endpoint.call)
                if self._through_the_loop(row, self._endpoint.failure(error)):
                    return True
            else:
                words[row] = committed
        return False

    def _through_the_loop(self, row: int, failure: Failure | None) -> bool:
        """Receive one message until it has ended; its first delivery may have failed already.

        What died with a process before it could decide about its last rollback is decided now.
        """
        entry = self._entries.entry(row)
        if entry.led_to is not None:
            self._host.ended(entry, entry.led_to, None)
            return isinstance(entry.led_to, Halt)
        self._first_failure = failure
        source = OneRow(self._policy, self._entries, entry, self._words)
        return ReceiveLoop(self._endpoint.receiver, source, self._host).run() is not None

    def _call(self, row: int, counts: Counts) -> Failure | None:
        """Call the handler for the receive loop; a failure of the lean loop is its first delivery."""
        if self._first_failure is not None:
            failure, self._first_failure = self._first_failure, None
            return failure
        self._endpoint.at[0] = row
        return self._endpoint.call(self._views.message(row, counts.abort_count, counts.move_count))

    def _fresh_counts(self) -> Sequence[Counts | None] | None:
        """Return what the first delivery of each row sees, None where the policy does not simply deliver; None: none of them."""
        if self._any_unreadable():
            return None
        aborts, moves = (_values(self._batch, name) for name in ("abort_count", "move_count"))
        if isinstance(aborts, repeat) and isinstance(moves, repeat):
            counts = self._first_decision(Counts(next(aborts), next(moves)))
            return None if counts is None else [counts] * self._batch.num_rows
        decide = cache(lambda abort, move: self._first_decision(Counts(abort, move)))
        return [decide(abort, move) for _, abort, move in zip(range(self._batch.num_rows), aborts, moves, strict=False)]

    def _first_decision(self, counts: Counts) -> Counts | None:
        decision = self._endpoint.receiver.before(BatchEntry(0, 0, 0, None, counts), self._now)
        return decision.counts if isinstance(decision, Deliver) and not decision.at_most_once else None

    def _any_unreadable(self) -> bool:
        import pyarrow.compute as pc

        lengths: Any = pc.binary_length(cast("Any", self._batch.column("body")))
        largest = pc.max(lengths).as_py() or 0
        return self._policy.unreadable(BatchEntry(0, 0, largest, None, Counts())) is not None


def _values(batch: pa.RecordBatch, name: str) -> Iterable[int]:
    """Return a column of counts; a ``repeat`` when all are equal."""
    import pyarrow.compute as pc

    column = batch.column(name)
    least, most = pc.min(column).as_py(), pc.max(column).as_py()
    if least == most and not column.null_count:
        return repeat(int(least or 0))
    return [int(value or 0) for value in column.to_pylist()]
