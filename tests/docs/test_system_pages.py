"""The page of each messaging system has every setting, in every word that is accepted, with its default and its choices."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest

from airflow_poison.rules import SYSTEMS, policy_class, settings
from airflow_poison.rules.policy import Policy
from airflow_poison.values.errors import SettingError
from tests.given.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REFERENCE = ROOT / "docs" / "reference"
PAGES = {
    "Msmq4": "msmq4",
    "Msmq3": "msmq3",
    "PoisonSubQueue": "poison-subqueue",
    "ServiceBroker": "service-broker",
    "DefaultMessaging": "default-messaging",
    "ActivationSpecification": "activation-specification",
    "ListenerPort": "listener-port",
}
HEADER = "| the manual's word | our name | default | meaning |"
ROW = re.compile(r"^\| (?P<words>.*?) \| `(?P<name>\w+)` \| (?P<default>.*?) \| (?P<meaning>.*) \|$")
VERB = re.compile(r"`(\w+)\(\w*queue[,)]")
LONGEST_PAGE = 120


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a page's table of settings.

    :param words: the manual's words for it; what stands in parentheses is an explanation, not a word.
    """

    words: frozenset[str]
    default: str
    meaning: str


def page(system: str) -> Path:
    return REFERENCE / f"{PAGES[system]}.md"


def settings_of(system: str) -> type[Policy]:
    found = policy_class(system)
    assert issubclass(found, Policy)
    return found


def rows(system: str) -> Mapping[str, Row]:
    """Return the settings that a page has, by our name; a table may be split into several."""
    found: dict[str, Row] = {}
    for table in page(system).read_text().split(HEADER)[1:]:
        for line in table.splitlines()[2:]:
            if not line.startswith("|"):
                break
            row = ROW.match(line)
            assert row is not None, f"{page(system).name}: not a row of settings: {line}"
            assert row["name"] not in found, f"{page(system).name}: {row['name']} is there twice"
            words = (word.strip() for word in re.sub(r"\([^)]*\)", "", row["words"]).split(","))
            found[row["name"]] = Row(frozenset(filter(None, words)), row["default"], row["meaning"])
    return found


def defaults(system: str) -> Mapping[str, object]:
    with settings.stored():
        policy = settings_of(system).from_dict({})
    return {field.name: getattr(policy, field.name) for field in fields(settings_of(system))}


def shown(default: object) -> str:
    """Return a default as the pages write it."""
    match default:
        case None:
            return "none"
        case timedelta():
            return span(default)
        case str():
            return f"`{default}`" if default else "empty"
        case _:
            return str(default)


def span(duration: timedelta) -> str:
    units = {"h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}
    for unit, length in units.items():
        if duration and not duration % length:
            return f"{duration // length} {unit}"
    assert not duration, f"the pages have no unit for {duration}"
    return "0"


def choices(system: str, name: str) -> Iterator[str]:
    """Yield the named values that a setting accepts; none for a setting that is no choice."""
    policy = settings_of(system)
    [annotation] = (field.type for field in fields(policy) if field.name == name)
    owner = next(base for base in policy.__mro__ if name in vars(base).get("__annotations__", {}))
    declared = SimpleNamespace(__annotations__={name: annotation})
    hint = get_type_hints(declared, vars(sys.modules[owner.__module__]))[name]
    for kind in get_args(hint) or (hint,):
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            yield from (value.value for value in kind if accepts(policy, name, value))


def accepts(policy: type[Policy], name: str, value: str) -> bool:
    try:
        policy.from_dict({name: value})
    except SettingError:
        return False
    return True


ALL_SETTINGS = [pytest.param(system, field.name, id=f"{system}.{field.name}") for system in SYSTEMS for field in fields(settings_of(system))]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_page_has_every_setting_and_no_other(system: str) -> None:
    assert set(rows(system)) == set(defaults(system))


@pytest.mark.parametrize(("system", "name"), ALL_SETTINGS)
def test_a_setting_has_its_default(system: str, name: str) -> None:
    assert rows(system)[name].default == shown(defaults(system)[name])


@pytest.mark.parametrize(("system", "name"), ALL_SETTINGS)
def test_a_setting_has_the_words_that_are_accepted_and_no_other(system: str, name: str) -> None:
    assert rows(system)[name].words == {alias for alias, ours in settings_of(system).aliases.items() if ours == name}


@pytest.mark.parametrize(("system", "name"), ALL_SETTINGS)
def test_a_setting_has_its_choices(system: str, name: str) -> None:
    row = rows(system)[name]
    assert [value for value in choices(system, name) if f"`{value}`" not in f"{row.default} {row.meaning}"] == []


def test_choices_are_found() -> None:
    """Or the test above would hold nothing."""
    assert list(choices("ServiceBroker", "scope")) == ["queue", "conversation_group"]
    assert list(choices("ActivationSpecification", "next_message")) == ["sweep", "top"]
    assert list(choices("ListenerPort", "stop_rule")) == ["reaches", "more_than"]
    assert list(choices("Msmq3", "receive_error_handling")) == ["Fault", "Drop"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_verbs_of_a_page_are_methods_of_a_queue(system: str) -> None:
    """The source is read, not imported: importing it would start Airflow in this process."""
    tree = ast.parse((ROOT / "airflow_poison/queue.py").read_text())
    [queue] = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Queue")
    verbs = set(VERB.findall(page(system).read_text()))
    assert {"enable", "remove"} <= verbs
    assert verbs - {node.name for node in queue.body if isinstance(node, ast.FunctionDef)} == set()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_page_is_short(system: str) -> None:
    assert len(page(system).read_text().splitlines()) <= LONGEST_PAGE


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_choice_of_a_system_names_every_policy_and_its_page(system: str) -> None:
    assert f"[`{system}`](../reference/{PAGES[system]}.md)" in (ROOT / "docs/how-to/choose-a-system.md").read_text()
