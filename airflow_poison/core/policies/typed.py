"""Settings as people type them: the manuals' words and values, durations with units, ``yes`` and ``no``.

``from_dict`` takes JSON values; here a text is first turned into the JSON value that the setting needs. What no text can mean is left as it
is, so that the policy refuses it with its own words.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never, cast

from airflow_poison.core.durations import EXAMPLES, is_bare_number, read_duration, show_duration
from airflow_poison.core.errors import SettingError
from airflow_poison.core.nearest import folded, nearest
from airflow_poison.core.policies.described import Kind, Setting, settings_class, settings_of, system_named
from airflow_poison.core.policies.settings import LONGEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_poison.core.policies.base import SystemSettings
    from airflow_poison.core.policies.seam import Policy

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
    policy = settings_class(system_named(system))
    arguments: dict[str, Any] = {}
    for group in groups:
        arguments |= policy.arguments(typed_settings(policy, group))
    try:
        return cast("Policy", policy(**arguments))
    except SettingError as error:
        raise _in_words(error) from None


def typed_settings(policy: type[SystemSettings], typed: Mapping[str, object]) -> dict[str, object]:
    """Return settings as ``from_dict`` and ``altered`` take them. Raises SettingError for an unknown name and a text that is no duration."""
    known = {setting.name: setting for setting in settings_of(policy)}
    found: dict[str, object] = {}
    for given, value in typed.items():
        word = _word(policy, given, known)
        name = policy.aliases.get(word, word)
        plain: object
        if isinstance(value, str) and name in known and known[name].kind is Kind.DURATION:
            word, plain = _seconds(word, name, value)
        else:
            plain = _json_value(known.get(name), value)
        if word in found:
            raise SettingError(given, value, f"one word for {name}: it was given twice")
        found[word] = plain
    return found


def _word(policy: type[SystemSettings], given: str, known: Collection[str]) -> str:
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
    kind = setting.kind if setting else Kind.WHOLE_NUMBER
    if setting and setting.optional and text.lower() in _NOTHING:
        return None
    match kind:
        case Kind.WHOLE_NUMBER:
            return int(text) if _WHOLE_NUMBER.fullmatch(text) else value
        case Kind.TRUE_OR_FALSE:
            return _WORDS.get(text.lower(), value)
        case Kind.CHOICE:
            choices = {folded(choice): choice for choice in setting.values} if setting else {}
            return choices.get(folded(text), value)
        case Kind.TEXT | Kind.DURATION:
            return value
        case _:
            assert_never(kind)


def _in_words(error: SettingError) -> SettingError:
    """Say a duration that a policy refuses as people write it."""
    if not isinstance(error.value, timedelta):
        return error
    return SettingError(error.setting, show_duration(error.value), error.allowed.replace("timedelta", "duration"))
