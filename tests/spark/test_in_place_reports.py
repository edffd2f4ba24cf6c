"""Jobs in which one bad row stopped all others for users of other tools, was dropped in silence, or came twice: here, protected in place.

Reported for Delta (delta-io/delta 1279), Paimon (apache/paimon 9666), spark-csv (databricks/spark-csv 286), spark-xml (databricks/spark-xml 294),
Airbyte (airbytehq/airbyte 30811), ERPL (DataZooDE/erpl-web 254), Daft (Eventual-Inc/Daft 7094), JPMML (jpmml/jpmml-evaluator-spark 31), Rocky
(rocky-data/rocky 2066), Lakehouse Plumber (Mmodarre/Lakehouse_Plumber 41) and Snowflake's connector (snowflakedb/snowflake-kafka-connector 86).
"""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as f

from airflow_poison import Msmq4, Store, protect
from airflow_poison.testing import receive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
ROWS = 12


def run(spark: SparkSession, folder: Path, transform: Any, **options: Any) -> tuple[Mapping[str, int], list[dict[str, Any]], dict[int, str]]:
    """Protect a job; return its counts, what has landed, and the errors of messages by the rows' ids."""
    frame = spark.range(ROWS).selectExpr("id", "if(id = 5, 'x', cast(id AS string)) AS text", "if(id = 5, NULL, id) AS n")
    given = {"store": str(folder / "queues"), "policy": POLICY, "output": str(folder / "clean"), **options}
    result = protect(frame, "orders", key="one", transform=transform, **given)
    queue = Store(str(folder / "queues")).queue("orders")
    rows = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert queue.check().findings == ()
    landed = DeltaTable(str(folder / "clean")).to_pyarrow_table().to_pylist()
    return result.in_place, landed, {json.loads(row["body"])["id"]: row["last_error"]["message"] for row in rows}


def score(text: str) -> float:
    return 1 / (int(text) - 3)


FAILS: dict[str, tuple[Any, int, str]] = {
    "a function raises for one row (Daft 7094, jpmml-evaluator-spark 31)": (
        lambda df: df.where("id <> 5").select("id", f.udf(score, "double", useArrow=False)("text").alias("score")),
        3,
        "division by zero",
    ),
    "a cast (spark-csv 286)": (lambda df: df.selectExpr("id", "cast(text AS int) AS number"), 5, "'x' of the type"),
    "a row that an expectation would drop (Lakehouse_Plumber 41)": (
        lambda df: df.selectExpr("lookup_id", "id", "if(n IS NULL, 'n is missing', NULL) AS _poison"),
        5,
        "n is missing",
    ),
}


@pytest.mark.parametrize("report", FAILS)
def test_one_row_fails_and_all_others_land(report: str, spark: SparkSession, tmp_path: Path) -> None:
    transform, bad, error = FAILS[report]

    counts, landed, failed = run(spark, tmp_path, transform)

    assert failed.keys() == {bad}
    assert error in failed[bad]
    assert counts["read"] == ROWS == counts["landed"] + counts["filtered"] + counts["messages"]
    assert len(landed) == counts["landed"] >= ROWS - 2


def test_a_null_where_the_table_wants_a_value_is_one_message(spark: SparkSession, tmp_path: Path) -> None:
    """delta-io/delta 1279: the whole write fails."""
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    write_deltalake(str(tmp_path / "clean"), columns.empty_table())

    _, landed, failed = run(spark, tmp_path, lambda df: df.select("id", "n"))

    assert sorted(row["id"] for row in landed) == [each for each in range(ROWS) if each != 5]
    assert failed == {5: "Column 'n' of the output must have a value; the row has none."}


def test_a_verdict_by_chance_puts_each_row_in_one_place(spark: SparkSession, tmp_path: Path) -> None:
    """rocky-data/rocky 2066: a condition that was evaluated twice put rows in both tables, or in neither."""

    def by_chance(df: DataFrame) -> DataFrame:
        return df.selectExpr("lookup_id", "id", "if(rand() < 0.5, 'by chance', NULL) AS _poison")

    counts, landed, failed = run(spark, tmp_path, by_chance)

    assert sorted([*(row["id"] for row in landed), *failed]) == [*range(ROWS)]
    assert counts["landed"] + counts["messages"] == ROWS


def test_a_cell_that_does_not_fit_is_null_alone_and_never_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    """spark-xml 294: the whole row became null; erpl-web 254: 490.0 became null with a warning; airbyte 30811: an object became a null date."""
    schema = "id bigint, text int, n decimal(18, 18)"

    counts, landed, failed = run(spark, tmp_path, lambda df: df.select("id", "text", "n"), output_schema=schema, on_bad_cell="null")

    assert (counts, failed) == ({"read": ROWS, "landed": ROWS, "filtered": 0, "messages": 0}, {})
    rows = {row["id"]: row for row in landed}
    assert rows[0] == {"id": 0, "text": 0, "n": Decimal(0), "_corrections": None}
    assert rows[5] == {"id": 5, "text": None, "n": None, "_corrections": [{"column": "text", "value": "x", "why": "does not fit int"}]}
    assert rows[7]["_corrections"] == [{"column": "n", "value": "7", "why": "does not fit decimal(18,18)"}]

    def handler(message: Any) -> dict[str, Any]:
        return {"id": 1, "day": json.loads(message.text)}

    result = receive(handler, ['{"foo": 42}', "null"], POLICY, output="/lake/days", output_schema="id bigint, day date", on_bad_cell="null")
    assert [row["day"] for row in result.rows] == [None, None]
    assert [row["_corrections"] for row in result.rows] == [[{"column": "day", "value": "{'foo': 42}", "why": "does not fit date"}], None]
    fits = receive(lambda _message: {"day": date(2026, 1, 1)}, ["1"], POLICY, output="/lake/days", output_schema="day date", on_bad_cell="null")
    assert fits.rows == [{"day": date(2026, 1, 1), "_corrections": None}]
