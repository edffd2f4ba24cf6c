"""Errors that are caught, and the search in partitions of one plan, charge the same messages as the search in jobs, whatever the plan does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.spark import catching, units
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.units import SparkUnits
from tests.given import transforms
from tests.given.drivers import Work
from tests.given.transforms import SCHEMA, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"), pytest.mark.campaign]
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=20))
NUMBER = 40


def amount(text: str) -> int:
    if text == "bad":
        raise ValueError(f"no such amount: {text}")
    return int(text)


def in_arrow(df: DataFrame) -> DataFrame:
    return df.select("id", f.udf(amount, "int", useArrow=True)("amount").alias("amount"))


def in_batches(df: DataFrame) -> DataFrame:
    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            amounts = [amount(str(text)) for text in batch.column("amount").to_pylist()]
            yield pa.record_batch([batch.column("lookup_id"), batch.column("id"), pa.array(amounts, pa.int32())], ["lookup_id", "id", "amount"])

    return df.mapInArrow(made, "lookup_id long, id int, amount int")


def in_pandas(df: DataFrame) -> DataFrame:
    @pandas_udf(returnType="int")  # type: ignore[call-overload, untyped-decorator]
    def amounts(texts: pd.Series) -> pd.Series:
        return texts.map(amount)

    return df.select("id", amounts("amount").alias("amount"))


def in_pandas_structs(df: DataFrame) -> DataFrame:
    @pandas_udf(returnType="whole int, half double")  # type: ignore[call-overload, untyped-decorator]
    def amounts(texts: pd.Series) -> pd.DataFrame:
        whole = texts.map(amount)
        return pd.DataFrame({"whole": whole, "half": whole / 2})

    return df.select("id", amounts("amount").alias("amount")).select("id", "amount.whole")


def in_pandas_batches(df: DataFrame) -> DataFrame:
    def made(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(amount=batch["amount"].map(amount))[["id", "amount"]]

    return df.mapInPandas(made, "id int, amount int")


def in_series(df: DataFrame) -> DataFrame:
    @pandas_udf(returnType="int")  # type: ignore[call-overload, untyped-decorator]
    def amounts(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for texts in batches:
            yield texts.map(amount)

    return df.select("id", amounts("amount").alias("amount"))


def in_arrow_columns(df: DataFrame) -> DataFrame:
    @arrow_udf(returnType="int")  # type: ignore[call-overload, untyped-decorator]
    def amounts(texts: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return pa.array([amount(str(text)) for text in texts.to_pylist()], pa.int32())

    return df.select("id", amounts("amount").alias("amount"))


def twice(df: DataFrame) -> DataFrame:
    """Two functions, of which the second one fails at what the first one made."""
    text = f.udf(lambda text: None if text == "bad" else text, "string", useArrow=False)
    return df.select("id", f.udf(int, "int", useArrow=False)(text("amount")).alias("amount"))


def ends_early(df: DataFrame) -> DataFrame:
    """Raise StopIteration, of which Spark makes another error."""

    def first(text: str) -> int:
        return next(iter([] if text == "bad" else [int(text)]))

    return df.select("id", f.udf(first, "int", useArrow=False)("amount").alias("amount"))


def cast_behind_python(df: DataFrame) -> DataFrame:
    """Fail in the JVM, behind Python that does not fail."""
    return df.select("id", f.udf(str, "string", useArrow=False)("amount").cast("int").alias("amount"))


def some_in_python(df: DataFrame) -> DataFrame:
    return transforms.in_python(df.where("id % 3 > 0"))


def many_rows(df: DataFrame) -> DataFrame:
    return df.select("lookup_id", f.explode(f.array("id", "id")).alias("id"), f.col("amount").cast("int").alias("amount"))


def both(df: DataFrame) -> DataFrame:
    return transforms.cast(df.where("id > 15")).unionByName(transforms.cast(df.where("id <= 15")))


def broadcast(df: DataFrame) -> DataFrame:
    names = df.sparkSession.createDataFrame([(number, f"n{number}") for number in range(NUMBER + 1)], "id int, name string")
    return df.join(f.broadcast(names), "id").select("id", "name", f.col("amount").cast("int").alias("amount"))


def shuffled(df: DataFrame) -> DataFrame:
    return transforms.cast(df.repartition(3, "id"))


def many_types(df: DataFrame) -> DataFrame:
    """Make columns of all types that an output can have."""
    return df.selectExpr(
        "cast(amount AS int) AS amount",
        "cast(id AS tinyint) AS tiny",
        "cast(id AS smallint) AS small",
        "cast(id AS bigint) AS big",
        "cast(id / 7 AS float) AS real",
        "if(id % 5 = 0, cast('NaN' AS double), id / 7) AS half",
        "cast(id AS decimal(38, 18)) / 7 AS exact",
        "id % 2 = 0 AS even",
        "timestamp_micros(id * 1000001) AS instant",
        "cast(timestamp_micros(id * 1000001) AS timestamp_ntz) AS clock",
        "date_add(date'1582-10-01', id) AS day",
        "cast(amount AS binary) AS bytes",
        "if(id % 3 = 0, null, kind) AS kind",
        "map(kind, array(named_struct('at', timestamp_micros(id), 'of', cast(id AS decimal(9, 2))), null)) AS nested",
    )


def late(df: DataFrame) -> DataFrame:
    """Fail in a condition, in which a row is gone or stays."""
    return df.where("cast(amount AS int) > 10").select("lookup_id", "id", "amount")


def of_its_file(df: DataFrame) -> DataFrame:
    """Fail where a row is not from a file, which no message's fault is."""
    checked = f.expr("cast(if(input_file_name() = '', 'no file', '0') AS int)")
    return transforms.cast(df.withColumn("id", f.col("id") + checked))


def of_its_partition(df: DataFrame) -> DataFrame:
    """Fail in all partitions but the first two."""
    checked = f.expr("cast(if(spark_partition_id() > 1, 'no place', '0') AS int)")
    return transforms.cast(df.withColumn("id", f.col("id") + checked))


def received(
    folder: Path, spark: SparkSession, transform: Callable[[DataFrame], DataFrame], texts: list[str], policy: Msmq4 = POLICY
) -> tuple[dict[int, tuple[object, ...]], Counter[object], str]:
    """Return what is left of each message, the rows that have landed, and their columns."""
    work = Work(str(folder / "store"), policy=policy).sent(texts)
    a_pass = replace(
        work.a_pass(spark),
        handler=Transformation(transform, SCHEMA),
        engine=lambda: SparkEngine(spark),
        outputs=outputs_of(str(folder / "landed")),
    )
    assert isinstance(a_pass, ReceivePass)
    a_pass.run("search")
    left: dict[int, tuple[object, ...]] = {
        number: (row["sub_queue"], row["abort_count"], row["last_error"]["type"], row["last_error"]["message"])  # type: ignore[index]
        for number, row in work.rows().items()
    }
    files = [path for path in (folder / "landed").rglob("*.parquet") if not path.name.startswith(".")]
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    columns = DeltaTable(str(folder / "landed")).schema().to_json()
    return left, Counter(str(sorted(row.items(), key=str)) for row in rows), columns


QUICK = [transforms.cast, transforms.in_python, broadcast, shuffled, of_its_file, of_its_partition, in_pandas_batches]
IN_BATCHES = [in_arrow, in_batches, in_pandas, in_pandas_structs, in_series, in_arrow_columns]
MORE = [*IN_BATCHES, twice, ends_early, cast_behind_python, some_in_python, many_rows, both, late]
QUICK += [many_types]


@pytest.mark.parametrize("transform", [*QUICK, *(pytest.param(each, marks=pytest.mark.campaign) for each in MORE)], ids=lambda each: each.__name__)
def test_the_same_messages_are_charged_as_by_a_search_in_jobs(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, transform: Callable[[DataFrame], DataFrame]
) -> None:
    chosen = random.Random(transform.__name__)
    culprits = [*sorted(chosen.sample(range(1, NUMBER + 1), 2)), NUMBER + 1]
    texts = [*bodies(NUMBER, dict.fromkeys(culprits, "raise")), '{"id": "no number"}']
    asked: list[bool] = []
    each = SparkUnits.each

    def noted(self: SparkUnits, sets: object, attempts: object, *, lands: object) -> object:
        found = each(self, sets, attempts, lands=lands)  # type: ignore[arg-type]
        asked.append(found is not None)
        return found

    caught = received(tmp_path / "caught", spark, transform, texts)
    monkeypatch.setattr(catching, "caught", lambda *_: None)
    with monkeypatch.context() as quick:
        quick.setattr(SparkUnits, "each", noted)
        by_parts = received(tmp_path / "parts", spark, transform, texts)
    monkeypatch.setattr(units, "_PARTS", 0)
    by_jobs = received(tmp_path / "jobs", spark, transform, texts)

    assert by_parts == by_jobs
    assert caught == by_jobs
    wanted = {number for number in culprits if transform is not some_in_python or number % 3 or number > NUMBER}
    assert {*by_parts[0]} == wanted
    assert (asked[:1] == [True]) is (transform not in {both, shuffled, of_its_file, of_its_partition}), (
        "a plan that shuffles, or has the messages twice, has no part of a set alone"
    )


@pytest.mark.campaign
def test_one_that_dies_and_one_that_hangs_are_found_beside_one_that_raises(tmp_path: Path, spark: SparkSession) -> None:
    policy = replace(POLICY, receive_retry_count=0, transaction_timeout=timedelta(seconds=10))
    texts = bodies(60, {7: "raise", 21: "die", 44: "hang"})

    left, rows, _ = received(tmp_path, spark, transforms.in_python, texts, policy)

    assert {number: row[2] for number, row in left.items()} == {7: "ValueError", 21: "crashed", 44: "timeout"}
    assert rows.total() == 57


def test_one_job_sees_all_rows_that_raise(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    each = SparkUnits.each

    def noted(self: SparkUnits, sets: list[object], attempts: object, *, lands: object) -> object:
        tried.append(len(sets))
        return each(self, sets, attempts, lands=lands)  # type: ignore[arg-type]

    monkeypatch.setattr(SparkUnits, "each", noted)
    culprits = [*range(3, 200, 5)]

    left, rows, _ = received(tmp_path, spark, transforms.cast, bodies(200, dict.fromkeys(culprits, "raise")))

    assert [*left] == culprits
    assert {(row[2], row[3]) for row in left.values()} == {("CAST_INVALID_INPUT", next(iter(left.values()))[3])}
    assert rows.total() == 160
    assert tried == [len(culprits)], "each alone"


def test_an_error_of_ours_charges_no_message(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("ours")

    monkeypatch.setattr(units, "_keep", broken)
    monkeypatch.setattr(catching, "caught", lambda *_: None)  # what parts of a plan make is kept

    with pytest.raises(TypeError, match="ours"):
        received(tmp_path, spark, transforms.cast, bodies(20, {7: "raise"}))

    rows = Work(str(tmp_path / "store"), policy=POLICY).rows()
    assert len(rows) == 20
    assert {(row["sub_queue"], row["abort_count"]) for row in rows.values()} == {("main", 0)}
