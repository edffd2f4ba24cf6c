"""Checkpoints of a Delta log, and its shortening behind them. One is made beside the log, arranged to be read at little cost, and put into it whole.

delta-rs writes a checkpoint as one row group, and a reader takes apart all of it, whatever it asks for. Most of it are keys of sends and runs, and
files that were removed. So the rows are put into a row group for each kind: readers skip those that the statistics say hold nothing for them.

A checkpoint in a log is never replaced, because a reader may be reading it, in pieces and by its old size. So delta-rs makes it in a folder beside
the log, from second names of the entries since the last checkpoint; its content is compared with the expected one; then it gets its name in the log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

from airflow_poison.store import disk
from airflow_poison.store.entries import HINT, LOG, actions, checkpoints, entry_path, is_readable, is_whole, read_marks, versions
from airflow_poison.store.files import Shortened
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake, pa, pc, pq

_BESIDE = ".checkpoint-"
_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")
_KINDS = ("txn", "remove")
_TEMPORARY = re.compile(r"_commit_.*\.tmp|.*#\d+|\.tmp.*")
_SAFE_AGE = 24 * 3_600.0  # seconds; a writer needs milliseconds
_LEAST_CHECKPOINTS = 2


def checkpoint_path(root: str, version: int) -> Path:
    """Return where a version's checkpoint lies."""
    return Path(root, LOG, f"{version:020d}.checkpoint.parquet")


def make(root: str, version: int, *, durable: bool, forget_gone: bool = False) -> None:
    """Make the checkpoint of a version unless there is one. Nothing happens when the log is shortened beyond that version meanwhile.

    :param forget_gone: leave out which files were removed where the disk has them no longer: the note keeps a VACUUM from removing them too early.

    Raises TableChangedError when an entry is damaged and when what was arranged is not what delta-rs wrote, DeltaError, OSError.
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
        before = _marks(log)
        made, rows = _written(beside, version, root if forget_gone else None)
        if _marks(log) != before or not _are_as_committed(root, log):
            message = f"An entry of {Path(root, LOG)} up to version {version} is not what was committed, so no checkpoint was made of it."
            raise TableChangedError(f"{message} Look at the table with 'airflow poison check'; with --repair it puts back what it can.")
        if durable:
            disk.sync(made)
        reach("store.checkpoint.before_place")
        _take_place(root, version, made, durable=durable)
        reach("store.checkpoint.after_place")
        _say_it_is_the_last(root, version, rows, log / HINT, durable=durable)
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
    first, checkpoint = _last_whole(root, version)
    sources = [*(entry_path(root, number) for number in range(max(first, 0), version + 1)), *checkpoint]
    try:
        for source in sources:
            _second_name(source, log / source.name)
    except FileNotFoundError:
        return False
    return True


def _marks(log: Path) -> dict[str, tuple[int, int, int]]:
    """Return the identity of each entry by name, to detect replaced entries. delta-rs reads an emptied entry as a version without changes."""
    found = {path.name: path.stat() for path in log.glob("*.json")}
    return {name: (status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found.items()}


def _are_as_committed(root: str, log: Path) -> bool:
    marks = read_marks(root)
    there = ((marks.get(int(path.stem)), path) for path in log.glob("*.json"))
    return all(is_readable(path) if mark is None else mark.content(path) is not None for mark, path in there)


def _sync_covered(root: str, log: Path) -> None:
    """Force what the checkpoint will stand for to disk: it must not outlive an entry that another writer has not synced."""
    for source in log.iterdir():
        disk.sync_if_there(Path(root, LOG, source.name))
    disk.sync(Path(root, LOG))


def _last_whole(root: str, version: int) -> tuple[int, list[Path]]:
    for number, checkpoint in reversed(checkpoints(Path(root, LOG)).items()):
        with suppress(FileNotFoundError):
            if number < version and is_whole(checkpoint):
                return number, checkpoint
    return -1, []


def _second_name(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _written(beside: Path, version: int, root: str | None) -> tuple[Path, int]:
    deltalake.DeltaTable(str(beside), version=version).create_checkpoint()
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
    with pq.ParquetFile(path) as parquet:
        return parquet.read()


def _arranged(rows: pa.Table) -> list[pa.Table]:
    """Return the rows kind by kind; each row is of one kind."""
    parts: list[pa.Table] = []
    for kind in _KINDS:
        here = pc.is_valid(rows[kind])
        parts.append(rows.filter(here))
        rows = rows.filter(pc.invert(here))
    return [part for part in (rows, *parts) if part.num_rows]


def _without_gone(rows: pa.Table, root: str) -> pa.Table:
    paths = pc.struct_field(rows["remove"], "path").to_pylist()
    return rows.filter(pa.array([path is None or Path(root, unquote(path)).exists() for path in paths], pa.bool_()))


def _write(target: Path, parts: list[pa.Table]) -> None:
    with pq.ParquetWriter(target, parts[0].schema, compression="snappy") as writer:
        for part in parts:
            writer.write_table(part)


def _is_as_arranged(target: Path, parts: list[pa.Table]) -> bool:
    return bool(_read(target).equals(pa.concat_tables(parts)))


def _take_place(root: str, version: int, made: Path, *, durable: bool) -> None:
    """Give the checkpoint its name in the log, unless another process already wrote it."""
    place = checkpoint_path(root, version)
    try:
        os.link(made, place)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: no other process writes a different checkpoint of this version
        made.rename(place)
    if durable:
        disk.sync(place.parent)


def _say_it_is_the_last(root: str, version: int, rows: int, beside: Path, *, durable: bool) -> None:
    """Write the hint to the last checkpoint, with which readers start faster."""
    if _hinted(root) >= version:
        return
    beside.write_text(json.dumps({"version": version, "size": rows}))
    if durable:
        disk.sync(beside)
    beside.replace(Path(root, LOG, HINT))
    if durable:
        disk.sync(Path(root, LOG))


def _hinted(root: str) -> int:
    try:
        return int(json.loads(Path(root, LOG, HINT).read_text())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1


# Shortening the log behind a checkpoint -------------------------------------------------------------------------------


def removals(root: str) -> Mapping[str, float]:
    """Return when the log removed files, by path; the caller must ignore a file that was added again later.

    Checkpoints keep the times of files whose entries were deleted.
    """
    found = {path: at for version in _checkpoints(root) for path, at in _removed_before(checkpoint_path(root, version))}
    for version in _entries(root):
        entry = entry_path(root, version)
        try:
            content, changed = entry.read_bytes(), entry.stat().st_mtime
        except FileNotFoundError:  # another maintainer has shortened the log
            continue
        for _, gone in actions(content, "remove"):
            at = max(changed, (gone.get("deletionTimestamp") or 0) / 1_000)  # whichever clock was behind
            found[gone["path"]] = found[unquote(gone["path"])] = at
    return found


def _removed_before(checkpoint: Path) -> Iterator[tuple[str, float]]:
    """Yield the files that a checkpoint says to have been removed, and when."""
    try:
        with pq.ParquetFile(checkpoint) as file:
            rows = file.read(["remove.path", "remove.deletionTimestamp"])
    except (FileNotFoundError, pa.ArrowInvalid):  # another maintainer has shortened the log; damage is reported elsewhere
        return
    for row in rows.column("remove").to_pylist() if "remove" in rows.column_names else ():
        if row is not None:
            at = (row["deletionTimestamp"] or 0) / 1_000
            yield row["path"], at
            yield unquote(row["path"]), at


def shorten(root: str, version: int, retention: timedelta, *, durable: bool) -> Shortened:
    """Write a checkpoint of a version and remove what only versions before the retention need.

    Entries go from the oldest on, so what a killed cleaner leaves is a log without a hole. A checkpoint is compared with the version that it stands
    for, and forced to disk, before the first of them goes; the newest two checkpoints stay in any case, with every entry between them.
    """
    if version not in _checkpoints(root):
        reach("store.log.before_checkpoint")
        make(root, version, durable=durable, forget_gone=True)
    _force(root, version, durable=durable)
    reach("store.log.after_checkpoint")
    needless = _needless(root, time.time() - retention.total_seconds(), durable=durable)
    size = entries = 0
    for path in (*needless, *_temporary(root)):
        reach("store.log.before_remove")
        size += _removed(path)
        entries += 1
    for folder in left_over(root, _SAFE_AGE):
        shutil.rmtree(folder, ignore_errors=True)
    return Shortened(checkpoint=version, entries=entries, size=size, oldest=min(_entries(root), default=version))


def checkpoint_paths(checkpoint: Path) -> set[str]:
    """Return the live files that a checkpoint names."""
    with pq.ParquetFile(checkpoint) as parquet:
        adds = parquet.read(["add.path"]).column("add").to_pylist()
    return {unquote(add["path"]) for add in adds if add is not None and add["path"] is not None}


def _needless(root: str, since: float, *, durable: bool) -> list[Path]:
    """Return the log files that no version since an instant needs; repeated while another maintainer shortens the log."""
    while (kept := _last_unneeded_checkpoint(root, since)) is not None:
        needless, oldest = _before(root, kept), min(_entries(root), default=0)
        if not needless:
            break
        try:
            _check(root, kept)
        except TableChangedError:
            if min(_entries(root), default=0) == oldest:
                raise
            continue
        _force(root, kept, durable=durable)
        return needless
    return []


def _last_unneeded_checkpoint(root: str, since: float) -> int | None:
    """Return the checkpoint that all of the retention can be read from; None when there is none to shorten to.

    The version that was the newest when the retention began is the first that is needed.
    """
    known = _entries(root)
    within = [version for version in known if _age_mark(entry_path(root, version)) > since]
    first_needed = within[0] - 1 if within else max(known, default=0)
    older = _checkpoints(root)[: -_LEAST_CHECKPOINTS + 1]
    return max((version for version in older if version <= first_needed), default=None)


def _check(root: str, version: int) -> None:
    """Hold a checkpoint against all entries before it, from the oldest on that a checkpoint leads to. Raises TableChangedError.

    A killed maintainer may have left older checkpoints behind, whose entries are gone.
    """
    try:
        there, first, oldest = set[str](), 0, min(_entries(root))
        if oldest:
            first = min(number for number in _checkpoints(root) if number >= oldest - 1) + 1
            there = checkpoint_paths(checkpoint_path(root, first - 1))
        for number in range(first, version + 1):
            added, removed = _changes(entry_path(root, number))
            there = (there - removed) | added
        difference = ", ".join(sorted(there ^ checkpoint_paths(checkpoint_path(root, version)))[:3])
    except (OSError, ValueError) as error:
        difference = str(error)
    if difference:
        message = (
            f"The checkpoint of version {version} in {Path(root, LOG)} does not name the files that the entries before it lead to: {difference}. "
            "Nothing of the log was removed. Look at the table with 'airflow poison check'; restore the log from a backup if it says so."
        )
        raise TableChangedError(message)


def _changes(entry: Path) -> tuple[set[str], set[str]]:
    found: dict[str, set[str]] = {"add": set(), "remove": set()}
    for kind, file in actions(entry.read_bytes(), *found):
        found[kind].add(unquote(file["path"]))
    return found["add"], found["remove"]


def _force(root: str, version: int, *, durable: bool) -> None:
    """Force a checkpoint to disk before what it replaces goes."""
    if durable:
        for path in (checkpoint_path(root, version), Path(root, LOG, HINT)):
            disk.sync_if_there(path)
        disk.sync(Path(root, LOG))


def _before(root: str, version: int) -> list[Path]:
    entries = [entry_path(root, number) for number in _entries(root) if number < version]
    return entries + [checkpoint_path(root, number) for number in _checkpoints(root) if number < version]


def _temporary(root: str) -> Iterator[Path]:
    for path in Path(root, LOG).iterdir():
        if _TEMPORARY.fullmatch(path.name) and time.time() - _age_mark(path) > _SAFE_AGE:
            yield path


def _age_mark(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _entries(root: str) -> list[int]:
    return versions(Path(root, LOG))


def _checkpoints(root: str) -> list[int]:
    return versions(Path(root, LOG), _NAME)


def _removed(path: Path) -> int:
    """Remove a file and return its size; 0 when another maintainer was faster."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
