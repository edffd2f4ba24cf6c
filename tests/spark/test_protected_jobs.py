"""Jobs as people have them, each protected by a diff of at most three lines: they land what they landed before, and only bad rows are messages."""

from __future__ import annotations

import difflib
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_poison import Msmq4, Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
MOST_LINES = 3

TOTALS = """
from pyspark.sql import functions as f


def enriched(orders):
    spark = orders.sparkSession
    rates = spark.createDataFrame([("EUR", 1.0), ("USD", 0.9)], "currency string, rate double")
    lines = spark.read.parquet(f"{LAKE}/lines")
    totals = lines.groupBy("id").agg(f.sum("quantity").alias("pieces"), f.max("at").alias("last"))
    priced = orders.join(rates, "currency", "left").withColumn("eur", f.col("amount").cast("double") * f.col("rate"))
    return priced.join(totals, "id").where("pieces > 1").select("id", "eur", "pieces", "last")


def main(spark):
    orders = spark.read.parquet(f"{LAKE}/orders")
    enriched(orders).write.mode("append").save(f"{LAKE}/clean")
"""
FUNCTION = """
from pyspark.sql import functions as f


def cents(text):
    whole, _, rest = text.partition(".")
    return int(whole) * 100 + int((rest + "00")[:2])


def in_cents(orders):
    return orders.withColumn("cents", f.udf(cents, "bigint", useArrow=False)("amount")).drop("amount")


def main(spark):
    orders = spark.read.parquet(f"{LAKE}/orders")
    in_cents(orders).write.mode("append").save(f"{LAKE}/clean")
"""
BATCHES = """
def scored(batches):
    for batch in batches:
        batch["score"] = batch["amount"].astype("float64").round(1) / batch["id"].add(1)
        yield batch[["id", "score"]]


def with_scores(orders):
    return orders.mapInPandas(scored, "id bigint, score double")


def main(spark):
    orders = spark.read.parquet(f"{LAKE}/orders")
    with_scores(orders).write.mode("append").save(f"{LAKE}/clean")
"""
JOBS = {"enriched": TOTALS, "in_cents": FUNCTION, "with_scores": BATCHES}


def protected(job: str, function: str) -> str:
    """Return the job with protection."""
    write = f'    {function}(orders).write.mode("append").save(f"{{LAKE}}/clean")\n'
    assert write in job
    given = f'transform={function}, output=f"{{LAKE}}/clean"'
    instead = f'    return protect(orders, "orders", key="2026-11-28", store=f"{{LAKE}}/queues", policy=POLICY, {given})\n'
    return "from airflow_poison import protect\n" + job.replace(write, instead)


def changed(before: str, after: str) -> int:
    """Return how many lines of a diff are new or other than they were."""
    lines = [line[:2] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return max(lines.count("- "), lines.count("+ "))


def run(job: str, lake: Path, spark: SparkSession) -> Any:
    """Run a job as a script."""
    names: dict[str, Any] = {"__name__": "__main__", "LAKE": str(lake), "POLICY": POLICY}
    exec(compile(dedent(job), f"{lake}/job.py", "exec"), names)
    return names["main"](spark)


def written(lake: Path, bad: set[int]) -> Path:
    """Write what a job reads."""
    ids = range(40)
    orders = {
        "id": list(ids),
        "currency": [("EUR", "USD", "???")[each % 3] for each in ids],
        "amount": ["n/a" if each in bad else f"{each}.5" for each in ids],
    }
    lines = {"id": [each % 40 for each in range(90)], "quantity": [each % 2 for each in range(90)], "at": [f"t{each:02}" for each in range(90)]}
    for name, table in (("orders", orders), ("lines", lines)):
        (lake / name).mkdir(parents=True)
        pq.write_table(pa.table(table), lake / name / "part.parquet")
    return lake


def rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("function", [pytest.param(each, marks=[pytest.mark.long] if each == "enriched" else []) for each in JOBS])
def test_a_job_is_protected_by_three_lines_and_lands_what_it_landed(function: str, tmp_path: Path, spark: SparkSession) -> None:
    before, bad = JOBS[function], {3, 17}
    after = protected(before, function)
    assert changed(before, after) <= MOST_LINES

    alone, same, with_bad = (written(tmp_path / name, wrong) for name, wrong in (("alone", set()), ("same", set()), ("bad", bad)))
    run(before, alone, spark)
    result = run(after, same, spark)
    with pytest.raises(Exception, match=r"n/a|invalid literal|could not convert"):
        run(before, written(tmp_path / "fails", bad), spark)
    failed = run(after, with_bad, spark)

    wanted = rows(pq.read_table(alone / "clean"))
    assert rows(DeltaTable(str(same / "clean")).to_pyarrow_table()) == wanted
    assert result.in_place["messages"] == result.poisoned == 0
    of_bad = [row for row in wanted if any(row.startswith(f"{{'id': {each}, ") for each in bad)]
    assert rows(DeltaTable(str(with_bad / "clean")).to_pyarrow_table()) == [row for row in wanted if row not in of_bad]
    assert failed.poisoned == len(bad)
    queue = Store(str(with_bad / "queues")).queue("orders")
    assert queue.check().findings == ()
    assert failed.in_place["read"] == 40 == sum(failed.in_place[name] for name in ("landed", "filtered", "messages"))
