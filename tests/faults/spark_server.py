"""One JVM with Spark for a whole campaign: each run that transforms messages is a driver of it, so a kill of the run leaves its jobs running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
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
    """Start the JVM in a process of its own, and let ``session()`` of this process and its children find it. One that ends before is printed."""
    with tempfile.TemporaryFile() as errors:
        server = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            os.environ.update(json.loads(server.stdout.readline()))
            yield
        finally:
            for name in (_PORT, _SECRET):
                os.environ.pop(name, None)
            if server.poll() is not None:
                errors.seek(0)
                print(f"Spark has ended before the campaign: {errors.read()[-2_000:].decode(errors='replace')}")  # noqa: T201
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
    # what dead drivers have left in it stays there
    further = {"spark.driver.memory": "3g", "spark.python.worker.faulthandler.enabled": "false"}
    gateway = get_session("local[2]", further).sparkContext._gateway
    assert gateway is not None
    print(json.dumps({_PORT: str(gateway.gateway_parameters.port), _SECRET: gateway.gateway_parameters.auth_token}), flush=True)  # noqa: T201
    threading.Thread(target=_end_with, args=[gateway.proc], daemon=True).start()
    sys.stdin.read()


def _end_with(jvm: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the JVM, and end this process then, with a word about it."""
    code = jvm.wait()
    time.sleep(1)  # its last words are being written down
    print(f"The JVM has ended with {code}.", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)


if __name__ == "__main__":
    main()
