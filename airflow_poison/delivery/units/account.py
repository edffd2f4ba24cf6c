"""The account of a claim that was transformed: the same settlement as for messages that are delivered one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_poison.delivery.ends import Delivered
from airflow_poison.delivery.sessions.journal import MessageState
from airflow_poison.delivery.sessions.session import BatchReport
from airflow_poison.delivery.settlement import Settler
from airflow_poison.delivery.stage import Tally, landing, tally_row
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from airflow_poison.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.delivery.units.counts import UnitOutcome


def open_ids(job: StageJob, outcome: UnitOutcome) -> NDArray[np.int64]:
    """Return the lookup ids of the messages that have to be read for their settlement: all but those that succeeded at once."""
    wanted = (outcome.words != MessageState.COMMITTED) | outcome.before
    return outcome.lookup_ids if job.record_all else outcome.lookup_ids[wanted]


def settled(
    job: StageJob, outcome: UnitOutcome, carry: RecoveredAttempts, batches: Iterator[pa.RecordBatch], landing_frames: Iterator[pa.Table]
) -> Iterator[pa.RecordBatch]:
    """Yield what remains of the messages and what lands, as batches of ``table_schema()``, the tally last.

    :param batches: the messages of ``open_ids``: columns of ``message_schema()`` and ``move_count``.
    :param landing_frames: what the transformation made, as rows of the partition ``_output``.
    """
    settler, total = Settler.of(job), Tally()
    plain = len(outcome.lookup_ids) - len(open_ids(job, outcome))
    total.counts.update(received=plain, committed=plain, deliveries=plain, timeouts=outcome.timeouts)
    order = np.argsort(outcome.lookup_ids, kind="stable")
    for batch in batches:
        ids = batch.column("lookup_id").to_numpy(zero_copy_only=False).astype(np.int64)
        words = outcome.words[order[np.searchsorted(outcome.lookup_ids, ids, sorter=order)]]
        failures = {place: outcome.failures[number] for place, number in enumerate(ids.tolist()) if number in outcome.failures}
        returned = [*carry.returned_by(batch, BatchReport(words, failures)).items()] if job.outputs else []
        delivered = Delivered(batch, words, failures, job.clock.now(), returned=returned)
        rows, tally = settler.settle(delivered)
        total.add(tally)
        rows += landing(job, delivered, total)
        for table in rows:
            yield from table.combine_chunks().to_batches()
    if outcome.unstable:
        rows, _ = settler.settle(Delivered(_nobody(), np.empty(0, np.int32), {}, job.clock.now(), unstable=outcome.unstable))
        for table in rows:
            yield from table.combine_chunks().to_batches()
    for table in landing_frames:
        total.counts["landings"] += table.num_rows
        yield from table.to_batches()
    yield tally_row(total)


def _nobody() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=message_schema().append(pa.field("move_count", pa.int32())))
