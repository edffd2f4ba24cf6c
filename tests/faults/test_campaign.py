"""A short campaign in a process of its own; and, in ``make faults``, that campaigns find bugs that are planted, each within a small budget."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import __main__ as campaign
from tests.faults.points import named_points
from tests.given import forked

if TYPE_CHECKING:
    from collections.abc import Mapping

forked.preload(campaign.__name__)
pytestmark = pytest.mark.timeout(600)  # campaigns run side by side and end when they have found their bug: two minutes on an idle machine
VIOLATIONS = ("lost", "doubled", "changed", "uncounted", "innocents_charged", "alerts_missing", "events", "fell", "order", "log", "stuck")
REPORTED = {"kills", "zombies", "io_errors", "power_losses", "seed", "seconds", *VIOLATIONS}


_QUIET, _POWER, _DAMAGED, _SHARED = "3", "16", "0", "8"
"""Seeds of first episodes: in which nothing but processes fails, in which the power fails, in which people damage files, that two Airflows share."""
FOUND = {
    "no-claim-check": (_QUIET, "move", {"doubled", "uncounted"}),
    "no-revalidation": (_QUIET, "move", {"doubled", "lost", "events"}),
    "charge-the-batch": (_QUIET, "move", {"innocents_charged"}),
    "no-sync": (_POWER, "move", {"lost"}),
    "no-marks": (_DAMAGED, "move", {"lost"}),
    "one-airflow": (_SHARED, "move", {"lost"}),
    "skip-a-row": (_QUIET, "move", {"lost"}),
    "outcomes-as-text": (_QUIET, "messages", {"changed"}),
    "outage-takes-commits-back": (_QUIET, "weather", {"doubled"}),
    "charge-the-next": (_QUIET, "frames", {"innocents_charged"}),
    "ghosts": (_QUIET, "conversations", {"doubled"}),
}
"""Of each planted bug: the seed, the queues among which it shows (one queue ends sooner than six), and what the checker may call it."""
SHORT = ("--only", "messages", "--kills", "5", "--zombies", "0", "--episode", "5", "--seconds", "6")
CONVERSATIONS = ("--only", "conversations", "--kills", "20", "--zombies", "0", "--episode", "7", "--seconds", "60")
BUCKET = ("--store", "s3", "--only", "move", "--kills", "5", "--episode", "4", "--seconds", "5")
PLANTED = ("--kills", "10000", "--episode", "3", "--seconds", "300", "--stop-at-first")
"""They end when they have found it; a busy machine takes its time."""


Ended = tuple[int, dict[str, Any], str]
"""Of a campaign: exit code, last line, and all that was printed."""


@pytest.fixture(scope="module")
def planted() -> dict[str, Ended]:
    """Run a campaign with each planted bug, side by side."""
    return _side_by_side({bug: _bug(bug) for bug in FOUND})


def _bug(bug: str) -> tuple[str, ...]:
    seed, queues, _ = FOUND[bug]
    return *PLANTED, "--only", queues, "--seed", seed, "--planted", bug


def _alone(options: tuple[str, ...]) -> Ended:
    return _side_by_side({"": options})[""]


def _side_by_side(wanted: Mapping[str, tuple[str, ...]]) -> dict[str, Ended]:
    started = {bug: forked.Started(_run, options) for bug, options in wanted.items()}
    ended = {bug: process.ended(540.0) for bug, process in started.items()}
    return {bug: (end.code, json.loads(end.printed.splitlines()[-1]), end.printed + end.errors) for bug, end in ended.items()}


def _run(options: tuple[str, ...]) -> None:
    sys.argv[1:] = options
    sys.exit(campaign.main())


@pytest.mark.long
@pytest.mark.parametrize("options", [SHORT, pytest.param(CONVERSATIONS, marks=pytest.mark.campaign)], ids=["messages", "conversations"])
def test_a_short_campaign_finds_nothing(options: tuple[str, ...]) -> None:
    code, last, printed = _alone(options)
    assert {name: last[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0), printed
    assert code == 0
    assert last.keys() >= REPORTED
    assert last["runs"] > 10


@pytest.mark.campaign
def test_a_short_campaign_over_an_object_store_finds_nothing() -> None:
    code, last, printed = _alone(BUCKET)
    assert {name: last[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0), printed
    assert code == 0
    assert last["injected"] > 0
    assert last["runs"] > 10


@pytest.mark.campaign
@pytest.mark.parametrize("bug", FOUND)
def test_a_planted_bug_is_found(bug: str, planted: Mapping[str, Ended]) -> None:
    code, last, printed = planted[bug]
    assert code == 1
    assert any(last[name] for name in FOUND[bug][2]), printed


def test_the_points_are_read_from_the_source() -> None:
    points = named_points()
    assert {"store.append.after_files", "store.finish.before_commit", "store.claim.after_row", "pass.alert.before_telling"} <= points
    assert not any("*" in point for point in points)
