"""The check finds every kind of damage that any test does: each is done once more, and a finding of its kind is there."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.fsck.check import check_folder
from airflow_poison.fsck.files import Kind
from airflow_poison.passes.alter import declare
from airflow_poison.passes.maintain import repair
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import checkpoints
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import TableChangedError
from tests.faults import test_damage as faults
from tests.given.tables import CONTROL, LATER, claim, park_all, put, rows_of, seal
from tests.given.tables import send as send_some
from tests.store import test_foreign_hands as foreign

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable

LONG_AFTER = VirtualClock(datetime(2014, 1, 1, tzinfo=UTC))
FILES = {Kind.FILE_MISSING, Kind.FILE_CHANGED}
WITHOUT = {Kind.CLAIM_EXPIRED, Kind.POLICY_UNKNOWN}
"""What is told of the store of test_foreign_hands.py without damage: its pass is dead by now, and its policy is a stand-in."""
FOUND_AS: dict[str, set[Kind]] = {
    "a message file": FILES,
    "the control row": FILES | {Kind.CONTROL_UNREADABLE},
    "the claim's row": FILES | {Kind.CLAIM_UNREADABLE},
    "a staged file": {Kind.STAGE_DAMAGED},
    "the manifest": {Kind.STAGE_DAMAGED},
}


def found(table: QueueTable) -> set[Kind]:
    return {finding.kind for finding in check_folder("orders", table.uri, LONG_AFTER).findings}


# Of tests/faults/test_damage.py -----------------------------------------------------------------------------------------


def test_every_place_has_its_kinds() -> None:
    assert FOUND_AS.keys() == faults.PLACES.keys()


@pytest.fixture(scope="module", params=faults.PLACES)
def damaged_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, QueueTable]:
    """A queue that was stopped where the file is there."""
    queue = declare(DeltaStore(str(tmp_path_factory.mktemp("place") / "store")), "orders", faults.POLICY, VirtualClock(faults.NOW))
    for number in range(2):
        send(queue, messages_to_batches([b"good", b"bad", b"good"]), key=f"send-{number}", clock=VirtualClock(faults.NOW))
    point = faults.PLACES[request.param][0]
    if point is not None:
        faults.stopped_at(point, lambda: faults.receive(queue))
    return request.param, queue


@pytest.mark.parametrize("damage", faults.DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_of_a_file(damaged_place: tuple[str, QueueTable], tmp_path: Path, damage: Callable[[Path], None]) -> None:
    place, queue = damaged_place
    assert not found(queue) - {Kind.CLAIM_EXPIRED}
    path = faults.newest(queue, faults.PLACES[place][1])
    copy = Path(shutil.copy2(path, tmp_path / "copy"))
    damage(path)
    told = found(queue)
    shutil.copy2(copy, path)
    if place == "the manifest" and damage is faults.removed:
        assert told == {Kind.CLAIM_EXPIRED}, "what was sealed is not sealed any more: the journals decide, and nothing is wrong"
    else:
        assert told & FOUND_AS[place]


# Of tests/store/test_foreign_hands.py -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store like the one of those tests: messages in main and retry, and a sealed pass."""
    root = tmp_path_factory.mktemp("foreign") / "store"
    table = DeltaStore(str(root), durable=False).create("orders", CONTROL)
    send_some(table, 3, "1")
    park_all(table)
    send_some(table, 4, "2")
    claimed = claim(table)
    table.stage_table(claimed, put(rows_of(table, claimed), "retry", 1, LATER))
    seal(table, claimed)
    send_some(table, 2, "3")
    return root


@pytest.fixture
def table(untouched: Path, tmp_path: Path) -> QueueTable:
    shutil.copytree(untouched, tmp_path / "store")
    return DeltaStore(str(tmp_path / "store"), durable=False).open("orders")


def test_without_damage_only_the_claim_is_told(table: QueueTable) -> None:
    assert found(table) == WITHOUT


@pytest.mark.parametrize("name", foreign.COMMITS)
def test_a_commit_by_somebody_else(table: QueueTable, name: str) -> None:
    foreign.COMMITS[name][0](DeltaTable(table.uri))
    assert Kind.FOREIGN_COMMIT in found(table)


def _shorten(table: QueueTable) -> None:
    """Leave of the log what maintenance does that keeps nothing but the last version."""
    root, version = table.uri, DeltaTable(table.uri).version()
    checkpoints.make(root, version, durable=False)
    for entry in Path(root, "_delta_log").glob("*.json"):
        if entry.stem.isdigit() and int(entry.stem) < version:
            entry.unlink()


@pytest.mark.parametrize("name", foreign.COMMITS.keys() - {"restore of an older version"})  # there is none
def test_a_foreign_commit_is_found_where_the_log_was_shortened_before_it(table: QueueTable, name: str) -> None:
    _shorten(table)
    foreign.COMMITS[name][0](DeltaTable(table.uri))
    assert Kind.FOREIGN_COMMIT in found(table)


def test_other_properties_are_undone_where_the_log_was_shortened_before(table: QueueTable) -> None:
    _shorten(table)
    foreign.COMMITS["other properties"][0](DeltaTable(table.uri))
    root = Path(table.uri)
    assert "undid what somebody else has committed" in " ".join(repair(DeltaStore(str(root.parent)), root.name, LONG_AFTER).done)
    assert Kind.FOREIGN_COMMIT not in found(table)
    assert DeltaStore(str(root.parent)).open(root.name).snapshot()


@pytest.mark.parametrize("name", foreign.HARMLESS)
def test_what_changes_nothing_is_no_foreign_commit_where_the_log_was_shortened_before_it(table: QueueTable, name: str) -> None:
    _shorten(table)
    foreign.HARMLESS[name](DeltaTable(table.uri))
    assert Kind.FOREIGN_COMMIT not in found(table)


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_foreign_commits_with_which_the_log_begins_are_found_and_can_be_accepted(table: QueueTable, commits: int) -> None:
    """A cleaner of another tool has removed what was before them: also entries of ours that nothing of theirs was built upon."""
    for number in range(3):
        DeltaTable(table.uri).alter.set_table_description(str(number))
    version = DeltaTable(table.uri).version()
    checkpoints.make(table.uri, version, durable=False)
    for entry in Path(table.uri, "_delta_log").glob("*.json"):
        if int(entry.stem) <= version - commits:
            entry.unlink()
    root = Path(table.uri)
    store = DeltaStore(str(root.parent))
    with pytest.raises(TableChangedError, match=r"Somebody else has committed .*--accept"):
        store.open(root.name)
    assert Kind.FOREIGN_COMMIT in found(table)
    assert "accepted what somebody else has committed" in " ".join(repair(store, root.name, LONG_AFTER, accept=True).done)
    assert Kind.FOREIGN_COMMIT not in found(table)
    assert store.open(root.name).snapshot()


@pytest.mark.parametrize("name", foreign.HARMLESS)
def test_what_changes_nothing_is_no_foreign_commit(table: QueueTable, name: str) -> None:
    foreign.HARMLESS[name](DeltaTable(table.uri))
    assert found(table) == WITHOUT


@pytest.mark.parametrize(
    "damage", [Path.unlink, foreign._cut, foreign._grow, foreign._spoil_footer, foreign._spoil_magic], ids=lambda damage: damage.__name__
)
@pytest.mark.parametrize("place", ["main", "retry", "_claim", "_ctl"])
def test_a_file_that_is_not_what_was_committed(table: QueueTable, place: str, damage: Callable[[Path], object]) -> None:
    damage(min(_live(table, place)))
    assert found(table) & (FILES | {Kind.CONTROL_UNREADABLE, Kind.CLAIM_UNREADABLE})


def _live(table: QueueTable, place: str) -> list[Path]:
    return [Path(table.uri, file.path) for file in table.log.load().files if file.sub_queue == place]
