"""A short campaign in processes of its own; and that it finds bugs that are planted, each within a small budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.points import named_points

ROOT = Path(__file__).parents[2]
VIOLATIONS = ("lost", "doubled", "uncounted", "innocents_charged", "alerts_missing", "events", "fell", "order", "log", "stuck")
REPORTED = {"kills", "zombies", "io_errors", "power_losses", "lost", "doubled", "uncounted", "innocents_charged", "alerts_missing", "seed", "seconds"}


_QUIET, _POWER = "6", "9"
"""Seeds of an episode without strangers, and of one in which the power fails."""
FOUND = {
    "no-claim-check": (_QUIET, {"doubled", "uncounted"}),
    "no-revalidation": (_QUIET, {"doubled", "lost"}),
    "charge-the-batch": (_QUIET, {"innocents_charged"}),
    "no-sync": (_POWER, {"lost"}),
}
SHORT = ("--kills", "5", "--zombies", "0", "--episode", "5", "--seconds", "6")
PLANTED = ("--kills", "10000", "--episode", "3", "--seconds", "12", "--stop-at-first")


@pytest.fixture(scope="module")
def campaigns() -> dict[str, tuple[int, dict[str, Any], str]]:
    """Run a campaign without and one with each planted bug, side by side; return exit code, last line, and all that was printed."""
    wanted = {"": SHORT} | {bug: (*PLANTED, "--seed", seed, "--planted", bug) for bug, (seed, _) in FOUND.items()}
    started = {
        bug: subprocess.Popen([sys.executable, "-m", "tests.faults", *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for bug, options in wanted.items()
    }
    printed = {bug: process.communicate(timeout=250)[0] for bug, process in started.items()}
    return {bug: (started[bug].returncode, json.loads(text.splitlines()[-1]), text) for bug, text in printed.items()}


def test_a_short_campaign_finds_nothing(campaigns: dict[str, tuple[int, dict[str, Any], str]]) -> None:
    code, last, printed = campaigns[""]
    assert {name: last[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0), printed
    assert code == 0
    assert last.keys() >= REPORTED
    assert last["runs"] > 10


@pytest.mark.parametrize("bug", FOUND)
def test_a_planted_bug_is_found(campaigns: dict[str, tuple[int, dict[str, Any], str]], bug: str) -> None:
    code, last, printed = campaigns[bug]
    assert code == 1
    assert any(last[name] for name in FOUND[bug][1]), printed


def test_the_points_are_read_from_the_source() -> None:
    points = named_points()
    assert {"store.append.after_files", "store.finish.before_commit", "store.claim.after_row", "pass.alert.before_telling"} <= points
    assert not any("*" in point for point in points)
