"""Rows that are transformed in place: what lands equals what the job makes without protection, and only what fails becomes messages."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import cast as cast_to

import pandas as pd  # type: ignore[import-untyped]  # noqa: TC002  (Spark reads the annotations of functions)
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import IntegerType

from airflow_poison import DeltaChanges, Files, Jdbc, Msmq4, Store, protect
from airflow_poison.outputs.row_files import HIDDEN
from airflow_poison.outputs.values import nullable
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.sources.source import Position, Take
from airflow_poison.spark import in_place
from airflow_poison.spark.in_place import InPlace
from airflow_poison.spark.messages import types_kept
from airflow_poison.spark.units import observed_in
from airflow_poison.values.errors import InputError, OutputError, SettingError, SourceError, TransformError
from airflow_poison.values.fault_points import install

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Queue
    from airflow_poison.passes.runs import ReceiveResult

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=60))
STAMPS = "spark.sql.parquet.outputTimestampType"
ROWS, BAD = 60, [7, 21, 50]


def orders(first: int, end: int, bad: list[int] | None = None) -> pa.Table:
    wrong = BAD if bad is None else bad
    return pa.table(
        {
            "id": pa.array(range(first, end), pa.int32()),
            "amount": pa.array(["bad" if each in wrong else str(each) for each in range(first, end)]),
            "price": pa.array([Decimal(each) / 4 for each in range(first, end)], pa.decimal128(12, 2)),
            "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=each) for each in range(first, end)], pa.timestamp("us", "UTC")),
        }
    )


class Job:
    """A job with a source, an output, and a queue for what fails."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.raw, self.clean, self.spark = str(folder / "raw"), str(folder / "clean"), spark
        self.queue: Queue = Store(str(folder / "store")).declare("orders", POLICY)
        self.lines = list[str]()

    def receive(self, transform: Transform, key: str = "run", **options: Any) -> ReceiveResult:
        given = {"source": DeltaChanges(self.raw), "output": self.clean, **options}
        return self.queue.receive(None, POLICY, key=key, spark=self.spark, transform=transform, progress=self.lines.append, **given)

    @property
    def poured(self) -> bool:
        return any(": all of them," in line for line in self.lines)

    def landed(self) -> list[str]:
        return sorted(str(row) for row in DeltaTable(self.clean).to_pyarrow_table().to_pylist())

    def messages(self) -> dict[int, dict[str, Any]]:
        """Return the messages by their lookup ids, with their bodies as JSON."""
        table = self.queue.table
        rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        return {row["lookup_id"]: {**row, "body": json.loads(row["body"])} for row in rows}

    def is_whole(self) -> bool:
        return not self.queue.check().findings


@pytest.fixture
def job(tmp_path: Path, spark: SparkSession) -> Job:
    return Job(tmp_path, spark)


def cast(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount", "price", "at")


def without_protection(spark: SparkSession, transform: Transform, rows: pa.Table, folder: Path) -> list[str]:
    """Return what the job makes of rows by itself."""
    source, made = folder / "unprotected-source.parquet", folder / "unprotected"
    pq.write_table(rows, source)
    before = spark.conf.get(STAMPS)
    spark.conf.set(STAMPS, "TIMESTAMP_MICROS")
    transform(spark.read.parquet(str(source))).write.mode("overwrite").parquet(str(made))
    spark.conf.set(STAMPS, str(before))
    return sorted(str(row) for path in made.glob("*.parquet") for row in pq.read_table(path).to_pylist())


def amount(text: str) -> int:
    if text == "bad":
        raise ValueError(f"no such amount: {text}")
    return int(text)


def in_python(df: DataFrame) -> DataFrame:
    return df.select("id", f.udf(amount, IntegerType(), useArrow=False)("amount").alias("amount"))


def in_pandas(df: DataFrame) -> DataFrame:
    @pandas_udf(returnType=IntegerType())  # type: ignore[call-overload, untyped-decorator]
    def amounts(texts: pd.Series) -> pd.Series:
        return texts.map(amount)

    return df.select("id", amounts("amount").alias("amount"))


def in_batches(df: DataFrame) -> DataFrame:
    def made(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(amount=batch["amount"].map(amount))[["id", "amount"]]

    return df.mapInPandas(made, "id int, amount int")  # type: ignore[arg-type]


def joined(df: DataFrame) -> DataFrame:
    names = df.sparkSession.range(ROWS).selectExpr("cast(id AS int) AS id", "concat('n', id) AS name")
    lines = df.sparkSession.range(3 * ROWS).selectExpr("cast(id % 60 AS int) AS id", "id AS line")
    totals = lines.groupBy("id").agg(f.sum("line").alias("total"))
    return df.join(names, "id").join(totals, "id").selectExpr("id", "name", "total", "cast(amount AS int) AS amount")


def several(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "explode(array('1', amount)) AS amount").selectExpr("id", "cast(amount AS int) AS amount")


def filtered(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount").where("amount > 10")


def named(df: DataFrame) -> DataFrame:
    return df.selectExpr("lookup_id", "id", "try_cast(amount AS int) AS amount", "if(amount = 'bad', 'no amount', NULL) AS _poison")


@pytest.mark.long
@pytest.mark.usefixtures("to_one_row")
def test_pieces_land_in_partitions(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))
    write_deltalake(job.clean, pa.table({"id": pa.array([], pa.int32()), "amount": pa.array([], pa.int32())}), partition_by=["amount"])

    assert job.receive(in_batches).in_place == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}

    assert sorted(each["amount"] for each in DeltaTable(job.clean).to_pyarrow_table().to_pylist()) == [each for each in range(20) if each != 7]
    assert job.is_whole()


def named_in_batches(df: DataFrame) -> DataFrame:
    """Names rows whose number is 50 or 90, and raises for bad ones; makes two rows of each."""

    def made(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            good = batch.assign(amount=batch["amount"].map(amount), _poison=batch["id"].map({50: "too many", 90: "too far"}))
            yield good[["lookup_id", "id", "amount", "_poison"]]
            yield good.assign(id=good["id"] + 1_000, _poison=None)[["lookup_id", "id", "amount", "_poison"]]

    return df.mapInPandas(made, "lookup_id long, id int, amount int, _poison string")  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("keys", [{}, pytest.param({"output_keys": ["id"]}, marks=pytest.mark.campaign)], ids=["rows", "keys"])
@pytest.mark.usefixtures("to_one_row")
def test_rows_that_are_named_fall_out_of_pieces_whole(job: Job, keys: dict[str, Any]) -> None:
    write_deltalake(job.raw, orders(0, 120, bad=[7]))

    result = job.receive(named_in_batches, **keys)

    assert result.in_place == {"read": 120, "landed": 117, "filtered": 0, "messages": 3}
    good = [each for each in range(120) if each not in {7, 50, 90}]
    landed: list[Any] = DeltaTable(job.clean).to_pyarrow_table()["id"].to_pylist()
    assert sorted(landed) == sorted([*good, *(each + 1_000 for each in good)])
    found = {row["body"]["id"]: row["last_error"] for row in job.messages().values()}
    assert {each: (error["type"], error["message"]) for each, error in found.items()} == {
        7: ("ValueError", "no such amount: bad"),
        50: ("_poison", "too many"),
        90: ("_poison", "too far"),
    }
    assert job.is_whole()


SOON = cast, in_python, in_pandas, joined, several, filtered, named


@pytest.mark.parametrize("transform", [*SOON, pytest.param(in_batches, marks=pytest.mark.long)], ids=lambda each: each.__name__)
def test_what_succeeds_lands_as_without_protection_and_what_fails_is_in_the_queue(job: Job, tmp_path: Path, transform: Transform) -> None:
    write_deltalake(job.raw, orders(0, ROWS))

    result = job.receive(transform)

    good = orders(0, ROWS).filter(pa.array([each not in BAD for each in range(ROWS)]))
    shown = (lambda df: transform(df.withColumn("lookup_id", f.lit(1))).drop("lookup_id", "_poison")) if transform is named else transform
    assert job.landed() == without_protection(job.spark, shown, good, tmp_path)
    found = job.messages()
    assert sorted(row["body"]["id"] for row in found.values()) == BAD
    assert {row["sub_queue"] for row in found.values()} == {"poison"}
    assert {row["last_error"]["type"] for row in found.values()} <= {"CAST_INVALID_INPUT", "ValueError", "_poison"}
    assert result.poisoned == len(BAD)
    out = (11 - 1) if transform is filtered else 0
    assert result.in_place == (
        {"read": ROWS, "landed": 0, "filtered": 0, "messages": ROWS}
        if transform in {in_batches, in_pandas}
        else {"read": ROWS, "landed": ROWS - len(BAD) - out, "filtered": out, "messages": len(BAD)}
    )
    assert job.receive(transform).in_place == result.in_place, "a second run with the key reports what the first one did"
    assert job.poured is (transform is in_batches), "an iterator is begun anew behind an error, and of few rows each becomes a message"
    assert job.is_whole()
    assert not any(Path(job.clean, "_poison").rglob("*.parquet"))


@pytest.mark.long
def test_many_rows_are_cut_to_pieces_in_which_few_fail(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "FEW", 500)
    monkeypatch.setattr(in_place, "LEAST", 100)
    write_deltalake(job.raw, orders(0, 2_000, bad=[7, 21, 1_500]))

    result = job.receive(in_batches)

    assert result.in_place == {"read": 2_000, "landed": 1_876, "filtered": 0, "messages": 124}
    assert (result.settled, result.poisoned) == (121, 3)
    assert len(job.landed()) == len({*job.landed()}) == 1_997
    assert job.is_whole()


def test_rows_that_the_job_names_have_had_their_first_delivery(job: Job) -> None:
    write_deltalake(job.raw, orders(0, ROWS))
    calls = list[int]()

    def counting(df: DataFrame) -> DataFrame:
        calls.append(len(calls))
        return named(df)

    result = job.receive(counting)

    assert len(calls) == 2, "in place, and without rows to check the function: they are not transformed once more to hear the same"
    assert (result.poisoned, result.rollbacks) == (len(BAD), len(BAD))
    found = job.messages()
    assert {(row["last_error"]["type"], row["last_error"]["message"]) for row in found.values()} == {("_poison", "no amount")}


def test_rows_that_the_job_names_are_tried_again_as_the_policy_says(job: Job) -> None:
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move")
    write_deltalake(job.raw, orders(0, ROWS))
    seen = list[int]()

    def patient(df: DataFrame) -> DataFrame:
        seen.append(len(seen))
        return named(df) if len(seen) <= 2 else named(df.where("id <> 7"))

    result = job.queue.receive(None, policy, key="run", spark=job.spark, transform=patient, output=job.clean, source=DeltaChanges(job.raw))

    assert (result.settled, result.poisoned, result.rollbacks) == (1, 2, 3 + 2 + 2), "one makes no row at the second delivery"


def test_messages_that_another_pass_has_delivered_meanwhile_are_charged_for_what_is_delivered(job: Job) -> None:
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
    write_deltalake(job.raw, orders(0, ROWS))
    calls = list[int]()

    def counting(df: DataFrame) -> DataFrame:
        calls.append(len(calls))
        return named(df)

    options: dict[str, Any] = {"spark": job.spark, "transform": counting, "output": job.clean}

    def overtake(point: str) -> None:
        if point == "pass.in_place.after_commit":
            install(None)
            job.queue.receive(None, policy, key="other", **options)
            job.queue.return_due(policy)
            calls.clear()

    install(overtake)
    try:
        job.queue.receive(None, policy, key="run", source=DeltaChanges(job.raw), **options)
    finally:
        install(None)

    assert len(calls) == 3, "to check the function, and two deliveries: they have had others than the job's"
    assert {row["sub_queue"] for row in job.messages().values()} == {"poison"}


def test_a_table_without_failures_is_written_once(job: Job) -> None:
    write_deltalake(job.raw, orders(0, ROWS, bad=[]))

    job.receive(cast)

    assert len(job.landed()) == ROWS
    assert job.messages() == {}
    assert sum(file.size for file in job.queue.table.snapshot().landings) == 0
    stored = [path for path in Path(job.queue.table.root).rglob("*.parquet") if "_output" in str(path)]
    assert all(path.stat().st_size < 16_000 for path in stored), "names of files, and no rows"
    assert columns_of_files(job) == {"id", "amount", "price", "at"}


def columns_of_files(job: Job) -> set[str]:
    """Return the columns of the files that a table has."""
    return {name for uri in DeltaTable(job.clean).file_uris() for name in pq.read_schema(uri.removeprefix("file://")).names}


def watched_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each way is added in which a job runs."""
    ran = list[str]()

    def watch(name: str) -> None:
        method = getattr(InPlace, name)

        def run(*given: Any, catches: bool = True) -> None:
            ran.append(name if catches else f"{name} uncaught")
            method(*given) if catches else method(*given, catches=False)

        monkeypatch.setattr(InPlace, name, run)

    watch("_run_as_it_is")
    watch("_run_split")
    return ran


def test_a_job_runs_as_it_is_unless_rows_have_failed_before(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = watched_runs(monkeypatch)
    write_deltalake(job.raw, orders(0, ROWS, bad=[]))
    job.receive(cast, key="clean")
    assert ran == ["_run_as_it_is"]

    write_deltalake(job.raw, orders(ROWS, 2 * ROWS, bad=[70]), mode="append")
    job.receive(cast, key="one that fails")
    assert ran == ["_run_as_it_is", "_run_as_it_is", "_run_split"]
    assert [line for line in job.lines if "once more" in line and "CAST_INVALID_INPUT" in line] == job.lines[3:4]

    write_deltalake(job.raw, orders(2 * ROWS, 3 * ROWS, bad=[130]), mode="append")
    job.receive(lambda df: cast(df.where("id <> 140")), key="one that fails again")
    assert ran[3:] == ["_run_split"]
    assert len(job.landed()) == 3 * ROWS - 3
    assert sorted(each["body"]["id"] for each in job.messages().values()) == [70, 130]
    assert not job.poured
    assert job.is_whole()


def test_a_job_that_names_rows_catches_no_errors_until_it_fails(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def naming(df: DataFrame) -> DataFrame:
        made = df.where("id <> 140").selectExpr("lookup_id", "id", "amount", "if(amount = 'bad', 'no amount', NULL) AS said")
        return made.selectExpr("lookup_id", "id", "if(id = 70, cast(amount AS int), try_cast(amount AS int)) AS amount", "said AS _poison")

    ran = watched_runs(monkeypatch)
    for turn, ways in enumerate((["_run_split uncaught"], ["_run_split uncaught", "_run_split"], ["_run_split uncaught"])):
        first = turn * ROWS
        write_deltalake(job.raw, orders(first, first + ROWS, bad=[first + 10]), mode="append")
        job.receive(naming, key=str(turn))
        assert ran == ways, turn
        ran.clear()

    assert [line for line in job.lines if "once more" in line and "CAST_INVALID_INPUT" in line]
    found = {row["body"]["id"]: row["last_error"]["type"] for row in job.messages().values()}
    assert found == {10: "_poison", 70: "CAST_INVALID_INPUT", 130: "_poison"}
    assert len(job.landed()) == 3 * ROWS - 3 - 1
    assert not job.poured
    assert job.is_whole()


def test_what_a_task_of_a_failed_job_still_writes_does_not_stop_the_next_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InPlace, "discard", lambda _: None)  # as if it were there again
    write_deltalake(job.raw, orders(0, ROWS, bad=[7]))

    job.receive(cast, key="one that fails")

    assert len(job.landed()) == ROWS - 1
    assert [each["body"]["id"] for each in job.messages().values()] == [7]
    assert not job.poured


@pytest.mark.long
def test_instants_keep_their_zone_in_a_session_that_has_other_settings(job: Job) -> None:
    before = job.spark.conf.get(STAMPS)
    job.spark.conf.set(STAMPS, "INT96")
    try:
        write_deltalake(job.raw, orders(0, 10))
        job.receive(cast)
        job.queue.send([{"id": 99, "amount": "1", "price": "1.5", "at": "2026-01-01T00:00:00Z"}])
        job.queue.receive(None, POLICY, spark=job.spark, transform=cast, output=job.clean)
        job.queue.receive(None, POLICY, spark=job.spark, transform=cast, output=f"{job.clean}-new", source=DeltaChanges(job.raw, name="again"))

        assert job.spark.conf.get(STAMPS) == "INT96"
    finally:
        job.spark.conf.set(STAMPS, str(before))

    assert len(job.landed()) == 10
    for uri in (job.clean, f"{job.clean}-new"):
        assert DeltaTable(uri).to_pyarrow_table().schema.field("at").type == pa.timestamp("us", "UTC")


def test_each_row_once_whatever_the_keys_and_versions(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))

    job.receive(cast, key="one")
    job.receive(cast, key="one")
    write_deltalake(job.raw, orders(20, 40), mode="append")
    job.receive(cast, key="one")
    assert len(job.landed()) == 19, "a key takes once"
    job.receive(cast, key="two")
    job.receive(cast, key="three")

    assert len(job.landed()) == 38
    assert sorted(row["body"]["id"] for row in job.messages().values()) == [7, 21]
    (position,) = job.queue.positions()
    assert position.position == "version 1"


def test_messages_that_wait_are_delivered_in_the_same_pass_by_the_same_function(job: Job) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
    write_deltalake(job.raw, orders(0, 10))
    options: dict[str, Any] = {"spark": job.spark, "source": DeltaChanges(job.raw), "output": job.clean}
    job.queue.receive(None, policy, key="one", transform=cast, **options)
    assert [row["sub_queue"] for row in job.messages().values()] == ["retry"]

    write_deltalake(job.raw, orders(10, 20), mode="append")
    job.queue.return_due(policy)
    mended = job.queue.receive(
        None, policy, key="two", transform=lambda df: df.selectExpr("id", "coalesce(try_cast(amount AS int), -1) AS amount", "price", "at"), **options
    )

    assert mended.settled == 1
    assert job.messages() == {}
    assert len(job.landed()) == 20
    assert [row for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist() if row["amount"] == -1] == [
        {"id": 7, "amount": -1, "price": Decimal("1.75"), "at": datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)}
    ]


TYPES = """named_struct(
    'b', id % 2 = 0, 'y', cast(id AS tinyint), 's', cast(id AS smallint), 'i', cast(id AS int), 'l', id * 1000000007,
    'f', cast(id / 7 AS float), 'd', if(id % 5 = 0, cast('NaN' AS double), id / 7), 'inf', if(id = 3, cast('-Infinity' AS double), 0D),
    'n', cast(id AS decimal(38, 18)) / 7, 't', if(id % 3 = 0, NULL, concat('é\\n"', id)), 'x', cast(concat('\\u0000ÿ', id) AS binary),
    'day', date_add(date'1582-10-01', cast(id AS int)), 'at', timestamp_micros(id * 1000001 - 5000000000000000),
    'far', date_add(date'9999-12-20', cast(id AS int)), 'before', date_add(date'0001-01-10', -cast(id AS int)),
    'late', timestamp_micros(253402300799000000 + id * 1000000007000003), 'e', '')"""


@pytest.mark.long
@pytest.mark.parametrize(("form", "fails"), [("parquet", "all"), ("orc", "all"), ("parquet", "one, of a job that fails as a whole")])
@pytest.mark.usefixtures("to_one_row")
def test_rows_of_all_types_come_back_from_a_retry_as_they_were(job: Job, tmp_path: Path, form: str, fails: str) -> None:
    rows = job.spark.range(1, 25).selectExpr(
        f"{TYPES} AS s",
        f"map('k', array(named_struct('of', {TYPES}, 'none', cast(NULL AS array<int>))), 'm', NULL) AS deep",
        "map(cast(id AS int), cast(id AS decimal(9, 2))) AS numbers",
        "id AS `a.b c`",
        "cast(timestamp_micros(id * 999983) AS timestamp_ntz) AS clock",
    )
    rows = rows.select("s.*", "deep", "numbers", "`a.b c`", "clock")
    rows.write.format(form).save(str(tmp_path / "landing"))

    def all_fail(df: DataFrame) -> DataFrame:
        return df.withColumn("l", f.expr("l + cast(if(l > 0, 'bad', '0') AS bigint)"))

    def one_fails(df: DataFrame) -> DataFrame:
        return df.drop("lookup_id").repartition(2).sortWithinPartitions(f.expr("cast(if(i = 9, 'bad', '0') AS bigint)"))

    def none_fails(df: DataFrame) -> DataFrame:
        return df.drop("lookup_id")

    failing, messages = (all_fail, 24) if fails == "all" else (one_fails, 1)
    options: dict[str, Any] = {"source": Files(f"{tmp_path}/landing/*.{form}", format=form, settled=timedelta(0))}
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")
    job.queue.receive(None, policy, key="one", spark=job.spark, transform=failing, output=job.clean, **options)
    assert len(job.messages()) == messages
    job.queue.return_due(policy)

    job.queue.receive(None, policy, key="two", spark=job.spark, transform=none_fails, output=job.clean, **options)

    assert job.messages() == {}
    landed = pa.concat_tables([pq.read_table(file) for file in DeltaTable(job.clean).file_uris()])
    with types_kept(job.spark):
        job.spark.read.format(form).load(str(tmp_path / "landing")).write.parquet(str(tmp_path / "unprotected"))
    files = (tmp_path / "unprotected").glob("*.parquet")
    wanted = pa.concat_tables([pq.read_table(path, coerce_int96_timestamp_unit="us") for path in files])
    assert landed.column_names == wanted.column_names
    assert in_order(landed) == in_order(wanted.cast(landed.schema))


@pytest.mark.parametrize("partitions", [[], ["day"], ["at"]], ids=",".join)
def test_rows_with_dates_that_python_does_not_have_land_beside_others(job: Job, tmp_path: Path, partitions: list[str]) -> None:
    far, instants = [19_675_925, -735_525, 0, None], [1_700_000_000_123_456_789, -63_549_338_399_500_000, 0, None]
    rows = {"l": [1, 2, 3, 4], "day": pa.array(far, pa.date32()), "at": pa.array(instants, pa.timestamp("us", "UTC"))}
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "landing" / "1.parquet")
    if partitions:
        write_deltalake(job.clean, pa.table(rows).slice(0, 0), partition_by=partitions)
    source = Files(f"{tmp_path}/landing/*.parquet", format="parquet", settled=timedelta(0))

    done = job.queue.receive(None, POLICY, key="one", spark=job.spark, transform=lambda df: df, source=source, output=job.clean)

    assert done.in_place == {"read": 4, "landed": 4, "filtered": 0, "messages": 0}
    landed = taken_from(DeltaChanges(job.clean, start=0))
    assert in_order(landed.select(["l", "day", "at"])) == in_order(pa.table(rows))


TEXTS = pa.Array.from_buffers(pa.string(), 4, pa.array([b"ok", b"\xffx", b"a\xc3", b"fine"], pa.binary()).buffers())
"""Texts of which two are no UTF-8, as files of other programs have them."""


def named_with_their_text(df: DataFrame) -> DataFrame:
    return df.withColumn("_poison", f.expr("if(l > 1, concat('bad: ', t), NULL)"))


@pytest.mark.parametrize(
    ("transform", "partitions", "landed"),
    [
        (lambda df: df, [], [b"ok", b"\xffx", b"a\xc3", b"fine"]),
        (lambda df: df, ["t"], [b"ok", b"fine"]),
        (named_with_their_text, [], [b"ok"]),
    ],
    ids=["land as they are", "name no partition", "are in a verdict"],
)
def test_texts_that_are_no_utf_8_stop_no_others(
    job: Job, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], partitions: list[str], landed: list[bytes]
) -> None:
    (tmp_path / "landing").mkdir()
    rows = pa.table({"l": [1, 2, 3, 4], "t": TEXTS})
    pq.write_table(rows, tmp_path / "landing" / "1.parquet")
    write_deltalake(job.clean, rows.slice(0, 0), partition_by=partitions)
    source = Files(f"{tmp_path}/landing/*.parquet", format="parquet", settled=timedelta(0))

    for key in ("one", "two"):  # the table is not spoiled for the second one
        job.queue.receive(None, POLICY, key=key, spark=job.spark, transform=transform, source=source, output=job.clean)

    found = taken_from(DeltaChanges(job.clean, start=0)).sort_by("l")["t"]
    assert found.cast(pa.binary()).to_pylist() == landed
    assert len(job.messages()) == 4 - len(landed)


def taken_from(source: DeltaChanges) -> pa.Table:
    """Return all rows of a table, partitions among their columns."""
    take = source.plan(Position({}), limit=None)
    assert take is not None
    return pa.Table.from_batches(take.batches())


def in_order(rows: pa.Table) -> str:
    """Return rows by their column l as Arrow writes them, which has years that Python does not have."""
    return "\n".join(column.to_string(window=100, container_window=100) for column in rows.sort_by("l").combine_chunks().columns)


def mapped(uri: str, **options: Any) -> None:
    """Make a table whose files call columns otherwise than the table does."""
    versions = {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    DeltaTable.create(uri, landing().schema, configuration={"delta.columnMapping.mode": "name", **versions}, **options)


OUTPUTS: dict[str, Callable[[str], object]] = {
    "partitioned by instants": lambda uri: write_deltalake(uri, landing().slice(0, 0), partition_by=["at"]),
    "a constraint": lambda uri: constrained(uri, "id >= 0"),
    "NOT NULL": lambda uri: DeltaTable.create(uri, pa.schema([landing().schema.field("id").with_nullable(False), *list(landing().schema)[1:]])),  # noqa: FBT003
    "wider types": lambda uri: write_deltalake(uri, landing().slice(0, 0).set_column(0, "id", pa.array([], pa.int64()))),
    "more columns": lambda uri: write_deltalake(uri, landing().slice(0, 0).append_column("more", pa.array([], pa.string()))),
    "column mapping": mapped,
    "column mapping, partitioned": lambda uri: mapped(uri, partition_by=["id"]),
}


def constrained(uri: str, condition: str) -> None:
    write_deltalake(uri, landing().slice(0, 0))
    DeltaTable(uri).alter.add_constraint({"of_the_test": condition})


def landing() -> pa.Table:
    return orders(0, ROWS, bad=[]).set_column(1, "amount", pa.array(range(ROWS), pa.int32()))


CELLS = {
    "id": pa.array([0, 1, 2, 3], pa.int32()),
    "n": ["0", " 1 ", "bad", None],
    "d": [1.0, 1.5, 2.0**70, float("nan")],
    "p": ["1.25", "1.255", " 7 ", "1e400"],
    "w": [1, 2, 3, 5_000_000_000],
    "x": ["1.5", "inf", "1e400", "infx"],
    "day": ["2026-01-01", "2026-01-01 10:00", "2026-13-01", None],
}
TYPED = "id int, n int, d int, p decimal(9, 2), w int, x double, day date"
BAD_CELLS = [[], ["d", "p", "day"], ["n", "d", "x", "day"], ["d", "p", "w", "x"]]


def as_given(df: DataFrame) -> DataFrame:
    return df.select(*CELLS)


def test_cells_that_do_not_fit_are_null_and_the_row_says_so(job: Job) -> None:
    write_deltalake(job.raw, pa.table(CELLS))

    result = job.receive(as_given, output_schema=TYPED, on_bad_cell="null")
    job.queue.send([{name: "x" if name == "n" else "1" if name in {"p", "x"} else None if name == "day" else 4 for name in CELLS}])
    bodies: dict[str, Any] = {"schema": "id int, n string, d double, p string, w bigint, x string, day string"}
    job.queue.receive(None, POLICY, spark=job.spark, transform=as_given, output=job.clean, on_bad_cell="null", **bodies)

    assert result.in_place == {"read": 4, "landed": 4, "filtered": 0, "messages": 0}
    assert job.messages() == {}
    rows = DeltaTable(job.clean).to_pyarrow_table().sort_by("id").to_pylist()
    assert [[each["column"] for each in row["_corrections"] or ()] for row in rows] == [*BAD_CELLS, ["n"]]
    assert rows[1] == {"id": 1, "n": 1, "d": None, "p": None, "w": 2, "x": float("inf"), "day": None, "_corrections": rows[1]["_corrections"]}
    assert rows[1]["_corrections"][1] == {"column": "p", "value": "1.255", "why": "does not fit decimal(9,2)"}
    assert rows[2]["p"] == Decimal(7)
    assert (rows[3]["n"], rows[3]["day"]) == (None, None), "null before, and no correction"


@pytest.mark.long
def test_keys_and_columns_that_must_have_a_value_are_never_made_null(job: Job) -> None:
    write_deltalake(job.raw, pa.table(CELLS))

    job.receive(as_given, output_schema=TYPED.replace("n int", "n int NOT NULL"), output_keys=["w"], on_bad_cell="null")

    assert [row["id"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()] == [0, 1]
    errors = {row["body"]["id"]: row["last_error"]["message"] for row in job.messages().values()}
    assert errors.keys() == {2, 3}
    assert errors[2] == "Column 'n' of the output does not fit int: bad"
    assert errors[3] in {"Column 'n' of the output must have a value; the row has none.", "Column 'w' of the output does not fit int: 5000000000"}


def test_an_output_without_the_column_for_corrections_is_an_error_unless_it_evolves(job: Job) -> None:
    write_deltalake(job.raw, pa.table(CELLS))
    write_deltalake(job.clean, pa.table({"id": pa.array([], pa.int32())}))
    write_deltalake(f"{job.clean}-text", pa.table({"id": pa.array([], pa.int32()), "_corrections": pa.array([], pa.string())}))

    with pytest.raises(OutputError, match=r"ALTER TABLE … ADD COLUMNS \(_corrections array<struct<column: string"):
        job.receive(lambda df: df.select("id"), on_bad_cell="null")
    with pytest.raises(OutputError, match="'_corrections' of type string"):
        job.receive(lambda df: df.select("id"), output=f"{job.clean}-text", on_bad_cell="null")
    with pytest.raises(TransformError, match="which on_bad_cell='null' fills"):
        job.receive(lambda df: df.selectExpr("id", "1 AS _corrections"), on_bad_cell="null", evolve=True)
    with pytest.raises(SettingError, match="on_bad_cell='nil'"):
        job.receive(as_given, on_bad_cell="nil")
    assert job.queue.positions() == ()
    job.receive(lambda df: df.select("id"), on_bad_cell="null", evolve=True)

    assert len(job.landed()) == 4
    assert DeltaTable(job.clean).to_pyarrow_table()["_corrections"].null_count == 4


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_cannot_take_files_as_they_are_get_the_rows(job: Job, name: str) -> None:
    OUTPUTS[name](job.clean)
    write_deltalake(job.raw, orders(0, ROWS))

    job.receive(cast)

    landed = QueryBuilder().register("clean", DeltaTable(job.clean)).execute("SELECT id, amount FROM clean ORDER BY id").read_all()
    assert [*map(tuple, map(dict.values, pa.table(landed).to_pylist()))] == [(each, each) for each in range(ROWS) if each not in BAD]
    assert sorted(row["body"]["id"] for row in job.messages().values()) == BAD
    assert not any(Path(job.clean, "_poison").rglob("*.parquet"))


KINDS = ["plain", "a b/c=%d", "ü", "__HIVE_DEFAULT_PARTITION__", None, "", "A/A", "ID$", " ", "a%2Fb"]


def in_partitions(df: DataFrame) -> DataFrame:
    kind = f.array(*map(f.lit, KINDS))[f.col("id") % len(KINDS)].alias("kind")
    amount, day, third = f.expr("cast(amount AS int) amount"), f.expr("date_add(DATE'2026-01-01', id % 2) day"), f.expr("id % 3 = 0 third")
    return df.select("lookup_id", "id", amount, kind, day, third)


def in_partitions_named(df: DataFrame) -> DataFrame:
    checked = in_partitions(df.withColumn("amount", f.expr("try_cast(amount AS int)")))
    return checked.withColumn("_poison", f.expr("if(amount IS NULL, 'no amount', NULL)"))


@pytest.mark.parametrize("bad", [[], BAD], ids=["none fails", "some fail"])
@pytest.mark.parametrize("transform", [in_partitions, in_partitions_named])
def test_files_of_partitions_become_part_of_the_table_as_they_are(job: Job, transform: Transform, bad: list[int]) -> None:
    columns = {"id": pa.int32(), "amount": pa.int32(), "kind": pa.string(), "day": pa.date32(), "third": pa.bool_()}
    empty = pa.schema([pa.field(*column) for column in columns.items()]).empty_table()
    write_deltalake(job.clean, empty, partition_by=["kind", "day", "third"])
    write_deltalake(job.raw, orders(0, ROWS, bad=bad))

    result = job.receive(transform)

    nameless = [each for each in range(ROWS) if KINDS[each % len(KINDS)] == ""]
    good = [each for each in range(ROWS) if each not in {*bad, *nameless}]
    assert result.in_place == {"read": ROWS, "landed": len(good), "filtered": 0, "messages": ROWS - len(good)}
    table = DeltaTable(job.clean)
    rows = {row["id"]: (row["kind"], row["day"], row["third"]) for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {each: (KINDS[each % len(KINDS)], date(2026, 1, 1 + each % 2), each % 3 == 0) for each in good}
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert all(row["path"].endswith(".c000.snappy.parquet") for row in added), "written by Spark, and not once more"
    assert sum(row["num_records"] for row in added) == len(good)
    assert sorted(row["body"]["id"] for row in job.messages().values()) == sorted({*bad, *nameless})
    assert not any(Path(job.clean, "_poison").rglob("*.parquet"))


def test_rows_that_break_a_constraint_are_messages(job: Job) -> None:
    constrained(job.clean, "amount < 58")
    write_deltalake(job.raw, orders(0, ROWS, bad=[]))

    job.receive(cast)

    assert len(job.landed()) == 58
    assert sorted(row["body"]["id"] for row in job.messages().values()) == [58, 59]


def test_keys_replace_rows(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 10, bad=[]))
    job.receive(cast, output_keys=["id"])
    write_deltalake(job.raw, orders(5, 15, bad=[]), mode="append")
    job.receive(cast, key="two", output_keys=["id"])

    assert len(job.landed()) == 15


def late(df: DataFrame) -> DataFrame:
    """Fails as a whole: errors below a shuffle are not caught row by row."""
    return df.repartition(2).sortWithinPartitions(f.expr("cast(amount AS int)")).selectExpr("id", "cast(amount AS int) AS amount", "price", "at")


def names_its_file(df: DataFrame) -> DataFrame:
    return in_batches(df.withColumn("price", f.expr("if(input_file_name() IS NULL, 1, price)")))


def two_kinds(df: DataFrame) -> DataFrame:
    return in_batches(df.repartition(2).sortWithinPartitions(f.expr("cast(if(id = 50, 'bad', '0') AS int)")))


def ends_its_worker(df: DataFrame) -> DataFrame:
    def made(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            if (batch["amount"] == "bad").any():
                os._exit(3)
            yield batch.assign(amount=batch["amount"].map(int))[["id", "amount"]]

    return df.mapInPandas(made, "id int, amount int")  # type: ignore[arg-type]


@pytest.fixture
def to_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pieces cut to one row also in a session that searches parts of a plan, as on Spark Connect."""
    monkeypatch.setattr(in_place, "FEW", 1)
    monkeypatch.setattr(in_place, "LEAST", 1)


@pytest.mark.parametrize(
    ("transform", "bad", "messages", "of"),
    [
        pytest.param(late, [7, 50], 2, "CAST_INVALID_INPUT", marks=pytest.mark.long),
        pytest.param(two_kinds, [7], 2, "ValueError", marks=pytest.mark.long),
        pytest.param(in_batches, [*range(0, 120, 2)], 120, "ValueError", marks=pytest.mark.campaign),
        pytest.param(names_its_file, [7], 120, "ValueError", marks=pytest.mark.long),
        pytest.param(ends_its_worker, [7, 50], 2, "crashed", marks=pytest.mark.long),
    ],
    ids=["a shuffle", "two kinds of errors", "most pieces fail", "it reads the name of its file", "a worker ends"],
)
@pytest.mark.usefixtures("to_one_row")
def test_of_a_job_that_fails_as_a_whole_the_rows_that_fail_are_found_in_pieces(
    job: Job, transform: Transform, bad: list[int], messages: int, of: str
) -> None:
    write_deltalake(job.raw, orders(0, 100, bad=bad))
    write_deltalake(job.raw, orders(100, 120, bad=bad), mode="append")

    result = job.receive(transform)

    failing = {*bad} if messages == 120 else {7, 50}
    assert result.in_place == {"read": 120, "landed": 120 - messages, "filtered": 0, "messages": messages}
    assert job.poured is (messages == 120)
    landed: list[Any] = DeltaTable(job.clean).to_pyarrow_table()["id"].to_pylist()
    assert sorted(landed) == [each for each in range(120) if each not in failing]
    found = job.messages()
    assert {row["body"]["id"] for row in found.values()} == failing
    assert of in {row["last_error"]["type"] for row in found.values()}
    assert result.poisoned == len(failing)
    assert job.is_whole()
    assert not any(Path(job.clean, "_poison").rglob("*.parquet"))


@pytest.mark.parametrize("outage", [None, pytest.param(Outage(), marks=pytest.mark.long)], ids=["none", "an outage may be behind it"])
@pytest.mark.usefixtures("to_one_row")
def test_rows_that_have_failed_alone_in_a_job_have_had_their_first_delivery(job: Job, outage: Outage | None) -> None:
    def mended_meanwhile(df: DataFrame) -> DataFrame:
        return df.selectExpr("id", "7 AS amount") if any("rows read" in line for line in job.lines) else late(df)

    write_deltalake(job.raw, orders(0, 20))

    result = job.receive(mended_meanwhile, outage=outage)

    assert result.in_place == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    assert (result.settled, result.poisoned) == ((0, 1) if outage is None else (1, 0))


@pytest.mark.long
@pytest.mark.parametrize("hidden", [True, False])
def test_where_a_queue_hides_values_no_line_and_no_commit_has_one(job: Job, *, hidden: bool) -> None:
    Store(job.queue.table.root.rpartition("/")[0]).declare("orders", POLICY, mask=["$.amount"] if hidden else None)
    write_deltalake(job.raw, orders(0, 20))
    job.receive(late, key="no row alone")
    write_deltalake(job.raw, orders(20, 40, bad=[30]), mode="append")
    Store(job.queue.table.root.rpartition("/")[0]).queue("orders").put_back()
    job.receive(cast, key="one row")

    commits = " ".join(path.read_text() for path in Path(job.queue.table.root, "_delta_log").glob("*.json"))
    assert ("'bad'" in "".join(job.lines), "'bad'" in commits) == (not hidden, not hidden)
    assert any("CAST_INVALID_INPUT" in line for line in job.lines)


@pytest.mark.campaign
def test_a_row_that_hangs_is_found_when_no_row_moves_any_more(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_poison.spark.engine.STANDS_STILL_SECONDS", 20.0)
    ran = watched_runs(monkeypatch)

    def hangs(text: str) -> int:
        if text == "bad":
            time.sleep(1_000)
        return int(text)

    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=8))
    write_deltalake(job.raw, orders(0, 10))
    given: dict[str, Any] = {"source": DeltaChanges(job.raw), "output": job.clean, "progress": job.lines.append}

    job.queue.receive(
        None,
        policy,
        key="run",
        spark=job.spark,
        transform=lambda df: df.select("id", f.udf(hangs, IntegerType(), useArrow=False)("amount").alias("amount")),
        **given,
    )

    assert any("no row was read or written for" in line for line in job.lines)
    assert ran == ["_run_as_it_is"], "nothing waits for the row a second time before it is a message"
    assert len(job.landed()) == 9
    assert [(row["body"]["id"], row["last_error"]["kind"]) for row in job.messages().values()] == [(7, "timeout")]


def test_two_runs_at_once_take_each_row_once(job: Job) -> None:
    write_deltalake(job.raw, orders(0, ROWS))
    errors = list[BaseException]()

    def run(key: str) -> None:
        try:
            Store(str(Path(job.queue.table.root).parent)).queue("orders").receive(
                None, POLICY, key=key, spark=job.spark, transform=cast, source=DeltaChanges(job.raw), output=job.clean
            )
        except BaseException as error:  # noqa: BLE001  (shown below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(key,)) for key in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(job.landed()) == ROWS - len(BAD)
    assert sorted(row["body"]["id"] for row in job.messages().values()) == BAD
    assert job.is_whole()


def test_a_run_that_is_overtaken_between_its_plan_and_its_job_takes_nothing_twice(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))

    class Overtaken(DeltaChanges):
        plans = 0

        def plan(self, position: Position, *, limit: int | None) -> Take | None:
            planned = super().plan(position, limit=limit)
            Overtaken.plans += 1
            if Overtaken.plans == 1:
                job.receive(cast, key="other")
            return planned

    job.receive(cast, source=Overtaken(job.raw))

    assert Overtaken.plans == 2
    assert len(job.landed()) == 19
    assert [row["body"]["id"] for row in job.messages().values()] == [7]
    assert not list(Path(job.clean, HIDDEN).rglob("*.parquet"))


DRIVER = """
import sys
from airflow_poison import DeltaChanges, Store
from airflow_poison.spark.session import get_session
from tests.given.drivers import SMALL
from tests.spark.test_in_place import POLICY, cast

store, raw, clean = sys.argv[1:]
given = {"transform": cast, "source": DeltaChanges(raw), "output": clean}
Store(store).queue("orders").receive(None, POLICY, key="run", spark=get_session("local[1]", SMALL), **given)
"""


def killed(job: Job, point: str) -> None:
    store = str(Path(job.queue.table.root).parent)
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, store, job.raw, job.clean]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "AIRFLOW_POISON_FAULT": f"{point}:kill"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2_000:]


POINTS = [
    "pass.in_place.before_job",
    "pass.in_place.before_commit",
    "store.append.after_files",
    "store.append.after_numbering",
    "pass.in_place.after_commit",
    "output.land.before_write",
    "output.land.before_force",
    "pass.land.after_write",
    "pass.land.before_removal",
]


@pytest.mark.long
@pytest.mark.parametrize("point", [POINTS[1], *(pytest.param(each, marks=pytest.mark.campaign) for each in POINTS if each != POINTS[1])])
def test_a_run_that_is_killed_is_done_again_and_each_row_is_there_once(job: Job, point: str) -> None:
    write_deltalake(job.raw, orders(0, ROWS))

    killed(job, point)
    job.receive(cast)

    assert len(job.landed()) == len({*job.landed()}) == ROWS - len(BAD)
    assert sorted(row["body"]["id"] for row in job.messages().values()) == BAD
    assert not job.poured, job.lines
    assert job.is_whole()


@pytest.mark.campaign
def test_what_has_ended_two_runs_is_looked_at_row_by_row(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))
    for _ in range(2):
        killed(job, "pass.in_place.before_commit")

    job.receive(cast)

    assert job.poured
    assert len(job.landed()) == 19
    assert [row["body"]["id"] for row in job.messages().values()] == [7]


def test_rows_that_are_gone_before_the_commit_are_not_committed(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))

    def removed(point: str) -> None:
        if point == "pass.in_place.before_commit":
            shutil.rmtree(Path(job.clean, HIDDEN))

    install(removed)
    try:
        with pytest.raises(OutputError, match="was removed before it was committed"):
            job.receive(cast)
    finally:
        install(None)
    assert job.queue.positions() == ()

    job.receive(cast)

    assert len(job.landed()) == 19


def test_a_file_that_changes_while_it_is_read_is_an_error_and_nothing_is_taken(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "orders.parquet"
    pq.write_table(orders(0, 20), file)

    changes = iter(range(1, 100))

    def rewritten(df: DataFrame) -> DataFrame:
        os.utime(file, (at := next(changes), at))
        return cast(df)

    with pytest.raises(SourceError, match="was changed while it was read"):
        job.receive(rewritten, source=Files(f"{tmp_path}/in/*.parquet", format="parquet", settled=timedelta(0)))

    assert job.messages() == {}
    assert job.queue.positions() == ()
    assert not Path(job.clean, "_delta_log").exists()

    for _ in range(2):
        with pytest.raises(SourceError, match="was changed while it was read"):
            job.receive(rewritten, source=Files(f"{tmp_path}/in/*.parquet", format="parquet", settled=timedelta(0)))
    job.receive(cast, source=Files(f"{tmp_path}/in/*.parquet", format="parquet", settled=timedelta(0)))
    assert not job.poured, "an error is no death"
    assert len(job.landed()) == 19


def parquet(tmp_path: Path) -> Files:
    return Files(f"{tmp_path}/in/*.parquet", format="parquet", settled=timedelta(0))


def test_names_of_files_are_no_patterns(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for place, name in enumerate(("a[1]", "b{x}", "c d%20", "e*", "f?")):
        pq.write_table(orders(10 * place, 10 * place + 10, bad=[7]), tmp_path / "in" / f"{name}.parquet")

    job.receive(cast, source=parquet(tmp_path))

    assert len(job.landed()) == 49
    assert [row["body"]["id"] for row in job.messages().values()] == [7]
    assert not job.poured


@pytest.fixture(params=["false", "true"])
def ignoring(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Have the session pass over files that are damaged or gone, or not (SPARK-40591: rows are lost)."""
    names = "spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"
    for name in names:
        spark.conf.set(name, request.param)
    yield
    for name in names:
        spark.conf.unset(name)


@pytest.mark.long
@pytest.mark.usefixtures("ignoring")
def test_a_damaged_file_and_one_with_other_types_stop_no_other(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(orders(0, 10), tmp_path / "in" / "good.parquet")
    whole = (tmp_path / "in" / "good.parquet").read_bytes()
    (tmp_path / "in" / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    schema = "id int, amount string, price decimal(12, 2), at timestamp"

    job.receive(cast, source=parquet(tmp_path), schema=schema)

    assert len(job.landed()) == 9
    table = job.queue.table
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    assert sorted((row["sub_queue"], row["last_error"]["type"]) for row in rows) == [("poison", "CAST_INVALID_INPUT"), ("poison", "MalformedError")]
    (position,) = job.queue.positions()
    assert position.position == "2 files were taken"

    pq.write_table(orders(10, 20).set_column(1, "amount", pa.array([1.5] * 10)), tmp_path / "in" / "other.parquet")
    job.receive(cast, key="two", source=parquet(tmp_path), schema=schema)
    pq.write_table(orders(20, 30).set_column(1, "amount", pa.array(range(10), pa.int64())), tmp_path / "in" / "one.parquet")
    pq.write_table(orders(30, 40), tmp_path / "in" / "two.parquet")
    job.receive(cast, key="three", source=parquet(tmp_path), schema=schema)

    ids = sorted(row["id"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist())
    assert ids == [each for each in range(40) if each != 7 and not 20 <= each < 30]
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    refused = [json.loads(row["body"])["id"] for row in rows if row["last_error"]["type"].endswith("BodyError")]
    assert sorted(refused) == [*range(20, 30)], "numbers, where schema= says text"
    assert job.is_whole()


def files_of(tmp_path: Path, tables: Mapping[str, pa.Table | bytes]) -> Files:
    """Return files as a source that takes all names."""
    for name, table in tables.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(table, bytes):
            path.write_bytes(table)
        else:
            with path.open("wb") as file:  # Arrow opens no name that is no UTF-8
                pq.write_table(table, file)
    return Files(f"{tmp_path}/in/**/*", format="parquet", settled=timedelta(0))


def given(rows: DataFrame) -> DataFrame:
    return rows.drop("lookup_id")


def numbers(first: int, kind: pa.DataType | None = None, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array([first, first + 1], kind), **more})


PART = pa.struct([("A", pa.float32()), ("b", pa.string())])
NO_UTF8 = os.fsdecode(b"caf\xe9")
ODD_FILES: dict[str, tuple[dict[str, pa.Table | bytes], set[str]]] = {
    "a file of no bytes": ({"b.parquet": b""}, {"MalformedError"}),
    "no parquet": ({"b.parquet": b"id\n3\n"}, {"MalformedError"}),
    "cut": ({"b.parquet": b"PAR1" + b"x" * 90 + b"PAR1"}, {"MalformedError"}),
    "text for numbers": ({"b.parquet": pa.table({"id": ["x"]})}, {"airflow_poison.values.errors.BodyError"}),
    "a type that Spark does not have": ({"b.parquet": numbers(3, n=pa.array([1, 1], pa.timestamp("ns")))}, set()),
    "names that Spark leaves out": (
        {"_b.parquet": numbers(3), "a:b.parquet": numbers(5), "12:00:00/c.parquet": numbers(7), "x._copying_": numbers(9)},
        set(),
    ),
    "names that are no UTF-8": ({f"{NO_UTF8}.parquet": numbers(3), f"{NO_UTF8}/b.parquet": numbers(5)}, set()),
    "wider and narrower": ({"b.parquet": numbers(300, pa.int16()), "c.parquet": numbers(2**40)}, set()),
    "unpacked": ({"b.parquet.gz": gzip.compress(b"no parquet")}, {"MalformedError"}),
}


@pytest.mark.usefixtures("ignoring")
@pytest.mark.parametrize("case", ODD_FILES)
def test_an_odd_file_stops_no_other_and_none_is_left_out(job: Job, tmp_path: Path, case: str) -> None:
    odd, errors = ODD_FILES[case]
    good = {"a.parquet": numbers(1, pa.int32()), "z/a.parquet": numbers(11, pa.int32()), "z/empty.parquet": numbers(1, pa.int32()).slice(0, 0)}
    source = files_of(tmp_path, {**good, **odd})

    result = job.receive(given, source=source)

    wanted = {1, 2, 11, 12}.union(*(table["id"].to_pylist() for table in odd.values() if isinstance(table, pa.Table) and not errors))
    assert {row["id"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()} == wanted
    assert {row["last_error"]["type"] for row in messages_of(job)} == errors
    assert result.in_place["landed"] >= len(good) + 1, "the others are no messages"
    assert job.queue.positions()[0].position == f"{len(good) + len(odd)} files were taken"
    assert not job.poured
    assert job.is_whole()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_folder_that_is_no_utf8_makes_the_column_that_a_send_makes(job: Job, tmp_path: Path, form: str) -> None:
    content = b"n\nx\n" if form == "csv" else pa.table({"n": ["x"]})
    source = files_of(tmp_path, {f"day={day}/a": content for day in ("1", NO_UTF8)})

    job.receive(given, source=replace(source, format=form))

    assert sorted(row["day"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()) == ["1", "caf%E9"]
    assert not messages_of(job)


def messages_of(job: Job) -> list[dict[str, Any]]:
    table = job.queue.table
    return [row for file in table.snapshot().files for row in table.read(file).to_pylist()]


def test_rows_that_spark_does_not_read_become_messages_with_their_columns(job: Job, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "at": pa.array([1, None], pa.timestamp("ns")),
        "time": pa.array([1, None], pa.time64("us")),
        "price": pa.array([1, None], pa.uint8()),
    }
    other: dict[str, Any] = {"a": pa.array([["x"], None]), "c": pa.array([b"\xff", None]), "Time": pa.array(["noon", None])}

    job.receive(given, source=files_of(tmp_path, {"a.parquet": numbers(1, **more), "b.parquet": numbers(3, **more)}))
    job.receive(given, key="two", evolve=True, source=files_of(tmp_path, {"c.parquet": numbers(5, n=pa.array([1, 1], pa.time64("us")), **other)}))

    assert job.poured
    rows = sorted(DeltaTable(job.clean).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    none = dict.fromkeys(("at", "time", "price", "a", "c", "n"))
    first = {"at": "1970-01-01T00:00:00.000000001", "time": "00:00:00.000001", "price": 1}
    assert rows[:4] == [{**none, "id": 1, **first}, {**none, "id": 2}, {**none, "id": 3, **first}, {**none, "id": 4}]
    assert rows[4:] == [
        {**none, "id": 5, "time": "noon", "n": "00:00:00.000001", "a": ["x"], "c": b"\xff"},
        {**none, "id": 6, "n": "00:00:00.000001"},
    ]


@pytest.mark.parametrize("name", ["b.parquet", "_b.parquet"])
def test_columns_and_fields_that_only_files_apart_have_keep_their_values(job: Job, tmp_path: Path, name: str) -> None:
    more: dict[str, Any] = {"time": pa.array([1, None], pa.time64("us")), "text": ["a", "b"], "part": pa.array([{"A": 1.1, "b": "x"}, None], PART)}
    first = numbers(1, part=[{"a": 0.5}, {"a": 1.5}])
    odd = numbers(3, **more).rename_columns(["ID", "time", "text", "Part"])

    job.receive(given, source=files_of(tmp_path, {"a.parquet": first, "c.parquet": first.slice(0, 0), name: odd}))

    part = {"a": pa.scalar(1.1, pa.float32()).as_py(), "b": "x"}
    assert sorted(DeltaTable(job.clean).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "part": {"a": 0.5, "b": None}, "time": None, "text": None},
        {"id": 2, "part": {"a": 1.5, "b": None}, "time": None, "text": None},
        {"id": 3, "part": part, "time": "00:00:00.000001", "text": "a"},
        {"id": 4, "part": None, "time": None, "text": "b"},
    ]
    assert job.is_whole()


def test_columns_of_files_without_a_type_in_common_are_columns_of_all_rows(job: Job, tmp_path: Path) -> None:
    odd = pa.table({"id": ["x"], "more": [1], "part": [{"a": 1, "b": 2}]})

    job.receive(
        lambda df: df.selectExpr("try_cast(id AS int) AS id", "more", "part"), source=files_of(tmp_path, {"a.parquet": numbers(1), "b.parquet": odd})
    )

    assert {row["last_error"]["type"].rpartition(".")[2] for row in messages_of(job)} == {"BodyError"}
    assert job.landed() == [str({"id": each, "more": None, "part": None}) for each in (1, 2)]


def test_names_of_fields_in_another_case_come_back_from_a_retry_with_their_values(job: Job, tmp_path: Path) -> None:
    def fields(df: DataFrame) -> DataFrame:
        return df.selectExpr("id", "part.a AS a", "cast(text AS int) AS text")

    job.receive(fields, source=files_of(tmp_path, {"a.parquet": numbers(1, part=[{"a": 0.5}, {"a": 1.5}], text=["1", "2"])}))
    later = numbers(3, part=pa.array([{"A": 1.1, "b": "x"}, None], PART), text=["no", "4"]).rename_columns(["ID", "Part", "Text"])
    job.receive(fields, key="two", source=files_of(tmp_path, {"b.parquet": later}))
    job.queue.put_back()
    job.receive(lambda df: df.selectExpr("id", "part.a AS a", "try_cast(text AS int) AS text"), key="three", source=None)

    found = {row["id"]: (row["a"], row["text"]) for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()}
    assert found == {1: (0.5, 1), 2: (1.5, 2), 3: (pa.scalar(1.1, pa.float32()).as_py(), None), 4: (None, 4)}


def test_rows_of_a_database_become_messages_with_their_columns(job: Job, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table orders (id integer primary key, amount text, price real, day date, raw blob)")
        rows = [(1, "10", 1.5, "2026-11-29", b"\xff"), (2, "bad", 2.5, None, None), (3, "30", None, None, b"")]
        database.executemany("insert into orders values (?, ?, ?, ?, ?)", rows)
        database.commit()
    source = Jdbc(f"sqlite:///{tmp_path}/shop.db", "orders", "id", overlap=1)

    job.receive(lambda rows: rows.selectExpr("id", "cast(amount AS int) AS amount", "price", "day", "raw"), source=source)

    assert job.landed() == sorted(
        [
            str({"id": 1, "amount": 10, "price": 1.5, "day": date(2026, 11, 29), "raw": b"\xff"}),
            str({"id": 3, "amount": 30, "price": None, "day": None, "raw": b""}),
        ]
    )
    assert [row["body"]["id"] for row in job.messages().values()] == [2]


PARTITIONS: dict[str, tuple[list[Any], int]] = {
    "plain text": (["a", "b c", "x=y", "2026-11-29", "01", None], 1),
    "text that folders have in another way": (["a", "ü/%", "{[*?", "A:B", "__HIVE_DEFAULT_PARTITION__", " "], 5),
    "days": ([date(2026, 11, 29), date(1, 1, 1), None], 1),
    "instants": ([datetime(2026, 11, 29, 1, 2, 3, 456789, tzinfo=UTC), None], 2),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_partitions_of_a_delta_table_are_read_by_as_few_scans_as_can_be(job: Job, case: str) -> None:
    values, most = PARTITIONS[case]
    write_deltalake(job.raw, pa.table({"id": range(len(values)), "part": values}), partition_by=["part"])
    taken = DeltaChanges(job.raw).plan(Position(), limit=None)
    assert taken is not None
    assert taken.rows is not None

    rows = taken.rows(job.spark, None)

    assert [row["part"] for row in sorted(rows.collect(), key=lambda row: row["id"])] == [
        each.astimezone().replace(tzinfo=None) if isinstance(each, datetime) else each for each in values
    ]
    assert str(rows._jdf.queryExecution().optimizedPlan().toString()).count("Relation [") <= most


def test_folders_make_columns_that_are_text(job: Job, tmp_path: Path) -> None:
    folders = {"day=2026-11-29/h=01": "2026-11-29 01", "day=__HIVE_DEFAULT_PARTITION__/h=a%2Fb": "None a/b", "day=7": "7 None", ".": "None None"}
    tables = {f"{name}/a.parquet": numbers(10 * number) for number, name in enumerate(folders)}
    own = {"day=x/h=y/b.parquet": numbers(90, day=[1, 2], h=[3, 4])}

    job.receive(given, source=files_of(tmp_path, tables))
    rows = DeltaTable(job.clean).to_pyarrow_table().to_pylist()
    assert {f"{row['day']} {row['h']}" for row in rows} == {*folders.values()}
    assert [list(folders.values())[row["id"] // 10] for row in rows] == [f"{row['day']} {row['h']}" for row in rows]

    job.clean += "-own"
    job.receive(given, key="own", source=files_of(tmp_path, own))
    assert job.landed() == ["{'id': 90, 'day': 1, 'h': 3}", "{'id': 91, 'day': 2, 'h': 4}"], "what the files have themselves"


@pytest.mark.long
@pytest.mark.parametrize("next_ones", [pa.table({"ID": pa.array([3], pa.int32()), "v": ["c"]}), pa.table({"id": [3]})])
def test_messages_keep_columns_that_later_rows_do_not_have(job: Job, tmp_path: Path, next_ones: pa.Table) -> None:
    first = pa.table({"Id": pa.array([1, 2], pa.int64()), "v": ["a", "b"], "w": pa.array([1.5, 2.5], pa.float64())})
    fixed = tmp_path / "fixed"

    def refusing(rows: DataFrame) -> DataFrame:
        refused = f.when((f.col("id") == 2) & f.lit(not fixed.exists()), f.raise_error(f.lit("not yet")))
        return rows.select(f.coalesce(refused.cast("bigint"), f.col("id").cast("bigint")).alias("id"), f.to_json(f.struct("*")).alias("row"))

    job.receive(refusing, source=files_of(tmp_path, {"a.parquet": first}))
    job.receive(refusing, key="two", source=files_of(tmp_path, {"b.parquet": next_ones}))
    fixed.touch()
    job.queue.put_back()
    job.receive(refusing, key="three", source=files_of(tmp_path, {"c.parquet": next_ones}))

    rows = [json.loads(row["row"]) for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist() if row["id"] == 2]
    assert [{name.lower(): value for name, value in row.items() if name != "lookup_id"} for row in rows] == [{"id": 2, "v": "b", "w": 2.5}]


def test_a_vacuum_leaves_rows_alone_that_no_log_names_yet(tmp_path: Path) -> None:
    """It removes others: delta-rs issue 3645."""
    table, written = tmp_path / "clean", tmp_path / "clean" / HIDDEN / "orders-1" / "run" / "part.parquet"
    write_deltalake(str(table), landing())
    written.parent.mkdir(parents=True)
    pq.write_table(landing(), written)
    pq.write_table(landing(), table / "orphan.parquet")

    for full in (False, True):
        DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=full)

    assert written.exists()
    assert not (table / "orphan.parquet").exists()


def test_a_version_that_was_vacuumed_is_an_error(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 20))
    for uri in DeltaTable(job.raw).file_uris():
        Path(uri.removeprefix("file://")).unlink()

    with pytest.raises(SourceError, match="vacuumed"):
        job.receive(cast)

    assert job.queue.positions() == ()


def test_a_table_may_be_taken_from_what_comes_next(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 10, bad=[]))
    source = DeltaChanges(job.raw, start="latest")

    first = job.receive(cast, key="one", source=source)
    write_deltalake(job.raw, orders(10, 20, bad=[]), mode="append")
    second = job.receive(cast, key="two", source=source)

    assert (first.in_place["read"], second.in_place["read"]) == (0, 10)
    assert DeltaTable(job.clean).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(10, 20)]


def test_versions_before_one_whose_file_is_gone_are_taken(job: Job) -> None:
    lost = _second_of_three(job)
    good = lost.read_bytes()
    lost.unlink()
    source = DeltaChanges(job.raw, start=0)

    job.receive(cast, key="one", source=source)

    assert DeltaTable(job.clean).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(10)]
    with pytest.raises(SourceError, match="of version 1"):
        job.receive(cast, key="two", source=source)
    lost.write_bytes(good)
    job.receive(cast, key="three", source=source)
    assert DeltaTable(job.clean).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(30)]
    assert job.messages() == {}


@pytest.mark.parametrize("changes", [False, True])
def test_a_damaged_file_of_a_table_is_a_message_and_the_rows_of_the_others_land(job: Job, changes: bool) -> None:  # noqa: FBT001
    _second_of_three(job).write_bytes(b"PAR1" + b"x" * 100)
    source = DeltaChanges(job.raw, start=0, changes=changes)

    for key in ("one", "two"):
        job.receive(cast, key=key, source=source)

    assert DeltaTable(job.clean).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(10), *range(20, 30)]
    [wrong] = [row for file in job.queue.table.snapshot().files for row in job.queue.table.read(file).to_pylist()]
    assert (wrong["sub_queue"], wrong["body"]) == ("poison", b"PAR1" + b"x" * 100)
    assert job.is_whole()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.table({"id": [1], "v": ["x"]}), pa.table({"id": [2]})),
        (pa.table({"id": [{"a": 1, "b": 2}]}), pa.table({"id": [{"a": 1, "c": 2}]})),
        (pa.table({"id": [1.5]}), pa.table({"id": [1]})),
    ],
    ids=["a column", "a field", "a type"],
)
def test_what_a_later_overwrite_removes_lands(job: Job, old: pa.Table, new: pa.Table) -> None:
    write_deltalake(job.raw, old)
    write_deltalake(job.raw, new, mode="overwrite", schema_mode="overwrite")

    job.receive(lambda df: df.drop("lookup_id"), source=DeltaChanges(job.raw, start=0))

    assert DeltaTable(job.clean).to_pyarrow_table().to_pylist() == old.to_pylist()


def _second_of_three(job: Job) -> Path:
    """Write three versions of the source; return the file of the second one."""
    for number in range(3):
        write_deltalake(
            job.raw,
            orders(10 * number, 10 * number + 10, bad=[]),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    added = json.loads(Path(job.raw, "_delta_log", f"{1:020d}.json").read_text().splitlines()[-1])["add"]["path"]
    return Path(job.raw, added)


@pytest.mark.parametrize(
    "source",
    [
        DeltaChanges,
        lambda table: DeltaChanges(f"file://{table}/"),
        lambda table: Files(f"{table}/*.parquet", format="parquet"),
        lambda table: Files(f"{Path(table).parent}/**/*.parquet", format="parquet"),
    ],
    ids=["the table", "its URI", "its files", "all below"],
)
def test_rows_that_land_are_no_rows_of_the_source(job: Job, source: Callable[[str], DeltaChanges | Files]) -> None:
    write_deltalake(job.clean, orders(0, 5))

    with pytest.raises(SettingError, match="each run would take the rows of the last one"):
        job.queue.receive(None, POLICY, key="one", spark=job.spark, transform=cast, source=source(job.clean), output=job.clean)

    assert job.queue.positions() == ()


REFUSED: dict[str, dict[str, Any]] = {
    "provenance": {"provenance": True},
    "mixes_rows": {"mixes_rows": True},
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_need_messages_are_refused_before_anything_is_read(job: Job, setting: str) -> None:
    write_deltalake(job.raw, orders(0, 5))

    with pytest.raises(SettingError, match=setting):
        job.receive(cast, **REFUSED[setting])

    assert job.queue.positions() == ()


def test_a_policy_that_keeps_an_order_is_refused_with_the_way_that_works(job: Job) -> None:
    write_deltalake(job.raw, orders(0, 5))
    given: dict[str, Any] = {"spark": job.spark, "transform": cast, "source": DeltaChanges(job.raw), "output": job.clean}

    with pytest.raises(SettingError):
        job.queue.receive(None, ServiceBroker(), key="run", **given)
    with pytest.raises(SettingError, match="send what is new"):
        job.queue.receive(None, Msmq4(receive_error_handling="Fault"), key="run", **given)
    with pytest.raises(SettingError, match="Spark"):
        job.queue.receive(None, POLICY, key="run", **{**given, "spark": None})


@pytest.mark.parametrize(
    "ordered", [lambda df: df.orderBy(f.desc("id")), lambda df: df.repartitionByRange(3, "id")], ids=["a global order", "partitions by ranges"]
)
def test_rows_that_spark_samples_are_counted_once(job: Job, ordered: Transform) -> None:
    write_deltalake(job.raw, orders(0, 40, bad=[]))

    result = job.receive(lambda df: ordered(df.where("id < 30").select("id")))

    assert result.in_place == {"read": 40, "landed": 30, "filtered": 10, "messages": 0}


def test_columns_that_no_message_has_are_named(job: Job) -> None:
    frame = job.spark.range(3).selectExpr("id AS lookup_id")
    with pytest.raises(InputError, match="lookup_id"):
        job.queue.receive_frame(frame, POLICY, key="run", transform=cast, output=job.clean)

    frame = job.spark.range(3).selectExpr("id", "parse_json('1') AS v")
    with pytest.raises(InputError, match="VARIANT"):
        job.queue.receive_frame(frame, POLICY, key="run", transform=cast, output=job.clean)


def test_a_column_that_the_output_does_not_have_is_an_error_and_nothing_is_taken(job: Job) -> None:
    write_deltalake(job.clean, landing())
    write_deltalake(job.raw, orders(0, 5))

    with pytest.raises(TransformError, match="other"):
        job.receive(lambda df: df.selectExpr("id", "price AS other"))

    assert job.queue.positions() == ()


def test_a_data_frame_takes_each_key_once(job: Job) -> None:
    frame = job.spark.range(10).selectExpr("cast(id AS int) AS id", "if(id = 7, 'bad', cast(id AS string)) AS amount", "1.5 AS price", "now() AS at")

    first = job.queue.receive_frame(frame, POLICY, key="one", transform=cast, output=job.clean)
    again = job.queue.receive_frame(frame, POLICY, key="one", transform=cast, output=job.clean)

    assert (first.poisoned, again.poisoned) == (1, 0)
    assert len(job.landed()) == 9


# Structured Streaming, and scripts ------------------------------------------------------------------------------------


def streamed(job: Job, folder: Path) -> None:
    """Run a stream over the files of a folder, to their end; a micro-batch has one file."""
    take = protect("orders", store=str(Path(job.queue.table.root).parent), policy=POLICY, transform=cast, output=job.clean)
    schema = job.spark.read.parquet(str(folder / "in")).schema
    stream = job.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.long
def test_a_stream_lands_each_row_once_also_when_its_checkpoint_is_behind(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for place in range(3):
        pq.write_table(orders(20 * place, 20 * place + 20), tmp_path / "in" / f"{place}.parquet")
    streamed(job, tmp_path)
    for done in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        done.unlink()  # as if the driver had died behind the micro-batch

    pq.write_table(orders(60, 70), tmp_path / "in" / "3.parquet")
    streamed(job, tmp_path)

    assert len(job.landed()) == len({*job.landed()}) == 70 - len(BAD)
    assert sorted(row["body"]["id"] for row in job.messages().values()) == BAD
    assert job.is_whole()


def test_a_micro_batch_that_is_given_in_parts_is_an_error_and_leaves_no_row_out(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(orders(0, 20), tmp_path / "in" / "0.parquet")
    take = protect("orders", store=str(Path(job.queue.table.root).parent), policy=POLICY, transform=cast, output=job.clean)
    tries = iter([["id < 10", "id >= 10"], ["true"]])
    stream = job.spark.readStream.schema(job.spark.read.parquet(str(tmp_path / "in")).schema).parquet(str(tmp_path / "in"))

    def run() -> None:
        parts = next(tries)

        def each(df: DataFrame, number: int) -> None:
            for part in parts:
                take(df.where(part), number)

        writer = stream.writeStream.foreachBatch(each)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="Micro-batch 0 was given to queue 'orders' twice in one run"):
        run()
    with pytest.raises(StreamingQueryException, match="Micro-batch 0 has 20 rows, and an earlier run with its key has put 10 into queue 'orders'"):
        run()


def test_a_script_names_its_rows(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "airflow_poison")
    given: dict[str, Any] = {"store": str(Path(job.queue.table.root).parent), "policy": POLICY, "transform": cast, "output": job.clean}
    write_deltalake(job.raw, orders(0, 20))
    frame = job.spark.read.parquet(*(uri.removeprefix("file://") for uri in DeltaTable(job.raw).file_uris()))

    results = [protect(frame, "orders", key="today", **given).in_place for _ in range(2)]

    assert results == [{"read": 20, "landed": 19, "filtered": 0, "messages": 1}] * 2
    assert not caplog.records
    protect(frame.union(frame), "orders", key="today", **given)
    assert "A DataFrame has 40 rows, and an earlier run with its key has put 20 into queue 'orders'" in caplog.text
    gone = job.spark.read.schema(frame.schema).parquet(f"{job.raw}/*.parquet")
    shutil.rmtree(job.raw)
    assert protect(gone, "orders", key="today", **given).in_place["read"] == 20, "its rows are not needed any more"
    assert len(job.landed()) == 19
    with pytest.raises(InputError, match="no streaming query"):
        protect("orders", **given)(frame, 7)
    with pytest.raises(SettingError, match="key"):
        protect(frame, "orders", key=" ", **given)
    with pytest.raises(SettingError, match="transform"):
        protect("orders", store=str(Path(job.queue.table.root).parent))


# An output that the job makes -----------------------------------------------------------------------------------------


def numbered(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "CAST(n AS decimal(10,2)) AS n")


def numbers_in(job: Job, rows: str, key: str, **options: Any) -> list[tuple[Any, ...]]:
    """Receive rows of SQL in place; return how many have landed, and what came back as messages."""
    frame = job.spark.sql(f"SELECT * FROM VALUES {rows} AS rows(id, n)")
    job.queue.receive_frame(frame, POLICY, key=key, transform=numbered, output=job.clean, **options)
    return [tuple(row.values()) for row in DeltaTable(job.clean).to_pyarrow_table(columns=["id", "n"]).to_pylist()]


DECLARED: dict[str, tuple[dict[str, Any], list[tuple[str, str, bool]], int]] = {
    "nothing": ({}, [("id", "integer", True), ("n", "decimal(10,2)", True)], 5),
    "keys": ({"output_keys": ["id"]}, [("id", "integer", True), ("n", "decimal(10,2)", True)], 5),
    "wider": ({"output_schema": "id bigint, n decimal(20,4)"}, [("id", "long", True), ("n", "decimal(20,4)", True)], 5),
    "more": ({"output_schema": "n decimal(10,2), id int, at date"}, [("n", "decimal(10,2)", True), ("id", "integer", True), ("at", "date", True)], 5),
    "values": ({"output_schema": "id int NOT NULL, n decimal(10,2)"}, [("id", "integer", False), ("n", "decimal(10,2)", True)], 4),
}


@pytest.mark.parametrize("case", DECLARED)
def test_an_output_is_made_with_what_is_declared_and_not_with_what_a_plan_knows(job: Job, case: str) -> None:
    options, columns, number = DECLARED[case]

    assert len(numbers_in(job, "(0, '0'), (1, 'no'), (2, '2'), (3, '3')", "one", **options)) == 3
    made = [(field.name, cast_to("Any", field.type).type, field.nullable) for field in DeltaTable(job.clean).schema().fields]
    assert made == columns
    assert len(numbers_in(job, "(CAST(NULL AS int), '7'), (9, '9')", "two", **options)) == number
    assert len(job.messages()) == 6 - number
    assert job.is_whole()


NESTED = {
    "an array": "array(id)",
    "a map": "map(id, id)",
    "a map of arrays": "map('a', array(id))",
    "a struct": "named_struct('a', id, 'b', array(named_struct('c', id)))",
    "nothing": "NULL",
    "a struct with nothing": "named_struct('a', NULL, 'b', id)",
}


@pytest.mark.parametrize("case", NESTED)
def test_a_row_comes_back_into_columns_whose_parts_had_values_in_the_first_run(job: Job, case: str) -> None:
    frame = job.spark.sql(f"SELECT id, {NESTED[case]} AS v, if(id = 1, 'no', string(id)) AS n FROM range(3)")

    job.queue.receive_frame(frame, POLICY, key="one", transform=lambda df: df.selectExpr("v", "CAST(n AS int) AS n"), output=job.clean)
    assert len(job.landed()) == 2
    job.queue.move([*job.messages()], "main")
    job.receive(lambda df: df.selectExpr("v", "coalesce(try_cast(n AS int), 1) AS n"), key="two", source=None)

    rows = {row["n"]: row["v"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()}
    assert rows == {row["n"]: row["v"] for row in plain(frame.selectExpr("CAST(id AS int) AS n", "v"))}
    assert not job.messages()


def plain(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows as Arrow has them."""
    return frame.toArrow().to_pylist()


def test_an_array_of_nothing_lands(job: Job) -> None:
    job.queue.receive_frame(job.spark.sql("SELECT array() AS v"), POLICY, key="one", transform=lambda df: df, output=job.clean)
    assert job.landed() == ["{'v': []}"]


STRICT = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())]), nullable=False),
        pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("m", pa.map_(pa.string(), cast_to("Any", pa.field("value", pa.list_(pa.field("x", pa.int64(), nullable=False)), nullable=False)))),
    ]
)
FITTING: dict[str, Any] = {"s": {"a": 1, "b": None}, "l": [1], "m": [("k", [1])]}
UNFITTING: list[dict[str, Any]] = [
    {"s": None},
    {"s": {"a": None, "b": 1}},
    {"l": [1, None]},
    {"m": [("k", None)]},
    {"m": [("k", [1]), ("l", [None])]},
]
EMPTY: list[dict[str, Any]] = [{"l": None, "m": None}, {"l": [], "m": []}, {"m": [("k", [])]}]


def test_a_row_without_a_part_that_the_table_wants_is_a_message_alone(job: Job) -> None:
    write_deltalake(job.clean, pa.Table.from_pylist([{"id": -1, **FITTING}], schema=STRICT))
    rows = [{"id": number, **FITTING, **more} for number, more in enumerate([*UNFITTING, *EMPTY, {}])]
    loose = pa.schema([(field.name, nullable(field.type)) for field in STRICT])
    pq.write_table(pa.Table.from_pylist(rows, schema=loose), f"{job.raw}.parquet")
    frame = job.spark.read.parquet(f"{job.raw}.parquet")

    job.queue.receive_frame(frame, POLICY, key="one", transform=lambda df: df, output=job.clean)

    landed = {row["id"]: {**row} for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()}
    assert landed == {-1: {"id": -1, **FITTING}} | {row["id"]: row for row in rows[len(UNFITTING) :]}
    assert {(each["body"]["id"], each["last_error"]["type"].rpartition(".")[2]) for each in job.messages().values()} == {
        (number, "OutputRowError") for number in range(len(UNFITTING))
    }
    assert job.is_whole()
    job.queue.move([*job.messages()], "main")
    job.receive(
        lambda df: df.selectExpr("id", "named_struct('a', id, 'b', id) AS s", "array(id) AS l", "map('k', array(id)) AS m"), key="two", source=None
    )
    assert not job.messages()
    assert len(job.landed()) == 1 + len(rows)


# What other jobs have met -------------------------------------------------------------------------------------------------


def written_json(folder: Path, *lines: bytes) -> Files:
    folder.mkdir()
    (folder / "1.json").write_bytes(b"".join(line + b"\n" for line in lines))
    return Files(f"{folder}/*.json", format="json", settled=timedelta(0))


@pytest.mark.parametrize("act", [lambda df: df.isEmpty(), lambda df: df.first(), lambda df: df.limit(2).collect(), lambda df: df.count()])
def test_an_action_inside_the_function_loses_no_record_and_changes_no_count(job: Job, tmp_path: Path, act: Callable[[DataFrame], object]) -> None:
    def acting(df: DataFrame) -> DataFrame:
        act(df)
        return df.where("id <> 5").select("id")

    lines = [b'{"id": %d}' % each for each in range(20)]

    done = job.receive(acting, source=written_json(tmp_path / "landing", *lines, b'{"id":', b"no json", b"[1]"), schema="id bigint")

    assert done.in_place == {"read": 23, "landed": 19, "filtered": 1, "messages": 3}
    assert {row["last_error"]["type"] for row in messages_of(job)} == {"MalformedError", "airflow_poison.values.errors.BodyError"}
    assert len(job.landed()) == 19
    assert job.is_whole()


def test_an_action_inside_the_function_charges_the_messages_that_do_not_fit(job: Job) -> None:
    def acting(df: DataFrame) -> DataFrame:
        assert not df.isEmpty() or df.count() == 0
        return df.select("id")

    job.queue.send([b'{"id": %d}' % each for each in range(20)] + [b'{"id": "no"}', b"nothing"])

    done = job.receive(acting, source=None, schema="id bigint")

    assert (done.settled, done.poisoned) == (20, 2)
    assert sorted(row["id"] for row in DeltaTable(job.clean).to_pyarrow_table().to_pylist()) == [*range(20)]


def test_a_file_without_a_type_in_common_and_with_names_in_another_case_keeps_its_values(job: Job, tmp_path: Path) -> None:
    def row(name: str, inner: str, number: int, value: Any) -> pa.Table:
        return pa.table({name: [number], "nested": [{inner: number}], "amount": [value]})

    source = files_of(
        tmp_path, {"a.parquet": row("id", "part", 1, 0.5), "b.parquet": row("id", "part", 2, 1.5), "c.parquet": row("ID", "Part", 3, 7)}
    )

    job.receive(lambda df: df.selectExpr("id", "nested.part", "amount"), source=source)

    assert job.landed() == [str({"id": each, "part": each, "amount": amount}) for each, amount in ((1, 0.5), (2, 1.5), (3, 7.0))]
    assert job.is_whole()


@pytest.fixture
def without_zones(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in ("spark.sql.timestampType", "spark.sql.session.timeZone")}
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.mark.usefixtures("without_zones")
def test_instants_of_files_that_differ_are_instants_in_a_session_whose_timestamps_have_no_zone(job: Job, tmp_path: Path) -> None:
    at = {"id": pa.array([1]), "at": pa.array([0], pa.timestamp("us", "UTC"))}

    job.receive(lambda df: df.select("id", "at"), source=files_of(tmp_path, {"a.parquet": pa.table(at), "x=1/a.parquet": pa.table(at)}))

    landed = DeltaTable(job.clean).to_pyarrow_table()
    assert pa.schema(landed.schema).field("at").type == pa.timestamp("us", "UTC")
    assert landed["at"].cast(pa.int64()).to_pylist() == [0, 0]


FAR: dict[str, tuple[pa.DataType, list[str], str]] = {
    "a constraint": (pa.date32(), [], "cast('+292277-01-01' AS date)"),
    "a partition": (pa.date32(), ["day"], "cast('+292277-01-01' AS date)"),
    "an instant that names a partition": (pa.timestamp("us", "UTC"), ["day"], "timestamp_micros(9000000000000000000)"),
    "a long number that names a partition": (pa.float64(), ["day"], "1e300"),
}


@pytest.mark.parametrize("case", FAR)
def test_a_value_that_delta_rs_cannot_write_is_one_message(job: Job, tmp_path: Path, case: str) -> None:
    kind, partitions, far = FAR[case]
    write_deltalake(job.clean, pa.schema([("id", pa.int64()), ("day", kind)]).empty_table(), partition_by=partitions)
    if not partitions:
        DeltaTable(job.clean).alter.add_constraint({"some": "id >= 0"})
    near = {pa.date32(): "date'2026-01-01'", pa.timestamp("us", "UTC"): "timestamp'2026-01-01'", pa.float64(): "0.5"}[kind]

    def days(df: DataFrame) -> DataFrame:
        return df.selectExpr("id", f"if(id = 2, {far}, {near}) AS day")

    done = job.receive(days, source=files_of(tmp_path, {"a.parquet": pa.table({"id": [1, 2, 3]})}))

    assert done.in_place == {"read": 3, "landed": 2, "filtered": 0, "messages": 1}
    assert [row["id"] for row in sorted(DeltaTable(job.clean).to_pyarrow_table(columns=["id"]).to_pylist(), key=str)] == [1, 3]
    assert job.is_whole()


def test_a_far_date_beside_a_partition_lands_as_spark_has_written_it(job: Job, tmp_path: Path) -> None:
    made = pa.table({"id": pa.array([], pa.int64()), "day": pa.array([], pa.date32())})
    write_deltalake(job.clean, made, partition_by=["id"])

    done = job.receive(
        lambda df: df.selectExpr("id", "if(id = 2, cast('+292277-01-01' AS date), date'2026-01-01') AS day"),
        source=files_of(tmp_path, {"a.parquet": pa.table({"id": [1, 2, 3]})}),
    )

    assert done.in_place == {"read": 3, "landed": 3, "filtered": 0, "messages": 0}


def test_texts_of_a_fixed_length_are_padded_as_spark_reads_them(job: Job) -> None:
    fixed: Any = pa.field("code", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(4)"})
    write_deltalake(job.raw, pa.table([pa.array([1, 2]), pa.array(["a", "abcd"])], schema=pa.schema([pa.field("id", pa.int64()), fixed])))

    job.receive(lambda df: df.selectExpr("id", "code", "length(code) AS size"))

    assert job.landed() == [str({"id": 1, "code": "a   ", "size": 4}), str({"id": 2, "code": "abcd", "size": 4})]


@pytest.mark.parametrize("name", ["poison_place", "_poison_id", "_POISON_row", "_poison_failed", "_poison_partition"])
def test_a_column_of_a_result_with_a_name_of_ours_is_refused(job: Job, tmp_path: Path, name: str) -> None:
    with pytest.raises(TransformError, match=f"(?i){name}.*Rename it"):
        job.receive(lambda df: df.selectExpr("id", f"1 AS {name}"), source=files_of(tmp_path, {"a.parquet": numbers(1)}))


@pytest.mark.parametrize("name", ["poison.record", "poison.unfit", "poison.error", "_poison_row"])
def test_a_column_of_the_rows_with_a_name_of_ours_is_refused(job: Job, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name}.*Rename it"):
        job.receive(given, source=files_of(tmp_path, {"a.parquet": numbers(1).append_column(name, pa.array([1, 2]))}))


def test_a_function_that_reads_names_of_files_is_said_to_have_none_again(job: Job, tmp_path: Path) -> None:
    source = files_of(tmp_path, {"a.parquet": numbers(1)})

    with pytest.raises(TransformError, match=r"reads _metadata.*Make a column of it before: protect\("):
        job.receive(lambda df: df.selectExpr("id", "_metadata.file_name AS file"), source=source)
    job.receive(lambda df: df.selectExpr("id", "input_file_name() AS file"), key="two", source=source)

    assert all("a.parquet" in row for row in job.landed())
    assert any("reads the names of files" in line for line in job.lines)


@pytest.mark.parametrize("transform", [joined, several])
def test_rows_of_a_plan_are_counted_by_the_job_that_writes_it(job: Job, transform: Transform, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[int | None]()

    def ask(*asked: Any) -> int | None:
        counted.append(observed_in(*asked))
        return counted[-1]

    monkeypatch.setattr(in_place, "observed_in", ask)
    write_deltalake(job.raw, orders(0, ROWS))

    job.receive(transform)

    assert counted == [ROWS]


def test_messages_whose_columns_have_other_types_now_are_never_read_as_others(job: Job, tmp_path: Path) -> None:
    failing = "if(id % 2 = 1, cast('bad' AS int), 0) = 0"
    for key, rows in {"one": [9007199254740993, 7], "two": [0.5, 0.25]}.items():
        job.receive(lambda df: df.where(failing), key=key, source=files_of(tmp_path / key, {"a.parquet": pa.table({"id": [1, 3], "v": rows})}))
    assert len(job.messages()) == 4
    job.queue.redrive()

    job.queue.receive(None, POLICY, key="three", spark=job.spark, transform=lambda df: df.selectExpr("id", "v"), output=job.clean)
    assert job.landed() == [str({"id": 1, "v": 0.5}), str({"id": 3, "v": 0.25}), str({"id": 3, "v": 7.0})]
    (left,) = job.messages().values()
    assert left["body"] == {"id": 1, "v": 9007199254740993}
    assert "Column 'v' was long when this body was written" in left["last_error"]["message"]

    job.queue.redrive()
    options: dict[str, Any] = {"spark": job.spark, "output": job.clean + "-whole", "schema": "id bigint, v bigint"}
    job.queue.receive(None, POLICY, key="four", transform=lambda df: df.selectExpr("id", "v"), **options)
    assert DeltaTable(job.clean + "-whole").to_pyarrow_table().to_pylist() == [{"id": 1, "v": 9007199254740993}]


def test_instants_of_partitions_are_in_the_log_with_their_zone(job: Job, tmp_path: Path) -> None:
    at = pa.array([123456, -62135596799999999, None], pa.timestamp("us", "UTC"))  # the second one: of the year 1
    write_deltalake(job.clean, pa.table({"id": pa.array([], pa.int64()), "at": at[:0]}), partition_by=["at"])

    job.receive(lambda df: df.selectExpr("id", "at"), source=files_of(tmp_path, {"a.parquet": pa.table({"id": [1, 2, 3], "at": at})}))

    log = Path(job.clean, "_delta_log", f"{1:020d}.json").read_text("utf-8").splitlines()
    named = [json.loads(line)["add"]["partitionValues"]["at"] for line in log if '"add"' in line]
    assert sorted(named, key=str) == ["0001-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.123456Z", None]
    assert DeltaTable(job.clean).to_pyarrow_table().sort_by("id")["at"].combine_chunks().equals(at)


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["rows", "keys"])
def test_a_job_without_rows_makes_its_table(job: Job, tmp_path: Path, keys: list[str]) -> None:
    source = files_of(tmp_path, {"a.parquet": numbers(1)})

    done = job.receive(
        lambda df: df.selectExpr("id", "cast(id AS decimal(9, 2)) AS price", "NULL AS note").where("id < 0"), source=source, output_keys=keys
    )

    assert done.in_place == {"read": 2, "landed": 0, "filtered": 2, "messages": 0}
    kinds = [("id", pa.int64()), ("price", pa.decimal128(9, 2)), ("note", pa.string())]
    assert DeltaTable(job.clean).to_pyarrow_table() == pa.Table.from_pylist([], schema=pa.schema(kinds))  # type: ignore[arg-type]  # types of Arrow

    job.receive(lambda df: df.selectExpr("id"), key="two", source=files_of(tmp_path, {"b.parquet": numbers(3)}), output_keys=keys)
    job.receive(lambda df: df.selectExpr("id").where("id < 0"), key="three", source=files_of(tmp_path, {"c.parquet": numbers(5)}), output_keys=keys)
    assert DeltaTable(job.clean).to_pyarrow_table()["id"].to_pylist() == [3, 4]


INSTANTS = {
    "2026-01-01T00:00:00.123456": True,
    "2026-07-01 12:00:00": True,
    "2026-01-01T00:00:00.1234567": False,
    "12:00": False,
    "2026-01-01T00:00:00+05:00": False,
}


@pytest.mark.parametrize("kind", ["timestamp_ntz", "timestamp"])
def test_texts_of_instants_are_kept_whole_or_do_not_fit(job: Job, tmp_path: Path, kind: str) -> None:
    zone = job.spark.conf.get("spark.sql.session.timeZone")
    job.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = pa.table({"id": [*range(len(INSTANTS))], "at": [*INSTANTS]})
        job.receive(given, source=files_of(tmp_path, {"a.parquet": rows}), output_schema=f"id bigint, at {kind}", on_bad_cell="null")
    finally:
        job.spark.conf.set("spark.sql.session.timeZone", str(zone))

    rows = DeltaTable(job.clean).to_pyarrow_table().sort_by("id")
    whole = [fits or (kind == "timestamp" and text.endswith("+05:00")) for text, fits in INSTANTS.items()]
    assert [at is not None for at in rows["at"].to_pylist()] == whole
    assert [not each for each in rows["_corrections"].to_pylist()] == whole
    first: list[Any] = rows["at"].to_pylist()
    if kind == "timestamp_ntz":
        assert [str(each) for each in first[:2]] == ["2026-01-01 00:00:00.123456", "2026-07-01 12:00:00"]
    else:
        assert [each.astimezone(UTC).isoformat() for each in first[:2]] == ["2026-01-01T05:00:00.123456+00:00", "2026-07-01T16:00:00+00:00"]
        assert first[4].astimezone(UTC).isoformat() == "2025-12-31T19:00:00+00:00"


@pytest.mark.parametrize("made", ["parse_json(t) AS v", "array(struct(parse_json(t) AS x)) AS v"])
def test_a_variant_in_a_result_is_refused(job: Job, tmp_path: Path, made: str) -> None:
    with pytest.raises(TransformError, match=r"returned the column 'v' with a variant.*to_json\(v\)"):
        job.receive(lambda df: df.selectExpr("id", made), source=files_of(tmp_path, {"a.parquet": numbers(1, t=["1", "2"])}))
    assert job.receive(lambda df: df.selectExpr("id", "'1' AS variant"), key="two", source=files_of(tmp_path, {"b.parquet": numbers(1)})).settled == 0


def test_a_result_without_the_column_of_a_key_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="no column 'n', which output_keys names; it returned N, id"):
        job.receive(lambda df: df.selectExpr("id", "id AS N"), source=files_of(tmp_path, {"a.parquet": numbers(1)}), output_keys=["n"])
