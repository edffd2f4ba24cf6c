"""Sending: gapless lookup ids, once per key, in files of a limited size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.store import appending
from airflow_poison.store.files import Sent
from airflow_poison.values.errors import InputError
from airflow_poison.values.schema import SubQueue
from tests.given.tables import NOW, all_rows, batch, ids, numbered, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


def test_lookup_ids_begin_at_one_and_have_no_gaps(queue: QueueTable) -> None:
    assert send(queue, 3, "a") == Sent(messages=3, first_lookup_id=1)
    assert send(queue, 2, "b") == Sent(messages=2, first_lookup_id=4)
    assert ids(queue) == [1, 2, 3, 4, 5]


def test_the_order_within_a_send_is_the_order_of_lookup_ids(queue: QueueTable) -> None:
    queue.append([batch(b"a", b"b"), batch(b"c")], "k", NOW)
    assert [row["body"] for row in all_rows(queue)] == [b"a", b"b", b"c"]


def test_a_repeated_key_changes_nothing_and_tells_the_first_sends_numbers(queue: QueueTable) -> None:
    send(queue, 3, "a")
    send(queue, 2, "b")
    version = queue.snapshot().version
    assert send(queue, 7, "a") == Sent(messages=3, first_lookup_id=1, repeated=True)
    assert queue.snapshot().version == version
    assert len(ids(queue)) == 5


def test_a_repeated_send_leaves_no_file_behind(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.append.after_files", lambda: send(queue, 3, "a"))
    assert send(queue, 3, "a").repeated
    assert len(_files_on_disk(queue)) == 1


def test_an_empty_send_is_remembered_too(queue: QueueTable) -> None:
    assert queue.append([], "a", NOW) == Sent(messages=0, first_lookup_id=1)
    assert send(queue, 3, "a") == Sent(messages=0, first_lookup_id=1, repeated=True)
    assert send(queue, 1, "b") == Sent(messages=1, first_lookup_id=1)


def test_missing_columns_get_defaults(queue: QueueTable) -> None:
    send(queue, 2)
    first, second = all_rows(queue)
    assert first["message_id"]
    assert first["message_id"] != second["message_id"]
    assert (first["priority"], first["abort_count"], first["crash_count"]) == (5, 0, 0)
    assert (first["enqueued_at"], first["due_at"], first["last_error"]) == (NOW, None, None)
    assert (first["sub_queue"], first["move_count"]) == ("main", 0)


def test_given_columns_are_kept_and_only_their_nulls_filled(queue: QueueTable) -> None:
    queue.append([batch(b"a", b"b", message_id=["mine", None], priority=[9, None], lookup_id=[77, 78])], "k", NOW)
    first, second = all_rows(queue)
    assert (first["message_id"], first["priority"], first["lookup_id"]) == ("mine", 9, 1)
    assert second["message_id"]
    assert (second["priority"], second["lookup_id"]) == (5, 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (pa.record_batch({"body": [b"a"], "colour": ["red"]}), "colour"),
        (pa.record_batch({"body": [b"a"], "priority": ["high"]}), "priority"),
    ],
)
def test_a_batch_that_is_no_messages_is_refused_and_nothing_sent(queue: QueueTable, wrong: pa.RecordBatch, says: str) -> None:
    with pytest.raises(InputError, match=says):
        queue.append([numbered(2), wrong], "k", NOW)
    assert queue.snapshot().files == ()
    assert _files_on_disk(queue) == []


def test_a_source_that_breaks_off_sends_nothing(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "FILE_ROWS", 5)
    monkeypatch.setattr(appending, "GROUP_ROWS", 5)

    def source() -> Iterator[pa.RecordBatch]:
        yield numbered(17)
        message = "the source is gone"
        raise OSError(message)

    with pytest.raises(OSError, match="the source is gone"):
        queue.append(source(), "k", NOW)
    assert _files_on_disk(queue) == []
    assert send(queue, 1, "k") == Sent(messages=1, first_lookup_id=1)


def test_a_send_that_was_overtaken_numbers_its_messages_anew(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.append.after_files", lambda: send(queue, 3, "faster"))
    assert send(queue, 4, "slower") == Sent(messages=4, first_lookup_id=4)
    assert ids(queue) == [1, 2, 3, 4, 5, 6, 7]
    assert len(_files_on_disk(queue)) == 2


def test_files_are_cut_by_rows(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "FILE_ROWS", 10)
    monkeypatch.setattr(appending, "GROUP_ROWS", 5)
    assert queue.append([numbered(23), numbered(4), numbered(1)], "k", NOW).messages == 28
    assert [file.rows for file in queue.snapshot().files] == [10, 10, 8]
    assert [(file.min_lookup_id, file.max_lookup_id) for file in queue.snapshot().files] == [(1, 10), (11, 20), (21, 28)]


def test_files_are_cut_by_bytes(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "FILE_BYTES", 40_000)
    monkeypatch.setattr(appending, "GROUP_BYTES", 10_000)
    queue.append([batch(*[bytes(1_000)] * 100)], "k", NOW)
    files = queue.snapshot().files
    assert len(files) >= 3
    assert all(file.rows <= 40 for file in files)
    assert ids(queue) == list(range(1, 101))


def test_files_cut_by_rows_keep_their_ids_gapless_when_numbered_anew(queue: QueueTable, monkeypatch: pytest.MonkeyPatch, at_point: AtPoint) -> None:
    monkeypatch.setattr(appending, "FILE_ROWS", 10)
    monkeypatch.setattr(appending, "GROUP_ROWS", 5)
    at_point.do("store.append.after_files", lambda: send(queue, 3, "faster"))
    queue.append([numbered(23)], "k", NOW)
    assert ids(queue) == list(range(1, 27))
    assert [row["body"] for row in all_rows(queue)][3:] == [str(number).encode() for number in range(23)]


def test_statistics_tell_priority_and_age(queue: QueueTable) -> None:
    queue.append([batch(b"a", b"b", priority=[2, 7])], "k", NOW)
    (file,) = queue.snapshot().files
    assert (file.min_priority, file.max_priority, file.min_enqueued_at, file.rows) == (2, 7, NOW, 2)
    assert queue.snapshot().depth(SubQueue.MAIN, NOW).oldest_enqueued_at == NOW


def _files_on_disk(queue: QueueTable) -> list[Path]:
    from pathlib import Path

    return list(Path(queue.root, "sub_queue=main").rglob("*.parquet"))
