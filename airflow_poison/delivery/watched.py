"""Deliveries that are watched for an outage (``outage=``): one batch in one process, and an endpoint's. Messages are tried besides, uncounted.

Where the handler takes batches, one that fails as a whole is searched only when a message that is tried alone succeeds. What is tried besides may
be of a batch that is being searched: it is settled then, and left out of what is handed over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from airflow_poison.delivery.journal import attempts_of, pending
from airflow_poison.delivery.outage import was_charged
from airflow_poison.rules.decisions import Deliver, Return
from airflow_poison.values.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_poison.delivery.host import EndpointHost
    from airflow_poison.delivery.outage import Watch
    from airflow_poison.delivery.rows import BatchEntry, Entries
    from airflow_poison.delivery.work import BatchDelivery
    from airflow_poison.rules.loop import ReceiveLoop
    from airflow_poison.rules.policy import Policy, Receiver
    from airflow_poison.values.failures import Failure


def first_delivery(policy: Policy, entry: BatchEntry, host: BatchDelivery | EndpointHost) -> Deliver | None:
    """Return how a message would be delivered now; None: it would not, or is gone before its handler is called."""
    if entry.led_to is not None or host.unreadable(entry) is not None:
        return None
    decision = policy.open().before(entry, host.now())
    return decision if isinstance(decision, Deliver) and not decision.at_most_once else None


class BatchWatch:
    """Looks for an outage among the deliveries of one batch whose decisions depend on each message alone.

    :param delivery: of the batch; tries messages besides, uncounted.
    :param strict_order: nothing may overtake a message, so none is tried besides.
    :param together: the handler takes many messages at once: what succeeds is noted when it is committed.
    :ivar is_new: a delivery has failed that was not judged yet.
    """

    def __init__(self, watch: Watch, delivery: BatchDelivery, batch: pa.RecordBatch, *, strict_order: bool, together: bool) -> None:
        self._watch, self._delivery, self._batch, self._strict_order, self._together = watch, delivery, batch, strict_order, together
        self._waiting: Sequence[int] = ()
        self._passed = 0
        self._failed: tuple[int, Failure] | None = None
        self.is_new = False

    def begin(self, rows: Sequence[int]) -> bool:
        """Return whether nothing is delivered: an outage was found, or goes on, as the first messages show.

        :param rows: that wait, in their order.
        """
        self._waiting = rows
        first = rows[: 1 if self._strict_order else None]
        return self.stopped() or (self._watch.probing and self._watch.begin(first, self._delivery.attempt))

    def stopped(self) -> bool:
        """Whether an outage was found, here or in another task."""
        return self._watch.stopped()

    def failed(self, row: int, failure: Failure) -> None:
        """Note a delivery that failed, and the messages before it that went well."""
        self._note_before(row)
        self.named(row, failure)
        self.is_new = True
        self._note(row, failure)

    def named(self, row: int, failure: Failure) -> None:
        """Note why the handler has named a message."""
        self._failed = row, failure

    def committed(self, row: int) -> None:
        """Note a message that was delivered alone."""
        self._note(row, None)

    def succeeded(self, messages: int) -> None:
        """Note messages that were delivered together."""
        self._watch.window.succeeded(messages)

    def end(self) -> None:
        """Note that all messages behind the last failure went well."""
        self._watch.window.succeeded(len(self._waiting) - self._passed)

    def judge(self, row: int) -> bool:
        """Return whether the deliveries since the last call make an outage."""
        is_new, self.is_new = self.is_new, False
        return is_new and self.is_outage(row)

    def is_outage(self, row: int) -> bool:
        """Return whether the last deliveries make an outage, the last of them a message's."""
        if self.stopped():
            return True
        behind = len(self._waiting) - self._passed
        return self._watch.window.suspect(behind) is not None and self._watch.judge(self._others(row), self._delivery.attempt)

    def is_outage_of_batch(self, rows: Sequence[int], failure: Failure) -> bool:
        """Return whether several messages that were handed over together have failed for an outage: single ones are tried now."""
        return self._watch.judge_batch(failure, len(rows), self._others(rows[0]), self._evidence)

    def doubts(self, row: int, *, resumed: bool) -> bool:
        """Return whether the failure for which a message would halt the endpoint is an outage's: others are tried now.

        :param resumed: it has attempts that are counted already.
        """
        failure = self._failed[1] if self._failed is not None and self._failed[0] == row else None
        return self._watch.doubt(failure, self._others(row), self._delivery.attempt, resumed=resumed)

    def _note(self, row: int, failure: Failure | None) -> None:
        self._watch.ended(self._batch, row, self._batch.column("lookup_id")[row].as_py(), failure)

    def _evidence(self, row: int) -> Failure | None:
        """Try the message of a row; return its evidence of an outage."""
        failure = self._delivery.attempt(row)
        return None if failure is None or was_charged(self._batch, row, failure) else failure

    def _note_before(self, row: int) -> None:
        if self._together:  # they were noted when they were committed
            return
        place = bisect_left(self._waiting, row)
        self._watch.window.succeeded(max(0, place - self._passed))
        self._passed = max(self._passed, place + 1)

    def _others(self, row: int) -> list[int]:
        """Return the rows behind one that were not received yet; none where nothing may overtake a message."""
        behind = () if self._strict_order else self._waiting[bisect_right(self._waiting, row) :]
        return [other for other in behind if self._delivery.may_be_tried(other)]


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
