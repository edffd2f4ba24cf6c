"""Checks of settings, and their JSON form: shared by every messaging system's policy (spec WCF-11)."""

from __future__ import annotations

import difflib
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_poison.core.errors import ConfigurationWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field
    from typing import Any, ClassVar

LARGEST = 2_147_483_647
"""The largest whole number that a setting takes."""

LONGEST = timedelta(days=36_500)
"""The longest duration that a setting takes; any instant of our days plus this is still a date."""

Choice = TypeVar("Choice", bound=StrEnum)

_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)


class Settings(Protocol):
    """A dataclass whose fields are a policy's settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    system: ClassVar[str]
    aliases: ClassVar[Mapping[str, str]]


def whole_number(setting: str, value: object, least: int = 0, most: int = LARGEST, error: type[SettingError] = SettingError) -> int:
    """Return a whole number between two bounds; a bool or a float is none. Raises SettingError, or a kind of it."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise error(setting, value, f"a whole number from {least} to {most}")
    return int(value)


def duration(setting: str, value: object, least: timedelta = timedelta(0)) -> timedelta:
    """Return a plain timedelta of at least ``least`` (a pendulum Duration is one, too). Raises SettingError."""
    if not isinstance(value, timedelta) or not least <= value <= LONGEST:
        raise SettingError(setting, value, f"a timedelta from {least} to {LONGEST}")
    return timedelta(seconds=value.total_seconds())


def seconds(setting: str, value: object) -> timedelta:
    """Return the duration that JSON keeps as a number of seconds. Raises SettingError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or abs(value) > LONGEST.total_seconds():
        raise SettingError(setting, value, f"a number of seconds up to {LONGEST.total_seconds():.0f}")
    return timedelta(seconds=value)


def flag(setting: str, value: object) -> bool:
    """Return a bool; nothing else is one. Raises SettingError."""
    if not isinstance(value, bool):
        raise SettingError(setting, value, "True or False")
    return value


def choice(setting: str, value: object, choices: type[Choice]) -> Choice:
    """Return the member of an enum that a text names. Raises SettingError."""
    if isinstance(value, str) and value in set(choices):
        return choices(value)
    raise SettingError(setting, value, ", ".join(choices))


def put(policy: object, **checked: object) -> None:
    """Store checked values in a frozen dataclass, from its ``__post_init__``."""
    for name, value in checked.items():
        object.__setattr__(policy, name, value)


def warn(text: str, category: type[ConfigurationWarning] = ConfigurationWarning) -> None:
    """Warn whoever constructs a policy; silent while a stored policy is read back, because its author was warned already.

    Called from ``_warn``, called from ``__post_init__``, called from the constructor: the warning shows the constructor's caller.
    """
    if not _quiet.get():
        warnings.warn(text, category, stacklevel=5)


@contextmanager
def stored() -> Iterator[None]:
    """Read stored settings: they have been warned about when they were declared."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def to_json(policy: Settings) -> dict[str, object]:
    """Return every setting as a JSON value (durations as seconds), with ``system``."""
    return {"system": policy.system} | {field.name: _plain(getattr(policy, field.name)) for field in fields(policy)}


def from_json(policy: type[Settings], settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the keyword arguments of a policy from their JSON form; absent ones keep their defaults. Raises SettingError."""
    defaults = {field.name: field.default for field in fields(policy)}
    if settings.get("system", policy.system) != policy.system:
        raise SettingError("system", settings["system"], policy.system)
    arguments: dict[str, Any] = {}
    aliases = {alias.lower(): name for alias, name in policy.aliases.items()}
    for given, value in settings.items():
        name = given if given in defaults else aliases.get(given.lower(), given)
        if name in arguments:
            raise SettingError(given, value, f"one word for {name}: it was given twice")
        if name in defaults:
            arguments[name] = seconds(name, value) if isinstance(defaults[name], timedelta) else value
        elif name != "system":
            raise SettingError(name, value, f"a setting of {policy.system}{_nearest(name, list(defaults))}")
    return arguments


def _nearest(name: str, known: list[str]) -> str:
    folded = {candidate.replace("_", ""): candidate for candidate in known}
    close = difflib.get_close_matches(name.replace("_", "").lower(), folded, n=1, cutoff=0)
    return f"; the nearest is {folded[close[0]]}" if close else ""


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        total = value.total_seconds()
        return int(total) if total.is_integer() else total
    return str(value) if isinstance(value, StrEnum) else value
