"""What the pages show of the command line is what it prints."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.cli.command import REASON
from airflow_poison.cli.main import COMMANDS, parser
from airflow_poison.cli.plans import PLANNED
from airflow_poison.cli.values import SELECTION
from airflow_poison.rules.simulation.scripted_host import OutcomeKind, Verb
from tests.given.command import run
from tests.given.pages import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

REFERENCE = (ROOT / "docs/reference/command-line.md").read_text()
PROMPT = "$ airflow poison "
SIMULATED = ("docs/how-to/simulate-settings.md", "docs/how-to/schedule-retry-cycles.md")
SHOWN = [block.code for page in SIMULATED for block in blocks(ROOT / page) if block.language == "console"]


def test_there_is_something_shown() -> None:
    assert len(SHOWN) == 6
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


COMMON = {"--store", "--conn-id", "--output", "--timezone"}


def section(heading: str) -> str:
    return REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def described(text: str) -> set[str]:
    """Return the options in the first cells of tables."""
    return {option for cell in re.findall(r"^\|([^|]*)\|", text, re.MULTILINE) for option in re.findall(r"`(--[\w-]+)", cell)}


SHARED = [
    described(REFERENCE.partition(f"\n### {heading}\n")[2].partition("\n#")[0])
    for heading in ("Who and why", "Options of a selection", "Options of a plan")
]


def test_the_options_that_commands_share_are_those_of_the_reference() -> None:
    shared = [{each.flags[0] for each in group} for group in ((REASON,), SELECTION, PLANNED)]
    assert [shared[0], shared[1], shared[2] - shared[1]] == SHARED


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_the_reference_has_every_option_and_no_other(command: str) -> None:
    common = section("What all commands have in common").partition("\n### ")[0]
    assert described(common) == COMMON
    there = set(options(command))
    shared = COMMON.union(*(group for group in SHARED if group <= there))
    assert described(section(f"`airflow poison {command}`")) - shared == there - shared


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_an_example_that_its_parser_takes(command: str) -> None:
    lines = re.findall(r"^airflow poison (.*)$", section(f"`airflow poison {command}`").partition("```bash\n")[2].partition("```")[0], re.MULTILINE)
    assert lines
    for line in lines:
        assert shlex.split(line)[0] == command
        assert parser().parse_args(shlex.split(line)).function.name == command


def test_the_reference_has_every_key_of_what_looks_at_queues(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = f"--store {tmp_path}/q -o json"
    policy = "--system Msmq4 --set ReceiveRetryCount=0 MaxRetryCycles=0 ReceiveErrorHandling=Move"
    given = [f"send orders bad {policy}", "receive orders --handler tests.unit.cli.shop:take --engine local --isolation none"]
    lines = ["list", "show orders --body", "inspect orders", "history orders", "return orders", "move orders all", "disable orders", "enable orders"]
    more = ["alter orders --set RetryCycleDelay=1", "restart orders broker", "maintain orders", "remove orders 1 --yes"]
    found = [json.loads(run(capsys, f"{line} {store}").out) for line in [*given, *lines, *more]]
    pages = REFERENCE + (ROOT / "docs/reference/airflow.md").read_text()
    free = {"errors", "to", "properties", "counters", "by_move_count", "changed", "compacted", "removed", "kept"}
    assert {key for each in found for key in keys(each, free) if f"`{key}`" not in pages} == set()


ID = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b")
"""An error group or a plan."""


def untimed(text: str) -> list[str]:
    """Return the lines without times and ids, and with one blank between words: what a shown command prints at any time."""
    text = ID.sub("I", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d+(\.\d+)? (s|min|h|d)\b( \d+ (s|min)\b)?|\([\d,]+/s\)", "T", text)
    return [" ".join(line.replace("─", "").split()) for line in text.splitlines() if line.replace("─", "").strip()]


@pytest.mark.parametrize("walk", ["docs/how-to/work-from-the-shell.md", "docs/how-to/deal-with-poison.md"])
def test_the_walk_prints_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, walk: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    page = blocks(ROOT / walk)
    (tmp_path / "shop.py").write_text(next(block.code for block in page if block.language == "python" and "def take(" in block.code))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    ids: dict[str, str] = {}
    for code in (block.code for block in page if block.language == "console"):
        for line, shown in re.findall(r"^\$ airflow poison (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
            ran = run(capsys, f"{ID.sub(lambda found: ids[found[0]], line)} --store q")
            printed, wanted = untimed(ran.out + ran.err), untimed(shown)
            if wanted and wanted[-1] == "...":
                wanted.pop()
                printed = printed[: len(wanted)]
            assert printed == wanted, line
            ids.update(zip(ID.findall(shown), ID.findall(ran.out + ran.err), strict=False))


def test_the_reference_has_every_outcome_and_every_verb() -> None:
    outcomes = REFERENCE.partition("### Outcomes")[2].partition("\n#")[0]
    verbs = REFERENCE.partition("### Actions")[2].partition("\n#")[0]
    assert [kind for kind in OutcomeKind if not re.search(rf"`{kind}\b", outcomes)] == []
    assert [verb for verb in Verb if not re.search(rf"`{verb}\b", verbs)] == []


def keys(value: Any, more: Collection[str] = ()) -> set[str]:
    """Return the keys of the objects that have fixed ones."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each, more)}
    if isinstance(value, dict):
        free = {"policy", "ends", "details", *more}
        return set(value) | {key for name, each in value.items() if name not in free for key in keys(each, more)}
    return set()


@pytest.mark.filterwarnings("ignore::airflow_poison.values.errors.ConfigurationWarning")
def test_the_reference_has_every_key_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    simulated = json.loads(run(capsys, "simulate Msmq4 --action 1h:open -o json").out)
    described = [json.loads(run(capsys, line).out) for line in ("policies -o json", "policies Msmq4 -o json")]
    assert {key for key in keys(simulated) | keys(described) if f"`{key}`" not in REFERENCE} == set()
