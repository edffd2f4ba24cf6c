"""What carries a receive stage out: Spark, or this very process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from airflow_poison.core.delivery.stage import StageJob, deliver_partition
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import table_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.core.store.seam import Claim, QueueTable


class Engine(Protocol):
    """Runs the receive stage over the files of a claim and leaves its rows in the claim's stage."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim, in the job's order.

        :param keep_alive: renews the claim; called every few seconds. What it raises (ClaimLostError) ends the run.
        """
        ...


class LocalEngine:
    """Runs the stage in this process: one task, no JVM. For tests, small queues and the memory store."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim in queue order."""
        rows = pa.Table.from_batches(deliver_partition(job, "0", self._batches(table, claim, keep_alive)), table_schema())
        reach("pass.deliver.before_staging")
        table.stage_table(claim, rows)
        reach("pass.deliver.after_staging")

    @staticmethod
    def _batches(table: QueueTable, claim: Claim, keep_alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        read = pa.concat_tables([table.read(file) for file in claim.files])
        ordered = read.sort_by([("priority", "descending"), ("lookup_id", "ascending")])
        for batch in ordered.drop_columns(["sub_queue"]).combine_chunks().to_batches(max_chunksize=4096):
            keep_alive()
            yield batch
