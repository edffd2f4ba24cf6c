"""Transformations of data frames beside the naive Spark job without protection: ``python -m benchmarks.frames [messages] [rounds]``.

``python -m benchmarks.frames 20000`` measures what people see first: a small table in which ten rows are bad.

The workload is that of ``workload.py``: JSON of 1 KB, which is parsed, checked, and of which two columns are kept. Prints one line of JSON:

| key | meaning |
|---|---|
| frame_per_s | messages per second of a transformation, nothing fails |
| frame_to_naive | its speed, as a share of the naive job's |
| frame_verdict_to_naive | the same with a verdict column, 1 % of the messages poison, no retries |
| frame_ten_bad | time with 10 messages that fail in a cast, as a multiple of the time without |
| frame_thousand_bad | the same with 1,000 messages that fail in a cast |
| frame_python_to_naive | with a Python function, as a share of the speed of the naive job with the same function |
| frame_python_ten_bad | time with 10 messages for which the Python function raises, as a multiple of the time without |
| search_20k_ten_s | seconds for 20,000 messages of which 10 fail in a cast; search_20k_clean_s: of which none does |
| search_20k_ten_retried_s | the same where the policy delivers each message that fails 5 times more |
| search_20k_python_ten_s, search_20k_python_clean_s | the same with a Python function |
| search_20k_python_ten_retried_s | the same with the further deliveries |
| first_row_s | from the start of a pass over 20,000 messages to its end, with the start of the JVM; first_row_naive_s: of the naive job |
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
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


SMALL = 20_000


def frame_figures(spark: SparkSession, store: QueueStore, folder: Path, number: int, rounds: int) -> dict[str, float]:
    """Return the figures by name: medians of the rounds, in each of which everything runs once, side by side. The first run of all warms up."""
    one_round(spark, store, folder / "warm", min(number, SMALL))
    found = [one_round(spark, store, folder / str(turn), number) for turn in range(rounds)]
    if number > SMALL:
        small = [small_round(spark, store, folder / f"small-{turn}") for turn in range(rounds)]
        found = [large | of_few for large, of_few in zip(found, small, strict=True)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def one_round(spark: SparkSession, store: QueueStore, folder: Path, number: int) -> dict[str, float]:
    """Measure everything once; return the figures and their ratios. Leaves nothing behind."""
    timed = partial(_timed, spark, store, folder, number)
    table = declare(store, f"naive-{folder.name}", POLICY, SystemClock())
    send(table, _batches(number), key="all", clock=SystemClock())
    without = naive(spark, table, folder / "naive")
    clean = timed("clean", kept)
    again = naive(spark, table, folder / "naive")
    seconds = {
        "naive": (without + again) / 2,
        "naive in Python": naive(spark, table, folder / "naive", in_python),
        "clean": clean,
        "verdict": timed("verdict", named, failing=True),
        "ten bad": timed("ten", kept, bad=TEN),
        "1,000 bad": timed("thousand", kept, bad=min(1_000, number // 20)),
        "in Python": timed("python", in_python),
        "in Python, ten bad": timed("python-ten", in_python, bad=TEN),
    }
    shutil.rmtree(table.uri)
    shutil.rmtree(folder)
    print(f"    {number:,} messages, the naive job: {seconds['naive']:.1f} s, in Python {seconds['naive in Python']:.1f} s", flush=True)
    return {
        "frame_per_s": number / seconds["clean"],
        "frame_to_naive": seconds["naive"] / seconds["clean"],
        "frame_verdict_to_naive": seconds["naive"] / seconds["verdict"],
        "frame_ten_bad": seconds["ten bad"] / seconds["clean"],
        "frame_thousand_bad": seconds["1,000 bad"] / seconds["clean"],
        "frame_python_to_naive": seconds["naive in Python"] / seconds["in Python"],
        "frame_python_ten_bad": seconds["in Python, ten bad"] / seconds["in Python"],
    }


def small_round(spark: SparkSession, store: QueueStore, folder: Path) -> dict[str, float]:
    """Measure a small table once, and its first pass of all in a new process."""
    timed = partial(_timed, spark, store, folder, SMALL)
    found = {
        "search_20k_clean_s": timed("clean", kept),
        "search_20k_ten_s": timed("ten", kept, bad=TEN),
        "search_20k_ten_retried_s": timed("ten-retried", kept, bad=TEN, retries=5),
        "search_20k_python_clean_s": timed("python", in_python),
        "search_20k_python_ten_s": timed("python-ten", in_python, bad=TEN),
        "search_20k_python_ten_retried_s": timed("python-ten-retried", in_python, bad=TEN, retries=5),
    }
    table = declare(store, f"first-{folder.name}", POLICY, SystemClock())
    send(table, _batches(SMALL), key="all", clock=SystemClock())
    for key, what in (("first_row_naive_s", "naive"), ("first_row_s", "pass")):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.frames", what, store.uri, table.name, str(folder / what)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[key] = float(printed.splitlines()[-1])
    shutil.rmtree(table.uri)
    shutil.rmtree(folder)
    print(f"    {SMALL:,} messages, {', '.join(f'{name} {seconds:.1f}' for name, seconds in found.items())}", flush=True)
    return found


def _timed(  # noqa: PLR0917
    spark: SparkSession,
    store: QueueStore,
    folder: Path,
    number: int,
    name: str,
    transform: Callable[[DataFrame], DataFrame],
    *,
    failing: bool = False,
    bad: int = 0,
    retries: int = 0,
) -> float:
    """Return the seconds of a pass over a queue of its own."""
    policy = replace(POLICY, receive_retry_count=retries)
    table = declare(store, f"{name}-{folder.name}", policy, SystemClock())
    send(table, _batches(number, failing=failing, bad=bad), key="all", clock=SystemClock())
    receiving = _pass(table, store, Transformation(transform, SCHEMA), lambda: spark, output=str(folder / name), policy=policy)
    started = time.perf_counter()
    result = receiving.run("bench")
    seconds = time.perf_counter() - started
    assert failing or result.poisoned == bad, result
    assert result.settled + result.poisoned == number, result
    assert sum(result.landed.values()) == result.settled, result
    shutil.rmtree(table.uri)
    print(f"    {number:,} messages, {name}: {seconds:.1f} s", flush=True)
    return seconds


def _pass(
    table: QueueTable, store: QueueStore, handler: Transformation, spark: Callable[[], SparkSession], *, output: str, policy: Msmq4 = POLICY
) -> ReceivePass:
    return ReceivePass(
        table=table,
        policy=policy,
        handler=handler,
        engine=lambda: SparkEngine(spark()),
        clock=SystemClock(),
        store=store,
        outputs=outputs_of(output),
    )


def first(what: str, uri: str, queue: str, output: str) -> float:
    """Return the seconds of a pass, or of the naive job, that starts its Spark."""
    store = open_store(uri)
    table, started = store.open(queue), time.perf_counter()
    if what == "naive":
        naive(_session(), table, Path(output))
    else:
        result = _pass(table, store, Transformation(kept, SCHEMA), _session, output=output).run("bench")
        assert sum(result.landed.values()) == SMALL, result
    return time.perf_counter() - started


def _session() -> SparkSession:
    return get_session("local[2]", {"spark.driver.memory": "2g"})


def naive(spark: SparkSession, table: QueueTable, out: Path, transform: Callable[[DataFrame], DataFrame] = kept) -> float:
    """Return the seconds of a Spark job that does the same with a queue's files, and writes Parquet."""
    from pyspark.sql import functions as f

    paths = [f"{table.uri}/{file.path}" for file in table.snapshot().files]
    started = time.perf_counter()
    parsed = spark.read.parquet(*paths).select(f.from_json(f.col("body").cast("string"), SCHEMA).alias("parsed")).select("parsed.*")
    transform(parsed).write.mode("overwrite").parquet(str(out))
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
        store = open_store(str(root / "store"))
        if number == SMALL:
            found = [small_round(_session(), store, root / str(turn)) for turn in range(rounds + 1)][1:]  # the first one warms up
            figures = {name: statistics.median(each[name] for each in found) for name in found[0]}
        else:
            figures = frame_figures(_session(), store, root, number, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    if len(sys.argv) > 4:
        print(first(*sys.argv[1:5]))
    else:
        main(*map(int, sys.argv[1:]))
