"""What the demo takes: orders as records, the sources that have them, and the transformation that they go through.

Processes of the demo import this module: the command line finds the sources and the transformation here by their names.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison import Files, JsonSchema, Kafka
from tools.servers.kafka import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame

SERVERS, LANDING = "DEMO_SOURCES_SERVERS", "DEMO_SOURCES_LANDING"
"""The variables by which processes are told where the topic and the files are."""
COLUMNS = "id bigint, currency string, cents bigint"
OUTPUT = "message bigint, id bigint, currency string, cents bigint"
CURRENCIES = ("EUR", "USD", "GBP")
PARTITIONS, TRANSACTION, ABORTED = 4, 10_000, 500
FILES = 20

_SCHEMA = JsonSchema(schema={"type": "object", "required": ["id", "currency", "cents"], "properties": {"cents": {"type": "integer"}}})
TOPIC = Kafka("orders", {"bootstrap.servers": os.environ.get(SERVERS, "127.0.0.1:9092")}, schema=_SCHEMA)
FOLDER = Files(f"{os.environ.get(LANDING, '/landing')}/*.json", settled=timedelta(0), schema=_SCHEMA)


@dataclass(frozen=True, slots=True)
class Feed:
    """Where orders come from.

    :param queue: that they are taken into.
    :param source: ``module:NAME``.
    :param share: of the records of the whole demo, one in so many.
    :param filled: fills the source with a number of orders and has it there while the block runs; gives the environment of who takes it.
    """

    queue: str
    title: str
    source: str
    share: int
    filled: Callable[[Path, int], AbstractContextManager[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of orders, and what they cost together."""

    number: int = 0
    cents: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.number + other.number, self.cents + other.cents)


def cents(number: int) -> int:
    """Return what an order costs."""
    return number * 7_919 % 100_000


def is_malformed(number: int) -> bool:
    """Return whether an order is not what the schema says."""
    return number % 250 in {17, 117}


def is_poison(number: int) -> bool:
    """Return whether the transformation refuses an order: its currency is not known."""
    return number % 400 == 3  # noqa: PLR2004


def order(number: int) -> str:
    """Return an order as it arrives."""
    body = json.dumps({"id": number, "currency": "XXX" if is_poison(number) else CURRENCIES[number % 3], "cents": cents(number)})
    if not is_malformed(number):
        return body
    return body.rstrip("}") if number % 2 else body.replace(str(cents(number)) + "}", f'"{cents(number)}"}}')


def produced(records: int) -> dict[str, Sum]:
    """Return what has to be where in the end."""
    found = {"landed": Sum(), "poison": Sum(), "malformed": Sum()}
    for number in range(records):
        where = "malformed" if is_malformed(number) else "poison" if is_poison(number) else "landed"
        found[where] += Sum(1, cents(number))
    return found


@contextmanager
def a_topic(folder: Path, records: int) -> Iterator[Mapping[str, str]]:
    """Have a broker with a topic of orders, written in transactions; some are aborted, and what they have written must never come."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    with running(folder) as broker:
        admin = AdminClient(dict(broker.settings))
        admin.create_topics([NewTopic(TOPIC.topic, PARTITIONS)])[TOPIC.topic].result()
        producer = Producer({**broker.settings, "transactional.id": "demo", "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        producer.init_transactions(30)
        for first in range(0, records, TRANSACTION):
            _write(producer, range(first, min(first + TRANSACTION, records)))
            producer.commit_transaction(60)
            _write(producer, range(ABORTED))
            producer.abort_transaction(60)
        yield {SERVERS: broker.settings["bootstrap.servers"]}


def _write(producer: Any, numbers: range) -> None:
    producer.begin_transaction()
    for number in numbers:
        producer.produce(TOPIC.topic, order(number), key=str(number % 1_000), partition=number % PARTITIONS)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(60)


@contextmanager
def a_folder(folder: Path, records: int) -> Iterator[Mapping[str, str]]:
    """Have a folder with files of orders, a line each."""
    for number in range(FILES):
        lines = (f"{order(each)}\n" for each in range(number, records, FILES))
        (folder / f"orders-{number:02}.json").write_text("".join(lines))
    yield {LANDING: str(folder)}


FEEDS = (
    Feed("orders", "a Kafka topic", f"{__name__}:TOPIC", 1, a_topic),
    Feed("papers", "a folder of files", f"{__name__}:FOLDER", 10, a_folder),
)


def land(orders: DataFrame) -> DataFrame:
    """Return orders as they land; one in a currency that is not known is poison."""
    from pyspark.sql import functions as f

    unknown = f.when(~f.col("currency").isin(*CURRENCIES), f.concat(f.lit("no rate for "), "currency"))
    return orders.select("lookup_id", f.col("lookup_id").alias("message"), "id", "currency", "cents", unknown.alias("_poison"))
