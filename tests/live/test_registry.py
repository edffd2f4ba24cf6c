"""Schemas of a real registry: records that Confluent's own serializers write into a real topic become JSON, and others go to poison."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2, timestamp_pb2

from airflow_poison.passes.take import take
from airflow_poison.sources import schemas as registries
from airflow_poison.sources.protobuf import Protobuf
from airflow_poison.sources.schemas import Avro, JsonSchema
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SourceError
from tests.live.source_kills import a_table, rows
from tests.live.topic import Topic
from tools.servers.registry import running as a_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.sources.schemas import Schema as SourceSchema
    from airflow_poison.store.queue_table import QueueTable
    from tools.servers.kafka import Broker

_numbers = count()
PLACE = {"type": "record", "name": "Place", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "to", "type": ["null", "shop.Place"], "default": None},
    ],
}
JSON_ORDER = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "required": ["id"]}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": address}) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> Topic:
    return Topic(broker, f"registered-{next(_numbers)}", partitions=1)


def taken(tmp_path: Path, topic: Topic, schema: SourceSchema) -> list[tuple[str, Any]]:
    """Take all; return the sub-queue of each record, and its JSON, or what is wrong with it."""
    table: QueueTable = a_table(tmp_path)
    take(table, topic.source(schema=schema), key="all", clock=SystemClock())
    found = sorted(rows(table), key=lambda row: int(dict(row["properties"])["kafka.offset"]))
    return [(row["sub_queue"], json.loads(row["body"]) if row["reason"] is None else row["reason"]) for row in found]


def where(topic: Topic) -> SerializationContext:
    return SerializationContext(topic.name, MessageField.VALUE)


def test_avro_with_references(address: str, client: SchemaRegistryClient, topic: Topic, tmp_path: Path) -> None:
    client.register_schema("places", Schema(json.dumps(PLACE), "AVRO"))
    write = AvroSerializer(client, Schema(json.dumps(ORDER), "AVRO", [SchemaReference("shop.Place", "places", 1)]))
    at = datetime(2026, 11, 25, 6, tzinfo=UTC)
    values = [{"id": 1, "at": at, "sum": Decimal("12.50"), "to": {"city": "Bremen"}}, {"id": 2, "at": at, "sum": Decimal("-0.01"), "to": None}]
    good = [write(value, where(topic)) for value in values]
    assert good[0] is not None
    topic.produce(*good, good[0][:-1], b"\0\0\0\x7f\xff" + good[0][5:], b"{}")
    found = taken(tmp_path, topic, Avro(registry=address))
    assert found[:2] == [
        ("main", {"id": 1, "at": "2026-11-25T06:00:00.000Z", "sum": "12.50", "to": {"city": "Bremen"}}),
        ("main", {"id": 2, "at": "2026-11-25T06:00:00.000Z", "sum": "-0.01", "to": None}),
    ]
    assert [place for place, _ in found[2:]] == ["poison"] * 3
    assert "it is no record of its Avro schema" in found[2][1]
    assert f"its schema has the id 32767, which the registry {address} does not know" in found[3][1]
    assert "it names no schema of a registry" in found[4][1]


def test_protobuf_with_messages_within_messages(address: str, client: SchemaRegistryClient, topic: Topic, tmp_path: Path) -> None:
    write = ProtobufSerializer(struct_pb2.Struct, client, {"use.deprecated.format": False})
    value = struct_pb2.Struct()
    value.update({"id": 7, "tags": ["a", None]})
    instant = ProtobufSerializer(timestamp_pb2.Timestamp, client, {"use.deprecated.format": False, "subject.name.strategy": lambda *_: "instants"})
    topic.produce(write(value, where(topic)), instant(timestamp_pb2.Timestamp(seconds=1), where(topic)), b"\0\0\0\0\x01\x63")
    found = taken(tmp_path, topic, Protobuf(registry=address))
    assert found[:2] == [("main", {"id": 7.0, "tags": ["a", None]}), ("main", "1970-01-01T00:00:01Z")]
    assert found[2][0] == "poison"


def test_json_schema(address: str, client: SchemaRegistryClient, topic: Topic, tmp_path: Path) -> None:
    write = JSONSerializer(json.dumps(JSON_ORDER), client)
    good = write({"id": 7}, where(topic))
    assert good is not None
    topic.produce(good, good[:5] + b'{"no": 1}')
    assert taken(tmp_path, topic, JsonSchema(registry=address)) == [
        ("main", {"id": 7}),
        ("poison", "MalformedError: $: 'id' is a required property"),
    ]


def test_a_registry_that_is_gone_is_an_error_of_the_task_and_nothing_is_sent(topic: Topic, tmp_path: Path) -> None:
    with a_registry(tmp_path) as address, SchemaRegistryClient({"url": address}) as client:
        good = JSONSerializer(json.dumps(JSON_ORDER), client)({"id": 7}, where(topic))
    topic.produce(good)
    registries._asked.cache_clear()
    table = a_table(tmp_path)
    with pytest.raises(SourceError, match=r"does not answer schemas/ids/1: .*Connection refused.* Nothing was sent"):
        take(table, topic.source(schema=JsonSchema(registry=address)), key="all", clock=SystemClock())
    assert table.snapshot().files == ()
