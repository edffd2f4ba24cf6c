"""Files of a bucket in place, read by Hadoop's own S3 file system: what a take makes of them is what lands or becomes a message."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Files, Msmq4, Store
from tests.given.drivers import own_jvm
from tests.live.hadoop_aws import settings_of
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Source

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@pytest.fixture(scope="module")
def spark(s3_options: dict[str, str]) -> Iterator[SparkSession]:
    with own_jvm("local[2]", settings_of(s3_options)) as session:
        yield session


class Job:
    """Objects, a queue and an output in a bucket."""

    def __init__(self, spark: SparkSession, options: dict[str, str], objects: dict[str, pa.Table | bytes], **source: Any) -> None:
        self.spark, self.options, self.bucket, self.lines = spark, options, f"bucket-{uuid4().hex}", list[str]()
        server.make_bucket(options, self.bucket)
        for name, content in objects.items():
            server.client_of(options).put_object(
                Bucket=self.bucket, Key=f"in/{name}", Body=content if isinstance(content, bytes) else packed(content)
            )
        self.source: Source = Files(f"s3://{self.bucket}/in/**/*", storage_options=options, settled=timedelta(0), **source)

    def received(self, **more: Any) -> tuple[list[dict[str, Any]], list[tuple[str, bytes]]]:
        """Return the rows that have landed, and the messages that are left, with their errors."""
        queue, output = Store(f"s3://{self.bucket}/store", storage_options=self.options).declare("q", POLICY), f"s3://{self.bucket}/out"
        queue.receive(None, POLICY, source=self.source, transform=given, output=output, spark=self.spark, progress=self.lines.append, **more)
        assert not queue.check().findings
        rows = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
        landed = DeltaTable(output, storage_options={**self.options, "allow_http": "true"}).to_pyarrow_table().to_pylist()
        return sorted(landed, key=json.dumps), sorted((row["last_error"]["type"].rpartition(".")[2], row["body"]) for row in rows)

    @property
    def poured(self) -> bool:
        return any("becomes messages" in line or ": all of them," in line for line in self.lines)


def packed(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def given(rows: DataFrame) -> DataFrame:
    return rows.drop("lookup_id")


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": ids})


def test_odd_objects_stop_no_other_and_none_is_left_out(spark: SparkSession, s3_options: dict[str, str]) -> None:
    names = (
        "a b",
        "a%20b",
        "{x,y}",
        "[z]",
        "q?",
        "s*",
        "h#",
        "2026-01-01T00:00:00",
        "12:00/c",
        "ü😀",
        "back\\slash",
        "a+b",
        "a:{b}",
        "_under",
        ".hidden",
        "d/.c/x",
    )
    objects: dict[str, pa.Table | bytes] = {f"{name}.parquet": numbers(10 * place) for place, name in enumerate(names)}
    odd = {"damaged.parquet": b"nope", "empty.parquet": b"", "text.parquet": packed(pa.table({"id": ["x"]}))}
    job = Job(spark, s3_options, {**objects, **odd, "_SUCCESS": b"", "_temporary/0/part.parquet": numbers(-1)}, format="parquet")

    landed, messages = job.received()

    assert sorted(row["id"] for row in landed) == [10 * place for place in range(len(names))]
    assert messages == [("BodyError", b'{"id":"x"}'), ("MalformedError", b""), ("MalformedError", b"nope")]
    assert not job.poured


def test_folders_make_columns(spark: SparkSession, s3_options: dict[str, str]) -> None:
    job = Job(
        spark,
        s3_options,
        {"day=01/h=a%2Fb/x": numbers(1), "day=__HIVE_DEFAULT_PARTITION__/x": numbers(2), "at=12:00/x": numbers(3)},
        format="parquet",
    )

    landed, _ = job.received()

    assert [(row["id"], row["day"], row["h"], row["at"]) for row in landed] == [
        (1, "01", "a/b", None),
        (2, None, None, None),
        (3, None, None, "12:00"),
    ]


@pytest.mark.parametrize("hidden", [False, True])
def test_text_is_what_a_take_makes_of_it(spark: SparkSession, s3_options: dict[str, str], *, hidden: bool) -> None:
    objects: dict[str, pa.Table | bytes] = {"day=01/a:b.csv": b"id,v\n1,a\n2\n", "b.csv": b"id,v\n3,\n", "c.csv": b""}
    job = Job(spark, s3_options, {**objects, **({"_d:{}.csv": b"id,v\n4,d\n"} if hidden else {})}, format="csv")

    landed, messages = job.received(schema="id string, v string, day string")

    expected = [{"id": "1", "v": "a", "day": "01"}, {"id": "3", "v": None, "day": None}, *([{"id": "4", "v": "d", "day": None}] if hidden else [])]
    assert landed == expected
    assert messages == [("MalformedError", b"2")]
    assert job.poured == hidden, "\n".join(job.lines)


def test_a_delta_table_in_the_bucket_is_read_there(spark: SparkSession, s3_options: dict[str, str]) -> None:
    job = Job(spark, s3_options, {}, format="parquet")
    table, far = f"s3://{job.bucket}/raw", {**s3_options, "allow_http": "true"}
    days = ["a b", "ü/%", "x=y", None, "a%20b", "{[*?", "A:B"]
    write_deltalake(table, pa.table({"id": range(len(days)), "day": days}), partition_by=["day"], storage_options=far)
    job.source = DeltaChanges(table, storage_options=s3_options)

    landed, messages = job.received()

    assert [row["day"] for row in landed] == days
    assert not messages
    assert not job.poured
