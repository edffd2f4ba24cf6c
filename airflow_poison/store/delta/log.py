"""The Delta log of one table: load the newest version, commit the next one by compare-and-swap.

An entry is created and never replaced, and not by delta-rs: its retries accept removes that went stale meanwhile, and messages come twice. The
caller of ``commit`` looks at the new version and decides again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.store import disk
from airflow_poison.store.delta import checkpoints, entries, log_damage
from airflow_poison.store.delta.entries import LOG, DeltaState, EntryFingerprint, Loaded, Reader, acknowledge, entry_path, files_of
from airflow_poison.store.delta.entry import details_of, entry_of
from airflow_poison.store.disk import why
from airflow_poison.store.log import SEQUENCE
from airflow_poison.values.errors import CheckpointDamagedError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from deltalake import DeltaTable

    from airflow_poison.store.files import DataFile, Shortened
    from airflow_poison.store.log import Commit, LogState

log = logging.getLogger(__name__)
_warned: set[tuple[str, int]] = set()
PARTITION_BY = ["sub_queue", "move_count"]
CHECKPOINT_INTERVAL = 20  # versions; without checkpoints an open becomes slow (47 ms at 3,000 versions)


class DeltaLog:
    """The log of the table at ``root``.

    :param durable: force each commit to disk before it is acknowledged (delta-rs itself never does).
    :param uri: what errors call the table; empty: ``root``.
    """

    def __init__(self, root: str, *, durable: bool, uri: str = "") -> None:
        self._root, self._uri = root, uri or root
        self._durable = durable
        self._reader = Reader(root)
        self._known = -1  # every version up to this one was looked at

    def identity(self) -> str:
        """Return the id of the Delta table."""
        return str(self.newest().table.metadata().id)

    def load(self) -> DeltaState:
        """Return the newest version. Raises TableChangedError when it cannot be read, and when somebody else has changed the table since ours."""
        known = self._known  # before the look: other threads go on meanwhile
        state = self.newest()
        if state.version != known:
            self._refuse_foreign(state, known)
        return state

    def newest(self) -> DeltaState:
        """Return the newest version that counts, whoever made it. Writes nothing.

        What a loss of power left of later commits, which nobody was told of, does not count; the next commit sets it aside.
        Raises TableChangedError when acknowledged commits are damaged or gone, CheckpointDamagedError when only a checkpoint is.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        cause = ""
        for _ in range(entries.READS):
            marks = entries.read_marks(self._root)  # before the look: what is marked then is there
            try:
                state = self._reader.read(marks)
                if state is not None:
                    return state
            except (TableNotFoundError, DeltaError) as error:
                cause = _first_line(error)
            except OSError as error:
                why_not = " ".join(str(error).split())
                message = (
                    f"The log of the queue table {self._uri} cannot be read: {why_not}. Check that the folder is mounted and that this user may "
                    "read and write all of it, then run the task again; nothing was committed."
                )
                raise StoreUnreachableError(message) from error
            found = log_damage.diagnose(self._root)
            if found.harmless:
                with suppress(DeltaError):
                    return self._before_what_does_not_count(found)
            if found.lost or found.unmarked:
                raise TableChangedError(log_damage.told(self._uri, found, cause))
        error_of = CheckpointDamagedError if found.shortcuts else TableChangedError
        raise error_of(log_damage.told(self._uri, found, cause))

    def _before_what_does_not_count(self, found: log_damage.Diagnosis) -> DeltaState:
        """Return the last version that counts. Raises DeltaError."""
        from deltalake import DeltaTable

        if (self._root, found.version) not in _warned:
            _warned.add((self._root, found.version))
            names = ", ".join(path.name for path in (*found.torn, *found.shortcuts))
            log.warning("%s in the log of %s is cut short and was never acknowledged: it does not count", names, self._uri)
        return DeltaState(Loaded(DeltaTable(self._root, version=found.version), EntryFingerprint.of(self._root, found.version)), damaged=True)

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version's entry from another one in its place, while no later one is there. Reads nothing."""
        return None if entry_path(self._root, version + 1).exists() else EntryFingerprint.of(self._root, version)

    def set_aside(self) -> None:
        """Take out of the log what does not count: see ``log_damage.set_aside``. Raises OSError."""
        for name in log_damage.set_aside(self._root, durable=self._durable):
            log.warning(
                "%s was taken out of the log of %s: it was cut short and never acknowledged. A copy is in %s", name, self._uri, log_damage.ASIDE
            )

    def commit(self, base: LogState, commit: Commit) -> bool:
        """Make the version after ``base``; False when somebody else has made it."""
        assert isinstance(base, DeltaState)
        self._check_present(commit)
        if max(entries.read_marks(self._root), default=-1) > base.version:
            return False  # also where somebody has deleted the entry: its place must not be taken
        if base.damaged:
            self.set_aside()
        if self._durable:
            disk.sync_files(self._root, [file.path for file in commit.add])
        acknowledge(self._root, base.version, durable=self._durable)  # what a commit rests on can be put back, too
        mark = uuid4().hex
        reach(f"store.{commit.operation}.before_commit")
        self._check_not_shortened(base)
        try:
            disk.create(entry_path(self._root, base.version + 1), entry_of(commit, mark))
        except OSError as error:
            if not self._is_ours(base.version + 1, mark, error):
                return False
        self._check_not_shortened(base)
        acknowledge(self._root, base.version + 1, mark, durable=self._durable)
        self._known = max(self._known, base.version + 1)
        reach(f"store.{commit.operation}.after_commit")
        self._checkpoint(base.version + 1)
        return True

    def confirm(self, state: LogState) -> None:
        """Force the entry of a version to disk, and the list of all entries."""
        acknowledge(self._root, state.version, durable=self._durable)

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        """Return the live files of an earlier version; None when its entries were cleaned up."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return entries.files_of(DeltaTable(self._root, version=version))
        except DeltaError:
            return None

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details committed with a version, none for a commit of somebody else or a damaged one; None when its file was cleaned up."""
        info = entries.commit_info(entry_path(self._root, version))
        return None if info is None else details_of(info) or {}

    def removals(self) -> Mapping[str, float]:
        """Return when files were removed from the table, as far back as the log goes."""
        return checkpoints.removals(self._root)

    def shorten(self, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what is needed for no version within the retention. Raises TableChangedError."""
        state = self.newest()
        if state.damaged:
            self.set_aside()
        return checkpoints.shorten(self._root, state.version, retention, durable=self._durable)

    def _check_not_shortened(self, base: DeltaState) -> None:
        """Refuse a commit whose place in the log had been cleaned up before it was made: nobody would ever see it.

        Entries go from the oldest on, so as long as that of ``base`` is there, the next one is ours or was taken. Only a process that stood still
        for longer than the retention can come too late.
        """
        if base.has_entry and not entry_path(self._root, base.version).exists() and Path(self._root, LOG).is_dir():
            raise TableChangedError(shortened_told(self._uri, base.version))

    def _refuse_foreign(self, state: DeltaState, known: int) -> None:
        """Raise TableChangedError when the table differs from what the package has last left: see ``find_foreign``. Costs one short read."""
        if state.version < known:
            message = (
                f"The queue table {self._uri} was at version {known} and is at {state.version} now: somebody put an older copy there, or "
                f"removed commits from {LOG}. Nothing was committed by this verb. Put the newer one back from a backup; or look at what is there "
                "with 'airflow poison check', and run the task again."
            )
            raise TableChangedError(message)
        if state.version > known:
            hands = find_foreign(self._root, state.version, known)
            if hands is not None and (what := self._foreign_changes(hands, state)):
                raise TableChangedError(foreign_told(self._uri, hands, what))
            self._known = max(self._known, state.version)

    def _foreign_changes(self, hands: ForeignHands, state: DeltaState) -> Sequence[str]:
        """Return what somebody else has changed; nothing where it was undone or means nothing."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if hands.last_own is None:
            return ["changed what cannot be told any more"]
        try:
            return list(foreign_changes(DeltaTable(self._root, version=hands.last_own), state.table))
        except DeltaError as error:
            return [f"changed what cannot be told any more ({_first_line(error)})"]

    def _check_present(self, commit: Commit) -> None:
        """A version must never name a file that is not there (a vacuum by somebody else may just have removed it)."""
        for file in commit.add:
            if not Path(self._root, file.path).is_file():
                message = (
                    f"{file.path} was to become part of the queue table {self._uri} and has been removed by somebody else just before. "
                    "Nothing was committed. Find what deletes files there (VACUUM with a short retention, a cleaning job) and stop that."
                )
                raise TableChangedError(message)

    def _is_ours(self, version: int, mark: str, error: Exception) -> bool:
        """Tell a lost race from a disk that cannot be written; a commit that failed after it was made (NFS sends a request twice) counts as made."""
        found = self.details(version)
        if found is None:
            message = f"The log of the queue table {self._uri} cannot be written, so nothing was committed: {why(error)}."
            raise StoreUnreachableError(message) from error
        return found.get("mark") == mark

    def _checkpoint(self, version: int) -> None:
        """Keep opening cheap. Only a shortcut for readers: the commit counts without it, and a damaged one is set aside by ``repair``."""
        if version % CHECKPOINT_INTERVAL:
            return
        from deltalake.exceptions import DeltaError

        try:
            checkpoints.make(self._root, version, durable=self._durable)
        except (DeltaError, TableChangedError, OSError) as error:
            log.warning("The checkpoint of version %d of %s could not be written; opening stays slower until the next: %s", version, self._uri, error)


def shortened_told(uri: str, base: int) -> str:
    """Return the words for a commit that came when the log had been cut behind the version that it was built on."""
    return (
        f"The log of the queue table {uri} was shortened beyond version {base} while this process stood still: whether its change counts cannot be "
        "told. Run the task again: what was done before is not done twice. Keep the retention of maintenance longer than any process may stand still."
    )


def _first_line(error: Exception) -> str:
    """Return what an error of delta-rs says first, without a full stop."""
    return str(error).strip().partition("\n")[0].rstrip(".")


# Foreign commits ------------------------------------------------------------------------------------------------------
#
# A commit of the package carries its mark, and whoever made it had looked at every version before. So the newest version alone tells whether
# somebody else has written there: it is ours, or we walk back to the last one that is. What strangers did and undid again (a RESTORE of that
# version), and what changes nothing (the notes of a VACUUM, a description), is no reason to stop.


@dataclass(frozen=True, slots=True)
class ForeignHands:
    """What somebody else has committed since the last version of ours.

    :param commits: theirs in words, oldest first: version, operation (``DELETE``, ``OPTIMIZE``, ``RESTORE``), what the writer says of itself.
    :param last_own: the last version before them; None when the log keeps it no longer.
    """

    commits: Sequence[str]
    last_own: int | None


def find_foreign(root: str, version: int, trusted: int) -> ForeignHands | None:
    """Return who else has committed after ``trusted`` and up to ``version`` since our last commit; None: nobody.

    A table of which no version is ours yet is one that is being made.
    """
    commits: list[str] = []
    for number in range(version, trusted, -1):
        info = entries.commit_info(entry_path(root, number))
        if info is None:  # cleaned up behind a checkpoint
            return ForeignHands(commits[::-1], None) if commits else None
        if details_of(info) is not None:
            return ForeignHands(commits[::-1], number) if commits else None
        words = (str(info.get("operation", "")), str(info.get("engineInfo", "")))
        commits.append(f"version {number} ({', '.join(filter(None, words))})")
    return ForeignHands(commits[::-1], trusted) if commits and trusted >= 0 else None


def foreign_changes(before: DeltaTable, after: DeltaTable) -> Iterator[str]:
    """Yield what differs between two versions, in words; nothing when they are equal for us."""
    then, now = set(files_of(before)), set(files_of(after))
    for verb, found in (("removed", then - now), ("added", now - then)):
        for place in sorted({file.sub_queue for file in found}):
            here = [file for file in found if file.sub_queue == place]
            yield f"{verb} {len(here)} file(s) with {sum(file.rows for file in here)} row(s) of {place!r}, such as {min(file.path for file in here)}"
    if before.schema().to_json() != after.schema().to_json() or before.metadata().partition_columns != after.metadata().partition_columns:
        yield "changed the columns"
    old, new = before.metadata().configuration, after.metadata().configuration
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        yield f"changed the table's properties {', '.join(changed)}"
    if before.protocol() != after.protocol():
        yield "changed the protocol"
    if before.transaction_version(SEQUENCE) != after.transaction_version(SEQUENCE):
        yield "changed the last lookup id"


def foreign_told(root: str, hands: ForeignHands, what: Sequence[str]) -> str:
    """Return the words for what somebody else did."""
    who = ", ".join(hands.commits[:3]) + (", …" if len(hands.commits) > 3 else "")  # noqa: PLR2004
    since = "an unknown version" if hands.last_own is None else f"version {hands.last_own}"
    undo = "" if hands.last_own is None else f"RESTORE the table to version {hands.last_own}, or let 'airflow poison check --repair' do it; or "
    return (
        f"Somebody else has committed to the queue table {root}: {who}. Expected: commits of airflow-poison alone. Since {since}, the last of ours, "
        f"that {'; '.join(what)}. Nothing was committed by this verb. Find who writes there and stop that. Then {undo}"
        "go on with the table as it is: 'airflow poison check --accept'."
    )
