"""Protobuf as a schema of sources: of a generated class, or from a registry, whose records say which message of a schema they are."""

from __future__ import annotations

import base64
import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.schemas import Registered, Registry, as_json, needed, of_kind, one_of, short, split
from airflow_poison.values.errors import MalformedError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Protobuf(Registered):
    """Protobuf, whose body becomes JSON, with the names of fields as the schema has them; zeros are written, and whole numbers are numbers.

    A record with fields that the schema does not have is malformed: they would be lost.

    :param message: ``module:Class`` of a generated class: the records are bare messages of it.
    :param registry: instead: each record names its schema and message in Confluent's way.
    """

    message: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(message=self.message or None, registry=self.registry)

    def decode(self, body: bytes) -> bytes:
        """Return the JSON of the message. Raises MalformedError, SourceError."""
        needed("google.protobuf", "protobuf")
        from google.protobuf.json_format import MessageToDict

        if self.known_registry is None:
            kind, found = _generated(self.message), body
        else:
            schema_id, framed = split(body)
            indexes, found = _indexes(framed)
            kind = _registered_message(self.known_registry, schema_id, indexes)
        name = kind.DESCRIPTOR.full_name
        try:
            message, known = kind.FromString(found), kind.FromString(found)
            known.DiscardUnknownFields()
            made = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            value = _with_numbers(made, kind.DESCRIPTOR)
        except Exception as error:  # of whatever type bytes lead its reader to
            raise MalformedError(f"it is no message {name}: {short(str(error))}") from error
        if known.ByteSize() != message.ByteSize():
            raise MalformedError(
                f"it has fields that the schema of {name} does not have, and they would be lost: is the schema older than the record?"
            )
        return as_json(value)


def _with_numbers(value: Any, kind: Any) -> Any:
    """Return the JSON of a message with numbers for the whole numbers of 64 bits, which Protobuf's own JSON has as text."""
    if kind.full_name in {"google.protobuf.Int64Value", "google.protobuf.UInt64Value"}:
        return int(value)
    if kind.full_name.startswith("google.protobuf.") or not isinstance(value, dict):
        return value
    return {name: _field_with_numbers(each, kind.fields_by_name.get(name) or _extension(kind, name)) for name, each in value.items()}


def _field_with_numbers(value: Any, field: Any) -> Any:
    if field is None:
        return value
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return {key: _field_with_numbers(each, inner.fields_by_name["value"]) for key, each in value.items()}
    if isinstance(value, list) and (inner is None or inner.full_name != "google.protobuf.ListValue" or not field.has_presence):
        return [_one_with_numbers(each, field) for each in value]
    return _one_with_numbers(value, field)


def _one_with_numbers(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _with_numbers(value, field.message_type)
    return int(value) if field.cpp_type in {field.CPPTYPE_INT64, field.CPPTYPE_UINT64} else value


def _extension(kind: Any, name: str) -> Any:
    return kind.file.pool.FindExtensionByName(name.strip("[]")) if name.startswith("[") else None


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
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    form = "?format=serialized"

    def add(name: str, found: Mapping[str, Any]) -> Any:
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found["schema"], validate=True))
        except (ValueError, DecodeError) as error:  # of every schema, so it is no record's fault
            raise SourceError(f"The registry {registry.url} does not answer {form[1:]}, which Protobuf needs ({error}). Nothing was sent.") from error
        referred = {reference["name"]: reference for reference in found.get("references") or ()}
        for wanted in file.dependency:
            if wanted in referred:
                add(wanted, registry.referred(referred[wanted], form))
            elif wanted.startswith("google/protobuf/"):
                known = importlib.import_module(wanted.removesuffix(".proto").replace("/", ".") + "_pb2")
                _with_needs(pool, known.DESCRIPTOR)
        file.name = name
        pool.Add(file)
        return pool.FindFileByName(name)

    found = of_kind(registry.schema(schema_id, form), "PROTOBUF", schema_id)
    try:
        there = add(f"schema-{schema_id}.proto", found)
        message = list(there.message_types_by_name.values())[indexes[0]]
        for number in indexes[1:]:
            message = message.nested_types[number]
    except SourceError:
        raise
    except Exception as error:
        why = short(f"{type(error).__name__}: {error}")
        raise MalformedError(f"its schema {schema_id} in the registry {registry.url} has no message {list(indexes)}: {why}") from error
    return message_factory.GetMessageClass(message)


def _with_needs(pool: Any, file: Any) -> None:
    for other in file.dependencies:
        _with_needs(pool, other)
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
