"""What a failed Spark job says: whether Spark has gone, and what its messages are charged with."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from airflow_poison.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.spark.jobs import is_connect, why
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] (.*?)(?=\n\s*at |\nCaused by:|\Z)", re.DOTALL)
_WRAPPERS = frozenset({"TASK_WRITE_FAILED"})
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\s+at |\Z)", re.DOTALL)
_DIED = re.compile(r"(Python worker exited unexpectedly[^\n.]*|ExecutorLostFailure[^\n]*|Python worker failed to connect back[^\n]*)")
_TASK = re.compile(r"Task (\d+) in stage \S+ failed")


def lost(error: Exception) -> bool:
    """Whether an error says that Spark is not there any more."""
    from airflow_poison.spark import session

    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return True
    if "SparkContext was shut down" in str(error) or "stopped SparkContext" in str(error):
        return True
    return session.is_of_connect(error) and ("has ended" in session.why(error) or "cannot be reached" in session.why(error))


_TOLD = (
    "util.Utils",
    "executor.Executor",
    "scheduler.TaskSetManager",
    "storage.ShuffleBlockFetcherIterator",
    "sql.execution.datasources.FileFormatWriter",
    "sql.execution.datasources.v2.DataWritingSparkTask",
    "sql.execution.datasources.v2.OverwriteByExpressionExec",
)
"""Loggers of Spark that write a failed task with all stacks, each again."""
_QUERY_LOGS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that do so, by release."""


@contextmanager
def expected(spark: SparkSession) -> Iterator[None]:
    """Keep Spark from writing failures of tasks into the log while the block runs: most are looked for, and each is logged once."""
    from pyspark.logger import PySparkLogger

    python = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]  # of their own class: the first caller decides which
    before = [log.disabled for log in python]
    for log in python:
        log.disabled = True
    try:
        with nullcontext() if is_connect(spark) else _silent(spark.sparkContext._jvm.org.apache.logging.log4j):  # type: ignore[union-attr]  # noqa: SLF001  (there is no public way)
            yield
    finally:
        for log, disabled in zip(python, before, strict=True):
            log.disabled = disabled


@contextmanager
def _silent(log4j: Any) -> Iterator[None]:
    """Switch loggers of the driver's JVM off while the block runs."""
    levels = {name: log4j.LogManager.getLogger(name).getLevel() for name in (f"org.apache.spark.{each}" for each in _TOLD)}
    set_level = log4j.core.config.Configurator.setLevel
    for name in levels:
        set_level(name, log4j.Level.OFF)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may be gone; what ended the block says so
            for name, level in levels.items():
                set_level(name, level)


def failure_of_job(error: Exception) -> Failure:
    """Return what a failed job's messages are charged with: a Python function's exception, Spark's error class with its words, or a death."""
    text = str(error)
    python = _PYTHON.search(text)
    if python is not None:
        lines = python[1].rstrip().splitlines()
        last = next((place for place in reversed(range(len(lines))) if not lines[place].startswith(" ")), len(lines) - 1)
        while last > 0 and not lines[last - 1].startswith(" "):
            last -= 1
        kind, _, words = "\n".join(lines[last:]).partition(": ")
        trace = "\n".join(lines[:last])
        return Failure(FailureKind.EXCEPTION, cut(kind, 500), cut(words, MAX_TEXT), cut_front(f"{trace}\n", MAX_TRACE))
    died = _DIED.search(text)
    if died is not None:
        return Failure(FailureKind.CRASH, "crashed", cut(died[1], MAX_TEXT))
    for condition, words in _CONDITION.findall(text):
        if condition not in _WRAPPERS:
            said, _, context = words.strip().partition("\n")
            said = re.sub(r" SQLSTATE: \w+$", "", said)
            return Failure(FailureKind.EXCEPTION, condition, cut(said, MAX_TEXT), cut_front(context.strip(), MAX_TRACE))
    return Failure(FailureKind.EXCEPTION, type(error).__name__, cut(why(error), MAX_TEXT))


def failed_task(error: Exception) -> int | None:
    """Return the number of the task that failed a job; None where the error does not say it. PySpark hides it behind an error of a function."""
    found = _TASK.search(f"{error}\n{error.__context__}")
    return None if found is None else int(found[1])


def first_line(error: Exception) -> str:
    """Return what an error says, without the plan and the stack traces behind it."""
    return next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)[:1_000]
