"""What the demo takes: orders as records, the sources that have them, and the transformation that they go through.

Processes of the demo import this module: the command line finds the sources and the transformation here by their names.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison import DeltaChanges, Files, JsonSchema, Kafka
from tools.servers.kafka import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame

SERVERS, LANDING, LAKE = "DEMO_SOURCES_SERVERS", "DEMO_SOURCES_LANDING", "DEMO_SOURCES_LAKE"
"""The variables by which processes are told where the topic, the files and the Delta table are."""
COLUMNS = "id bigint, currency string, cents bigint"
OUTPUT = "message bigint, id bigint, currency string, cents bigint"
CURRENCIES = ("EUR", "USD", "GBP")
PARTITIONS, TRANSACTION, ABORTED = 4, 10_000, 500
FILES = 20
APPENDS, PACE = 20, 1.5
"""Versions that add orders to the Delta table, and seconds between two of them."""

_TYPES = {"currency": {"type": "string"}, "cents": {"type": "integer"}}
_SCHEMA = JsonSchema(schema={"type": "object", "required": ["id", "currency", "cents"], "properties": _TYPES})
TOPIC = Kafka("orders", {"bootstrap.servers": os.environ.get(SERVERS, "127.0.0.1:9092")}, schema=_SCHEMA)
FOLDER = Files(f"{os.environ.get(LANDING, '/landing')}/*.json", settled=timedelta(0), schema=_SCHEMA)
TABLE = DeltaChanges(os.environ.get(LAKE, "/lake/orders"), skip_change_commits=True, schema=_SCHEMA)


@dataclass(frozen=True, slots=True)
class Feed:
    """Where orders come from.

    :param queue: that they are taken into.
    :param source: ``module:NAME``.
    :param share: of the records of the whole demo, one in so many.
    :param filled: puts a number of orders into the source and has it there while the block runs.
    """

    queue: str
    title: str
    source: str
    share: int
    filled: Callable[[Path, int], AbstractContextManager[Filling]]


@dataclass(frozen=True, slots=True)
class Filling:
    """A source that is there.

    :param environment: of who takes it.
    :param is_whole: whether all orders are in it; one that grows has them later.
    """

    environment: Mapping[str, str]
    is_whole: Callable[[], bool] = lambda: True


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
def a_topic(folder: Path, records: int) -> Iterator[Filling]:
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
        yield Filling({SERVERS: broker.settings["bootstrap.servers"]})


def _write(producer: Any, numbers: range) -> None:
    producer.begin_transaction()
    for number in numbers:
        producer.produce(TOPIC.topic, order(number), key=str(number % 1_000), partition=number % PARTITIONS)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(60)


@contextmanager
def a_folder(folder: Path, records: int) -> Iterator[Filling]:
    """Have a folder with files of orders, a line each."""
    for number in range(FILES):
        lines = (f"{order(each)}\n" for each in range(number, records, FILES))
        (folder / f"orders-{number:02}.json").write_text("".join(lines))
    yield Filling({LANDING: str(folder)})


@contextmanager
def a_table(folder: Path, records: int) -> Iterator[Filling]:
    """Have a Delta table of orders. Half of them are there; the others come while it is taken. In between rows are changed and files joined."""
    uri, ended = str(folder), threading.Event()
    _append(uri, range(0, records, APPENDS))
    for number in range(1, APPENDS // 2):
        _grow(uri, number, records)

    def grow() -> None:
        for number in range(APPENDS // 2, APPENDS):
            if ended.wait(PACE):
                return
            _grow(uri, number, records)

    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(grow)
        try:
            yield Filling({LAKE: uri}, growing.done)
        finally:
            ended.set()
        growing.result()


def _append(uri: str, numbers: Iterable[int]) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    rows = [
        {
            "id": number,
            "currency": None if is_malformed(number) else "XXX" if is_poison(number) else CURRENCIES[number % 3],
            "cents": cents(number),
            "state": "new",
        }
        for number in numbers
    ]
    columns: dict[str, pa.DataType] = {"id": pa.int64(), "currency": pa.string(), "cents": pa.int64(), "state": pa.string()}
    write_deltalake(uri, pa.Table.from_pylist(rows, schema=pa.schema(columns)), mode="append")


def _grow(uri: str, number: int, records: int) -> None:
    """Add orders; now and then, change earlier ones, or join files."""
    from deltalake import DeltaTable

    _append(uri, range(number, records, APPENDS))
    table = DeltaTable(uri)
    if number % 4 == 1:
        table.update(updates={"state": "'paid'"}, predicate=f"id % {APPENDS} < {number} and state = 'new'")
    elif number % 4 == 3:  # noqa: PLR2004
        table.optimize.compact()


FEEDS = (
    Feed("orders", "a Kafka topic", f"{__name__}:TOPIC", 1, a_topic),
    Feed("papers", "a folder of files", f"{__name__}:FOLDER", 10, a_folder),
    Feed("books", "a Delta table that grows and is changed", f"{__name__}:TABLE", 10, a_table),
)


def land(orders: DataFrame) -> DataFrame:
    """Return orders as they land; one in a currency that is not known is poison."""
    from pyspark.sql import functions as f

    unknown = f.when(~f.col("currency").isin(*CURRENCIES), f.concat(f.lit("no rate for "), "currency"))
    return orders.select("lookup_id", f.col("lookup_id").alias("message"), "id", "currency", "cents", unknown.alias("_poison"))
