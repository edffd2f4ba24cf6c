"""Sessions whose own file system is HDFS, as where HADOOP_CONF_DIR names it: what this package writes and reads is on this machine."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from typing import cast as cast_type
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Files, Msmq4, Queue, Store, protect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.source import Source

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
SCHEMA = "id long, amount string"


@pytest.fixture
def hdfs(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A folder that is Spark's own file system."""
    folder, name = tmp_path / "hdfs", uuid4().hex
    folder.mkdir()
    mounts = f"fs.viewfs.mounttable.{name}"
    settings = {"fs.defaultFS": f"viewfs://{name}/", f"{mounts}.linkFallback": f"file://{folder}", f"{mounts}.link./user": f"file://{folder}"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield folder
    for key in settings:
        spark.conf.unset(key)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Store(str(tmp_path / "queues")).declare("orders", POLICY)


def cast(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount")


def rows_of(number: int, bad: int) -> pa.Table:
    return pa.table({"id": list(range(number)), "amount": ["bad" if each == bad else str(each) for each in range(number)]})


def landed(folder: Path) -> list[int]:
    return sorted(cast_type("list[int]", DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist()))


@pytest.mark.parametrize("form", ["parquet", "json", "delta"])
def test_rows_of_a_source_land_where_they_are(spark: SparkSession, hdfs: Path, queue: Queue, tmp_path: Path, form: str) -> None:
    source: Source = Files(f"{tmp_path}/raw/*", format=form, settled=timedelta(0)) if form != "delta" else DeltaChanges(str(tmp_path / "raw"))
    rows = rows_of(20, 7)
    if form == "delta":
        write_deltalake(str(tmp_path / "raw"), rows)
    else:
        (tmp_path / "raw").mkdir()
    if form == "parquet":
        pq.write_table(rows, tmp_path / "raw" / "one.parquet")
    if form == "json":
        lines = (f'{{"id": {each["id"]}, "amount": "{each["amount"]}"}}\n' for each in rows.to_pylist())
        (tmp_path / "raw" / "one.json").write_text("".join(lines))
    schema = SCHEMA if form == "json" else None

    result = queue.receive(None, POLICY, key="k", spark=spark, transform=cast, schema=schema, source=source, output=str(tmp_path / "clean"))

    assert result.in_place == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    assert landed(tmp_path / "clean") == [each for each in range(20) if each != 7]
    assert [*hdfs.rglob("*")] == []


def test_a_data_frame_whose_job_fails_as_a_whole_is_in_the_queue(spark: SparkSession, hdfs: Path, tmp_path: Path) -> None:
    def checked(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            batch["amount"] = batch["amount"].astype(int)
            yield batch

    def refused(df: DataFrame) -> DataFrame:
        return df.select("lookup_id", "id", "amount").mapInPandas(checked, "lookup_id long, id long, amount int")  # type: ignore[arg-type]  # as Spark's own examples are

    frame = spark.createDataFrame(rows_of(20, 7).to_pandas())
    result = protect(frame, "orders", key="k", store=str(tmp_path / "queues"), policy=POLICY, transform=refused, output=str(tmp_path / "clean"))

    assert (result.in_place["messages"], result.poisoned) == (20, 1)
    assert landed(tmp_path / "clean") == [each for each in range(20) if each != 7]
    assert [*hdfs.rglob("*")] == []


def test_an_output_below_the_working_directory_is_written_there(
    spark: SparkSession, hdfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = spark.createDataFrame(rows_of(20, 7).to_pandas())

    result = protect(frame, "orders", key="k", store="queues", policy=POLICY, transform=cast, output="lake/clean")

    assert result.in_place == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    assert landed(tmp_path / "lake" / "clean") == [each for each in range(20) if each != 7]
    assert [*hdfs.rglob("*")] == []


def test_messages_are_transformed(spark: SparkSession, hdfs: Path, queue: Queue, tmp_path: Path) -> None:
    queue.send([b'{"id": 1, "amount": "1"}', b'{"id": 2, "amount": "bad"}'], key="k")

    result = queue.receive(None, POLICY, key="k", spark=spark, transform=cast, schema=SCHEMA, output=str(tmp_path / "clean"))

    assert (result.settled, result.poisoned) == (1, 1)
    assert landed(tmp_path / "clean") == [1]
    assert [*hdfs.rglob("*")] == []
