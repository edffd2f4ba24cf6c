"""Batches under policies that keep an order: messages that come next are one transaction, as if each had been delivered in its turn.

A copy of the receiver says which messages would be delivered one after the other if each of them commits. These go to the handler together. When it
returns, the decision is stored, and the receive loop takes their turns one by one, with nothing left to deliver. When it fails, the batch is
rolled back uncounted and its messages come again in smaller pieces; one that stands alone is the loop's, like any other.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from airflow_poison.delivery.sessions.journal import SMALL_BATCH, STATE_MASK, SUSPECTS, MessageState, attempts_of
from airflow_poison.delivery.sessions.returned import NOTHING, keep_all
from airflow_poison.delivery.sessions.search import piece_of, unstable
from airflow_poison.delivery.sessions.wire import BatchCall
from airflow_poison.rules.decisions import Counts, Deliver
from airflow_poison.values.failures import FailureKind
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_poison.delivery.sessions.host import BatchCallers, EndpointHost, EndpointSession
    from airflow_poison.delivery.sessions.rows import BatchEntry, Rows
    from airflow_poison.delivery.sessions.session import BatchRecord
    from airflow_poison.delivery.sessions.wire import Handed
    from airflow_poison.rules.loop import ReceiveLoop

_DIED = {FailureKind.CRASH, FailureKind.TIMEOUT}


@dataclass(slots=True)
class _Failing:
    """A batch that has failed, and whose messages come again.

    :param lookup_ids: of its messages.
    :param last: its last row.
    :param piece: how many of them come together now.
    :param found: whether one of them was charged.
    """

    lookup_ids: Sequence[int]
    last: int
    piece: int
    error: str
    found: bool = False


class OrderedBatches:
    """Receives the messages of one Arrow batch in order, many at once where that is the same."""

    def __init__(self, endpoint: EndpointSession, record: BatchRecord, host: EndpointHost, source: Rows, loop: ReceiveLoop[BatchEntry]) -> None:
        batching = endpoint.job.batching
        assert batching is not None, "its handler takes frames"
        self._endpoint, self._record, self._host, self._source, self._loop = endpoint, record, host, source, loop
        self._words, self._most = record.section.words, batching.size
        self._failing: list[_Failing] = []
        self._named: set[int] = set()
        suspects = {row: state for row, state in enumerate((record.initial & STATE_MASK).tolist()) if state in SUSPECTS}
        self._pieces = {row: SMALL_BATCH if state == MessageState.SUSPECTED else 1 for row, state in suspects.items()}

    def step(self) -> bool:
        """Carry out one transaction; False when there was nothing to receive, or the endpoint has halted."""
        if self._loop.halt is not None:
            return False
        now = self._host.now()
        entries, seen = self._ahead(now)
        if len(entries) > 1:
            self._several(entries, seen, now)
            return True
        return self._one()

    def _one(self) -> bool:
        """Have the loop carry out one transaction, and see whether it has charged a message."""
        following = self._source.ahead(1, lambda _entry: True)
        received = self._loop.step()
        for entry in following:
            self._end_failing(entry.row)
            if attempts_of(self._words[entry.row]) or self._words[entry.row] & STATE_MASK in (MessageState.ENDED, MessageState.HALTED):
                self._charged()
        if not received:
            self._end_failing(len(self._words))
        return received

    def _ahead(self, now: datetime) -> tuple[list[BatchEntry], list[Counts]]:
        """Return the messages that are delivered next, one after the other, if each of them commits, and the counts that they see."""
        receiver, seen, most, last = deepcopy(self._endpoint.receiver), list[Counts](), self._most, len(self._words)
        ended = False

        def fits(entry: BatchEntry) -> bool:
            nonlocal most, last, ended
            row = entry.row
            if not seen:
                self._end_failing(row)
                if self._failing:
                    most, last = min(most, self._failing[-1].piece), self._failing[-1].last
                most = min(most, self._pieces.get(row, most))
            if ended or len(seen) >= most or row > last or row in self._named or self._words[row] or self._pieces.get(row, most) < most:
                return False
            if self._host.unreadable(entry) is not None:
                return False
            imagined = copy(entry)
            decision = receiver.before(imagined, now)
            if not isinstance(decision, Deliver) or decision.at_most_once:
                return False
            imagined.counts = decision.counts
            seen.append(decision.counts)
            ended = receiver.transaction_committed([imagined]) is not None
            return True

        return self._source.ahead(self._most, fits), seen

    def _several(self, entries: Sequence[BatchEntry], seen: list[Counts], now: datetime) -> None:
        """Hand several messages over as one transaction."""
        rows = [entry.row for entry in entries]
        failure, named, returned = self._hand(rows, seen)
        if failure is None:
            if self._endpoint.keep is not None:
                records = ((entry.lookup_id, 0, returned[place] if returned else NOTHING) for place, entry in enumerate(entries))
                keep_all(self._endpoint.keep, records, partial(self._give_back, rows))
            self._commit(rows, now)
            return
        self._give_back(rows)
        if named:
            self._named |= {rows[place] for place in named}
            self._charged()
            return
        died = failure.kind in _DIED
        piece = (SMALL_BATCH if len(rows) > SMALL_BATCH else 1) if died else piece_of(len(rows))
        error = f"{failure.type}: {failure.text}"
        self._failing.append(_Failing([entry.lookup_id for entry in entries], rows[-1], piece, error))

    def _give_back(self, rows: list[int]) -> None:
        for row in rows:
            self._words[row] = MessageState.UNTOUCHED

    def _hand(self, rows: list[int], seen: list[Counts]) -> Handed:
        endpoint = self._endpoint
        endpoint.callers.prepare(0)
        endpoint.log.append_handed(self._record.section.number, len(rows), probe=bool(self._failing) or rows[0] in self._pieces)
        for row in rows:
            self._words[row] = MessageState.IN_BATCH
        if endpoint.force is not None:
            endpoint.force()
        reach("delivery.batch.in_hand")
        return cast("BatchCallers", endpoint.callers).several(0, BatchCall(rows, seen))

    def _commit(self, rows: list[int], now: datetime) -> None:
        """Store that all are committed, then have the loop take their turns; it commits the last one last."""
        reach("delivery.batch.before_word")
        self._words[rows[-1]] = MessageState.DECIDED
        reach("delivery.batch.after_word")
        self._host.delivered, self._host.at = frozenset(rows), now
        try:
            for _ in rows:
                self._loop.step()
        finally:
            self._host.delivered, self._host.at = frozenset(), None
        self._end_failing(rows[-1] + 1)

    def _end_failing(self, row: int) -> None:
        """Take note of the failing batches that end before a row; a batch without a culprit is unstable."""
        while self._failing and self._failing[-1].last < row:
            failing = self._failing.pop()
            if not failing.found:
                self._endpoint.log.append_unstable(self._record.section.number, unstable(failing.lookup_ids, failing.error))

    def _charged(self) -> None:
        for failing in self._failing:
            failing.found = True
