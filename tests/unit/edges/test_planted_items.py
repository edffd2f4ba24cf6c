"""Loops over what others wrote: one poisonous item among good ones is named, and the others are as without it; the shell shows no traceback."""

from __future__ import annotations

import os
import sqlite3
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, KafkaException
from deltalake import write_deltalake

from airflow_poison import Files, Jdbc
from airflow_poison.cli.main import COMMANDS
from airflow_poison.passes.send import send
from airflow_poison.passes.take import take
from airflow_poison.passes.to_kafka import send_to_kafka
from airflow_poison.sources.kafka_topic import Topic
from airflow_poison.values.schema import SubQueue
from tests.unit.edges.conftest import MOVE, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import TopicPartition

    from airflow_poison.passes.to_kafka import SendToKafkaResult
    from airflow_poison.sources.source import Source
    from airflow_poison.store.queue_table import QueueTable
    from tests.unit.edges.conftest import Shell

GOOD = b'{"n": 1}\n'


# Sources --------------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> Source:
    return Files(f"{folder}/**/*", format="json", settled=timedelta(0))


def _parquet(folder: Path) -> Source:
    for name in ("a", "c"):
        pq.write_table(pa.table({"n": [1]}), folder / f"{name}.parquet")
    return Files(f"{folder}/*.parquet", format="parquet", settled=timedelta(0))


def _rows(folder: Path) -> Source:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("create table t (id integer primary key, n decimal(9, 2))")
        database.executemany("insert into t (n) values (?)", [("1",), ("1e60",), ("1",)])
    database.close()
    return Jdbc(f"sqlite:///{folder}/shop.db", "t", "id", overlap=10)


def _partitions(folder: Path) -> Source:
    for name in ("a", "c"):
        _in_a_folder(folder, b"day=" + name.encode(), f"{name}.csv", b"n\n1\n")
    return Files(f"{folder}/**/*.csv", format="csv", settled=timedelta(0))


def _in_a_folder(above: Path, folder: bytes, name: str, content: bytes) -> None:
    there = above / os.fsdecode(folder)
    there.mkdir()
    (there / name).write_bytes(content)


SOURCES: dict[str, tuple[Callable[[Path], object], Callable[[Path], Source], int]] = {
    "a name that is no UTF-8": (lambda folder: (folder / os.fsdecode(b"b\xff.jsonl")).write_bytes(GOOD), _files, 2),
    "a folder that is no UTF-8": (lambda folder: _in_a_folder(folder, b"f\xff", "b.jsonl", GOOD), _files, 3),
    "a folder of a partition that is no UTF-8": (lambda folder: _in_a_folder(folder, b"day=\xff", "b.csv", b"n\n1\n"), _partitions, 3),
    "a name with a line end": (lambda folder: (folder / "b\n.jsonl").write_bytes(GOOD), _files, 3),
    "a circle of links": (lambda folder: (folder / "b").symlink_to(folder / "b"), _files, 2),
    "a link to nothing": (lambda folder: (folder / "b.jsonl").symlink_to(folder / "nothing"), _files, 2),
    "deep JSON": (lambda folder: (folder / "b.jsonl").write_bytes(b"[" * 100_000), _files, 2),
    "no text": (lambda folder: (folder / "b.jsonl").write_bytes(b"\xff\xfe\x00"), _files, 2),
    "an empty Parquet file": (lambda folder: (folder / "b.parquet").write_bytes(b""), _parquet, 2),  # iceberg 4051, spark-avro 168
    "a cut Parquet file": (lambda folder: (folder / "b.parquet").write_bytes(b"PAR1"), _parquet, 2),
    "a value that its column does not have": (lambda _folder: None, _rows, 2),
}


@pytest.mark.parametrize("planted", SOURCES)
def test_a_source_takes_what_is_beside_a_poisonous_item(planted: str, tmp_path: Path) -> None:
    plant, source, good = SOURCES[planted]
    for name in ("a.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(GOOD)
    plant(tmp_path)
    table, clock = a_queue()

    result = take(table, source(tmp_path), key="take", clock=clock)

    assert result.sent - result.malformed >= good
    assert result.malformed or result.passed_over or result.sent == 3


# The way back to Kafka ------------------------------------------------------------------------------------------------


class Broker(MagicMock):
    """A producer and a consumer of confluent-kafka, with the records of the transactions that were committed."""

    begun: list[Any]
    there: list[Any]
    said: str

    def connected(self, said_no: Callable[[bytes], Exception | None]) -> Broker:
        self.begun, self.there, self.said, self.said_no = [], [], "", said_no
        self.__len__.return_value = 0
        self.committed.side_effect = lambda *_args, **_more: [MagicMock(error=None, metadata=self.said)]
        return self

    def begin_transaction(self) -> None:
        self.begun = []

    def produce(self, _topic: str, value: bytes, key: bytes, headers: Any, on_delivery: Any) -> None:
        if (error := self.said_no(value)) is not None:
            raise error
        self.begun.append((key, value, dict(headers)))
        on_delivery(None, None)

    def send_offsets_to_transaction(self, places: list[TopicPartition], *_more: object) -> None:
        self.said = str(places[0].metadata)

    def commit_transaction(self, *_more: object) -> None:
        self.there += self.begun


TOO_LARGE = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "Broker: Message size too large"))


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "x"), OverflowError("x"), TOO_LARGE])
def test_a_record_that_cannot_be_made_or_sent_stops_no_other(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker().connected(lambda value: error if value == b"bad" else None)
    table, result = sent_back(broker, monkeypatch, ["a", "bad", "c"])

    assert [value for _, value, _ in broker.there] == [b"a", b"c"]
    assert (result.sent, result.returned) == (2, 1)
    [poison] = [table.read(file).to_pylist() for file in table.snapshot().files]
    assert [(row["body"], row["sub_queue"]) for row in poison] == [(b"bad", "poison")]
    assert "topic 't' refuses the record of about" in poison[0]["reason"]


def test_a_header_that_the_client_would_cut_stops_no_other_record(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker().connected(lambda _value: None)
    table, _ = sent_back(broker, monkeypatch, ["a", "bad", "c"], {"bad": {"a\0b": "x"}})

    assert [value for _, value, _ in broker.there] == [b"a", b"c"]
    [poison] = [table.read(file).to_pylist() for file in table.snapshot().files]
    assert "has a zero character" in poison[0]["reason"]


def sent_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, bodies: list[str], properties: dict[str, dict[str, str]] | None = None
) -> tuple[QueueTable, SendToKafkaResult]:
    for kind in ("Producer", "Consumer"):
        monkeypatch.setattr(confluent_kafka, kind, lambda *_args, **_more: broker)
    monkeypatch.setattr(Topic, "identity", lambda _topic: ("id", [0]))
    monkeypatch.setattr(Topic, "largest", lambda _topic: None)
    topic = Topic({"bootstrap.servers": "127.0.0.1:1"}, "t", committed=True, patience=0.01)
    table, clock = a_queue()
    cells = [list((properties or {}).get(each, {}).items()) for each in bodies]
    batch = pa.record_batch({"body": bodies, "properties": pa.array(cells, pa.map_(pa.string(), pa.string()))})
    send(table, [batch], key="send", clock=clock)
    kafka: Any = SimpleNamespace(kafka=topic)
    return table, send_to_kafka(table, range(1, len(bodies) + 1), kafka, clock, places=tuple(SubQueue))


# Stores and the shell -------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(shell: Shell) -> Shell:
    """Give a store with a queue of odd messages, and beside it a table that is no queue, a damaged queue, and a file."""
    for queue in ("good", "broken"):
        assert shell("send", queue, '{"n": 1}', "n/a", '{"t": "\\ud800"}', "[" * 2_000, *MOVE).code == 0
    shell.fail("good")
    write_deltalake(shell.folder / "queues" / "alien", pa.table({"n": [1]}))
    log = max((shell.folder / "queues" / "broken" / "_delta_log").glob("*.json"))
    log.write_bytes(b'{"add": 5}\n\xff')
    (shell.folder / "queues" / "file").write_bytes(b"\x00")
    return shell


MORE = {
    "move": ["1"],
    "send": ["x"],
    "receive": ["--handler", "edge_handlers:bad", "--engine", "local"],
    "query": ["select 1"],
    "remove": ["1", "--yes"],
    "inspect": ["--lookup-id", "1"],
}


@pytest.mark.parametrize("queue", ["broken", "alien", "file", "good"])
def test_no_command_ends_with_a_traceback(queue: str, planted: Shell) -> None:
    for command in COMMANDS:
        ran = planted(command.name, queue, *MORE.get(command.name, []))  # raises what is no error of the user
        assert "Traceback" not in ran.out + ran.err, command.name


def test_a_list_has_each_queue_beside_those_that_cannot_be_read(planted: Shell) -> None:
    ran = planted("list")

    assert "good" in ran.out
    assert "broken" in ran.out + ran.err
