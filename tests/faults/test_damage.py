"""Damaged files: noticed at once and by name, nothing committed, and when the file is back from its copy, work goes on."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

NOW = datetime(2013, 1, 1, tzinfo=UTC)
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
CALLED: list[int] = []


class KilledError(BaseException):
    """Stands for a kill where the process of the test has to go on."""


def handle(message: Message) -> None:
    CALLED.append(message.lookup_id)
    if message.body == b"bad":
        raise ValueError("bad")


def removed(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def footer_lost(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\0" * 8)


def footer_garbled(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-200, os.SEEK_END)
        file.write(os.urandom(150))


def byte_changed(path: Path) -> None:
    """Change the last byte of the bodies of a Parquet file, or one of text."""
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            group = file.metadata.row_group(0)
            column = group.column(file.schema_arrow.names.index("body"))
            place = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1
    content[place] ^= 1
    path.write_bytes(content)


DAMAGE = [removed, cut, emptied, footer_lost, footer_garbled, byte_changed]


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    CALLED.clear()
    queue = declare(DeltaStore(str(tmp_path / "store")), "orders", POLICY, VirtualClock(NOW))
    for number in range(2):
        send(queue, messages_to_batches([b"good", b"bad", b"good"]), key=f"send-{number}", clock=VirtualClock(NOW))
    return queue


def receive(table: QueueTable, key: str = "run") -> None:
    ReceivePass(
        table=table, policy=POLICY, handler=handle, engine=LocalEngine, clock=VirtualClock(NOW), isolation="none", lease=timedelta(minutes=2)
    ).run(key)


def stopped_at(point: str, act: Callable[[], object]) -> None:
    """Do something that is killed at a point."""

    def reached(name: str) -> None:
        if name == point:
            raise KilledError

    fault_points.install(reached)
    try:
        with pytest.raises(KilledError):
            act()
    finally:
        fault_points.install(None)


def newest(table: QueueTable, pattern: str) -> Path:
    return max(Path(table.uri).glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def assert_done(table: QueueTable) -> None:
    """Each message was received once, and what failed is in poison."""
    snapshot = table.snapshot()
    assert [(file.sub_queue, file.rows) for file in snapshot.files] == [("poison", 2)]
    assert snapshot.claims == ()
    assert sorted(CALLED) == [1, 2, 3, 4, 5, 6]


def _now_at(table: QueueTable, path: Path) -> Path:
    """Return where a file is now: the stage of an earlier holder of the claim has another name."""
    stage, key, attempt, *below = path.relative_to(table.uri).parts
    if stage != "_stage":
        return path
    fenced = Path(table.uri, stage, key, f"{attempt}.fenced", *below)
    return fenced if fenced.parent.is_dir() else path


PLACES = {
    "a message file": (None, "sub_queue=main/**/*.parquet"),
    "the control row": (None, "sub_queue=_ctl/**/*.parquet"),
    "the claim's row": ("store.claim.before_fence", "sub_queue=_claim/**/*.parquet"),
    "a staged file": ("store.finish.before_links", "_stage/*/*/out/sub_queue=poison/**/task-*.parquet"),
    "the manifest": ("store.finish.before_links", "_stage/*/*/manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGE if os.environ.get("POISON_FAULTS") == "full" else [cut, footer_garbled, byte_changed])
@pytest.mark.parametrize("place", PLACES)
def test_damage_is_noticed_loses_nothing_and_work_goes_on_when_it_is_mended(
    table: QueueTable, tmp_path: Path, place: str, damage: Callable[[Path], None]
) -> None:
    point, pattern = PLACES[place]
    if place == "the manifest" and damage in {removed, footer_lost, footer_garbled}:
        pytest.skip("without a manifest, what was staged counts for nothing and the journal decides; it has no footer")
    if point is not None:
        stopped_at(point, lambda: receive(table))
    path = newest(table, pattern)
    copy = Path(shutil.copy2(path, tmp_path / "copy"))
    damage(path)
    before = [*Path(table.uri, "_delta_log").glob("*.json")]
    there = DeltaStore(str(tmp_path / "store"))
    with pytest.raises(PoisonError) as told:
        receive(there.open("orders"))
    assert path.name in str(told.value) or "manifest" in str(told.value) or "control" in str(told.value)
    assert len([*Path(table.uri, "_delta_log").glob("*.json")]) <= len(before) + 1 + (damage is byte_changed)  # a claim, and that it begins
    shutil.copy2(copy, _now_at(table, path))
    receive(there.open("orders"))
    assert_done(table)
