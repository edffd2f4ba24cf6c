"""A session that was stopped, or whose JVM is gone: a pass says so, and its messages wait.

Reported of others as "Connection refused": analytics-zoo 787, hanythingondemand 144, py4j 262, spark 47069.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """
import json, sys
import psutil
from pyspark.sql import SparkSession
from airflow_poison import Msmq4, Store
from airflow_poison.spark.session import get_session

folder, said = sys.argv[1], []
queue = Store(f"{folder}/store").declare("orders", Msmq4())
queue.send([{"id": number} for number in range(3)], key="sent")

def receive(spark):
    try:
        given = {"transform": lambda df: df.select("id"), "schema": "id int", "output": f"{folder}/out"}
        said.append(queue.receive(None, Msmq4(), key=f"received-{len(said)}", spark=spark, **given).received)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")

stopped = get_session("local[2]")
stopped.stop()
receive(stopped)
spark = get_session("local[2]")
receive(spark)
queue.send([{"id": 3}], key="more")
for jvm in [process for process in psutil.Process().children(recursive=True) if process.name() == "java"]:  # what it started ends with it
    jvm.kill()
    jvm.wait()
receive(spark)
try:
    get_session("local[2]")
except Exception as error:
    said.append(f"{type(error).__name__}: {error}")
said.append(queue.overview().sub_queues["main"].messages)
print(json.dumps(said))
"""


@pytest.mark.long
def test_a_session_that_has_ended_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path)], check=False, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr

    stopped, received, gone, again, waits = json.loads(ran.stdout.splitlines()[-1])
    assert stopped.startswith("SparkJobError: This Spark session was stopped. Nothing was committed. Make a new one")
    assert received == 3
    assert gone == again
    assert gone.startswith("SparkJobError: Spark has ended in this process: its JVM is gone, most often for lack of memory (spark.driver.memory).")
    assert waits == 1
