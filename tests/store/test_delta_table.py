"""The table as others see it: independent readers, foreign hands, protections, and what a loss of power leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_poison.store import disk
from airflow_poison.store import entries as logs
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import StoreUnreachableError, TableChangedError
from airflow_poison.values.schema import SubQueue, table_schema
from tests.given.tables import CONTROL, LATER, NOW, all_rows, claim, ids, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

Row = tuple[int, str, int, bytes]


def _forty_days_ago() -> int:
    return time.time_ns() // 1_000_000 - 40 * 24 * 3_600 * 1_000


# Independent readers -----------------------------------------------------------------------------------------------


def _by_verbs(queue: QueueTable) -> list[Row]:
    return [(row["lookup_id"], row["sub_queue"], row["move_count"], row["body"]) for row in all_rows(queue)]  # type: ignore[misc]


def _by_polars(uri: str) -> list[Row]:
    frame = pl.scan_delta(uri).filter(pl.col("sub_queue").is_in([place.value for place in SubQueue]))
    return frame.select("lookup_id", "sub_queue", "move_count", "body").sort("lookup_id").collect().rows()


def _by_delta_rs(uri: str) -> list[Row]:
    dataset = DeltaTable(uri).to_pyarrow_dataset()
    rows = dataset.to_table(columns=["lookup_id", "sub_queue", "move_count", "body"]).to_pylist()
    return sorted((row["lookup_id"], row["sub_queue"], row["move_count"], row["body"]) for row in rows if row["sub_queue"] in set(SubQueue))


def _by_duckdb(uri: str) -> list[Row]:
    files = [path.removeprefix("file://") for path in DeltaTable(uri).file_uris()]
    query = """
        select lookup_id, sub_queue, move_count, body from read_parquet($files, hive_partitioning = true)
        where sub_queue in ('main', 'retry', 'poison', 'postponed') order by lookup_id
    """
    with duckdb.connect() as connection:
        return connection.execute(query, {"files": files}).fetchall()


@pytest.mark.parametrize("reader", [_by_polars, _by_delta_rs, _by_duckdb])
def test_every_reader_sees_the_same_rows_before_and_after_moves(delta_queue: QueueTable, reader: Callable[[str], list[Row]]) -> None:
    send(delta_queue, 3, "1")
    assert reader(delta_queue.uri) == _by_verbs(delta_queue)
    park_all(delta_queue)
    send(delta_queue, 2, "2")
    assert reader(delta_queue.uri) == _by_verbs(delta_queue)
    delta_queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, LATER)
    assert reader(delta_queue.uri) == _by_verbs(delta_queue) != []
    DeltaTable(delta_queue.uri).create_checkpoint()
    assert reader(delta_queue.uri) == _by_verbs(delta_queue)
    assert [row[1:3] for row in _by_verbs(delta_queue)] == [("main", 2)] * 3 + [("main", 0)] * 2


@pytest.mark.parametrize("reader", [_by_polars, _by_delta_rs, _by_duckdb])
def test_dmp_6_readers_pass_over_no_queue_whose_name_begins_with_an_underscore(delta_root: str, reader: Callable[[str], list[Row]]) -> None:
    """Many readers take such folders for hidden ones."""
    system = DeltaStore(delta_root).create("_SYSTEM.Exception.Destination.ME1", CONTROL)
    send(system, 2, "1")
    park_all(system)
    send(system, 3, "2")
    assert reader(system.uri) == _by_verbs(system)
    assert len(_by_verbs(system)) == 5


def test_statistics_let_a_reader_skip_files_and_never_lie(delta_queue: QueueTable) -> None:
    send(delta_queue, 3, "1")
    park_all(delta_queue)
    send(delta_queue, 2, "2")
    frame = pl.scan_delta(delta_queue.uri).filter(pl.col("sub_queue").is_in(["main", "retry"]))
    assert frame.filter(pl.col("lookup_id") > 3).collect().height == 2
    assert frame.filter(pl.col("due_at") >= LATER).collect().height == 3
    assert frame.filter(pl.col("due_at").is_null()).collect().height == 2
    assert frame.filter(pl.col("enqueued_at") == NOW).collect().height == 5


def test_time_travel_shows_an_earlier_version(delta_queue: QueueTable) -> None:
    send(delta_queue, 3)
    version = delta_queue.snapshot().version
    park_all(delta_queue)
    assert pl.read_delta(delta_queue.uri, version=version).filter(pl.col("sub_queue") == "main").height == 3


# Foreign hands -----------------------------------------------------------------------------------------------------


def test_writers_that_check_constraints_are_refused(delta_queue: QueueTable) -> None:
    send(delta_queue, 1)
    row = dict.fromkeys(table_schema().names) | {"lookup_id": 7, "sub_queue": "main", "move_count": 0}
    with pytest.raises(DeltaError, match="failed validation"):
        write_deltalake(delta_queue.uri, pa.Table.from_pylist([row], schema=table_schema()), mode="append")
    with pytest.raises(DeltaError, match="failed validation"):
        DeltaTable(delta_queue.uri).update(updates={"reason": "'mine'"}, predicate="sub_queue = 'main'")
    assert ids(delta_queue) == [1]


def test_compaction_by_others_changes_nothing(delta_queue: QueueTable) -> None:
    for number in range(4):
        send(delta_queue, 2, str(number))
    before = delta_queue.snapshot()
    DeltaTable(delta_queue.uri).optimize.compact()
    assert delta_queue.snapshot().files == before.files


def test_a_vacuum_by_others_leaves_stage_and_live_files_alone(delta_queue: QueueTable, at_point: AtPoint) -> None:
    send(delta_queue, 3)
    claimed = claim(delta_queue)
    delta_queue.stage_table(claimed, put(rows_of(delta_queue, claimed), "retry", 1, LATER))
    manifest = seal(delta_queue, claimed)
    _vacuum_everything(delta_queue)
    at_point.do("store.finish.after_links", lambda: _vacuum_everything(delta_queue))
    with pytest.raises(TableChangedError, match="Nothing was committed"):
        delta_queue.finish(claimed, manifest, now=NOW)
    assert delta_queue.finish(claimed, manifest, now=NOW)
    _vacuum_everything(delta_queue)
    assert ids(delta_queue) == [1, 2, 3]


def _vacuum_everything(queue: QueueTable) -> None:
    DeltaTable(queue.uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def test_a_log_that_is_gone_is_told(delta_queue: QueueTable) -> None:
    for path in Path(delta_queue.uri, "_delta_log").iterdir():
        path.unlink()
    with pytest.raises(TableChangedError, match="acknowledged, and is gone"):
        delta_queue.snapshot()


def test_a_log_that_cannot_be_written_is_told_and_nothing_is_doubled(delta_queue: QueueTable, at_point: AtPoint) -> None:
    log = Path(delta_queue.uri, "_delta_log")
    aside = log.with_name("aside")

    def take_away() -> None:
        log.rename(aside)
        log.touch()

    at_point.do("store.append.before_commit", take_away)
    with pytest.raises(StoreUnreachableError, match=r"cannot be written.*nothing was committed"):
        send(delta_queue, 3)
    log.unlink()
    aside.rename(log)
    assert send(delta_queue, 3).first_lookup_id == 1
    assert ids(delta_queue) == [1, 2, 3]


# Layout and protections --------------------------------------------------------------------------------------------


def test_a_new_table_has_the_protections_and_the_lowest_protocol(delta_queue: QueueTable) -> None:
    table = DeltaTable(delta_queue.uri)
    assert table.metadata().configuration == {
        "delta.targetFileSize": "1",
        "delta.checkpointInterval": "20",
        "delta.enableExpiredLogCleanup": "false",
        "delta.deletedFileRetentionDuration": "interval 7 days",
        "delta.setTransactionRetentionDuration": "interval 30 days",
        "delta.constraints.queue_verbs_only": "lookup_id < -9000000000000000000",
    }
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version, protocol.writer_features) == (1, 3, None)
    assert table.metadata().partition_columns == ["sub_queue", "move_count"]


def test_paths_say_the_partition_and_files_hold_neither_column(delta_queue: QueueTable) -> None:
    send(delta_queue, 2)
    park_all(delta_queue)
    for uri in DeltaTable(delta_queue.uri).file_uris():
        assert "/sub_queue=" in uri
        assert "/move_count=" in uri
        names = pq.ParquetFile(uri.removeprefix("file://")).schema_arrow.names
        assert {"sub_queue", "move_count"}.isdisjoint(names)


def test_a_moved_file_is_a_second_name_and_looks_new_to_a_vacuum(delta_queue: QueueTable) -> None:
    send(delta_queue, 2)
    (old,) = delta_queue.snapshot().files
    os.utime(Path(delta_queue.uri, old.path), (0, 0))
    delta_queue.move_files(lambda snapshot: snapshot.files, SubQueue.POISON, NOW)
    (new,) = delta_queue.snapshot().files
    assert Path(delta_queue.uri, new.path).samefile(Path(delta_queue.uri, old.path))
    assert Path(delta_queue.uri, new.path).stat().st_mtime > 0


def test_a_file_system_without_hard_links_gets_copies(delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of messages, that is: an entry of the log needs a link, by which no version is ever replaced."""
    link = os.link

    def refuse(source: object, target: object) -> None:
        if "_delta_log" not in str(target):
            raise PermissionError(1, "Operation not permitted")
        link(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", refuse)
    send(delta_queue, 2)
    park_all(delta_queue)
    assert ids(delta_queue, SubQueue.RETRY) == [1, 2]


def test_lookup_ids_go_on_after_a_queue_has_rested_for_long(delta_root: str, delta_queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta forgets the numbers of applications 30 days after they were set: keys of sends may be forgotten, the last id never."""
    with monkeypatch.context() as long_ago:
        long_ago.setattr(logs, "now_ms", _forty_days_ago)
        send(delta_queue, 3, "long ago")
        claimed = claim(delta_queue)
        delta_queue.finish(claimed, seal(delta_queue, claimed), now=NOW)
    for _ in range(20):  # a checkpoint is where what is forgotten is left out
        delta_queue.alter(lambda control: replace(control, reason=f"{control.reason}."), lambda _, __: [])
    assert not send(DeltaStore(delta_root).open("orders"), 2, "long ago").repeated
    assert ids(delta_queue) == [4, 5]


def test_a_checkpoint_is_made_every_twenty_versions_and_the_log_is_kept(delta_queue: QueueTable) -> None:
    for number in range(45):
        send(delta_queue, 1, str(number))
    log = Path(delta_queue.uri, "_delta_log")
    assert sorted(int(path.name.partition(".")[0]) for path in log.glob("*.checkpoint.parquet")) == [20, 40]
    assert len(list(log.glob("*.json"))) == 48
    assert ids(delta_queue) == list(range(1, 46))
    assert send(delta_queue, 1, "0").repeated


def test_the_result_of_a_run_is_empty_when_its_log_file_was_cleaned_up(delta_queue: QueueTable) -> None:
    send(delta_queue, 1)
    claimed = claim(delta_queue)
    delta_queue.finish(claimed, seal(delta_queue, claimed, {"settled": 1}), now=NOW)
    table = DeltaTable(delta_queue.uri)
    table.create_checkpoint()
    Path(delta_queue.uri, "_delta_log", f"{table.version():020d}.json").rename(Path(delta_queue.uri, "kept"))
    assert delta_queue.result("run") == {}


def test_looking_at_depth_imports_neither_pandas_nor_spark(delta_root: str, delta_queue: QueueTable) -> None:
    send(delta_queue, 3)
    claim(delta_queue)
    script = f"""
import sys
from datetime import UTC, datetime
from airflow_poison.values.schema import SubQueue
from airflow_poison.store import open_store
assert "pyarrow" not in sys.modules and "deltalake" not in sys.modules
assert open_store({delta_root!r}).open("orders").snapshot().depth(SubQueue.MAIN, datetime.now(UTC)).claimed == 3
assert not {{"pandas", "pyspark", "airflow"}} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


# Durability --------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_forced_to_disk_before_the_commit_and_the_log_after_it(
    delta_queue: QueueTable, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(disk, "sync", lambda path: order.append(str(Path(path).relative_to(delta_queue.uri))))
    at_point.do("store.append.before_commit", lambda: order.append("commit"))
    version = delta_queue.snapshot().version
    send(delta_queue, 2)
    (file,) = delta_queue.snapshot().files
    before, after = order[: order.index("commit")], order[order.index("commit") + 1 :]
    assert before == [file.path, "sub_queue=main/move_count=0", "sub_queue=main", "."]
    assert after == [f"_delta_log/{version + 1:020d}.json", "_delta_log", "_acknowledged"]


def test_a_manifest_is_forced_to_disk_before_and_after_it_gets_its_name(
    delta_queue: QueueTable, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(delta_queue, 2)
    claimed = claim(delta_queue)
    delta_queue.stage_table(claimed, put(rows_of(delta_queue, claimed), "poison"))
    own = Path(delta_queue.stage(claimed))
    order: list[Path] = []
    monkeypatch.setattr(disk, "sync", lambda path: order.append(Path(path)))
    at_point.do("store.seal.before_rename", lambda: order.append(Path("rename")))
    seal(delta_queue, claimed)
    (staged,) = (own / "out").rglob("*.parquet")
    at = order.index(Path("rename"))
    assert order[0] == staged
    assert order[at - 1] == own / ".manifest.json"
    assert order[at + 1 :] == [own, own.parent, own.parent.parent, Path(delta_queue.uri)]


def test_many_files_are_forced_to_disk_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(40)]
    for name in names:
        (tmp_path / name).touch()
    single: list[object] = []
    monkeypatch.setattr(disk, "sync", single.append)
    disk.sync_files(str(tmp_path), names)
    assert len(single) == (0 if sys.platform.startswith("linux") else 41)


@pytest.mark.parametrize("torn", [b"", b'{"commitInfo":{"timest', b"\0" * 300])
def test_a_last_commit_that_a_loss_of_power_cut_short_is_taken_away(delta_root: str, delta_queue: QueueTable, torn: bytes) -> None:
    send(delta_queue, 3)
    version = delta_queue.snapshot().version
    Path(delta_queue.uri, "_delta_log", f"{version + 1:020d}.json").write_bytes(torn)
    assert DeltaStore(delta_root).open("orders").snapshot().version == version
    assert send(delta_queue, 2, "more").first_lookup_id == 4
    assert ids(delta_queue) == [1, 2, 3, 4, 5]


def test_an_earlier_commit_that_cannot_be_read_is_an_error(delta_queue: QueueTable) -> None:
    send(delta_queue, 1, "1")
    version = delta_queue.snapshot().version
    send(delta_queue, 1, "2")
    Path(delta_queue.uri, "_delta_log", f"{version:020d}.json").write_text('{"commitInfo":{"timest')
    with pytest.raises(TableChangedError, match=f"version {version} was acknowledged, and is gone or not what was committed"):
        delta_queue.snapshot()


@pytest.mark.parametrize("torn", [b"", b"PAR1 and then nothing"])
def test_a_checkpoint_that_a_loss_of_power_cut_short_is_taken_away(delta_queue: QueueTable, torn: bytes) -> None:
    for number in range(20):
        send(delta_queue, 1, str(number))
    log = Path(delta_queue.uri, "_delta_log")
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(torn)
    assert ids(delta_queue) == list(range(1, 21))
    assert json.loads((log / f"{delta_queue.snapshot().version:020d}.json").read_text().splitlines()[0])


def test_a_table_that_was_copied_elsewhere_works_there(delta_root: str, delta_queue: QueueTable, tmp_path: Path) -> None:
    import shutil

    send(delta_queue, 3)
    shutil.copytree(delta_root, tmp_path / "moved")
    there = DeltaStore(str(tmp_path / "moved")).create("orders", CONTROL)
    assert send(there, 1, "more").first_lookup_id == 4
    assert ids(delta_queue) == [1, 2, 3]


def test_actions_are_divided_at_line_ends_alone() -> None:
    """U+2028 ends a line for ``str.splitlines``, and may stand in a partition's value."""
    paths = ["a\u2028b", "c\x85d"]
    content = b"".join(json.dumps({"add": {"path": path}, "txn": {}}, ensure_ascii=False).encode() + b"\n" for path in paths)
    assert [add["path"] for _, add in logs.actions(content, "add")] == paths
    assert [kind for kind, _ in logs.actions(content)] == ["add", "txn"] * 2
