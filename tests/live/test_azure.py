"""Queues, sources and outputs in Azure's object store, with Azurite as the server; ``make test-azure`` runs the tests of all stores over it, too."""

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

from airflow_poison import DeltaChanges, Files, Msmq4
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.spark.session import get_session
from airflow_poison.store.objects import Objects
from airflow_poison.values.errors import SourceError
from tests.given.drivers import SMALL
from tools.servers import azure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from airflow_poison import Message, Queue

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
TABLE = pa.table({"id": ["1", "no", "3"], "day": ["01", "01", "02"]})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with azure.running() as there:
        yield there


@pytest.fixture
def container(url: str) -> str:
    name = f"c{uuid4().hex}"
    azure.make_container(url, name)
    return f"abfss://{name}@{azure.ACCOUNT}.dfs.core.windows.net"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, url: str, container: str) -> Queue:
    """A queue of a connection, whose credentials another one has."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "wasb", "login": azure.ACCOUNT, "password": azure.KEY}))
    options = {"AZURE_STORAGE_ENDPOINT": url, "AZURE_ALLOW_HTTP": "true"}
    extra = {"store": f"{container}/queues", "credentials_conn_id": "lake", "storage_options": options}
    monkeypatch.setenv("AIRFLOW_CONN_POISON_LAKE", json.dumps({"conn_type": "poison", "extra": extra}))
    return QueueHook("poison_lake").queues().declare("orders", POLICY)


def handled(message: Message) -> dict[str, int]:
    """Return a row, or fail."""
    return {"id": int(json.loads(message.body)["id"])}


def given(df: DataFrame) -> DataFrame:
    """Cast: a row whose id is no number fails."""
    return df.selectExpr("CAST(id AS int) AS id", "day")


def poison_of(queue: Queue) -> list[Any]:
    rows = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist() if row["sub_queue"] == "poison"]
    return [json.loads(row["body"])["id"] for row in rows]


def test_what_is_sent_and_taken_is_received_and_lands(queue: Queue, url: str, container: str) -> None:
    options = azure.options(url)
    lake = Objects.at(container, options)
    content = io.BytesIO()
    pq.write_table(TABLE, content)
    lake.put("in/day=07/a b%20+é.parquet", content.getvalue())
    lake.put("in/1.csv", b"id,day\n5,01\nno,02\n")
    write_deltalake(f"{container}/raw", TABLE, storage_options=options)

    queue.send([{"id": 10}, {"id": "no"}], key="sent")
    for kind in ("csv", "parquet"):
        source = Files(f"{container}/in/**/*.{kind}", format=kind, settled=timedelta(0), storage_options=azure.options(url, by_token=True))
        assert queue.take(source, key=kind).passed_over == ()
    assert queue.take(DeltaChanges(f"{container}/raw", storage_options=options), key="delta").sent == 3
    result = queue.receive(handled, POLICY, key="received", output=f"{container}/out")

    landed = DeltaTable(f"{container}/out", storage_options=options).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in landed) == [1, 1, 3, 3, 5, 10]
    assert (result.received, result.poisoned) == (10, 4)
    assert queue.check().findings == ()
    assert len(poison_of(queue)) == 4


def test_an_object_with_an_odd_name_is_named(queue: Queue, url: str, container: str) -> None:
    azure.put(url, f"{container[8:].partition('@')[0]}/in/a//b.json", b"1\n")

    with pytest.raises(SourceError, match=r'"in/a//b.json" contained empty path segment.*Rename or remove that object'):
        queue.take(Files(f"{container}/in/**/*", settled=timedelta(0), storage_options=azure.options(url)), key="odd")


def test_rows_in_place_land_in_azure(queue: Queue, url: str, container: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    options = azure.options(url)
    folder, lines = tmp_path_factory.mktemp("in"), list[str]()
    pq.write_table(TABLE, folder / "1.parquet")
    content = io.BytesIO()
    pq.write_table(TABLE, content)
    Objects.at(container, options).put("in/1.parquet", content.getvalue())
    spark = get_session("local[1]", SMALL)

    for name, source in {
        "here": Files(f"{folder}/*.parquet", format="parquet", settled=timedelta(0)),
        "there": Files(f"{container}/in/*.parquet", format="parquet", settled=timedelta(0), storage_options=options),
    }.items():
        queue.receive(None, POLICY, key=name, source=source, transform=given, output=f"{container}/out", spark=spark, progress=lines.append)

    landed = DeltaTable(f"{container}/out", storage_options=options).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["day"]) for row in landed) == [(1, "01"), (1, "01"), (3, "02"), (3, "02")]
    assert poison_of(queue) == ["no", "no"]
    assert any("all of them, 3 became messages" in line for line in lines), lines  # Spark has no file system for the container here
