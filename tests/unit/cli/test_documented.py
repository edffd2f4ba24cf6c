"""What the pages show of the command line is what it prints."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.cli.main import parser
from airflow_poison.core.delivery.script import OutcomeKind, Verb
from tests.docs.pages import ROOT, blocks
from tests.unit.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = (ROOT / "docs/reference/command-line.md").read_text()
PROMPT = "$ airflow poison "
SHOWN = [block.code for block in blocks(ROOT / "docs/how-to/simulate-settings.md") if block.language == "console"]


def test_there_is_something_shown() -> None:
    assert len(SHOWN) == 5
    assert all(code.startswith(PROMPT) for code in SHOWN)


@pytest.mark.parametrize("code", SHOWN, ids=lambda code: code.partition("\n")[0].removeprefix(PROMPT)[:40])
def test_a_shown_command_prints_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line, _, shown = code.partition("\n")
    ran = run(capsys, line.removeprefix(PROMPT))
    assert [line.rstrip() for line in (ran.err + ran.out).splitlines()] == shown.rstrip("\n").splitlines()


def options(command: str) -> Iterator[str]:
    [commands] = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    yield from (action.option_strings[-1] for action in commands.choices[command]._actions if action.option_strings and action.dest != "help")


@pytest.mark.parametrize("command", ["policies", "simulate"])
def test_the_reference_has_every_option_and_no_other(command: str) -> None:
    section = REFERENCE.partition(f"## `airflow poison {command}`")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) == set(options(command))


def test_the_reference_has_every_outcome_and_every_verb() -> None:
    outcomes = REFERENCE.partition("### Outcomes")[2].partition("\n#")[0]
    verbs = REFERENCE.partition("### Actions")[2].partition("\n#")[0]
    assert [kind for kind in OutcomeKind if not re.search(rf"`{kind}\b", outcomes)] == []
    assert [verb for verb in Verb if not re.search(rf"`{verb}\b", verbs)] == []


def keys(value: Any) -> set[str]:
    """Return the keys of the objects that have fixed ones."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if isinstance(value, dict):
        free = {"policy", "ends", "details"}
        return set(value) | {key for name, each in value.items() if name not in free for key in keys(each)}
    return set()


@pytest.mark.filterwarnings("ignore::airflow_poison.core.errors.ConfigurationWarning")
def test_the_reference_has_every_key_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    simulated = json.loads(run(capsys, "simulate Msmq4 --action 1h:open -o json").out)
    described = [json.loads(run(capsys, line).out) for line in ("policies -o json", "policies Msmq4 -o json")]
    assert {key for key in keys(simulated) | keys(described) if f"`{key}`" not in REFERENCE} == set()
