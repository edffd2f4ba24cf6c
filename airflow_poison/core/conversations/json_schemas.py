"""JSON Schema for the bodies of a message type: beyond Service Broker, whose schemas are XML's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import NoReturn

_REFERENCES = ("$ref", "$dynamicRef")
_LONGEST_REASON = 300


def checked_schema(schema: object) -> dict[str, Any]:
    """Return a schema as plain JSON values. Raises SettingError for one that is none, or that needs another document.

    It is read as Draft 2020-12, or as the draft that its ``$schema`` names. ``format`` says something to people and refuses nothing.
    """
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, dict):
        raise SettingError("schema", schema, "a JSON Schema: a dict")
    plain = _plain(schema)
    _check_dialect(plain)
    try:
        _validator(plain).check_schema(plain)
    except SchemaError as error:
        raise SettingError("schema", schema, f"a valid JSON Schema ({error.message})") from error
    _check_references(plain)
    return plain


def misfit(schema: Mapping[str, Any], body: bytes) -> str | None:
    """Return why a body is no JSON that fits a schema; None: it fits."""
    from jsonschema.exceptions import best_match

    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        error = best_match(_validator(schema).iter_errors(value))
    except (ValueError, RecursionError, OverflowError) as problem:  # no JSON; nested too deeply; a number beyond all numbers
        return f"it is no JSON that can be checked: {problem}"[:_LONGEST_REASON]
    return None if error is None else f"at {error.json_path}: {error.message}"[:_LONGEST_REASON]


def _validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator that reads no other document: nothing is fetched."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


def _plain(schema: dict[Any, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError("schema", schema, f"JSON values only ({error})") from error
    return plain


def _check_dialect(schema: dict[str, Any]) -> None:
    from jsonschema.validators import validator_for

    if "$schema" in schema and validator_for(schema, default=None) is None:
        raise SettingError("$schema", schema["$schema"], "a draft of JSON Schema, for example 'https://json-schema.org/draft/2020-12/schema'")


def _check_references(schema: dict[str, Any]) -> None:
    """Raise SettingError for a reference that leads out of the schema, or nowhere in it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    kind = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    resolver = Registry().resolver_with_root(kind.create_resource(schema))
    for place in _places(schema):
        if place is not schema and isinstance(place.get("$id"), str):
            raise SettingError("$id", place["$id"], "only at the top of a schema")
        for reference in (place[word] for word in _REFERENCES if isinstance(place.get(word), str)):
            try:
                inside = reference.startswith("#") and resolver.lookup(reference)
            except Unresolvable:
                inside = False
            if not inside:
                raise SettingError("$ref", reference, "a place in the same schema, for example '#/$defs/item'")


def _places(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _places(part)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
