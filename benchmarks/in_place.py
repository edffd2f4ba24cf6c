"""A job that is protected in place beside the same job without protection: ``python -m benchmarks.in_place [rows] [rounds]``.

The rows have five typed columns, in Parquet; the job casts, computes, and lands in a Delta table. Without protection it writes Parquet with the same
settings and adds nothing to a log (``naive``), or appends to a Delta table with Delta Lake's own classes (``delta``; where Maven can fetch them).
Prints one line of JSON:

| key | meaning |
|---|---|
| in_place_per_s | rows per second, nothing fails |
| in_place_to_naive | its speed, as a share of the speed of the job without protection |
| in_place_named_to_naive | the same with a verdict column, 1 % of the rows poison; without protection, the job drops the rows that it names |
| in_place_thousandth_to_naive | the same with 0.1 % of the rows, 1,000 at most, that fail in a cast and are not named |
| in_place_json_to_naive | a job that keeps two columns of lines of JSON of 1 KB (rows / 10 of them), beside the same job with Spark's reader |
| in_place_csv_to_naive | the first job with the rows in CSV, a tenth of them with a cell in quotes, beside the same job with Spark's reader |
| in_place_to_delta and so on | the same shares of the job that appends to a Delta table |
| in_place_memory_mb | how much the driver's Python grows in a run in which nothing fails, MiB |
| in_place_bytes_in_queue | bytes in the queue's folder per row that lands |
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
from typing import TYPE_CHECKING, NamedTuple

import psutil

from airflow_poison.queue import Store
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.sources.files import Files
from airflow_poison.spark.session import get_session
from benchmarks.workload import bodies
from tools.servers.maven import fetched
from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id int, kind string, amount double"
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(minutes=5))


def job(df: DataFrame) -> DataFrame:
    """Cast and compute: a row whose amount is no number fails."""
    return df.selectExpr("id", "upper(sku) AS sku", "cast(amount AS decimal(12, 2)) AS amount", "price * 1.19 AS price", "at")


def of_texts(df: DataFrame) -> DataFrame:
    """Do the same with columns that are text."""
    return job(df.selectExpr("cast(id AS bigint) AS id", "sku", "amount", "cast(price AS double) AS price", "cast(at AS timestamp) AS at"))


def named(df: DataFrame) -> DataFrame:
    """Name the rows whose amount is no number."""
    checked = "lookup_id", "id", "upper(sku) AS sku", "try_cast(amount AS decimal(12, 2)) AS amount", "price * 1.19 AS price", "at"
    return df.selectExpr(*checked, "if(try_cast(amount AS decimal(12, 2)) IS NULL, 'the amount is no number', NULL) AS _poison")


def good(df: DataFrame) -> DataFrame:
    """Keep the rows that are not named."""
    return named(df.selectExpr("monotonically_increasing_id() AS lookup_id", "*")).where("_poison IS NULL").drop("lookup_id", "_poison")


def kept(df: DataFrame) -> DataFrame:
    """Keep two columns of an order."""
    return df.selectExpr("id", "amount")


def in_place_figures(spark: SparkSession, folder: Path, number: int, rounds: int) -> dict[str, float]:
    """Return the figures by name: medians of the rounds, in each of which everything runs once, side by side. The first run of all warms up."""
    _round(spark, folder / "warm", min(number, 100_000))
    found = [_round(spark, folder / str(turn), number) for turn in range(rounds)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


class _Seconds(NamedTuple):
    """Of a job protected in place, of the same job that writes Parquet, and of the one that appends to a Delta table; 0: not measured."""

    protected: float
    naive: float
    delta: float


def _round(spark: SparkSession, folder: Path, number: int) -> dict[str, float]:
    sources = {
        name: _written(spark, folder / f"{name}-raw", number, bad)
        for name, bad in (("clean", 0), ("named", 100), ("few", max(number // 1_000, 1_000)))
    }
    before = psutil.Process().memory_info().rss
    clean = _beside(spark, sources["clean"], folder / "clean", job)
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    with_verdict = _beside(spark, sources["named"], folder / "named", named, good)
    few = _protected(spark, sources["few"], folder / "few", job)
    lines = _beside(spark, _lines(folder / "lines", number // 10), folder / "json", kept)
    texts = _beside(spark, _texts(spark, sources["clean"], folder / "texts"), folder / "csv", of_texts)
    stored = sum(path.stat().st_size for path in (folder / "clean" / "store").rglob("*") if path.is_file())
    shares = {"in_place": clean, "in_place_named": with_verdict, "in_place_json": lines, "in_place_csv": texts}
    print(f"    {number:,} rows, a tenth of it lines of JSON; few fail: {few:.1f} s", flush=True)
    for name, seconds in shares.items():
        print(f"    {name}: " + ", ".join(f"{what} {each:.1f} s" for what, each in seconds._asdict().items()), flush=True)
    shutil.rmtree(folder)
    return {
        "in_place_per_s": number / clean.protected,
        "in_place_thousandth_to_naive": clean.naive / few,
        "in_place_memory_mb": grown,
        "in_place_bytes_in_queue": stored / number,
        **{f"{name}_to_naive": seconds.naive / seconds.protected for name, seconds in shares.items()},
        **{f"{name}_to_delta": seconds.delta / seconds.protected for name, seconds in shares.items() if seconds.delta},
    }


def _beside(
    spark: SparkSession,
    source: Path,
    folder: Path,
    transform: Callable[[DataFrame], DataFrame],
    without: Callable[[DataFrame], DataFrame] | None = None,
) -> _Seconds:
    """Return the seconds of a job with protection and without: these run before it and after it.

    :param without: the job without protection, where it is another one.
    """
    forms = ("parquet", "delta") if spark.conf.get(_EXTENSIONS, None) else ("parquet",)
    before = [_naive(spark, source, folder / f"{form}-before", without or transform, form) for form in forms]
    protected = _protected(spark, source, folder, transform)
    after = [_naive(spark, source, folder / f"{form}-after", without or transform, form) for form in forms]
    naive, *delta = [(first + second) / 2 for first, second in zip(before, after, strict=True)]
    return _Seconds(protected, naive, *(delta or [0.0]))


def _written(spark: SparkSession, folder: Path, number: int, every: int) -> Path:
    """Write rows as Parquet, of which one in so many has no amount; 0: none."""
    amount = f"if(id % {every} = 7, 'n/a', cast(id % 100000 / 100 AS string))" if every else "cast(id % 100000 / 100 AS string)"
    rows = spark.range(0, number, 1, 8).selectExpr(
        "id", "concat('sku-', id % 9973) AS sku", f"{amount} AS amount", "id / 7 AS price", "timestamp_micros(id * 1000000) AS at"
    )
    rows.write.parquet(str(folder))
    return folder


def _lines(folder: Path, number: int) -> Path:
    """Write lines of JSON, in eight files."""
    folder.mkdir()
    source = bodies(number, failing=False)
    for part in range(8):
        (folder / f"{part}.json").write_bytes(b"".join(body + b"\n" for body in islice(source, number // 8)))
    return folder


def _texts(spark: SparkSession, rows: Path, folder: Path) -> Path:
    """Write rows as CSV, a tenth of them with a cell in quotes."""
    sku = "if(id % 10 = 0, concat(sku, ', old'), sku) AS sku"
    spark.read.parquet(str(rows)).selectExpr("id", sku, "amount", "price", "at").write.csv(str(folder), header=True, escape='"')
    return folder


def _naive(spark: SparkSession, source: Path, out: Path, transform: Callable[[DataFrame], DataFrame], form: str) -> float:
    started = time.perf_counter()
    read = spark.read.option("header", value=True).option("escape", '"')
    rows = (
        read.csv(str(source))
        if transform is of_texts
        else read.schema(SCHEMA).json(str(source))
        if transform is kept
        else spark.read.parquet(str(source))
    )
    transform(rows).write.format(form).mode("append").save(str(out))
    seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return seconds


def _protected(spark: SparkSession, source: Path, folder: Path, transform: Callable[[DataFrame], DataFrame]) -> float:
    kinds: dict[object, tuple[str, str | None]] = {kept: ("json", SCHEMA), of_texts: ("csv", None)}
    kind, schema = kinds.get(transform, ("parquet", None))
    queue, rows = Store(str(folder / "store")).declare("orders", POLICY), Files(f"{source}/*.{kind}", format=kind, settled=timedelta(0))
    started = time.perf_counter()
    result = queue.receive(None, POLICY, key="bench", spark=spark, transform=transform, schema=schema, source=rows, output=str(folder / "out"))
    seconds = time.perf_counter() - started
    assert sum(result.landed.values()) > 0, result
    return seconds


_EXTENSIONS = "spark.sql.extensions"
_DELTA = "4.2.0"


def _delta_lake() -> Mapping[str, str]:
    """Return the settings of a session that has Delta Lake's own classes; none where Maven is not here."""
    try:
        jars = fetched(f"delta-spark-{_DELTA}", ("io.delta", "delta-spark_4.1_2.13", _DELTA))
    except ServerError as error:
        print(f"NOT MEASURED: the job that appends to a Delta table. {error}", flush=True)
        return {}
    return {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def main(number: int = 10_000_000, rounds: int = 3) -> None:
    """Measure and print."""
    root = Path(tempfile.mkdtemp(prefix="airflow-poison-bench-"))
    try:
        figures = in_place_figures(get_session("local[2]", {"spark.driver.memory": "2g", **_delta_lake()}), root, number, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
