"""Deliveries that are watched for an outage (``outage=``): one batch in one process, and an endpoint's. Messages are tried besides, uncounted.

Where the handler takes batches, one that fails as a whole is searched only when a message that is tried alone succeeds. What is tried besides may
be of a batch that is being searched: it is settled then, and left out of what is handed over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.delivery.journal import (
    IS_SETTLED,
    ONE_ATTEMPT,
    SETTLED,
    STATE_MASK,
    SUSPECTS,
    MessageState,
    attempts_of,
    pending,
)
from airflow_poison.delivery.outage import was_charged
from airflow_poison.delivery.rows import BatchEntry, OneRow
from airflow_poison.delivery.search import FrameDelivery
from airflow_poison.delivery.work import RAISED, SLICE, BatchDelivery
from airflow_poison.rules.decisions import Deliver, Halt, Return
from airflow_poison.rules.loop import ReceiveLoop
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.host import EndpointHost
    from airflow_poison.delivery.journal import Section
    from airflow_poison.delivery.outage import Watch
    from airflow_poison.delivery.rows import Entries
    from airflow_poison.delivery.work import Endpoint, Ladder
    from airflow_poison.rules.decisions import Counts
    from airflow_poison.rules.policy import Policy, Receiver


def first_delivery(policy: Policy, entry: BatchEntry, host: BatchDelivery | EndpointHost) -> Deliver | None:
    """Return how a message would be delivered now; None: it would not, or is gone before its handler is called."""
    if entry.led_to is not None or host.unreadable(entry) is not None:
        return None
    decision = policy.open().before(entry, host.now())
    return decision if isinstance(decision, Deliver) and not decision.at_most_once else None


class WatchedDelivery(BatchDelivery):
    """One batch whose decisions depend on each message alone, watched for an outage.

    Every rollback is logged before it counts: an outage takes back what failed so, and must know it of each message.
    """

    def __init__(self, endpoint: Endpoint, batch: pa.RecordBatch, section: Section, watch: Watch) -> None:
        super().__init__(endpoint, batch, section)
        self._watch = watch
        self._waiting: list[int] = []
        self._passed = 0
        self._halted = self._anew = False
        self._failed: tuple[int, Failure] | None = None

    def run(self) -> bool:
        """Deliver until the batch is done, a message halts the endpoint, or an outage is found; return whether one halted it."""
        watch = self._watch
        self._waiting = [row for row, value in enumerate(self._words) if not IS_SETTLED[value & STATE_MASK]]
        if self._is_over():
            return False
        ladders = self._ladders()
        for start in range(0, len(self._waiting), SLICE):
            if watch.stopped() or self._some_alone(self._waiting[start : start + SLICE], ladders):
                return self._halted
        watch.window.succeeded(len(self._waiting) - self._passed)
        return False

    def _is_over(self) -> bool:
        """Whether nothing is delivered: an outage was found, or goes on, as the first messages show."""
        watch = self._watch
        return watch.stopped() or (watch.probing and watch.begin(self._waiting[: 1 if self._policy.strict_order else None], self._attempt))

    def _again(self, row: int, ladder: Ladder, failure: Failure | None, call: Callable[[Counts], Failure | None], attempts: int = 0) -> bool:
        """Go on with a message whose delivery has failed until it has ended; return whether nothing more is delivered."""
        words = self._words
        lookup_id = self._batch.column("lookup_id")[row].as_py()
        while failure is not None:
            told = self._note(row, lookup_id, failure)
            if failure is not RAISED or (rung := ladder.rung(attempts + 1)) is None:
                break
            entry = BatchEntry(row, lookup_id, 0, None, rung.stored)
            self._log_failure(entry, told)
            attempts += 1
            words[row] = attempts * ONE_ATTEMPT | MessageState.UNTOUCHED
            if self._is_outage(row):
                return True
            words[row] = attempts * ONE_ATTEMPT | MessageState.IN_FLIGHT
            failure = call(rung.seen)
        else:
            if self._keep is not None:
                self._write_down(row, self._endpoint.rows)
            words[row] = attempts * ONE_ATTEMPT | MessageState.COMMITTED
            return False
        last = ladder.rung(attempts)
        assert last is not None, "it was delivered"
        if failure is RAISED and ladder.end is not None:
            entry = BatchEntry(row, lookup_id, 0, None, last.stored)
            self.rolled_back((entry,), entry, told)
            if self._is_outage(row) or (isinstance(ladder.end, Halt) and self.withholds(entry)):
                return True
            self.ended(entry, ladder.end, told)
            self._halted = isinstance(ladder.end, Halt)
            return self._halted
        entry = self._entries.entry(row)
        entry.counts = last.stored
        return self._through_the_loop(entry, told)

    def _through_the_loop(self, entry: BatchEntry, failure: Failure | None) -> bool:
        """Receive one message until it has ended; return whether nothing more is delivered."""
        if IS_SETTLED[self._words[entry.row] & STATE_MASK]:  # it was tried besides
            return False
        if entry.led_to is not None:
            self.ended(entry, entry.led_to, None)
            self._halted = isinstance(entry.led_to, Halt)
            return self._halted
        self._first, self._anew = failure, failure is not None
        loop = ReceiveLoop(self._endpoint.receiver, OneRow(self._policy, self._entries, entry, self._words), self)
        while loop.step():
            if self._anew and self._is_outage(entry.row):
                return True
            self._anew = False
        self._halted = loop.halt is not None
        return self._halted or loop.withheld

    def deliver(self, entry: BatchEntry, delivery: Deliver) -> Failure | None:
        """Call the handler, and note what came of it."""
        is_noted = self._first is not None
        failure = super().deliver(entry, delivery)
        if failure is None or is_noted or delivery.at_most_once:
            return failure
        return self._note(entry.row, entry.lookup_id, failure)

    def rolled_back(self, entries: Sequence[BatchEntry], culprit: BatchEntry | None, failure: Failure) -> None:
        """Log the failure, then count the attempt."""
        for entry in entries:
            self._log_failure(entry, failure)
        super().rolled_back(entries, culprit, failure)

    def withholds(self, entry: BatchEntry) -> bool:
        """Try others, to see whether it is the message's fault."""
        failure = self._failed[1] if self._failed is not None and self._failed[0] == entry.row else None
        resumed = bool(attempts_of(self._words[entry.row]))
        return self._watch.doubt(failure, self._others(entry.row), self._attempt, resumed=resumed)

    def _note(self, row: int, lookup_id: int, failure: Failure) -> Failure:
        """Note a failure, and the messages before it that went well; return it with its text, which only the last exception has."""
        told = self._endpoint.tell(failure)
        self._note_before(row)
        self._failed, self._anew = (row, told), True
        self._watch.ended(self._batch, row, lookup_id, told)
        return told

    def _note_before(self, row: int) -> None:
        place = bisect_left(self._waiting, row)
        self._watch.window.succeeded(max(0, place - self._passed))
        self._passed = max(self._passed, place + 1)

    def _is_outage(self, row: int) -> bool:
        watch = self._watch
        if watch.stopped():
            return True
        behind = len(self._waiting) - self._passed
        return watch.window.suspect(behind) is not None and watch.judge(self._others(row), self._attempt)

    def _others(self, row: int) -> list[int]:
        """Return the rows behind one that were not received yet; none where nothing may overtake a message."""
        behind = [] if self._policy.strict_order else self._waiting[bisect_right(self._waiting, row) :]
        return [other for other in behind if self._may_be_tried(other)]

    def _may_be_tried(self, row: int) -> bool:
        return not self._words[row]

    def _attempt(self, row: int) -> Failure | None:
        """Deliver the message of a row; what fails is as it was. A death is charged as ever: the message is in flight."""
        before, entry = self._words[row], self._entries.entry(row)
        delivery = first_delivery(self._policy, entry, self)
        if delivery is None:
            return None
        self._words[row] = before & ~STATE_MASK | MessageState.IN_FLIGHT
        failure = self._call(row, delivery.counts)
        if failure is None:
            if self._keep is not None:
                self._write_down(row, self._endpoint.rows)
            self._store(row, MessageState.COMMITTED)
            return None
        self._words[row] = before
        return self._endpoint.tell(failure)


class WatchedFrames(WatchedDelivery, FrameDelivery):
    """The same for a handler that takes many messages at once. What succeeds is noted when it is committed."""

    def run(self) -> bool:
        """Deliver until the batch is done, a message halts the endpoint, or an outage is found; return whether one halted it."""
        self._waiting = [row for row in self._unsettled.tolist() if row not in self._frames.failures]
        if self._is_over():
            return False
        self._unsettled = self._left(self._unsettled)
        return FrameDelivery.run(self)

    def _transaction(self, rows: NDArray[np.intp], *, probe: bool) -> int:
        self._halted = self._halted or self._watch.stopped()
        return super()._transaction(self._left(rows), probe=probe)

    def _searched(self, rows: NDArray[np.intp], failure: Failure) -> int:
        if self._watch.judge_batch(failure, len(rows), self._others(int(rows[0])), self._evidence):
            self._halted = True
            return 0
        return super()._searched(rows, failure)

    def _search(self, rows: NDArray[np.intp]) -> int:
        left = self._left(rows)
        return super()._search(left) if len(left) else 0

    def _charge(self, rows: NDArray[np.intp], named: dict[int, Failure]) -> NDArray[np.intp]:
        return self._left(super()._charge(rows, named))

    def _commit(self, rows: NDArray[np.intp], kept: NDArray[np.int32]) -> None:
        super()._commit(rows, kept)
        self._watch.window.succeeded(len(rows))

    def _deliver_alone(self, row: int) -> int:
        if IS_SETTLED[self._words[row] & STATE_MASK]:
            return 0
        failed = super()._deliver_alone(row)
        if self._words[row] & STATE_MASK == MessageState.COMMITTED:
            self._watch.ended(self._batch, row, self._entries.entry(row).lookup_id, None)
        return failed

    def _roll_back(self, row: int, failure: Failure) -> None:
        """Log what the handler has said of a message, then count it. It is not the outage's, however the message ends."""
        self._failed = row, failure
        self._log_failure(self._entries.entry(row), failure)
        super()._roll_back(row, failure)

    def _deliver_what_was_put_off(self, later: list[int]) -> None:
        """Deliver what others have overtaken; in an outage only charge what the handler has named."""
        if not self._watch.stopped():
            super()._deliver_what_was_put_off(later)
        if self._watch.over:
            self._charge_named()

    def _note_before(self, row: int) -> None:
        """Nothing: the messages before it were noted when they were committed."""

    def _may_be_tried(self, row: int) -> bool:
        return (not self._words[row] or self._words[row] in SUSPECTS) and row not in self._named

    def _evidence(self, row: int) -> Failure | None:
        """Deliver the message of a row as ``_attempt`` does; return its evidence of an outage."""
        failure = self._attempt(row)
        return None if failure is None or was_charged(self._batch, row, failure) else failure

    def _left(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Leave out what is settled: it was tried besides."""
        return rows[~np.isin(self._array[rows] & STATE_MASK, SETTLED)]


class EndpointWatch:
    """Watches the deliveries of an endpoint, in one batch.

    :param grouped: a conversation group is with one session at a time, in its order.
    """

    def __init__(self, watch: Watch, batch: pa.RecordBatch, policy: Policy, entries: Entries, host: EndpointHost, *, grouped: bool) -> None:
        self._watch, self._batch, self._policy, self._entries, self._host, self._grouped = watch, batch, policy, entries, host, grouped
        self._words = host.words
        self._groups = entries.groups() if grouped else []
        self._failed: dict[int, Failure] = {}
        self._anew = False
        self.loop: ReceiveLoop[BatchEntry] | None = None
        self.receiver: Receiver | None = None

    def ended(self, entry: BatchEntry, failure: Failure | None) -> None:
        """Note the end of a delivery."""
        self._watch.ended(self._batch, entry.row, entry.lookup_id, failure)
        if failure is not None:
            self._failed[entry.row], self._anew = failure, True

    def begin(self) -> bool:
        """Try the first messages where the pass probes; return whether the outage goes on."""
        return self._watch.probing and self._watch.begin(self._others(-1), partial(self._attempt, is_receive=True))

    def judge(self) -> bool:
        """Return whether the deliveries since the last call make an outage."""
        if not self._anew or not self._host.has_free:
            return False
        self._anew = False
        watch = self._watch
        return watch.window.suspect(watch.detection.outage.tried_besides) is not None and watch.judge(self._others(-1), self._attempt)

    def withholds(self, entry: BatchEntry) -> bool:
        """Try others, to see whether it is the message's fault."""
        resumed = bool(attempts_of(self._words[entry.row]))
        return self._watch.doubt(self._failed.get(entry.row), self._others(entry.row), self._attempt, resumed=resumed)

    def _others(self, but: int) -> list[int]:
        """Return the rows that could be received now beside one, and that were not received yet; none where nothing may overtake a message."""
        rows: list[int] = pending(np.frombuffer(self._words, np.int32)).tolist()
        if self._policy.strict_order:
            rows = rows[:1]
        taken = {but, *self._host.busy}
        if not self._grouped:
            return [row for row in rows if not self._words[row] and row not in taken]
        heads: dict[str, int] = {} if but < 0 else {self._groups[but]: but}
        for row in rows:
            heads.setdefault(self._groups[row], row)
        return [row for row in heads.values() if not self._words[row] and row not in taken]

    def _attempt(self, row: int, *, is_receive: bool = False) -> Failure | None:
        """Deliver the message of a row; what fails is as it was, but for a delivery that ended its process: that one is charged.

        :param is_receive: a success is one for the endpoint; else it ends no sequence of failures, since no receive of its own would have come to it.
        """
        assert self.loop is not None, "watched while it receives"
        host, entry = self._host, self._entries.entry(row)
        delivery = first_delivery(self._policy, entry, host)
        if delivery is None or not host.receives(entry):
            return None
        stored, entry.counts = entry.counts, delivery.counts
        failure = host.deliver(entry, delivery)
        if failure is None:
            host.committed([entry])
            host.carried(entry)
            if is_receive:
                self.loop.noted([entry])
        elif failure.kind in {FailureKind.CRASH, FailureKind.TIMEOUT}:
            self._charge(entry, failure)
        else:
            entry.counts = stored
            host.taken_back(entry)
        return failure

    def _charge(self, entry: BatchEntry, failure: Failure) -> None:
        assert self.loop is not None, "watched while it receives"
        assert self.receiver is not None, "watched while it receives"
        self.receiver.transaction_aborted(became_poison=False)
        decision = self.receiver.after_rollback(entry, failure, self._host.now())
        entry.counts = decision.counts
        self._host.rolled_back([entry], entry, failure)
        if isinstance(decision, Return):
            self._host.source.remember(entry)
        else:
            self.loop.end(entry, decision, failure)
