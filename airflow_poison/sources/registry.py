"""A schema registry over HTTP, and the bytes by which a record names its schema there: a zero, and the schema's id in four bytes."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from airflow_poison.values.errors import MalformedError, SettingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

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
