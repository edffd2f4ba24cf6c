"""Files replaced by other rows: several in one commit, nothing lost and nothing doubled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.store.files import Replacement
from airflow_poison.values.errors import ConservationError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue
from tests.given.tables import NOW, all_rows, claim, ids, put, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

TOLD = Event(EventType.DROPPED, NOW, 1)


@pytest.fixture
def files(queue: QueueTable) -> list[DataFile]:
    """Two files of three messages each."""
    send(queue, 3, "1")
    send(queue, 3, "2")
    return list(queue.snapshot().files)


def on_disk(queue: QueueTable) -> int:
    return len([path for path in Path(queue.root).rglob("*.parquet") if "_delta_log" not in path.parts])


def test_rows_go_where_their_columns_say_in_one_commit_with_events_and_control_row(queue: QueueTable, files: list[DataFile]) -> None:
    version = queue.snapshot().version
    first, second = (queue.read(file) for file in files)
    parted = pa.concat_tables([put(first.slice(0, 1), "poison", 1), put(first.slice(1, 1), "_outbox", 0), first.slice(2)])
    replacements = [Replacement(files[0], parted), Replacement(files[1], second.slice(1), removed=1)]

    queue.replace_files(replacements, [TOLD], change=lambda control: replace(control, reason="changed"))

    assert [(row["lookup_id"], row["sub_queue"], row["move_count"]) for row in all_rows(queue)] == [
        (1, "poison", 1),
        (3, "main", 0),
        (5, "main", 0),
        (6, "main", 0),
    ]
    [out] = queue.snapshot().outbox
    assert queue.read(out)["lookup_id"].to_pylist() == [2]
    assert list(queue.events()) == [TOLD]
    assert queue.snapshot().control.reason == "changed"
    assert queue.snapshot().version == version + 1


def test_replacements_are_asked_for_one_by_one_and_events_afterwards(queue: QueueTable, files: list[DataFile]) -> None:
    told: list[Event] = []

    def one_by_one() -> Iterator[Replacement]:
        for file in files:
            told.append(replace(TOLD, lookup_id=file.min_lookup_id))
            yield Replacement(file, queue.read(file).slice(1), removed=1)

    queue.replace_files(one_by_one(), told)
    assert [event.lookup_id for event in queue.events()] == [1, 4]
    assert ids(queue) == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("kept", "removed", "says"), [([0, 1], 0, "holds 3 messages"), ([0, 1, 2], 1, "holds 3 messages"), ([0, 1, 1], 0, "of 2 messages were to stay")]
)
def test_rows_that_are_lost_or_doubled_are_refused(queue: QueueTable, files: list[DataFile], kept: list[int], removed: int, says: str) -> None:
    good = Replacement(files[1], put(queue.read(files[1]), "poison"))
    before = on_disk(queue)
    with pytest.raises(ConservationError, match=says):
        queue.replace_files([good, Replacement(files[0], queue.read(files[0]).take(kept), removed)], [])
    assert ids(queue, SubQueue.MAIN) == [1, 2, 3, 4, 5, 6]
    assert on_disk(queue) == before


@pytest.mark.parametrize("place", ["_event", "_ctl", "elsewhere"])
def test_rows_can_go_to_sub_queues_and_to_the_outbox_only(queue: QueueTable, files: list[DataFile], place: str) -> None:
    with pytest.raises(ConservationError, match=place):
        queue.replace_files([Replacement(files[0], put(queue.read(files[0]), place))], [])
    assert ids(queue) == [1, 2, 3, 4, 5, 6]


def test_a_file_that_is_claimed_leaves_all_as_they_are(queue: QueueTable, files: list[DataFile]) -> None:
    claim(queue, messages=3)
    before = on_disk(queue)
    replacements = [Replacement(file, queue.read(file).slice(1), removed=1) for file in reversed(files)]
    with pytest.raises(TableChangedError, match="cannot be changed"):
        queue.replace_files(replacements, [TOLD])
    assert (ids(queue), list(queue.events()), on_disk(queue)) == ([1, 2, 3, 4, 5, 6], [], before)


def test_alone_wants_no_claim_at_all(queue: QueueTable, files: list[DataFile]) -> None:
    claim(queue, messages=3)
    replacement = Replacement(files[1], queue.read(files[1]).slice(1), removed=1)
    with pytest.raises(TableChangedError):
        queue.replace_files([replacement], [], alone=True)
    queue.replace_files([replacement], [])
    assert ids(queue) == [1, 2, 3, 5, 6]


def test_a_commit_that_was_overtaken_writes_its_files_once(queue: QueueTable, files: list[DataFile], at_point: AtPoint) -> None:
    at_point.do("store.replace.before_commit", lambda: send(queue, 1, "faster"))
    queue.replace_files([Replacement(files[0], queue.read(files[0]).slice(1), removed=1)], [TOLD])
    assert ids(queue) == [2, 3, 4, 5, 6, 7]
    assert len(list(queue.events())) == 1


def test_nothing_to_replace_is_no_commit(queue: QueueTable, files: list[DataFile]) -> None:
    version = queue.snapshot().version
    queue.replace_files([], [])
    assert queue.snapshot().version == version
