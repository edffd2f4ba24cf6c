"""An output in a bucket, which the executors of a cluster write by Hadoop's own S3 file system."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Msmq4, Store
from tests.given.drivers import own_jvm
from tests.live.hadoop_aws import settings_of
from tools.servers import s3 as server
from tools.servers.spark import standalone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@pytest.fixture(scope="module")
def cluster(s3_options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started, own_jvm(started.url, settings_of(s3_options)) as session:
        yield session


def cast(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id", "cast(amount AS int) AS amount", "day")


def named(rows: DataFrame) -> DataFrame:
    verdict = "if(try_cast(amount AS int) IS NULL, 'no number', null) AS _poison"
    return rows.selectExpr("lookup_id", "id", "try_cast(amount AS int) AS amount", "day", verdict)


def several(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id", "cast(amount AS int) AS amount", "day", "explode(array(1, 2)) AS part")


@pytest.mark.parametrize("partitions", [[], ["day"]])
@pytest.mark.parametrize("transform", [cast, named, several])
def test_executors_write_an_output_in_a_bucket(
    cluster: SparkSession, s3_options: dict[str, str], tmp_path: Path, transform: Any, partitions: list[str]
) -> None:
    bad, bucket, lines = {7, 21, 50}, f"bucket-{uuid4().hex}", list[str]()
    server.make_bucket(s3_options, bucket)
    amounts = ["bad" if each in bad else str(each) for each in range(60)]
    write_deltalake(tmp_path / "raw", pa.table({"id": range(60), "amount": amounts, "day": [f"d{each % 3}" for each in range(60)]}))
    output, far = f"s3://{bucket}/lake/out", {**s3_options, "allow_http": "true"}
    columns: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("amount", pa.int32()),
        ("day", pa.string()),
        *([("part", pa.int32())] if transform is several else []),
    ]
    DeltaTable.create(output, pa.schema(columns), partition_by=partitions, storage_options=far)
    queue = Store(f"s3://{bucket}/store", storage_options=s3_options).declare("q", POLICY)

    source = DeltaChanges(str(tmp_path / "raw"))
    result = queue.receive(None, POLICY, source=source, transform=transform, output=output, spark=cluster, progress=lines.append)

    assert result.in_place == {"read": 60, "landed": 57, "filtered": 0, "messages": 3}, "\n".join(lines)
    table = DeltaTable(output, storage_options=far)
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == sorted([each for each in range(60) if each not in bad] * (2 if transform is several else 1))
    assert all(row["amount"] == row["id"] and row["day"] == f"d{row['id'] % 3}" for row in rows)
    assert not queue.check().findings
    left = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert {json.loads(row["body"])["id"] for row in left} == bad
