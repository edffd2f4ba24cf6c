"""Transformations of data frames against the naive Spark job that does the same without protection. ``python -m benchmarks.frames [messages]``.

The workload is that of ``workload.py``: JSON of 1 KB, which is parsed, checked, and of which two columns are kept. Prints one line of JSON:

| key | meaning |
|---|---|
| frame_per_s | messages per second of a transformation, nothing fails |
| frame_to_naive | its speed, as a share of the naive job's |
| frame_verdict_to_naive | the same with a verdict column, 1 % of the messages poison, no retries |
| frame_ten_bad | time with 10 messages that fail in a cast, as a multiple of the time without |
| frame_python_ten_bad | the same with a Python function that raises |
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.delivery.transform import Transformation
from airflow_poison.core.outputs import outputs_of
from airflow_poison.core.passes.alter import declare
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.send import send
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.spark.engine import SparkEngine
from airflow_poison.core.spark.session import get_session
from airflow_poison.core.store import open_store
from benchmarks.workload import bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.core.passes.runs import ReceiveResult
    from airflow_poison.core.store.queue_table import QueueTable

SCHEMA = "id int, kind string, amount double"
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(minutes=5))
TEN = 10


def kept(df: DataFrame) -> DataFrame:
    """Check, and keep two columns: a message of kind ``bad`` fails in a cast."""
    return df.selectExpr("id + cast(if(kind = 'bad', kind, '0') AS int) AS id", "amount")


def named(df: DataFrame) -> DataFrame:
    """Name hopeless messages."""
    return df.selectExpr("lookup_id", "id", "amount", "if(kind = 'hopeless', 'this order can never be processed', null) AS _poison")


def checked(kind: str) -> int:
    """Raise for a message of kind ``bad``."""
    if kind == "bad":
        raise ValueError("this order can never be processed")
    return 0


def in_python(df: DataFrame) -> DataFrame:
    """Check in a Python function."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType

    return df.select((f.col("id") + f.udf(checked, IntegerType(), useArrow=False)("kind")).alias("id"), "amount")


def frame_figures(spark: SparkSession, folder: Path, number: int) -> dict[str, float]:
    """Measure each once, the naive job and the transformation without failures twice: the first of these warms the JVM up."""
    store = open_store(str(folder / "store"), durable=False)

    def queue(name: str, *, failing: bool = False, ten: bool = False) -> QueueTable:
        table = declare(store, name, POLICY, SystemClock())
        send(table, _batches(number, failing=failing, ten=ten), key="all", clock=SystemClock())
        return table

    def received(table: QueueTable, transform: Callable[[DataFrame], DataFrame], poisoned: int | None = 0) -> float:
        receiving = ReceivePass(
            table=table,
            policy=POLICY,
            handler=Transformation(transform, SCHEMA),
            engine=lambda: SparkEngine(spark),
            clock=SystemClock(),
            store=store,
            outputs=outputs_of(str(folder / "landed" / table.name)),
        )
        started = time.monotonic()
        result: ReceiveResult = receiving.run("bench")
        seconds = time.monotonic() - started
        print(f"{table.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
        assert poisoned in {None, result.poisoned}, result
        assert result.settled + result.poisoned == number, result
        return seconds

    received(queue("warm"), kept)
    naive_seconds = min(naive(spark, queue("naive"), folder / "naive") for _ in range(2))
    clean = received(queue("clean"), kept)
    verdict = received(queue("verdict", failing=True), named, None)
    ten = received(queue("ten", ten=True), kept, TEN)
    python = received(queue("python"), in_python)
    python_ten = received(queue("python_ten", ten=True), in_python, TEN)
    return {
        "frame_per_s": number / clean,
        "frame_to_naive": naive_seconds / clean,
        "frame_verdict_to_naive": naive_seconds / verdict,
        "frame_ten_bad": ten / clean,
        "frame_python_ten_bad": python_ten / python,
    }


def naive(spark: SparkSession, table: QueueTable, out: Path) -> float:
    """Return the seconds of a Spark job that does the same with a queue's files, and writes Parquet."""
    from pyspark.sql import functions as f

    paths = [f"{table.uri}/{file.path}" for file in table.snapshot().files]
    started = time.monotonic()
    parsed = spark.read.parquet(*paths).select(f.from_json(f.col("body").cast("string"), SCHEMA).alias("parsed")).select("parsed.*")
    kept(parsed).write.mode("overwrite").parquet(str(out))
    return time.monotonic() - started


def _batches(number: int, *, failing: bool, ten: bool) -> Iterator[pa.RecordBatch]:
    source, place = bodies(number, failing=failing), 0
    while some := list(islice(source, 10_000)):
        if ten:
            some = [body.replace(b'"good"', b'"bad"') if row % (number // TEN) == 7 else body for row, body in enumerate(some, place)]
        place += len(some)
        yield pa.record_batch({"body": pa.array(some, pa.binary())})


def main(number: int = 100_000) -> None:
    """Measure and print."""
    spark = get_session("local[*]")
    with tempfile.TemporaryDirectory() as folder:
        figures = frame_figures(spark, Path(folder), number)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
