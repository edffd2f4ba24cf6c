"""A Kafka topic in place: Spark's own format reads the offsets of the plan; records that fail are messages as a take makes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable

from airflow_poison import JsonSchema, Kafka, Msmq4, Store
from airflow_poison.values.errors import SourceError
from airflow_poison.values.fault_points import install
from tests.given.drivers import SMALL, own_jvm
from tests.live.topic import Topic
from tests.spark.test_in_place_kills import kill_again_and_again
from tools.servers.kafka import spark_classes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Queue
    from tools.servers.kafka import Broker

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
SCHEMA = "id int, amount string"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with own_jvm("local[2]", {**SMALL, "spark.jars": spark_classes()}) as session:
        yield session


def cast(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount")


class Job:
    def __init__(self, folder: Path, spark: SparkSession, topic: Topic, **source: Any) -> None:
        self.folder, self.spark, self.lines = folder, spark, list[str]()
        self.source = Kafka(topic.name, connection=dict(topic.broker.settings), **source)

    def queue(self, name: str = "q") -> Queue:
        return Store(str(self.folder / "store")).declare(name, POLICY)

    def received(self, name: str = "q", *, sent: bool = False, key: str = "k") -> tuple[list[str], list[str]]:
        """Return the rows that have landed, and the messages that are left."""
        queue, out = self.queue(name), str(self.folder / f"out-{name}")
        if sent:
            queue.take(self.source, key=key)
        given: dict[str, Any] = {"transform": cast, "schema": SCHEMA, "output": out, "source": None if sent else self.source}
        queue.receive(None, POLICY, key=key, spark=self.spark, progress=self.lines.append, **given)
        assert not queue.check().findings
        rows = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
        names = ("sub_queue", "body", "group_id", "message_id")
        kept = [[*(str(row[each]) for each in names), str(sorted(row["properties"])), row["last_error"]["type"]] for row in rows]
        landed = DeltaTable(out).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(out) else []
        return sorted(map(str, landed)), sorted(map(str, kept))


def record(number: int, amount: object) -> str:
    return json.dumps({"id": number, "amount": amount})


@pytest.mark.parametrize("schema", [None, JsonSchema({"required": ["amount"]})], ids=["", "schema"])
def test_records_in_place_are_what_a_take_makes_of_them(broker: Broker, tmp_path: Path, spark: SparkSession, schema: JsonSchema | None) -> None:
    topic = Topic(broker)
    headers = [("h", b"1"), ("h", b"\xff"), ("none", None)]
    topic.produce(*(record(number, str(number)) for number in range(20)), key=b"k", headers=headers)
    topic.transaction([record(30, "30"), record(31, "bad")], commit=True)
    topic.transaction([record(40, "40")], commit=False)
    topic.produce(None, "no", record(50, "bad"), record(51, 51), '{"id": 52}', b"\xff", partition=1, key=b"\xff", headers=headers)
    job = Job(tmp_path, spark, topic, schema=schema)

    sent = job.received("sent", sent=True)
    job.lines.clear()
    placed = job.received("placed")

    assert not any("becomes messages" in line or ": all of them," in line for line in job.lines), job.lines
    assert placed == sent
    assert (len(placed[0]), len(placed[1])) == ((22, 6) if schema is None else (21, 7))
    topic.produce(record(60, "60"))
    assert len(job.received("placed", key="two")[0]) == len(placed[0]) + 1


def test_records_that_expire_are_an_error_that_names_them_and_nothing_lands(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker, partitions=1)
    topic.produce(*(record(number, str(number)) for number in range(10)))
    job = Job(tmp_path, spark, topic)
    job.received()
    topic.produce(*(record(number, str(number)) for number in range(10, 20)))

    def expired(point: str) -> None:
        if point == "pass.in_place.before_job":
            topic.admin.delete_records([TopicPartition(topic.name, 0, 15)])[TopicPartition(topic.name, 0)].result()

    install(expired)
    try:
        with pytest.raises(SourceError, match="expired while they were read"):
            job.received(key="two")
    finally:
        install(None)
    assert len(DeltaTable(str(tmp_path / "out-q")).to_pyarrow_table()) == 10

    with pytest.raises(SourceError, match="0:10-15"):
        job.received(key="two")
    assert len(DeltaTable(str(tmp_path / "out-q")).to_pyarrow_table()) == 10


DRIVER = """
import json, sys
from airflow_poison import Kafka, Store
from airflow_poison.spark.session import get_session
from tests.given.drivers import SMALL, own_jvm
from tests.live.test_kafka_in_place import POLICY, SCHEMA, cast
from tools.servers.kafka import spark_classes

store, topic, settings, out = sys.argv[1:]
source = Kafka(topic, connection=json.loads(settings))
spark = get_session("local[1]", {**SMALL, "spark.jars": spark_classes()})
Store(store).queue("q").receive(None, POLICY, key="k", spark=spark, transform=cast, schema=SCHEMA, output=out, source=source)
"""


@pytest.mark.parametrize("point", ["pass.in_place.before_commit", "pass.in_place.after_commit"])
def test_a_run_that_is_killed_is_done_again_and_each_record_is_there_once(broker: Broker, tmp_path: Path, spark: SparkSession, point: str) -> None:
    topic = Topic(broker)
    topic.produce(*(record(number, "bad" if number == 7 else str(number)) for number in range(10)))
    job = Job(tmp_path, spark, topic)
    job.queue()
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path / "store"), topic.name, json.dumps(dict(broker.settings))]
    environment = {**os.environ, "AIRFLOW_POISON_FAULT": f"{point}:kill"}
    ended = subprocess.run([*command, str(tmp_path / "out-q")], check=False, capture_output=True, text=True, env=environment)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2_000:]
    topic.produce(record(11, "11"))

    landed, messages = job.received()
    landed, messages = job.received(key="later")

    assert (len(landed), len({*landed}), len(messages)) == (10, 10, 1)


@pytest.mark.campaign
@pytest.mark.timeout(7_200)
def test_records_are_there_once_whenever_the_process_is_killed(broker: Broker, tmp_path: Path, spark: SparkSession) -> None:
    topic = Topic(broker)
    (tmp_path / "topic.json").write_text(json.dumps({"name": topic.name, "settings": dict(broker.settings)}))
    kill_again_and_again("kafka", tmp_path, spark)
