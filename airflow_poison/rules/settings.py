"""Checks of settings, and their JSON form: shared by every messaging system's policy (spec WCF-11)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial, wraps
from inspect import isfunction, signature
from math import isfinite
from operator import index
from typing import Any, ClassVar, Protocol, SupportsIndex, TypeVar

from airflow_poison.values.clock import is_bare_number, read_duration
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.texts import nearest

LARGEST = 2_147_483_647
"""The largest whole number that a setting takes."""

LONGEST = timedelta(days=36_500)
"""The longest duration that a setting takes; any instant of our days plus this is still a date."""

TICK = timedelta(microseconds=1)
"""The shortest duration that is one."""

Check = Callable[[str, object], object]
"""Returns the checked value of a setting. Raises SettingError."""

Meaning = Callable[[str, str, object], object]
"""Returns what a value means: of the word that was given for a setting, the setting's name, and the value."""

Choice = TypeVar("Choice", bound=StrEnum)
Class = TypeVar("Class", bound=type)

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


def whole(number: SupportsIndex) -> int:
    """Return a whole number of Python's or of numpy's. Raises TypeError for what is none, such as a truth value."""
    if isinstance(number, bool):
        raise TypeError("a truth value is no number")
    return index(number)


def whole_ids(lookup_ids: Collection[int]) -> frozenset[int]:
    """Return lookup ids as whole numbers. Raises SettingError for what is none."""
    try:
        return frozenset(map(whole, lookup_ids))
    except TypeError:
        raise SettingError("lookup_ids", lookup_ids, "a list of whole numbers, for example [7, 8]") from None


def duration(setting: str, value: object, least: timedelta = timedelta(0)) -> timedelta:
    """Return a plain timedelta of at least ``least``; a pendulum Duration is one, and a text with a unit means one. Raises SettingError."""
    if isinstance(value, str):
        value = _meant(setting, value)
    if not isinstance(value, timedelta) or not least <= value <= LONGEST:
        raise SettingError(setting, value, f"a timedelta from {least} to {LONGEST}")
    return timedelta(seconds=value.total_seconds())


def instant(setting: str, value: object) -> datetime:
    """Return an instant, of a text or a date, too; without an offset it is UTC. Raises SettingError."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SettingError(setting, value, "an instant in ISO 8601, for example 2026-11-25T10:00:00+00:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def seconds(setting: str, value: object) -> timedelta:
    """Return the duration that JSON keeps as a number of seconds, or as a text with a unit. Raises SettingError."""
    if isinstance(value, str):
        return _meant(setting, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or abs(value) > LONGEST.total_seconds():
        raise SettingError(setting, value, f"a number of seconds up to {LONGEST.total_seconds():.0f}")
    return timedelta(seconds=value)


def _meant(setting: str, text: str) -> timedelta:
    """Return the duration of a text. A bare number has no unit here: the manuals' words have units of their own."""
    found = None if is_bare_number(text) else read_duration(text)
    if found is None or found > LONGEST:
        raise SettingError(setting, text, f"a number of seconds, or a duration with its unit such as 30m, 1h30m or PT30M, up to {LONGEST.days} days")
    return found


def as_seconds(span: timedelta) -> float:
    """Return a duration's seconds as JSON keeps them: as a whole number when they are one."""
    total = span.total_seconds()
    return int(total) if total.is_integer() else total


def as_it_is(given: str, name: str, value: object) -> object:  # noqa: ARG001  (a Meaning)
    """Return the value."""
    return value


def flag(setting: str, value: object) -> bool:
    """Return a bool; nothing else is one. Raises SettingError."""
    if not isinstance(value, bool):
        raise SettingError(setting, value, "True or False")
    return value


def several(setting: str, value: object, of: str = "a list") -> Iterable[Any]:
    """Return several values; a text is none. Raises SettingError."""
    if isinstance(value, str | type) or not isinstance(value, Iterable):
        raise SettingError(setting, value, of)
    return value


def choice(setting: str, value: object, choices: type[Choice]) -> Choice:
    """Return the member of an enum that a text names. Raises SettingError."""
    if isinstance(value, str) and value in set(choices):
        return choices(value)
    raise SettingError(setting, value, ", ".join(choices))


def optional(check: Check) -> Check:
    """Return the check of a setting that can have no value."""
    return lambda setting, value: value if value is None else check(setting, value)


def checks_arguments(*classes: str) -> Callable[[Class], Class]:
    """Let the public methods of a class refuse arguments that are plainly none, by what their annotations say; durations may be texts with a unit.

    The methods raise SettingError then, before anything is done.

    :param classes: annotations that are names of classes, which are not imported for this.
    """

    def checking(of: Class) -> Class:
        for name, method in list(vars(of).items()):
            if isfunction(method) and not name.startswith("_"):
                setattr(of, name, _checked(method, classes))
        return of

    return checking


def _checked(method: Callable[..., Any], classes: Collection[str]) -> Callable[..., Any]:
    described = signature(method)
    checks = {name: check for name, each in described.parameters.items() if (check := _check_of(str(each.annotation), classes)) is not None}

    @wraps(method)
    def checking(*args: Any, **kwargs: Any) -> Any:
        given = described.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in checks:
                given.arguments[name] = checks[name](name, value)
        return method(*given.args, **given.kwargs)

    return checking if checks else method


def _check_of(annotation: str, classes: Collection[str]) -> Check | None:
    kind = annotation.removesuffix(" | None")
    check: Check | None = next((check for form, check in _CHECKS.items() if re.fullmatch(form, kind)), None)
    if kind in classes:
        check = partial(_instance, kind)
    return check if check is None or kind == annotation else optional(check)


def _text(setting: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingError(setting, value, "text")
    return value


def _index(setting: str, value: Any) -> int:
    try:
        return whole(value)
    except TypeError:
        raise SettingError(setting, value, "a whole number") from None


def _called(setting: str, value: object) -> object:
    if not callable(value):
        raise SettingError(setting, value, "a function")
    return value


def _instance(kind: str, setting: str, value: object) -> object:
    if not any(each.__name__ == kind for each in type(value).__mro__):
        raise SettingError(setting, value, f"a {kind}")
    return value


_CHECKS: Mapping[str, Check] = {
    r"(\w+ \| )?str": _text,
    "int": _index,
    "bool": flag,
    "timedelta": duration,
    "datetime": instant,
    r"Callable\[.*": _called,
    r"(Collection|Iterable)\[(?!int|Any).*": several,
}


def put(policy: object, **checked: object) -> None:
    """Store checked values in a frozen dataclass, from its ``__post_init__``."""
    for name, value in checked.items():
        object.__setattr__(policy, name, value)


def check(policy: Settings, checks: Mapping[str, Check]) -> None:
    """Check every setting, from ``__post_init__``: as ``checks`` say, else by the kind of its default. Raises SettingError."""
    for field in fields(policy):
        checked = checks.get(field.name) or _check_like(field.default)
        put(policy, **{field.name: checked(field.name, getattr(policy, field.name))})


def _check_like(default: object) -> Check:
    match default:
        case bool():
            return flag
        case int():
            return whole_number
        case timedelta():
            return duration
        case StrEnum():
            return partial(choice, choices=type(default))
        case _:
            return lambda _, value: value


def warn(text: ConfigurationWarning) -> None:
    """Warn the caller that constructs a policy; silent while a stored policy is read back, because its author was warned already.

    Called from ``__post_init__``, called from the constructor: the warning shows the constructor's caller.
    """
    if not _quiet.get():
        warnings.warn(text, stacklevel=4)


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


def from_json(policy: type[Settings], settings: Mapping[str, object], meant: Meaning = as_it_is) -> dict[str, Any]:
    """Return the keyword arguments of a policy from their JSON form; absent ones keep their defaults. Raises SettingError.

    :param meant: says what a value of the manual means.
    """
    defaults = {field.name: field.default for field in fields(policy)}
    if settings.get("system", policy.system) != policy.system:
        raise SettingError("system", settings["system"], policy.system)
    arguments: dict[str, Any] = {}
    aliases = {alias.lower(): name for alias, name in policy.aliases.items()}
    for given, value in settings.items():
        if not isinstance(given, str):
            raise SettingError("settings", settings, "a dict of settings by their names")
        name = given if given in defaults else aliases.get(given.lower(), given)
        if name in arguments:
            raise SettingError(given, value, f"one word for {name}: it was given twice")
        if name in defaults:
            plain = meant(given, name, value)
            arguments[name] = seconds(name, plain) if isinstance(defaults[name], timedelta) else plain
        elif name != "system":
            raise SettingError(name, value, f"a setting of {policy.system}; the nearest is {nearest(name, defaults)}")
    return arguments


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return as_seconds(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, StrEnum) else value
