"""Rows that are transformed in place, with an output in an object store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Msmq4, Store
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import OutputError
from airflow_poison.values.fault_points import install
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.passes.runs import ReceiveResult

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"), pytest.mark.long]
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=60))
ROWS, BAD = 60, [7, 21, 50]
GOOD = [each for each in range(ROWS) if each not in BAD]


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, str]]:
    with server.running() as port:
        yield server.options(f"http://{server.LOOPBACK}:{port}", "hush-hush")


class Job:
    """A job whose output is in a bucket; its queue is there, too, or in a folder."""

    def __init__(self, folder: Path, spark: SparkSession, options: Mapping[str, str], *, far: bool) -> None:
        self.spark, self.options, self.bucket = spark, dict(options), f"bucket-{uuid4().hex}"
        server.make_bucket(options, self.bucket)
        self.client = server.client_of(options)
        self.raw, self.clean = str(folder / "raw"), f"s3://{self.bucket}/lake/clean"
        self.clock = VirtualClock(datetime.now(UTC))
        store = f"s3://{self.bucket}/queues" if far else str(folder / "store")
        self.queue = Store(store, storage_options=self.options, clock=self.clock).declare("orders", POLICY)
        self.lines = list[str]()

    def receive(self, key: str = "run", **more: Any) -> ReceiveResult:
        return self.queue.receive(
            None,
            POLICY,
            key=key,
            spark=self.spark,
            transform=cast,
            output=self.clean,
            source=DeltaChanges(self.raw),
            progress=self.lines.append,
            **more,
        )

    @property
    def poured(self) -> bool:
        return any(": all of them," in line for line in self.lines)

    def table(self) -> DeltaTable:
        return DeltaTable(self.clean, storage_options={"allow_http": "true", **self.options})

    def landed(self) -> list[int]:
        return sorted(row["id"] for row in self.table().to_pyarrow_table().to_pylist())

    def objects(self, prefix: str) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=self.bucket, Prefix=f"lake/clean/{prefix}").get("Contents", [])]


@pytest.fixture(params=[False, True], ids=["queue in a folder", "queue in the bucket"])
def job(tmp_path: Path, spark: SparkSession, options: Mapping[str, str], request: pytest.FixtureRequest) -> Job:
    made = Job(tmp_path, spark, options, far=request.param)
    write_deltalake(made.raw, orders(0, ROWS))
    return made


def orders(first: int, end: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, end), pa.int32()),
            "amount": pa.array(["bad" if each in BAD else str(each) for each in range(first, end)]),
        }
    )


def cast(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount")


def test_good_rows_land_in_the_files_that_the_job_wrote_and_what_fails_is_in_the_queue(job: Job) -> None:
    result = job.receive()
    job.receive()
    write_deltalake(job.raw, orders(ROWS, 2 * ROWS), mode="append")
    job.receive("more")

    assert result.in_place == {"read": ROWS, "landed": len(GOOD), "filtered": 0, "messages": len(BAD)}
    assert not job.poured
    assert job.landed() == [*GOOD, *range(ROWS, 2 * ROWS)]
    actions = job.table().get_add_actions(flatten=True)
    added = pa.table(actions).to_pylist()
    assert all(".c000.snappy.parquet" in row["path"] for row in added), "written by Spark, and not once more"
    assert sum(row["num_records"] for row in added) == len(GOOD) + ROWS
    assert max(row["max.id"] for row in added) == 2 * ROWS - 1
    assert job.queue.find().total == len(BAD)
    assert job.objects("_poison") == []
    assert not job.queue.check().findings


@pytest.mark.parametrize("amounts", [pa.int32(), pa.int64()], ids=["takes files", "has wider types"])
def test_an_output_in_partitions_gets_the_rows(job: Job, amounts: pa.DataType) -> None:
    write_deltalake(
        job.clean,
        pa.table({"id": pa.array([], pa.int32()), "amount": pa.array([], amounts)}),
        partition_by=["amount"],
        storage_options={"allow_http": "true", **job.options},
    )

    job.receive()

    assert job.landed() == GOOD
    assert not job.poured
    assert job.objects("_poison") == []
    is_by_spark = {".c000.snappy.parquet" in row["path"] for row in pa.table(job.table().get_add_actions(flatten=True)).to_pylist()}
    assert is_by_spark == {amounts == pa.int32()}


class Died(BaseException):
    pass


@pytest.mark.parametrize("point", ["pass.in_place.before_commit", "pass.in_place.after_commit", "output.land.before_write"])
def test_a_run_that_dies_lands_each_row_once_and_what_it_left_is_removed(job: Job, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Died

    install(die)
    try:
        with pytest.raises(Died):
            job.receive()
    finally:
        install(None)
    assert job.objects("_poison")

    job.receive()
    assert job.landed() == GOOD
    job.clock.advance(timedelta(days=3))
    write_deltalake(job.raw, orders(ROWS, 2 * ROWS), mode="append")
    job.receive("later")

    assert job.landed() == [*GOOD, *range(ROWS, 2 * ROWS)]
    assert job.objects("_poison") == []


def test_rows_that_are_removed_before_the_commit_are_an_error_and_nothing_is_taken(job: Job) -> None:
    def remove(reached: str) -> None:
        if reached == "pass.in_place.before_commit":
            for name in job.objects("_poison"):
                job.client.delete_object(Bucket=job.bucket, Key=name)

    install(remove)
    try:
        with pytest.raises(OutputError, match=r"was removed before it was committed\. Nothing was taken; run the task again\."):
            job.receive()
    finally:
        install(None)
    assert job.queue.positions() == ()

    job.receive()

    assert job.landed() == GOOD
