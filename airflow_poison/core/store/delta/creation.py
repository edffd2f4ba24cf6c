"""Making a queue table: beside its place, whole, and then by one rename, so that nobody ever sees half of one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import table_schema
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta.actions import PARTITION_BY
from airflow_poison.core.store.delta.log import CHECKPOINT_INTERVAL, DeltaLog
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import files, rows
from airflow_poison.core.store.table.layout import CONTROL
from airflow_poison.core.store.table.stage import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.core.store.control import Control

PROPERTIES = {
    "delta.targetFileSize": "1",  # delta-rs and JVM compaction find nothing to join
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.enableExpiredLogCleanup": "false",  # maintenance cleans up, after it has forced the checkpoint to disk
    "delta.deletedFileRetentionDuration": "interval 7 days",  # must be longer than the longest pass
    "delta.setTransactionRetentionDuration": "interval 30 days",  # how long send and run keys are remembered
}
_BESIDE, _GONE = ".new-", ".gone"
CONSTRAINT = {"queue_verbs_only": "lookup_id < -9000000000000000000"}  # no row can pass it: writers that check constraints are refused


def create(root: Path, name: str, control: Control, *, durable: bool) -> None:
    """Make the table ``root/name``; nothing happens when another process has made it meanwhile. Raises OSError.

    What is in it is on disk then; its own name in ``root`` is for the caller to sync.
    """
    from deltalake import DeltaTable

    beside = root / f"{_BESIDE}{uuid4().hex}"
    beside.mkdir(parents=True)
    try:
        table = DeltaTable.create(str(beside), schema=table_schema(), partition_by=PARTITION_BY, configuration=PROPERTIES)
        table.alter.add_constraint(CONSTRAINT)
        log = DeltaLog(str(beside), durable=durable)
        row = files.write_new(str(beside), CONTROL, 0, rows.control_to_row(control))
        log.commit(log.load(), Commit("create", add=[row]))
        if durable:
            durability.sync_files(str(beside), [str(path.relative_to(beside)) for path in beside.rglob("*.json")])
        reach("store.create.before_rename")
        _take_place(beside, root / name)
    finally:
        remove_tree(beside)


def left_over(root: Path, safe_age: float) -> Iterator[Path]:
    """Yield folders of queues whose making was killed.

    :param safe_age: how many seconds ago anything happened in them, at least.
    """
    for folder in sorted(root.glob(f"{_BESIDE}*")):
        with suppress(FileNotFoundError):  # its maker, or another cleaner
            if time.time() - folder.stat().st_mtime >= safe_age:
                yield folder


def sweep(root: Path, safe_age: float) -> list[str]:
    """Remove what ``left_over`` finds and return the names. Each is put aside first: a maker that wakes up finds all of it or nothing."""
    gone = []
    for folder in left_over(root, safe_age):
        aside = folder if folder.name.endswith(_GONE) else folder.with_name(folder.name + _GONE)
        with suppress(FileNotFoundError):
            folder.rename(aside)
            remove_tree(aside)
            gone.append(folder.name)
    return gone


def _take_place(beside: Path, place: Path) -> None:
    try:
        beside.rename(place)
    except OSError:
        if not (place / "_delta_log").is_dir():
            raise
