"""Real Spark servers from the pip package, on loopback: a standalone master with two workers, and a Spark Connect server on top of them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+PerfDisableSharedMem"
"""Servers that live for a minute: what makes long ones fast costs more here than it gains."""
START_SECONDS = 180.0
"""A time-out for a machine that does much else."""
ENVIRONMENT = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
BESIDE_THE_TASK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Of a driver that the cluster does not place."""
APPLICATION = {
    **BESIDE_THE_TASK,
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
    :param start_worker: starts the worker of this number, 1 or 2, and waits until it is there.
    """

    url: str
    rest_port: int
    servers: list[Server]
    start_worker: Callable[[int], Server]


@dataclass(frozen=True)
class Nodes:
    """A cluster whose machines share nothing.

    :param driver: the folder for temporary files of the driver's machine.
    :param workers: those of the workers' machines.
    """

    cluster: Cluster
    driver: Path
    workers: tuple[Path, Path]

    def of(self, process: int) -> int:
        """Return the number of the node where a process runs."""
        return next(number for number in (1, 2) if process in {each.pid for each in self._processes(number)})

    def replace(self, number: int) -> None:
        """Lose a node for good: all its processes die, its folder is gone. Then another one takes its place."""
        for each in self._processes(number):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.cluster.servers[number].stop()
        for path in self.workers[number - 1].iterdir():
            shutil.rmtree(path)
        self.cluster.servers[number] = self.cluster.start_worker(number)

    def _processes(self, number: int) -> list[psutil.Process]:
        worker = psutil.Process(self.cluster.servers[number].process.pid)
        return [worker, *worker.children(recursive=True)]


@contextmanager
def standalone(folder: Path, hidden: Path | None = None) -> Iterator[Cluster]:
    """Start a master and two workers with two cores each; stop them at the end.

    :param hidden: a folder that the workers do not see; then each also has a folder for temporary files (``node-1``, ``node-2``) that the other one
        does not see, as if they were different machines.
    """
    port, rest, *ports = free_ports(5)
    options = f"{QUICK} -Dspark.master.rest.enabled=true -Dspark.master.rest.host=127.0.0.1 -Dspark.master.rest.port={rest}"
    environment = {**ENVIRONMENT, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options}
    master, worker = (f"org.apache.spark.deploy.{name}" for name in ("master.Master", "worker.Worker"))
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str, node: int = 0) -> Server:
            apart, more = (_apart(folder, node, hidden), {"TMPDIR": str(folder / f"node-{node}")}) if node and hidden else ([], {})
            server = _start(folder, name, ["spark-class", *arguments], environment | more, apart)
            stack.callback(server.stop)
            return server

        servers = [start("master", master, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ports[0]))]
        servers[0].wait("I have been elected leader")

        def start_worker(number: int) -> Server:
            where = ["--host", "127.0.0.1", "--work-dir", str(folder / f"work-{number}"), "--webui-port", str(ports[number])]
            server = start(f"worker-{number}", worker, *where, "--cores", "2", "--memory", "1g", url, node=number)
            server.wait("Successfully registered with master")
            return server

        with ThreadPoolExecutor(2) as side_by_side:
            servers += side_by_side.map(start_worker, (1, 2))
        yield Cluster(url, rest, servers, start_worker)


@contextmanager
def apart(folder: Path, driver: Path) -> Iterator[Nodes]:
    """Start a cluster whose workers share no folder, neither with each other nor with this process, which has another folder for temporary files."""
    with standalone(folder, hidden=driver) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(driver))
        patch.setattr("tempfile.tempdir", str(driver))
        yield Nodes(cluster, driver, (folder / "node-1", folder / "node-2"))


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


def _apart(folder: Path, node: int, hidden: Path) -> list[str]:
    """Return what starts a command with mounts of its own, where it does not see some folders."""
    (folder / f"node-{node}").mkdir(exist_ok=True)
    others = [hidden, *(folder / f"node-{other}" for other in (1, 2) if other != node)]
    mounts = " && ".join(f"mkdir -p {other} && mount -t tmpfs none {other}" for other in others)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]


def _start(folder: Path, name: str, command: Sequence[str], environment: dict[str, str], before: Sequence[str] = ()) -> Server:
    log = folder / f"{name.rpartition('/')[2].replace(':', '-')}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*before, SPARK_HOME / "bin" / command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            cwd=folder,
        )
    return Server(name, process, log)
