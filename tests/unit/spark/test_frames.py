"""What frames make of texts: bodies that do not parse, errors of jobs, and plans."""

from __future__ import annotations

import time

import numpy as np
import pytest

from airflow_poison.delivery.units import Broke, Ran
from airflow_poison.outputs.values import fits_type
from airflow_poison.spark.function import failure_of_job, has_python, mixing_operator
from airflow_poison.spark.units import SparkUnits
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.failures import Failure, FailureKind

WIDE = "array<struct<a: bigint, b: string>>"


@pytest.mark.parametrize(
    ("given", "wanted", "fit"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(10,4)", False),
        ("timestamp", "timestamp_ntz", False),
        ("void", "int", True),
        ("array<struct<a: int, b: string>>", WIDE, True),
        ("array<struct<a: string, b: string>>", WIDE, False),
        ("array<struct<b: string, a: int>>", WIDE, False),
        ("array<struct<a: int>>", WIDE, False),
        ("struct<a: int>", "struct<a: int not null>", False),
        ("map<string, int>", "map<string, bigint>", True),
        ("map<string, bigint>", "map<string, int>", False),
    ],
)
def test_a_column_lands_where_each_of_its_values_has_a_place(given: str, wanted: str, fit: bool) -> None:  # noqa: FBT001
    assert fits_type(parse_ddl(f"x {given}").field("x").type, parse_ddl(f"x {wanted}").field("x").type) is fit


PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/shop/arrivals.py", line 39, in checked
    raise ValueError("no such amount: " + amount)
ValueError: no such amount: bad
"""
ANSI = """An error occurred while calling o946.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030
\tat org.apache.spark.X
Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'bad' of the type "STRING" cannot be cast. SQLSTATE: 22018
== DataFrame ==
"cast" was called from
/shop/arrivals.py:19

\tat org.apache.spark.Y"""
DIED = """: org.apache.spark.SparkException: Lost task 0.0 (TID 70): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat X"""


@pytest.mark.parametrize(
    ("said", "kind", "type_", "text"),
    [
        (PYTHON, "exception", "ValueError", "no such amount: bad"),
        (ANSI, "exception", "CAST_INVALID_INPUT", "The value 'bad' of the type \"STRING\" cannot be cast."),
        (
            ANSI.replace("bad", "a\nb SQLSTATE: 22018\nc"),
            "exception",
            "CAST_INVALID_INPUT",
            "The value 'a\nb SQLSTATE: 22018\nc' of the type \"STRING\" cannot be cast.",
        ),
        (
            "[USER_RAISED_EXCEPTION] order 7:\nno price SQLSTATE: P0001\n\nJVM stacktrace:\na.B",
            "exception",
            "USER_RAISED_EXCEPTION",
            "order 7:\nno price",
        ),
        ("[SOME] words SQLSTATE: 42703; line 1\n'Project", "exception", "SOME", "words SQLSTATE: 42703; line 1"),
        (DIED, "crash", "crashed", "Python worker exited unexpectedly (crashed)"),
    ],
)
def test_a_failed_job_becomes_its_messages_failure(said: str, kind: str, type_: str, text: str) -> None:
    failure = failure_of_job(RuntimeError(said))

    assert (failure.kind, failure.type, failure.text) == (kind, type_, text)


JOIN = """Project [id#1]
+- Join Inner, (id#1 = id#2)
   :- SubqueryAlias claim
   :  +- Relation [id#1] parquet
   +- {right}
      +- Relation [id#2] parquet"""


SUBQUERY = """Project [name#4]
+- Filter NOT k#3 IN (list#5 [])
   :  +- Project [k#1]
   :     +- {within}
   :        +- Relation [k#1] parquet
   +- {over}
      +- Relation [k#3, name#4] parquet"""
CTE = """WithCTE
:- CTERelationDef 3, false
:  +- SubqueryAlias x
:     +- SubqueryAlias claim
:        +- Relation [k#1] parquet
+- {over}
   +- SubqueryAlias x
      +- CTERelationRef 3, true, [k#2], false, false"""


def _swapped(kind: str) -> str:
    return JOIN.replace("SubqueryAlias claim", "Aggregate [id#1]").replace("Inner", kind).format(right="SubqueryAlias claim")


@pytest.mark.parametrize(
    ("plan", "mixing"),
    [
        ("Project [id#0]\n+- SubqueryAlias claim\n   +- Relation [id#0] parquet", None),
        ("Aggregate [id#0]\n+- SubqueryAlias claim\n   +- Relation [id#0] parquet", "Aggregate"),
        (JOIN.format(right="SubqueryAlias claim"), "a join (Inner)"),
        (JOIN.format(right="Aggregate [id#2]"), None),
        *((JOIN.replace("Inner", kind).format(right="Aggregate [id#2]"), None) for kind in ("LeftOuter", "LeftSemi", "LeftAnti", "Cross")),
        *((JOIN.replace("Inner", kind).format(right="Aggregate [id#2]"), f"a join ({kind})") for kind in ("RightOuter", "FullOuter")),
        *((_swapped(kind), None) for kind in ("Inner", "RightOuter", "Cross")),
        *((_swapped(kind), f"a join ({kind})") for kind in ("LeftOuter", "FullOuter", "LeftSemi", "LeftAnti", "ExistenceJoin")),
        (SUBQUERY.format(within="SubqueryAlias claim", over="SubqueryAlias names"), "a subquery"),
        (SUBQUERY.format(within="SubqueryAlias names", over="SubqueryAlias claim"), None),
        (CTE.format(over="Project [k#2]"), None),
        (CTE.format(over="Aggregate [k#2], [k#2]"), "Aggregate"),
        ("Union\n:- SubqueryAlias claim\n:  +- Relation [id#0]\n+- SubqueryAlias claim\n   +- Relation [id#1]", None),
        ("Project [id#0]\n+- Relation [id#0] parquet", ""),
    ],
)
def test_what_mixes_rows_is_found_in_the_plan(plan: str, mixing: str | None) -> None:
    assert mixing_operator(plan, "claim") == mixing


OURS = "MapInArrow poison_columns_of_bodies(lookup_id#0L, body#2)#11, [lookup_id#12L, carrier#13], false"


@pytest.mark.parametrize(
    ("plan", "python"),
    [
        (f"Project [carrier#13]\n+- {OURS}\n   +- Relation [lookup_id#0L, body#2] parquet", False),
        (f"MapInArrow theirs(lookup_id#12L)#20, [lookup_id#21L], false\n+- {OURS}", True),
        (f"BatchEvalPython [f(carrier#13)#20]\n+- {OURS}", True),
        (f"MapInPandas theirs(lookup_id#12L)#20, [lookup_id#21L], false\n+- {OURS}", True),
        ("Project [body#2]\n+- Relation [lookup_id#0L, body#2] parquet", False),
    ],
)
def test_the_python_that_makes_columns_of_bodies_is_none_of_the_transformations(plan: str, python: bool) -> None:  # noqa: FBT001
    assert has_python(plan) is python


KILLED = Broke(Failure(FailureKind.EXCEPTION, "Py4JJavaError", "java.nio.channels.CancelledKeyException", ""))
DEAD = Broke(Failure(FailureKind.CRASH, "crashed", "Python worker exited unexpectedly (crashed)", ""))
RAISED = Broke(Failure(FailureKind.EXCEPTION, "ValueError", "no such amount: bad", ""))


class Played(SparkUnits):
    """Units whose jobs end as written.

    :param late: seconds since a job was cancelled.
    """

    def __init__(self, late: float, *ends: Ran | Broke) -> None:
        self._late_at, self.ends = time.monotonic() - late, list(ends)

    def _run_job(self, *_: object, **_named: object) -> Ran | Broke:
        return self.ends.pop(0)


@pytest.mark.parametrize(
    ("late", "ends", "expected"),
    [
        (4, [KILLED, Ran({}, {})], Ran({}, {})),
        (4, [DEAD, Ran({}, {})], Ran({}, {})),
        (4, [DEAD, DEAD], DEAD),
        (4, [RAISED], RAISED),
        (3_600, [DEAD], DEAD),
    ],
)
def test_what_spark_may_have_killed_for_a_cancelled_job_runs_once_more(late: float, ends: list[Ran | Broke], expected: Ran | Broke) -> None:
    units = Played(late, *ends)

    found = units.run(np.array([1]), np.array([0], np.int32), lands=None)

    assert (found, units.ends) == (expected, [])


def test_of_errors_in_a_chain_the_one_that_was_raised_counts() -> None:
    text = (
        "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        "  File \"worker.py\", line 1, in main\n    x()\nKeyError: 'id'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "worker.py", line 2, in main\n    y()\nValueError: no id\n\n'
        "\tat org.apache.spark.api.python.BasePythonRunner\nCaused by: Traceback (most recent call last):\nOther: 1\n"
    )

    failure = failure_of_job(RuntimeError(text))

    assert (failure.type, failure.text) == ("ValueError", "no id")
