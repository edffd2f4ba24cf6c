"""A real Spark cluster from the pip package, on loopback: a standalone master with two workers, which may share no folder."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+PerfDisableSharedMem"
"""Servers that live for a minute: what makes long ones fast costs more here than it gains."""
START_SECONDS = 180.0
"""A time-out for a machine that does much else."""
END_SECONDS = 20.0
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


class ServerError(Exception):
    """A server cannot be started; the text says why and what to do."""


@dataclass(frozen=True)
class Server:
    """A server's process.

    :param log: what it has printed.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, *words: str) -> None:
        """Wait until its log has these words. Raises ServerError."""
        until = time.monotonic() + START_SECONDS
        while not all(word in self.log.read_text(errors="replace") for word in words):
            if self.process.poll() is not None:
                raise ServerError(f"{self.name} has ended. Its log, {self.log}, ends with:\n{self._end()}")
            if time.monotonic() > until:
                raise ServerError(f"{self.name} is not there after {START_SECONDS:.0f} s. Its log, {self.log}, ends with:\n{self._end()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, by its own process id."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
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


@contextmanager
def standalone(folder: Path, hidden: Sequence[Path] = (), *, environment: Mapping[str, str] | None = None, memory: str = "1g") -> Iterator[Cluster]:
    """Start a master and two workers with two cores each; stop them at the end. Raises ServerError.

    :param hidden: folders that the workers do not see; then each also has a folder for temporary files (``node-1``, ``node-2``) that the other one
        does not see, as if they were different machines.
    :param environment: of all processes; None: that of this one.
    :param memory: of a worker, for all its executors.
    """
    port, rest, *ports = free_ports(5)
    options = f"{QUICK} -Dspark.master.rest.enabled=true -Dspark.master.rest.host=127.0.0.1 -Dspark.master.rest.port={rest}"
    settings = {**(environment or os.environ), **ENVIRONMENT, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options}
    master, worker = (f"org.apache.spark.deploy.{name}" for name in ("master.Master", "worker.Worker"))
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str, node: int = 0) -> Server:
            before, own = _apart(folder, node, hidden) if node and hidden else ([], {})
            server = start_server(folder, name, ["spark-class", *arguments], {**settings, **own}, before)
            stack.callback(server.stop)
            return server

        servers = [start("master", master, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ports[0]))]
        servers[0].wait("I have been elected leader")

        def start_worker(number: int) -> Server:
            work = folder / (f"node-{number}/work" if hidden else f"work-{number}")
            where = ["--host", "127.0.0.1", "--work-dir", str(work), "--webui-port", str(ports[number])]
            server = start(f"worker-{number}", worker, *where, "--cores", "2", "--memory", memory, url, node=number)
            server.wait("Successfully registered with master")
            return server

        with ThreadPoolExecutor(2) as side_by_side:
            servers += side_by_side.map(start_worker, (1, 2))
        yield Cluster(url, rest, servers, start_worker)


def check_mounts() -> None:
    """Raise ServerError where no process can be given mounts of its own: then two workers of one machine would share its folders."""
    if shutil.which("unshare") is None:
        why = "there is no program unshare (Linux has it, in the package util-linux)"
    else:
        tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return
        why = f"{shlex.join(_UNSHARE)} fails: {tried.stderr.strip() or f'exit code {tried.returncode}'}"
    raise ServerError(
        f"Workers that share no folder need mounts of their own on this machine, and {why}. "
        "Run it as root on Linux; in a container, one that may mount (docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined)."
    )


_UNSHARE = ["unshare", "--mount"]


def _apart(folder: Path, node: int, hidden: Sequence[Path]) -> tuple[list[str], dict[str, str]]:
    """Return what starts a command with mounts of its own, where it does not see some folders, and its environment there."""
    own = folder / f"node-{node}"
    own.mkdir(exist_ok=True)
    others = [shlex.quote(str(path)) for path in (*hidden, *(folder / f"node-{other}" for other in (1, 2) if other != node))]
    mounts = " && ".join(f"mkdir -p {other} && mount -t tmpfs none {other}" for other in others)
    script = f'{mounts} && cd {shlex.quote(str(own))} && exec "$@"'
    return [*_UNSHARE, "sh", "-c", script, "sh"], {"TMPDIR": str(own), "SPARK_LOCAL_DIRS": str(own / "spark")}


def free_ports(number: int) -> list[int]:
    """Return ports of loopback that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def start_server(folder: Path, name: str, command: Sequence[str], environment: Mapping[str, str], before: Sequence[str] = ()) -> Server:
    """Start a program of Spark in a session of its own: Ctrl-C reaches its starter alone, which then stops it.

    :param folder: its working directory, where its log is.
    :param before: what starts the command.
    """
    log = folder / f"{name.rpartition('/')[2].replace(':', '-')}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*before, SPARK_HOME / "bin" / command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    return Server(name, process, log)
