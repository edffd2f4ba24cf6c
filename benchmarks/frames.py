"""Transformations of data frames beside the naive Spark job without protection: ``python -m benchmarks.frames [messages] [rounds]``.

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
import shutil
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.session import get_session
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from benchmarks.workload import bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

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


def frame_figures(spark: SparkSession, store: QueueStore, folder: Path, number: int, rounds: int) -> dict[str, float]:
    """Return the figures by name: medians of the rounds, in each of which everything runs once, side by side. The first run of all warms up."""
    one_round(spark, store, folder / "warm", min(number, 20_000))
    found = [one_round(spark, store, folder / str(turn), number) for turn in range(rounds)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def one_round(spark: SparkSession, store: QueueStore, folder: Path, number: int) -> dict[str, float]:
    """Measure everything once; return the figures and their ratios. Leaves nothing behind."""

    def timed(name: str, transform: Callable[[DataFrame], DataFrame], *, failing: bool = False, bad: int = 0) -> float:
        table = declare(store, f"{name}-{folder.name}", POLICY, SystemClock())
        send(table, _batches(number, failing=failing, bad=bad), key="all", clock=SystemClock())
        receiving = ReceivePass(
            table=table,
            policy=POLICY,
            handler=Transformation(transform, SCHEMA),
            engine=lambda: SparkEngine(spark),
            clock=SystemClock(),
            store=store,
            outputs=outputs_of(str(folder / name)),
        )
        started = time.perf_counter()
        result = receiving.run("bench")
        seconds = time.perf_counter() - started
        assert failing or result.poisoned == bad, result
        assert result.settled + result.poisoned == number, result
        assert sum(result.landed.values()) == result.settled, result
        shutil.rmtree(table.uri)
        print(f"    {number:,} messages, {name}: {seconds:.1f} s", flush=True)
        return seconds

    table = declare(store, f"naive-{folder.name}", POLICY, SystemClock())
    send(table, _batches(number), key="all", clock=SystemClock())
    without = naive(spark, table, folder / "naive")
    clean = timed("clean", kept)
    again = naive(spark, table, folder / "naive")
    shutil.rmtree(table.uri)
    seconds = {
        "naive": (without + again) / 2,
        "clean": clean,
        "verdict": timed("verdict", named, failing=True),
        "ten bad": timed("ten", kept, bad=TEN),
        "in Python": timed("python", in_python),
        "in Python, ten bad": timed("python-ten", in_python, bad=TEN),
    }
    shutil.rmtree(folder)
    print(f"    {number:,} messages, the naive job: {seconds['naive']:.1f} s", flush=True)
    return {
        "frame_per_s": number / seconds["clean"],
        "frame_to_naive": seconds["naive"] / seconds["clean"],
        "frame_verdict_to_naive": seconds["naive"] / seconds["verdict"],
        "frame_ten_bad": seconds["ten bad"] / seconds["clean"],
        "frame_python_ten_bad": seconds["in Python, ten bad"] / seconds["in Python"],
    }


def naive(spark: SparkSession, table: QueueTable, out: Path) -> float:
    """Return the seconds of a Spark job that does the same with a queue's files, and writes Parquet."""
    from pyspark.sql import functions as f

    paths = [f"{table.uri}/{file.path}" for file in table.snapshot().files]
    started = time.perf_counter()
    parsed = spark.read.parquet(*paths).select(f.from_json(f.col("body").cast("string"), SCHEMA).alias("parsed")).select("parsed.*")
    kept(parsed).write.mode("overwrite").parquet(str(out))
    return time.perf_counter() - started


def _batches(number: int, *, failing: bool = False, bad: int = 0) -> Iterator[pa.RecordBatch]:
    source, place = bodies(number, failing=failing), 0
    while some := list(islice(source, 10_000)):
        if bad:
            some = [body.replace(b'"good"', b'"bad"') if row % (number // bad) == 7 else body for row, body in enumerate(some, place)]
        place += len(some)
        yield pa.record_batch({"body": pa.array(some, pa.binary())})


def main(number: int = 1_000_000, rounds: int = 3) -> None:
    """Measure and print."""
    root = Path(tempfile.mkdtemp(prefix="airflow-poison-bench-"))
    try:
        figures = frame_figures(get_session("local[2]", {"spark.driver.memory": "2g"}), open_store(str(root / "store")), root, number, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
