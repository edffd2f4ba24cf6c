"""Looks at the log that go on from the last one: always fresh, and never under the feet of somebody who still plans on an older version."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from airflow_poison.store.delta_store import DeltaLog, DeltaStore
from airflow_poison.store.entries import Reader
from airflow_poison.store.files import Commit
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.schema import SubQueue
from tests.given.tables import NOW, all_rows, claim, ids, put, rows_of, seal, send

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable

NONE = timedelta(0)


@pytest.fixture
def log(delta_queue: QueueTable) -> DeltaLog:
    """The log of a queue, as one process has it; ``delta_queue`` is another one."""
    return DeltaLog(delta_queue.uri, durable=False)


def test_a_state_stays_what_it_was_while_others_commit_and_look(log: DeltaLog, delta_queue: QueueTable) -> None:
    before = log.load()
    version = before.version
    send(delta_queue, 3)
    after = log.load()
    assert (before.version, before.table.version()) == (version, version)
    assert (after.version, after.table.version()) == (version + 1, version + 1)
    assert (before.number("send:first"), after.number("send:first")) == (None, 3)
    assert not [file for file in before.files if file.sub_queue == "main"]


def test_a_commit_that_was_planned_on_an_older_version_is_refused_after_a_newer_look(log: DeltaLog, delta_queue: QueueTable) -> None:
    base = log.load()
    send(delta_queue, 1)
    log.load()
    log.load()
    assert not log.commit(base, Commit("alter", numbers={"late": 1}))
    assert log.load().number("late") is None


def test_the_state_that_a_commit_was_made_on_stays_before_it(log: DeltaLog) -> None:
    base = log.load()
    assert log.commit(base, Commit("alter", numbers={"mine": 1}))
    assert log.load().version == base.version + 1
    assert not log.commit(base, Commit("alter", numbers={"again": 1}))


def test_a_pass_reads_the_whole_log_once(delta_root: str, delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    send(delta_queue, 3)
    found: list[str] = []
    afresh = Reader._afresh
    monkeypatch.setattr(Reader, "_afresh", lambda self: found.append("") or afresh(self))  # type: ignore[func-returns-value]
    queue = DeltaStore(delta_root).open("orders")
    held = claim(queue)
    queue.stage_table(held, put(rows_of(queue, held), "poison"))
    queue.finish(held, seal(queue, held), now=NOW)
    assert queue.result("run") == {}
    send(queue, 2, "second")
    assert len(found) == 1


def test_each_look_says_what_the_whole_log_says(log: DeltaLog, delta_root: str, delta_queue: QueueTable) -> None:
    """Over checkpoints, compactions and a log that is shortened by another process right behind the last look."""
    other = DeltaStore(delta_root, durable=False).open("orders")
    for number in range(50):
        send(other, 2, str(number))
        if number % 5 == 4:
            held = claim(other, f"p{number}", 4)
            other.stage_table(held, put(rows_of(other, held), "retry", due_at=NOW))
            other.finish(held, seal(other, held), now=NOW)
        if number % 15 == 14:
            other.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, NOW)
        if number % 11 == 10:
            other.compact(min_files=2)
            other.clean(retention=NONE, safe_age=NONE)
            other.shorten_log(retention=NONE)
        kept, fresh = log.load(), DeltaLog(delta_queue.uri, durable=False).load()
        assert (kept.version, sorted(kept.files, key=str)) == (fresh.version, sorted(fresh.files, key=str))
        keys = [f"send:{each}" for each in (0, number - 1, number, number + 1)] + ["seq", f"run:p{number}", "fence"]
        assert [kept.number(key) for key in keys] == [fresh.number(key) for key in keys]
        assert kept.paths("_ctl") == fresh.paths("_ctl")


def test_a_version_that_was_taken_away_and_made_anew_is_read_anew(log: DeltaLog, delta_root: str, delta_queue: QueueTable) -> None:
    """A last commit that was never acknowledged and that a loss of power took, before another process commits."""
    send(delta_queue, 1, "lost")
    assert [file.rows for file in log.load().files if file.sub_queue == SubQueue.MAIN] == [1]
    Path(delta_queue.uri, "_delta_log", f"{log.load().version:020d}.json").unlink()
    max(Path(delta_queue.uri, "_acknowledged").iterdir()).unlink()
    send(DeltaStore(delta_root).open("orders"), 2, "kept")
    found = log.load()
    assert (found.number("send:lost"), found.number("send:kept")) == (None, 2)
    assert [file.rows for file in found.files if file.sub_queue == SubQueue.MAIN] == [2]


def test_an_empty_last_commit_that_the_last_look_has_not_seen_is_passed_over_and_set_aside_by_the_next_commit(
    log: DeltaLog, delta_queue: QueueTable
) -> None:
    version = log.load().version
    entry = Path(delta_queue.uri, "_delta_log", f"{version + 1:020d}.json")
    entry.write_bytes(b"")
    assert log.load().version == version
    assert entry.read_bytes() == b""
    send(delta_queue, 1)
    assert entry.read_bytes()
    assert [path.read_bytes() for path in Path(delta_queue.uri, "_repaired").iterdir()] == [b""]
    assert log.load().number("send:first") == 1


def test_an_older_copy_that_was_put_in_its_place_is_told(log: DeltaLog, delta_queue: QueueTable, tmp_path: Path) -> None:
    shutil.copytree(delta_queue.uri, tmp_path / "copy")
    send(delta_queue, 1)
    assert log.load().number("send:first") == 1
    shutil.rmtree(delta_queue.uri)
    (tmp_path / "copy").rename(delta_queue.uri)
    with pytest.raises(TableChangedError, match="older copy"):
        log.load()


def test_a_look_that_cannot_go_on_from_the_last_one_reads_the_whole_log(
    log: DeltaLog, delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.load()
    send(delta_queue, 1)

    def fail(_: object) -> None:
        message = "the log was shortened at this moment"
        raise deltalake.exceptions.DeltaError(message)

    monkeypatch.setattr(deltalake.DeltaTable, "update_incremental", fail)
    assert log.load().number("send:first") == 1


def test_a_queue_that_is_used_on_and_on_is_the_same_to_others(delta_root: str, delta_queue: QueueTable) -> None:
    for number in range(45):
        send(delta_queue, 1, str(number))
    other = DeltaStore(delta_root).open("orders")
    assert ids(other) == list(range(1, 46))
    assert all_rows(other) == all_rows(delta_queue)
    assert other.snapshot() == delta_queue.snapshot()
