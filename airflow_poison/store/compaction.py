"""Compaction: many small files become one, with the same rows, in a commit that changes nothing anybody reads.

Messages: only unclaimed files of one sub-queue and move count that follow each other. Nothing that lives between them in the order of lookup ids
is jumped over, be it claimed, large or of another move count: else the order of the queue would change. Files of ``retry`` and ``postponed`` fall
due as a whole, so only equal due times are joined. The outbox is left alone: the path of its files is the key under which they are sent on.

Events: whole versions that follow each other. Each row then says which file it was in, since that is its place in history.

Cleaning: remove files that no version within the retention needs and files left by killed verbs; keep files that a verb may still commit.

The rule that makes this safe beside senders, passes and other cleaners, stopped and woken ones too: **each try of a commit gives the files that it
adds new names after it has loaded the version that it builds on** (``data_files.renamed``, ``stage.HolderFolder``). A cleaner lists names first,
commits a fence, and looks at a version after it. A name in its list was there before the fence; a try that adds it has loaded an older version; so
its commit came before the fence, and the name is in the version that the cleaner looks at, or it never comes. No clock has a part in this.

Only outcomes of a pass have fixed names, those in its manifest. Manifests are read between listing and fence: one that has gone by then belongs
to a pass that has ended, before the fence.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.dialogs.as_rows import newest
from airflow_poison.store import data_files, history, stage
from airflow_poison.store.data_files import STAGE, WAITING, event_versions, joined_prefix
from airflow_poison.store.disk import Folder, Found, look
from airflow_poison.store.files import Cleaned, Commit, Compacted, DataFile
from airflow_poison.values.errors import ConservationError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa
from airflow_poison.values.schema import CONVERSATION, EVENT, SubQueue

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import Table, View

    Run = tuple[DataFile, ...]

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
    :param named: files that history events refer to.
    :param stages: folders of living claims.
    :param removals: when files were removed from the table, in seconds since 1970, as far as the log knows.
    :param since: the beginning of the retention.
    """

    live: frozenset[str]
    staged: frozenset[str]
    named: frozenset[str]
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
        return "kept_history" if file.path in self.named else "expired"

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
        live=frozenset(view.live) | view.snapshot.claimed_paths,
        staged=staged,
        named=frozenset(history.named_files(table.folder, [file for file in view.live.values() if file.sub_queue == EVENT])),
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


MOST_ROWS = 100_000
MOST_BYTES = 32 * 1024 * 1024
_MESSAGES = tuple(place.value for place in SubQueue)


def compact(table: Table, *, min_files: int, sub_queues: Sequence[str] = (*_MESSAGES, EVENT)) -> Compacted:
    """Join small unclaimed files that follow each other, of messages and of events, where at least ``min_files`` of them do.

    Those that others claim or remove meanwhile are left out. Raises ConservationError (nothing joined), TableChangedError.
    """
    done = Compacted()
    view = table.view()
    for sub_queue in sub_queues:
        for run in _runs(view, sub_queue, min_files):
            done = done.plus(_join(table, run))
    return done


def _runs(view: View, sub_queue: str, min_files: int) -> Iterator[Run]:
    for alike in _neighbours(view, sub_queue):
        for run in _portions(alike):
            kept = _without_large_head(run)
            if len(kept) >= max(2, min_files):
                yield kept


def _neighbours(view: View, sub_queue: str) -> Iterator[Run]:
    ordered = _in_order(view, sub_queue)
    claimed = view.snapshot.claimed_paths
    for kind, group in groupby(ordered, key=lambda file: None if file.path in claimed else _kind(file)):
        if kind is not None:
            yield tuple(group)


def _in_order(view: View, sub_queue: str) -> list[DataFile]:
    """Return all live files of a sub-queue, claimed or not: messages by lookup id, events by their place in history."""
    found = [file for file in view.live.values() if file.sub_queue == sub_queue]
    if sub_queue == EVENT:
        return sorted(found, key=lambda file: file.path)
    return sorted(found, key=lambda file: (file.min_lookup_id, file.path))


def _kind(file: DataFile) -> tuple[object, ...]:
    if file.sub_queue == EVENT:
        return (EVENT,)
    due = (file.min_due_at, file.max_due_at) if file.sub_queue in WAITING else None
    return (file.move_count, file.max_priority, due)


def _portions(alike: Run) -> Iterator[Run]:
    """Cut neighbours where one file would become too large. Events of one version stay together."""
    portion: list[DataFile] = []
    rows = size = 0
    for together in _units(alike):
        more_rows, more_size = sum(file.rows for file in together), sum(file.size for file in together)
        if portion and (rows + more_rows > MOST_ROWS or size + more_size > MOST_BYTES):
            yield tuple(portion)
            portion, rows, size = [], 0, 0
        portion += together
        rows, size = rows + more_rows, size + more_size
    yield tuple(portion)


def _units(alike: Run) -> Iterator[list[DataFile]]:
    """Yield files that go together: one by one, or all event files of a version."""
    if alike[0].sub_queue != EVENT:
        yield from ([file] for file in alike)
        return
    for _, together in groupby(alike, key=lambda file: event_versions(file.path)):
        yield list(together)


_LARGER = 1.1


def _without_large_head(run: Run) -> Run:
    """Leave out earlier files that are larger than all later ones together: what is joined again and again would be written again and again.

    Files of as many messages of one size differ by the length of their checksums.
    """
    start, rest = 0, sum(file.size for file in run)
    while start < len(run) - 1 and run[start].size > _LARGER * (rest - run[start].size):
        rest -= run[start].size
        start += 1
    if run[0].sub_queue == EVENT:  # no version is cut in two
        while 0 < start < len(run) and event_versions(run[start].path) == event_versions(run[start - 1].path):
            start += 1
    return run[start:]


def _join(table: Table, run: Run) -> Compacted:
    """Join one run, if it is still as it was when the commit is made."""
    try:
        written = [_written_events(table, run) if run[0].sub_queue == EVENT else _written_messages(table, run)]
    except TableChangedError:
        if _free(table.view(), run):  # a file that the log names was removed: the passes will say so, too
            raise
        return Compacted()
    reach("store.compact.after_files")
    return _put_in_place(table, run, written, lambda view: _plan(table, view, run, written))


def _put_in_place(table: Table, run: Sequence[DataFile], written: list[DataFile], plan: Callable[[View], tuple[Commit | None, bool]]) -> Compacted:
    if not table.change(plan):  # the file stays when this raises: the commit may have happened
        table.discard(written)
        return Compacted()
    return Compacted(files=len(run), into=len(written), rows=sum(file.rows for file in run), size=sum(file.size for file in run))


def _plan(table: Table, view: View, run: Run, written: list[DataFile]) -> tuple[Commit | None, bool]:
    if not _free(view, run):
        return None, False
    written[:] = [data_files.renamed(table.folder, file, prefix=_prefix(run)) for file in written]
    return Commit("compact", add=tuple(written), remove=run, data_change=False), True


def _free(view: View, run: Run) -> bool:
    """Whether the files still live, unclaimed, with nothing between them: a message may have come back from ``retry`` into a gap."""
    ordered = [file.path for file in _in_order(view, run[0].sub_queue)]
    if run[0].path not in view.live:
        return False
    first = ordered.index(run[0].path)
    return ordered[first : first + len(run)] == [file.path for file in run] and view.snapshot.claimed_paths.isdisjoint(file.path for file in run)


def _prefix(run: Run) -> str:
    if run[0].sub_queue != EVENT:
        return ""
    return joined_prefix(event_versions(run[0].path)[0], event_versions(run[-1].path)[1])


def _written_messages(table: Table, run: Run) -> DataFile:
    table.bring(run)
    rows = pa.concat_tables([data_files.read(table.folder, file) for file in run]).sort_by([("lookup_id", "ascending")])
    _check(table, run, rows, distinct=len(rows.column("lookup_id").unique()))
    return data_files.write_new(table.folder, run[0].sub_queue, run[0].move_count, rows)


def _written_events(table: Table, run: Run) -> DataFile:
    rows = history.joined(table.folder, run)
    _check(table, run, rows, distinct=rows.num_rows)
    return data_files.write_new(table.folder, EVENT, 0, rows, _prefix(run))


def _check(table: Table, run: Run, rows: pa.Table, *, distinct: int) -> None:
    expected = sum(file.rows for file in run)
    if not expected == rows.num_rows == distinct:
        message = (
            f"{len(run)} files of queue {table.name!r} from {run[0].path} on hold {rows.num_rows} rows, {distinct} of them different, where the log "
            f"says {expected}. Nothing was joined. Look at the table with 'airflow poison check'."
        )
        raise ConservationError(message)


# Conversation endpoints -----------------------------------------------------------------------------------------------


_SMALL_CONVERSATIONS = 1024 * 1024  # bytes


def merge_conversations(table: Table, keep: Callable[[pa.Table], pa.Table], *, min_files: int) -> Compacted:
    """Join the files of conversation endpoints where there are many; large ones only when the others together have become as large.

    Each change of an endpoint adds a version, the highest one of a handle counts, and a merge removes the others. It takes no notice of what others
    add meanwhile: their versions are higher, and lie in files of their own. What is to be forgotten goes only with a merge of all files: else an
    older version in another file would count again.

    :param keep: gets the rows that count, a row for each endpoint, and returns the ones that stay. Asked only when all files are joined.
    Raises ConservationError when it returns others; nothing has changed then.
    """
    known = table.view().snapshot.conversations
    run = _worth_joining(known)
    if len(run) < max(2, min_files):
        return Compacted()
    try:
        rows = _joined(table, run)
    except TableChangedError:
        if _there(table.view(), run):  # a file that the log names was removed
            raise
        return Compacted()
    kept = _kept(table, rows, keep(rows)) if len(run) == len(known) else rows
    written = [data_files.write_new(table.folder, CONVERSATION, 0, kept)] if kept.num_rows else []
    reach("store.merge.after_files")
    return _put_in_place(table, run, written, lambda view: _merge_plan(table, view, run, written))


def _worth_joining(known: Sequence[DataFile]) -> list[DataFile]:
    """Leave out large files that are larger than all smaller ones together: else they would be written again and again."""
    run = sorted(known, key=lambda file: file.size)
    while run and run[-1].size > max(_SMALL_CONVERSATIONS, sum(file.size for file in run[:-1])):
        run.pop()
    return run


def _joined(table: Table, run: Sequence[DataFile]) -> pa.Table:
    table.bring(run)
    return newest(pa.concat_tables([data_files.read(table.folder, file) for file in run]))


def _kept(table: Table, rows: pa.Table, kept: pa.Table) -> pa.Table:
    """Return the rows that stay. Raises ConservationError when they are not among those that there are."""
    before, after = (list(zip(each["conversation_id"].to_pylist(), each["lookup_id"].to_pylist(), strict=True)) for each in (rows, kept))
    if not set(after) <= set(before) or len(set(after)) < len(after):
        unknown = sorted(set(after) - set(before))[:1] or "one of them twice"
        message = f"The conversation endpoints of queue {table.name!r} were to be merged, and others than there are were to stay: {unknown}."
        raise ConservationError(message + " Nothing was changed.")
    return kept


def _merge_plan(table: Table, view: View, run: Sequence[DataFile], written: list[DataFile]) -> tuple[Commit | None, bool]:
    if not _there(view, run):
        return None, False
    written[:] = [data_files.renamed(table.folder, file) for file in written]
    return Commit("merge", add=tuple(written), remove=[view.live[file.path] for file in run]), True


def _there(view: View, run: Sequence[DataFile]) -> bool:
    return all(file.path in view.live for file in run)
