"""Looking at a queue changes nothing in its folder, whatever is damaged there: only verbs that write repair, and they keep a copy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import CheckpointDamagedError, PoisonError, StoreUnreachableError, TableChangedError
from airflow_poison.watching.poller import QueueReader
from tests.given.broken_queues import DAMAGE, checked
from tests.given.command import run

if TYPE_CHECKING:
    from tests.given.passes import Queue

LOOKS = ["list", "show orders", "history orders", "inspect orders", "decide"]


def _all_of(folder: str) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in Path(folder).rglob("*"):
        seen = path.lstat()
        found[str(path)] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
    return found


@pytest.mark.parametrize("name", DAMAGE)
def test_looking_changes_nothing(worked: Queue, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    DAMAGE[name][0](worked)
    before = _all_of(worked.store.uri)
    for line in LOOKS:
        assert "Traceback" not in run(capsys, f"{line} --store {worked.store.uri}").err
    with suppress(PoisonError):
        list(DeltaStore(worked.store.uri).open("orders", read_only=True).events())
    QueueReader(DeltaStore(worked.store.uri)).at(["orders"])
    checked(worked)
    assert _all_of(worked.store.uri) == before


@pytest.mark.parametrize("name", ["last commit empty", "last commit cut at the end of a line", "checkpoint of a version that was lost"])
def test_a_reader_goes_on_with_the_last_version_that_counts_and_a_writer_keeps_a_copy(worked: Queue, name: str) -> None:
    DAMAGE[name][0](worked)
    there = DeltaStore(worked.store.uri).open("orders", read_only=True)
    assert worked.having(table=there).rows().keys() >= {7, 10}
    aside = Path(worked.table.uri, "_repaired")
    assert not aside.exists()
    worked.having(table=there).sent("ok")
    assert [*aside.iterdir()]


def test_a_writer_sets_a_damaged_checkpoint_aside_and_a_reader_says_what_is_damaged(worked: Queue) -> None:
    DAMAGE["checkpoint gone"][0](worked)
    with pytest.raises(PoisonError, match=r"No message is concerned\. The next verb that writes sets it aside"):
        DeltaStore(worked.store.uri).open("orders", read_only=True)
    assert DeltaStore(worked.store.uri).open("orders").snapshot().files
    assert [path.name[-16:] for path in Path(worked.table.uri, "_repaired").iterdir()] == ["_last_checkpoint"]
    assert DeltaStore(worked.store.uri).open("orders", read_only=True).snapshot().files


def test_a_checkpoint_that_alone_has_what_was_before_it_is_no_shortcut_when_it_is_damaged(worked: Queue) -> None:
    DeltaTable(worked.table.uri).create_checkpoint()
    log = Path(worked.table.uri, "_delta_log")
    checkpoint = max(log.glob("*.checkpoint.parquet"))
    for path in log.iterdir():
        if path.name[:20].isdecimal() and path.name[:20] < checkpoint.name[:20]:
            path.unlink()
    os.truncate(checkpoint, 20)
    for read_only in (True, False):
        with pytest.raises(TableChangedError, match=r"and so are the entries from before it.*Restore _delta_log from a backup") as caught:
            DeltaStore(worked.store.uri).open("orders", read_only=read_only)
        assert not isinstance(caught.value, CheckpointDamagedError)


def test_a_file_of_the_log_whose_name_is_no_text_is_named(worked: Queue) -> None:
    Path(os.fsdecode(os.fsencode(worked.table.uri) + b"/_delta_log/\xff")).touch()
    with pytest.raises(StoreUnreachableError, match=r"a file in .*_delta_log has a name that is no UTF-8, '\\udcff'\. Move it away"):
        DeltaStore(worked.store.uri).open("orders", read_only=True)
