"""Batches beside single messages, with 0, 0.1 and 1 % that always fail: ``python -m benchmarks.batches [messages] [rounds]``.

The workload's messages of 1 KB. The handler of single messages parses and makes the workload's one check; ``returning`` returns two columns, too,
which land in a table. That of batches gets the columns that it needs, names the rows that fail (PoisonRows), or names none (``batch_searched``), and
returns two columns. Whole passes on two cores of Spark, side by side in each round; the figures are medians. ``batch_to_receive`` is the least of the
three ratios, ``result_cost`` the time of ``returning`` in that of ``receive`` without failures. One line of JSON.
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
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.delivery.handlers import Batching
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.session import get_session
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from benchmarks.workload import bodies, named, returning, searched, single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_poison.store import QueueStore

CLOCK = SystemClock()
POLICY = Msmq4(max_retry_cycles=0, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
SCHEMA = "id long, kind string, amount double"
SHARES = {"0": 0, "0.1": 1_000, "1": 100}
"""In percent: of so many messages one always fails."""


WAYS: dict[str, tuple[Callable[[Any], object], Batching | None, bool]] = {
    "receive": (single, None, False),
    "returning": (returning, None, True),
    "batch": (named, Batching("arrow", schema=SCHEMA), True),
    "batch_searched": (searched, Batching("arrow", schema=SCHEMA), True),
}
"""Handler, its frames, and whether it returns rows."""


def messages(number: int, each: int) -> Iterator[pa.RecordBatch]:
    """Yield the workload; of so many messages one always fails."""
    source = enumerate(bodies(number, failing=False))
    while chunk := list(islice(source, 10_000)):
        made = [body.replace(b'"kind": "good"', b'"kind": "hopeless"', 1) if each and place % each == 7 else body for place, body in chunk]
        yield pa.record_batch([pa.array(made, pa.binary())], names=["body"])


def rate(store: QueueStore, spark: SparkSession, queue: str, way: str, *, number: int, each: int) -> float:
    """Return the messages of a pass in a second; what it landed is there when it ends."""
    handler, batching, returns = WAYS[way]
    table, out = declare(store, queue, POLICY, CLOCK), Path(store.uri) / f"out-{queue}"
    send(table, messages(number, each), key=queue, clock=CLOCK)
    outputs = outputs_of(str(out), schema="id long, amount double") if returns else ()
    work = ReceivePass(
        table=table, policy=POLICY, handler=handler, engine=lambda: SparkEngine(spark), clock=CLOCK, batching=batching, outputs=outputs
    )
    started = time.perf_counter()
    result = work.run("bench")
    seconds = time.perf_counter() - started
    failing = number // each if each else 0
    assert (result.received, result.poisoned, sum(result.landed.values())) == (number, failing, (number - failing) * returns), result
    shutil.rmtree(table.uri)
    shutil.rmtree(out, ignore_errors=True)
    return number / seconds


def batch_figures(store: QueueStore, spark: SparkSession, number: int, rounds: int) -> dict[str, float]:
    """Return the figures by name."""
    for way in WAYS:
        rate(store, spark, f"warm-{way}", way, number=20_000, each=100)
    figures: dict[str, float] = {}
    for share, each in SHARES.items():
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS if turn % 2 else reversed(WAYS):
                found[way].append(rate(store, spark, f"{way}-{each}-{turn}", way, number=number, each=each))
        rates = {way: round(statistics.median(each)) for way, each in found.items()}
        print(f"    {share:>3} % poison: " + ", ".join(f"{way} {each:,}/s" for way, each in rates.items()), flush=True)
        figures |= {f"{way}_per_s_{share}": each for way, each in rates.items()}
        figures[f"batch_to_receive_{share}"] = statistics.median(a / b for a, b in zip(found["batch"], found["receive"], strict=True))
        if not each:
            figures["result_cost"] = statistics.median(a / b for a, b in zip(found["receive"], found["returning"], strict=True))
    figures["batch_per_s"] = figures["batch_per_s_0"]
    figures["batch_to_receive"] = min(figures[f"batch_to_receive_{share}"] for share in SHARES)
    return figures


def main(number: int = 400_000, rounds: int = 3) -> None:
    """Measure and print."""
    root = Path(tempfile.mkdtemp(prefix="airflow-poison-bench-"))
    try:
        figures = batch_figures(open_store(str(root)), get_session("local[2]", {"spark.driver.memory": "2g"}), number, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
