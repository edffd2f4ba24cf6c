"""Systems and settings are described by the policies themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

import pytest

from airflow_poison.rules import SYSTEMS, policy_class, policy_from_dict
from airflow_poison.rules.described import Setting, SettingKind, describe, settings_of
from airflow_poison.rules.policy import FIRST, Opening, Policy, Receiver


def setting(system: str, name: str) -> Setting:
    return {setting.name: setting for setting in describe(system).settings}[name]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_setting_has_a_meaning_in_one_line_without_marks_and_citations(system: str) -> None:
    for setting in describe(system).settings:
        assert setting.meaning, setting.name
        assert not {"\n", "`"} & set(setting.meaning), setting.meaning
        assert not re.search(r"\bspec\b", setting.meaning), setting.meaning


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_setting_is_there_with_its_default_and_every_alias_once(system: str) -> None:
    described = describe(system).settings
    stored = policy_from_dict({"system": system}).to_dict()
    assert {"system": system} | {setting.name: setting.default for setting in described} == stored
    aliases = {alias: name for alias, name in policy_class(system).aliases.items() if name in stored}
    assert {alias: setting.name for setting in described for alias in setting.aliases} == aliases


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_has_a_title_and_a_line(system: str) -> None:
    described = describe(system)
    assert described.title
    assert described.summary
    assert not re.search(r"\bspec\b", described.summary)


@pytest.mark.parametrize(
    ("system", "name", "kind", "choices"),
    [
        pytest.param("Msmq4", "receive_retry_count", SettingKind.WHOLE_NUMBER, "", id="WCF-3"),
        pytest.param("Msmq4", "retry_cycle_delay", SettingKind.DURATION, "", id="WCF-5"),
        pytest.param("Msmq4", "exactly_once", SettingKind.TRUE_OR_FALSE, "", id="WCF-12"),
        pytest.param("Msmq4", "receive_error_handling", SettingKind.CHOICE, "Fault Drop Reject Move", id="WCF-6"),
        pytest.param("Msmq3", "receive_error_handling", SettingKind.CHOICE, "Fault Drop", id="M3-3"),
        pytest.param("PoisonSubQueue", "receive_error_handling", SettingKind.CHOICE, "Fault Drop Reject", id="POI-3"),
        pytest.param("ListenerPort", "stop_rule", SettingKind.CHOICE, "reaches more_than", id="LP-2"),
        pytest.param("ListenerPort", "next_message", SettingKind.CHOICE, "sweep top", id="WMQ-29"),
        pytest.param("DefaultMessaging", "exception_destination", SettingKind.TEXT, "", id="DMP-6"),
        pytest.param("DefaultMessaging", "blocked_retry_timeout", SettingKind.WHOLE_NUMBER, "", id="DMP-10"),
    ],
)
def test_a_setting_says_what_it_takes(system: str, name: str, kind: SettingKind, choices: str) -> None:
    found = setting(system, name)
    assert (found.kind, " ".join(found.choices)) == (kind, choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes(Policy):
    """Attributes.

    :param limit: how many
        at most (spec X-1; ``0``: none). See ``other`` (``all``, spec X-2).
    :param other: another one (spec X-1, X-2).

    Not about :param limit: at all.
    """

    system = "Attributes"
    halting, stateless, effective_transaction_timeout = False, True, timedelta(0)
    limit: int = 0
    other: str = ""

    def open(self, opening: Opening = FIRST) -> Receiver:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Special(Attributes):
    """Special.

    :param other: something special.
    """


def test_the_lines_of_a_base_hold_until_a_policy_says_it_better() -> None:
    assert [setting.meaning for setting in settings_of(Attributes)] == ["how many at most (0: none). See other (all).", "another one."]
    assert [setting.meaning for setting in settings_of(Special)] == ["how many at most (0: none). See other (all).", "something special."]


def test_a_setting_without_a_value_is_optional() -> None:
    assert setting("ListenerPort", "harden_get_backout").optional
    assert setting("ListenerPort", "next_message").optional
    assert not setting("ListenerPort", "zos").optional
