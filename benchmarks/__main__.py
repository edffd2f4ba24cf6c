"""Measure and print: a table for people, then one line of JSON.

Single messages first, then batches (batches.py), data frames (frames.py), rows in place (in_place.py), poison that people deal with (desk.py), and
the page (page.py).
Options: ``-n 1000000`` messages in the main workload, ``--rounds 3`` repetitions. Everything that a ratio compares is measured once in each round,
side by side; figures and ratios are medians of the rounds.
"""

from __future__ import annotations

import argparse
import atexit
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from airflow_poison.passes.alter import declare
from airflow_poison.passes.due import return_due
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.session import get_session
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue
from benchmarks.batches import batch_figures
from benchmarks.competitors import loop_rate, raw_spark_seconds
from benchmarks.desk import desk_figures
from benchmarks.frames import frame_figures
from benchmarks.in_place import in_place_figures
from benchmarks.memory import Peak
from benchmarks.page import page_figures
from benchmarks.task import task_seconds
from benchmarks.workload import handler, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.store import QueueStore

CLOCK = SystemClock()
POLICY = Msmq4(retry_cycle_delay=timedelta(0), receive_error_handling="Move")


def fill(store: QueueStore, queue: str, number: int, *, failing: bool) -> float:
    """Send the workload and return the seconds of the send alone."""
    table = declare(store, queue, POLICY, CLOCK)
    path = Path(tempfile.gettempdir()) / f"airflow-poison-bench-{os.getpid()}-{number}-{failing}.parquet"
    if not path.exists():
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(str(path), number), kwargs={"failing": failing})
        writer.start()
        writer.join()
        atexit.register(path.unlink, missing_ok=True)
    with pq.ParquetFile(path) as ready:
        started = time.perf_counter()
        send(table, ready.iter_batches(10_000), key=f"bench:{queue}", clock=CLOCK)
        return time.perf_counter() - started


def receive_once(store: QueueStore, queue: str, spark: SparkSession, *, isolation: str = "process", key: str = "bench") -> ReceiveResult:
    """Run one pass."""
    work = ReceivePass(
        table=store.open(queue), policy=POLICY, handler=handler, engine=lambda: SparkEngine(spark), clock=CLOCK, isolation=isolation, store=store
    )
    return work.run(key)


def drain(store: QueueStore, queue: str, spark: SparkSession) -> tuple[float, int]:
    """Run passes and returns until nothing is left to do; return seconds and deliveries."""
    started, deliveries = time.perf_counter(), 0
    while (result := receive_once(store, queue, spark)).received:
        deliveries += result.deliveries
        return_due(store.open(queue), CLOCK)
    return time.perf_counter() - started, deliveries


def measure(number: int, rounds: int, root: Path) -> dict[str, float]:
    """Return all figures by name."""
    store = open_store(str(root / "store"))
    print(f"{number:,} messages of 1 KB, {os.cpu_count()} cores; 1 % fail 18 times, 5 % fail twice; {rounds} rounds", flush=True)
    spark = get_session("local[2]", {"spark.driver.memory": "2g"})
    fill(store, "warm", 20_000, failing=True)
    drain(store, "warm", spark)

    peak, small_peak = Peak(), Peak()
    found = [one_round(store, spark, number, peak, root) for _ in range(rounds)]
    figures = {name: statistics.median(each[name] for each in found) for name in found[0]}
    print(f"    medians                            {_told(figures)}  (driver peak {peak.mebibytes:,.0f} MiB)", flush=True)

    fill(store, "quarter", number // 4, failing=True)
    with small_peak.watch():
        drain(store, "quarter", spark)
    figures["isolation_cost"] = isolation_cost(store, spark, min(number, 200_000), rounds)
    figures["small_pass_s"] = small_pass_seconds(store, spark, rounds)
    figures["task_of_ten_s"] = task_seconds(rounds)
    figures["depth_ms"] = depth_milliseconds(store, "quarter")
    figures |= batch_figures(store, spark, max(number * 2 // 5, 20_000), rounds)
    figures |= frame_figures(spark, store, root, number, rounds)
    figures |= in_place_figures(spark, root / "in-place", 10 * number, rounds)
    figures |= desk_figures(number)
    figures |= page_figures(number)
    figures |= {"driver_peak_mib": peak.mebibytes, "driver_peak_quarter_mib": small_peak.mebibytes}
    spark.stop()
    return figures


def one_round(store: QueueStore, spark: SparkSession, number: int, peak: Peak, root: Path) -> dict[str, float]:
    """Measure the bare loop, the Spark copy, and receives with failures and without; return the figures and their ratios. Leaves no queue behind."""
    loop = loop_rate(min(number, 400_000))
    send_rate = number / fill(store, "main", number, failing=True)
    main = store.open("main")
    paths = [f"{main.uri}/{file.path}" for file in main.snapshot().files]
    raw_spark_seconds(spark, paths[:1], str(root / "raw"))
    raw = number / raw_spark_seconds(spark, paths, str(root / "raw"))
    shutil.rmtree(root / "raw")
    with peak.watch():
        seconds, _ = drain(store, "main", spark)
    left = main.snapshot()
    assert left.depth(SubQueue.RETRY, CLOCK.now()).messages == left.depth(SubQueue.MAIN, CLOCK.now()).messages == 0
    fill(store, "clean", number, failing=False)
    clean_seconds, _ = drain(store, "clean", spark)
    for queue in ("main", "clean"):
        shutil.rmtree(store.open(queue).uri)
    receive, clean = number / seconds, number / clean_seconds
    figures = {
        "loop_per_s": loop,
        "send_per_s": send_rate,
        "raw_per_s": raw,
        "receive_per_s": receive,
        "receive_clean_per_s": clean,
        "receive_to_raw": receive / raw,
        "receive_to_loop": receive / loop,
        "clean_to_loop": clean / loop,
        "poison_tax": seconds / clean_seconds,
    }
    print(f"    one round                          {_told(figures)}", flush=True)
    return figures


def _told(figures: dict[str, float]) -> str:
    names = {"loop": "loop_per_s", "Spark copy": "raw_per_s", "receive": "receive_per_s", "without failures": "receive_clean_per_s"}
    return ", ".join(f"{said} {figures[name]:,.0f}/s" for said, name in names.items())


def isolation_cost(store: QueueStore, spark: SparkSession, number: int, rounds: int) -> float:
    """Return time with child processes over time inline, median of paired rounds without failures."""
    ratios = []
    for turn in range(rounds):
        seconds = {}
        for isolation in ("none", "process") if turn % 2 else ("process", "none"):
            queue = f"isolation-{isolation}-{turn}"
            fill(store, queue, number, failing=False)
            seconds[isolation] = receive_once(store, queue, spark, isolation=isolation).seconds
        ratios.append(seconds["process"] / seconds["none"])
    return statistics.median(ratios)


def small_pass_seconds(store: QueueStore, spark: SparkSession, rounds: int) -> float:
    """Return the seconds of a warm pass over 1,000 messages."""
    seconds = []
    for turn in range(rounds):
        fill(store, f"small-{turn}", 1_000, failing=True)
        started = time.perf_counter()
        receive_once(store, f"small-{turn}", spark)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def depth_milliseconds(store: QueueStore, queue: str) -> float:
    """Return the milliseconds to open a queue and learn its depth and next due time."""
    times = []
    for _ in range(20):
        started = time.perf_counter()
        snapshot = store.open(queue).snapshot()
        snapshot.depth(SubQueue.RETRY, CLOCK.now())
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def main() -> None:
    """Measure, print, and leave nothing behind."""
    options = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    options.add_argument("-n", type=int, default=1_000_000, help="messages in the main workload")
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="airflow-poison-bench-"))
    try:
        figures = measure(arguments.n, arguments.rounds, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
