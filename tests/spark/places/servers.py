"""Real Spark servers: clusters whose machines are lost, and a Spark Connect server on top of a cluster."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from tools.servers.spark import APPLICATION, ENVIRONMENT, QUICK, Cluster, Server, free_ports, standalone, start_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


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
def apart(folder: Path, driver: Path) -> Iterator[Nodes]:
    """Start a cluster whose workers share no folder, neither with each other nor with this process, which has another folder for temporary files."""
    with standalone(folder, hidden=[driver]) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(driver))
        patch.setattr("tempfile.tempdir", str(driver))
        yield Nodes(cluster, driver, (folder / "node-1", folder / "node-2"))


@contextmanager
def connect_server(folder: Path, master: str, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start a Spark Connect server; its log ends with its port.

    :param more: further settings of it.
    """
    (port,) = free_ports(1)
    conf = {
        **APPLICATION,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        **(more or {}),
    }
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master, *settings, "spark-internal"]
    server = start_server(folder, f"sc://127.0.0.1:{port}", command, os.environ | ENVIRONMENT)
    try:
        server.wait("Spark Connect server started")
        yield server
    finally:
        server.stop()
