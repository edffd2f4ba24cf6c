"""What a Delta log keeps: when files were removed, and its own shortening behind a checkpoint.

Entries go from the oldest on, so what a killed cleaner leaves is a log without a hole. A checkpoint is compared with the version that it stands
for, and forced to disk, before the first of them goes; the newest two checkpoints stay in any case, with every entry between them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta import checkpoints
from airflow_poison.core.store.delta.checkpoints import LOG
from airflow_poison.core.store.results import Shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_TEMPORARY = re.compile(r"_commit_.*\.tmp|.*#\d+|\.tmp.*")
_SAFE_AGE = 24 * 3_600.0  # seconds; a writer needs milliseconds
_LEAST_CHECKPOINTS = 2


def removals(log: Path) -> Mapping[str, float]:
    """Return when the entries of the log removed files, by path; a file that was added again later is not among the dead for its reader."""
    found: dict[str, float] = {}
    for version in sorted(_versions(log, _ENTRY)):
        entry = _entry(log, version)
        try:
            lines, changed = entry.read_text(encoding="utf-8").splitlines(), entry.stat().st_mtime
        except FileNotFoundError:  # another maintainer has shortened the log
            continue
        for line in lines:
            if '"remove"' in line and (action := json.loads(line).get("remove")) is not None:
                at = max(changed, (action.get("deletionTimestamp") or 0) / 1_000)  # whichever clock was behind
                found[action["path"]] = found[unquote(action["path"])] = at
    return found


def shorten(root: str, version: int, retention: timedelta, *, durable: bool) -> Shortened:
    """Write a checkpoint of a version and remove what only versions before the retention need."""
    log = Path(root, LOG)
    if version not in _versions(log, _CHECKPOINT):
        reach("store.log.before_checkpoint")
        checkpoints.make(root, version, durable=durable, forget_gone=True)
    _force(log, version, durable=durable)
    reach("store.log.after_checkpoint")
    needless = _needless(log, time.time() - retention.total_seconds(), durable=durable)
    size = entries = 0
    for path in (*needless, *_temporary(log)):
        reach("store.log.before_remove")
        size += _removed(path)
        entries += 1
    for folder in checkpoints.left_over(root, _SAFE_AGE):
        shutil.rmtree(folder, ignore_errors=True)
    return Shortened(checkpoint=version, entries=entries, size=size, oldest=min(_versions(log, _ENTRY), default=version))


def checkpoint_paths(checkpoint: Path) -> set[str]:
    """Return the live files that a checkpoint names."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(checkpoint) as parquet:
        adds = parquet.read(["add.path"]).column("add").to_pylist()
    return {unquote(add["path"]) for add in adds if add is not None and add["path"] is not None}


def _needless(log: Path, since: float, *, durable: bool) -> list[Path]:
    """Return what nobody needs who reads versions from an instant on; looked at again while another maintainer shortens the log, too."""
    while (kept := _last_unneeded_checkpoint(log, since)) is not None:
        needless, oldest = _before(log, kept), min(_versions(log, _ENTRY), default=0)
        if not needless:
            break
        try:
            _check(log, kept)
        except TableChangedError:
            if min(_versions(log, _ENTRY), default=0) == oldest:
                raise
            continue
        _force(log, kept, durable=durable)
        return needless
    return []


def _last_unneeded_checkpoint(log: Path, since: float) -> int | None:
    """Return the checkpoint that all of the retention can be read from; None when there is none to shorten to.

    The version that was the newest when the retention began is the first that is needed.
    """
    versions = sorted(_versions(log, _ENTRY))
    within = [version for version in versions if _changed(log, version) > since]
    first_needed = within[0] - 1 if within else max(versions, default=0)
    checkpoints = sorted(_versions(log, _CHECKPOINT))[: -_LEAST_CHECKPOINTS + 1]
    return max((version for version in checkpoints if version <= first_needed), default=None)


def _check(log: Path, version: int) -> None:
    """Hold a checkpoint against all entries before it, from the oldest on that a checkpoint leads to. Raises TableChangedError.

    A killed maintainer may have left older checkpoints behind, whose entries are gone.
    """
    try:
        there, first, oldest = set[str](), 0, min(_versions(log, _ENTRY))
        if oldest:
            first = min(number for number in _versions(log, _CHECKPOINT) if number >= oldest - 1) + 1
            there = checkpoint_paths(_checkpoint(log, first - 1))
        for number in range(first, version + 1):
            added, removed = _changes(_entry(log, number))
            there = (there - removed) | added
        difference = ", ".join(sorted(there ^ checkpoint_paths(_checkpoint(log, version)))[:3])
    except (OSError, ValueError) as error:
        difference = str(error)
    if difference:
        message = (
            f"The checkpoint of version {version} in {log} does not name the files that the entries before it lead to: {difference}. Nothing of "
            "the log was removed. Look at the table with 'airflow poison check'; restore the log from a backup if it says so."
        )
        raise TableChangedError(message)


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _checkpoint(log: Path, version: int) -> Path:
    return log / f"{version:020d}.checkpoint.parquet"


def _changes(entry: Path) -> tuple[set[str], set[str]]:
    """Return the paths that an entry adds and removes."""
    actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    added, removed = ({unquote(action[kind]["path"]) for action in actions if kind in action} for kind in ("add", "remove"))
    return added, removed


def _force(log: Path, version: int, *, durable: bool) -> None:
    """Force a checkpoint to disk before what it replaces goes."""
    if durable:
        for path in (_checkpoint(log, version), log / "_last_checkpoint"):
            durability.sync_if_there(path)
        durability.sync(log)


def _before(log: Path, version: int) -> list[Path]:
    """Return what a checkpoint makes needless, the oldest entries first, then older checkpoints."""
    entries = [_entry(log, number) for number in sorted(_versions(log, _ENTRY)) if number < version]
    return entries + [_checkpoint(log, number) for number in sorted(_versions(log, _CHECKPOINT)) if number < version]


def _temporary(log: Path) -> Iterator[Path]:
    """Yield what killed writers have left."""
    for path in log.iterdir():
        if _TEMPORARY.fullmatch(path.name) and time.time() - _age_mark(path) > _SAFE_AGE:
            yield path


def _age_mark(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _changed(log: Path, version: int) -> float:
    return _age_mark(_entry(log, version))


def _versions(log: Path, pattern: re.Pattern[str]) -> set[int]:
    return {int(match[1]) for path in log.iterdir() if (match := pattern.fullmatch(path.name))}


def _removed(path: Path) -> int:
    """Remove a file and return its size; 0 when another maintainer was faster."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
