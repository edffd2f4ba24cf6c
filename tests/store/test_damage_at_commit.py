"""Damage at the very moment of a commit: it is acknowledged only when it is in the log, and what it rests on can be put back, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.store import disk, entries, log_damage
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.entries import Reader
from airflow_poison.values.errors import PoisonError, TableChangedError
from airflow_poison.values.schema import SubQueue
from tests.faults.test_damage import stopped_at
from tests.given.tables import CONTROL, ids, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable


@pytest.fixture
def queue(tmp_path: Path) -> QueueTable:
    made = DeltaStore(str(tmp_path)).create("orders", CONTROL)
    send(made, 3)
    return made


def entries_of(queue: QueueTable) -> list[Path]:
    return sorted(Path(queue.root, "_delta_log").glob("*.json"))


def dies_unmarked(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send, and die between the commit and its mark."""
    with monkeypatch.context() as patch:
        patch.setattr(entries, "_write", lambda *_, **__: None)
        stopped_at("store.log.before_mark_is_synced", lambda: send(queue, 1, key="dies"))


def test_every_version_of_a_new_queue_has_a_mark(queue: QueueTable) -> None:
    assert sorted(entries.read_marks(queue.uri)) == [int(path.stem) for path in entries_of(queue)]


def test_what_a_dead_process_has_committed_can_be_put_back_when_others_built_upon_it(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_unmarked(queue, monkeypatch)
    send(queue, 1, key="later")
    for path in entries_of(queue)[-2:]:
        path.unlink()
    assert len(log_damage.restore_entries(queue.uri)) == 2
    assert ids(queue, SubQueue.MAIN) == [1, 2, 3, 4, 5]


def test_what_a_commit_rests_on_has_a_mark_before_it_is_made(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_unmarked(queue, monkeypatch)
    unmarked = entries_of(queue)[-1]
    stopped_at("store.append.before_commit", lambda: send(queue, 1, key="later"))
    unmarked.unlink()
    assert log_damage.restore_entries(queue.uri) == [int(unmarked.stem)]


def _remove(entry: Path) -> None:
    entry.unlink()


def _cut(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:50])


def _replace(entry: Path) -> None:
    """Another process finds the place free, and takes it."""
    entry.unlink()
    send(DeltaStore(str(entry.parents[2])).open("orders"), 1, key="faster")


@pytest.mark.long
@pytest.mark.parametrize("damage", [_remove, _cut, _replace])
def test_a_commit_that_is_damaged_before_its_mark_is_not_acknowledged(
    queue: QueueTable, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path, content: bytes) -> None:
        monkeypatch.undo()
        disk.create(path, content)
        damage(path)

    monkeypatch.setattr(disk, "create", damaged)
    with pytest.raises(TableChangedError, match="somebody has changed, removed or replaced it"):
        send(queue, 1, key="again")
    there = DeltaStore(str(Path(queue.root).parent)).open("orders")
    send(there, 1, key="again")
    assert ids(there, SubQueue.MAIN) == [1, 2, 3, 4, *([5] if damage is _replace else [])]


def test_a_commit_that_meets_a_damaged_entry_in_its_place_looks_again(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in its place is no commit, and no reason to say that the disk cannot be written."""

    def late(path: Path, content: bytes) -> None:
        monkeypatch.undo()
        path.write_text('{"commitInfo"')
        disk.create(path, content)

    monkeypatch.setattr(disk, "create", late)
    send(queue, 1, key="again")
    assert ids(queue, SubQueue.MAIN) == [1, 2, 3, 4]


def test_what_strangers_build_upon_a_cut_entry_does_not_count_either(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_unmarked(queue, monkeypatch)
    entries_of(queue)[-1].write_bytes(b"")
    DeltaTable(queue.uri).delete("sub_queue = 'main'")
    there = DeltaStore(str(Path(queue.root).parent)).open("orders")
    assert ids(there, SubQueue.MAIN) == [1, 2, 3]
    send(there, 1, key="later")
    assert ids(there, SubQueue.MAIN) == [1, 2, 3, 4]
    assert len([*Path(queue.root, "_repaired").iterdir()]) == 2


def test_what_ours_have_built_upon_a_cut_entry_is_not_taken_away_in_silence(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release without marks, perhaps."""
    for number in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(entries, "note", lambda *_, **__: None)
            send(queue, 1, key=f"unmarked-{number}")
    entries_of(queue)[-2].write_bytes(b"")
    assert json.loads(entries_of(queue)[-1].read_text().splitlines()[0])
    with pytest.raises(PoisonError):
        DeltaStore(str(Path(queue.root).parent)).open("orders")
    assert log_damage.set_aside(queue.uri) == []


def test_what_a_maintainer_removes_at_this_moment_is_not_lost(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis lists the entries, and the oldest go before it has read them."""
    DeltaTable(queue.uri).create_checkpoint()
    content = entries.Acknowledged.content

    def late(mark: entries.Acknowledged, path: Path) -> bytes | None:
        for old in entries_of(queue)[:-1]:
            old.unlink()
        return content(mark, path)

    monkeypatch.setattr(entries.Acknowledged, "content", late)
    assert log_damage.diagnose(queue.uri).lost == ()


@pytest.mark.parametrize("which", [-1, -2], ids=["the newest", "one before"])
@pytest.mark.parametrize("reads_on", ["afresh", "from the last look"])
def test_an_entry_that_is_damaged_only_while_it_is_read_is_read_again(
    queue: QueueTable, which: int, reads_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs takes an empty entry for a version in which nothing happened; a repair has put the entry back before anybody asks for its size."""
    reading = DeltaStore(str(Path(queue.root).parent)).open("orders")
    if reads_on == "from the last look":
        assert ids(reading, SubQueue.MAIN) == [1, 2, 3]
    send(queue, 1, key="later")
    send(queue, 1, key="last")
    entry, read, reads = entries_of(queue)[which], Reader._newest, [0]

    def damaged_meanwhile(reader: Reader, marked: int) -> object:
        reads[0] += 1
        if reads[0] > 1:
            return read(reader, marked)
        content = entry.read_bytes()
        entry.write_bytes(b"")
        found = read(reader, marked)
        back = entry.with_name("back")
        back.write_bytes(content)
        back.replace(entry)
        return found

    monkeypatch.setattr(Reader, "_newest", damaged_meanwhile)
    assert ids(reading, SubQueue.MAIN) == [1, 2, 3, 4, 5]
    assert reads[0] > 1
    assert ids(reading, SubQueue.MAIN) == [1, 2, 3, 4, 5]
