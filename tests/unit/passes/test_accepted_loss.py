"""What is lost for good: refused by every verb, and given up only when people say so; nothing is used twice, and the rest goes on."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.fsck.files import Kind
from airflow_poison.passes.maintain import RepairResult, repair
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import PoisonError, TableChangedError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.broken_queues import NOW, a_file, checked, marks_of, path_of
from tests.given.tables import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.passes import Queue


def accepted(queue: Queue) -> RepairResult:
    return repair(queue.store, "orders", queue.clock, accept_loss=True, safe_age=NOW)


def refused(queue: Queue) -> str:
    """What a repair without consent says; and every verb refuses, too."""
    with pytest.raises(TableChangedError):
        DeltaStore(queue.store.uri).open("orders").snapshot()
    result = repair(queue.store, "orders", queue.clock, safe_age=NOW)
    assert result.done == ()
    return "; ".join(result.failed)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 9), lambda path: path.write_bytes(b"")])
def test_the_messages_of_a_lost_file_are_told_by_lookup_id_and_the_others_go_on(worked: Queue, damage: Callable[[Path], object]) -> None:
    file = a_file(worked)
    others = worked.rows().keys() - set(range(file.min_lookup_id, file.max_lookup_id + 1))
    damage(Path(worked.table.uri, file.path))
    assert file.path in refused(worked)
    result = accepted(worked)
    assert f"{file.rows} message(s) with the lookup ids {file.min_lookup_id}-{file.max_lookup_id} are lost" in "; ".join(result.done)
    assert (result.failed, result.after.findings, result.after.account.lost) == ((), (), file.rows)
    assert worked.rows().keys() == others
    told = [(event.lookup_id, event.details) for event in worked.table.events(types={EventType.LOST})]
    assert told == [(lookup_id, {"place": "main"}) for lookup_id in range(file.min_lookup_id, file.max_lookup_id + 1)]
    assert worked.sent("ok 16").receive("again").settled
    assert checked(worked).findings == ()


def test_lookup_ids_between_others_are_told_as_far_as_they_are_known(worked: Queue) -> None:
    """The messages of a file of poison lie between others; those that are in no other file may be it."""
    lost = a_file(worked, SubQueue.POISON)
    Path(worked.table.uri, lost.path).unlink()
    said = "; ".join(accepted(worked).done)
    assert f"{lost.rows} message(s) with the lookup ids" in said
    assert str(lost.min_lookup_id) in said


def test_lost_history_takes_no_message_along(worked: Queue) -> None:
    before = worked.rows()
    path_of(worked, "_event").unlink()
    result = accepted(worked)
    assert (result.failed, result.after.findings, result.after.account.lost) == ((), (), 0)
    assert worked.rows() == before


def test_a_lost_control_row_is_not_given_up(worked: Queue) -> None:
    path_of(worked, "_ctl").unlink()
    assert "its policy and state" in "; ".join(accepted(worked).failed)


def test_a_claim_of_a_lost_file_goes_with_it_and_its_other_messages_come_again(worked: Queue) -> None:
    claim = worked.table.claim("dead", lease=timedelta(minutes=2), now=worked.clock.now(), max_messages=10)
    assert claim is not None
    first, *others = claim.files
    assert others
    Path(worked.table.uri, first.path).unlink()
    result = accepted(worked)
    assert "gave up the claim of the pass dead" in "; ".join(result.done)
    assert (result.failed, result.after.findings) == ((), ())
    assert {file.min_lookup_id for file in others} <= worked.rows().keys()
    assert worked.table.snapshot().claims == ()
    assert worked.receive("again").received >= sum(file.rows for file in others)


def lose_newest(queue: Queue, commits: int) -> list[int]:
    """Remove the newest entries and the copies of them: the marks stay."""
    log = Path(queue.table.uri, "_delta_log")
    lost = []
    for path in sorted(log.glob("*.json"))[-commits:]:
        path.unlink()
        lost.append(int(path.stem))
        marks_of(queue)[int(path.stem)].write_bytes(b"")
    return lost


def test_neither_versions_nor_lookup_ids_of_lost_commits_are_used_again(worked: Queue) -> None:
    queue = worked.sent("ok 16", "ok 17").sent("ok 18")
    lost = lose_newest(queue, 2)
    assert f"has lost 2 commit(s), from version {lost[0]} on" in refused(queue)
    assert {finding.kind for finding in checked(queue).findings} == {Kind.LOG_DAMAGED}

    result = accepted(queue)

    assert f"version {lost[0]} to {lost[1]}; lookup ids 16 to 18 are lost" in "; ".join(result.done)
    assert (result.failed, result.after.findings, result.after.account.lost) == ((), (), 3)
    assert len([*Path(queue.table.uri, "_repaired").glob("*.parquet")]) == 2
    there = DeltaStore(queue.store.uri).open("orders")
    assert there.snapshot().version == lost[1]
    assert queue.having(table=there).sent("ok 19").rows().keys() >= {19}
    assert checked(queue).findings == ()


def test_where_no_mark_tells_a_cut_commit_is_not_taken_away_in_silence(worked: Queue) -> None:
    """A table of an earlier release has no marks: whether its newest commit was acknowledged is not known."""
    for mark in marks_of(worked).values():
        mark.unlink()
    Path(worked.table.uri, "_acknowledged").rmdir()
    newest = max(Path(worked.table.uri, "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(TableChangedError, match="whether it was acknowledged is not known"):
        DeltaStore(worked.store.uri).open("orders")
    assert "no copy is whole" in "; ".join(repair(worked.store, "orders", worked.clock, safe_age=NOW).failed)
    result = accepted(worked)
    assert result.failed == ()
    assert worked.sent("ok 16").rows()


def test_a_log_that_is_gone_is_damage_and_no_new_queue(worked: Queue) -> None:
    Path(worked.table.uri, "_delta_log").rename(worked.store.uri + "/../aside")
    store = DeltaStore(worked.store.uri)
    assert "orders" in store.names()
    with pytest.raises(PoisonError):
        store.create("orders", CONTROL)
    with pytest.raises(TableChangedError, match="has lost its log"):
        store.open("orders")
    [finding] = checked(worked).findings
    assert (finding.kind, finding.where) == (Kind.LOG_DAMAGED, "_delta_log")


def test_each_way_back_that_is_killed_is_gone_again(worked: Queue) -> None:
    """A repair twice does nothing the second time."""
    Path(worked.table.uri, a_file(worked).path).unlink()
    accepted(worked)
    again = accepted(worked)
    assert (again.done, again.failed, again.after.findings) == ((), (), ())


def test_the_marks_say_what_the_log_holds(worked: Queue) -> None:
    for number in range(50):
        worked.sent(f"ok {number}")
    marks = marks_of(worked)
    newest = worked.table.snapshot().version
    assert sorted(marks) == list(range(newest - len(marks) + 1, newest + 1))
    assert 20 < len(marks) <= 41
    for version, path in marks.items():
        entry = Path(worked.table.uri, "_delta_log", f"{version:020d}.json")
        assert path.read_bytes() == entry.read_bytes()
        assert (
            len(entry.read_text().splitlines())
            == 1 + json.loads(json.loads(entry.read_text().splitlines()[0])["commitInfo"]["userMetadata"])["actions"]
        )
