"""Cleaning: remove files that no version within the retention needs and files left by killed verbs; keep files that a verb may still commit.

The rule that makes this safe beside senders, passes and other cleaners, stopped and woken ones too: **each try of a commit gives the files that it
adds new names after it has loaded the version that it builds on** (``files.renamed``, ``stage.Attempt``). A cleaner lists names first, commits a
fence, and looks at a version after it. A name in its list was there before the fence; a try that adds it has loaded an older version; so its
commit came before the fence, and the name is in the version that the cleaner looks at, or it never comes. No clock has a part in this.

Only outcomes of a pass have fixed names, those in its manifest. Manifests are read between listing and fence: one that has gone by then belongs
to a pass that has ended, before the fence.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.store.files import Cleaned
from airflow_poison.store.folder import Found, look
from airflow_poison.store.log import Commit
from airflow_poison.store.table import history, stage
from airflow_poison.store.table.files import STAGE
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from airflow_poison.store.folder import Folder
    from airflow_poison.store.queue_table import Table, View

FENCE = "fence"
_SENDS = "send-"
_GONE = ".gone-"


@dataclass(frozen=True, slots=True)
class _Listing:
    """What lay in the folder before the fence."""

    files: tuple[Found, ...]
    temporary: tuple[Found, ...]
    stages: tuple[Found, ...]

    @classmethod
    def of(cls, folder: Folder) -> _Listing:
        files = list(folder.data_files())
        return cls(
            files=tuple(file for file in files if file.name.endswith(".parquet") and not file.name.startswith(".")),
            temporary=tuple(file for file in files if file.name.startswith(".")),
            stages=tuple({found.path: found for found in (*folder.stages(), *_stages(folder.root))}.values()),
        )


@dataclass(frozen=True, slots=True)
class _Needed:
    """What must stay, and why.

    :param live: in the newest version, or claimed.
    :param staged: outcomes of passes that will be finished.
    :param told: files that history events refer to.
    :param stages: folders of living claims.
    :param removals: when files were removed from the table, in seconds since 1970, as far as the log knows.
    :param since: the beginning of the retention.
    """

    live: frozenset[str]
    staged: frozenset[str]
    told: frozenset[str]
    stages: frozenset[str]
    removals: Mapping[str, float]
    since: float
    safe_age: float

    def verdict(self, file: Found) -> str:
        """Return the name of the number of ``Cleaned`` that a data file counts in; empty for a living one."""
        removed = self.removals.get(file.path)
        if file.path in self.live:
            return ""
        if file.path in self.staged:
            return "kept_staged"
        if removed is None:
            return "kept_young" if file.age < self.safe_age else "orphans"
        if removed >= self.since:
            return "kept_retention"
        return "kept_told" if file.path in self.told else "expired"

    def verdict_of_stage(self, folder: Found) -> str:
        """Return the same of a folder of the stage. A send's has no claim: its age decides."""
        if folder.path in self.stages:
            return ""
        if folder.path.startswith(f"{STAGE}/{_SENDS}") and folder.age < self.safe_age:
            return "kept_young"
        return "stages"


_REMOVED = frozenset({"expired", "orphans", "stages", "temporary"})


def clean(table: Table, *, retention: timedelta, safe_age: timedelta) -> Cleaned:
    """Remove what no version within the retention needs, and what killed verbs have left. Both spans are of the machine's time.

    Two cleaners at once remove the same. Files that are not ours by their names are left alone.

    :param safe_age: minimum age before unreferenced files, temporary files and files of sends are removed; a longer send fails.
    """
    listing = _Listing.of(table.folder)
    reach("store.clean.after_listing")
    staged = frozenset(stage.final_paths(table.root))
    needed = _needed(table, table.view(), staged, retention, safe_age)
    if not any(verdict in _REMOVED for _, verdict in _judged(listing, needed)):
        return _counted(listing, needed)
    reach("store.clean.before_fence")
    table.change(lambda view: (Commit(FENCE, numbers={FENCE: view.state.version + 1}), None))
    needed = _needed(table, table.view(), staged, retention, safe_age)
    for found, verdict in _judged(listing, needed):
        if verdict in _REMOVED:
            reach("store.clean.before_remove")
            _remove(table.folder, found)
    reach("store.clean.after_removes")
    return _counted(listing, needed)


def _needed(table: Table, view: View, staged: frozenset[str], retention: timedelta, safe_age: timedelta) -> _Needed:
    """Return what a version needs. The log's removals are read after it: what is removed later is still live in it."""
    attempts = ((claim.key, attempt) for claim in view.snapshot.claims for attempt in (claim.attempt, *claim.earlier))
    return _Needed(
        live=frozenset(view.live) | view.claimed,
        staged=staged,
        told=frozenset(history.named_files(table.folder, [file for file in view.live.values() if file.sub_queue == EVENT])),
        stages=frozenset(path for key, attempt in attempts for path in stage.folder_names(key, attempt)),
        removals=table.log.removals(),
        since=time.time() - retention.total_seconds(),
        safe_age=safe_age.total_seconds(),
    )


def _judged(listing: _Listing, needed: _Needed) -> Iterator[tuple[Found, str]]:
    yield from ((file, needed.verdict(file)) for file in listing.files)
    yield from ((file, "kept_young" if file.age < needed.safe_age else "temporary") for file in listing.temporary)
    yield from ((folder, needed.verdict_of_stage(folder)) for folder in listing.stages)


def _counted(listing: _Listing, needed: _Needed) -> Cleaned:
    judged = list(_judged(listing, needed))
    counts = Counter(verdict for _, verdict in judged if verdict)
    return Cleaned(**counts, size=sum(found.size for found, verdict in judged if verdict in _REMOVED))


def _stages(root: str) -> Iterator[Found]:
    """Yield the stage folders of claim holders and of sends, and the folders that a killed cleaner had set aside."""
    for folder in _folders(Path(root, STAGE)):
        whole = folder.name.startswith((_SENDS, _GONE))
        found = [folder] if whole else _folders(folder)
        yield from (_tree(root, path) for path in found)
        if not whole and not found:
            with suppress(OSError):  # another process adds a file
                folder.rmdir()


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


def _tree(root: str, folder: Path) -> Found:
    """Return a folder with all that it holds; it is as young as its youngest file."""
    seen = [found for path in _below(folder) if (found := look(root, path)) is not None]
    size = sum(found.size for found in seen if not Path(root, found.path).is_dir())
    return Found(str(folder.relative_to(root)), size, min((found.age for found in seen), default=0.0))


def _below(folder: Path) -> Iterator[Path]:
    """Yield a folder and all that it holds; another cleaner may remove it meanwhile."""
    for parent, _, names in os.walk(folder):
        yield Path(parent)
        yield from (Path(parent, name) for name in names)


def _remove(folder: Folder, found: Found) -> None:
    """Remove a file or folder. A folder is first renamed, so that no reader sees part of it."""
    if not found.path.startswith(f"{STAGE}/"):
        folder.remove(found.path)
        return
    path, aside = Path(folder.root, found.path), Path(folder.root, STAGE, f"{_GONE}{uuid4().hex}")
    with suppress(FileNotFoundError):  # another cleaner, or the pass itself
        path.rename(aside)
    reach("store.clean.after_aside")
    stage.remove_tree(aside)
    folder.remove_tree(found.path)
    with suppress(OSError):  # not empty, or the stage itself
        if path.parent != Path(folder.root, STAGE):
            path.parent.rmdir()
