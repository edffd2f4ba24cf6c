"""One JVM with Spark for a whole campaign: each run that transforms messages is a driver of it, so a kill of the run leaves its jobs running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pyspark.sql  # imported before a fork; nothing of it runs there
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from airflow_poison.spark.session import get_session

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


@contextmanager
def running() -> Iterator[None]:
    """Start the JVM in a process of its own, and let ``session()`` of this process and its children find it."""
    server = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        os.environ.update(json.loads(server.stdout.readline()))
        yield
    finally:
        for name in (_PORT, _SECRET):
            os.environ.pop(name, None)
        server.stdin.close()
        server.wait(30)


@cache
def session() -> pyspark.sql.SparkSession:
    """Return this process's own session in the running JVM."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    assert gateway.jvm is not None
    there = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(there.sparkContext())
    conf = SparkConf(_jvm=gateway.jvm, _jconf=context.getConf())
    return pyspark.sql.SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf), there.newSession())


def main() -> None:
    """Run the JVM until standard input ends."""
    further = {"spark.driver.memory": "1g", "spark.python.worker.faulthandler.enabled": "false"}
    parameters = get_session("local[2]", further).sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    print(json.dumps({_PORT: str(parameters.port), _SECRET: parameters.auth_token}), flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
