"""Records of what deliveries returned: whole ones count, each for the delivery that it was made in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery.journal import ROWS_WRITTEN, rows_written
from airflow_poison.delivery.returned import Record, Records, ReturnedBy, RowsReader, RowsWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.rows"


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    found = os.open(path, os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


def by_message(found: Iterable[ReturnedBy]) -> dict[int, bytes]:
    return {number: returned.rows for returned in found for number in returned.lookup_ids}


def committed(path: Path, lookup_ids: list[int], attempts: list[int]) -> dict[int, bytes]:
    """Return what is known of committed messages, as a later try of the claim reads it."""
    rows, there = Records.of(path).of_committed(np.array(lookup_ids), np.array(attempts, np.int32))
    assert rows.table[0].tolist() == sorted(np.array(lookup_ids)[there].tolist())
    return by_message(returned for _, returned in rows.read(np.array(lookup_ids)))


def test_what_a_rolled_back_delivery_returned_is_not_taken_for_what_the_committed_one_did(path: Path, descriptor: int) -> None:
    """A process may die between a record and its word, and a loss of power may take the later record."""
    RowsWriter(descriptor).append([Record((5,), (0,), b"rolled back")])
    assert by_message(RowsReader(descriptor).returned_by({5: 1})) == {}
    assert committed(path, [5], [1]) == {}

    RowsWriter(descriptor).append([Record((5,), (1,), b"committed")])

    assert by_message(RowsReader(descriptor).returned_by({5: 1})) == {5: b"committed"}
    assert committed(path, [5], [1]) == {5: b"committed"}


def test_of_two_records_of_one_delivery_the_last_counts(path: Path, descriptor: int) -> None:
    writer = RowsWriter(descriptor)
    for returned in (b"", b"rows"):
        writer.append([Record((7,), (2,), returned)])

    assert by_message(RowsReader(descriptor).returned_by({7: 2})) == {7: b"rows"}
    assert committed(path, [7], [2]) == {7: b"rows"}


def torn(descriptor: int, records: list[Record], left: int) -> None:
    """Append records of which only the first bytes are stored: the process dies meanwhile."""
    begin = rows_written(descriptor).end or ROWS_WRITTEN.size
    RowsWriter(descriptor).append(records)
    end = rows_written(descriptor).end
    os.pwrite(descriptor, bytes(end - begin - left), begin + left)
    os.pwrite(descriptor, ROWS_WRITTEN.pack(begin, 0), 0)


@pytest.mark.parametrize("left", range(1, 44))
def test_a_torn_record_is_passed_over(path: Path, descriptor: int, left: int) -> None:
    """Its bytes may hold what looks like the beginning of another one; what is returned ends as pickles do."""
    RowsWriter(descriptor).append([Record((1,), (0,), b"whole")])
    torn(descriptor, [Record((2,), (0,), b"rows rows torn rows.")], left)
    assert by_message(RowsReader(descriptor).returned_by({1: 0, 2: 0, 3: 0})) == {1: b"whole"}

    RowsWriter(descriptor).append([Record((3,), (0,), b"behind")])

    assert by_message(RowsReader(descriptor).returned_by({1: 0, 2: 0, 3: 0})) == {1: b"whole", 3: b"behind"}
    assert committed(path, [1, 2, 3], [0, 0, 0]) == {1: b"whole", 3: b"behind"}


def test_a_record_that_was_stored_before_the_end_was_is_of_a_delivery_that_did_not_commit(path: Path, descriptor: int) -> None:
    """The next process stores over it; what is left of it is no record."""
    torn(descriptor, [Record((2,), (0,), b"the process died before its word")], 60)
    RowsWriter(descriptor).append([Record((2,), (1,), b"rows")])

    assert by_message(RowsReader(descriptor).returned_by({2: 1})) == {2: b"rows"}
    assert committed(path, [2], [0]) == {}


def test_who_begins_at_the_end_reads_what_comes_then(descriptor: int) -> None:
    writer = RowsWriter(descriptor)
    writer.append([Record((1,), (0,), b"before")])
    reader = RowsReader(descriptor, at_end=True)
    writer.append([Record((2,), (0,), b"after")])

    assert by_message(reader.returned_by({1: 0, 2: 0})) == {2: b"after"}


def test_a_file_that_is_gone_has_no_record(path: Path) -> None:
    assert committed(path, [1], [0]) == {}


def test_a_record_of_several_messages_counts_for_those_whose_last_it_is(path: Path, descriptor: int) -> None:
    writer = RowsWriter(descriptor)
    writer.append([Record([9, 3, 7], [0, 0, 2], b"of three"), Record((3,), (0,), b"again"), Record([9, 7], [0, 1], b"rolled back")])

    assert by_message(RowsReader(descriptor).returned_by({9: 0, 3: 0, 7: 2})) == {9: b"rolled back", 3: b"again", 7: b"of three"}
    assert by_message(RowsReader(descriptor).returned_by({9: 1, 3: 1})) == {}
    assert committed(path, [9, 3, 7], [0, 0, 2]) == {9: b"rolled back", 3: b"again", 7: b"of three"}
    rows, there = Records.of(path).of_committed(np.array([3, 7, 9]), np.array([0, 2, 9], np.int32))
    assert (there.tolist(), [returned for _, returned in rows.read(np.array([7]))]) == ([True, True, False], [([7], b"of three")])


@pytest.mark.parametrize("left", range(1, 16 + 3 * 12 + 20))
def test_a_torn_record_of_several_messages_is_of_none(path: Path, descriptor: int, left: int) -> None:
    torn(descriptor, [Record([1, 2, 3], [0, 0, 0], b"rows rows torn rows.")], left)
    assert by_message(RowsReader(descriptor).returned_by(dict.fromkeys(range(1, 5), 0))) == {}

    RowsWriter(descriptor).append([Record((4,), (0,), b"over it")])

    assert by_message(RowsReader(descriptor).returned_by(dict.fromkeys(range(1, 5), 0))) == {4: b"over it"}
    assert committed(path, [1, 2, 3, 4], [0] * 4) == {4: b"over it"}


def test_a_record_larger_than_a_piece_is_read_whole(path: Path, descriptor: int) -> None:
    ids, rows = list(range(1, 100_001)), b"rows" * 1_000_000
    RowsWriter(descriptor).append([Record(ids, [0] * len(ids), rows), Record((5,), (1,), b"later")])

    assert RowsReader(descriptor).returned_by({1: 0, 5: 1, 9: 0}) == [([1, 9], rows), ([5], b"later")]
    assert committed(path, [5, 100_000], [1, 0]) == {5: b"later", 100_000: rows}


def test_processes_append_one_after_the_other(path: Path, descriptor: int) -> None:
    """A child dies, and the next one goes on; pieces of the file are mapped as they are needed."""
    rows = [bytes([65 + place]) * 700_000 for place in range(6)]
    writers = [RowsWriter(descriptor) for _ in range(3)]
    for place, each in enumerate(rows):
        writers[place % 3].append_one(place + 1, 0, each)

    assert by_message(RowsReader(descriptor).returned_by(dict.fromkeys(range(1, 7), 0))) == dict(enumerate(rows, 1))
    assert committed(path, [1, 6], [0, 0]) == {1: rows[0], 6: rows[5]}


def test_a_file_with_few_rows_is_small(descriptor: int) -> None:
    """A stage may have thousands of tasks, and each has a file."""
    RowsWriter(descriptor).append_one(1, 0, b"x" * 1_000)
    assert os.fstat(descriptor).st_size == 1 << 16


def test_the_record_of_a_whole_batch_is_read_alone(path: Path, descriptor: int) -> None:
    writer = RowsWriter(descriptor)
    writer.append_one(1, 0, b"of an earlier batch")
    reader = RowsReader(descriptor, at_end=True)
    for number in (2, 3):
        writer.append_one(number, number, b"alone")
    writer.append_whole(Record([2, 3], [2, 3], b"together"))

    assert reader.returned_by({2: 2, 3: 3}) == [([2, 3], b"together")]
    assert committed(path, [1, 2, 3], [0, 2, 3]) == {1: b"of an earlier batch", 2: b"together", 3: b"together"}


def test_the_record_of_a_batch_that_is_not_whole_is_not_read_alone(descriptor: int) -> None:
    """A process has died with the first message, so the next one knows of the second alone; or another one has written since."""
    writer, reader = RowsWriter(descriptor), RowsReader(descriptor, at_end=True)
    writer.append_one(1, 0, b"before the death")
    writer.append_whole(Record([2], [0], b"after it"))
    assert by_message(reader.returned_by({1: 0, 2: 0})) == {1: b"before the death", 2: b"after it"}

    reader = RowsReader(descriptor, at_end=True)
    assert reader.returned_by({2: 0}) == []
    writer.append_whole(Record([2, 3], [0, 0], b"both"))
    writer.append_one(3, 0, b"later")
    assert by_message(reader.returned_by({2: 0, 3: 0})) == {2: b"both", 3: b"later"}
