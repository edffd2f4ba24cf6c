"""Arguments of the simulation as people type them, turned into values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.clock import EXAMPLES, read_duration
from airflow_poison.core.errors import InputError
from airflow_poison.core.simulation.script import Action, Verb
from airflow_poison.core.texts import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

MOST_RECEIVES = 1_000_000


def system_of(system: str | None, *values: list[str] | None) -> str | None:
    """Return SYSTEM, also when it stands behind an option that takes several values, and was taken for one of them."""
    for given in values:
        if system is None and given and len(given) > 1 and not set(given[-1]) & set("=:"):
            return given.pop()
    return system


def pairs(flag: str, given: Iterable[str]) -> dict[str, str]:
    """Return what ``NAME=VALUE`` says, by name. Raises InputError."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise InputError(f"{flag} {text}: expected NAME=VALUE.")
        if name in found:
            raise InputError(f"{flag} {text}: {name} was given twice.")
        found[name] = value
    return found


def duration(flag: str, text: str) -> timedelta:
    """Return a duration. Raises InputError."""
    span = read_duration(text)
    if span is None:
        raise InputError(f"{flag} {text}: expected a duration such as {EXAMPLES}.")
    return span


def action(text: str) -> Action:
    """Return what ``AT:VERB``, ``AT:VERB:MESSAGE`` or ``AT:alter:NAME=VALUE,...`` says. Raises InputError."""
    at, _, rest = text.partition(":")
    word, _, what = rest.partition(":")
    verb = word.strip().lower().replace("-", "_")
    if verb not in set(Verb):
        hint = f"; the nearest is {nearest(verb, Verb)}" if verb else ""
        raise InputError(f"--action {text}: expected AT:VERB or AT:VERB:WHAT, and one of {', '.join(Verb)} as VERB{hint}.")
    span = duration(f"--action {text}:", at)
    if verb == Verb.ALTER:
        if not what:
            raise InputError(f"--action {text}: expected AT:alter:NAME=VALUE, with more of them behind commas.")
        return Action(span, Verb.ALTER, settings=pairs(f"--action {text}:", what.split(",")))
    return Action(span, Verb(verb), message=what.strip())


def receives(text: str) -> int:
    """Return a limit of receives. Raises InputError."""
    if text.isascii() and text.isdigit() and 0 < len(text) <= len(str(MOST_RECEIVES)) and 1 <= int(text) <= MOST_RECEIVES:
        return int(text)
    raise InputError(f"--most-receives {text}: expected a whole number from 1 to {MOST_RECEIVES}.")


def policy_json(place: str) -> dict[str, object]:
    """Return the JSON object of a file, or of standard input for ``-``. Raises InputError."""
    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as error:
        raise InputError(f"--policy-json {place}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--policy-json {place}: no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"--policy-json {place}: expected a JSON object of settings.")
    return found
