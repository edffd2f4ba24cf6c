"""Real Spark servers from the pip package, on loopback: a standalone master with two workers, and a Spark Connect server on top of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+PerfDisableSharedMem"
"""Servers that live for a minute: what makes long ones fast costs more here than it gains."""
START_SECONDS = 180.0
"""A time-out for a machine that does much else."""
ENVIRONMENT = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
APPLICATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.ui.enabled": "false",
    "spark.python.task.killTimeout": "500ms",
}
"""Of an application on the cluster: one executor with one core on each worker."""


@dataclass(frozen=True)
class Server:
    """A server's process.

    :param log: what it has printed.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, *words: str) -> None:
        """Wait until its log has these words."""
        until = time.monotonic() + START_SECONDS
        while not all(word in self.log.read_text(errors="replace") for word in words):
            assert self.process.poll() is None, f"{self.name} has ended:\n{self._end()}"
            assert time.monotonic() < until, f"{self.name} is not there after {START_SECONDS:.0f} s:\n{self._end()}"
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, by its own process id."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _end(self) -> str:
        return self.log.read_text(errors="replace")[-2_000:]


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster.

    :param url: of the master.
    :param rest_port: of its server for submissions.
    """

    url: str
    rest_port: int
    servers: tuple[Server, ...]


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """Start a master and two workers with two cores each; stop them at the end."""
    port, rest, *ports = free_ports(5)
    options = f"{QUICK} -Dspark.master.rest.enabled=true -Dspark.master.rest.host=127.0.0.1 -Dspark.master.rest.port={rest}"
    environment = {**ENVIRONMENT, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options}
    master, worker = (f"org.apache.spark.deploy.{name}" for name in ("master.Master", "worker.Worker"))
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Server:
            server = _start(folder, name, ["spark-class", *arguments], environment)
            stack.callback(server.stop)
            return server

        servers = [start("master", master, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ports[0]))]
        servers[0].wait("I have been elected leader")
        for number in (1, 2):
            where = ["--host", "127.0.0.1", "--work-dir", str(folder / f"work-{number}"), "--webui-port", str(ports[number])]
            servers.append(start(f"worker-{number}", worker, *where, "--cores", "2", "--memory", "1g", url))
        for server in servers[1:]:
            server.wait("Successfully registered with master")
        yield Cluster(url, rest, tuple(servers))


@contextmanager
def connect_server(folder: Path, master: str) -> Iterator[Server]:
    """Start a Spark Connect server; its log ends with its port."""
    (port,) = free_ports(1)
    conf = {
        **APPLICATION,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
    }
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master, *settings, "spark-internal"]
    server = _start(folder, f"sc://127.0.0.1:{port}", command, ENVIRONMENT)
    try:
        server.wait("Spark Connect server started")
        yield server
    finally:
        server.stop()


def free_ports(number: int) -> list[int]:
    """Return ports of loopback that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _start(folder: Path, name: str, command: Sequence[str], environment: dict[str, str]) -> Server:
    log = folder / f"{name.rpartition('/')[2].replace(':', '-')}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            cwd=folder,
        )
    return Server(name, process, log)
