"""A Kafka broker on loopback: one node that is its own controller. Its classes come from Maven Central, once."""

from __future__ import annotations

import base64
import subprocess
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.servers.maven import fetched
from tools.servers.spark import Server, ServerError, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

VERSION = "4.1.0"
LOOPBACK = "127.0.0.1"
CACHE = f"kafka-{VERSION}"
USER, PASSWORD = "reader", "reader-secret"
"""Of the second listener: somebody who may do nothing."""
READY = "Kafka Server started"
_QUIET: Mapping[str, Any] = {"log_level": 0}
"""Of clients that outlive the broker, and would say so."""
SPARK = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.1")
"""Spark's own ``kafka`` format."""
_ARTIFACTS = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"))


def spark_classes() -> str:
    """Return the classes of Spark's own ``kafka`` format as ``spark.jars`` lists them: what Spark has itself is left out. Raises ServerError."""
    folder = fetched(f"spark-kafka-{SPARK[2]}", SPARK)
    return ",".join(str(jar) for name in ("spark-sql-kafka-*", "spark-token-*", "kafka-clients-*", "commons-pool2-*") for jar in folder.glob(name))


@dataclass(frozen=True)
class Broker:
    """A running broker.

    :param settings: of clients that may do anything. :param stranger: of clients that may do nothing.
    """

    settings: Mapping[str, Any]
    stranger: Mapping[str, Any]
    process: subprocess.Popen[bytes]


@contextmanager
def running(folder: Path, **more: str) -> Iterator[Broker]:
    """Start a broker and stop it at the end. Raises ServerError.

    :param folder: its data and its log; empty.
    :param more: further settings of it, with ``_`` for ``.``.
    """
    jars = classes()
    plain, secured, controller = free_ports(3)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "listeners": f"PLAIN://{LOOPBACK}:{plain},SECURED://{LOOPBACK}:{secured},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAIN://{LOOPBACK}:{plain},SECURED://{LOOPBACK}:{secured}",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,SECURED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
        "log.dirs": str(folder / "data"),
        "log.retention.ms": "-1",
        "auto.create.topics.enable": "true",  # a client that asks for a topic that is not there must not make it
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.backoff.ms": "200",
        "log.initial.task.delay.ms": "200",
        "log.retention.check.interval.ms": "500",
        "log.segment.delete.delay.ms": "100",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    _java(jars, folder, "kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id()}", "-c", str(properties))
    log = folder / "broker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*_command(jars), "kafka.Kafka", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    server = Server("kafka", process, log)
    try:
        server.wait(READY)
        secure = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        where = f"{LOOPBACK}:{plain}"
        yield Broker({"bootstrap.servers": where, **_QUIET}, {"bootstrap.servers": f"{LOOPBACK}:{secured}", **_QUIET, **secure}, process)
    finally:
        server.stop()


def classes() -> Path:
    """Return the folder of the broker's classes, fetched where they are not here yet. Raises ServerError."""
    return fetched(CACHE, *_ARTIFACTS, beside={"log4j2.properties": _LOGGING})


_LOGGING = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""


def _java(jars: Path, folder: Path, *arguments: str) -> None:
    done = subprocess.run([*_command(jars), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"{arguments[0]} has failed:\n{(done.stdout + done.stderr)[-2_000:]}")


def _command(jars: Path) -> list[str]:
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, f"-Dlog4j2.configurationFile={jars / 'log4j2.properties'}", "-cp", f"{jars}/*"]


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
