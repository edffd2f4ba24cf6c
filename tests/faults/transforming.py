"""Transformations: runs that transform the messages of a queue in the campaign's Spark, and what must have become of each message by its body alone.

A transformation notes no calls: it is called again with what had succeeded. So its messages are judged by where they are in the end. What is good
lands once and is never charged; what is bad never lands.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.spark.engine import SparkEngine
from tests.faults import spark_server
from tests.faults.ledger import note
from tests.faults.records import deed_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.faults.history import History, Row

LANDED = 4_096
"""So many bytes of a body land in the output, at most."""
_DEED = r'"deed"\s*:\s*"([a-z0-9 ]*)"'
_NEVER = frozenset({b"bad", b"unprocessable", b"killer"})
"""Deeds of messages that fail each time."""
_ALWAYS = frozenset({b"ok", b"postpone", b""})
"""Deeds of messages that never fail."""


@f.udf(returnType=StringType(), useArrow=False)
def _act(deed: str, moves: int, aborts: int) -> str:
    match deed.split():
        case ["flaky", times] if moves == 0 and aborts < int(times):
            raise ValueError("for now")
        case ["die"] if moves == aborts == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["killer"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            pass
    return deed


def transform(df: DataFrame) -> DataFrame:
    """Do with each message what its body says, as the campaign's handler does."""
    text = f.regexp_replace(f.decode("body", "ISO-8859-1"), "^(\u00ef\u00bb\u00bf)+", "")
    plain = f.regexp_extract(f.decode(f.substring("body", 1, 64), "ISO-8859-1"), r"^([^|]*)", 1)
    named = f.when(text.startswith("{") & text.rlike(_DEED), f.regexp_extract(text, _DEED, 1)).otherwise(plain)
    deed = f.trim(_act(named, "move_count", "abort_count"))
    return df.select(
        "lookup_id",
        f.col("lookup_id").alias("id"),
        f.when(deed == "bad", f.raise_error("always").cast("binary")).otherwise(f.substring("body", 1, LANDED)).alias("body"),
        f.when(deed == "unprocessable", "never").alias("_poison"),
    )


TRANSFORMATION = Transformation(f"{__name__}:{transform.__name__}")


def engine() -> SparkEngine:
    note("transforms")
    return SparkEngine(spark_server.session())


def fails(body: bytes) -> bool:
    """Whether a message with this body fails each time."""
    return (deed_of(body) or [b""])[0] in _NEVER


def charged(history: History) -> list[Row]:
    """Return messages that never fail and were charged all the same, as a delivery saw it, or they say now.

    Left out are those of plans of people, and records that were malformed: people have put them back, which counts a move.
    """
    rows = [*history.present(), *history.left]
    well = [row for row in rows if (deed_of(history.bodies[row.body]) or [b""])[0] in _ALWAYS and row.number not in history.planned]
    well = [row for row in well if row.number not in history.malformed]
    return [row for row in well if row.m or row.a or row.crashes or any(map(any, history.delivered[row.number]))]
