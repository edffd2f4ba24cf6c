"""Schemas of sources: JSON Schema, Avro and Protobuf, given or from a registry. What does not fit is a message with an error, and its bytes."""

from __future__ import annotations

import base64
import importlib
import io
import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.errors import MalformedError, SettingError, SourceError
from airflow_poison.core.sources.decoding import Schema
from airflow_poison.core.sources.registry import Registry, registry_of, split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.core.sources.source import Connection

_TEXT = 300


@dataclass(frozen=True)
class _Registered(Schema):
    """A schema that may come from a registry."""

    registry: str | Registry | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "registry", registry_of(self.registry))

    @property
    def _registry(self) -> Registry | None:
        return self.registry if isinstance(self.registry, Registry) else None

    def connected(self, find: Callable[[str], Connection]) -> Self:
        """Return the schema with its registry's address."""
        return self if self._registry is None else replace(self, registry=self._registry.connected(find))


@dataclass(frozen=True)
class JsonSchema(_Registered):
    """JSON that a JSON Schema allows; the body stays what it is, byte by byte.

    :param schema: the schema, as a dictionary or JSON text.
    :param registry: instead: each record names its schema in Confluent's way, and its body is what follows.
    """

    schema: Mapping[str, Any] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(schema=self.schema, registry=self.registry)
        if self.schema is not None:
            _json_validator(_as_text(self.schema, "a JSON Schema"))

    def decode(self, body: bytes) -> bytes:
        """Return the body. Raises MalformedError, SourceError."""
        text, found = "", body
        if self._registry is not None:
            schema_id, found = split(body)
            text = str(_kind(self._registry.schema(schema_id), "JSON", schema_id)["schema"])
        try:
            value = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"it is no JSON: {error}") from error
        from jsonschema.exceptions import best_match

        wrong = best_match(_json_validator(text or _as_text(self.schema or {}, "")).iter_errors(value))
        if wrong is not None:
            raise MalformedError(f"{wrong.json_path}: {_short(wrong.message)}")
        return found


@dataclass(frozen=True)
class Avro(_Registered):
    """Avro, whose body becomes JSON: bytes as base64, times as ISO 8601, decimals as text.

    :param schema: the schema, as a dictionary or JSON text. Alone: the records are bare Avro. With a registry: what the writers' schemas are read as.
    :param registry: each record names its writer's schema in Confluent's way.
    """

    schema: Mapping[str, Any] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema is None and self.registry is None:
            raise SettingError("schema", None, "a schema, or registry=")
        if self.schema is not None:
            _as_text(self.schema, "a schema of Avro")

    def decode(self, body: bytes) -> bytes:
        """Return the JSON of the record. Raises MalformedError, SourceError."""
        fastavro = _needed("fastavro", "avro")
        reader = None if self.schema is None else _avro(_as_text(self.schema, ""))
        if self._registry is None:
            found, writer = body, reader
        else:
            schema_id, found = split(body)
            writer = _registered_avro(self._registry, schema_id)
        stream = io.BytesIO(found)
        try:
            value = fastavro.schemaless_reader(stream, writer, None if writer is reader else reader)
        except Exception as error:  # its reader raises whatever the bytes lead it to
            raise MalformedError(f"it is no record of its Avro schema: {type(error).__name__}: {_short(str(error))}") from error
        if stream.tell() != len(found):
            raise MalformedError(f"it is no record of its Avro schema: {len(found) - stream.tell()} of {len(found)} bytes are left behind it")
        return _json(value)


@dataclass(frozen=True)
class Protobuf(_Registered):
    """Protobuf, whose body becomes JSON, with the names of fields as the schema has them.

    :param message: ``module:Class`` of a generated class: the records are bare messages of it.
    :param registry: instead: each record names its schema and message in Confluent's way.
    """

    message: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(message=self.message or None, registry=self.registry)

    def decode(self, body: bytes) -> bytes:
        """Return the JSON of the message. Raises MalformedError, SourceError."""
        _needed("google.protobuf", "protobuf")
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError

        if self._registry is None:
            kind, found = _generated(self.message), body
        else:
            schema_id, framed = split(body)
            indexes, found = _indexes(framed)
            kind = _registered_message(self._registry, schema_id, indexes)
        try:
            return _json(MessageToDict(kind.FromString(found), preserving_proto_field_name=True))
        except (DecodeError, ValueError, TypeError) as error:
            raise MalformedError(f"it is no message {kind.DESCRIPTOR.full_name}: {_short(str(error))}") from error


# Help -----------------------------------------------------------------------------------------------------------------


def _one_of(**given: object) -> None:
    names = list(given)
    if sum(value is not None for value in given.values()) != 1:
        raise SettingError(names[0], given[names[0]], f"one of {' and '.join(names)}")


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f"{module} cannot be imported ({error}). Install it: pip install 'airflow-poison[{extra}]'. Nothing was sent.") from error


def _as_text(schema: Mapping[str, Any] | str, expected: str) -> str:
    if not isinstance(schema, str):
        return json.dumps(schema)
    try:
        json.loads(schema)
    except ValueError as error:
        raise SettingError("schema", _short(schema), f"{expected}, as a dictionary or JSON ({error})") from error
    return schema


def _kind(found: Mapping[str, Any], kind: str, schema_id: int) -> Mapping[str, Any]:
    """Return what is registered when it is of a kind. Raises MalformedError."""
    there = found.get("schemaType", "AVRO")
    if there != kind:
        raise MalformedError(f"its schema {schema_id} is one of {there}, expected is {kind}")
    return found


@cache
def _json_validator(text: str) -> Any:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise SettingError("schema", _short(text), f"a JSON Schema ({error.message})") from error
    return kind(schema)


@cache
def _avro(text: str) -> Any:
    fastavro = _needed("fastavro", "avro")
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:
        raise SettingError("schema", _short(text), f"a schema of Avro ({error})") from error


@cache
def _registered_avro(registry: Registry, schema_id: int) -> Any:
    fastavro = _needed("fastavro", "avro")
    named: dict[str, Any] = {}

    def parsed(found: Mapping[str, Any]) -> Any:
        for reference in found.get("references") or ():
            parsed(registry.referred(reference))
        return fastavro.parse_schema(json.loads(found["schema"]), named_schemas=named)

    found = _kind(registry.schema(schema_id), "AVRO", schema_id)
    try:
        return parsed(found)
    except SourceError:
        raise
    except Exception as error:
        raise MalformedError(f"its schema {schema_id} in the registry {registry.url} is none of Avro: {_short(str(error))}") from error


@cache
def _generated(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(f"message={name!r}: expected 'module:Class' of a generated Protobuf class ({error}). Nothing was sent.") from error
    if not hasattr(found, "FromString"):
        raise SourceError(f"message={name!r} is no generated Protobuf class. Nothing was sent.")
    return found


@cache
def _registered_message(registry: Registry, schema_id: int, indexes: tuple[int, ...]) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    form = "?format=serialized"

    def add(name: str, found: Mapping[str, Any]) -> Any:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found["schema"]))
        referred = {reference["name"]: reference for reference in found.get("references") or ()}
        for needed in file.dependency:
            if needed in referred:
                add(needed, registry.referred(referred[needed], form))
            elif needed.startswith("google/protobuf/"):
                known = importlib.import_module(needed.removesuffix(".proto").replace("/", ".") + "_pb2")
                _with_needs(pool, known.DESCRIPTOR)
        file.name = name
        pool.Add(file)
        return pool.FindFileByName(name)

    found = _kind(registry.schema(schema_id, form), "PROTOBUF", schema_id)
    try:
        there = add(f"schema-{schema_id}.proto", found)
        message = list(there.message_types_by_name.values())[indexes[0]]
        for number in indexes[1:]:
            message = message.nested_types[number]
    except SourceError:
        raise
    except Exception as error:
        why = _short(f"{type(error).__name__}: {error}")
        raise MalformedError(f"its schema {schema_id} in the registry {registry.url} has no message {list(indexes)}: {why}") from error
    return message_factory.GetMessageClass(message)


def _with_needs(pool: Any, file: Any) -> None:
    for needed in file.dependencies:
        _with_needs(pool, needed)
    pool.AddSerializedFile(file.serialized_pb)


def _indexes(framed: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return which message of its schema a record is, and what follows: a count and so many numbers, zigzag; a zero alone is the first one."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            if at >= len(framed) or shift > 28:  # noqa: PLR2004  (of 32 bits)
                raise MalformedError("it does not say which message of its schema it is")
            byte = framed[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:  # noqa: PLR2004  (the bit that says that more follows)
                return (found >> 1) ^ -(found & 1)

    count = number()
    indexes = tuple(number() for _ in range(count)) if 0 < count <= len(framed) else (0,)
    if count < 0 or count > len(framed) or min(indexes) < 0:
        raise MalformedError("it does not say which message of its schema it is")
    return indexes, framed[at:]


def _json(value: object) -> bytes:
    try:
        return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return json.dumps(_finite(value), default=_plain, ensure_ascii=False).encode()


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value
        return at.isoformat(timespec="milliseconds" if at.microsecond % 1_000 == 0 else "microseconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return str(value)
    return str(value)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} …"
