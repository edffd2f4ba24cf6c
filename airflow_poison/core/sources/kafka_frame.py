"""Ranges of a Kafka topic as a DataFrame that executors read, by a Python data source: Spark needs no jars for it."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_poison.core.sources.kafka_topic import Topic
from airflow_poison.core.sources.source import NO_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, InputPartition

    from airflow_poison.core.sources.kafka_topic import Ranges

FORMAT = "airflow_poison_kafka"
_COLUMNS = f"message_id string, group_id string, body binary, properties map<string, string>, `{NO_BODY}` boolean"


def records_frame(spark: SparkSession, topic: Topic, ranges: Ranges) -> DataFrame:
    """Return the records of ranges of offsets, with the columns that ``kafka_records.to_batch`` has."""
    spark.dataSource.register(_python_source())
    said = {
        "topic": topic.name,
        "settings": dict(topic.settings),
        "committed": topic.committed,
        "patience": topic.patience,
        "ranges": {str(number): each for number, each in ranges.items()},
    }
    return spark.read.format(FORMAT).option("secret", json.dumps(said)).load()  # Spark hides options of this name in plans and logs


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
