"""A claim that a transformation takes: its messages are read, transformed in units, and settled; its results go to the outputs."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery.journal import Journal
from airflow_poison.delivery.landing_rows import MOST_ROWS, landing_frame
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.rows import BatchEntry
from airflow_poison.delivery.stage import sized
from airflow_poison.delivery.unit_counts import LARGEST_BODY, open_ids, settled
from airflow_poison.delivery.units import UnitDelivery, UnitRules
from airflow_poison.rules.decisions import Counts
from airflow_poison.spark.function import expected
from airflow_poison.spark.messages import BATCH_ROWS, chosen, types_kept
from airflow_poison.spark.units import SparkUnits
from airflow_poison.store.stage import OutcomeWriter
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import LOOKUP_ID, message_schema
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.rules.policy import Policy
    from airflow_poison.spark.jobs import Jobs
    from airflow_poison.spark.nodes import NodeSite
    from airflow_poison.store.files import Claim, DataFile
    from airflow_poison.store.queue_table import QueueTable


RESULTS = "results"
"""The folder of a stage where results are kept."""
_TASK = "frames"
_MOST_SIDE_BY_SIDE = 8
_READ = ("lookup_id", "priority", "expires_at", "abort_count")


def transform_claim(
    spark: SparkSession,
    jobs: Jobs,
    table: QueueTable,
    claim: Claim,
    job: StageJob,
    *,
    site: NodeSite | None = None,
    keep_alive: Callable[[], None],
    tell: Callable[[str], None],
) -> None:
    """Deliver a claim's messages to a transformation: its results stand in the stage then, and what remains of the messages.

    Once an outage is found, nothing does.

    :param site: where tasks work that do not see the table's folder; None: they do.
    """
    assert job.transform is not None, "it has one"
    stage = Path(table.stage(claim))
    folder = stage / RESULTS
    shutil.rmtree(folder, ignore_errors=True)
    messages = _messages(table.root, claim.files, job.policy, with_errors=job.detection is not None)
    ids = messages.column(LOOKUP_ID).to_numpy()
    carry = RecoveredAttempts.load(Path(job.carry)) if job.carry else RecoveredAttempts()
    limit = job.policy.effective_transaction_timeout.total_seconds()
    units = SparkUnits(
        spark, jobs, table, claim, lookup_ids=ids, transformation=job.transform, folder=folder, limit=limit, outputs=job.outputs, site=site
    )
    cores = jobs.cores()
    rules = UnitRules(
        side_by_side=1 if cores is None else max(2, min(cores, _MOST_SIDE_BY_SIDE)),  # a server resolves temporary views when a job runs
        mixes_rows=job.transform.mixes_rows,
    )
    name, began = f"queue {table.name}", time.monotonic()

    def told(line: str) -> None:
        tell(f"{name}: {line}")

    def alive(batch: pa.RecordBatch) -> pa.RecordBatch:
        keep_alive()
        return batch

    told(f"transforming {counted(claim.messages, 'message')}")
    with Journal(Path(job.journal_folder), _TASK, forced=True, share=job.share) as journal, expected(spark), types_kept(spark):
        outcome = UnitDelivery(job, messages, units, journal, carry=carry, rules=rules, deaths=job.deaths, tell=told).run(keep_alive)
        if job.detection is not None and job.detection.found:
            return  # the claim is settled anew, without what failed so
        told(f"{counted(claim.messages, 'message')} transformed in {counted(outcome.units, 'unit')} and {time.monotonic() - began:.1f} s")
        reach("frames.outcome.before")
        with OutcomeWriter(stage / "out", _TASK) as writer:
            some = map(alive, chosen(table.root, claim.files, open_ids(job, outcome)))
            messages_left = sized(some, BATCH_ROWS)  # each batch that is settled costs the same, however small
            for rows in settled(job, outcome, carry, messages_left, _results(job, units)):
                keep_alive()
                writer.write(pa.Table.from_batches([rows]))
        reach("frames.outcome.after")


def _results(job: StageJob, units: SparkUnits) -> Iterator[pa.Table]:
    """Yield what was made of the messages that settle, as rows of the partition ``_output``."""
    outputs = {output.name: output for output in job.outputs}
    for name, batch in units.results(MOST_ROWS) if outputs else ():
        yield landing_frame(job, outputs[name], batch, job.clock.now())


def _messages(root: str, files: Sequence[DataFile], policy: Policy, *, with_errors: bool) -> pa.RecordBatch:
    """Return what decisions about messages depend on, in the order of the files' rows; bodies only where they are too large to be handed over.

    :param with_errors: their last failures, too: they identify poison that comes back from an outage.
    """
    with_properties = policy.reads_properties
    tables = []
    for file in files:
        columns = [*_READ, *(["properties"] if with_properties else ()), *(["last_error"] if with_errors else ())]
        rows = pq.read_table(f"{root}/{file.path}", columns=columns, partitioning=None, page_checksum_verification=True)
        if not with_properties:
            rows = rows.append_column(message_schema().field("properties"), pa.nulls(rows.num_rows, message_schema().field("properties").type))
        bodies = _large_bodies(f"{root}/{file.path}", policy) if policy.unreadable(_sized(LARGEST_BODY)) else pa.nulls(rows.num_rows, pa.binary())
        rows = rows.append_column(pa.field("body", pa.binary()), bodies)
        tables.append(rows.append_column("move_count", pa.array(np.full(rows.num_rows, file.move_count, np.int32))))
    found = pa.concat_tables(tables).combine_chunks()
    return found.to_batches()[0]


def _sized(size: int) -> BatchEntry:
    return BatchEntry(0, 0, size, None, Counts())


def _large_bodies(path: str, policy: Policy) -> pa.ChunkedArray[Any]:
    """Return the bodies that the policy does not let be handed over, null for all others."""
    pieces: list[pa.Array[Any]] = []
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(columns=["body"]):
            sizes = pc.binary_length(cast("Any", batch.column("body"))).to_pylist()
            refused = [policy.unreadable(_sized(size or 0)) is not None for size in sizes]
            pieces.append(pc.if_else(pa.array(refused, pa.bool_()), batch.column("body"), pa.scalar(None, pa.binary())))
    return pa.chunked_array(pieces, pa.binary())
