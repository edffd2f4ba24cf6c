"""Measure taking a Kafka topic beside a plain consumer of it: ``python -m benchmarks.kafka 1000000``. It starts a broker of its own.

``kafka_plain_per_s``: records that a confluent-kafka consumer reads whose values are looked at; ``kafka_source_per_s``: that the source makes
messages of; ``kafka_take_per_s``: that are in a queue with the position; ``kafka_spark_per_s``: the same, read through Spark's own ``kafka``
format by a local Spark that has been started. Ratios are of one run, in turns; each figure is the best of three.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.kafka import Kafka
from airflow_poison.sources.source import Position
from airflow_poison.values.clock import SystemClock
from tools.servers.kafka import running, spark_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

PARTITIONS, ROUNDS = 4, 3
CLOCK = SystemClock()


def kafka_figures(number: int) -> dict[str, float]:
    """Return all figures by name."""
    with tempfile.TemporaryDirectory() as folder:
        broker_folder = Path(folder, "broker")
        broker_folder.mkdir()
        with running(broker_folder) as broker:
            fill(broker.settings, number)
            ways: dict[str, Callable[[int], int]] = {
                "plain": lambda _round: plain(broker.settings, number),
                "source": lambda _round: source(broker.settings),
                "take": lambda turn: taken(broker.settings, f"{folder}/store-{turn}"),
                "spark": lambda turn: taken(broker.settings, f"{folder}/spark-{turn}", spark=a_spark),
            }
            best = dict.fromkeys(ways, 0.0)
            for turn in range(ROUNDS):
                for name, act in ways.items():
                    started = time.perf_counter()
                    got = act(turn)
                    assert got == number, f"{name}: {got} of {number}"
                    best[name] = max(best[name], number / (time.perf_counter() - started))
    figures = {f"kafka_{name}_per_s": round(rate) for name, rate in best.items()}
    return figures | {f"kafka_{name}_of_plain": best[name] / best["plain"] for name in ("source", "take", "spark")}


def fill(settings: Mapping[str, Any], number: int) -> None:
    """Make the topic ``orders`` with so many records of 200 bytes."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(dict(settings))
    admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result()
    producer = Producer({**settings, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for index in range(number):
        body = json.dumps({"id": index, "carrier": ("VX", "AA", "UA")[index % 3]}).ljust(200)
        producer.produce("orders", body, key=str(index % 1_000), partition=index % PARTITIONS)
        if index % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    producer.flush()


def plain(settings: Mapping[str, Any], number: int) -> int:
    """Read all with a consumer as people write it."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**settings, "group.id": "plain", "enable.auto.commit": False, "fetch.queue.backoff.ms": 20})
    consumer.assign([TopicPartition("orders", each, 0) for each in range(PARTITIONS)])
    got = size = 0
    while got < number:
        for record in consumer.consume(min(5_000, number - got), 0.2):
            got += 1
            size += len(record.value() or b"")
    consumer.close()
    return got


def source(settings: Mapping[str, Any]) -> int:
    """Make messages of all."""
    planned = Kafka("orders", settings).plan(Position(), limit=None)
    assert planned is not None
    return sum(batch.num_rows for batch in planned.batches())


def a_spark() -> SparkSession:
    """Return a local Spark with its own ``kafka`` format."""
    from airflow_poison.spark.session import get_session

    return get_session("local[2]", {"spark.jars": spark_classes(), "spark.driver.memory": "2g"})


def taken(settings: Mapping[str, Any], store: str, spark: Callable[[], SparkSession] | None = None) -> int:
    """Take all into a queue.

    :param spark: whose executors read; None: this process does.
    """
    from airflow_poison.passes.alter import declare
    from airflow_poison.passes.take import take
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.spark.send_stage import SendStage
    from airflow_poison.store import open_store

    table = declare(open_store(store), "orders", Msmq4(), CLOCK)
    read = None if spark is None else partial(SendStage.of_queue(table.folder, "all").records, spark=spark)
    return take(table, Kafka("orders", settings), key="all", clock=CLOCK, read=read).sent


if __name__ == "__main__":
    print(json.dumps({name: round(value, 3) for name, value in kafka_figures(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000).items()}))
