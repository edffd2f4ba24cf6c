"""The delivering process's work on one batch, the same in a child process and inline: a lean loop, and the receive loop where it matters.

Decisions depend on the message alone here (``policy.stateless``). When a message is fresh, the lean loop asks the policy once for
each pair of counts in the batch (``Ladder``), and then only stores, calls and stores; so it does while ordinary exceptions bring a message
to its next delivery or its end. Everything else goes through ``ReceiveLoop``. The lean loop asks ``policy.unreadable`` about the largest
body first: readability may depend on the size, and larger is never more readable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.delivery.culprits import LEAST_PIECE
from airflow_poison.delivery.failurelog import FailureLog, Rollback
from airflow_poison.delivery.handler_wrappers import frame_handler, session_handler
from airflow_poison.delivery.handlers import check_returned, load_handler, load_types
from airflow_poison.delivery.journal import (
    COUNT_MASK,
    IS_SETTLED,
    MAX_ATTEMPTS,
    ONE_ATTEMPT,
    STATE_MASK,
    MessageState,
    Section,
    attempts_of,
    counted,
    release,
)
from airflow_poison.delivery.outage import BatchWatch, Watch, first_delivery
from airflow_poison.delivery.platform import BrokenProcessError, NotWrittenError
from airflow_poison.delivery.returned import NOTHING, Record, Returned, keep_all
from airflow_poison.delivery.rows import BatchEntry, Entries, OneRow
from airflow_poison.delivery.verdicts import PrivateBatch, failure_of, kind_of
from airflow_poison.dialogs.transaction import BegunDelivery, Conversation
from airflow_poison.outputs.output import is_rows
from airflow_poison.rules.decisions import AfterRollback, BeforeDelivery, Block, Counts, Deliver, Dispose, Halt, Park, Return
from airflow_poison.rules.loop import Host, ReceiveLoop
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pc
from airflow_poison.values.message import Message, _Columns

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.delivery.printed import LastOutput
    from airflow_poison.delivery.returned import RowsWriter
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service
    from airflow_poison.rules.policy import Policy

SLICE, _SLICES = 1_024, 4
BACK_AT_SAVEPOINT = Failure(FailureKind.SAVEPOINT, "savepoint", "the handler rolled back to its savepoint")


class Views:
    """The messages of a batch of a queue as handlers see them; columns are converted a slice at a time."""

    def __init__(self, batch: pa.RecordBatch, endpoint: Endpoint) -> None:
        self._columns: Callable[[int], _Columns] = lru_cache(_SLICES)(partial(_columns_of, batch, endpoint))

    def message(self, row: int, abort_count: int, move_count: int) -> Message:
        """Return the message of a row with the counts of this delivery."""
        number, at = divmod(row, SLICE)
        return Message.view(self._columns(number), at, abort_count, move_count)


def _columns_of(batch: pa.RecordBatch, endpoint: Endpoint, number: int) -> _Columns:
    return endpoint.columns(batch.slice(number * SLICE, SLICE))


class Endpoint:
    """A policy's receiver, the handler and what is needed between them; lives as long as the process that delivers.

    :param log: the descriptor of the journal's log.
    :param rows: the descriptor of the file of what deliveries return.
    :raises HandlerNotFoundError: the handler cannot be loaded here.
    :ivar returned: where the rows go that the handler returns; None: no output is declared.
    :ivar rows: the rows of the last call.
    :ivar queue: the name of the queue that it receives from.
    :ivar at: its only element is the row that is being delivered; captured output is labelled by it.
    :ivar batch_size: how many messages a handler of batches gets at once at present.
    :ivar last: keeps the output of the current message; None: it is not kept.
    """

    def __init__(self, job: StageJob, log: int, rows: int = -1) -> None:
        handler = load_handler(job.handler)
        self.returned = Returned(job, rows) if job.outputs else None
        self.rows = NOTHING
        self._not_landed = 0
        self.job, self.log, self.queue = job, FailureLog(log), job.opening.queue
        self.receiver = job.policy.open()
        self.handler = session_handler(handler) if getattr(job.policy, "sessions", False) else handler  # type: ignore[arg-type]  # takes a session then
        if job.batching is not None:
            self.handler = frame_handler(handler, job.batching)
            self.batch_size = self._most = job.batching.size
        self._unprocessable = load_types(job.unprocessable)
        self._process = os.getpid()
        self._raised: BaseException | None = None
        self.batches = 0
        self.at = [-1]
        self.last: LastOutput | None = None
        self._watch = None if job.detection is None else Watch(job.detection, job.clock.now)

    def deliver(self, batch: pa.RecordBatch, section: Section) -> bool:
        """Deliver what is not settled; return whether a message halted the endpoint. Raises ServerSessionError."""
        self.batches += 1
        try:
            if self.job.batching is None:
                return BatchDelivery(self, batch, section).run()
            from airflow_poison.delivery.batches import FrameDelivery

            return FrameDelivery(self, batch, section).run()
        except NotWrittenError:
            release(section.as_array())
            raise

    def watch(self, batch: pa.RecordBatch) -> Watch | None:
        """Return what looks for outages among the deliveries of a batch; None where they are not looked for."""
        if self._watch is not None and self.job.masking is not None:
            self._watch.hide = PrivateBatch(self.job.masking, batch).masked
        return self._watch

    def columns(self, batch: pa.RecordBatch) -> _Columns:
        """Return what messages of a batch are views of."""
        return Message.columns(batch, self.queue, jms=self.job.policy.jms)

    def call(self, message: Message | Callable[[], Any]) -> Failure | None:
        """Hand a message, or what makes a frame of it, to the handler; whatever it raises becomes a failure."""
        if self.last is not None:
            self.last.forget()
        self.rows = NOTHING
        try:
            if (returned := self.handler(message)) is not None:  # type: ignore[arg-type]  # a frame for a handler of frames
                self.take(returned)
        except BaseException as error:  # noqa: BLE001  (SystemExit too is a rollback of this message, not the end of the session)
            return self.failure(error)
        self.only_here()
        return None

    def take(self, returned: object) -> bytes:
        """Take what the handler returned; return its rows. Raises OutputRowError, HandlerNotRunError."""
        if self.returned is not None:
            self.rows = self.returned.rows(returned)
        else:
            check_returned(returned)
            self._not_landed += is_rows(returned)
        return self.rows

    def take_not_landed(self) -> int:
        """Return how many calls have returned rows although no output is declared, since this was asked last."""
        found, self._not_landed = self._not_landed, 0
        return found

    def call_in_dialog(self, message: Message, begun: BegunDelivery, services: Mapping[str, Service]) -> tuple[Failure | None, Change | None]:
        """Hand the message of a dialog to the handler; return what it did in its conversation, too, besides receiving it.

        Who rolled back to the savepoint and returned has the message back, and what was done since (spec SB-58).
        """
        conversation = Conversation(begun, services, lambda: max(begun.now, self.job.clock.now()))
        failure = self.call(message.within(conversation))
        change = conversation.close()
        if failure is None and conversation.is_at_savepoint:
            return BACK_AT_SAVEPOINT, change
        return failure, (change if failure is None else None)

    def failure(self, error: BaseException) -> Failure:
        """Classify what a handler raised; the text of a plain exception is made when it is needed, and most never are.

        Raises NotWrittenError, which is no failure of its message.
        """
        self.only_here(error)
        if type(error) is NotWrittenError:
            raise error
        if self.job.policy.stateless and kind_of(error, self._unprocessable) is FailureKind.EXCEPTION:
            self._raised = error
            return RAISED
        return failure_of(error, self._unprocessable)

    def with_text(self, failure: Failure) -> Failure:
        """Return a failure with its text."""
        if failure is not RAISED:
            return failure
        assert self._raised is not None
        return failure_of(self._raised, self._unprocessable)

    def pace(self, messages: int, culprits: int) -> None:
        """Choose the size of the next batches by the last one: where culprits had to be searched for, so small that most have none.

        :param culprits: how many were found among so many messages.
        """
        if culprits:
            self.batch_size = min(self._most, max(LEAST_PIECE, messages // (2 * culprits)))
        else:
            self.batch_size = min(self._most, 4 * self.batch_size)

    def only_here(self, error: BaseException | None = None) -> None:
        """End a process that the handler forked and that came back out of it: the session is its parent's."""
        if os.getpid() != self._process:
            code = error.code if isinstance(error, SystemExit) else error is not None
            os._exit(code if isinstance(code, int) else 1)


# What the receive loop's decisions do: they are journaled; the files are the parent's business


class JournalHost(Host[BatchEntry]):
    """Stores words and logs failures, in the order that journal.py explains; who calls the handler is for the subclasses to say.

    :param keep: writes down what a delivery returned; None: nothing lands.
    """

    def __init__(self, job: StageJob, section: Section, log: FailureLog, keep: RowsWriter | None = None) -> None:
        self._job, self.words, self._section, self._log, self._keep, self.policy = job, section.words, section.number, log, keep, job.policy
        self._rows: dict[int, bytes] = {}

    def now(self) -> datetime:
        """Return the endpoint's time."""
        return self._job.clock.now()

    def unreadable(self, entry: BatchEntry) -> Failure | None:
        """Ask the policy (spec WCF-29)."""
        why = self._job.policy.unreadable(entry)
        return None if why is None else Failure(FailureKind.UNREADABLE, "unreadable", why)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Store the last member first: that store decides. What they returned is written down before."""
        if self._keep is not None:
            self._keep_rows(entries, self._keep)
        for entry in reversed(entries):
            self._store(entry.row, MessageState.COMMITTED)

    def _keep_rows(self, entries: Sequence[BatchEntry], keep: RowsWriter) -> None:
        """Write down what deliveries returned."""
        records = [Record((entry.lookup_id,), (attempts_of(self.words[entry.row]),), self._rows.pop(entry.row, NOTHING)) for entry in entries]

        def give_back() -> None:
            for entry in reversed(entries):
                self._store(entry.row, MessageState.UNTOUCHED)

        keep_all(keep, records, give_back)

    def postponed(self, entry: BatchEntry, failure: Failure) -> None:
        """End it without a count; the parent puts it off."""
        self._log_failure(entry, failure)
        self._store(entry.row, MessageState.ENDED)

    def back_at_savepoint(self, entry: BatchEntry) -> None:
        """Store that it is with no handler any more."""
        self._store(entry.row, MessageState.UNTOUCHED)

    def _store(self, row: int, state: MessageState) -> None:
        self.words[row] = self.words[row] & COUNT_MASK | state

    def _log_failure(self, entry: BatchEntry, failure: Failure, *, innocent: bool = False) -> None:
        attempts = attempts_of(self.words[entry.row])
        self._log.append(Rollback(self._section, entry.row, entry.lookup_id, attempts, failure, innocent))


# Deliveries that go on failing


RAISED = Failure(FailureKind.EXCEPTION)
"""A handler's exception that is not reported yet: the last one that was raised."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One delivery.

    :param stored: the counts that the message has before it is received.
    :param seen: those that the delivery sees.
    """

    stored: Counts
    seen: Counts


class Ladder:
    """The deliveries of all messages that come with the same counts, for policies whose decisions depend on the message alone.

    The policy is asked for a rung when the first message gets there. It is asked at a receiver of its own: nothing has happened yet.

    :ivar first: the first delivery, what ``rung(0)`` returns.
    :ivar end: what follows the last rung, as far as these counts show: that no delivery follows, and whether the endpoint halts. None: it is not
        known yet, or the receive loop has to see to it.
    """

    def __init__(self, policy: Policy, stored: Counts, now: datetime) -> None:
        self._receiver, self._now = policy.open(), now
        self._entry = BatchEntry(0, 0, 0, None, stored)
        self._rungs: list[Rung] = []
        self._reads_more = policy.reads_properties
        self._over = False
        self.end: Park | Dispose | Block | Halt | None = None
        self._climb(Return(stored))
        self.first = self._rungs[0] if self._rungs else None

    def rung(self, attempts: int) -> Rung | None:
        """Return the delivery after so many rollbacks; None where none follows, and where the receive loop has to see to it."""
        if attempts == len(self._rungs) and not self._over:
            self._climb(self._receiver.after_rollback(self._entry, RAISED, self._now))
        return None if attempts >= len(self._rungs) else self._rungs[attempts]

    def _climb(self, after: AfterRollback) -> None:
        """Note the next delivery, or the end. What is consumed before its delivery is for the loop, and so is the last attempt of a word."""
        self._over = True
        if len(self._rungs) == MAX_ATTEMPTS:
            return
        decision: AfterRollback | BeforeDelivery = after
        if isinstance(after, Return):
            self._entry.counts = after.counts
            decision = self._receiver.before(self._entry, self._now)
        if isinstance(decision, Deliver):
            if not decision.at_most_once:
                self._rungs.append(Rung(self._entry.counts, decision.counts))
                self._entry.counts = decision.counts
                self._over = False
        elif not isinstance(decision, Return) and not self._reads_more:
            self.end = decision


# One batch


class BatchDelivery(JournalHost):
    """One batch in the hands of one endpoint; logs only the failure that a message ends with.

    A failure that the message outlives costs one store and no text. Killed in between, its attempts are known all the same. With an observer, which
    looks for outages, each failure is logged before it counts: an outage takes it back.
    """

    def __init__(self, endpoint: Endpoint, batch: pa.RecordBatch, section: Section) -> None:
        returned = endpoint.returned
        super().__init__(endpoint.job, section, endpoint.log, None if returned is None else returned.writer)
        self._ids: list[int] = [] if returned is None else cast("list[int]", batch.column("lookup_id").to_pylist())
        self._endpoint, self._batch, self._now = endpoint, batch, self.now()
        self._entries = Entries(self.policy, batch, list(section.words), self._now)
        self._views = Views(batch, endpoint)
        self._first_row = -1
        self._first: Failure | None = None
        self._last: Failure | None = None
        self._has_halted = False
        watch = endpoint.watch(batch)
        self._observer = None
        if watch is not None:
            self._observer = BatchWatch(watch, self, batch, strict_order=self.policy.strict_order, together=endpoint.job.batching is not None)

    def run(self) -> bool:
        """Deliver until the batch is done, a message halts the endpoint, or an outage is found; return whether a message halted it."""
        rows = [row for row, value in enumerate(self.words) if not IS_SETTLED[value & STATE_MASK]]
        if self._endpoint.returned is not None:
            self._endpoint.returned.begin_batch()
        self._first_row = rows[0] if rows else -1
        if self._observer is None or not self._observer.begin(rows):
            ladders = self._ladders()
            is_over = any(self._some_alone(rows[start : start + SLICE], ladders) for start in range(0, len(rows), SLICE))
            if self._observer is not None and not is_over:
                self._observer.end()
        if self._endpoint.returned is not None:
            self._endpoint.returned.end_batch()
        return self._has_halted

    def _some_alone(self, rows: list[int], ladders: Sequence[Ladder] | None) -> bool:
        """The lean loop: nothing here that is not needed for every message. Returns whether nothing more is delivered."""
        if self._observer is not None and self._observer.stopped():
            return True
        first = rows[0]
        columns = self._endpoint.columns(self._batch.slice(first, rows[-1] - first + 1))
        words, at, view, handler = self.words, self._endpoint.at, Message.view, self._endpoint.handler
        in_flight, committed = int(MessageState.IN_FLIGHT), int(MessageState.COMMITTED)
        endpoint, lands = self._endpoint, self._keep is not None
        inline = endpoint.job.isolation == "none"  # elsewhere a fork has no words to store
        for row in rows:
            if ladders is None or words[row] or (rung := ladders[row].first) is None:
                if self._through_the_loop(self._entries.entry(row), None):
                    return True
                continue
            counts = rung.seen
            words[row] = in_flight
            at[0] = row
            try:
                returned = handler(view(columns, row - first, counts.abort_count, counts.move_count))
                rows_returned = NOTHING if returned is None else endpoint.take(returned)
                if inline:
                    endpoint.only_here()
            except BaseException as error:  # noqa: BLE001  (as in Endpoint.call)
                failure = endpoint.failure(error)
            else:
                if lands:
                    self._write_down(row, rows_returned)
                words[row] = committed
                continue
            if self._again(
                row, ladders[row], failure, partial(self._call_with, partial(view, columns, row - first))
            ):  # the next exception has nothing to do with this one
                return True
        return False

    def _call_with(self, view: Callable[[int, int], Message], counts: Counts) -> Failure | None:
        return self._endpoint.call(view(counts.abort_count, counts.move_count))

    def _again(self, row: int, ladder: Ladder, failure: Failure | None, call: Callable[[Counts], Failure | None], attempts: int = 0) -> bool:
        """Go on with a message whose delivery has failed until it has ended; what is no ordinary exception is for the receive loop.

        One store counts a rollback and marks the next delivery.

        :param call: delivers it again, with the counts that it sees then.
        :param attempts: counted rollbacks before that delivery.
        Returns whether nothing more is delivered.
        """
        words, in_flight, observer = self.words, int(MessageState.IN_FLIGHT), self._observer
        while failure is not None:
            is_plain = failure is RAISED
            if observer is not None:
                failure = self._endpoint.with_text(failure)
                observer.failed(row, failure)
            if not is_plain or (rung := ladder.rung(attempts + 1)) is None:
                return self._end_of_ladder(row, ladder, failure, attempts)
            attempts += 1
            if observer is not None:
                self._log_failure(self._entry(row, rung.stored), failure)
                words[row] = attempts * ONE_ATTEMPT | MessageState.UNTOUCHED
                if observer.is_outage(row):
                    return True
            words[row] = attempts * ONE_ATTEMPT | in_flight
            failure = call(rung.seen)
        if self._keep is not None:
            self._write_down(row, self._endpoint.rows)
        words[row] = attempts * ONE_ATTEMPT | MessageState.COMMITTED
        return False

    def _entry(self, row: int, counts: Counts) -> BatchEntry:
        return BatchEntry(row, self._batch.column("lookup_id")[row].as_py(), 0, None, counts)

    def _end_of_ladder(self, row: int, ladder: Ladder, failure: Failure, attempts: int, *, is_named: bool = False) -> bool:
        """End a message whose delivery has failed, or go on with it in the receive loop; return whether nothing more is delivered.

        :param is_named: the handler has named the message: no outage is behind that.
        """
        last, observer = ladder.rung(attempts), self._observer
        assert last is not None, "it was delivered"
        if failure.kind is FailureKind.EXCEPTION and ladder.end is not None:
            entry = self._entry(row, last.stored)
            self.rolled_back((entry,), entry, failure)
            if observer is not None and not is_named and (observer.is_outage(row) or (isinstance(ladder.end, Halt) and self.withholds(entry))):
                return True
            self.ended(entry, ladder.end, failure)
            self._has_halted = self._has_halted or isinstance(ladder.end, Halt)
            return isinstance(ladder.end, Halt)
        entry = self._entries.entry(row)
        entry.counts = last.stored
        return self._through_the_loop(entry, failure)

    def attempt(self, row: int) -> Failure | None:
        """Try a message out of turn, to look for an outage. A failure leaves it as it was; a death is charged: the message is marked in flight."""
        before, entry = self.words[row], self._entries.entry(row)
        delivery = first_delivery(self.policy, entry, self)
        if delivery is None:
            return None
        self.words[row] = before & ~STATE_MASK | MessageState.IN_FLIGHT
        failure = self._call(row, delivery.counts)
        if failure is None:
            if self._keep is not None:
                self._write_down(row, self._endpoint.rows)
            self._store(row, MessageState.COMMITTED)
            return None
        self.words[row] = before
        return self._endpoint.with_text(failure)

    def is_settled(self, row: int) -> bool:
        """Whether a message needs no delivery any more: it may have been tried out of turn."""
        return IS_SETTLED[self.words[row] & STATE_MASK]

    def may_be_tried(self, row: int) -> bool:
        """Whether a message was not received yet."""
        return not self.words[row]

    def _write_down(self, row: int, returned: bytes) -> None:
        assert self._keep is not None
        try:
            self._keep.append_one(self._ids[row], attempts_of(self.words[row]), returned)
        except ServerSessionError as error:
            self._store(row, MessageState.UNTOUCHED)
            if isinstance(error, BrokenProcessError):
                self._charge_if_first(row)
            raise
        reach("delivery.returned.after_records")

    def _keep_rows(self, entries: Sequence[BatchEntry], keep: RowsWriter) -> None:
        """Write down what a delivery returned that the receive loop commits."""
        try:
            super()._keep_rows(entries, keep)
        except BrokenProcessError:
            self._charge_if_first(entries[0].row)
            raise

    def _charge_if_first(self, row: int) -> None:
        """Leave a message in flight that was the first of its process, so it has broken it: its parent charges what is in flight."""
        if self._endpoint.batches == 1 and row == self._first_row:
            self._store(row, MessageState.IN_FLIGHT)

    def _through_the_loop(self, entry: BatchEntry, failure: Failure | None) -> bool:
        """Receive one message until it has ended.

        What died with a process before it could decide about its last rollback is decided now.

        :param failure: of the delivery that the loop begins with, when that is over already.
        Returns whether nothing more is delivered.
        """
        if self.is_settled(entry.row):
            return False
        if entry.resumed_end is not None:
            self.ended(entry, entry.resumed_end, None)
            self._has_halted = self._has_halted or isinstance(entry.resumed_end, Halt)
            return isinstance(entry.resumed_end, Halt)
        self._first = failure
        if self._observer is not None:
            self._observer.is_new = failure is not None
        loop = ReceiveLoop(self._endpoint.receiver, OneRow(self.policy, self._entries, entry, self.words), self)
        while loop.step():
            if self._observer is not None and self._observer.judge(entry.row):
                return True
        self._has_halted = self._has_halted or loop.halt is not None
        return loop.halt is not None or loop.withheld

    def _ladders(self) -> Sequence[Ladder] | None:
        """Return the ladder of each row; None: some message cannot be read."""
        if self._any_unreadable():
            return None
        aborts, moves = (values_of(self._batch, name) for name in ("abort_count", "move_count"))
        ladder = cache(lambda abort, move: Ladder(self.policy, Counts(abort, move), self._now))
        if isinstance(aborts, repeat) and isinstance(moves, repeat):
            return [ladder(next(aborts), next(moves))] * self._batch.num_rows
        return [ladder(abort, move) for _, abort, move in zip(range(self._batch.num_rows), aborts, moves, strict=False)]

    def _any_unreadable(self) -> bool:
        lengths: Any = pc.binary_length(cast("Any", self._batch.column("body")))
        largest = pc.max(lengths).as_py() or 0
        return self.policy.unreadable(BatchEntry.of_size(largest)) is not None

    # What the receive loop decides

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Call the handler; a failure of the lean loop is its first delivery. One delivered at most once is committed already and stays so."""
        row, counts = entry.row, delivery.counts
        if not delivery.at_most_once:
            self._store(row, MessageState.IN_FLIGHT)
        if self._first is not None:
            failure, self._first = self._first, None
            return failure
        raised = self._call(row, counts)
        if raised is not None:
            if self._observer is not None and not delivery.at_most_once:
                raised = self._endpoint.with_text(raised)
                self._observer.failed(row, raised)
            return raised
        if self._keep is not None:
            if delivery.at_most_once:  # a second record: the first says that it was committed before it was delivered
                self._keep.append_one(entry.lookup_id, attempts_of(self.words[row]), self._endpoint.rows)
            else:
                self._rows[row] = self._endpoint.rows
        return None

    def _call(self, row: int, counts: Counts) -> Failure | None:
        self._endpoint.at[0] = row
        return self._endpoint.call(self._views.message(row, counts.abort_count, counts.move_count))

    def withholds(self, entry: BatchEntry) -> bool:
        """Whether an outage may be behind a failure for which the endpoint would halt, or block its queue."""
        return self._observer is not None and self._observer.doubts(entry.row, resumed=bool(attempts_of(self.words[entry.row])))

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Count the attempt and keep the failure, unless it is the last that fits into a word."""
        (entry,) = entries
        value = counted(self.words[entry.row], MessageState.UNTOUCHED)
        if self._observer is not None or attempts_of(value) == MAX_ATTEMPTS:
            self._log_failure(entry, self._endpoint.with_text(failure), innocent=entry is not culprit)
        self._last = failure
        self.words[entry.row] = value

    def ended(self, entry: BatchEntry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Log the failure, then store that no delivery follows."""
        last, self._last = failure or self._last, None
        if last is not None:
            self._log_failure(entry, self._endpoint.with_text(last))
        self._store(entry.row, MessageState.HALTED if isinstance(decision, Halt) else MessageState.ENDED)

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Forget the failure that the message has outlived."""
        self._last = None
        super().committed(entries)


def values_of(batch: pa.RecordBatch, name: str) -> Iterable[int]:
    """Return a column of counts; a ``repeat`` when all are equal."""
    column = batch.column(name)
    least, most = pc.min(column).as_py(), pc.max(column).as_py()
    if least == most and not column.null_count:
        return repeat(int(least or 0))
    return [int(value or 0) for value in column.to_pylist()]
