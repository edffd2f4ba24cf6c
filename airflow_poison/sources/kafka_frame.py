"""Ranges of a Kafka topic as a DataFrame that Spark's executors read, through Spark's own ``kafka`` format.

The settings of librdkafka become settings of Kafka's Java client. The rows are what the task makes of records that it reads itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.kafka_topic import to_messages
from airflow_poison.sources.source import NO_BODY
from airflow_poison.values.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.sources.kafka_topic import Ranges, Topic

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
    """Return the records of ranges of offsets as messages, each partition's in their order.

    Raises SourceError for a setting that Kafka's Java client does not have, and where Spark has no classes of its ``kafka`` format.
    """
    name = topic.name
    settings, unknown = java_settings(topic.other_settings())
    if unknown:
        raise SourceError(
            f"Kafka's setting {unknown} is one of librdkafka alone, and Spark's executors read topic {name!r} with Kafka's Java client. Leave the "
            "setting out, or take the topic without on_spark: then the task reads it. Nothing was sent."
        )
    from pyspark import __version__ as version
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

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
        if _MISSING not in str(error):
            raise
        raise SourceError(
            f"Spark has no classes of its kafka format, by which executors read topic {name!r}. Add "
            f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{version} to the settings of the Spark connection, or take the topic "
            "without on_spark: then the task reads it. Nothing was sent."
        ) from error

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield to_messages(batch, name)

    columns = ("key", "value", "partition", "offset", f.unix_millis("timestamp").alias("timestamp"), "headers")
    return records.select(*columns).mapInArrow(read, schema=_COLUMNS)


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
