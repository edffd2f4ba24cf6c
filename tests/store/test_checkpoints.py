"""Checkpoints: arranged, whole, and never another truth than the commits before them."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_poison.fsck.check import check_queue
from airflow_poison.fsck.files import Kind
from airflow_poison.queue import Store
from airflow_poison.store import checkpoints
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import CheckpointDamagedError, TableChangedError
from airflow_poison.values.schema import SubQueue
from tests.given import children
from tests.given.tables import CONTROL, NOW, all_rows, claim, ids, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

NONE = timedelta(0)


@pytest.fixture
def used(delta_root: str) -> QueueTable:
    """A queue at version 38, the last checkpoint at 20: the next commit but one makes one."""
    queue = DeltaStore(delta_root, durable=False).create("orders", CONTROL)
    for number in range(30):
        send(queue, 1, str(number))
    for number in range(3):
        held = claim(queue, f"p{number}", 2)
        queue.stage_table(held, put(rows_of(queue, held), "poison"))
        queue.finish(held, seal(queue, held), now=NOW)
    assert _newest(queue) == 38
    return queue


def _newest(queue: QueueTable) -> int:
    return DeltaTable(queue.uri).version()


def _checkpoints(queue: QueueTable) -> dict[int, Path]:
    return {int(path.name[:20]): path for path in Path(queue.root, "_delta_log").glob("*.checkpoint.parquet")}


def _rows(path: Path) -> list[str]:
    return sorted(str(row) for row in pq.read_table(path).to_pylist())


def _shorten_to_the_checkpoint(queue: QueueTable, version: int) -> None:
    """Leave nothing of the log but a checkpoint and the entries from its version on."""
    for path in Path(queue.root, "_delta_log").iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < version:
            path.unlink()


def test_a_checkpoint_holds_the_rows_that_delta_rs_writes(used: QueueTable, tmp_path: Path) -> None:
    version = _newest(used)
    DeltaTable(used.uri).create_checkpoint()
    theirs = _checkpoints(used)[version].rename(tmp_path / "theirs.parquet")
    checkpoints.make(used.uri, version, durable=True)
    assert _rows(_checkpoints(used)[version]) == _rows(theirs)
    assert pq.read_schema(_checkpoints(used)[version]).names == pq.read_schema(theirs).names


def test_each_kind_of_row_is_in_a_row_group_of_its_own(used: QueueTable) -> None:
    with pq.ParquetFile(_checkpoints(used)[20]) as parquet:
        groups = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    kinds = [[kind for kind in ("add", "metaData", "protocol", "txn", "remove") if pc.any(pc.is_valid(group[kind])).as_py()] for group in groups]
    assert kinds == [["add", "metaData", "protocol"], ["txn"]]


def test_all_readers_see_the_same_rows_where_only_the_checkpoint_is_left(used: QueueTable) -> None:
    rows = [(row["lookup_id"], row["sub_queue"], row["body"]) for row in all_rows(used)]
    used.shorten_log(retention=NONE)
    _shorten_to_the_checkpoint(used, _newest(used))
    places = [place.value for place in SubQueue]
    frame = pl.scan_delta(used.uri).filter(pl.col("sub_queue").is_in(places)).select("lookup_id", "sub_queue", "body").sort("lookup_id")
    assert frame.collect().rows() == rows
    files = [path.removeprefix("file://") for path in DeltaTable(used.uri).file_uris()]
    query = "select lookup_id, sub_queue, body from read_parquet($files, hive_partitioning = true) where list_contains($places, sub_queue) order by 1"
    with duckdb.connect() as connection:
        assert connection.execute(query, {"files": files, "places": places}).fetchall() == rows
    assert ids(used) == list(range(1, 31))


def test_keys_of_sends_and_runs_and_the_last_lookup_id_survive_where_only_the_checkpoint_is_left(delta_root: str, used: QueueTable) -> None:
    used.clean(retention=NONE, safe_age=NONE)
    used.shorten_log(retention=NONE)
    _shorten_to_the_checkpoint(used, _newest(used))
    queue = DeltaStore(delta_root).open("orders")
    assert all(send(queue, 1, str(number)).repeated for number in range(30))
    assert all(queue.claim(f"p{number}", lease=timedelta(1), now=NOW, max_messages=9) is None for number in range(3))
    assert send(queue, 1, "new").first_lookup_id == 31


def test_maintenance_forgets_removed_files_only_where_they_are_gone(used: QueueTable) -> None:
    removed = {path for path in used.log.removals() if path.startswith("sub_queue=main/")}
    kept = min(removed)
    for path in removed - {kept}:
        Path(used.uri, path).unlink()
    used.shorten_log(retention=NONE)
    noted = pq.read_table(_checkpoints(used)[_newest(used)])["remove"].to_pylist()
    assert {row["path"] for row in noted if row and row["path"].startswith("sub_queue=main/")} == {kept}


def test_a_checkpoint_that_is_there_is_never_replaced(used: QueueTable) -> None:
    used.shorten_log(retention=timedelta(1))
    before = {version: path.stat().st_ino for version, path in _checkpoints(used).items()}
    assert set(before) == {20, 38}
    checkpoints.make(used.uri, 38, durable=True)
    used.shorten_log(retention=timedelta(1))
    assert {version: path.stat().st_ino for version, path in _checkpoints(used).items()} == before


def test_who_was_slower_leaves_the_checkpoint_of_another_process_alone(used: QueueTable, at_point: AtPoint) -> None:
    theirs: list[int] = []

    def faster() -> None:
        checkpoints.make(used.uri, 38, durable=True)
        theirs.append(_checkpoints(used)[38].stat().st_ino)

    at_point.do("store.checkpoint.before_place", faster)
    checkpoints.make(used.uri, 38, durable=True)
    assert [_checkpoints(used)[38].stat().st_ino] == theirs
    assert not list(Path(used.uri).glob(".checkpoint-*"))


def test_an_older_checkpoint_does_not_become_the_one_that_readers_begin_with(used: QueueTable) -> None:
    checkpoints.make(used.uri, 38, durable=True)
    checkpoints.make(used.uri, 30, durable=True)
    assert json.loads(Path(used.uri, "_delta_log", "_last_checkpoint").read_text())["version"] == 38


def test_a_checkpoint_that_was_written_wrongly_is_not_put_into_the_log(used: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoints._write
    monkeypatch.setattr(checkpoints, "_write", lambda target, parts: write(target, [parts[0], parts[1].slice(1)]))
    with pytest.raises(TableChangedError, match="could not be written as it was meant"):
        checkpoints.make(used.uri, 38, durable=True)
    assert set(_checkpoints(used)) == {20}
    assert not list(Path(used.uri).glob(".checkpoint-*"))


@pytest.mark.parametrize("then", ["put back", "left"])
@pytest.mark.parametrize("version", [37, 38])
def test_no_checkpoint_is_made_of_an_entry_that_is_damaged_meanwhile(
    used: QueueTable, version: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs takes an empty entry for a version in which nothing happened: a checkpoint of it would hide what was committed, for ever."""
    entry, written = Path(used.uri, "_delta_log", f"{version:020d}.json"), checkpoints._written

    def damaged_meanwhile(*given: Any) -> tuple[Path, int]:
        content = entry.read_bytes()
        entry.write_bytes(b"")
        made = written(*given)
        if then == "put back":
            back = entry.with_name("back")
            back.write_bytes(content)
            back.replace(entry)
        return made

    monkeypatch.setattr(checkpoints, "_written", damaged_meanwhile)
    with pytest.raises(TableChangedError, match="is not what was committed"):
        checkpoints.make(used.uri, 38, durable=False)
    assert max(_checkpoints(used)) == 20
    assert not list(Path(used.uri).glob(".checkpoint-*"))


def test_a_commit_stands_when_its_checkpoint_cannot_be_made(
    used: QueueTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> tuple[Path, int]:
        raise TableChangedError("an entry is not what was committed")

    monkeypatch.setattr(checkpoints, "_written", refused)
    send(used, 1, "39")
    send(used, 1, "40")
    assert _newest(used) == 40
    assert max(_checkpoints(used)) == 20
    assert "The checkpoint of version 40" in caplog.text


def test_nothing_happens_when_the_log_was_shortened_meanwhile(used: QueueTable) -> None:
    Path(used.uri, "_delta_log", f"{25:020d}.json").rename(Path(used.uri, "kept"))
    checkpoints.make(used.uri, 30, durable=True)
    assert set(_checkpoints(used)) == {20}


def _in_two_parts(queue: QueueTable, version: int) -> list[Path]:
    """Write a checkpoint as Spark may write it."""
    whole = _checkpoints(queue)[version]
    rows = pq.read_table(whole)
    parts = [whole.with_name(f"{version:020d}.checkpoint.{number:010d}.{2:010d}.parquet") for number in (1, 2)]
    for part, path in zip((rows.slice(0, 10), rows.slice(10)), parts, strict=True):
        pq.write_table(part, path)
    whole.unlink()
    (whole.parent / "_last_checkpoint").write_text(json.dumps({"version": version, "size": rows.num_rows, "parts": 2}))
    return parts


def _named_by_another_writer(queue: QueueTable, version: int) -> list[Path]:
    whole = _checkpoints(queue)[version]
    hint = {"version": version, "size": pq.read_metadata(whole).num_rows}
    (whole.parent / "_last_checkpoint").write_text(json.dumps(hint))
    return [whole.rename(whole.with_name(f"{version:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"))]


@pytest.mark.parametrize("of_another_writer", [_in_two_parts, _named_by_another_writer])
def test_a_checkpoint_of_another_writer_is_read_checked_and_built_upon(used: QueueTable, of_another_writer: Callable[..., object]) -> None:
    before = ids(used)
    of_another_writer(used, 20)
    for entry in Path(used.uri, "_delta_log").glob("*.json"):
        if int(entry.stem) < 20:
            entry.unlink()
    there = DeltaStore(str(Path(used.uri).parent))
    assert ids(there.open("orders")) == before
    assert not any(finding.where.startswith("_delta_log") for finding in check_queue(there, "orders", SystemClock()).findings)
    checkpoints.make(used.uri, 38, durable=True)
    assert pq.read_metadata(_checkpoints(used)[38]).num_rows > 60


@pytest.mark.parametrize("damaged", ["a part is gone", "a part is cut", "pages are zeroed"])
def test_a_checkpoint_that_cannot_be_read_is_done_without(used: QueueTable, damaged: str) -> None:
    before = ids(used)
    if damaged == "pages are zeroed":
        content = _checkpoints(used)[20].read_bytes()
        _checkpoints(used)[20].write_bytes(content[:200] + bytes(300) + content[500:])
    elif damaged == "a part is gone":
        _in_two_parts(used, 20)[0].unlink()
    else:
        os.truncate(_in_two_parts(used, 20)[1], 100)
    there = DeltaStore(str(Path(used.uri).parent))
    with pytest.raises(CheckpointDamagedError, match=r"checkpoint"):
        there.open("orders", read_only=True)
    assert Kind.CHECKPOINT_TORN in {finding.kind for finding in check_queue(there, "orders", SystemClock()).findings}
    assert Store(there).queue("orders").send(["one more"]).sent == 1
    assert ids(there.open("orders", read_only=True))[: len(before)] == before


def test_a_torn_checkpoint_is_not_built_upon(used: QueueTable) -> None:
    os.truncate(_checkpoints(used)[20], 100)
    checkpoints.make(used.uri, 38, durable=True)
    assert pq.read_metadata(_checkpoints(used)[38]).num_rows > 60


def test_a_file_system_without_hard_links_gets_copies(used: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(95, "Operation not supported", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    checkpoints.make(used.uri, 38, durable=True)
    assert set(_checkpoints(used)) == {20, 38}
    assert ids(used) == list(range(1, 31))


@pytest.mark.parametrize("point", ["before_writing", "before_place", "after_place"])
def test_a_maker_that_is_killed_leaves_a_log_that_says_the_same(delta_root: str, used: QueueTable, point: str) -> None:
    send(used, 1, "the 39th")
    child = children.start(children.work, delta_root, "append", f"store.checkpoint.{point}")
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert _newest(used) == 40
    assert (40 in _checkpoints(used)) == (point == "after_place")
    queue = DeltaStore(delta_root).open("orders")
    assert all(send(queue, 1, str(number)).repeated for number in range(30))
    [left] = Path(used.uri).glob(".checkpoint-*")
    queue.shorten_log(retention=NONE)
    assert left.exists()
    os.utime(left, (time.time() - 90_000,) * 2)
    queue.shorten_log(retention=NONE)
    assert not left.exists()
