"""An archive of the classes that Spark loads at its start, so that the JVM of each task starts in a third of the time.

``python -m tests.live.spark_classes FILE`` makes it; a JVM that cannot use it, being another version, goes on without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds."""
MAKING_SECONDS = 600


def options(folder: Path) -> str:
    """Return the options of a Spark driver that starts quickly; make the archive in the folder when it is missing."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.split('"')[1]
    archive = folder / f"spark-{version('pyspark')}-java-{java}.jsa"
    if not archive.exists():
        subprocess.run(
            [sys.executable, "-m", "tests.live.spark_classes", str(archive)],
            cwd=Path(__file__).parents[2],
            check=True,
            timeout=MAKING_SECONDS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return f"{QUICK} -XX:SharedArchiveFile={archive}"


def _make(archive: Path) -> None:
    """Run what a task runs, and let the JVM write down at its end which classes that took."""
    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.passes.send import messages_to_batches, send
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.spark.engine import SparkEngine
    from airflow_poison.spark.session import get_session
    from airflow_poison.store import open_store
    from airflow_poison.values.clock import SystemClock

    part = archive.with_suffix(f".part-{os.getpid()}")
    spark = get_session("local[2]", {"spark.driver.extraJavaOptions": f"{QUICK} -XX:ArchiveClassesAtExit={part}"})
    with tempfile.TemporaryDirectory() as folder:
        store, clock, policy = open_store(folder), SystemClock(), Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
        queue = declare(store, "warm", policy, clock)
        send(queue, messages_to_batches([b"a", b"b"]), key="warm", clock=clock)
        ReceivePass(table=queue, policy=policy, handler=_accept, engine=lambda: SparkEngine(spark), clock=clock, isolation="none", store=store).run(
            "warm"
        )
        spark.range(10).selectExpr("to_json(struct(id)) AS body").write.parquet(f"{folder}/rows")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(MAKING_SECONDS)
    part.rename(archive)


def _accept(message: object) -> None:
    del message


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
