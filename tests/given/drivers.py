"""A pass in a driver process of its own, with its own Spark: what the tests kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from airflow_poison.passes.alter import declare
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.session import get_session
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError
from tests.spark.unruly import Unruly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # Jobs of a second: what makes long ones fast costs more here than it gains.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}
POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=2))


@contextmanager
def own_jvm(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Have a session in a JVM of its own: one that runs already takes no further jars, and one that goes on has these for all tests that follow."""
    _end_jvm()
    yield get_session(master, settings)
    _end_jvm()


def _end_jvm() -> None:
    from pyspark import SparkContext

    if (context := SparkContext._active_spark_context) is not None:
        context.stop()
    if (gateway := cast("Any", SparkContext._gateway)) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@dataclass(frozen=True)
class Ahead:
    """A clock that is half an hour ahead: every lease is over."""

    def now(self) -> datetime:
        """Return the machine's time and half an hour."""
        return datetime.now(UTC) + timedelta(minutes=30)


@dataclass(frozen=True)
class Work:
    """A queue on disk, its policy and its handler."""

    root: str
    policy: Msmq4 = POLICY

    @property
    def handler(self) -> Unruly:
        """The handler; its calls are written beside the store."""
        return Unruly(f"{self.root}.calls")

    def sent(self, bodies: Sequence[str]) -> Work:
        """Send messages; their lookup ids begin with 1."""
        batch = pa.record_batch({"body": pa.array([body.encode() for body in bodies], pa.binary())})
        send(self.table(), [batch], key="all", clock=SystemClock())
        return self

    def table(self) -> QueueTable:
        """Open the queue."""
        return declare(DeltaStore(self.root, durable=False), "orders", self.policy, SystemClock())

    def a_pass(self, spark: SparkSession, clock: Clock | None = None) -> ReceivePass:
        """A pass over it."""
        return ReceivePass(
            table=self.table(),
            policy=self.policy,
            handler=self.handler,
            engine=lambda: SparkEngine(spark),
            clock=clock or SystemClock(),
            store=DeltaStore(self.root, durable=False),
        )

    def start(self, key: str) -> subprocess.Popen[str]:
        """Receive in a new process with its own Spark."""
        command = [sys.executable, "-m", "tests.given.drivers", self.root, key, json.dumps(self.policy.to_dict())]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2])

    def start_frames(self, key: str) -> subprocess.Popen[str]:
        """Transform in a new process with its own Spark, whose JVM is killed while the first unit runs."""
        command = [sys.executable, "-m", "tests.spark.frames_driver", self.root, key]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2])

    def calls(self, what: str = "call") -> Counter[int]:
        """How often each message was delivered (or, with ``done``, succeeded)."""
        lines = [line.split() for line in Path(self.handler.calls).read_text().splitlines()]
        return Counter(int(line[1]) for line in lines if line[0] == what)

    def rows(self) -> dict[int, dict[str, object]]:
        """The messages in the queue; fails when one is there twice."""
        table = self.table()
        rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        found = {row["lookup_id"]: row for row in rows}
        assert len(found) == len(rows), "a message is in the queue twice"
        return found


def told(driver: subprocess.Popen[str]) -> dict[str, str]:
    """Wait for a driver's end; return what it printed last."""
    out, _ = driver.communicate()
    lines = out.splitlines()
    said: dict[str, str] = json.loads(lines[-1]) if lines else {}
    return said


def receive_and_tell(work: Work, key: str) -> None:
    """Receive once, with a Spark of this process, and tell how it went."""
    try:
        result = work.a_pass(get_session("local[2]", SMALL)).run(key)
    except PoisonError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    else:
        said = {name: str(getattr(result, name)) for name in ("received", "settled", "poisoned", "deliveries", "rollbacks", "crashes", "timeouts")}
    sys.stdout.write(f"\n{json.dumps(said)}\n")


def main(root: str, key: str, policy: str) -> None:
    """Receive once and tell how it went."""
    receive_and_tell(replace(Work(root), policy=Msmq4.from_dict(json.loads(policy))), key)


if __name__ == "__main__":
    main(*sys.argv[1:])
