"""The receive stage: the function that one task runs over its share of the claimed messages, in Spark or without.

Batches of messages go in; rows of what remains, events and one tally come out. It knows no Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions import open_session
from airflow_poison.core.delivery.settlement import Settler
from airflow_poison.core.message import SubQueue, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.policies.seam import Policy

TALLY = "_tally"


@dataclass(frozen=True, slots=True)
class StageJob:
    """What every task of a receive stage is told; picklable.

    :param journal_folder: where attempts are journalled, one file a task attempt.
    :param carry: path of what earlier holders of the claim had already done, None when there is nothing.
    :param isolation: ``process`` (a supervised child) or ``none`` (inline).
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


def deliver_partition(job: StageJob, partition: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Deliver every message of a partition and yield what remains, as batches of ``table_schema()``.

    Once the endpoint has halted, the other messages pass through as they came.
    """
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    settler = Settler(job.policy, job.queue, job.read_from, record_all=job.record_all)
    total: dict[str, int] = {}
    errors: dict[str, tuple[str, int]] = {}
    halt: dict[str, object] | None = None
    with open_session(
        policy=job.policy,
        handler=job.handler,
        journal_folder=job.journal_folder,
        partition=partition,
        isolation=job.isolation,
        carry=job.carry,
        unprocessable=job.unprocessable,
        clock=job.clock,
    ) as session:
        for batch in _and_then(first, batches):
            if halt is None:
                report = session.deliver(batch)
                words, failures = report.words, report.failures
                total["timeouts"] = total.get("timeouts", 0) + report.timeouts
            else:
                words, failures = np.zeros(batch.num_rows, np.int32), {}
            settlement = settler.settle(batch, words, failures, job.clock.now())
            for name, number in settlement.counts.items():
                total[name] = total.get(name, 0) + number
            for print_, (text, number) in settlement.errors.items():
                errors[print_] = (text, errors.get(print_, ("", 0))[1] + number)
            if settlement.halt is not None:
                lookup_id, decision = settlement.halt
                failure = next(iter(f for row, f in failures.items() if batch.column("lookup_id")[row].as_py() == lookup_id), None)
                halt = {"lookup_id": lookup_id, "how": decision.how.value, "error": f"{failure.type}: {failure.text}"[:500] if failure else ""}
            if settlement.rows is not None:
                yield from settlement.rows.combine_chunks().to_batches()
    top = dict(sorted(errors.items(), key=lambda item: -item[1][1])[:20])
    body = json.dumps({"partition": partition, "counts": total, "errors": top, "halt": halt}).encode()
    row = {"body": body, "sub_queue": TALLY, "move_count": 0}
    yield pa.Table.from_pylist([row], schema=table_schema()).combine_chunks().to_batches()[0]


def _and_then(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    for batch in rest:
        if batch.num_rows:
            yield batch
