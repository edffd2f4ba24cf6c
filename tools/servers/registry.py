"""A schema registry on loopback that answers as Confluent's does: Apicurio Registry, in memory. Its classes come from Maven Central."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tools.servers.maven import unpacked
from tools.servers.spark import Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "2.6.13.Final"
LOOPBACK = "127.0.0.1"
READY = "Installed features"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Start a registry and stop it at the end; its address. Raises ServerError.

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
    server = Server("registry", process, log)
    try:
        server.wait(READY)
        yield f"http://{LOOPBACK}:{port}/apis/ccompat/v7"
    finally:
        server.stop()
