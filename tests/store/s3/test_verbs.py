"""The verbs of a queue over a real S3 server, with the node's folder of another machine wherever one might have seen to it that all is well."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Kind, Severity
from airflow_poison.store.files import Compacted, Returned
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ClaimLostError, QueueNotFoundError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue
from tests.given.tables import LATER, LEASE, NOW, all_rows, batch, claim, ids, outcome_of_a_third, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from tests.store.s3.conftest import Bucket

NONE = timedelta(0)


def test_what_one_node_does_another_one_sees(bucket: Bucket) -> None:
    """Each step is done by a process that has just begun, one after the other on two nodes."""
    assert (bucket.made("a").name, bucket.made("b").name) == ("orders", "orders")
    assert bucket.store("c").names() == ["orders"]
    assert send(bucket.queue("a"), 9).first_lookup_id == 1
    assert send(bucket.queue("b"), 9).repeated
    held = claim(bucket.queue("b"))
    assert bucket.queue("a").claim("other", lease=LEASE, now=NOW, max_messages=9) is None
    queue = bucket.queue("b")
    queue.stage_table(held, outcome_of_a_third(rows_of(queue, held)))
    happened = Event(EventType.MOVED_RETRY, NOW, 3)
    sealed = seal(queue, held, {"settled": 6})
    assert queue.finish(held, sealed, events=[happened], now=NOW)
    assert not bucket.queue("b").finish(held, sealed, now=NOW)
    seen = bucket.queue("a")
    assert (ids(seen), ids(seen, SubQueue.RETRY)) == ([3, 6, 9], [3, 6, 9])
    assert seen.result("run") == {"settled": 6}
    assert list(seen.events()) == [happened]


def test_a_new_node_finishes_what_another_one_has_sealed_and_shuts_it_out(bucket: Bucket) -> None:
    lost = bucket.made("lost")
    send(lost, 3)
    old = claim(lost)
    lost.begin(old, "of the whole pass")
    lost.stage_table(old, put(rows_of(lost, old), "poison"))
    sealed = seal(lost, old, {"settled": 0})
    heir = bucket.queue("heir")
    [known] = heir.expired(LATER)
    new = heir.take_over(known, lease=LEASE, now=LATER)
    assert new is not None
    found = heir.manifest(new)
    assert found is not None
    assert (found.result, [file for _, file in found.files]) == ({"settled": 0}, [file for _, file in sealed.files])
    with pytest.raises(ClaimLostError):
        lost.finish(old, sealed, now=LATER)
    assert heir.finish(new, found, now=LATER)
    assert ids(bucket.queue("third"), SubQueue.POISON) == [1, 2, 3]
    assert not bucket.listed("_stage/")


def test_a_holder_that_is_shut_out_by_another_node_cannot_seal(bucket: Bucket) -> None:
    lost = bucket.made("lost")
    send(lost, 3)
    old = claim(lost)
    lost.begin(old, "of the whole pass")
    heir = bucket.queue("heir")
    new = heir.take_over(old, lease=LEASE, now=LATER)
    assert new is not None
    assert heir.manifest(new) is None
    [journals] = heir.journals(new)
    assert Path(journals).with_name("begun").read_text() == "of the whole pass"
    lost.stage_table(old, put(rows_of(lost, old), "poison"))
    with pytest.raises(ClaimLostError):
        seal(lost, old)
    heir.release(new)
    assert ids(bucket.queue("third"), SubQueue.MAIN) == [1, 2, 3]


def test_what_a_holder_has_left_is_read_on_another_node(bucket: Bucket) -> None:
    queue = bucket.made("a")
    send(queue, 3)
    old = claim(queue)
    queue.begin(old, "of the whole pass")
    Path(queue.stage(old), "journal", "0-0-a.journal").write_bytes(b"counts")
    queue.leave(old)
    heir = bucket.queue("b")
    new = heir.take_over(old, lease=LEASE, now=LATER)
    assert new is not None
    [journals] = heir.journals(new)
    assert [path.read_bytes() for path in Path(journals).iterdir()] == [b"counts"]
    assert not Path(journals).with_name("begun").exists()


def test_a_queue_is_checked_by_what_is_in_the_bucket_whatever_the_node_has_fetched(bucket: Bucket) -> None:
    park_all_of(bucket)
    seen = bucket.queue("b")

    def errors() -> list[tuple[Kind, str]]:
        return [(finding.kind, finding.where) for finding in check(seen, VirtualClock(NOW)).findings if finding.severity is Severity.ERROR]

    assert errors() == []
    [file] = seen.snapshot().files
    seen.read(file)
    bucket.queue("c").folder.remove(file.path)
    assert errors() == [(Kind.FILE_MISSING, file.path)]


def test_files_move_without_a_row_being_written_again(bucket: Bucket) -> None:
    park_all_of(bucket)
    with bucket.proxy.counted() as counted:
        moved = bucket.queue("b").move_files(lambda snapshot: [f for f in snapshot.files if f.sub_queue == SubQueue.RETRY], SubQueue.MAIN, LATER)
    assert moved == Returned(messages=3, files=1)
    assert (counted["copy"], counted["put"], counted["create"]) == (1, 1, 1)  # the file, the events, the entry
    seen = bucket.queue("a")
    assert ids(seen, SubQueue.MAIN) == [1, 2, 3]
    assert [event.type for event in seen.events()] == [EventType.RETURNED] * 3


def park_all_of(bucket: Bucket) -> None:
    queue = bucket.made("a")
    send(queue, 3)
    park_all(queue)


def test_maintenance_changes_nothing_that_anybody_reads_and_leaves_nothing_that_nobody_needs(bucket: Bucket) -> None:
    queue = bucket.made("a")
    for number in range(4):
        send(queue, 2, str(number))
    before = all_rows(queue)
    keeper = bucket.queue("b")
    size = sum(file.size for file in keeper.snapshot().files)
    assert keeper.compact(min_files=2) == Compacted(files=4, into=1, rows=8, size=size)
    assert keeper.clean(retention=NONE, safe_age=NONE).expired == 4
    assert all_rows(keeper) == before
    first = keeper.shorten_log(retention=NONE).checkpoint
    assert send(keeper, 2, "0").repeated
    send(keeper, 1, "meanwhile")
    done = keeper.shorten_log(retention=NONE)  # the newest two checkpoints stay
    assert (done.checkpoint, done.oldest, bucket.versions()) == (first + 1, first, [first, first + 1])
    before = all_rows(keeper)
    live = {file.path for file in keeper.log.load().files}
    assert {name for name in bucket.listed() if not name.startswith("_delta_log/")} == live
    for node in ("a", "b", "c"):
        seen = bucket.queue(node)
        assert all_rows(seen) == before
        assert send(seen, 2, "0").repeated
    assert send(queue, 1, "later").first_lookup_id == 10


def test_times_in_whole_seconds_take_nothing_from_the_retention(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry 2 was overtaken at some time of the second of entry 3: at its end, perhaps, and 0.1 s later it is younger than 0.5 s."""
    queue = bucket.made("a")
    for number in range(3):
        send(queue, 1, str(number))
        queue.shorten_log(retention=NONE)
    send(queue, 1, "last")
    kept = bucket.versions()
    written = bucket.client.head_object(Bucket=bucket.name, Key=f"queues/orders/_delta_log/{kept[-2]:020}.json")["LastModified"].timestamp()
    with monkeypatch.context() as patched:
        patched.setattr("airflow_poison.store.checkpoints.time.time", lambda: written + 1.1)
        queue.shorten_log(retention=timedelta(seconds=0.5))
    assert (len(kept), bucket.versions()) == (3, kept)
    queue.shorten_log(retention=NONE)
    assert len(bucket.versions()) < 3


def test_a_node_that_comes_back_to_a_shortened_log_sees_all(bucket: Bucket) -> None:
    queue = bucket.made("a")
    send(queue, 1)
    keeper = bucket.queue("b")
    for number in range(3):
        send(keeper, 1, str(number))
        keeper.shorten_log(retention=NONE)
    assert min(bucket.versions()) > 1
    assert ids(bucket.queue("a")) == [1, 2, 3, 4]


def test_a_file_of_several_parts_comes_back_as_it_was_sent(bucket: Bucket) -> None:
    """obstore sends an object of more than 5 MB in parts."""
    bodies = [bytes([number]) * 64 + number.to_bytes(4) * 750_000 for number in range(3)]
    queue = bucket.made("a")
    queue.append([batch(*bodies)], "large", NOW)
    assert [row["body"] for row in all_rows(bucket.queue("b"))] == bodies


def test_any_reader_of_delta_lake_reads_the_queue_with_the_same_options(bucket: Bucket) -> None:
    queue = bucket.made()
    send(queue, 3)
    claim(queue)
    options = {name.upper(): value for name, value in bucket.options.items()}
    table = deltalake.DeltaTable(queue.uri, storage_options=options)
    rows = table.to_pyarrow_table(filters=[("sub_queue", "=", "main")])
    assert set(rows["lookup_id"].to_pylist()) == {1, 2, 3}
    assert table.version() == queue.snapshot().version


def test_a_queue_that_is_not_there_is_told_with_those_that_are(bucket: Bucket) -> None:
    bucket.made()
    with pytest.raises(QueueNotFoundError, match="Queues there: orders"):
        bucket.store("b").open("order")
