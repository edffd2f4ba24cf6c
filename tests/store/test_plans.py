"""Plans in a table: recorded once, counted by the commits that do them, and what they have removed brought back; on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.files import PlanState, PlanStep, Replacement
from airflow_poison.store.history import as_ranges
from airflow_poison.values.errors import PlanNotFoundError, PlanStateError, TableChangedError
from airflow_poison.values.events import Event, EventType, acting
from airflow_poison.values.schema import SubQueue
from tests.given.tables import NOW, all_rows, claim, ids, put, send

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

RUNNING = frozenset({PlanState.RUNNING})
MADE, CHANGED = Event(EventType.PLANNED, NOW), Event(EventType.PLAN_CHANGED, NOW)


@pytest.fixture
def file(queue: QueueTable) -> DataFile:
    """A file of six messages."""
    send(queue, 6)
    [file] = queue.snapshot().files
    return file


def members(queue: QueueTable, file: DataFile) -> pa.Table:
    return put(queue.read(file), "_plan", 0)


def record(queue: QueueTable, file: DataFile, plan: str = "p") -> bool:
    return queue.record_plan(plan, {"says": "so"}, members(queue, file), [MADE])


def only(queue: QueueTable) -> StoredPlan:
    [found] = queue.stored_plans()
    return found


def types(queue: QueueTable) -> list[EventType]:
    return [event.type for event in queue.events()]


def test_a_plan_is_recorded_once_with_its_messages_and_its_event(queue: QueueTable, file: DataFile) -> None:
    assert record(queue, file)
    assert not record(queue, file)
    found = only(queue)
    assert (found.plan, dict(found.record), found.state, found.done, found.canary_passed) == ("p", {"says": "so"}, PlanState.RUNNING, 0, False)
    assert queue.plan_members(found)["lookup_id"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert types(queue) == [EventType.PLANNED]
    assert ids(queue) == [1, 2, 3, 4, 5, 6]


def test_two_that_record_one_plan_at_the_same_time_record_it_once(queue: QueueTable, file: DataFile, at_point: AtPoint) -> None:
    at_point.do("store.plan.after_files", lambda: record(queue, file))
    assert not record(queue, file)
    assert only(queue).done == 0


def test_plans_are_listed_in_the_order_in_which_they_were_recorded_until_they_are_removed(queue: QueueTable, file: DataFile) -> None:
    for plan in ("z", "a", "m"):
        record(queue, file, plan)
    assert [found.plan for found in queue.stored_plans()] == ["z", "a", "m"]
    queue.remove_plans(queue.stored_plans()[:2])
    queue.remove_plans([])
    assert [found.plan for found in queue.stored_plans()] == ["m"]


def test_a_state_is_changed_only_from_an_allowed_one(queue: QueueTable, file: DataFile) -> None:
    record(queue, file)
    queue.set_plan_state("p", PlanState.PAUSED, RUNNING, [CHANGED])
    version = queue.snapshot().version
    queue.set_plan_state("p", PlanState.PAUSED, RUNNING, [CHANGED])
    assert queue.snapshot().version == version
    with pytest.raises(PlanStateError, match="is paused; expected running"):
        queue.set_plan_state("p", PlanState.DONE, RUNNING, [CHANGED])
    with pytest.raises(PlanNotFoundError, match="no plan 'q'"):
        queue.set_plan_state("q", PlanState.DONE, RUNNING, [CHANGED])
    assert types(queue) == [EventType.PLANNED, EventType.PLAN_CHANGED]


def test_a_commit_that_does_a_part_counts_it(queue: QueueTable, file: DataFile) -> None:
    record(queue, file)
    rows = queue.read(file)
    step = PlanStep("p", 2, RUNNING)
    queue.replace_files([Replacement(file, rows.slice(2), removed=2)], [], step=step)
    [rest] = queue.snapshot().files
    queue.replace_files([], [], moves=[(rest, SubQueue.POISON)], step=PlanStep("p", 4, RUNNING))
    assert only(queue).done == 6
    assert [(row["lookup_id"], row["sub_queue"], row["move_count"]) for row in all_rows(queue)] == [(n, "poison", 1) for n in (3, 4, 5, 6)]


def test_a_paused_plan_does_nothing_more(queue: QueueTable, file: DataFile, at_point: AtPoint) -> None:
    record(queue, file)
    at_point.do("store.replace.after_files", lambda: queue.set_plan_state("p", PlanState.PAUSED, RUNNING, [CHANGED]))
    with pytest.raises(PlanStateError):
        queue.replace_files([Replacement(file, queue.read(file).slice(2), removed=2)], [], step=PlanStep("p", 2, RUNNING))
    assert (only(queue).done, ids(queue)) == (0, [1, 2, 3, 4, 5, 6])


def test_a_file_that_a_pass_claims_meanwhile_stays(queue: QueueTable, file: DataFile, at_point: AtPoint) -> None:
    record(queue, file)
    at_point.do("store.replace.after_files", lambda: claim(queue))
    with pytest.raises(TableChangedError):
        queue.replace_files([], [], moves=[(file, SubQueue.POISON)], step=PlanStep("p", 6, RUNNING))
    assert only(queue).done == 0


def removed(queue: QueueTable, file: DataFile) -> None:
    """A plan has removed messages 2 to 4."""
    record(queue, file)
    rows = queue.read(file)
    stay = rows.take([0, 4, 5])
    told = {"count": "3", "max_lookup_id": "4", "path": file.path, "lookup_ids": as_ranges([2, 3, 4]), "place": "", "plan": "p"}
    event = Event(EventType.DROPPED, NOW, 2, details=told)
    queue.replace_files([Replacement(file, stay, removed=3)], [event], step=PlanStep("p", 3, RUNNING))


def test_what_a_plan_has_removed_is_brought_back_once(queue: QueueTable, file: DataFile) -> None:
    before = all_rows(queue)
    removed(queue, file)
    [removal] = queue.removals_of("p")
    assert removal.lookup_ids == (2, 3, 4)
    step = PlanStep("p", -3, RUNNING)
    assert queue.bring_back(removal, step, Event(EventType.RETURNED, NOW, 2)) is True
    assert queue.bring_back(removal, step, Event(EventType.RETURNED, NOW, 2)) is False
    assert (all_rows(queue), only(queue).done) == (before, 0)


def test_two_that_bring_messages_back_at_the_same_time_bring_them_once(queue: QueueTable, file: DataFile, at_point: AtPoint) -> None:
    removed(queue, file)
    [removal] = queue.removals_of("p")
    step, event = PlanStep("p", -3, RUNNING), Event(EventType.RETURNED, NOW, 2)
    at_point.do("store.bring_back.after_files", lambda: queue.bring_back(removal, step, event))
    assert queue.bring_back(removal, step, event) is False
    assert ids(queue) == [1, 2, 3, 4, 5, 6]


def test_an_event_of_a_chunk_is_one_of_each_of_its_messages(queue: QueueTable, file: DataFile) -> None:
    removed(queue, file)
    assert [event.lookup_id for event in queue.events() if event.type is EventType.DROPPED] == [2, 3, 4]
    newest, earlier = queue.newest_events(9, lookup_ids=[3])
    assert ([event.lookup_id for event in newest], earlier) == ([3], 0)


def test_joined_events_of_chunks_are_those_of_their_messages(queue: QueueTable, file: DataFile) -> None:
    removed(queue, file)
    queue.compact(min_files=2)
    assert [event.lookup_id for event in queue.events() if event.type is EventType.DROPPED] == [2, 3, 4]
    assert [removal.lookup_ids for removal in queue.removals_of("p")] == [(2, 3, 4)]


def test_the_files_of_an_earlier_version_are_those_that_it_had(queue: QueueTable, file: DataFile) -> None:
    version = queue.snapshot().version
    removed(queue, file)
    assert queue.files_at(version) == (file,)
    assert queue.files_at(queue.snapshot().version) == queue.snapshot().files
    for later in (999, 2**62):  # without a search for all versions up to it
        with pytest.raises(PlanStateError, match=f"has no version {later}: its newest is {queue.snapshot().version}"):
            queue.files_at(later)


def test_rows_come_in_portions(queue: QueueTable, file: DataFile) -> None:
    assert [rows.num_rows for rows in queue.batches(file, 4)] == [4, 2]
    assert [number for rows in queue.batches(file, 4) for number in rows["lookup_id"].to_pylist()] == [1, 2, 3, 4, 5, 6]


def test_who_acts_and_why_is_a_part_of_every_event(queue: QueueTable, file: DataFile) -> None:
    with acting("shell:ann@here", "mended"):
        record(queue, file)
    queue.set_plan_state("p", PlanState.PAUSED, RUNNING, [CHANGED])
    first, second = queue.events()
    assert (first.details, second.details) == ({"who": "shell:ann@here", "why": "mended"}, {})
