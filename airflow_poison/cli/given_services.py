"""The services that ``--services`` names: imported as handlers are, and declared on the queue."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_poison.cli.telling import others_on_stderr
from airflow_poison.core.conversations.services import Service
from airflow_poison.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def given_services(names: Sequence[str]) -> tuple[Service, ...]:
    """Return the services of ``MODULE:NAME`` texts. Raises InputError."""
    found: dict[str, Service] = {}
    for name in names:
        for service in _services(name):
            if service.name in found:
                raise InputError(f"--services: service {service.name} is given twice.")
            found[service.name] = service
    return tuple(found.values())


def _services(name: str) -> Sequence[Service]:
    thing = _imported(name)
    if isinstance(thing, Service):
        return [thing]
    if isinstance(thing, list | tuple) and thing and all(isinstance(each, Service) for each in thing):
        return thing
    raise InputError(f"--services {name}: expected a Service, or a list or tuple of them, not {_kind(thing)}.")


def _kind(thing: object) -> str:
    kind = type(thing).__name__
    if not isinstance(thing, list | tuple):
        return kind
    other = next((type(each).__name__ for each in thing if not isinstance(each, Service)), None)
    return f"an empty {kind}" if other is None else f"a {kind} with {other}"


def _imported(name: str) -> object:
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise InputError(f"--services {name}: expected MODULE:NAME, for example shop.contracts:warehouse.")
    try:
        with others_on_stderr():
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a module raises that is imported
        raise InputError(
            f"--services {name}: importing the module {module_name!r} failed with {type(error).__name__}: {error}. "
            "Modules of the current folder and of --py-files are found; install others, or add their folder to PYTHONPATH."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(found, "__file__", None) or "built in"
            raise InputError(f"--services {name}: the module {module_name!r} ({where}) has no {attribute!r}. Correct the name, or define it there.")
        found = getattr(found, part)
    return found
