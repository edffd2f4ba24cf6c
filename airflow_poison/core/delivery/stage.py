"""The receive stage: the function that one task runs over its share of the claimed messages, in Spark or without.

Batches of messages go in; rows of what remains, events and one tally come out. It knows no Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from airflow_poison.core.fault_points import reach
from airflow_poison.core.policies.policy import FIRST
from airflow_poison.core.schema import TALLY, SubQueue, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.conversations.dialog_state import DialogState, Place
    from airflow_poison.core.delivery.ends import Delivered
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.core.delivery.tally import Tally
    from airflow_poison.core.policies.policy import Opening, Policy

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
    """What every task of a receive stage is told; picklable.

    :param journal_folder: where attempts are journaled, one file a task attempt.
    :param carry: path of what earlier holders of the claim had already done, None when there is nothing.
    :param isolation: ``process`` (a supervised child) or ``none`` (inline).
    :param record_all: also write the routine events of every delivery.
    :param opening: what the endpoint finds when it opens.
    :param order: what must stay in order; whatever need not may run side by side.
    :param stop_file: where endpoints of the same queue in several tasks tell each other that one has halted; None: one task at most halts.
    :param only: lookup ids of the only messages to deliver, one after the other, in one task; nothing but their journal is written. Empty: all.
    :param alone: lookup ids of messages that get a section of the journal of their own, where sections are forced to disk.
    :param singly: one task with one server session.
    :param forced: the journal is forced to disk, in sections of few messages where each decision depends on its message alone.
    :param dialogs: path of the conversations at hand (``DialogState``); None: the queue has no services. With them the order is not ``NONE``.
    """

    queue: str
    policy: Policy
    handler: HandlerRef
    journal_folder: str
    clock: Clock
    read_from: SubQueue = SubQueue.MAIN
    carry: str | None = None
    isolation: str = "process"
    unprocessable: tuple[str, ...] = ()
    record_all: bool = False
    opening: Opening = FIRST
    order: Order = Order.NONE
    stop_file: str | None = None
    only: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    singly: bool = False
    forced: bool = False
    dialogs: str | None = None


def deliver_alone(job: StageJob, batches: Iterable[pa.RecordBatch]) -> None:
    """Deliver the messages of ``job.only`` one at a time; what becomes of them is in their journal."""
    from airflow_poison.core.delivery.sessions.tries import ALONE
    from airflow_poison.core.delivery.tally import Tally

    for _ in _delivered(job, ALONE, batches, Tally()):
        pass


def deliver_partition(job: StageJob, partition: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Deliver every message of a partition and yield what remains, as batches of ``table_schema()``, the tally last.

    Once the endpoint has halted, the other messages pass through as they came.
    """
    from airflow_poison.core.delivery.settlement import Settler
    from airflow_poison.core.delivery.tally import Tally

    settler = Settler(job.policy, job.read_from, opening=job.opening, record_all=job.record_all)
    total = Tally()
    for delivered in _delivered(job, partition, batches, total):
        rows, tally = settler.settle(delivered)
        total.add(tally)
        for table in rows:
            yield from table.combine_chunks().to_batches()
    if total.counts["received"]:
        yield _tally_row(total)


def _delivered(job: StageJob, partition: str, batches: Iterable[pa.RecordBatch], total: Tally) -> Iterator[Delivered]:
    """Hand the batches to a server session, opened when there is a first message."""
    from airflow_poison.core.delivery.ends import Delivered
    from airflow_poison.core.delivery.sessions.session import open_session

    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    known = _known(job, partition)
    total.counts["timeouts"] += known.timeouts
    session = open_session(
        policy=job.policy,
        handler=job.handler,
        journal_folder=job.journal_folder,
        partition=partition,
        isolation=job.isolation,
        carry=known,
        unprocessable=job.unprocessable,
        clock=job.clock,
        opening=job.opening,
        stop_file=job.stop_file,
        record_all=job.record_all,
        singly=job.singly,
        forced=job.forced,
        at_hand=_at_hand(job),
    )
    with session:
        for batch in _cut(job, chain([first], filled)):
            reach("delivery.stage.before_batch")
            report = session.deliver(batch)
            reach("delivery.stage.after_batch")
            total.counts["timeouts"] += report.timeouts
            yield Delivered(batch, report.words, report.failures, job.clock.now(), report.decided, report.conversed)
        total.close(job.opening.counters, session.counters())


def _cut(job: StageJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make the batches as large as their sections of the journal are meant to be."""
    if job.only:
        return _slices(batches, 1)
    if job.forced and job.policy.stateless and job.dialogs is None:
        return _slices(batches, FORCED_ROWS, frozenset(job.alone))
    return _swept(batches) if job.policy.sweeps else iter(batches)


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


def _swept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put batches together: a sweep goes over all that the task holds at once before it begins again at the top (spec WMQ-29)."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and (sum(b.num_rows for b in held) + batch.num_rows > SWEPT_ROWS or sum(b.nbytes for b in held) + batch.nbytes > SWEPT_BYTES):
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held = []
        held.append(batch)
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _known(job: StageJob, partition: str) -> RecoveredAttempts:
    """Return what earlier holders of the claim had done, and earlier attempts of this very task (Spark runs a failed task again)."""
    from pathlib import Path

    from airflow_poison.core.delivery.sessions.crash_attribution import read_partition
    from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts

    carry = RecoveredAttempts.load(Path(job.carry)) if job.carry else RecoveredAttempts()
    return carry.merged(read_partition(Path(job.journal_folder), partition))


def exceptions_of(job: StageJob) -> Mapping[int, Place]:
    """Return the messages that are received elsewhere than in the order of their lookup ids, by lookup id."""
    at_hand = _at_hand(job)
    return {} if at_hand is None else at_hand.exceptions


def _at_hand(job: StageJob) -> DialogState | None:
    if job.dialogs is None:
        return None
    assert job.order is not Order.NONE, "the messages of a conversation are in one task"
    from pathlib import Path

    from airflow_poison.core.conversations.dialog_state import DialogState

    return DialogState.load(Path(job.dialogs))


def _tally_row(tally: Tally) -> pa.RecordBatch:
    import pyarrow as pa

    row = {"body": json.dumps(tally.to_record()).encode(), "sub_queue": TALLY, "move_count": 0}
    return pa.Table.from_pylist([row], schema=table_schema()).combine_chunks().to_batches()[0]
