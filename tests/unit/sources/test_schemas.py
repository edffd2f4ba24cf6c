"""Schemas: what fits becomes JSON, what does not says why; a registry on loopback answers as Confluent's does."""

from __future__ import annotations

import base64
import io
import json
import pickle
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from airflow_poison.core.errors import MalformedError, SettingError, SourceError
from airflow_poison.core.sources.protobuf import Protobuf
from airflow_poison.core.sources.registry import Registry
from airflow_poison.core.sources.schemas import Avro, JsonSchema
from airflow_poison.core.sources.source import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "rate", "type": "double"},
    ],
}
VALUE = {"id": 7, "at": datetime(2026, 11, 25, 6, tzinfo=UTC), "sum": Decimal("12.50"), "raw": b"\xff", "rate": float("nan")}
AS_JSON = {"id": 7, "at": "2026-11-25T06:00:00.000Z", "sum": "12.50", "raw": "/w==", "rate": "NaN"}


def avro(value: dict[str, Any], schema: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


@contextmanager
def a_registry(answers: dict[str, Any], asked: list[str], user: str = "") -> Iterator[Registry]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            wanted = "Basic " + base64.b64encode(f"{user}:secret".encode()).decode()
            found = answers.get(self.path)
            refused = user and self.headers.get("Authorization") != wanted
            code = 401 if refused else 404 if found is None else found if isinstance(found, int) else 200
            body = json.dumps(found if code == 200 else {"error_code": 40403 if code == 404 and "/wrong/" not in self.path else code}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Registry(f"http://127.0.0.1:{server.server_port}/", user, "secret" if user else "")
        finally:
            server.shutdown()
            thread.join()


def test_json_that_the_schema_allows_stays_as_it_is() -> None:
    schema = JsonSchema(schema={"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}})
    assert schema.decode(b'{ "id": 1}') == b'{ "id": 1}'
    with pytest.raises(MalformedError, match=r"\$.id: 'x' is not of type 'integer'"):
        schema.decode(b'{"id": "x"}')
    with pytest.raises(MalformedError, match="no JSON"):
        schema.decode(b"{")
    assert pickle.loads(pickle.dumps(schema)) == schema == JsonSchema(schema.schema)


def test_avro_becomes_json() -> None:
    schema = Avro(json.dumps(ORDER))
    assert json.loads(schema.decode(avro(VALUE, ORDER))) == AS_JSON
    for wrong in (b"", b"\x02", avro(VALUE, ORDER) + b"\0"):
        with pytest.raises(MalformedError, match="no record of its Avro schema"):
            schema.decode(wrong)


def test_avro_of_a_registry_is_asked_for_once_and_follows_references() -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
    order = {"type": "record", "name": "Basket", "fields": [{"name": "lines", "type": {"type": "array", "items": "Line"}}]}
    whole = {**order, "fields": [{"name": "lines", "type": {"type": "array", "items": line}}]}
    answers = {
        "/schemas/ids/9": {"schema": json.dumps(order), "references": [{"name": "Line", "subject": "a/line", "version": 2}]},
        "/subjects/a%2Fline/versions/2": {"schema": json.dumps(line)},
    }
    asked: list[str] = []
    with a_registry(answers, asked, user="reader") as registry:
        schema = Avro(registry=registry)
        body = framed(9, avro({"lines": [{"sku": "a"}]}, whole))
        for _ in range(3):
            assert json.loads(schema.decode(body)) == {"lines": [{"sku": "a"}]}
        for _ in range(2):
            with pytest.raises(MalformedError, match="the id 10, which the registry"):
                schema.decode(framed(10, b""))
        with pytest.raises(MalformedError, match="names no schema"):
            schema.decode(b"{}")
        assert asked == ["/schemas/ids/9", "/subjects/a%2Fline/versions/2", "/schemas/ids/10"]
        with pytest.raises(SourceError, match="401"):
            Avro(registry=Registry(registry.url)).decode(framed(11, b""))


def test_avro_is_read_as_another_schema() -> None:
    reader = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "kind", "type": "string", "default": "new"}]}
    with a_registry({"/schemas/ids/1": {"schema": json.dumps(ORDER)}}, []) as registry:
        assert json.loads(Avro(schema=reader, registry=registry).decode(framed(1, avro(VALUE, ORDER)))) == {"id": 7, "kind": "new"}


def test_a_registry_that_does_not_answer_is_no_error_of_the_record() -> None:
    with a_registry({"/schemas/ids/1": 500}, []) as registry, pytest.raises(SourceError, match="does not answer schemas/ids/1: 500"):
        Avro(registry=registry).decode(framed(1, b"x"))
    with pytest.raises(SourceError, match="Connection refused"):
        Avro(registry=registry).decode(framed(2, b"x"))


def test_a_wrong_address_is_no_error_of_the_record() -> None:
    with a_registry({"/schemas/ids/1": {"openapi": "3"}}, []) as registry:
        with pytest.raises(SourceError, match="does not answer schemas/ids/1: 404 Not Found"):
            Avro(registry=f"{registry.url}wrong").decode(framed(1, b"x"))
        with pytest.raises(SourceError, match="does not answer schemas/ids/1: it answers with no schema"):
            Avro(registry=registry).decode(framed(1, b"x"))


def test_json_schemas_refer_to_each_other_in_a_registry_and_to_nothing_else() -> None:
    line = {"schema": json.dumps({"type": "object", "required": ["sku"]}), "schemaType": "JSON"}
    lines = json.dumps({"type": "array", "items": {"$ref": "line.json"}})
    references = [{"name": "line.json", "subject": "line", "version": 1}]
    answers = {
        "/schemas/ids/1": {"schema": lines, "schemaType": "JSON", "references": references},
        "/schemas/ids/2": {"schema": lines, "schemaType": "JSON"},
        "/schemas/ids/3": {"schema": '{"type": 3}', "schemaType": "JSON"},
        "/subjects/line/versions/1": line,
    }
    asked: list[str] = []
    with a_registry(answers, asked) as registry:
        schema = JsonSchema(registry=registry)
        assert schema.decode(framed(1, b'[{"sku": 1}]')) == b'[{"sku": 1}]'
        with pytest.raises(MalformedError, match=r"\$\[0\]: 'sku' is a required property"):
            schema.decode(framed(1, b"[{}]"))
        with pytest.raises(SourceError, match=r"refers to 'line\.json', which is neither"):
            schema.decode(framed(2, b"[{}]"))
        with pytest.raises(MalformedError, match=r"its schema 3 in the registry .* is none of JSON"):
            schema.decode(framed(3, b"1"))
        address = f"{registry.url}line.json"
        with pytest.raises(SourceError, match="refers to"):
            JsonSchema(schema={"$ref": address}).decode(b"1")
    assert "/line.json" not in asked


def test_what_is_nested_too_deeply_is_an_error_of_the_record() -> None:
    schema = JsonSchema(schema={"type": "array", "items": {"$ref": "#"}})
    assert schema.decode(b"[[]]")
    with pytest.raises(MalformedError, match="cannot be checked"):
        schema.decode(b"[" * 900 + b"]" * 900)


def serialized(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    order.field.add(name="order_id", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    order.field.add(name="at", number=2, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=field.LABEL_OPTIONAL)
    order.nested_type.add(name="Line").field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    return file


def test_protobuf_of_a_registry_says_which_message_it_is() -> None:
    answers = {"/schemas/ids/3?format=serialized": {"schema": serialized(protobuf_file()), "schemaType": "PROTOBUF"}}
    at = timestamp_pb2.Timestamp(seconds=0).SerializeToString()
    with a_registry(answers, []) as registry:
        schema = Protobuf(registry=registry)
        order = b"\x08\x07\x12" + bytes([len(at)]) + at
        assert json.loads(schema.decode(framed(3, b"\x02\x02" + order))) == {"order_id": 7, "at": "1970-01-01T00:00:00Z"}
        assert json.loads(schema.decode(framed(3, b"\x04\x02\x00\x0a\x01a"))) == {"sku": "a"}
        assert json.loads(schema.decode(framed(3, b"\x00"))) == {}
        for wrong, why in (
            (b"\x02\x08", "no message"),
            (b"", "which message"),
            (b"\x02\x02\x08", "no message shop.Order"),
            (b"\x03", "which message"),
        ):
            with pytest.raises(MalformedError, match=why):
                schema.decode(framed(3, wrong))


def test_a_registry_that_answers_text_only_is_no_error_of_the_record() -> None:
    answers = {"/schemas/ids/3?format=serialized": {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"}}
    with a_registry(answers, []) as registry, pytest.raises(SourceError, match="does not answer format=serialized"):
        Protobuf(registry=registry).decode(framed(3, b"\0"))


def test_protobuf_of_a_generated_class() -> None:
    schema = Protobuf("google.protobuf.timestamp_pb2:Timestamp")
    assert json.loads(schema.decode(timestamp_pb2.Timestamp(seconds=1).SerializeToString())) == "1970-01-01T00:00:01Z"
    with pytest.raises(MalformedError, match=r"no message google\.protobuf\.Timestamp"):
        schema.decode(b"\xff")
    with pytest.raises(SourceError, match=r"module:Class"):
        Protobuf(message="no.such:Thing").decode(b"")


def test_schemas_of_another_kind_are_not_decoded() -> None:
    with a_registry({"/schemas/ids/5": {"schema": "{}", "schemaType": "JSON"}}, []) as registry:
        assert JsonSchema(registry=registry).decode(framed(5, b"[1]")) == b"[1]"
        with pytest.raises(MalformedError, match="one of JSON, expected is AVRO"):
            Avro(registry=registry).decode(framed(5, b"[1]"))


def test_settings_are_refused_when_the_schema_is_made() -> None:
    for make in (
        JsonSchema,
        lambda: JsonSchema(schema={}, registry="http://x"),
        lambda: JsonSchema(schema={"type": "no"}),
        lambda: JsonSchema(schema="{"),
        Avro,
        lambda: Avro(schema="{"),
        lambda: Avro(registry="ftp://x"),
        Protobuf,
    ):
        with pytest.raises(SettingError):
            make()


def test_a_registry_may_be_a_connection() -> None:
    found = Avro(registry="registry").connected(lambda name: Connection(name, "http", "r.example", 8081, "u", "p", "https"))
    assert found.registry == Registry("https://r.example:8081", "u", "p")
    assert "'p'" not in repr(found)
