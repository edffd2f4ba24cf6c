"""A schema registry on loopback that answers as Confluent's does: Apicurio Registry, in memory. Its classes come from Maven Central."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

from tools.servers.maven import unpacked
from tools.servers.spark import START_SECONDS, Server, ServerError, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "2.6.13.Final"
LOOPBACK = "127.0.0.1"


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, Server]]:
    """Start a registry and stop it at the end; its address, and the server. Raises ServerError.

    :param folder: its log.
    """
    classes = unpacked(f"apicurio-{VERSION}", f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all")
    (port,) = free_ports(1)
    environment = {**os.environ, "QUARKUS_HTTP_HOST": LOOPBACK, "QUARKUS_HTTP_PORT": str(port)}
    jar = classes / f"apicurio-registry-app-{VERSION}-runner.jar"
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(jar)]
    log = folder / "registry.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    server, address = Server("registry", process, log), f"http://{LOOPBACK}:{port}/apis/ccompat/v7"
    try:
        _wait(server, f"{address}/subjects")
        yield address, server
    finally:
        server.stop()


def _wait(server: Server, address: str) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            if server.process.poll() is not None or time.monotonic() > until:
                raise ServerError(f"{server.name} is not there. Its log, {server.log}, says:\n{server.log.read_text()[-2_000:]}") from None
            time.sleep(0.2)
