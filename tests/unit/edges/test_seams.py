"""Seams of libraries: whatever values, settings and files make them raise comes out as an error of this package."""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

import confluent_kafka.admin
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec
from deltalake import write_deltalake
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison import DeltaChanges, Jdbc, Kafka
from airflow_poison.desk.queries import find
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.alter import declare
from airflow_poison.passes.move import move
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.passes.take import positions, take
from airflow_poison.passes.to_kafka import send_to_kafka
from airflow_poison.sources.kafka_topic import Topic
from airflow_poison.sources.protobuf import Protobuf
from airflow_poison.sources.readers import Layout, records
from airflow_poison.sources.schemas import Avro, JsonSchema
from airflow_poison.store import open_store
from airflow_poison.store.objects import Objects
from airflow_poison.values import json_text
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import PoisonError
from airflow_poison.values.message import Message
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.unit.edges.conftest import POLICY, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

quick = settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
slow = settings(quick, max_examples=examples(12))
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "pattern",
        "required",
        "multipleOf",
        "minimum",
        "enum",
        "$ref",
        "$schema",
        "format",
        "maxLength",
        "allOf",
        "not",
        "$id",
    ]
)
SCHEMAS = st.dictionaries(WORDS, JSON | st.sampled_from(["string", "#", "(", "https://json-schema.org/draft/2020-12/schema"]), max_size=3)
BODIES = st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
DEEP = b"[" * 100_000


@quick
@given(BODIES)
@example(DEEP)
@example(b'"\\ud800"')
@example(b"1e999999999")
@example(b"1" * 5_000)
def test_json(body: bytes) -> None:
    for read in (json_text.tree, json_text.values, json_text.natural_values, lambda found: json_text.patched(found, {"a": 1})):
        with suppress(json_text.JsonError):
            read(body)
    with suppress(json_text.JsonError):
        Message(body=body).json()


@quick
@given(SCHEMAS, BODIES)
@example({"pattern": "("}, b'"a"')
@example({"$ref": "#"}, b"1")
@example({"$schema": ["x"]}, b"1")
@example({"$schema": 5}, b"1")
@example({"multipleOf": 0.01}, b"1e400")
@example({"minimum": 1}, b"NaN")
@example({"format": "date", "enum": [[]]}, DEEP)
@example({"type": "nothing"}, b"1")
@example({"items": {"$ref": "http://example.org/x"}}, b"[1]")
def test_jsonschema(schema: dict[str, Any], body: bytes) -> None:
    with suppress(PoisonError):
        JsonSchema(schema).decode(body)


@quick
@given(JSON | st.sampled_from(["string", "long", {"type": "array", "items": "double"}]), st.binary(max_size=20))
@example({"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int", "logicalType": "date"}}]}, b"\xff\xff\xff\xff\x0f")
@example({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 9}, b"\x02\x01")
def test_avro(schema: Any, body: bytes) -> None:
    with suppress(PoisonError):
        Avro(schema).decode(body)


@quick
@given(st.binary(max_size=20))
def test_protobuf(body: bytes) -> None:
    with suppress(PoisonError):
        Protobuf(message="google.protobuf.struct_pb2:Struct").decode(body)


@quick
@given(
    st.sampled_from(["csv", "json", "lines", "parquet", "whole"]),
    st.binary(max_size=40),
    st.sampled_from(["utf-8", "utf-16", "cp037", "utf-7", "idna"]),
)
@example("csv", b'a,b\r"', "utf-8")
@example("csv", b"a\x00b\n\x00\n", "utf-8")
@example("parquet", b"PAR1" + b"\xff" * 20 + b"PAR1", "utf-8")
def test_csv_and_pyarrow(form: str, content: bytes, encoding: str) -> None:
    with suppress(PoisonError):
        for batch in records("x", Layout(form, encoding=encoding), io.BytesIO(content)):
            batch.validate(full=True)


@slow
@given(st.text(max_size=12) | st.sampled_from(["body::int = 1", "text::date < now()", "1/0 = 1", "list_sort(body)", "properties[5] = 'x'", "\x00"]))
@example("not " * 400 + "true")
@example("(" * 3_000)
@pytest.mark.long
def test_duckdb(poisoned: QueueTable, where: str) -> None:
    with suppress(PoisonError):
        find(poisoned, Selection(where=where))


@slow
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")))
@example(b'{"protocol": null}')
@example(b'{"add": {"path": 5}}')
@example(b'{"add": {"path": "../../etc/passwd", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": true}}')
@example(b'{"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": "[", "partitionColumns": []}}')
def test_deltalake(delta: Path, commit: bytes) -> None:
    (delta / "_delta_log" / "00000000000000000001.json").write_bytes(commit)
    table, clock = a_queue()
    with suppress(PoisonError):
        take(table, DeltaChanges(str(delta)), key="take", clock=clock)


@quick
@given(
    st.text(max_size=12)
    | st.sampled_from(["sqlite://", "postgresql://h:port/x", "mysql://", "sqlite:////dev/null/x", "://", "a+b://c", "oracle://x"])
)
def test_sqlalchemy(address: str) -> None:
    table, clock = a_queue()
    with suppress(PoisonError):
        take(table, Jdbc(address, "t", "id", overlap=1), key="take", clock=clock)


KAFKA_ERRORS: Any = st.sampled_from(
    [ValueError("x"), RuntimeError("Consumer closed"), KeyError("t"), OSError("x"), TypeError("x"), AttributeError("x")]
) | (st.integers(-200, 120).map(lambda code: KafkaException(KafkaError(code))) | st.just(KafkaException("text")))


@dataclass
class Connected:
    """A source that is connected to a topic."""

    kafka: Topic


def failing(call: str, error: Exception) -> MagicMock:
    """Return a client of Kafka that answers like one, but for one call."""
    client = MagicMock(topic_id="x", partitions=[], partition=0, offset=0, error=None, metadata="")
    client.describe_topics.return_value = {"t": client}
    client.describe_configs.return_value = {"t": client}
    client.list_offsets.return_value = {client: client}
    client.result.return_value = client
    client.consume.return_value = []
    client.committed.return_value = [client]
    getattr(client, call).side_effect = error
    return client


CALLS = ["Consumer", "AdminClient", "Producer", "describe_topics", "describe_configs", "list_offsets", "result", "assign", "consume", "close", "poll"]
PRODUCES = [
    "init_transactions",
    "committed",
    "begin_transaction",
    "produce",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
]


@settings(quick, max_examples=examples(150))
@given(st.sampled_from(CALLS), KAFKA_ERRORS)
def test_confluent_kafka(call: str, error: Exception) -> None:
    client = failing(call, error)
    topic = Topic({"bootstrap.servers": "127.0.0.1:1"}, "t", committed=True, patience=0.01)
    table, clock = a_queue()
    send(table, messages_to_batches([b"1"]), key="send", clock=clock)
    with ExitStack() as patched:
        for module, kind in ((confluent_kafka, "Consumer"), (confluent_kafka, "Producer"), (confluent_kafka.admin, "AdminClient")):
            made = {"side_effect": error} if kind == call else {"return_value": client}
            patched.enter_context(patch.object(module, kind, **made))
        asks: list[Callable[[], object]] = [
            topic.identity,
            topic.largest,
            lambda: topic.offsets([0], "latest"),
            lambda: list(topic.records({0: (0, 1)}, {})),
            lambda: send_to_kafka(table, [1], Connected(topic), clock, places=tuple(SubQueue)),  # type: ignore[arg-type]
        ]
        for ask in asks:
            with suppress(PoisonError):
                ask()

    committed = client.commit_transaction.called and call != "commit_transaction"
    assert sum(file.rows for file in (*table.snapshot().files, *table.snapshot().outbox)) == (0 if committed else 1)


@dataclass
class Planted:
    """A topic of two partitions as confluent-kafka's clients give it; one call fails, or one record cannot be read.

    :param fails: the name of a call, ``key``, ``value``, ``headers``, ``timestamp`` or ``error`` of a record among them; ``nth``: which one, from 0.
    :param values: of records, by partition and offset.
    """

    fails: str
    nth: int
    error: Exception
    values: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.assigned: dict[int, int] = {}

    def reached(self, call: str) -> None:
        self.calls[call] += 1
        if self.fails == call and self.calls[call] == self.nth + 1:
            raise self.error

    def client(self, kind: str) -> MagicMock:
        self.reached(kind)
        return MagicMock(**{f"{call}.side_effect": partial(self.answer, call) for call in [*HEALTHY, "incremental_unassign", "poll", "close"]})

    def answer(self, call: str, *args: Any, **_more: Any) -> Any:
        self.reached(call)
        return getattr(self, call)(*args) if call in HEALTHY else None

    def future(self, value: Any) -> MagicMock:
        return MagicMock(**{"result.side_effect": partial(self.part, "result", value)})

    def describe_topics(self, _topics: Any) -> Any:
        return {"t": self.future(MagicMock(topic_id="x", partitions=[MagicMock(id=0), MagicMock(id=1)]))}

    def list_offsets(self, asked: dict[Any, Any]) -> Any:
        def offset(spec: Any) -> int:
            return ROWS if spec is LATEST else 0

        return {where: self.future(MagicMock(offset=offset(spec))) for where, spec in asked.items()}

    def assign(self, places: list[Any]) -> None:
        self.assigned = {place.partition: place.offset for place in places}

    def consume(self, *_args: Any) -> list[MagicMock]:
        found = []
        for partition, offset in self.assigned.items():
            if offset < ROWS:
                found.append(self.record(partition, offset))
                self.assigned[partition] += 1
        return found

    def record(self, partition: int, offset: int) -> MagicMock:
        parts = {
            "key": b"k",
            "value": self.values.get((partition, offset), b"%d:%d" % (partition, offset)),
            "partition": partition,
            "offset": offset,
            "timestamp": (1, 1),
            "headers": [("h", b"v")],
        }
        read = {f"{part}.side_effect": partial(self.part, part, value) for part, value in {**parts, "error": None}.items()}
        return MagicMock(**read)

    def part(self, part: str, value: Any) -> Any:
        self.reached(part)
        return value


ROWS = 3
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no types
HEALTHY = ("describe_topics", "list_offsets", "assign", "consume")
PARTS = ("key", "value", "headers", "timestamp", "partition", "offset", "error")
ALL_RECORDS = sorted(b"%d:%d" % (partition, offset) for partition in (0, 1) for offset in range(ROWS))


@settings(quick, max_examples=examples(200))
@given(
    st.sampled_from(["Consumer", "AdminClient", "result", "incremental_unassign", "close", "none", *HEALTHY, *PARTS]), st.integers(0, 6), KAFKA_ERRORS
)
@example("key", 2, ValueError("x"))
@example("consume", 1, KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT)))
@example("incremental_unassign", 0, RuntimeError("x"))
def test_a_position_is_never_behind_what_was_not_taken(call: str, nth: int, error: Exception) -> None:
    table, clock = a_queue()
    source = Kafka("t", {"bootstrap.servers": "127.0.0.1:1"}, patience=timedelta(milliseconds=10))
    for number, planted in enumerate((Planted(call, nth, error), Planted("none", 0, error))):
        with ExitStack() as patched:
            for module, kind in ((confluent_kafka, "Consumer"), (confluent_kafka.admin, "AdminClient")):
                patched.enter_context(patch.object(module, kind, lambda *_args, kind=kind, planted=planted, **_more: planted.client(kind)))
            with suppress(PoisonError) if not number else nullcontext():
                take(table, source, key=str(number), clock=clock)
        bodies = sorted(row["body"] for file in table.snapshot().files for row in table.read(file).to_pylist())
        taken: Any = positions(table)[0].at["offsets"] if positions(table) else {}
        assert bodies == sorted(b"%s:%d" % (partition.encode(), offset) for partition, end in taken.items() for offset in range(end))
    assert bodies == ALL_RECORDS


@quick
@given(
    st.text(max_size=8) | st.sampled_from(["s3://", "s3://b/k", "gs://b", "abfss://c@a.dfs.core.windows.net", "file://x", "http://", "s3a://b b"]),
    st.dictionaries(
        st.sampled_from(["AWS_REGION", "timeout", "allow_http", "proxy_url", "nonsense", "google_service_account_key"]), st.text(max_size=6)
    ),
)
def test_obstore(uri: str, options: dict[str, str]) -> None:
    with suppress(PoisonError):
        Objects.at(uri, options)


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> QueueTable:
    clock = VirtualClock()
    table = declare(open_store(str(tmp_path_factory.mktemp("queues"))), "q", POLICY, clock)
    send(table, messages_to_batches([b'{"a": 1}', b"n/a", b"\xff"]), key="send", clock=clock)
    move(table, clock, [1, 2, 3], "poison")
    return table


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "delta", pa.table({"a": [1]}))
    return tmp_path / "delta"
