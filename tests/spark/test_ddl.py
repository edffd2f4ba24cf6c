"""DDL text means what it means to Spark."""

from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_poison.values.ddl import parse_ddl


@pytest.mark.parametrize(
    "text",
    [
        "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long, j float, k real, l double",
        "a decimal, b dec(5), c numeric(38, 6), d string, e binary, f date, g timestamp_ntz, h void",
        "`a b` int NOT NULL, `c``d` array<map<string, struct<x: int, y: array<date>>>>, E struct<>",
        "a: int, b: string COMMENT 'x'",
        "`` int",
    ],
)
def test_spark_reads_the_same(spark: SparkSession, text: str) -> None:
    assert parse_ddl(text).equals(to_arrow_schema(cast("StructType", StructType.fromDDL(text))))
