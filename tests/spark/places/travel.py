"""What the tests of handlers and DataFrames that travel do in a driver."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pyarrow as pa

from airflow_poison.passes.send import send
from airflow_poison.spark.executors import Executors, checked_files, import_here
from airflow_poison.spark.send_stage import FrameSource, SendStage
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.mapping import ColumnMapping
from tests.spark.places.place import session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.session import SparkSession as Session

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.passes.send import SendResult
    from tests.spark.places.task import Task


def receive_shipped(task: Task, files: list[str], *, ship: bool = True) -> ReceiveResult:
    """Receive with a handler of these files, which are gone from this machine when executors look for it."""
    paths = checked_files(files)
    import_here(paths)
    if ship:
        Executors(session()).ship(paths)
    import_module(str(task.handler).partition(":")[0])
    for path in paths:
        Path(path).unlink()
    try:
        return task.receive("run")
    finally:
        sys.path[:] = [entry for entry in sys.path if entry not in paths]


def receive_by_value(task: Task, path: str) -> ReceiveResult:
    """Receive with a function that no other process can import, as one of a DAG file."""

    def write(message: object) -> None:
        with open(path, "a") as file:  # noqa: PTH123  (a plain string travels)
            file.write(f"{message.lookup_id}\n")  # type: ignore[attr-defined]

    return replace(task, named=write).receive("run")


def send_frame(task: Task, key: str, *, path: str | None = None, table: str | None = None) -> SendResult:
    """Send a path, a table, or a DataFrame whose bodies a Python function makes on the executors."""
    source = FrameSource(path=path, table=table, dataframe=None if path or table else frame)
    queue, now = task.table(), SystemClock().now()
    batches = SendStage.of_queue(queue.folder, key).batches(lambda: source.open(session()), ColumnMapping(body="body"), now)
    return send(queue, batches, key=key, clock=SystemClock())


def frame(spark: SparkSession) -> DataFrame:
    """Return two hundred rows in four parts, each told by the process that made it."""

    def bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.array([f"{number} of {os.getppid()}" for number in batch["id"].to_pylist()])], names=["body"])

    return spark.range(0, 200, 1, 4).mapInArrow(bodies, "body string")


def send_columns(task: Task, key: str, fails_at: int = -1) -> SendResult:
    """Send two hundred rows in four parts with all that a sender may give.

    :param fails_at: the row that fails the job; none does.
    """

    def opened() -> DataFrame:
        origin = f"if(id = {fails_at}, raise_error('no such origin'), cast(id as string)) as origin"
        columns = ("cast(id as string) as body", "concat('g', id % 7) as airline", "cast(id % 10 as int) as urgency", origin)
        return session().range(0, 200, 1, 4).selectExpr(*columns)

    mapping = ColumnMapping(body="body", group="airline", priority="urgency", properties=("origin",), expires_after=timedelta(hours=1))
    queue, clock = task.table(), SystemClock()
    return send(queue, SendStage.of_queue(queue.folder, key).batches(opened, mapping, clock.now()), key=key, clock=clock)


def make_table(name: str, path: str) -> None:
    """Make a table and a file of Parquet."""
    session().range(0, 50).selectExpr("cast(id as string) as body").write.parquet(path)
    session().read.parquet(path).createOrReplaceTempView(name)


def go_where(folder: str) -> None:
    """Change the driver's working directory."""
    os.chdir(folder)


def close_session() -> None:
    """Close the session at the server, as it does by itself after an hour without a call."""
    cast("Session", session()).client.release_session()


def receive_and_close(task: Task) -> ReceiveResult:
    """Receive, and close the session when a handler lingers."""

    def close() -> None:
        task.until_lingering()
        close_session()

    threading.Thread(target=close, daemon=True).start()
    return task.receive("run")


def listens_elsewhere(pids: list[int]) -> list[str]:
    """Return the addresses beyond loopback on which these processes, and what they have started, listen."""
    found = []
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            found += [str(each.laddr) for each in process.net_connections() if each.status == psutil.CONN_LISTEN and not _is_here(each.laddr.ip)]
    return found


def _is_here(address: str) -> bool:
    return address in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
