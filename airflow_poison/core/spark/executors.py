"""The executors of a session, made ready once: what they need is shipped to them, and whether they can work is tried before anything is claimed.

Local tasks run beside the driver and need nothing. Elsewhere the first pass of a session costs one small job more, and each further store or
handler another one.
"""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import airflow_poison
from airflow_poison.core.errors import ExecutorError
from airflow_poison.core.spark import look
from airflow_poison.core.spark.failed_jobs import why
from airflow_poison.core.spark.jobs import jobs_of
from airflow_poison.core.spark.shipping import own_package, shippable
from airflow_poison.core.store.disk import POSIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_poison.core.delivery.handlers import HandlerRef

MOST_TASKS = 4_096
"""Of a look at the executors: as many as run at the same time where no more do."""


@dataclass(slots=True)
class _Known:
    """What is known of the executors of one session."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    shipped: set[str] = field(default_factory=set)
    seen: set[tuple[str, object]] = field(default_factory=set)
    cores: int = 0


_sessions: dict[str, _Known] = {}


class Executors:
    """Those of a session.

    :param parallelism: how many tasks a pass has; None: as many as run at the same time.
    """

    def __init__(self, spark: SparkSession, parallelism: int | None = None) -> None:
        self._spark, self.jobs, self._parallelism = spark, jobs_of(spark), parallelism
        self._known = _sessions.setdefault(self.jobs.identity, _Known())

    def parallelism(self) -> int:
        """Return how many tasks a pass has."""
        if self._parallelism is not None:
            return self._parallelism
        cores = self.jobs.cores()
        if cores is None:
            with self._known.lock:
                cores = self._known.cores = self._known.cores or len(self._look(None))
        return max(cores, 1)

    def ship(self, py_files: Sequence[str]) -> None:
        """Let every executor import from these files; what has been shipped is not shipped again."""
        with self._known.lock:
            self._ship(py_files)

    def make_ready(self, folder: str, handler: HandlerRef | None = None) -> None:
        """See to it that executors can work on a queue. Raises ExecutorError, with nothing claimed or sent.

        :param folder: the queue's; every executor must see what this process writes there, and write there itself.
        :param handler: what they must be able to load.
        """
        if self.jobs.local:
            return
        wanted = (str(Path(folder).parent), None if handler is None else (handler.name, handler.by_value))
        with self._known.lock:
            if wanted in self._known.seen:
                return
            self._ship([own_package()])
            self._try(Path(folder), handler)
            self._known.seen.add(wanted)

    def _ship(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path not in self._known.shipped:
                self.jobs.ship(shippable(path))
                self._known.shipped.add(path)

    def _try(self, folder: Path, handler: HandlerRef | None) -> None:
        """Have every executor import, load, read and write."""
        probe = folder / "_stage" / f"send-look-{token_hex(8)}"  # maintenance removes what is left of it, when it is old
        probe.mkdir(parents=True)
        try:
            (probe / look.MARK).write_text(probe.name)
            parts = None if handler is None else (handler.name, handler.by_value, handler.path)
            answers = self._look(look.Wanted(airflow_poison.__version__, parts, str(probe)))
            self._known.cores = len(answers)
            for answer in answers:
                if answer["lacks"] or not (probe / answer["wrote"]).exists():
                    raise ExecutorError(_told(answer, folder, handler))
        finally:
            shutil.rmtree(probe, ignore_errors=True)

    def _look(self, wanted: look.Wanted | None) -> list[dict[str, str]]:
        """Run a job with a task on every core; return what they answer."""
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(look)  # type: ignore[no-untyped-call]
        task = partial(look.answer, None if wanted is None else tuple(wanted))
        try:
            rows = self._spark.range(0, MOST_TASKS).mapInArrow(task, schema=look.ANSWER).collect()
        except Exception as error:
            message = (
                f"Spark could not run a Python function on its executors: {why(error)}\nNothing was claimed or sent. Spark's own log has the rest."
            )
            raise ExecutorError(message) from error
        return [json.loads(row["answer"]) for row in rows]


def _told(answer: dict[str, str], folder: Path, handler: HandlerRef | None) -> str:
    """Return what an executor lacks, and what to do about it."""
    where, because = f"Spark's executor on {answer['host']} ({answer['python']})", answer["why"]
    match answer["lacks"]:
        case "module":
            return f"{where} lacks a module: {because}. Install {', '.join(look.NEEDS)} for its Python, or name one that has them in PYSPARK_PYTHON."
        case "package":
            return (
                f"{where} cannot use airflow_poison {airflow_poison.__version__}, which was shipped to it: {because}. "
                "Remove an older installation there, or install this version."
            )
        case "handler":
            name = "" if handler is None else handler.name
            ship = "Ship its module, and what that imports, with py_files=[…], or install them there."
            return f"{where} cannot load the handler {name!r}: {because} {ship}"
    because = because or "what it wrote there is not seen here"
    return (
        f"{where} does not see the queue's folder {folder} as this process does: {because}. The store must be on a file system that the task and all "
        f"executors mount at the same path, {POSIX}; otherwise receive with spark='local[*]'."
    )
