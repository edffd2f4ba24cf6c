"""Files of Avro in place, by Spark's own package for them: what it reads lands, and a file that it cannot read is a message."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from deltalake import DeltaTable

from airflow_poison import Files, Msmq4, Store
from tests.given.drivers import SMALL, own_jvm
from tools.servers.maven import fetched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
_VERSION = "4.1.1"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    jars = fetched(f"spark-avro-{_VERSION}", ("org.apache.spark", "spark-avro_2.13", _VERSION))
    with own_jvm("local[2]", {**SMALL, "spark.jars": ",".join(map(str, jars.glob("spark-avro*.jar")))}) as session:
        yield session


def avro(kind: str, values: list[Any], more: dict[str, Any] | None = None) -> bytes:
    """Return a file with a column ``id``, and others that are null."""
    fields = [{"name": "id", "type": kind}, *({"name": name, "type": ["null", each], "default": None} for name, each in (more or {}).items())]
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema({"type": "record", "name": "row", "fields": fields}), [{"id": value} for value in values])
    return out.getvalue()


ROWS = avro("int", [*range(1_000)], {"a": "string"})
ODD: dict[str, tuple[bytes, int, list[tuple[str, str | None]]]] = {
    "wider": (avro("long", [1 << 40]), 1_001, []),
    "other columns": (avro("int", [1], {"b": "double"}), 1_001, []),
    "other types": (avro("string", ["x"]), 1_000, [("BodyError", '{"id":"x"}')]),
    "its end is missing": (ROWS[: len(ROWS) // 2], 1_000, [("MalformedError", None)]),
    "its beginning is missing": (ROWS[4:], 1_000, [("MalformedError", None)]),
    "a block has changed": (ROWS[:900] + b"\xff" * 100 + ROWS[1_000:], 1_000, [("MalformedError", None)]),
    "it is another file": (b"id\n1\n", 1_000, [("MalformedError", None)]),
}
"""What a file beside one with 1,000 rows has, how many rows land, and the messages: their error and their body; None: it begins as the file."""


@pytest.mark.parametrize("case", ODD)
def test_an_odd_file_of_avro_stops_no_other(tmp_path: Path, spark: SparkSession, case: str) -> None:
    content, number, wanted = ODD[case]
    folder, lines = tmp_path / "in/day=01", list[str]()
    folder.mkdir(parents=True)
    for name, each in {"1.avro": ROWS, "2.avro": content, "_3.avro": ROWS}.items():
        (folder / name).write_bytes(each)
    source = Files(f"{tmp_path}/in/**/*", format="avro", settled=timedelta(0))
    queue = Store(str(tmp_path / "store")).declare("q", POLICY)

    def given(df: DataFrame) -> DataFrame:
        return df.selectExpr("CAST(id AS bigint) AS id", "day")

    queue.receive(None, POLICY, source=source, transform=given, output=str(tmp_path / "out"), spark=spark, progress=lines.append)

    assert not queue.check().findings
    landed = DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
    assert (len(landed), {row["day"] for row in landed}) == (number, {"01"})
    messages = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    bodies = [
        None if content.startswith(row["body"]) else json.dumps({"id": json.loads(row["body"])["id"]}, separators=(",", ":")) for row in messages
    ]
    assert [*zip((row["last_error"]["type"].rpartition(".")[2] for row in messages), bodies, strict=True)] == wanted
    assert any("left out by Spark" in line and "_3.avro" in line for line in lines)
    assert queue.positions()[0].position == "2 files were taken"
