"""Schemas: what fits becomes JSON, what does not says why; a registry on loopback answers as Confluent's does."""

from __future__ import annotations

import base64
import io
import json
import pickle
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.sources.protobuf import Protobuf
from airflow_poison.sources.schemas import Avro, JsonSchema, Registry
from airflow_poison.sources.source import Connection
from airflow_poison.values import json_text
from airflow_poison.values.errors import MalformedError, SettingError, SourceError

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


PRICE = {"properties": {"price": {"type": "number", "multipleOf": 0.01}}}
WHOLE = {"properties": {"n": {"type": "integer"}}}
EXACT: list[tuple[dict[str, Any], str, str | None]] = [
    *((PRICE, f'{{"price": {each}}}', None) for each in ("19.99", "4.35", "0.07", "1e400", "-12345678901234567890.12", "0", "1E+2", "0e-999999")),
    (PRICE, '{"price": 1.005}', r"\$\.price: 1\.005 is not a multiple of 0\.01"),
    (PRICE, '{"price": 1e-999999}', "is not a multiple of 0.01"),
    (PRICE, '{"price": 12345678901234567890123456789012345678901234567890.125}', "is not a multiple of 0.01"),
    (PRICE, '{"price": 1e99999999999999999999}', "it is no JSON"),
    (PRICE, '{"price": NaN}', "it is no JSON: JSON has no NaN"),
    (PRICE, '{"price": -Infinity}', "it is no JSON: JSON has no -Infinity"),
    (PRICE, '{"price": 1, "price": 2}', "the name 'price' stands twice"),
    (PRICE, '{"price": true}', "True is not of type 'number'"),
    *((WHOLE, f'{{"n": {each}}}', None) for each in ("1", "1.0", "1e3", "12345678901234567890.0")),
    (WHOLE, '{"n": 12345678901234567890.1}', "is not of type 'integer'"),
    ({**WHOLE, "$schema": "http://json-schema.org/draft-04/schema#"}, '{"n": 1.0}', r"1\.0 is not of type 'integer'"),
    ({**WHOLE, "$schema": "http://json-schema.org/draft-07/schema#"}, '{"n": 1.0}', None),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "#"}, "multipleOf": 0.01}, "[19.99, [4.35]]", None),
    ({"maximum": 9007199254740992}, "9007199254740993", "greater than the maximum"),
    ({"exclusiveMaximum": 0.3}, "0.29999999999999999999", None),
    ({"const": 12345678901234567.89}, "12345678901234567.89", "was expected"),  # a float of Python is another number
    ({"const": Decimal("12345678901234567.89")}, "12345678901234567.89", None),
    ({"enum": [1, 0.1]}, "1.0", None),
    ({"enum": [1, 0.1]}, "0.10000000000000001", "is not one of"),
    ({"enum": [1]}, "true", "is not one of"),
    ({"uniqueItems": True}, "[1, 1.0]", "non-unique"),
    ({"minLength": 2.0}, '"ab"', None),
]


@pytest.mark.parametrize(("schema", "body", "wrong"), EXACT, ids=[f"{number}-{body[:30]}" for number, (_, body, _) in enumerate(EXACT)])
def test_json_schema_checks_the_numbers_that_are_written(schema: dict[str, Any], body: str, wrong: str | None) -> None:
    made = JsonSchema(schema)

    if wrong is None:
        assert made.decode(body.encode()) == body.encode()
    else:
        with pytest.raises(MalformedError, match=wrong):
            made.decode(body.encode())


def test_a_price_among_referred_schemas_is_checked_exactly_too() -> None:
    price = {"schema": json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "multipleOf": 0.01}), "schemaType": "JSON"}
    prices = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "price.json"}})
    references = [{"name": "price.json", "subject": "price", "version": 1}]
    answers = {"/schemas/ids/1": {"schema": prices, "schemaType": "JSON", "references": references}, "/subjects/price/versions/1": price}
    with a_registry(answers, []) as registry:
        schema = JsonSchema(registry=registry)
        assert schema.decode(framed(1, b"[19.99, 4.35]")) == b"[19.99, 4.35]"
        with pytest.raises(MalformedError, match=r"\$\[0\]: 1\.005 is not a multiple"):
            schema.decode(framed(1, b"[1.005]"))


EVERY = {
    "type": "record",
    "name": "Every",
    "fields": [
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "long", "type": "long"},
        {"name": "real", "type": "double"},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 20}},
        {"name": "map", "type": {"type": "map", "values": ["null", "bytes"]}},
        {"name": "text", "type": "string"},
    ],
}


def test_avro_keeps_all_digits() -> None:
    big = Decimal("1234567890123456789012345678901234567890.00000000000000000010")
    value = {
        "micros": datetime(2026, 11, 25, 6, 0, 0, 123_456, tzinfo=UTC), "clock": time(1, 2, 3, 500_000), "day": date(44, 3, 15),
        "nanos": 1_700_000_000_123_456_789, "long": 2**63 - 1, "real": float("-inf"), "sum": big, "map": {"a": b"\xff", "b": None}, "text": "ä",
    }  # fmt: skip

    assert json_text.tree(Avro(EVERY).decode(avro(value, EVERY))) == [
        ("micros", "2026-11-25T06:00:00.123456Z"), ("clock", "01:02:03.5"), ("day", "0044-03-15"), ("nanos", "1700000000123456789"),
        ("long", "9223372036854775807"), ("real", "-Infinity"), ("sum", str(big)), ("map", [("a", "/w=="), ("b", None)]), ("text", "ä"),
    ]  # fmt: skip


SCHEMAS = [
    JsonSchema(PRICE),
    JsonSchema({"$ref": "#/properties/a", "properties": {"a": {"items": {"$ref": "#"}}}, "multipleOf": 7}),
    Avro(EVERY),
    Avro(ORDER),
]


@given(
    body=st.binary(max_size=200)
    | st.recursive(st.sampled_from(["1e999999", "NaN", '"\\ud800"', "-0.0", "{}"]), st.lists).map(lambda tree: str(tree).replace("'", "").encode()),
    number=st.integers(0, len(SCHEMAS) - 1),
)
def test_whatever_bytes_come_a_schema_decodes_them_or_calls_them_malformed(body: bytes, number: int) -> None:
    with suppress(MalformedError):
        json_text.tree(SCHEMAS[number].decode(body))


@given(body=st.binary(max_size=100))
def test_whatever_bytes_come_protobuf_decodes_them_or_calls_them_malformed(body: bytes) -> None:
    for schema in (Protobuf(message="google.protobuf.struct_pb2:Value"), Protobuf(message="google.protobuf.descriptor_pb2:FieldDescriptorProto")):
        with suppress(MalformedError):
            json_text.tree(schema.decode(body))


def test_avro_becomes_json() -> None:
    schema = Avro(json.dumps(ORDER))
    assert json.loads(schema.decode(avro(VALUE, ORDER))) == AS_JSON
    for wrong in (b"", b"\x02", avro(VALUE, ORDER) + b"\0"):
        with pytest.raises(MalformedError, match="no record of its Avro schema"):
            schema.decode(wrong)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ({"type": "map", "values": "long"}, b"\x04\x02a\x02\x02a\x04\x00", "b'a' stands twice"),
        ({"type": "map", "values": "long"}, b"\x02\x02a\x02\x02\x02a\x04\x00", "b'a' stands twice"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "more than 32 bits"),
        ("long", b"\x80" * 10 + b"\x01", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("boolean", b"\xff", "truth value at byte 0 is 255"),
        ("string", b"\x01", "length at byte 0 is -1"),
        (["null", "int"], b"\x01", "type at byte 0 is -1"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x01", "is -1; expected 0 to 1"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "is -1; expected 0 to 86399999"),
        ({"type": "long", "logicalType": "time-micros"}, b"\x80\x80\xbb\xdd\x83\x05", "expected 0 to 86399999999"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x06\x12\xd6\x87", "more than 4 digits"),
        ({"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 4}, b"\x12\xd6\x87", "more than 4 digits"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x10\x00", "2147483648 values"),
        ({"type": "array", "items": "double"}, b"\x80\x80\x80\x80\x10\x00", "2147483648 values"),
    ],
)
def test_avro_that_would_be_read_as_another_value_or_without_end_is_malformed(kind: Any, body: bytes, why: str) -> None:
    schema = Avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
    with pytest.raises(MalformedError, match=why):
        schema.decode(body)


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("int", b"\xff\xff\xff\xff\x0f", -(2**31)),
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ({"type": "array", "items": "null"}, b"\x04\x00", [None, None]),
        ({"type": "array", "items": "int"}, b"\x02\x02\x03\x04\x04\x06\x00", [1, 2, 3]),
        ({"type": "map", "values": "long"}, b"\x02\x02a\x02\x01\x06\x02b\x04\x00", {"a": 1, "b": 2}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x04\xd8\xf1", "-99.99"),
    ],
)
def test_avro_is_read_in_blocks_up_to_its_bounds(kind: Any, body: bytes, value: object) -> None:
    schema = Avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
    assert json.loads(schema.decode(body)) == {"x": value}


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


def every_kind() -> Any:
    """Return a class of messages with fields of many types."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="every.proto", package="shop", syntax="proto3", dependency=["google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Color").value.add(name="RED", number=0)
    every = file.message_type.add(name="Every")
    kinds = {
        "i": field.TYPE_INT32, "l": field.TYPE_INT64, "u": field.TYPE_UINT64, "f": field.TYPE_FLOAT, "d": field.TYPE_DOUBLE,
        "flag": field.TYPE_BOOL, "text": field.TYPE_STRING, "raw": field.TYPE_BYTES,
    }  # fmt: skip
    for number, (name, kind) in enumerate(kinds.items(), 1):
        every.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    every.field.add(name="color", number=9, type=field.TYPE_ENUM, type_name=".shop.Color", label=field.LABEL_OPTIONAL)
    every.field.add(name="many", number=10, type=field.TYPE_SINT64, label=field.LABEL_REPEATED)
    every.field.add(name="inner", number=11, type=field.TYPE_MESSAGE, type_name=".shop.Every", label=field.LABEL_OPTIONAL)
    every.field.add(name="each", number=12, type=field.TYPE_MESSAGE, type_name=".shop.Every.EachEntry", label=field.LABEL_REPEATED)
    every.field.add(name="maybe", number=13, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value", label=field.LABEL_OPTIONAL)
    entry = every.nested_type.add(name="EachEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_FIXED64, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Every"))


ZEROS = {
    "i": "0", "l": "0", "u": "0", "f": "0.0", "d": "0.0", "flag": False, "text": "", "raw": "", "color": "RED", "many": [], "each": []
}  # fmt: skip


def test_protobuf_writes_zeros_and_whole_numbers_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    every = every_kind()
    monkeypatch.setattr(timestamp_pb2, "Every", every, raising=False)
    schema = Protobuf(message="google.protobuf.timestamp_pb2:Every")
    given = every(
        l=2**63 - 1, u=2**64 - 1, f=0.1, d=float("nan"), raw=b"\xff", many=[-1, 2**62], inner=every(l=-5), each={7: 2**63}, maybe={"value": 2**60}
    )

    found = dict(json_text.tree(schema.decode(given.SerializeToString())))  # type: ignore[call-overload]  # pairs

    assert dict(json_text.tree(schema.decode(b""))) == ZEROS  # type: ignore[call-overload]  # pairs
    assert found == ZEROS | {
        "l": "9223372036854775807", "u": "18446744073709551615", "f": "0.1", "d": "NaN", "raw": "/w==", "many": ["-1", "4611686018427387904"],
        "inner": [("l", "-5"), *((name, zero) for name, zero in ZEROS.items() if name != "l")], "each": [("7", "9223372036854775808")],
        "maybe": "1152921504606846976",
    }  # fmt: skip
    assert isinstance(found["l"], json_text.Number)
    assert isinstance(found["maybe"], json_text.Number)


@pytest.mark.parametrize("wrap", [lambda unknown: unknown, lambda unknown: b"\x5a" + bytes([len(unknown)]) + unknown], ids=["flat", "nested"])
def test_fields_that_a_schema_does_not_have_are_not_lost_in_silence(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamp_pb2, "Every", every_kind(), raising=False)

    with pytest.raises(MalformedError, match=r"it has fields that the schema of shop\.Every does not have"):
        Protobuf(message="google.protobuf.timestamp_pb2:Every").decode(wrap(b"\xf8\x07\x01"))


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


@pytest.mark.parametrize("deep", [10, 100, 5_000, 100_000])
def test_a_record_within_itself_is_decoded_or_malformed_and_ends_no_process(deep: int) -> None:
    schema = Avro({"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", {"type": "array", "items": "Link"}]}]})
    body = b"\x02\x02" * deep + b"\x00" + b"\x00" * deep

    if deep <= 100:
        assert schema.decode(body).count(b'"next"') == deep + 1
    else:
        with pytest.raises(MalformedError, match="no record of its Avro schema: RecursionError"):
            schema.decode(body)
