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
from collections.abc import Callable
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
from airflow_poison.values.json_values import json_value, number_or_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    why = ""
    for number in range(_TRIES):
        time.sleep(number * 0.5)
        try:
            with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310  (as above)
                found: Any = json.load(answer)
                if isinstance(found, dict) and isinstance(found.get("schema"), str):
                    return found
                why = "it answers with no schema"
                break
        except HTTPError as error:
            with error:
                why, code = f"{error.code} {error.reason}", _code_of(error)
            if code in _NOT_THERE:
                raise LookupError(path) from None
            if error.code < _SERVER_ERROR:
                break
        except (URLError, OSError, ValueError) as error:
            why = str(error)
    raise SourceError(
        f"The schema registry {registry.url} does not answer {path}: {why}. Check its address, and its user and password. Nothing was sent."
    )


def _code_of(error: HTTPError) -> object:
    try:
        answer = json.load(error)
    except (ValueError, OSError):
        return None
    return answer.get("error_code") if isinstance(answer, dict) else None


class Schema(ABC):
    """What bodies of records have to be. Making one reads nothing and imports nothing heavy; it can be pickled."""

    @abstractmethod
    def decode(self, body: bytes) -> bytes:
        """Return the message's body: the same bytes, or what was decoded as JSON. Raises MalformedError, which says what is wrong."""

    def connected(self, find: Callable[[str], Connection]) -> Schema:
        """Return the schema with the connections that it names looked up; itself when it names none."""
        del find
        return self


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
        reader, walk = (None, _walk_fixed(0)) if self.schema is None else _avro(_as_text(self.schema, ""))
        if self.known_registry is None:
            found, writer = body, reader
        else:
            schema_id, found = split(body)
            writer, walk = _registered_avro(self.known_registry, schema_id)
        try:
            walk(found, 0)  # before: in C a recursion that is too deep ends the process
            value = fastavro.schemaless_reader(io.BytesIO(found), writer, None if writer is reader else reader)
        except MalformedError as error:
            raise MalformedError(f"it is no record of its Avro schema: {error}") from error
        except Exception as error:  # its reader raises whatever the bytes lead it to
            raise MalformedError(f"it is no record of its Avro schema: {type(error).__name__}: {short(str(error))}") from error
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
def _avro(text: str) -> tuple[Any, _Walk]:
    fastavro = needed("fastavro", "avro")
    try:
        parsed = fastavro.parse_schema(json.loads(text))
        return parsed, _walk_all(_walk(parsed, {}))
    except Exception as error:
        raise SettingError("schema", short(text), f"a schema of Avro ({error})") from error


_Walk = Callable[[bytes, int], int]
"""Returns where a value of Avro ends that begins at a place. Raises MalformedError for one that its schema does not have."""
_WIDTHS = {"null": 0, "float": 4, "double": 8}
_MOST = {"int-time-millis": 86_400_000 - 1, "long-time-micros": 86_400_000_000 - 1}
_WITHOUT_BYTES = 1_000
"""Values that take no bytes, in one block: a few bytes could say that there are billions."""


def _walk(schema: Any, known: dict[str, _Walk]) -> _Walk:
    """Return what finds the values of a schema that was parsed which fastavro reads as others, or without end.

    :param known: gets the named types.
    """
    if isinstance(schema, list):
        return _walk_union([_walk(each, known) for each in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in {"record", "error", "fixed", "enum"}:
        known[schema["name"]] = found = _walk_named(schema, known)
        return found
    if kind in {"array", "map"}:
        return _walk_blocks(_walk(schema["items" if kind == "array" else "values"], known), is_map=kind == "map")
    return _walk_simple(kind, schema if isinstance(schema, dict) else {}, known)


def _walk_all(walk: _Walk) -> _Walk:
    """Return what also refuses bytes that are left, or that lack."""

    def whole(data: bytes, place: int) -> int:
        if (end := walk(data, place)) != len(data):
            raise MalformedError(f"its values take {end} bytes, and it has {len(data)}")
        return end

    return whole


def _walk_simple(kind: str, schema: Mapping[str, Any], known: Mapping[str, _Walk]) -> _Walk:
    if kind in _WIDTHS:
        return _walk_fixed(_WIDTHS[kind])
    if kind in {"int", "long"}:
        return _walk_whole(32 if kind == "int" else 64, _MOST.get(f"{kind}-{schema.get('logicalType')}"))
    if kind in {"string", "bytes"}:
        return _digits_of(_walk_bytes, schema)
    return _walk_boolean if kind == "boolean" else lambda data, place: known[kind](data, place)  # noqa: PLW0108  (it may not be known yet)


def _walk_named(schema: Mapping[str, Any], known: dict[str, _Walk]) -> _Walk:
    if schema["type"] == "fixed":
        return _digits_of(_walk_fixed(schema["size"]), schema)
    if schema["type"] == "enum":
        return _walk_whole(32, len(schema["symbols"]) - 1)
    fields = [_walk(field["type"], known) for field in schema["fields"]]

    def walk(data: bytes, place: int) -> int:
        for each in fields:
            place = each(data, place)
        return place

    return walk


def _whole(data: bytes, place: int, bits: int = 64) -> tuple[int, int]:
    """Return a whole number, and where it ends. Raises MalformedError for one that has more bits."""
    found = shift = 0
    while (byte := data[place]) > 0x7F and shift < bits:  # noqa: PLR2004  (the highest bit: more follows)
        found |= (byte & 0x7F) << shift
        shift += 7
        place += 1
    found |= byte << shift
    if found >> bits:
        raise MalformedError(f"a whole number at byte {place} has more than {bits} bits")
    return (found >> 1) ^ -(found & 1), place + 1


def _walk_whole(bits: int, most: int | None) -> _Walk:
    def walk(data: bytes, place: int) -> int:
        found, end = _whole(data, place, bits)
        if most is not None and not 0 <= found <= most:
            raise MalformedError(f"the number at byte {place} is {found}; expected 0 to {most}")
        return end

    return walk


def _walk_fixed(size: int) -> _Walk:
    return lambda _data, place: place + size


def _walk_bytes(data: bytes, place: int) -> int:
    size, begin = _whole(data, place)
    if size < 0:
        raise MalformedError(f"the length at byte {place} is {size}")
    return begin + size


def _walk_boolean(data: bytes, place: int) -> int:
    if data[place] > 1:
        raise MalformedError(f"the truth value at byte {place} is {data[place]}; expected 0 or 1")
    return place + 1


def _digits_of(walk: _Walk, schema: Mapping[str, Any]) -> _Walk:
    """Return what also refuses a decimal with more digits than its type has, which fastavro would round."""
    precision = schema.get("precision")
    if schema.get("logicalType") != "decimal" or not isinstance(precision, int):
        return walk

    def digits(data: bytes, place: int) -> int:
        end = walk(data, place)
        begin = end - schema["size"] if "size" in schema else _whole(data, place)[1]
        if abs(int.from_bytes(data[begin:end], "big", signed=True)) >= 10**precision:
            raise MalformedError(f"the decimal at byte {begin} has more than {precision} digits")
        return end

    return digits


def _walk_union(kinds: Sequence[_Walk]) -> _Walk:
    def walk(data: bytes, place: int) -> int:
        kind, begin = _whole(data, place)
        if not 0 <= kind < len(kinds):
            raise MalformedError(f"the number of a type at byte {place} is {kind}; expected 0 to {len(kinds) - 1}")
        return kinds[kind](data, begin)

    return walk


def _walk_blocks(item: _Walk, *, is_map: bool) -> _Walk:
    """Return what walks along an array or a map, each block of which says how many there are; a negative number is followed by its bytes."""

    def walk(data: bytes, place: int) -> int:
        names = set[bytes]()
        count, place = _whole(data, place)
        while count:
            if count < 0:
                count, (_, place) = -count, _whole(data, place)
            begin = place
            for _ in range(count):
                place = item(data, _behind_name(data, place, names) if is_map else place)
                if place > len(data) or (place == begin and count > _WITHOUT_BYTES):
                    raise MalformedError(
                        f"{count} values are said to begin at byte {begin}, which are more than there are, or than may be without bytes"
                    )
            count, place = _whole(data, place)
        return place

    return walk


def _behind_name(data: bytes, place: int, names: set[bytes]) -> int:
    """Return where the value of a map begins. Raises MalformedError for a name that stands twice: one of its values would be lost."""
    (_, begin), end = _whole(data, place), _walk_bytes(data, place)
    if (name := data[begin:end]) in names:
        raise MalformedError(f"the name {short(repr(name))} stands twice in one map")
    names.add(name)
    return end


@cache
def _registered_avro(registry: Registry, schema_id: int) -> tuple[Any, _Walk]:
    fastavro = needed("fastavro", "avro")
    named: dict[str, Any] = {}
    known: dict[str, _Walk] = {}

    def parsed(found: Mapping[str, Any]) -> tuple[Any, _Walk]:
        for reference in found.get("references") or ():
            parsed(registry.referred(reference))
        schema = fastavro.parse_schema(json.loads(found["schema"]), named_schemas=named)
        return schema, _walk_all(_walk(schema, known))

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
