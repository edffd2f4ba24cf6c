"""The receive stage: the function that one task runs over its share of the claimed messages, in Spark or without.

Batches of messages go in; rows of what remains, events and one tally come out. It knows no Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from airflow_poison.delivery.handlers import BATCH_BYTES, BATCH_SIZE, Batching, HandlerRef, Transformation
from airflow_poison.rules.policy import FIRST, Opening, Policy
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import np, pa
from airflow_poison.values.schema import TALLY, SubQueue, table_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.outage import Detection
    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.session import ServerSession
    from airflow_poison.delivery.settlement import Delivered, Settler
    from airflow_poison.dialogs.acts import Envelope
    from airflow_poison.dialogs.transaction import DialogState, Place
    from airflow_poison.outputs.output import Output
    from airflow_poison.rules.decisions import Halt
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.masking import Masking


SWEPT_ROWS, SWEPT_BYTES = 100_000, 256 << 20
"""What a task holds at once for a sweep; a longer queue is swept in pieces."""
FORCED_ROWS = 64
"""Messages in a section of a journal that is forced to disk. When its machine is lost, so many are suspected, and may be delivered again."""


class Order(StrEnum):
    """Which order a receive stage keeps."""

    NONE = "none"  # tasks side by side
    GROUPS = "groups"  # every conversation group in its order, in one task
    QUEUE = "queue"  # all messages in queue order, in one task


@dataclass(frozen=True, slots=True)
class StageJob:
    """What every task of a receive stage needs; picklable.

    :param journal_folder: where attempts are journaled, one file a task attempt.
    :param recovered: path of what earlier holders of the claim had already done, None when there is nothing.
    :param isolation: ``process`` (a supervised child) or ``none``: inline, for trusted handlers and debugging. Then a crash ends the worker,
        nothing ends a handler that hangs, and what it prints goes where the worker's output goes.
    :param unprocessable: exception types, or ``module:Type``, that mean what ``Unprocessable`` means.
    :param record_all: also write the routine events of every delivery.
    :param opening: what the endpoint finds when it opens.
    :param order: what must stay in order; whatever need not may run side by side.
    :param stop_file: where endpoints of the same queue in several tasks announce that one has halted; None: one task at most halts.
    :param only: lookup ids of the only messages to deliver, one after the other, in one task; nothing but their journal is written. Empty: all.
    :param alone: lookup ids of messages that get a section of the journal of their own, where sections are forced to disk.
    :param singly: one task with one server session.
    :param forced: the journal is forced to disk, in sections of few messages where each decision depends on its message alone.
    :param outputs: where the rows land that the handler returns; none: nothing lands.
    :param key: of the pass, for rows with provenance.
    :param parks: messages wait behind earlier ones of their groups (``store.parking``). The order is then not ``NONE``, and by lookup id alone.
    :param transform: a function of a DataFrame that takes the handler's place; only an engine of Spark carries it out.
    :param deaths: of a transformation's suspects, by lookup id: at how many deaths of everything each was being transformed.
    :param share: takes what stands in the journals, where they stay on a node that may be lost; None: everybody sees them.
    :param sections: of suspects of a lost node, by lookup id: how many messages a section of the journal may have that holds one. Empty: none are.
    :param dialogs: path of the claim's conversations (``DialogState``); None: the queue has no services. With them the order is not ``NONE``.
    :param batching: the handler gets frames of many messages; None: one message at a time.
    :param detection: of outages; None: every failure is charged.
    :param masking: which values of messages are not written down nor logged; None: nothing is hidden.
    :param closed: nothing is delivered: what ``recovered`` says is settled, and the rest stays.
    """

    queue: str
    policy: Policy
    handler: HandlerRef
    journal_folder: str
    clock: Clock
    read_from: SubQueue = SubQueue.MAIN
    recovered: str | None = None
    isolation: str = "process"
    unprocessable: tuple[str | type[BaseException], ...] = ()
    record_all: bool = False
    opening: Opening = FIRST
    order: Order = Order.NONE
    stop_file: str | None = None
    only: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    singly: bool = False
    forced: bool = False
    dialogs: str | None = None
    outputs: tuple[Output, ...] = ()
    key: str = ""
    batching: Batching | None = None
    detection: Detection | None = None
    masking: Masking | None = None
    closed: bool = False
    parks: bool = False
    transform: Transformation | None = None
    deaths: Mapping[int, int] = field(default_factory=dict)
    share: Callable[[str, int, bytes], None] | None = None
    sections: Mapping[int, int] = field(default_factory=dict)


def deliver_alone(job: StageJob, batches: Iterable[pa.RecordBatch]) -> None:
    """Deliver the messages of ``job.only`` one at a time; the results are in their journal."""
    from airflow_poison.delivery.recovered import ALONE

    for _ in _delivered(job, ALONE, batches, Tally()):
        pass


def deliver_partition(job: StageJob, partition: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Deliver every message of a partition and yield what remains, as batches of ``table_schema()``, the tally last.

    Once the endpoint has halted, the other messages pass through as they came. Once a task has found an outage, nothing more is yielded: the pass
    is settled anew (``closed``).
    """
    from airflow_poison.delivery.settlement import Settler

    settler, total = Settler(job), Tally()
    for delivered in _delivered(job, partition, batches, total):
        yield from settled_rows(job, settler, delivered, total)
    if total.counts["received"]:
        yield tally_row(total)


def _delivered(job: StageJob, partition: str, batches: Iterable[pa.RecordBatch], total: Tally) -> Iterator[Delivered]:
    """Hand the batches to a server session, opened when there is a first message."""
    from airflow_poison.delivery.session import open_session

    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    known = _known(job, partition)
    total.counts["timeouts"] += known.timeouts
    with open_session(job, partition, known, _dialog_state(job)) as session:
        cut = _cut(job, chain([first], filled))
        for delivered in _in_waves(job, session, known, cut) if job.parks and not job.closed else _reported(job, session, cut):
            report = delivered.report
            counts = {"timeouts": report.timeouts, "not_landed": report.not_landed}
            total.counts.update(counts, probes=report.searched.probes, rows_handed=report.searched.rows_handed)
            if job.detection is not None and job.detection.found:
                return
            returned = [*known.returned_by(delivered.batch, report).items(), (job.journal_folder, report.returned)] if job.outputs else []
            yield replace(delivered, returned=returned)
        total.close(job.opening.counters, session.counters())


def _reported(job: StageJob, session: ServerSession, batches: Iterable[pa.RecordBatch]) -> Iterator[Delivered]:
    """Yield each batch when it has been delivered."""
    from airflow_poison.delivery.settlement import Delivered

    for batch in batches:
        reach("delivery.stage.before_batch")
        report = session.deliver(batch)
        reach("delivery.stage.after_batch")
        yield Delivered(batch, report, job.clock.now())


def _in_waves(job: StageJob, session: ServerSession, known: RecoveredAttempts, batches: Iterable[pa.RecordBatch]) -> Iterator[Delivered]:
    """Deliver in waves of at most one message of a group. A message whose group has an unresolved earlier one is not delivered.

    It is reported as it came, but for what an earlier try of the claim has done with it.
    """
    from airflow_poison.delivery.session import recovered_report
    from airflow_poison.delivery.settlement import Delivered
    from airflow_poison.store.parking import first_of_groups, waiting, waves

    unresolved: dict[str, int] = {}
    for batch in batches:
        ids, groups = batch.column("lookup_id").to_numpy(), batch.column("group_id")
        behind: list[NDArray[np.int64]] = []
        for rows in waves(ids, groups):
            waits = waiting(ids[rows], groups.take(rows), unresolved)
            behind.append(rows[waits])
            wave = batch.take(rows[~waits])
            for reported in _reported(job, session, [wave] if wave.num_rows else []):
                yield reported
                stay = _stay(job, reported)
                unresolved |= first_of_groups(ids[rows[~waits]][stay], wave.column("group_id").take(stay))
        left = np.concatenate(behind)
        if len(left):
            kept = batch.take(np.sort(left))
            report = recovered_report(kept, known, halted=True)
            assert report is not None, "nothing is delivered behind a halt"
            yield Delivered(kept, report, job.clock.now())


def _stay(job: StageJob, delivered: Delivered) -> NDArray[np.int64]:
    """Return the rows of messages that have neither been settled nor left the queue."""
    from airflow_poison.delivery.settlement import name_of, shared_ends

    ends = shared_ends(delivered, job.policy, job.opening)
    return np.array(sorted(row for end, members, _ in ends if name_of(end) in KEPT for row in members), np.int64)


def settled_rows(job: StageJob, settler: Settler, delivered: Delivered, total: Tally) -> Iterator[pa.RecordBatch]:
    """Yield what a batch leaves behind: what remains of its messages, events, and what they returned; and count it."""
    rows, tally = settler.settle(delivered)
    total.add(tally)
    for table in (*rows, *_landing(job, delivered, total)):
        yield from table.combine_chunks().to_batches()


def _landing(job: StageJob, delivered: Delivered, total: Tally) -> list[pa.Table]:
    """Return what messages returned as rows of the partition ``_output``, and count it."""
    if not delivered.returned:
        return []
    from airflow_poison.delivery.landing_rows import landing_rows
    from airflow_poison.delivery.returned import LearnedColumns

    found = []
    for folder, returned in delivered.returned:
        found += landing_rows(job, returned, LearnedColumns(Path(folder)).known, delivered.at)
    total.counts["landings"] += sum(table.num_rows for table in found)
    return found


def _cut(job: StageJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make the batches as large as their sections of the journal are meant to be."""
    if job.only:
        return _slices(batches, 1)
    if job.forced and job.policy.stateless and job.dialogs is None:
        return _slices(batches, FORCED_ROWS, frozenset(job.alone))
    if job.sections and job.policy.stateless and job.dialogs is None:
        return _graded(batches, job.sections)
    if job.policy.sweeps:
        return _swept(batches)
    if job.batching is None:
        return iter(batches)
    size = job.batching.size
    return sized(batches, size * max(1, BATCH_SIZE // size))


def _slices(batches: Iterable[pa.RecordBatch], most: int, alone: frozenset[int] = frozenset()) -> Iterator[pa.RecordBatch]:
    """Cut batches into consecutive rows, at most so many; those with these lookup ids come alone."""
    for batch in batches:
        start = 0
        for row, lookup_id in enumerate(batch.column("lookup_id").to_pylist()):
            if row > start and (row - start == most or lookup_id in alone):
                yield batch.slice(start, row - start)
                start = row
            if lookup_id in alone:
                yield batch.slice(row, 1)
                start = row + 1
        if start < batch.num_rows:
            yield batch.slice(start)


def _graded(batches: Iterable[pa.RecordBatch], sizes: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    """Cut batches into consecutive rows: suspects alike, at most as many as they may be, and all others between them."""
    for batch in batches:
        wanted = [sizes.get(lookup_id or 0, 0) for lookup_id in batch.column("lookup_id").to_pylist()]
        start = 0
        for row in range(1, batch.num_rows + 1):
            if row == batch.num_rows or wanted[row] != wanted[start] or (wanted[start] and row - start == wanted[start]):
                yield batch.slice(start, row - start)
                start = row


def sized(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Put batches together, and cut them, so that each has so many messages, fewer where they are large."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            fitting = max(1, min(most, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
            if rows >= fitting:
                yield _joined(gathered)
                gathered, rows = [], 0
            gathered.append(batch.slice(start, fitting - rows))
            start += gathered[-1].num_rows
            rows += gathered[-1].num_rows
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _swept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put batches together: a sweep goes over all that the task holds at once before it begins again at the top (spec WMQ-29)."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        if gathered and (
            sum(b.num_rows for b in gathered) + batch.num_rows > SWEPT_ROWS or sum(b.nbytes for b in gathered) + batch.nbytes > SWEPT_BYTES
        ):
            yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()
            gathered = []
        gathered.append(batch)
    if gathered:
        yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()


def _known(job: StageJob, partition: str) -> RecoveredAttempts:
    """Return what earlier holders of the claim had done, and earlier attempts of this very task (Spark runs a failed task again)."""
    from airflow_poison.delivery.recovered import RecoveredAttempts, read_partition

    recovered = RecoveredAttempts.load(Path(job.recovered)) if job.recovered else RecoveredAttempts()
    if job.closed:  # it says all
        return recovered
    return recovered.merged(read_partition(Path(job.journal_folder), partition))


def exceptions_of(job: StageJob) -> Mapping[int, Place]:
    """Return the messages that are received elsewhere than in the order of their lookup ids, by lookup id."""
    dialog_state = _dialog_state(job)
    return {} if dialog_state is None else dialog_state.exceptions


def _dialog_state(job: StageJob) -> DialogState | None:
    if job.dialogs is None:
        return None
    assert job.order is not Order.NONE, "the messages of a conversation are in one task"
    from airflow_poison.dialogs.transaction import DialogState

    return DialogState.load(Path(job.dialogs))


def tally_row(tally: Tally) -> pa.RecordBatch:
    """Return the row of the stage with a task's tally."""
    row = {"body": json.dumps(tally.to_record()).encode(), "sub_queue": TALLY, "move_count": 0}
    return pa.Table.from_pylist([row], schema=table_schema()).combine_chunks().to_batches()[0]


# What it counts


KEPT = ("parked", "poisoned", "postponed", "untouched", "blocked", "halted")
"""Ends after which the message is still in its queue."""
SENT_ON = ("rejected", "dead_lettered", "requeued", "exceptioned")
"""Ends after which it is in the outbox."""
LEFT_THE_QUEUE = ("dropped", *SENT_ON)
"""Ends after which it has left its queue."""
_MOST_ERRORS, _MOST_KINDS = 20, 1_000


class HaltRecord(TypedDict):
    """What halted an endpoint.

    ``lookup_id`` is None when no message is the cause; ``at`` is ISO 8601 in UTC; ``details`` are the facts of the endpoint's event; of the message
    of a dialog they name its ``conversation`` and the service of its ``partner``.
    """

    lookup_id: int | None
    how: str
    error: str
    at: str
    abort_count: int
    move_count: int
    details: dict[str, str]


def halt_record(halt: Halt, lookup_id: int | None, error: str, at: datetime, envelope: Envelope | None = None) -> HaltRecord:
    """Return the record of a policy's decision.

    :param error: what the last failure of its message said.
    :param envelope: of its message, where that belongs to a dialog of this queue.
    """
    dialog = {} if envelope is None else {"conversation": envelope.to_handle, "partner": envelope.from_service}
    return HaltRecord(
        lookup_id=lookup_id,
        how=halt.how.value,
        error=error,
        at=at.isoformat(),
        abort_count=halt.counts.abort_count,
        move_count=halt.counts.move_count,
        details={**halt.details, **dialog},
    )


class BlockRecord(TypedDict):
    """What blocks a queue: the message, and until when in ISO 8601, None: until the broker restarts or the message is removed."""

    lookup_id: int
    until: str | None


class OutageRecord(TypedDict):
    """An outage that a pass has found, or whose probe has failed.

    ``fingerprint`` and ``error`` describe the failures, ``at``, ``since`` and ``next_probe_at`` ISO 8601 in UTC: when it was found, when it
    began, and before when nothing is delivered. ``given_back`` messages failed so in this pass; they are where they were, with their counts.
    """

    fingerprint: str
    error: str
    at: str
    since: str
    next_probe_at: str
    given_back: int


@dataclass(slots=True)
class Tally:
    """Numbers by name, failures by fingerprint (text and number of messages), what halted the endpoint, and what it leaves behind.

    ``received = committed + parked + poisoned + postponed + untouched + blocked + halted + dropped + rejected + dead_lettered + requeued +
    exceptioned``. Of the dropped, ``discarded`` were discarded by the state of their conversations. Handlers have ``sent`` messages to
    partners; ``transmissions`` and ``conversations`` are the rows for that and for the endpoints that have changed. A pass that ``probed``
    has tried whether an outage is over; it is, unless ``outage`` says otherwise. ``obstacle``: why messages are blocked.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, tuple[str, int]] = field(default_factory=dict)
    halt: HaltRecord | None = None
    block: BlockRecord | None = None
    counters: dict[str, int] = field(default_factory=dict)
    opened_with: dict[str, int] | None = None
    outage: OutageRecord | None = None
    probed: bool = False
    obstacle: str = ""

    def close(self, opened_with: Mapping[str, int], counters: Mapping[str, int]) -> None:
        """Note what an endpoint found when it opened, and what it leaves behind."""
        self.opened_with, self.counters = dict(opened_with), dict(counters)

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.counts.update(other.counts)
        for fingerprint, (text, number) in other.errors.items():
            self.add_error(fingerprint, text, number)
        self.halt = self.halt or other.halt
        self.block = self.block or other.block
        self.outage = self.outage or other.outage
        self.probed = self.probed or other.probed
        self.obstacle = self.obstacle or other.obstacle
        self._add_counters(other)

    def counters_over(self, present: Mapping[str, int]) -> dict[str, int]:
        """Return counters with what these endpoints have changed; another commit may have changed others meanwhile."""
        opened_with = self.opened_with or {}
        changed = {name for name in opened_with.keys() | self.counters.keys() if self.counters.get(name) != opened_with.get(name)}
        return {name: number for name, number in present.items() if name not in changed} | {
            name: self.counters[name] for name in changed if name in self.counters
        }

    def _add_counters(self, other: Tally) -> None:
        """Take over the counters that the other endpoint has changed; endpoints of one queue open with the same ones."""
        if self.opened_with is None and other.opened_with is not None:
            self.close(other.opened_with, other.counters)
        elif other.opened_with is not None:
            self.counters = other.counters_over(self.counters)

    def add_error(self, fingerprint: str, text: str, messages: int = 1) -> None:
        """Count messages that ended with a failure; of at most 1,000 kinds."""
        if fingerprint not in self.errors and len(self.errors) >= _MOST_KINDS:
            return
        first, before = self.errors.get(fingerprint, (text, 0))
        self.errors[fingerprint] = (first, before + messages)

    def commonest_errors(self, most: int) -> list[tuple[str, str, int]]:
        """Return fingerprint, text and number of the failures that most messages ended with."""
        ordered = sorted(self.errors.items(), key=lambda item: -item[1][1])
        return [(fingerprint, text, number) for fingerprint, (text, number) in ordered[:most]]

    def to_record(self) -> dict[str, object]:
        """Return JSON values; of the failures the commonest."""
        errors = {fingerprint: [text, number] for fingerprint, text, number in self.commonest_errors(_MOST_ERRORS)}
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"counts": dict(self.counts), "errors": errors}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Self:
        """Return the tally of ``to_record()``; an empty record gives an empty tally."""
        errors = cast("Mapping[str, tuple[str, int]]", record.get("errors") or {})
        listed = {fingerprint: (str(text), int(number)) for fingerprint, (text, number) in errors.items()}
        known: dict[str, Any] = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        return cls(**{**known, "counts": Counter(cast("Mapping[str, int]", record.get("counts") or {})), "errors": listed})
