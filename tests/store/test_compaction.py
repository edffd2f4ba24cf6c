"""Compaction: fewer files, the same rows in the same order, the same history; and never what others hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.store import compaction
from airflow_poison.store.files import Compacted
from airflow_poison.store.history import as_ranges, from_ranges
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.given.tables import CONTROL, LATER, LEASE, NOW, all_rows, batch, claim, ids, put, rows_of, seal, send

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


def send_each(queue: QueueTable, count: int, start: int = 0) -> None:
    """So many files of one message each."""
    for number in range(start, start + count):
        send(queue, 1, str(number))


def ranges(queue: QueueTable, place: str = "main") -> list[tuple[int, int]]:
    found = [(file.min_lookup_id, file.max_lookup_id) for file in queue.snapshot().files if file.sub_queue == place]
    return sorted(found)


def park(queue: QueueTable, key: str, due: timedelta = timedelta(0)) -> None:
    claimed = claim(queue, key, 1)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", due_at=LATER + due))
    assert queue.finish(claimed, seal(queue, claimed), events=[Event(EventType.MOVED_RETRY, NOW, claimed.files[0].min_lookup_id)], now=NOW)


def test_files_that_follow_each_other_become_one_with_the_same_rows(queue: QueueTable) -> None:
    send_each(queue, 4)
    before = all_rows(queue)
    size = sum(file.size for file in queue.snapshot().files)
    assert queue.compact(min_files=3) == Compacted(files=4, into=1, rows=4, size=size)
    assert ranges(queue) == [(1, 4)]
    assert all_rows(queue) == before
    [file] = queue.snapshot().files
    assert queue.read(file)["lookup_id"].to_pylist() == [1, 2, 3, 4]


def test_too_few_files_are_left_as_they_are_and_cost_no_commit(queue: QueueTable) -> None:
    send_each(queue, 3)
    version = queue.snapshot().version
    assert queue.compact(min_files=4) == Compacted()
    assert queue.snapshot().version == version


def test_a_claimed_file_is_neither_taken_nor_jumped_over(queue: QueueTable) -> None:
    send_each(queue, 5)
    for number in range(3):
        claim(queue, f"run-{number}", 1)
    held = next(held for held in queue.snapshot().claims if held.files[0].min_lookup_id == 3)
    for other in queue.snapshot().claims:
        if other != held:
            queue.release(other)
    queue.compact(min_files=2)
    assert ranges(queue) == [(1, 2), (3, 3), (4, 5)]
    queue.release(held)
    assert [file.min_lookup_id for file in queue.snapshot().files] == [1, 3, 4]


def test_files_of_another_move_count_or_priority_are_not_jumped_over(queue: QueueTable) -> None:
    send_each(queue, 2)
    queue.append([batch(b"urgent", priority=[9])], "urgent", NOW)
    send_each(queue, 2, 10)
    queue.compact(min_files=2)
    assert ranges(queue) == [(1, 2), (3, 3), (4, 5)]


def test_what_waits_is_joined_only_where_it_falls_due_together(queue: QueueTable) -> None:
    send_each(queue, 6)
    for number, due in enumerate([0, 0, 0, 1, 1, 2]):
        park(queue, str(number), timedelta(minutes=due))
    queue.compact(min_files=2)
    assert ranges(queue, "retry") == [(1, 3), (4, 5), (6, 6)]
    assert queue.snapshot().depth(SubQueue.RETRY, LATER).due == 3


def test_the_outbox_is_left_alone(queue: QueueTable) -> None:
    """The path of an outbox file is the key under which it is sent on: under another one its messages would be sent twice."""
    send_each(queue, 3)
    for number in range(3):
        claimed = claim(queue, str(number), 1)
        queue.stage_table(claimed, put(rows_of(queue, claimed), "_outbox", 0))
        queue.finish(claimed, seal(queue, claimed), now=NOW)
    before = queue.snapshot().outbox
    queue.compact(min_files=2)
    assert queue.snapshot().outbox == before
    assert len(before) == 3


@pytest.mark.parametrize("limit", ["MOST_ROWS", "MOST_BYTES"])
def test_no_file_becomes_too_large(queue: QueueTable, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    send_each(queue, 6)
    size = max(file.size for file in queue.snapshot().files)
    monkeypatch.setattr(compaction, limit, 3 if limit == "MOST_ROWS" else 3 * size + 100)
    queue.compact(min_files=2)
    assert ranges(queue) == [(1, 3), (4, 6)]


def test_what_is_larger_than_all_that_follows_is_not_written_again(queue: QueueTable) -> None:
    queue.append([batch(*(bytes([number]) * 5_000 for number in range(200)))], "large", NOW)
    send_each(queue, 3)
    queue.compact(min_files=2)
    assert ranges(queue) == [(1, 200), (201, 203)]


# Races -------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_claimed_meanwhile_keeps_all_as_they_are(queue: QueueTable, at_point: AtPoint) -> None:
    send_each(queue, 3)
    at_point.do("store.compact.after_files", lambda: claim(queue, "run", 1))
    before = on_disk(queue)
    assert queue.compact(min_files=2) == Compacted()
    assert ranges(queue) == [(1, 1), (2, 2), (3, 3)]
    assert on_disk(queue) == before + 1  # the claim's row


def test_a_file_that_is_claimed_before_the_commit_keeps_all_as_they_are(queue: QueueTable, at_point: AtPoint) -> None:
    send_each(queue, 3)
    at_point.do("store.compact.before_commit", lambda: claim(queue, "run", 1))
    assert queue.compact(min_files=2) == Compacted()
    assert ids(queue) == [1, 2, 3]


def test_a_message_that_comes_back_into_a_gap_is_not_jumped_over(queue: QueueTable, at_point: AtPoint) -> None:
    send_each(queue, 3)
    claims = [claim(queue, str(number), 1) for number in range(3)]
    queue.release(claims[0])
    queue.stage_table(claims[1], put(rows_of(queue, claims[1]), "retry", due_at=LATER))
    queue.finish(claims[1], seal(queue, claims[1]), now=NOW)
    queue.release(claims[2])

    def give_back() -> None:
        queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, LATER)

    at_point.do("store.compact.before_commit", give_back)
    assert queue.compact(min_files=2) == Compacted()
    assert ranges(queue) == [(1, 1), (2, 2), (3, 3)]


def test_a_send_meanwhile_is_no_obstacle(queue: QueueTable, at_point: AtPoint) -> None:
    send_each(queue, 3)
    at_point.do("store.compact.before_commit", lambda: send(queue, 2, "meanwhile"))
    assert queue.compact(min_files=2).files == 3
    assert ranges(queue) == [(1, 3), (4, 5)]


def test_two_maintainers_at_once_join_each_file_once(queue: QueueTable, at_point: AtPoint) -> None:
    send_each(queue, 4)
    at_point.do("store.compact.before_commit", lambda: queue.compact(min_files=2))
    assert queue.compact(min_files=2) == Compacted()
    assert ranges(queue) == [(1, 4)]
    assert ids(queue) == [1, 2, 3, 4]


# Events ------------------------------------------------------------------------------------------------------------


def tell(queue: QueueTable, *lookup_ids: int) -> None:
    """A commit with these events."""
    number = len(list(queue.events()))
    queue.alter(
        lambda control: control.with_endpoint_counters({"n": number}),
        lambda _, __: [Event(EventType.DROPPED, NOW, lookup_id, details={"n": str(number)}) for lookup_id in lookup_ids],
    )


def event_files(queue: QueueTable) -> int:
    return len([path for path in live_paths(queue) if path.startswith("sub_queue=_event/")])


def live_paths(queue: QueueTable) -> list[str]:
    return [file.path for file in queue.log.load().files]


def on_disk(queue: QueueTable) -> int:
    return len([path for path in Path(queue.root).rglob("*.parquet") if "_delta_log" not in path.parts])


def test_joined_events_keep_their_order_and_their_versions(queue: QueueTable) -> None:
    marks: list[int] = []
    for number in range(6):
        tell(queue, 30 - number, number, 7)
        marks.append(queue.snapshot().version)
        send(queue, 1, str(number))
    before = list(queue.events())
    parts = {(since, until): list(queue.events(since, until_version=until)) for since in marks for until in marks}
    queue.compact(min_files=2)
    assert event_files(queue) == 1
    assert list(queue.events()) == before
    assert {(since, until): list(queue.events(since, until_version=until)) for since in marks for until in marks} == parts
    tell(queue, 99)
    tell(queue, 100)
    queue.compact(min_files=2)
    assert [event.lookup_id for event in queue.events()] == [*(event.lookup_id for event in before), 99, 100]


def test_joined_events_are_joined_again(queue: QueueTable) -> None:
    for number in range(3):
        tell(queue, number)
    queue.compact(min_files=2)
    for number in range(3, 9):
        tell(queue, number, number + 100)
    middle = queue.snapshot().version - 3
    before, later = list(queue.events()), list(queue.events(middle))
    queue.compact(min_files=2)
    assert event_files(queue) == 1
    assert (list(queue.events()), list(queue.events(middle))) == (before, later)


def test_events_of_one_commit_in_several_files_stay_together(queue: QueueTable) -> None:
    for number in range(4):
        send(queue, 2, str(number))
        claimed = claim(queue, str(number))
        events = pa.Table.from_pylist(
            [
                {
                    "lookup_id": number,
                    "message_type": "DROPPED",
                    "enqueued_at": NOW,
                    "priority": 0,
                    "body": b'{"move_count": 0}',
                    "sub_queue": "_event",
                }
                | {"move_count": 0}
            ],
            schema=put(rows_of(queue, claimed), "retry").schema,
        )
        queue.stage_table(claimed, events)
        queue.finish(claimed, seal(queue, claimed), events=[Event(EventType.STOPPED, NOW, number)], now=NOW)
    before = list(queue.events())
    assert event_files(queue) == 8
    queue.compact(min_files=2)
    assert event_files(queue) < 8
    assert list(queue.events()) == before


def test_a_moved_file_is_told_message_by_message_after_the_file_is_gone(queue: QueueTable) -> None:
    send(queue, 3, "1")
    park_as_one(queue)
    queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, LATER)
    tell(queue, 50)
    tell(queue, 51)
    before = list(queue.events())
    assert [event.lookup_id for event in before] == [1, 2, 3, 50, 51]
    queue.compact(min_files=2)
    for file in queue.snapshot().files:
        queue.folder.remove(file.path)
    assert list(queue.events()) == before


def park_as_one(queue: QueueTable) -> None:
    claimed = claim(queue, "park")
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", due_at=LATER))
    queue.finish(claimed, seal(queue, claimed), now=NOW)


@given(st.lists(st.integers(0, 50)))
@settings(max_examples=examples(50))
def test_ranges_are_read_as_they_were_written(numbers: list[int]) -> None:
    assert from_ranges(as_ranges(numbers)) == numbers


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 5, 9]), st.sampled_from(["free", "claimed", "parked"])), min_size=1, max_size=10))
@settings(max_examples=examples(25))
def test_whatever_lies_there_nothing_is_lost_and_order_stays(files: list[tuple[int, int, str]]) -> None:
    queue = MemoryStore().create("orders", CONTROL)
    for number, (count, priority, _) in enumerate(files):
        queue.append([batch(*([b"x"] * count), priority=[priority] * count)], str(number), NOW)
    held = [queue.claim(f"c{number}", lease=LEASE, now=NOW, max_messages=1_000) for number in range(1)]
    assert held[0] is not None
    queue.release(held[0])
    for number in range(len(files)):
        free = queue.claim(f"run-{number}", lease=LEASE, now=NOW, max_messages=3)
        if free is None:
            break
        fate = files[number][2]
        if fate == "free":
            continue
        if fate == "parked":
            queue.stage_table(free, put(rows_of(queue, free), "retry", due_at=LATER))
            queue.finish(free, seal(queue, free), now=NOW)
    for held_claim in queue.snapshot().claims[::2]:
        queue.release(held_claim)
    claimed = {file.path for one in queue.snapshot().claims for file in one.files}
    rows, order = all_rows(queue), in_order(queue)
    queue.compact(min_files=2)
    assert all_rows(queue) == rows
    assert in_order(queue) == order
    assert claimed <= {file.path for file in queue.snapshot().files}


def in_order(queue: QueueTable) -> list[int]:
    """Lookup ids of main as passes would take them, file by file."""
    found: list[int] = []
    for file in queue.snapshot().files:
        if file.sub_queue == SubQueue.MAIN:
            found += sorted(number or 0 for number in queue.read(file)["lookup_id"].to_pylist())
    return found
