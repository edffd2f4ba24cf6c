"""What to tell people of a Spark job that failed: one error of ours, without the JVM's stack traces."""

from __future__ import annotations

import re

from py4j.protocol import Py4JNetworkError

from airflow_poison.core import errors
from airflow_poison.core.errors import PoisonError, SparkJobError

_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n\s*at |\Z)", re.DOTALL)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?\Z", re.DOTALL | re.MULTILINE)
_LOST_TASK = re.compile(r"Lost task .*?\): (.*)")
_PY4J = "An error occurred while calling"
_LONGEST = 2_000


def told(error: Exception, key: str) -> PoisonError:
    """Return what a task raised when it is an error of ours; otherwise a SparkJobError with the task's last words."""
    python = _PYTHON.search(str(error))
    if python is not None and (raised := _raised(python[1])) is not None:
        name, text = raised
        if name.startswith(f"{errors.__name__}."):
            return _ours(name.rpartition(".")[2], text)
        why = f"{name}: {text}" if text else name
    else:
        why = _without_python(error)
    return SparkJobError(
        f"The Spark job of pass {key} failed: {why.strip()[:_LONGEST]}\n"
        "Nothing was committed. Spark's own log has the rest; run the task again: it goes on where this one stopped."
    )


def _without_python(error: Exception) -> str:
    """Return what the JVM says, or that there is none."""
    if isinstance(error, OSError | Py4JNetworkError):
        return f"its JVM has ended ({error})"
    text = str(error)
    lines = [line.removeprefix(": ") for line in text.splitlines() if line.strip() and not line.startswith(_PY4J)]
    task = _LOST_TASK.search(text)
    return task[1] if task else next(iter(lines), type(error).__name__)


def _raised(traceback: str) -> tuple[str, str] | None:
    """Return type and text of the exception behind the last frame of a traceback."""
    frames = [match.end() for match in re.finditer(r"^  .*\n", traceback, re.MULTILINE)]
    match = _RAISED.search(traceback[frames[-1] :] if frames else traceback)
    return None if match is None else (match[1], (match[2] or "").strip())


def _ours(name: str, text: str) -> PoisonError:
    kind = getattr(errors, name, PoisonError)
    try:
        error = kind(text)
    except TypeError:  # made of several parts that the text does not tell
        return PoisonError(text)
    return error if isinstance(error, PoisonError) else PoisonError(text)
