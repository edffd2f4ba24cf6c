"""What the shell completes, asked as argcomplete asks: the line in ``COMP_LINE``, the answer on descriptor 8."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_poison.cli.main import COMMANDS
from airflow_poison.passes.alter import declare
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.given.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def completed(line: str, program: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """Return what the shell would offer; like argcomplete's own shell code it takes descriptor 8, and lets all that is printed go."""
    reading, writing = os.pipe()
    command = ["bash", "-c", f'exec "$@" 8>&{writing} 9>/dev/null 1>/dev/null 2>/dev/null', "bash", *program]
    with subprocess.Popen(command, env={**os.environ, **env, **asked(line)}, pass_fds=(writing,)):
        os.close(writing)
        with os.fdopen(reading) as answers:
            return words_of(answers.read())


def asked(line: str) -> dict[str, str]:
    """Return the environment in which a program completes a line."""
    return {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}


def words_of(answers: str) -> set[str]:
    """Return what a program has offered."""
    return {word.strip() for word in answers.split("\n") if word.strip()}


@pytest.fixture
def store(tmp_path: Path) -> str:
    for name in ("orders", "offers", "bills"):
        declare(DeltaStore(str(tmp_path / "q"), durable=False), name, Msmq4(), SystemClock())
    return str(tmp_path / "q")


def offered(line: str) -> set[str]:
    return completed(f"airflow_poison {line}", [sys.executable, "-m", "airflow_poison"], {"PYTHONPATH": str(ROOT)})


def test_commands_and_options_are_completed() -> None:
    assert offered("") - {"-h", "--help"} == {command.name for command in COMMANDS}
    assert offered("show --l") == {"--limit", "--lookup-id"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show --store {store} o", {"orders", "offers"}),
        ("list --store {store} orders b", {"bills"}),
        ("move orders 1 --store {store} --to-queue b", {"bills"}),
        ("alter --store {store} orders --set receive_r", {"receive_retry_count="}),
        ("send orders --system Msmq", {"Msmq3", "Msmq4"}),
        ("send --file x --store {store} o", {"orders", "offers"}),
        ("send orders x --system Msmq4 --set max_retry", {"max_retry_cycles="}),
        ("policies Li", {"ListenerPort"}),
        ("history orders --type DEAD", {"DEAD_LETTERED"}),
        ("inspect orders --mode ", {"browse", "exempt", "strict"}),
        ("restart orders s", {"server"}),
        ("list -o j", {"json"}),
        ("show --store {store}/none o", set()),
        ("show --store http://nowhere o", set()),
        ("simulate Nosuch --set r", set()),
    ],
)
def test_values_are_completed(store: str, line: str, words: set[str]) -> None:
    assert offered(line.format(store=store)) == words
