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
REPORTED = {"kills", "zombies", "io_errors", "lost", "doubled", "uncounted", "innocents_charged", "alerts_missing", "seed", "seconds"}


def campaign(*options: object) -> tuple[int, dict[str, Any], str]:
    """Run a campaign; return its exit code, its last line, and all that it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults", *map(str, options)], cwd=ROOT, check=False, capture_output=True, text=True, timeout=200
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout.splitlines()[-1]), ended.stdout + ended.stderr


def test_a_short_campaign_finds_nothing() -> None:
    code, last, printed = campaign("--kills", 5, "--zombies", 0, "--episode", 5, "--seconds", 6)
    assert {name: last[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0), printed
    assert code == 0
    assert last.keys() >= REPORTED
    assert last["kills"] >= 1
    assert last["runs"] > 10


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        ("no-claim-check", {"doubled", "uncounted"}),
        ("no-revalidation", {"doubled", "lost"}),
        ("charge-the-batch", {"innocents_charged"}),
    ],
)
def test_a_planted_bug_is_found(bug: str, found: set[str]) -> None:
    code, last, printed = campaign("--planted", bug, "--seed", 11, "--kills", 10_000, "--episode", 3, "--seconds", 12, "--stop-at-first")
    assert code == 1
    assert any(last[name] for name in found), printed


def test_the_points_are_read_from_the_source() -> None:
    points = named_points()
    assert {"store.append.after_files", "store.finish.before_commit", "store.claim.after_row", "pass.alert.before_telling"} <= points
    assert not any("*" in point for point in points)
