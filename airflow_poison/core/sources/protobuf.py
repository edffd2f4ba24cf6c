"""Protobuf as a schema of sources: of a generated class, or from a registry, whose records say which message of a schema they are."""

from __future__ import annotations

import base64
import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import MalformedError, SourceError
from airflow_poison.core.sources.registry import Registry, split
from airflow_poison.core.sources.schemas import Registered, as_json, needed, of_kind, one_of, short

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Protobuf(Registered):
    """Protobuf, whose body becomes JSON, with the names of fields as the schema has them.

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
        from google.protobuf.message import DecodeError

        if self.known_registry is None:
            kind, found = _generated(self.message), body
        else:
            schema_id, framed = split(body)
            indexes, found = _indexes(framed)
            kind = _registered_message(self.known_registry, schema_id, indexes)
        try:
            return as_json(MessageToDict(kind.FromString(found), preserving_proto_field_name=True))
        except (DecodeError, ValueError, TypeError) as error:
            raise MalformedError(f"it is no message {kind.DESCRIPTOR.full_name}: {short(str(error))}") from error


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
