"""What the JVM of Spark writes to its standard error, as log records with a level: without this, Airflow takes every line for an error."""

from __future__ import annotations

import logging
import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("airflow_poison.spark")

_STDERR = 2
_LEVEL = re.compile(r"^\S+ \S+ (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ")
_LEVELS = {"WARN": logging.WARNING, "ERROR": logging.ERROR, "FATAL": logging.CRITICAL}
_NOISE = re.compile(
    r"^WARNING: Using incubator modules|^Using Spark's .* log4j profile|^Setting (default|Spark) log level|^To adjust logging level"
    r"|^WARNING: .*(sun\.misc\.Unsafe|restricted method|native access)| WARN NativeCodeLoader: "
)
"""What every start says."""


@contextmanager
def jvm_output_logged() -> Iterator[None]:
    """Log what a JVM that is started in this block writes to its standard error, as long as it lives.

    The JVM is given a pipe instead of this process's own; so is, in this block, whatever else of this process writes there.
    """
    py4j = logging.getLogger("py4j")
    if py4j.level == logging.NOTSET:  # it tells of each of its connections that is closed
        py4j.setLevel(logging.WARNING)
    read, write = os.pipe2(os.O_CLOEXEC)
    own = os.dup(_STDERR)
    threading.Thread(target=_log_all, args=(read,), name="poison-jvm-output", daemon=True).start()
    os.dup2(write, _STDERR)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        os.close(own)


def _log_all(descriptor: int) -> None:
    level = logging.INFO
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()
            if text:
                level = level_of(text, level)
                log.log(level, "%s", text)


def level_of(line: str, before: int = logging.INFO) -> int:
    """Return the level of a line; a line that begins with a blank, as those of a stack trace do, belongs to the one before it."""
    if _NOISE.search(line):
        return logging.DEBUG
    found = _LEVEL.match(line)
    if found is not None:
        return _LEVELS.get(found[1], logging.INFO)
    return before if line[0].isspace() or line.startswith("Caused by:") else logging.INFO
