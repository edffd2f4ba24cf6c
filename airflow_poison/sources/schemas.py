"""Schemas of sources: JSON Schema and Avro, given or from a registry. What does not fit is a message with an error, and its bytes.

Schemas of a source: the format of a record's bytes, and the body made of them. A record that does not fit is a message with an error.

A schema registry over HTTP, and the bytes by which a record names its schema there: a zero, and the schema's id in four bytes.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from airflow_poison.values import json_text
from airflow_poison.values.errors import MalformedError, SettingError, SourceError
from airflow_poison.values.json_text import exact, words
from airflow_poison.values.mapping import json_value, number_or_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.sources.source import Connection

HEAD = 5
_SECONDS = 10.0
_TRIES = 3
_UNKNOWN_SECONDS = 60.0
_SERVER_ERROR = 500
_NOT_THERE = frozenset({40401, 40402, 40403})
"""The codes by which a registry says that it does not have a subject, a version or a schema; any 404 without one is of a wrong address."""
_unknown: dict[tuple[Registry, int], float] = {}


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry that answers as Confluent's does.

    :param url: ``https://registry.example:8081``, or the id of an Airflow connection of type ``http``.
    :param user: for basic authentication; empty: none.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    def connected(self, find: Callable[[str], Connection]) -> Registry:
        """Return the registry with its address."""
        if "://" in self.url:
            return self
        found = find(self.url)
        host = found.host if "://" in found.host else f"{found.path or 'http'}://{found.host}"
        return replace(self, url=host if found.port is None else f"{host}:{found.port}", user=found.login, password=found.password)

    def schema(self, schema_id: int, form: str = "") -> dict[str, Any]:
        """Return what is registered with an id: ``schema``, ``schemaType``, ``references``. Raises MalformedError for an id that is not there."""
        if time.monotonic() - _unknown.get((self, schema_id), -_UNKNOWN_SECONDS) < _UNKNOWN_SECONDS:
            raise _no_schema(self, schema_id)
        try:
            return _asked(self, f"schemas/ids/{schema_id}{form}")
        except LookupError:
            _unknown[self, schema_id] = time.monotonic()
            raise _no_schema(self, schema_id) from None

    def referred(self, reference: dict[str, Any], form: str = "") -> dict[str, Any]:
        """Return a schema that another one refers to. Raises SourceError."""
        subject, version = quote(str(reference["subject"]), safe=""), reference["version"]
        try:
            return _asked(self, f"subjects/{subject}/versions/{version}{form}")
        except LookupError as error:
            raise SourceError(f"The registry {self.url} has no version {version} of {reference['subject']!r}, to which a schema refers.") from error


def registry_of(given: str | Registry | None) -> Registry | None:
    """Return a registry by what was given. Raises SettingError."""
    found = Registry(given) if isinstance(given, str) else given
    if found is not None and (not found.url or ("://" in found.url and not found.url.startswith(("http://", "https://")))):
        raise SettingError("registry", found.url, "an address that begins with http:// or https://, or the id of a connection")
    return found


def split(body: bytes) -> tuple[int, bytes]:
    """Return the id of a record's schema, and what follows it. Raises MalformedError."""
    if len(body) < HEAD or body[0]:
        begins = body[:HEAD].hex(" ") or "nothing"
        raise MalformedError(f"it names no schema of a registry: it begins with {begins}, expected are 00 and an id of 4 bytes")
    return int.from_bytes(body[1:HEAD], "big"), body[HEAD:]


def _no_schema(registry: Registry, schema_id: int) -> MalformedError:
    return MalformedError(f"its schema has the id {schema_id}, which the registry {registry.url} does not know")


@cache
def _asked(registry: Registry, path: str) -> dict[str, Any]:
    """Return what the registry answers; asked once for each path. Raises SourceError, LookupError for what it does not have."""
    request = Request(f"{registry.url.rstrip('/')}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"})  # noqa: S310  (http alone, see registry_of)
    if registry.user:
        pair = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {pair}")
    said = ""
    for number in range(_TRIES):
        time.sleep(number * 0.5)
        try:
            with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310  (as above)
                found: Any = json.load(answer)
                if isinstance(found, dict) and isinstance(found.get("schema"), str):
                    return found
                said = "it answers with no schema"
                break
        except HTTPError as error:
            with error:
                said, code = f"{error.code} {error.reason}", _code_of(error)
            if code in _NOT_THERE:
                raise LookupError(path) from None
            if error.code < _SERVER_ERROR:
                break
        except (URLError, OSError, ValueError) as error:
            said = str(error)
    raise SourceError(
        f"The schema registry {registry.url} does not answer {path}: {said}. Check its address, and its user and password. Nothing was sent."
    )


def _code_of(error: HTTPError) -> object:
    try:
        said = json.load(error)
    except (ValueError, OSError):
        return None
    return said.get("error_code") if isinstance(said, dict) else None


class Schema(ABC):
    """What bodies of records have to be. Making one reads nothing and imports nothing heavy; it can be pickled."""

    @abstractmethod
    def decode(self, body: bytes) -> bytes:
        """Return the message's body: the same bytes, or what was decoded as JSON. Raises MalformedError, which says what is wrong."""

    def connected(self, find: Callable[[str], Connection]) -> Schema:
        """Return the schema with the connections that it names looked up; itself when it names none."""
        del find
        return self


_SHALLOW = 2_000
_TEXT = 300


@dataclass(frozen=True)
class Registered(Schema):
    """A schema that may come from a registry."""

    registry: str | Registry | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "registry", registry_of(self.registry))

    @property
    def known_registry(self) -> Registry | None:
        """The registry; None where the schema itself was given."""
        return self.registry if isinstance(self.registry, Registry) else None

    def connected(self, find: Callable[[str], Connection]) -> Self:
        """Return the schema with its registry's address."""
        return self if self.known_registry is None else replace(self, registry=self.known_registry.connected(find))


@dataclass(frozen=True)
class JsonSchema(Registered):
    """JSON that a JSON Schema allows; the body stays what it is, byte by byte.

    :param schema: the schema, as a dictionary or JSON text.
    :param registry: instead: each record names its schema in Confluent's way, and its body is what follows.
    """

    schema: Mapping[str, Any] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(schema=self.schema, registry=self.registry)
        if self.schema is not None:
            _json_validator(_as_text(self.schema, "a JSON Schema"))

    def decode(self, body: bytes) -> bytes:
        """Return the body. Raises MalformedError, SourceError."""
        if self.known_registry is None:
            validator, found = _json_validator(_as_text(self.schema or {}, "")), body
        else:
            schema_id, found = split(body)
            validator = _registered_json(self.known_registry, schema_id)
        try:
            value = json_text.values(found)
        except json_text.JsonError as error:
            raise MalformedError(f"it is no JSON: {error}") from error
        if (wrong := _first_error(validator, value)) is not None:
            raise MalformedError(f"{wrong.json_path}: {short(words(wrong))}")
        return found


@dataclass(frozen=True)
class Avro(Registered):
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
        fastavro = needed("fastavro", "avro")
        reader = None if self.schema is None else _avro(_as_text(self.schema, ""))
        if self.known_registry is None:
            found, writer = body, reader
        else:
            schema_id, found = split(body)
            writer = _registered_avro(self.known_registry, schema_id)
        stream = io.BytesIO(found)
        try:
            is_deep = len(found) > _SHALLOW and _is_recursive(writer)  # in C a recursion ends with the process; each level takes a byte
            module = needed("fastavro._read_py", "avro") if is_deep else fastavro
            value = module.schemaless_reader(stream, writer, None if writer is reader else reader)
        except Exception as error:  # its reader raises whatever the bytes lead it to
            raise MalformedError(f"it is no record of its Avro schema: {type(error).__name__}: {short(str(error))}") from error
        if stream.tell() != len(found):
            raise MalformedError(f"it is no record of its Avro schema: {len(found) - stream.tell()} of {len(found)} bytes are left behind it")
        return as_json(value)


# Help -----------------------------------------------------------------------------------------------------------------


def one_of(**given: object) -> None:
    """Raise SettingError unless one of several settings is given."""
    names = list(given)
    if sum(value is not None for value in given.values()) != 1:
        raise SettingError(names[0], given[names[0]], f"one of {' and '.join(names)}")


def needed(module: str, extra: str) -> Any:
    """Return a module. Raises SourceError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f"{module} cannot be imported ({error}). Install it: pip install 'airflow-poison[{extra}]'. Nothing was sent.") from error


def _as_text(schema: Mapping[str, Any] | str, expected: str) -> str:
    try:
        if not isinstance(schema, str):
            return json_text.written(schema)
        json_text.values(schema)
    except json_text.JsonError as error:
        raise SettingError("schema", short(str(schema)), f"{expected}, as a dictionary or JSON ({error})") from error
    return schema


def of_kind(found: Mapping[str, Any], kind: str, schema_id: int) -> Mapping[str, Any]:
    """Return what is registered when it is of a kind. Raises MalformedError."""
    there = found.get("schemaType", "AVRO")
    if there != kind:
        raise MalformedError(f"its schema {schema_id} is one of {there}, expected is {kind}")
    return found


@cache
def _json_validator(text: str, referred: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return what checks values against a schema; what it refers to is in ``referred`` (names and texts), and is never fetched."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry as Known
    from referencing.jsonschema import DRAFT202012, specification_with

    def parsed(found: str) -> tuple[Any, str]:
        """Return a schema, and its dialect, which is taken out: where a schema names one, jsonschema checks with its own classes, by floats."""
        schema = json_text.values(found)
        return schema, str(schema.pop("$schema", "")) if isinstance(schema, dict) else ""

    try:
        kind = validator_for(json_text.natural_values(text))
        kind.check_schema(json_text.natural_values(text))
    except Exception as error:  # of whatever type a schema leads to
        why = error.message if isinstance(error, SchemaError) else f"{type(error).__name__}: {error}"
        raise SettingError("schema", short(text), f"a JSON Schema ({short(why)})") from error
    known = Known()
    for name, found in referred:
        contents, dialect = parsed(found)
        known = known.with_resource(name, specification_with(dialect, default=DRAFT202012).create_resource(contents))
    return exact(kind)(parsed(text)[0], registry=known)


@cache
def _registered_json(registry: Registry, schema_id: int) -> Any:
    referred: dict[str, str] = {}

    def follow(found: Mapping[str, Any]) -> None:
        for reference in found.get("references") or ():
            if reference["name"] not in referred:
                there = registry.referred(reference)
                referred[reference["name"]] = there["schema"]
                follow(there)

    found = of_kind(registry.schema(schema_id), "JSON", schema_id)
    follow(found)
    try:
        return _json_validator(found["schema"], tuple(referred.items()))
    except ValueError as error:  # of SettingError, too
        raise MalformedError(f"its schema {schema_id} in the registry {registry.url} is none of JSON: {short(str(error))}") from error


def _first_error(validator: Any, value: object) -> Any:
    """Return the error of a value that says most; None: it has none. Raises SourceError for a schema that refers to what is not there."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        return best_match(validator.iter_errors(value))
    except Unresolvable as error:
        raise SourceError(f"A JSON Schema refers to {error.ref!r}, which is neither in it nor among its references. Nothing was sent.") from error
    except Exception as error:  # of whatever type a value leads to
        raise MalformedError(f"it cannot be checked: {type(error).__name__}: {short(str(error))}") from error


@cache
def _avro(text: str) -> Any:
    fastavro = needed("fastavro", "avro")
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:
        raise SettingError("schema", short(text), f"a schema of Avro ({error})") from error


def _is_recursive(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Whether a schema of Avro that was parsed has a record that may be in itself."""
    if isinstance(schema, list):
        return any(_is_recursive(each, within) for each in schema)
    if not isinstance(schema, dict):
        return schema in within
    inside = within | {schema["name"]} if "fields" in schema else within
    parts = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
    return any(_is_recursive(each, inside) for each in parts if each is not None) or (
        isinstance(schema["type"], dict | list) and _is_recursive(schema["type"], within)
    )


@cache
def _registered_avro(registry: Registry, schema_id: int) -> Any:
    fastavro = needed("fastavro", "avro")
    named: dict[str, Any] = {}

    def parsed(found: Mapping[str, Any]) -> Any:
        for reference in found.get("references") or ():
            parsed(registry.referred(reference))
        return fastavro.parse_schema(json.loads(found["schema"]), named_schemas=named)

    found = of_kind(registry.schema(schema_id), "AVRO", schema_id)
    try:
        return parsed(found)
    except SourceError:
        raise
    except Exception as error:
        raise MalformedError(f"its schema {schema_id} in the registry {registry.url} is none of Avro: {short(str(error))}") from error


def as_json(value: object) -> bytes:
    """Return what was decoded as JSON: decimals, NaN and infinity as text. Raises MalformedError."""
    try:
        with suppress(ValueError):  # of NaN, infinity, half of a surrogate pair
            return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False).encode()
        return json_text.written(_plain(value)).encode()
    except Exception as error:
        raise MalformedError(f"its values have no JSON: {type(error).__name__}: {short(str(error))}") from error


def _plain(value: object) -> object:
    return json_value(value, lambda number: str(number) if isinstance(number, Decimal) else number_or_text(number))


def short(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} …"
