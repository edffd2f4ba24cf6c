"""Seal and final commit: durable outcome, all or nothing, once, and only by the holder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import ClaimLostError, ConservationError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue, message_schema
from tests.given.tables import LATER, LEASE, NOW, all_rows, claim, ids, outcome_of_a_third, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.store.control import Control
    from airflow_poison.store.files import Claim, Manifest
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint


def test_a_pass_settles_what_it_does_not_stage_and_keeps_what_it_does(queue: QueueTable) -> None:
    send(queue, 9)
    claimed = claim(queue)
    queue.stage_table(claimed, outcome_of_a_third(rows_of(queue, claimed)))
    manifest = seal(queue, claimed, {"settled": 6})
    assert queue.finish(claimed, manifest, now=NOW)
    assert ids(queue, SubQueue.RETRY) == [3, 6, 9]
    assert ids(queue, SubQueue.MAIN) == []
    assert queue.snapshot().claims == ()
    depth = queue.snapshot().depth(SubQueue.RETRY, NOW)
    assert (depth.messages, depth.next_due_at, depth.due, depth.by_move_count) == (3, LATER, 0, {1: 3})
    assert queue.snapshot().depth(SubQueue.RETRY, LATER).due == 3


def test_one_stage_can_hold_outcomes_of_every_kind(queue: QueueTable) -> None:
    send(queue, 4)
    claimed = claim(queue)
    rows = rows_of(queue, claimed)
    parts = [
        put(rows.slice(0, 1), "main", 0),
        put(rows.slice(1, 1), "retry", 1, LATER),
        put(rows.slice(2, 1), "poison"),
        put(rows.slice(3), "_outbox", 0),
    ]
    queue.stage_table(claimed, pa.concat_tables(parts))
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert [ids(queue, place) for place in (SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON)] == [[1], [2], [3]]
    (out,) = queue.snapshot().outbox
    assert queue.read(out)["lookup_id"].to_pylist() == [4]


def test_a_second_final_commit_changes_nothing(queue: QueueTable) -> None:
    send(queue, 2)
    claimed = claim(queue)
    manifest = seal(queue, claimed)
    assert queue.finish(claimed, manifest, now=NOW)
    version = queue.snapshot().version
    assert not queue.finish(claimed, manifest, now=NOW)
    assert queue.snapshot().version == version


def test_the_result_is_recorded_with_the_final_commit(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    manifest = seal(queue, claimed, {"settled": 1, "alerts": ["a"]})
    assert queue.result("run") is None
    queue.finish(claimed, manifest, now=NOW)
    assert queue.result("run") == {"settled": 1, "alerts": ["a"]}
    assert queue.result("another") is None


def test_an_older_epoch_changes_nothing(queue: QueueTable) -> None:
    send(queue, 3)
    old = claim(queue)
    queue.stage_table(old, put(rows_of(queue, old), "poison"))
    manifest = seal(queue, old)
    new = queue.take_over(old, lease=LEASE, now=LATER)
    before = queue.snapshot()
    with pytest.raises(ClaimLostError, match="epoch 1"):
        queue.finish(old, manifest, now=NOW)
    assert queue.snapshot() == before
    assert new is not None
    assert queue.finish(new, _of(queue, new), now=NOW)
    assert ids(queue, SubQueue.POISON) == [1, 2, 3]


def test_a_take_over_between_links_and_commit_stops_the_old_holder(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    old = claim(queue)
    queue.stage_table(old, put(rows_of(queue, old), "poison"))
    manifest = seal(queue, old)
    at_point.do("store.finish.before_commit", lambda: claim(queue))
    with pytest.raises(ClaimLostError):
        queue.finish(old, manifest, now=NOW)
    assert ids(queue, SubQueue.MAIN) == [1, 2, 3]


def test_a_final_commit_that_is_overtaken_by_a_send_tries_again(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "poison"))
    at_point.do("store.finish.before_commit", lambda: send(queue, 2, "meanwhile"))
    happened = Event(EventType.MOVED_POISON, NOW, 1)
    assert queue.finish(claimed, seal(queue, claimed), events=[happened], now=NOW)
    assert ids(queue) == [1, 2, 3, 4, 5]
    assert list(queue.events()) == [happened]


def test_a_manifest_is_found_by_its_holder_and_by_later_ones(queue: QueueTable) -> None:
    send(queue, 3)
    old = claim(queue)
    assert queue.manifest(old) is None
    queue.stage_table(old, put(rows_of(queue, old), "poison"))
    sealed = seal(queue, old, {"settled": 0})
    assert queue.manifest(old) == sealed
    new = claim(queue)
    assert _of(queue, new).result == {"settled": 0}
    assert [file for _, file in _of(queue, new).files] == [file for _, file in sealed.files]
    assert queue.finish(new, _of(queue, new), now=NOW)
    assert ids(queue, SubQueue.POISON) == [1, 2, 3]


def test_a_later_holder_that_seals_gets_the_sealed_outcome(queue: QueueTable) -> None:
    send(queue, 3)
    seal(queue, claim(queue), {"who": "first"})
    assert seal(queue, claim(queue), {"who": "second"}).result == {"who": "first"}


def test_a_fenced_holder_cannot_seal(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    old = claim(queue)
    at_point.do("store.seal.before_rename", lambda: claim(queue))
    with pytest.raises(ClaimLostError):
        seal(queue, old)
    assert queue.manifest(claim(queue)) is None


def test_the_account_sees_what_is_staged_and_can_stop_the_seal(queue: QueueTable) -> None:
    send(queue, 3)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "retry", 1, LATER))

    def account(listed: Manifest) -> Mapping[str, object]:
        assert sum(file.rows for _, file in listed.files) == 3
        message = "one is missing"
        raise ConservationError(message)

    with pytest.raises(ConservationError, match="one is missing"):
        queue.seal(claimed, account)
    assert queue.manifest(claimed) is None


def test_what_spark_writes_is_listed_and_what_it_leaves_beside_is_not(queue: QueueTable) -> None:
    send(queue, 3)
    claimed = claim(queue)
    rows = rows_of(queue, claimed).select(message_schema().names)
    out = Path(queue.stage(claimed), "out")
    _spark_file(out / "sub_queue=retry/move_count=1/part-00000-0af1.c000.snappy.parquet", rows.slice(0, 2))
    _spark_file(out / "sub_queue=retry/move_count=1/part-00001-0af1.c000.snappy.parquet", rows.slice(0, 0))
    _spark_file(out / "sub_queue=poison/move_count=3/part-00001-0af1.c000.snappy.parquet", rows.slice(2))
    _spark_file(out / "_temporary/0/sub_queue=retry/move_count=1/part-9.parquet", rows)
    _spark_file(out / "sub_queue=retry/move_count=1/.part-00000-0af1.parquet", rows)
    for name in ("_SUCCESS", "._SUCCESS.crc", "sub_queue=retry/move_count=1/.part-00000-0af1.c000.snappy.parquet.crc"):
        (out / name).touch()
    manifest = seal(queue, claimed)
    assert sorted((file.sub_queue, file.move_count, file.rows) for _, file in manifest.files) == [("poison", 3, 1), ("retry", 1, 2)]
    assert queue.finish(claimed, manifest, now=NOW)
    assert ids(queue) == [1, 2, 3]


def test_statistics_are_found_in_rows_when_the_footer_has_none(queue: QueueTable) -> None:
    send(queue, 3)
    claimed = claim(queue)
    rows = put(rows_of(queue, claimed), "retry", 1, LATER).select(message_schema().names)
    target = Path(queue.stage(claimed), "out/sub_queue=retry/move_count=1/part-0.parquet")
    target.parent.mkdir(parents=True)
    pq.write_table(rows, target, use_deprecated_int96_timestamps=True, write_statistics=False)
    ((_, file),) = seal(queue, claimed).files
    assert (file.min_lookup_id, file.max_lookup_id, file.max_due_at, file.min_enqueued_at) == (1, 3, LATER, NOW)


def test_tallies_are_read_from_the_stage_and_never_become_rows(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    row = dict.fromkeys(message_schema().names) | {"body": json.dumps({"settled": 7}).encode()}
    _spark_file(Path(queue.stage(claimed), "out/sub_queue=_tally/move_count=0/part-0.parquet"), pa.Table.from_pylist([row], schema=message_schema()))
    manifest = seal(queue, claimed)
    assert manifest.tallies == ({"settled": 7},)
    assert manifest.files == ()
    assert queue.manifest(claimed) == manifest
    queue.finish(claimed, manifest, now=NOW)
    assert all_rows(queue) == []


def test_an_outcome_in_an_unknown_partition_is_refused(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    rows = rows_of(queue, claimed)
    _spark_file(Path(queue.stage(claimed), "out/sub_queue=limbo/move_count=0/part-0.parquet"), rows)
    with pytest.raises(ConservationError, match="sub_queue=limbo"):
        seal(queue, claimed)


def test_the_control_row_changes_with_the_final_commit(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)

    def disable(control: Control) -> Control:
        return replace(control, state=QueueState.DISABLED, reason="five rollbacks", counters={"rollbacks": 5})

    queue.finish(claimed, seal(queue, claimed), change=disable, events=[Event(EventType.QUEUE_DISABLED, NOW)], now=NOW)
    control = queue.snapshot().control
    assert (control.state, control.reason, control.counters) == (QueueState.DISABLED, "five rollbacks", {"rollbacks": 5})
    assert [event.type for event in queue.events()] == [EventType.QUEUE_DISABLED]


def test_the_stage_is_gone_after_the_final_commit(queue: QueueTable) -> None:
    send(queue, 1)
    claimed = claim(queue)
    queue.finish(claimed, seal(queue, claimed), now=NOW)
    assert not Path(queue.root, "_stage", "run").exists()


def test_a_staged_file_that_vanished_stops_the_final_commit(queue: QueueTable) -> None:
    send(queue, 3)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "poison"))
    manifest = seal(queue, claimed)
    ((staged, _),) = manifest.files
    Path(queue.root, "_stage", staged).unlink()
    before = queue.snapshot()
    with pytest.raises(TableChangedError, match="Nothing was committed"):
        queue.finish(claimed, manifest, now=NOW)
    assert queue.snapshot() == before
    assert Path(queue.stage(claimed)).is_dir()


def test_a_linked_file_that_vanishes_right_before_the_commit_stops_it(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 3)
    claimed = claim(queue)
    queue.stage_table(claimed, put(rows_of(queue, claimed), "poison"))
    manifest = seal(queue, claimed)
    ((_, file),) = manifest.files
    at_point.do("store.finish.after_links", Path(queue.root, file.path).unlink)
    before = queue.snapshot()
    with pytest.raises(TableChangedError, match=file.path):
        queue.finish(claimed, manifest, now=NOW)
    assert queue.snapshot() == before
    assert queue.finish(claimed, manifest, now=NOW)


def _of(queue: QueueTable, claimed: Claim) -> Manifest:
    manifest = queue.manifest(claimed)
    assert manifest is not None
    return manifest


def _spark_file(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.select(message_schema().names), path)
