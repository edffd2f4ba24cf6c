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
from airflow_poison.core.message import TALLY, SubQueue, table_schema
from airflow_poison.core.policies.opening import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.delivered import Delivered
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.delivery.tally import Tally
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Policy

SWEPT_ROWS, SWEPT_BYTES = 100_000, 256 << 20
"""What a task holds at once for a sweep; a longer queue is swept in pieces."""


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
    from airflow_poison.core.delivery.delivered import Delivered
    from airflow_poison.core.delivery.sessions import open_session

    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    session = open_session(
        policy=job.policy,
        handler=job.handler,
        journal_folder=job.journal_folder,
        partition=partition,
        isolation=job.isolation,
        carry=_known(job, partition),
        unprocessable=job.unprocessable,
        clock=job.clock,
        opening=job.opening,
        stop_file=job.stop_file,
        record_all=job.record_all,
    )
    with session:
        for batch in _swept(chain([first], filled)) if job.policy.sweeps else chain([first], filled):
            reach("delivery.stage.before_batch")
            report = session.deliver(batch)
            reach("delivery.stage.after_batch")
            total.counts["timeouts"] += report.timeouts
            yield Delivered(batch, report.words, report.failures, job.clock.now(), report.decided)
        total.close(job.opening.counters, session.counters())


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


def _known(job: StageJob, partition: str) -> Carry:
    """Return what earlier holders of the claim had done, and earlier attempts of this very task (Spark runs a failed task again)."""
    from pathlib import Path

    from airflow_poison.core.delivery.sessions.carry import Carry, read_journals

    carry = Carry.load(Path(job.carry)) if job.carry else Carry()
    return carry.merged(read_journals([Path(job.journal_folder)], partition=partition))


def _tally_row(tally: Tally) -> pa.RecordBatch:
    import pyarrow as pa

    row = {"body": json.dumps(tally.to_record()).encode(), "sub_queue": TALLY, "move_count": 0}
    return pa.Table.from_pylist([row], schema=table_schema()).combine_chunks().to_batches()[0]
