"""Moves of whole files, splits, the outbox, and the history of it all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.files import Returned
from airflow_poison.values.errors import ConservationError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue
from tests.given.tables import LATER, LEASE, NOW, all_rows, claim, ids, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


class Picker:
    """Picks every file of a sub-queue."""

    def __init__(self, place: SubQueue) -> None:
        self.place = place

    def __call__(self, snapshot: Snapshot) -> Sequence[DataFile]:
        return [file for file in snapshot.files if file.sub_queue == self.place]


PARKED = Picker(SubQueue.RETRY)


def test_a_return_counts_the_move_and_keeps_every_row(queue: QueueTable) -> None:
    send(queue, 3)
    park_all(queue)
    before = all_rows(queue)
    assert queue.move_files(PARKED, SubQueue.MAIN, LATER) == Returned(messages=3, files=1)
    assert all_rows(queue) == [{**row, "sub_queue": "main", "move_count": 2} for row in before]
    (file,) = queue.snapshot().files
    assert file.path.startswith("sub_queue=main/move_count=2/")
    assert file.max_due_at is None
    assert queue.snapshot().depth(SubQueue.MAIN, LATER).by_move_count == {2: 3}


def test_nothing_to_move_is_no_commit(queue: QueueTable) -> None:
    send(queue, 3)
    version = queue.snapshot().version
    assert queue.move_files(PARKED, SubQueue.MAIN, LATER) == Returned(messages=0, files=0)
    assert queue.snapshot().version == version


def test_a_claimed_file_is_never_moved(queue: QueueTable) -> None:
    send(queue, 1, "1")
    send(queue, 1, "2")
    claimed = claim(queue, messages=1)
    assert queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW) == Returned(messages=1, files=1)
    assert ids(queue, SubQueue.MAIN) == [1]
    assert queue.finish(claimed, seal(queue, claimed), now=NOW)


def test_a_file_that_is_claimed_between_links_and_commit_is_not_moved(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 2)
    at_point.do("store.move.before_commit", lambda: claim(queue))
    assert queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW).messages == 0
    assert ids(queue, SubQueue.MAIN) == [1, 2]


def test_two_returns_at_once_move_each_file_once(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 2)
    park_all(queue)
    at_point.do("store.move.before_commit", lambda: queue.move_files(PARKED, SubQueue.MAIN, LATER))
    assert queue.move_files(PARKED, SubQueue.MAIN, LATER) == Returned(messages=0, files=0)
    assert [(row["lookup_id"], row["move_count"]) for row in all_rows(queue)] == [(1, 2), (2, 2)]
    assert len(list(queue.events())) == 2


def test_a_file_picked_from_an_old_snapshot_is_left_alone_when_it_is_gone(queue: QueueTable) -> None:
    send(queue, 2)
    old = queue.snapshot().files
    queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW)
    assert queue.move_files(lambda _: old, SubQueue.RETRY, NOW) == Returned(messages=0, files=0)


def test_a_move_that_is_not_counted_can_go_back_and_forth(queue: QueueTable) -> None:
    send(queue, 2)
    for place in (SubQueue.POISON, SubQueue.MAIN, SubQueue.POISON, SubQueue.MAIN):
        queue.move_files(lambda snapshot: snapshot.files, place, NOW, count_move=False)
        assert [(row["lookup_id"], row["sub_queue"], row["move_count"]) for row in all_rows(queue)] == [(1, place, 0), (2, place, 0)]


def test_a_return_tells_one_event_a_message_in_the_order_of_the_pick(queue: QueueTable) -> None:
    send(queue, 2, "1")
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", 1, LATER + LEASE))
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    send(queue, 2, "2")
    park_all(queue, "other", due_at=LATER)
    queue.move_files(lambda snapshot: sorted(snapshot.files, key=lambda file: str(file.max_due_at)), SubQueue.MAIN, LATER + LEASE)
    told = list(queue.events())
    assert [event.lookup_id for event in told] == [3, 4, 1, 2]
    assert told[0] == Event(EventType.RETURNED, LATER + LEASE, 3, abort_count=0, move_count=2, details={"place": "main"})


def test_a_return_is_one_row_a_file_and_stays_readable_when_the_file_is_gone(queue: QueueTable) -> None:
    send(queue, 2)
    park_all(queue)
    queue.move_files(PARKED, SubQueue.MAIN, LATER)
    (file,) = queue.snapshot().files
    queue.folder.remove(file.path)
    details = {"count": "2", "max_lookup_id": "2", "path": file.path, "place": "main"}
    assert list(queue.events()) == [Event(EventType.RETURNED, LATER, 1, move_count=2, details=details)]


def test_what_was_postponed_comes_back_uncounted_and_untold(queue: QueueTable) -> None:
    send(queue, 2)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "postponed", 0, LATER))
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert queue.snapshot().depth(SubQueue.POSTPONED, LATER).due == 2
    assert queue.move_files(Picker(SubQueue.POSTPONED), SubQueue.MAIN, LATER, count_move=False) == Returned(messages=2, files=1)
    assert queue.snapshot().depth(SubQueue.MAIN, LATER).by_move_count == {0: 2}
    assert list(queue.events()) == []


def test_what_is_put_back_from_poison_tells_where_it_was(queue: QueueTable) -> None:
    send(queue, 1)
    queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW)
    queue.move_files(Picker(SubQueue.POISON), SubQueue.MAIN, NOW)
    assert list(queue.events())[1].details == {"place": "main", "origin": "poison"}


def test_a_move_to_poison_is_told_as_such(queue: QueueTable) -> None:
    send(queue, 1)
    queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW)
    assert [(event.type, event.lookup_id, event.move_count) for event in queue.events()] == [(EventType.MOVED_POISON, 1, 1)]


def test_events_come_in_the_order_of_their_commits_and_from_a_version_on(queue: QueueTable) -> None:
    for number in range(12):
        happened = Event(EventType.STARTED, NOW, details={"number": str(number)})
        queue.alter(lambda control: control, lambda _, __, event=happened: [event])  # type: ignore[misc]
        if number == 7:
            version = queue.snapshot().version
    assert [event.details["number"] for event in queue.events()] == [str(number) for number in range(12)]
    assert [event.details["number"] for event in queue.events(since_version=version)] == ["8", "9", "10", "11"]


def test_staged_events_come_before_those_of_the_pass(queue: QueueTable) -> None:
    from airflow_poison.values.schema import events_to_table

    send(queue, 2)
    claimed = claim(queue)
    moved = [Event(EventType.MOVED_RETRY, NOW, number, move_count=1) for number in (1, 2)]
    queue.stage_table(claimed, events_to_table(moved))
    ended = Event(EventType.STOPPED, NOW)
    queue.finish(claimed, seal(queue, claimed), events=[ended], now=NOW)
    assert list(queue.events()) == [*moved, ended]


def test_an_alteration_sees_the_newest_row_and_tells_its_events(queue: QueueTable, at_point: AtPoint) -> None:
    def add(name: str) -> Control:
        return queue.alter(lambda control: replace(control, counters={**control.counters, name: 1}), lambda _, __: [])

    at_point.do("store.alter.before_commit", lambda: add("faster"))
    assert add("slower").counters == {"faster": 1, "slower": 1}
    assert queue.snapshot().control.counters == {"faster": 1, "slower": 1}


def test_an_alteration_gives_its_events_the_row_before_and_after(queue: QueueTable) -> None:
    def events(before: Control, after: Control) -> Sequence[Event]:
        return [Event(EventType.QUEUE_DISABLED, NOW, details={"from": before.state, "to": after.state})]

    queue.alter(lambda control: replace(control, state=QueueState.DISABLED), events)
    assert [dict(event.details) for event in queue.events()] == [{"from": "enabled", "to": "disabled"}]


def test_an_alteration_that_changes_nothing_is_no_commit(queue: QueueTable) -> None:
    version = queue.snapshot().version
    assert queue.alter(lambda control: control, lambda _, __: []) == queue.snapshot().control
    assert queue.snapshot().version == version


def test_a_split_keeps_every_row(queue: QueueTable) -> None:
    send(queue, 5)
    (file,) = queue.snapshot().files
    before = all_rows(queue)
    rows = queue.read(file)
    queue.split_file(file, [rows.slice(0, 2), rows.slice(2)])
    assert [piece.rows for piece in queue.snapshot().files] == [2, 3]
    assert all_rows(queue) == before


def test_a_split_that_loses_a_row_is_refused(queue: QueueTable) -> None:
    send(queue, 5)
    (file,) = queue.snapshot().files
    with pytest.raises(ConservationError, match="4 rows instead of 5"):
        queue.split_file(file, [queue.read(file).slice(0, 4)])
    assert queue.snapshot().files == (file,)
    assert len(list(Path(queue.root, "sub_queue=main").rglob("*.parquet"))) == 1


def test_a_claimed_file_cannot_be_split(queue: QueueTable) -> None:
    send(queue, 5)
    (file,) = claim(queue).files
    with pytest.raises(TableChangedError, match="cannot be split"):
        queue.split_file(file, [queue.read(file)])


def test_sent_outbox_files_are_removed_once(queue: QueueTable) -> None:
    send(queue, 2)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "_outbox", 0))
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    out = queue.snapshot().outbox
    queue.remove_outbox(out)
    version = queue.snapshot().version
    queue.remove_outbox(out)
    assert queue.snapshot().outbox == ()
    assert queue.snapshot().version == version


def test_a_file_that_is_gone_is_told_when_it_is_read(queue: QueueTable) -> None:
    send(queue, 2)
    (file,) = queue.snapshot().files
    queue.folder.remove(file.path)
    with pytest.raises(TableChangedError, match=file.path):
        queue.read(file)
    with pytest.raises(TableChangedError, match=file.path):
        queue.move_files(Picker(SubQueue.MAIN), SubQueue.POISON, NOW)


def test_rows_come_with_the_columns_of_the_table(queue: QueueTable) -> None:
    from airflow_poison.values.schema import table_schema

    send(queue, 2)
    (file,) = queue.snapshot().files
    assert isinstance(queue.read(file), pa.Table)
    assert queue.read(file).schema.equals(table_schema())
