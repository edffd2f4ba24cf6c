"""A pass with a transformation in a process of its own, whose JVM is killed while the first unit runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.spark.session import get_session
from airflow_poison.values.errors import PoisonError
from tests.given.drivers import SMALL, Work
from tests.given.transforms import SCHEMA, cast

if __name__ == "__main__":
    from airflow_poison.values import fault_points

    spark = get_session("local[2]", SMALL)
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def strike(point: str) -> None:
        """Kill the JVM."""
        if point == "frames.unit.before":
            os.kill(jvm, signal.SIGKILL)

    fault_points.install(strike)
    work = Work(sys.argv[1])
    said = {}
    try:
        replace(work.a_pass(spark), handler=Transformation(cast, SCHEMA)).run(sys.argv[2])
    except PoisonError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    sys.stdout.write(f"\n{json.dumps(said)}\n")
    sys.stdout.flush()
    os._exit(0)
