"""What the receive pass is held against: a bare loop of handlers, and the Spark job that people write today."""

from __future__ import annotations

import json
import multiprocessing
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.workload import bodies, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


def loop_rate(number: int, processes: int = 2) -> float:
    """Return messages/s of ``json.loads`` and the check in plain loops, one in each process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        seconds = pool.map(_loop, [number // processes] * processes, chunksize=1)
    return number / max(seconds)


def _loop(number: int) -> float:
    ready = list(bodies(number, failing=True))
    started = time.perf_counter()
    for body in ready:
        try:
            check(json.loads(body))
        except ValueError:
            continue
    return time.perf_counter() - started


def raw_spark_seconds(spark: SparkSession, paths: list[str], target: str) -> float:
    """Return the seconds of a Spark job that copies the rows with the handler inline: every row is written again, with its status."""

    def handle(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            status = []
            for body in part.column("body").to_pylist():
                try:
                    check(json.loads(body or b""))
                    status.append("ok")
                except ValueError as error:
                    status.append(repr(error))
            yield pa.record_batch([*part.columns, pa.array(status, pa.string())], names=[*part.schema.names, "status"])

    frame = spark.read.parquet(*paths)
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([*frame.schema.fields, StructField("status", StringType())])
    started = time.perf_counter()
    frame.mapInArrow(handle, schema).write.mode("overwrite").parquet(target)
    return time.perf_counter() - started
