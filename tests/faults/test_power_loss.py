"""A loss of power at any point of a verb takes back nothing that was acknowledged, and the verb can be run again."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from tests.faults import planted
from tests.faults.powerloss import Disk
from tests.given import forked
from tests.given.children import VERBS
from tests.given.tables import CONTROL, ids, park_all, send

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_CONTEXT = multiprocessing.get_context("forkserver")
forked.preload("tests.faults.test_power_loss")
POINTS = {
    "append": ("store.append.after_files", "store.append.before_commit", "store.append.after_commit"),
    "receive": (
        *("store.split.after_commit", "store.claim.after_commit", "store.claim.before_fence", "store.seal.before_rename", "store.seal.after_rename"),
        *("store.finish.after_links", "store.finish.before_commit", "store.finish.after_commit", "store.finish.before_clearing"),
    ),
    "move": ("store.move.after_links", "store.move.before_commit", "store.move.after_commit"),
    "replace": ("store.replace.after_files", "store.replace.before_commit", "store.replace.after_commit"),
}

_FULL = os.environ.get("POISON_FAULTS") == "full"
"""``make faults`` tries every point; ``make test`` one of each verb."""
_TRIED = [(verb, point) for verb, points in POINTS.items() for point in (points if _FULL else points[-1:])]


def _prepare(folder: Path, verb: str) -> None:
    queue = DeltaStore(str(folder / "store")).create("orders", CONTROL)
    send(queue, 60)
    if verb == "move":
        park_all(queue)


def _do(folder: Path, verb: str, point: str, bug: str) -> None:
    planted.plant(bug)
    if point:
        fault_points.install(lambda reached: os._exit(9) if reached == point else None)
    queue = DeltaStore(str(folder / "store")).open("orders")
    if verb == "prepare":
        return
    VERBS[verb](queue)


def _child(act: str, folder: str, verb: str, point: str, bug: str, told: str) -> None:  # noqa: PLR0917
    root = Path(folder)
    disk = Disk(root / "store", root / "memory")
    disk.watch()
    if act == "prepare":
        _prepare(root, verb)
        disk.all_synced()
    elif act == "do":
        _do(root, verb, point, bug)
    else:
        queue = DeltaStore(str(root / "store")).open("orders")
        Path(told).write_text(repr({place: ids(queue, place) for place in ("main", "retry", "poison")}))  # type: ignore[arg-type]
    os._exit(0)


def _run(act: str, folder: Path, verb: str = "", point: str = "", bug: str = "") -> int | None:
    child: ForkServerProcess = _CONTEXT.Process(target=_child, args=(act, str(folder), verb, point, bug, str(folder / "told")))
    child.start()
    child.join(60)
    return child.exitcode


def _there(folder: Path) -> dict[str, list[int]]:
    assert _run("look", folder) == 0
    found: dict[str, list[int]] = eval((folder / "told").read_text())
    return found


EXPECTED = {
    "append": {"main": [*range(1, 91)], "retry": [], "poison": []},
    "receive": {"main": [*range(41, 61)], "retry": [*range(3, 41, 3)], "poison": []},
    "move": {"main": [*range(1, 61)], "retry": [], "poison": []},
    "replace": {"main": [*range(3, 61)], "retry": [], "poison": [1]},
}


@pytest.mark.parametrize(("verb", "point"), _TRIED)
def test_a_verb_that_loses_power_and_is_run_again_loses_and_doubles_nothing(tmp_path: Path, verb: str, point: str) -> None:
    assert _run("prepare", tmp_path, verb) == 0
    assert _run("do", tmp_path, verb, point) == 9
    Disk(tmp_path / "store", tmp_path / "memory").lose_power()
    assert _run("do", tmp_path, verb) == 0
    assert _there(tmp_path) == EXPECTED[verb]


@pytest.mark.parametrize("verb", POINTS if _FULL else ["receive"])
def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path, verb: str) -> None:
    assert _run("prepare", tmp_path, verb) == 0
    assert _run("do", tmp_path, verb) == 0
    Disk(tmp_path / "store", tmp_path / "memory").lose_power()
    assert _there(tmp_path) == EXPECTED[verb]


@pytest.mark.parametrize("verb", POINTS if _FULL else ["append"])
def test_the_model_finds_a_sync_that_is_forgotten(tmp_path: Path, verb: str) -> None:
    assert _run("prepare", tmp_path, verb) == 0
    assert _run("do", tmp_path, verb, bug="no-sync") == 0
    Disk(tmp_path / "store", tmp_path / "memory").lose_power()
    assert _run("look", tmp_path) != 0, "files of an acknowledged commit are gone or empty, and nothing notices"
