"""What a failed Spark job says: whether Spark has gone, and what its messages are charged with."""

from __future__ import annotations

import re

from airflow_poison.core.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.spark.jobs import why

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] (.*?)(?=\n\s*at |\nCaused by:|\Z)", re.DOTALL)
_WRAPPERS = frozenset({"TASK_WRITE_FAILED"})
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\s+at |\Z)", re.DOTALL)
_DIED = re.compile(r"(Python worker exited unexpectedly[^\n.]*|ExecutorLostFailure[^\n]*|Python worker failed to connect back[^\n]*)")
_TASK = re.compile(r"Task (\d+) in stage \S+ failed")


def lost(error: Exception) -> bool:
    """Whether an error says that Spark is not there any more."""
    from airflow_poison.core.spark import session

    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return True
    if "SparkContext was shut down" in str(error) or "stopped SparkContext" in str(error):
        return True
    return session.is_of_connect(error) and ("has ended" in session.why(error) or "cannot be reached" in session.why(error))


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
    """Return the number of the task that failed a job; None where the error does not tell. PySpark hides that behind what a function raised."""
    found = _TASK.search(f"{error}\n{error.__context__}")
    return None if found is None else int(found[1])


def first_line(error: Exception) -> str:
    """Return what an error says, without the plan and the stack traces behind it."""
    return next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)[:1_000]
