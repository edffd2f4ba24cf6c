"""The helper for users' own tests with a transformation: real passes on a real Spark, on a store in memory and a virtual clock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Msmq4
from airflow_poison.testing import receive
from airflow_poison.values.errors import SettingError, TransformError
from tests.given import transforms
from tests.given.transforms import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
MOVE = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")
BODIES = [{"id": 1, "amount": "1"}, {"id": 2, "amount": "bad"}, {"id": 3, "amount": "3"}]


def test_rows_land_and_whom_the_verdict_names_goes_through_all_cycles_to_poison(spark: SparkSession) -> None:
    first, bad, last = result = receive(None, BODIES, MOVE, transform=transforms.verdict, schema=SCHEMA, output="/lake/amounts", spark=spark)

    assert sorted(row["amount"] for row in result.rows) == [1, 3]
    assert set(result.rows[0]) == {"id", "amount"}
    assert result.places == ["processed", "poison", "processed"]
    assert (first.deliveries, bad.deliveries, last.deliveries) == (1, 4, 1)
    assert [(call.abort_count, call.error) for call in bad.calls] == [(0, None), (1, None), (0, None), (1, None)]
    assert bad.last_error is not None
    assert bad.last_error.text == "no amount: bad"
    assert first.last_error is None
    assert result.elapsed == timedelta(minutes=30)
    assert [done.received for done in result.passes] == [3, 1]


def test_the_active_session_is_found_and_a_cast_that_fails_charges_its_message_alone(spark: SparkSession) -> None:
    assert spark.getActiveSession() is not None
    result = receive(None, BODIES, Msmq4(receive_retry_count=0, max_retry_cycles=0), transform=transforms.cast, schema=SCHEMA, output="/lake/amounts")

    assert result.halted == "faulted"
    assert result.places == ["processed", "main", "main"], "what is behind the culprit is as it was"
    [row] = result.rows
    assert row == {"id": 1, "amount": 1}
    assert result[1].last_error is not None
    assert "CAST_INVALID_INPUT" in str(result[1].last_error)


def test_several_outputs_and_rows_that_depend_on_each_other(spark: SparkSession) -> None:
    def split(df: DataFrame) -> dict[str, DataFrame]:
        return {"sums": transforms.summed(df), "ids": df.select("id")}

    bodies = [each for each in BODIES if each["amount"] != "bad"]
    outputs = {"sums": "/lake/sums", "ids": "/lake/ids"}
    with pytest.raises(TransformError, match="mixes_rows"):
        receive(None, bodies, MOVE, transform=split, schema=SCHEMA, output=outputs, spark=spark)
    result = receive(None, bodies, MOVE, transform=split, schema=SCHEMA, output=outputs, mixes_rows=True, spark=spark)

    assert result.places == ["processed", "processed"]
    assert [row["amount"] for row in result.landed["sums"]] == [4]
    assert sorted(row["id"] for row in result.landed["ids"]) == [1, 3]


def test_what_a_pass_refuses_beside_a_transformation_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SettingError, match=r"unprocessable=.*none with transform="):
        receive(None, BODIES, MOVE, transform=transforms.cast, schema=SCHEMA, spark=spark, unprocessable=[KeyError])
    with pytest.raises(SettingError, match=r"batch='arrow' is not allowed"):
        receive(None, BODIES, MOVE, transform=transforms.cast, schema=SCHEMA, spark=spark, batch="arrow")
