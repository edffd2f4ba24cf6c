"""What to tell people of a Spark job that failed: one error of ours, without the JVM's stack traces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_poison.core import errors
from airflow_poison.core.errors import SparkJobError, recalled

if TYPE_CHECKING:
    from airflow_poison.core.errors import PoisonError

_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n\s*at |\n\s*\nJVM stacktrace:|\Z)", re.DOTALL)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?\Z", re.DOTALL | re.MULTILINE)
_LOST_TASK = re.compile(r"Lost task .*?\): (.*)")
_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_PY4J = "An error occurred while calling"
_LONGEST = 2_000


def readable_error(error: Exception, key: str) -> PoisonError:
    """Return what a task raised when it is an error of ours; otherwise a SparkJobError with the task's last words."""
    raised = _raised_by_a_task(error)
    if raised is not None and raised[0].startswith(f"{errors.__name__}."):
        return recalled(raised[0].rpartition(".")[2], raised[1])
    return SparkJobError(
        f"The Spark job of pass {key} failed: {why(error)}\n"
        "Nothing was committed. Spark's own log has the rest; run the task again: it goes on where this one stopped."
    )


def why(error: Exception) -> str:
    """Return a task's last words, or what Spark says."""
    raised = _raised_by_a_task(error)
    words = _without_python(error) if raised is None else ": ".join(filter(None, raised))
    return words.strip()[:_LONGEST]


def has_ended(error: Exception) -> bool:
    """Whether an error says that the JVM is not there any more."""
    return isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"


def _raised_by_a_task(error: Exception) -> tuple[str, str] | None:
    python = _PYTHON.search(str(error))
    return None if python is None else _raised(python[1])


def _without_python(error: Exception) -> str:
    """Return what the JVM or the Connect server says, or that there is none."""
    from airflow_poison.core.spark import session

    if has_ended(error):
        return f"its JVM has ended ({error})"
    text = session.why(error) if session.is_of_connect(error) else str(error)
    lines = [line.removeprefix(": ") for line in text.splitlines() if line.strip() and not line.startswith(_PY4J)]
    task = _LOST_TASK.search(text)
    words = task[1] if task else next(iter(lines), type(error).__name__)
    causes = _CAUSE.findall(text)
    return causes[-1] if causes and words.rstrip().endswith(":") else words  # "Exception thrown in awaitResult:"


def _raised(traceback: str) -> tuple[str, str] | None:
    """Return type and text of the exception behind the last frame of a traceback."""
    frames = [match.end() for match in re.finditer(r"^  .*\n", traceback, re.MULTILINE)]
    match = _RAISED.search(traceback[frames[-1] :] if frames else traceback)
    return None if match is None else (match[1], (match[2] or "").strip())
