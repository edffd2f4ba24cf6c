"""Transformations that tests run on Spark, and messages for them."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

SCHEMA = "id int, amount string, kind string"


def bodies(number: int, kinds: dict[int, str] | None = None) -> list[str]:
    """Return JSON bodies; a message with a kind has an amount that is none."""
    kinds = kinds or {}
    return [json.dumps({"id": n, "amount": "bad" if n in kinds else str(n), "kind": kinds.get(n, "")}) for n in range(1, number + 1)]


def cast(df: DataFrame) -> DataFrame:
    """Fail by an ANSI cast."""
    return df.select("id", f.col("amount").cast("int").alias("amount"))


def verdict(df: DataFrame) -> DataFrame:
    """Name what does not cast."""
    amount = f.expr("try_cast(amount AS int)")
    return df.select(
        "lookup_id", "id", amount.alias("amount"), f.when(amount.isNull(), f.concat_ws(": ", f.lit("no amount"), "amount")).alias("_poison")
    )


def lenient(df: DataFrame) -> DataFrame:
    """Have a null for what does not cast."""
    return df.selectExpr("id", "try_cast(amount AS int) AS amount", "lookup_id")


def _checked(amount: str, kind: str) -> int:
    if amount != "bad":
        return int(amount)
    if kind == "die":
        os._exit(3)
    if kind == "hang":
        time.sleep(3600)
    raise ValueError(f"no such amount: {amount}")


def in_python(df: DataFrame) -> DataFrame:
    """Fail in a Python function: it raises, dies or hangs."""
    return df.select("id", f.udf(_checked, IntegerType(), useArrow=False)("amount", "kind").alias("amount"))


def summed(df: DataFrame) -> DataFrame:
    """Mix rows."""
    return df.groupBy((f.col("id") % 2).alias("odd")).agg(f.sum(f.col("amount").cast("int")).alias("amount"))


def two(df: DataFrame) -> dict[str, DataFrame]:
    """Return two results."""
    return {"large": cast(df.where("id > 10")), "small": cast(df.where("id <= 10"))}


def joined(df: DataFrame) -> DataFrame:
    """Join with a table of its own, through a temporary view and SQL; aggregates what is not of the claim."""
    spark = df.sparkSession
    spark.range(1, 100).groupBy((f.col("id") % 2).alias("odd")).count().createOrReplaceTempView("parities")
    df.createOrReplaceTempView("arrivals")
    return spark.sql("SELECT a.id, p.count AS others FROM arrivals a JOIN parities p ON a.id % 2 = p.odd")


def is_null(name: str) -> Column:
    """Be no transformation."""
    return f.col(name).isNull()


def _looked_up(amount: str, away: str) -> int:
    if os.path.exists(away):  # noqa: PTH110  (the module is pickled by its name)
        raise ConnectionError("no route to the registry")
    return int(amount)


def looked_up(away: str) -> Callable[[DataFrame], DataFrame]:
    """Ask a registry, which is away while a file is there."""
    return lambda df: df.select("id", f.udf(_looked_up, IntegerType(), useArrow=False)("amount", f.lit(away)).alias("amount"))


def nothing_of_it(df: DataFrame) -> DataFrame:
    """Make a row of each message, and nothing of its body."""
    return df.selectExpr("1 AS one")


def lengths(df: DataFrame) -> DataFrame:
    """Make a row of each body as it is."""
    return df.selectExpr("lookup_id", "length(body) AS bytes")
