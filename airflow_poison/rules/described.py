"""The messaging systems and their settings as people read and type them.

Descriptions are read from the policies and their docstrings, which are the one place for these texts. Typed settings have the manuals' words and
values, durations with units, ``yes`` and ``no``: ``from_dict`` takes JSON values, so a text is first turned into the JSON value that the setting
needs. What no text can mean is left as it is, and the policy refuses it with its own words.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, fields
from datetime import timedelta
from enum import StrEnum
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, assert_never, get_args, get_type_hints

from airflow_poison.rules import SYSTEMS, policy_class, settings
from airflow_poison.rules.settings import LONGEST
from airflow_poison.values.clock import EXAMPLES, is_bare_number, read_duration, show_duration
from airflow_poison.values.errors import SettingError
from airflow_poison.values.texts import folded, nearest

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy


class SettingKind(StrEnum):
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
    :param choices: the ones that this system accepts.
    :param optional: whether it can have no value.
    :param default: as JSON: a duration in seconds.
    :param meaning: its line of the policy's docstring.
    """

    name: str
    aliases: tuple[str, ...]
    kind: SettingKind
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


def describe(system: str) -> System:
    """Return the description of a messaging system. Raises SettingError for a name that is none."""
    policy = policy_class(system)
    doc = inspect.getdoc(sys.modules[policy.__module__]) or ""
    summary = _plain(doc.partition("\n")[0].partition(": ")[2]).rstrip(".")
    return System(system, policy.title, summary, settings_of(policy))


def settings_of(policy: type[Policy]) -> tuple[Setting, ...]:
    """Return the settings of a policy, in its order."""
    texts = _params(policy)
    with settings.stored():
        defaults = settings.to_json(policy())
    return tuple(_setting(policy, field, defaults[field.name], texts.get(field.name, "")) for field in fields(policy))


def _setting(policy: type[Policy], field: Field[Any], default: object, meaning: str) -> Setting:
    types = _types(policy, field)
    values = tuple(str(value) for found in types if issubclass(found, StrEnum) for value in found)
    kind = next((kind for kind, of in _KINDS.items() if of in types), SettingKind.TEXT)
    return Setting(
        name=field.name,
        aliases=tuple(alias for alias, name in policy.aliases.items() if name == field.name),
        kind=SettingKind.CHOICE if values else kind,
        values=values,
        choices=tuple(value for value in values if _accepts(policy, field.name, value)),
        optional=NoneType in types,
        default=default,
        meaning=meaning,
    )


_KINDS: Final = {SettingKind.DURATION: timedelta, SettingKind.TRUE_OR_FALSE: bool, SettingKind.WHOLE_NUMBER: int}


def _types(policy: type[Policy], field: Field[Any]) -> tuple[type, ...]:
    """Return the types that a field may have; its annotation is a text of the module that declares it."""
    owner = next(owner for owner in policy.__mro__ if field.name in inspect.get_annotations(owner))
    hint = get_type_hints(SimpleNamespace(__annotations__={field.name: field.type}), vars(sys.modules[owner.__module__]))[field.name]
    return get_args(hint) or (hint,)


def _accepts(policy: type[Policy], name: str, value: object) -> bool:
    with settings.stored():
        try:
            policy(**{name: value})
        except SettingError:
            return False
    return True


# Docstrings -----------------------------------------------------------------------------------------------------

_PARAM: Final = re.compile(r"^:param (\w+): (.*?)(?=\n:param |\n\n|\Z)", re.DOTALL | re.MULTILINE)


def _params(policy: type[Policy]) -> dict[str, str]:
    """Return what the ``:param`` lines of a policy and its bases say."""
    docs = [inspect.cleandoc(base.__doc__ or "") for base in reversed(policy.__mro__)]
    return {name: _plain(text) for doc in docs for name, text in _PARAM.findall(doc)}


def _plain(text: str) -> str:
    """Return a text in one line, without marks and without the statements of the specification that it cites."""
    line = " ".join(text.replace("``", "").split())
    line = re.sub(r" \(spec [^();]*\)", "", line)
    line = re.sub(r"\(spec [^();]*; ", "(", line)
    return re.sub(r", spec [^();]*\)", ")", line)


_WORDS: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NOTHING: Final = frozenset({"", "none", "null"})
_WHOLE_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def typed_policy(system: str, *groups: Mapping[str, object]) -> Policy:
    """Return the policy of a messaging system; a later group of settings overrides an earlier one, whatever words they use.

    >>> typed_policy("ActivationSpecification", {"BOTHRESH": "5", "HARDENBO": "YES", "BOQNAME": "ORDERS.BACKOUT"}).backout_threshold
    5

    :param system: its name, in any case.
    :param groups: settings by name; a text is read as people write the value, anything else is a JSON value.

    Raises SettingError. Warns as the policy does.
    """
    policy = policy_class(system_named(system))
    arguments: dict[str, Any] = {}
    for group in groups:
        arguments |= policy.arguments(typed_settings(policy, group))
    try:
        return policy(**arguments)
    except SettingError as error:
        raise _in_words(error) from None


def typed_settings(policy: type[Policy], typed: Mapping[str, object]) -> dict[str, object]:
    """Return settings as ``from_dict`` and ``altered`` take them. Raises SettingError for an unknown name and a text that is no duration."""
    known = {setting.name: setting for setting in settings_of(policy)}
    found: dict[str, object] = {}
    for given, value in typed.items():
        word = _word(policy, given, known)
        name = policy.aliases.get(word, word)
        plain: object
        if isinstance(value, str) and name in known and known[name].kind is SettingKind.DURATION:
            word, plain = _seconds(word, name, value)
        else:
            plain = _json_value(known.get(name), value)
        if word in found:
            raise SettingError(given, value, f"one word for {name}: it was given twice")
        found[word] = plain
    return found


def _word(policy: type[Policy], given: str, known: Collection[str]) -> str:
    """Return the word that the policy knows for a setting, ours or the manual's. Raises SettingError for one that it does not know."""
    aliases = [alias for alias, name in policy.aliases.items() if name in known]
    words = {folded(word): word for word in (*aliases, *known)}
    if folded(given) in words:
        return words[folded(given)]
    try:
        policy.arguments({given: 0})  # some policies understand words that stand for several settings
    except SettingError:
        close = nearest(given, words.values())
        ours = policy.aliases.get(close, close)
        hint = close if close == ours else f"{close} ({ours})"
        raise SettingError("setting", given, f"a setting of {policy.system}; the nearest is {hint}") from None
    return given


def _seconds(word: str, name: str, text: str) -> tuple[str, float]:
    """Return a duration under the manual's word when it is a bare number, for its unit is the manual's; else under our name, in seconds."""
    span = read_duration(text)
    if span is None:
        raise SettingError(word, text, f"a duration such as {EXAMPLES}")
    if span > LONGEST:
        raise SettingError(word, text, f"a duration up to {show_duration(LONGEST)}")
    return (word if is_bare_number(text) else name), span.total_seconds()


def _json_value(setting: Setting | None, value: object) -> object:
    """Return what a text means as a value of a setting, or the text itself when it means nothing there."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    kind = setting.kind if setting else SettingKind.WHOLE_NUMBER
    if setting and setting.optional and text.lower() in _NOTHING:
        return None
    match kind:
        case SettingKind.WHOLE_NUMBER:
            return int(text) if _WHOLE_NUMBER.fullmatch(text) else value
        case SettingKind.TRUE_OR_FALSE:
            return _WORDS.get(text.lower(), value)
        case SettingKind.CHOICE:
            choices = {folded(choice): choice for choice in setting.values} if setting else {}
            return choices.get(folded(text), value)
        case SettingKind.TEXT | SettingKind.DURATION:
            return value
        case _:
            assert_never(kind)


def _in_words(error: SettingError) -> SettingError:
    """Say a duration that a policy refuses as people write it."""
    if not isinstance(error.value, timedelta):
        return error
    return SettingError(error.setting, show_duration(error.value), error.allowed.replace("timedelta", "duration"))
