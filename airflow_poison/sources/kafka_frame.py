"""Ranges of a Kafka topic as a DataFrame that Spark's executors read.

Through Spark's own ``kafka`` format where its classes are, and the connection's settings have the same meaning to Kafka's Java client; else by a
Python data source on confluent-kafka, which the executors need then. Either way the rows are what ``kafka_records`` makes of records.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.kafka_topic import Topic, to_messages
from airflow_poison.sources.source import NO_BODY
from airflow_poison.values.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, InputPartition

    from airflow_poison.sources.kafka_topic import Ranges

_log = logging.getLogger(__name__)
FORMAT = "airflow_poison_kafka"
_COLUMNS = f"message_id string, group_id string, body binary, properties map<string, string>, `{NO_BODY}` boolean"
_MISSING = "Failed to find data source: kafka"
_JAVA = {name: name for name in ("bootstrap.servers", "client.id", "client.rack", "security.protocol", "ssl.endpoint.identification.algorithm")} | {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
}
"""How Kafka's Java client names settings of librdkafka that mean the same there."""
_VALUES: Mapping[str, Callable[[str], str]] = {
    "security.protocol": str.upper,
    "ssl.endpoint.identification.algorithm": lambda value: "" if value == "none" else value,
}
_OF_NO_RECORD = ("debug", "log", "socket.", "statistics.", "reconnect.", "topic.metadata.", "broker.address.")
"""Begin settings of librdkafka on which nothing depends that is read."""


def records_frame(spark: SparkSession, topic: Topic, ranges: Ranges) -> DataFrame:
    """Return the records of ranges of offsets as messages, each partition's in their order."""
    settings, unknown = java_settings(topic.other_settings())
    if unknown:
        _log.info("Kafka's setting %s is one of librdkafka alone: executors read topic %r with confluent-kafka.", unknown, topic.name)
    elif (frame := _spark_s_own(spark, topic, ranges, settings)) is not None:
        _log.info("Executors read topic %r through Spark's own kafka format.", topic.name)
        return frame
    else:
        _log.info("Spark has no classes of its kafka format (spark.jars.packages): executors read topic %r with confluent-kafka.", topic.name)
    for setting, value in topic.settings.items():
        if not isinstance(value, str | int | float):
            raise SourceError(
                f"Kafka's setting {setting!r} is {type(value).__name__}, which cannot go to Spark's executors. Take the topic without "
                "on_spark, or give text and numbers. Nothing was sent."
            )
    spark.dataSource.register(_python_source())
    said = {
        "topic": topic.name,
        "settings": dict(topic.settings),
        "committed": topic.committed,
        "patience": topic.patience,
        "ranges": {str(number): each for number, each in ranges.items()},
    }
    return spark.read.format(FORMAT).option("secret", json.dumps(said)).load()  # Spark hides options of this name in plans and logs


def java_settings(settings: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return settings of librdkafka as settings of Kafka's Java client, and the name of one that it does not have; empty where there is none."""
    left = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    made = _logins(left)
    for name, value in left.items():
        if name in _JAVA:
            made[_JAVA[name]] = _VALUES.get(name, str)(value)
        elif not name.startswith(_OF_NO_RECORD):
            return {}, name
    if made.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
        made["ssl.truststore.type"] = "PEM"
    return made, ""


def _logins(left: dict[str, str]) -> dict[str, str]:
    """Take user and password out of settings, where they are for a mechanism that both clients have."""
    mechanism = (left.get("sasl.mechanism") or left.get("sasl.mechanisms") or "").upper()
    if mechanism != "PLAIN" and not mechanism.startswith("SCRAM-"):
        return {}
    user, password, *_ = (left.pop(f"sasl.{name}", "") for name in ("username", "password", "mechanism", "mechanisms"))
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{kind}LoginModule"
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={_quoted(user)} password={_quoted(password)};",
    }


def _quoted(value: str) -> str:
    """Return a text as JAAS reads it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _spark_s_own(spark: SparkSession, topic: Topic, ranges: Ranges, settings: Mapping[str, str]) -> DataFrame | None:
    """Return the records by Spark's own format; None where its classes are not."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    name = topic.name
    options = {f"kafka.{setting}": value for setting, value in settings.items()} | {
        "assign": json.dumps({name: sorted(ranges)}),
        "startingOffsets": json.dumps({name: {str(number): first for number, (first, _) in ranges.items()}}),
        "endingOffsets": json.dumps({name: {str(number): end for number, (_, end) in ranges.items()}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(round(topic.patience * 1_000)),
        "kafka.isolation.level": "read_committed" if topic.committed else "read_uncommitted",
    }
    try:
        records = spark.read.format("kafka").options(**options).load()
        records.columns  # noqa: B018  (Spark Connect looks only now)
    except AnalysisException as error:
        if _MISSING in str(error):
            return None
        raise

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield to_messages(batch, name)

    columns = ("key", "value", "partition", "offset", f.unix_millis("timestamp").alias("timestamp"), "headers")
    return records.select(*columns).mapInArrow(read, schema=_COLUMNS)


@cache
def _python_source() -> type[DataSource]:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class KafkaRange(InputPartition):
        """A range of one partition."""

        def __init__(self, number: int, first: int, end: int) -> None:
            super().__init__((number, first, end))

    class KafkaReader(DataSourceReader):
        """Reads ranges, each in a task."""

        def __init__(self, said: dict[str, Any]) -> None:
            self._said = said

        def partitions(self) -> list[InputPartition]:
            return [KafkaRange(int(number), first, end) for number, (first, end) in self._said["ranges"].items()]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            number, first, end = partition.value
            topic = Topic(self._said["settings"], self._said["topic"], self._said["committed"], self._said["patience"])
            yield from topic.records({number: (first, end)}, {})

    class KafkaRecords(DataSource):
        """Records of a topic as messages."""

        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return _COLUMNS

        def reader(self, schema: object) -> DataSourceReader:
            del schema
            return KafkaReader(json.loads(self.options["secret"]))

    return KafkaRecords
