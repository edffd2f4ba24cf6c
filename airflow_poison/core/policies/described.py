"""The messaging systems and their settings, described: read from the policies and their docstrings, which are the one place for these texts."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Final, get_args, get_type_hints

from airflow_poison.core.errors import SettingError
from airflow_poison.core.nearest import folded, nearest
from airflow_poison.core.policies import SYSTEMS, policy_class, settings
from airflow_poison.core.policies.base import SystemSettings

if TYPE_CHECKING:
    from dataclasses import Field
    from typing import Any


class Kind(StrEnum):
    """What a setting's value is."""

    DURATION = "duration"
    WHOLE_NUMBER = "whole number"
    TRUE_OR_FALSE = "true or false"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a messaging system.

    :param aliases: the manuals' other words for it.
    :param values: the values of a choice.
    :param choices: those of them that this system accepts.
    :param optional: whether it can have no value.
    :param default: as JSON: a duration in seconds.
    :param meaning: its line of the policy's docstring.
    """

    name: str
    aliases: tuple[str, ...]
    kind: Kind
    values: tuple[str, ...]
    choices: tuple[str, ...]
    optional: bool
    default: object
    meaning: str


@dataclass(frozen=True, slots=True)
class System:
    """A messaging system.

    :param name: the name that policies are stored under.
    :param title: its name as people know it.
    :param summary: its rules in a line.
    """

    name: str
    title: str
    summary: str
    settings: tuple[Setting, ...]


def system_named(word: str) -> str:
    """Return the system that a word names, in any case and with any signs between its parts. Raises SettingError."""
    for system in SYSTEMS:
        if folded(word) == folded(system):
            return system
    raise SettingError("system", word, f"{', '.join(SYSTEMS)}; the nearest is {nearest(word, SYSTEMS)}")


def settings_class(system: str) -> type[SystemSettings]:
    """Return the settings of a messaging system. Raises SettingError for a name that is none."""
    found = policy_class(system)
    assert issubclass(found, SystemSettings)
    return found


def describe(system: str) -> System:
    """Return the description of a messaging system. Raises SettingError for a name that is none."""
    policy = settings_class(system)
    told = inspect.getdoc(sys.modules[policy.__module__]) or ""
    summary = _plain(told.partition("\n")[0].partition(": ")[2]).rstrip(".")
    return System(system, policy.title, summary, settings_of(policy))


def settings_of(policy: type[SystemSettings]) -> tuple[Setting, ...]:
    """Return the settings of a policy, in its order."""
    told = _told(policy)
    with settings.stored():
        defaults = settings.to_json(policy())
    return tuple(_setting(policy, field, defaults[field.name], told.get(field.name, "")) for field in fields(policy))


def _setting(policy: type[SystemSettings], field: Field[Any], default: object, meaning: str) -> Setting:
    types = _types(policy, field)
    values = tuple(str(value) for found in types if issubclass(found, StrEnum) for value in found)
    kind = next((kind for kind, of in _KINDS.items() if of in types), Kind.TEXT)
    return Setting(
        name=field.name,
        aliases=tuple(alias for alias, name in policy.aliases.items() if name == field.name),
        kind=Kind.CHOICE if values else kind,
        values=values,
        choices=tuple(value for value in values if _accepts(policy, field.name, value)),
        optional=NoneType in types,
        default=default,
        meaning=meaning,
    )


_KINDS: Final = {Kind.DURATION: timedelta, Kind.TRUE_OR_FALSE: bool, Kind.WHOLE_NUMBER: int}


def _types(policy: type[SystemSettings], field: Field[Any]) -> tuple[type, ...]:
    """Return the types that a field may have; its annotation is a text of the module that declares it."""
    owner = next(owner for owner in policy.__mro__ if field.name in inspect.get_annotations(owner))
    hint = get_type_hints(SimpleNamespace(__annotations__={field.name: field.type}), vars(sys.modules[owner.__module__]))[field.name]
    return get_args(hint) or (hint,)


def _accepts(policy: type[SystemSettings], name: str, value: object) -> bool:
    with settings.stored():
        try:
            policy(**{name: value})
        except SettingError:
            return False
    return True


# Docstrings -----------------------------------------------------------------------------------------------------

_PARAM: Final = re.compile(r"^:param (\w+): (.*?)(?=\n:param |\n\n|\Z)", re.DOTALL | re.MULTILINE)


def _told(policy: type[SystemSettings]) -> dict[str, str]:
    """Return what the ``:param`` lines of a policy and its bases say."""
    docs = [inspect.cleandoc(base.__doc__ or "") for base in reversed(policy.__mro__)]
    return {name: _plain(text) for doc in docs for name, text in _PARAM.findall(doc)}


def _plain(text: str) -> str:
    """Return a text in one line, without marks and without the statements of the specification that it cites."""
    line = " ".join(text.replace("``", "").split())
    line = re.sub(r" \(spec [^();]*\)", "", line)
    line = re.sub(r"\(spec [^();]*; ", "(", line)
    return re.sub(r", spec [^();]*\)", ")", line)
