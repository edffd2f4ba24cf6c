"""Checkpoints of a Delta log: made beside it, arranged so that reading one costs little, and put into it whole.

delta-rs writes a checkpoint as one row group, and a reader takes apart all of it, whatever it asks for. Most of it are keys of sends and runs, and
files that were removed. So the rows are put into a row group for each kind: readers skip those that the statistics say hold nothing for them.

No checkpoint in a log is ever replaced: somebody may be reading it, in pieces and by its old size. So delta-rs makes it in a folder beside the log,
from second names of the entries since the last checkpoint; what was arranged is compared with what delta-rs wrote; then it gets its name in the log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta.repair import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

LOG = "_delta_log"
_BESIDE = ".checkpoint-"
_LAST = "_last_checkpoint"
_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")
_KINDS = ("txn", "remove")


def checkpoint_path(root: str, version: int) -> Path:
    """Return where a version's checkpoint lies."""
    return Path(root, LOG, f"{version:020d}.checkpoint.parquet")


def make(root: str, version: int, *, durable: bool, forget_gone: bool = False) -> None:
    """Make the checkpoint of a version unless there is one. Nothing happens when the log is shortened beyond that version meanwhile.

    :param forget_gone: leave out which files were removed where the disk has them no longer: the note keeps a VACUUM from removing them too early.

    Raises TableChangedError when what was arranged is not what delta-rs wrote, DeltaError, OSError.
    """
    if checkpoint_path(root, version).exists():
        return
    beside = Path(root, f"{_BESIDE}{uuid4().hex}")
    log = beside / LOG
    try:
        log.mkdir(parents=True)
        if not _has_second_names(root, version, log):
            return
        if durable:
            _sync_covered(root, log)
        reach("store.checkpoint.before_writing")
        made, rows = _written(beside, version, root if forget_gone else None)
        if durable:
            durability.sync(made)
        reach("store.checkpoint.before_place")
        _take_place(root, version, made, durable=durable)
        reach("store.checkpoint.after_place")
        _say_it_is_the_last(root, version, rows, log / _LAST, durable=durable)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def left_over(root: str, safe_age: float) -> Iterator[Path]:
    """Yield the folders of killed makers."""
    for path in Path(root).glob(f"{_BESIDE}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > safe_age:
                yield path


def _has_second_names(root: str, version: int, log: Path) -> bool:
    """Give the last whole checkpoint and the entries since a second name; False when the log was shortened meanwhile."""
    first = _last_whole(root, version)
    sources = [Path(root, LOG, f"{number:020d}.json") for number in range(max(first, 0), version + 1)]
    if first >= 0:
        sources.append(checkpoint_path(root, first))
    try:
        for source in sources:
            _second_name(source, log / source.name)
    except FileNotFoundError:
        return False
    return True


def _sync_covered(root: str, log: Path) -> None:
    """Force what the checkpoint will stand for to disk: it must not outlive an entry that another writer has not synced."""
    for source in log.iterdir():
        durability.sync_if_there(Path(root, LOG, source.name))
    durability.sync(Path(root, LOG))


def _last_whole(root: str, version: int) -> int:
    """Return the version of the last checkpoint before a version; -1: none."""
    found = sorted((int(match[1]) for path in Path(root, LOG).iterdir() if (match := _NAME.fullmatch(path.name))), reverse=True)
    for number in found:
        with suppress(FileNotFoundError):
            if number < version and is_whole(checkpoint_path(root, number)):
                return number
    return -1


def _second_name(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _written(beside: Path, version: int, root: str | None) -> tuple[Path, int]:
    """Return the arranged checkpoint of a version, beside the log, and its number of rows."""
    from deltalake import DeltaTable

    DeltaTable(str(beside), version=version).create_checkpoint()
    rows = _read(checkpoint_path(str(beside), version))
    if root is not None:
        rows = _without_gone(rows, root)
    target, arranged = beside / "arranged.parquet", _arranged(rows)
    _write(target, arranged)
    if sum(part.num_rows for part in arranged) != rows.num_rows or not _is_as_arranged(target, arranged):
        raise TableChangedError(
            f"The checkpoint of version {version} in {beside.parent} could not be written as it was meant. The log is as it was, and all its commits "
            "count. Look at the disk and at the memory of this machine."
        )
    return target, rows.num_rows


def _read(path: Path) -> pa.Table:
    """Return all rows. Does not import pandas."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        return parquet.read()


def _arranged(rows: pa.Table) -> list[pa.Table]:
    """Return the rows kind by kind; each row is of one kind."""
    import pyarrow.compute as pc

    parts: list[pa.Table] = []
    for kind in _KINDS:
        here = pc.is_valid(rows[kind])
        parts.append(rows.filter(here))
        rows = rows.filter(pc.invert(here))
    return [part for part in (rows, *parts) if part.num_rows]


def _without_gone(rows: pa.Table, root: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = pc.struct_field(rows["remove"], "path").to_pylist()
    return rows.filter(pa.array([path is None or Path(root, unquote(path)).exists() for path in paths], pa.bool_()))


def _write(target: Path, parts: list[pa.Table]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(target, parts[0].schema, compression="snappy") as writer:
        for part in parts:
            writer.write_table(part)


def _is_as_arranged(target: Path, parts: list[pa.Table]) -> bool:
    import pyarrow as pa

    return bool(_read(target).equals(pa.concat_tables(parts)))


def _take_place(root: str, version: int, made: Path, *, durable: bool) -> None:
    """Give the checkpoint its name in the log, unless somebody was faster."""
    place = checkpoint_path(root, version)
    try:
        os.link(made, place)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: nobody else writes another one of this version
        made.rename(place)
    if durable:
        durability.sync(place.parent)


def _say_it_is_the_last(root: str, version: int, rows: int, beside: Path, *, durable: bool) -> None:
    """Tell readers where to begin; they would find it without, more slowly."""
    if _hinted(root) >= version:
        return
    beside.write_text(json.dumps({"version": version, "size": rows}))
    if durable:
        durability.sync(beside)
    beside.replace(Path(root, LOG, _LAST))
    if durable:
        durability.sync(Path(root, LOG))


def _hinted(root: str) -> int:
    try:
        return int(json.loads(Path(root, LOG, _LAST).read_text())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1
