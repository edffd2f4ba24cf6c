"""A YARN cluster on loopback, of Hadoop's own classes: a resource manager and two node managers in one JVM. Its classes come from Maven Central."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tools.servers.spark import QUICK, SPARK_HOME, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUNCY_CASTLE, JAXB = "1.78.1", "2.3.1"
"""What MiniYARNCluster needs beside the classes that it brings along."""
READY = "YARN is there"
CONF = {
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",  # else each application uploads 400 MB
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Of a small application, on loopback."""
ENVIRONMENT = "environment"
"""The name under which containers find the packed environment."""


@contextmanager
def yarn(folder: Path) -> Iterator[Path]:
    """Start a YARN cluster; yield the folder of its settings (``HADOOP_CONF_DIR``), and stop it at the end. Skips where there is no Maven."""
    jars, log = _jars(folder), folder / "yarn.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(jars)], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    server = Server("yarn", process, log)
    try:
        server.wait(READY)
        yield folder / "conf"
    finally:
        server.stop()


def web_address(conf: Path) -> str:
    """Return where the resource manager answers HTTP."""
    found = ET.parse(conf / "yarn-site.xml").findall("property")
    return next(f"http://{each.findtext('value')}" for each in found if each.findtext("name") == "yarn.resourcemanager.webapp.address")


def packed(folder: Path) -> Path:
    """Return an archive with a Python environment in ``bin/python``, as ``venv-pack`` and ``conda-pack`` make one; this one points at our own."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexport PACKED="$0"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(python, "bin/python")
    return archive


def _jars(folder: Path) -> Path:
    """Fetch what pip's Spark has not of Hadoop; return the folder."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("there is no Maven here, which fetches Hadoop's resource manager")
    [client] = (SPARK_HOME / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    wanted = (
        ("org.apache.hadoop", "hadoop-client-minicluster", hadoop),
        ("org.bouncycastle", "bcpkix-jdk18on", BOUNCY_CASTLE),
        ("javax.xml.bind", "jaxb-api", JAXB),
    )
    needs = "".join(f"<dependency>{_named(*each)}</dependency>" for each in wanted)
    project = f"<modelVersion>4.0.0</modelVersion>{_named('tests', 'yarn', '1')}<dependencies>{needs}</dependencies>"
    (folder / "pom.xml").write_text(f'<project xmlns="http://maven.apache.org/POM/4.0.0">{project}</project>')
    jars = folder / "jars"
    subprocess.run([maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], cwd=folder, check=True)
    for beside in jars.glob("hadoop-client-[ar]*.jar"):
        beside.unlink()  # Spark's own
    return jars


def _named(group: str, artifact: str, version: str) -> str:
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"


def main(folder: str, jars: str) -> None:
    """Run the cluster until this process ends; write its settings when it is there."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    os.chdir(folder)  # where the nodes work
    [py4j] = (SPARK_HOME / "jars").glob("py4j-*.jar")
    port = launch_gateway(
        classpath=f"{jars}/*:{SPARK_HOME}/jars/*",
        jarpath=str(py4j),
        javaopts=["-Xmx512m", *QUICK.split(), "--add-opens=java.base/java.lang=ALL-UNNAMED"],
        die_on_exit=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
    )
    jvm: Any = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True)).jvm
    conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    settings = {
        "fs.defaultFS": f"file://{folder}",
        "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.delete.debug-delay-sec": "600",
        "yarn.nodemanager.env-whitelist": "JAVA_HOME",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    }
    for name, value in settings.items():
        conf.set(name, value)
    nodes = 2
    cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", nodes, 1, 1)
    cluster.init(conf)
    cluster.start()
    cluster.waitForNodeManagersToConnect(30_000)
    Path(folder, "conf").mkdir()
    for name in ("yarn-site.xml", "core-site.xml"):
        file = jvm.java.io.FileOutputStream(str(Path(folder, "conf", name)))
        cluster.getConfig().writeXml(file)
        file.close()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
