"""What is counted of each message of a claim that is transformed, what the policy decides, and how the claim is settled. No death forgets any of it.

It stands in an attempt journal (``delivery.journal``), whose one section holds all messages of the claim, and which is forced to disk at each step:
a unit's messages are in flight while it runs, and an attempt is counted as soon as it is known. A success is not noted: a transformation has no
effects, so a pass that takes the claim over runs it again. So what was in flight at a death is what may have caused it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_poison.delivery.failurelog import FailureLog, Rollback
from airflow_poison.delivery.journal import COUNT_MASK, MAX_ATTEMPTS, SETTLED, STATE_MASK, Journal, MessageState, attempts_of, counted
from airflow_poison.delivery.outage import was_charged
from airflow_poison.delivery.rows import BatchEntry
from airflow_poison.delivery.session import BatchReport, Searched, report_words
from airflow_poison.delivery.settlement import Delivered, Settler, Stay, counts_in, shared_ends
from airflow_poison.delivery.stage import StageJob, Tally, settled_rows, tally_row
from airflow_poison.rules.decisions import Deliver, Halt
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import HIDDEN
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.recovered import RecoveredAttempts

    Rows = NDArray[np.intp]  # of the claim's messages; a row is a message's place among them


def open_ids(job: StageJob, outcome: UnitOutcome) -> NDArray[np.int64]:
    """Return the lookup ids of the messages that have to be read for their settlement: all but those that succeeded at once."""
    wanted = (outcome.words != MessageState.COMMITTED) | outcome.before
    return outcome.lookup_ids if job.record_all else outcome.lookup_ids[wanted]


def settled(
    job: StageJob, outcome: UnitOutcome, recovered: RecoveredAttempts, batches: Iterator[pa.RecordBatch], landing_frames: Iterator[pa.Table]
) -> Iterator[pa.RecordBatch]:
    """Yield what remains of the messages and what lands, as batches of ``table_schema()``, the tally last.

    :param batches: the messages of ``open_ids``: columns of ``message_schema()`` and ``move_count``.
    :param landing_frames: what the transformation made, as rows of the partition ``_output``.
    """
    settler, total = Settler(job), Tally()
    plain = len(outcome.lookup_ids) - len(open_ids(job, outcome))
    total.counts.update(received=plain, committed=plain, deliveries=plain, timeouts=outcome.timeouts)
    order = np.argsort(outcome.lookup_ids, kind="stable")
    for batch in batches:
        ids = batch.column("lookup_id").to_numpy(zero_copy_only=False).astype(np.int64)
        words = outcome.words[order[np.searchsorted(outcome.lookup_ids, ids, sorter=order)]]
        failures = {place: outcome.failures[number] for place, number in enumerate(ids.tolist()) if number in outcome.failures}
        report = BatchReport(words, failures)
        returned = [*recovered.returned_by(batch, report).items()] if job.outputs else []
        yield from settled_rows(job, settler, Delivered(batch, report, job.clock.now(), returned), total)
    if outcome.unstable:
        none = pa.RecordBatch.from_pylist([], schema=message_schema().append(pa.field("move_count", pa.int32())))
        report = BatchReport(np.empty(0, np.int32), searched=Searched(unstable=tuple(outcome.unstable)))
        yield from settled_rows(job, settler, Delivered(none, report, job.clock.now()), total)
    for table in landing_frames:
        total.counts["landings"] += table.num_rows
        yield from table.to_batches()
    yield tally_row(total)


LARGEST_BODY = 1 << 40
_DIED = frozenset({FailureKind.CRASH, FailureKind.TIMEOUT})


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """What became of the messages of a claim.

    :param lookup_ids: of all its messages.
    :param words: one for each, as server sessions report them.
    :param failures: the last failure by lookup id, of messages that are not committed.
    :param before: whether an earlier try had delivered each to a handler, whose rows land.
    :param timeouts: deliveries that took too long.
    :param units: jobs that ran.
    :param unstable: reports of units that failed although their parts did not.
    """

    lookup_ids: NDArray[np.int64]
    words: NDArray[np.int32]
    failures: Mapping[int, Failure]
    before: NDArray[np.bool_]
    timeouts: int = 0
    units: int = 0
    unstable: Sequence[Mapping[str, str]] = ()


class ClaimCounts:
    """The messages of a claim, each with its word in the journal. Several threads may charge.

    :param messages: all of the claim: columns of ``message_schema()`` and ``move_count``; null may be what the policy does not read.
    :param journal: forced to disk.
    :param recovered: what earlier holders of the claim had counted and ended.
    :ivar lookup_ids: of the messages.
    :ivar places: of the messages in queue order.
    :ivar good: who has succeeded.
    :ivar halted: whether a message has halted the endpoint.
    """

    def __init__(self, job: StageJob, messages: pa.RecordBatch, journal: Journal, recovered: RecoveredAttempts) -> None:
        self._job, self._messages = job, messages
        self.lookup_ids: NDArray[np.int64] = messages.column("lookup_id").to_numpy(zero_copy_only=False).astype(np.int64)
        self._sorted = np.argsort(self.lookup_ids, kind="stable")
        self._journal, self._log = journal, FailureLog(journal.log_descriptor)
        self._section = journal.append(self.lookup_ids, recovered.words_for(self.lookup_ids))
        self._words = self._section.as_array()
        self._failures: dict[int, Failure] = {row: recovered.failures[number] for number, row in self.rows_of(recovered.failures).items()}
        self.places = _places(self.lookup_ids, counts_in(messages, "priority"))
        self.good = np.zeros(len(self.lookup_ids), bool)
        self._once = np.zeros(len(self.lookup_ids), bool)
        self.halted, self._timeouts = False, 0
        self._lock = threading.Lock()

    def rows_of(self, lookup_ids: Iterable[int]) -> dict[int, int]:
        """Return the rows of those lookup ids that are in the claim."""
        wanted = np.array(list(lookup_ids), np.int64)
        if not len(wanted) or not len(self.lookup_ids):
            return {}
        places = np.minimum(np.searchsorted(self.lookup_ids, wanted, sorter=self._sorted), len(self.lookup_ids) - 1)
        rows = self._sorted[places]
        hits = self.lookup_ids[rows] == wanted
        return dict(zip(wanted[hits].tolist(), rows[hits].tolist(), strict=True))

    def is_open(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a further delivery follows."""
        words = np.asarray(self._words)[rows]
        found: NDArray[np.bool_] = ~np.isin(words & STATE_MASK, SETTLED) & (attempts_of(words) < MAX_ATTEMPTS) & ~self.good[rows]
        return found

    def attempts(self, rows: Rows) -> NDArray[np.int32]:
        """Return how many rollbacks are counted."""
        return attempts_of(np.asarray(self._words)[rows])

    def is_untouched(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether nothing is counted of a message: neither now nor by earlier passes."""
        before = counts_in(self._messages, "abort_count")[rows] + counts_in(self._messages, "move_count")[rows]
        found: NDArray[np.bool_] = (np.asarray(self._words)[rows] == 0) & (before == 0)
        return found

    def last_failure(self, row: int) -> Failure:
        """Return what a message that was charged was charged with."""
        return self._failures[row]

    def was_charged(self, row: int, failure: Failure) -> bool:
        """Whether an earlier pass has charged a message with the same type of failure: it is no evidence of an outage."""
        return was_charged(self._messages, row, failure)

    def text_of(self, failure: Failure) -> str:
        """Return a failure in words; without its text where the queue hides values: the bodies of its messages are not here."""
        return f"{failure.type}: {failure.text if self._job.masking is None else HIDDEN}"

    # While units run

    def begin(self, rows: Rows) -> None:
        """Mark messages as in flight."""
        with self._lock:
            self._words[rows] = self._words[rows] & COUNT_MASK | MessageState.IN_FLIGHT
            self._journal.force()

    def end(self, rows: Rows) -> None:
        """Mark them so no more."""
        self._words[rows] &= COUNT_MASK

    def give_back(self) -> None:
        """Mark nothing as in flight any more; what was counted stays so."""
        self.end(np.flatnonzero(self._words & STATE_MASK == MessageState.IN_FLIGHT))
        self._journal.force()

    def charge(self, failed: Mapping[int, Failure]) -> None:
        """Count a rollback of each message; the texts come before the words that need them. Who is delivered at most once has been."""
        rows = np.fromiter(failed, np.intp, len(failed))
        with self._lock:
            self.good[rows[self._once[rows]]] = True
            charged = rows[~self._once[rows]]
            self._write_down(charged, failed)
            self._journal.force()
            kinds = [failed[row].kind for row in charged.tolist()]
            died = np.array([kind in _DIED for kind in kinds], bool)
            self._words[charged] = counted(np.asarray(self._words)[charged], MessageState.UNTOUCHED, crash=died)
            self._failures |= {row: failed[row] for row in charged.tolist()}
            self._timeouts += kinds.count(FailureKind.TIMEOUT)
        reach("frames.charge.after")
        self._decide(charged)

    def _write_down(self, rows: Rows, failures: Mapping[int, Failure]) -> None:
        numbers, counts = self.lookup_ids[rows].tolist(), self.attempts(rows).tolist()
        texts = zip(rows.tolist(), numbers, counts, strict=True)
        self._log.extend(Rollback(self._section.number, row, number, count, failures[row]) for row, number, count in texts)

    # What the policy says

    def received(self) -> tuple[Rows, Rows]:
        """Return the rows that are delivered, and those whose receive ends them without a delivery; in queue order.

        The policy is asked once for messages with the same facts. What is behind a message that had halted the endpoint is not received.
        """
        halts = np.flatnonzero(self._words & STATE_MASK == MessageState.HALTED)
        rows = np.flatnonzero(~np.isin(self._words & STATE_MASK, SETTLED))
        if len(halts):
            self.halted = True
            rows = rows[self.places[rows] < self.places[halts].min()]
        rows = rows[np.argsort(self.places[rows], kind="stable")]
        ending = np.zeros(len(self.lookup_ids), bool)
        for alike in self._alike(rows):
            first = int(alike[0])
            if attempts_of(int(self._words[first])):
                ending[alike] = next(self._ends(alike[:1]), None) is not None
                continue
            decision = self._unreadable(first) or self._before(first)
            ending[alike] = not isinstance(decision, Deliver)
            self._once[alike] = isinstance(decision, Deliver) and decision.at_most_once
        return rows[~ending[rows]], rows[ending[rows]]

    def end_undelivered(self, rows: Rows) -> None:
        """End messages whose receive ends them; that one is unreadable is logged."""
        unreadable = [row for row in rows[self.attempts(rows) == 0].tolist() if row in self._failures]
        self._write_down(np.array(unreadable, np.intp), self._failures)
        self._decide(rows)

    def _unreadable(self, row: int) -> Failure | None:
        """Ask the policy whether the message can be handed over at all (spec WCF-29)."""
        why = self._job.policy.unreadable(self._entry(row))
        if why is None:
            return None
        failure = self._failures[row] = Failure(FailureKind.UNREADABLE, "unreadable", why)
        return failure

    def _before(self, row: int) -> object:
        job = self._job
        return job.policy.open(job.opening).before(self._entry(row), job.clock.now())

    def _entry(self, row: int) -> BatchEntry:
        return Delivered(self._messages, BatchReport(self._words), self._job.clock.now()).entry(row)

    def _alike(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows whose messages have the same facts: their decisions are the same."""
        if not len(rows):
            return
        words = np.asarray(self._words)[rows].astype(np.int64)
        columns = [words, counts_in(self._messages, "abort_count")[rows], counts_in(self._messages, "move_count")[rows]]
        expire = self._messages.column("expires_at").null_count < self._messages.num_rows
        limited = self._job.policy.unreadable(BatchEntry.of_size(LARGEST_BODY)) is not None
        each = expire or limited or self._job.policy.reads_properties
        columns.append(rows.astype(np.int64) if each else np.where(words > MessageState.HALTED, rows, -1))
        if all((column == column[0]).all() for column in columns):
            yield rows
            return
        _, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
        order = np.argsort(which, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            yield rows[np.sort(part)]

    def _ends(self, rows: Rows) -> Iterator[tuple[Rows, MessageState]]:
        """Yield the rows of messages that no delivery follows, with the state that says so."""
        if not len(rows):
            return
        words = np.asarray(self._words)[rows] & COUNT_MASK | MessageState.HALTED
        failures = {place: self._failures[row] for place, row in enumerate(rows.tolist()) if row in self._failures}
        batch = self._messages.take(pa.array(rows, pa.int64()))
        delivered = Delivered(batch, BatchReport(words.astype(np.int32), failures), self._job.clock.now())
        for end, members, _ in shared_ends(delivered, self._job.policy, self._job.opening):
            if not isinstance(end, Stay):
                yield rows[members], MessageState.HALTED if isinstance(end, Halt) else MessageState.ENDED

    def _decide(self, rows: Rows) -> None:
        """End the messages that no delivery follows, as the policy says of their counts."""
        for ended, state in self._ends(rows):
            with self._lock:
                self._words[ended] = self._words[ended] & COUNT_MASK | state
                self.halted = self.halted or state is MessageState.HALTED
        with self._lock:
            self._journal.force()

    def outcome(self, units: int, unstable: Sequence[Mapping[str, str]]) -> UnitOutcome:
        """Return what became of the messages."""
        words = self._words.copy()
        words[self.good] = words[self.good] & COUNT_MASK | MessageState.COMMITTED
        words = report_words(words)
        failed = np.flatnonzero(words & STATE_MASK != MessageState.COMMITTED)
        failures = {int(self.lookup_ids[row]): self._failures[row] for row in failed.tolist() if row in self._failures}
        before = np.asarray(self._words) & STATE_MASK == MessageState.CARRIED
        return UnitOutcome(self.lookup_ids, words, failures, before, self._timeouts, units, unstable)


def _places(lookup_ids: NDArray[np.int64], priorities: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the place of each row in queue order: by priority, then by arrival."""
    places = np.empty(len(lookup_ids), np.intp)
    places[np.lexsort((lookup_ids, -priorities))] = np.arange(len(lookup_ids))
    return places
