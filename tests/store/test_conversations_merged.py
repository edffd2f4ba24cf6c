"""Versions of conversation endpoints, merged: the highest of each stays, whoever acts meanwhile."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.dialogs.as_rows import newest
from airflow_poison.store.files import Compacted
from airflow_poison.values.errors import ConservationError, TableChangedError
from tests.given.dialogs import act, endpoint, endpoints, letter, letters, next_version, rows
from tests.given.tables import NOW, claim, put, rows_of, seal, send
from tests.store.test_conversations import files_of, live

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


def all_of(found: pa.Table) -> pa.Table:
    return found


def without(handle: str) -> Callable[[pa.Table], pa.Table]:
    def keep(found: pa.Table) -> pa.Table:
        return found.filter(pa.array([each != handle for each in found["conversation_id"].to_pylist()]))

    return keep


def merge(queue: QueueTable, min_files: int = 2) -> Compacted:
    return queue.merge_conversations(all_of, min_files=min_files)


def versions(queue: QueueTable, count: int, handle: str = "a") -> None:
    for _ in range(count):
        version = endpoints(queue).get(handle, 0) + 1
        act(queue, f"{handle} {version}", endpoint(handle, version), letter(f"{handle} {version}"))


# What stays -------------------------------------------------------------------------------------------------------------


def test_the_highest_version_of_each_endpoint_stays_in_one_file(queue: QueueTable) -> None:
    versions(queue, 3)
    versions(queue, 2, "b")
    before = queue.snapshot()
    done = merge(queue)
    assert (done.files, done.into, done.rows, done.size) == (5, 1, 5, sum(file.size for file in before.conversations))
    [merged] = queue.snapshot().conversations
    found = queue.read(merged).select(["conversation_id", "lookup_id", "body"]).to_pylist()
    assert sorted((row["conversation_id"], row["lookup_id"], row["body"]) for row in found) == [("a", 3, b"a 3"), ("b", 2, b"b 2")]
    assert (queue.snapshot().version, queue.snapshot().transmissions) == (before.version + 1, before.transmissions)


def test_few_files_are_left_alone(queue: QueueTable) -> None:
    versions(queue, 3)
    before = queue.snapshot()
    assert merge(queue, 4) == Compacted()
    assert queue.snapshot() == before
    assert merge(queue, 1).files == 3
    assert merge(queue, 1) == Compacted()


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 2, 1], [2, 3, 1]])
def test_it_is_the_version_that_counts_and_not_the_order(order: list[int]) -> None:
    found = newest(rows(*(endpoint("a", version) for version in order), endpoint("b", 1)))
    assert {(row["conversation_id"], row["lookup_id"]) for row in found.to_pylist()} == {("a", 3), ("b", 1)}
    assert newest(rows()).num_rows == 0


def test_what_the_caller_leaves_out_is_forgotten(queue: QueueTable) -> None:
    versions(queue, 2)
    versions(queue, 2, "b")
    queue.merge_conversations(without("b"), min_files=2)
    assert endpoints(queue) == {"a": 2}


def test_nothing_may_be_left(queue: QueueTable) -> None:
    versions(queue, 2)
    assert queue.merge_conversations(without("a"), min_files=2).into == 0
    assert (queue.snapshot().conversations, files_of(queue) & live(queue)) == ((), live(queue))


def test_a_large_file_waits_until_the_others_have_become_as_large_and_nothing_is_forgotten_until_then(queue: QueueTable) -> None:
    """An older version in the file that is left out would count again."""
    act(queue, "many", *(endpoint(str(number), 1) | {"body": os.urandom(60_000)} for number in range(20)))
    act(queue, "1", endpoint("0", 2, "CD"))
    act(queue, "2", endpoint("a", 1))
    done = queue.merge_conversations(without("0"), min_files=2)
    assert done.files == 2
    assert endpoints(queue) == {**{str(number): 1 for number in range(20)}, "0": 2, "a": 1}
    act(queue, "large", endpoint("b", 1) | {"body": os.urandom(900_000)})
    act(queue, "larger", endpoint("b", 2) | {"body": os.urandom(900_000)})
    assert queue.merge_conversations(without("0"), min_files=2).files == 4
    assert endpoints(queue) == {**{str(number): 1 for number in range(1, 20)}, "a": 1, "b": 2}


@pytest.mark.parametrize("stays", [rows(endpoint("a", 2), endpoint("c", 1)), rows(endpoint("a", 1)), rows(endpoint("a", 2), endpoint("a", 2))])
def test_others_than_there_are_cannot_stay(queue: QueueTable, stays: pa.Table) -> None:
    versions(queue, 2)
    before, on_disk = queue.snapshot(), files_of(queue)
    with pytest.raises(ConservationError, match="others than there are were to stay"):
        queue.merge_conversations(lambda _: stays, min_files=2)
    assert (queue.snapshot(), files_of(queue)) == (before, on_disk)


# Beside others ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["store.merge.after_files", "store.merge.before_commit"])
def test_who_acts_while_a_merge_is_made_is_not_undone(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    versions(queue, 3)
    at_point.do(point, lambda: queue.transact(next_version(queue), "meanwhile", NOW))
    assert merge(queue).files == 3
    assert (endpoints(queue), len(queue.snapshot().conversations)) == ({"a": 4}, 2)
    assert live(queue) <= files_of(queue)


@pytest.mark.parametrize("point", ["store.transact.before_files", "store.transact.after_files", "store.transact.before_commit"])
def test_who_acts_reads_the_merged_endpoints_when_a_merge_was_faster(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    versions(queue, 3)
    at_point.do(point, lambda: merge(queue))
    assert queue.transact(next_version(queue), "act", NOW)
    assert (endpoints(queue), letters(queue)[-1]) == ({"a": 4}, "a 4")


def test_a_pass_that_has_staged_a_version_ends_after_a_merge(queue: QueueTable) -> None:
    versions(queue, 3)
    send(queue, 1)
    held = claim(queue)
    queue.stage_table(held, pa.concat_tables([put(rows_of(queue, held), "poison"), rows(endpoint("a", 4), letter("a 4"))]))
    manifest = seal(queue, held)
    merge(queue)
    assert queue.finish(held, manifest, now=NOW)
    assert (endpoints(queue), letters(queue)[-1]) == ({"a": 4}, "a 4")


@pytest.mark.parametrize("point", ["store.merge.after_files", "store.merge.before_commit"])
def test_of_two_merges_at_once_one_is_made(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    versions(queue, 3)
    at_point.do(point, lambda: merge(queue))
    assert merge(queue) == Compacted()
    assert (endpoints(queue), len(queue.snapshot().conversations)) == ({"a": 3}, 1)
    assert len({path for path in files_of(queue) if "_conversation" in path}) == 3 + 1


@pytest.mark.parametrize("point", ["store.merge.after_files", "store.merge.before_commit"])
def test_a_cleaner_that_keeps_nothing_stops_a_merge_or_lets_it_be(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    versions(queue, 3)
    at_point.do(point, lambda: queue.clean(retention=timedelta(0), safe_age=timedelta(0)))
    try:
        merge(queue)
    except TableChangedError:
        merge(queue)
    assert (endpoints(queue), len(queue.snapshot().conversations)) == ({"a": 3}, 1)
    assert live(queue) <= files_of(queue)
