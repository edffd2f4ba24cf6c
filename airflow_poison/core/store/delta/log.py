"""The Delta log of one table: load the newest version, commit the next one by compare-and-swap.

``max_commit_retries=0``, always: delta-rs's own retries accept removes that went stale meanwhile, and messages come twice. Whoever
calls ``commit`` looks at the new version and decides again.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.core.errors import StoreUnreachableError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import disk
from airflow_poison.core.store.delta import checkpoints, entries, past, repair
from airflow_poison.core.store.delta.entries import LOG
from airflow_poison.core.store.delta.state import PARTITION_BY, DeltaState, EntryMark, Reader, actions_of, first_line, transactions_of
from airflow_poison.core.store.disk import why

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from datetime import timedelta

    from airflow_poison.core.store.files import Shortened
    from airflow_poison.core.store.log import Commit, State

log = logging.getLogger(__name__)
CHECKPOINT_INTERVAL = 20  # versions; without checkpoints an open becomes slow (47 ms at 3,000 versions)


class DeltaLog:
    """The log of the table at ``root``.

    :param durable: force each commit to disk before it is acknowledged (delta-rs itself never does).
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        self._reader = Reader(root)
        self._known = -1  # every version up to this one was looked at

    def load(self) -> DeltaState:
        """Return the newest version. Raises TableChangedError when it cannot be read, and when somebody else has changed the table since ours."""
        known = self._known  # before the look: other threads go on meanwhile
        state = self._reader.newest()
        if state.version != known:
            self._refuse_foreign(state, known)
        return state

    def newest(self) -> DeltaState:
        """Return the newest version that counts, whoever made it: see ``Reader.newest``. Writes nothing."""
        return self._reader.newest()

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version's entry from another one in its place, while no later one is there. Reads nothing."""
        return None if self._json(version + 1).exists() else EntryMark.of(self._root, version)

    def set_aside(self) -> None:
        """Take out of the log what does not count: see ``repair.set_aside``. Raises OSError."""
        for name in repair.set_aside(self._root, durable=self._durable):
            log.warning("%s was taken out of the log of %s: it was cut short and never acknowledged. A copy is in %s", name, self._root, repair.ASIDE)

    def commit(self, base: State, commit: Commit) -> bool:
        """Make the version after ``base``; False when somebody else has made it."""
        from deltalake.exceptions import DeltaError

        assert isinstance(base, DeltaState)
        self._check_present(commit)
        if max(entries.read_marks(self._root), default=-1) > base.version:
            return False  # also where somebody has deleted the entry: its place must not be taken
        if base.damaged:
            self.set_aside()
        if self._durable:
            disk.sync_files(self._root, [file.path for file in commit.add])
        self._acknowledge(base.version)  # what a commit rests on can be put back, too
        mark = uuid4().hex
        reach(f"store.{commit.operation}.before_commit")
        try:
            self._write(base, commit, mark)
        except (DeltaError, OSError) as error:
            if not self._is_ours(base.version + 1, mark, error):
                return False
        self._check_not_shortened(base)
        self._acknowledge(base.version + 1, mark)
        self._known = max(self._known, base.version + 1)
        reach(f"store.{commit.operation}.after_commit")
        self._checkpoint(base.version + 1)
        return True

    def confirm(self, state: State) -> None:
        """Force the entry of a version to disk, and the list of all entries."""
        self._acknowledge(state.version)

    def _acknowledge(self, version: int, mark: str = "") -> None:
        """Force the log up to a version to disk, and mark what has no mark yet: from now on it counts, whatever becomes of its entries.

        Writers of earlier entries may have died before they marked them, or be strangers, who mark and sync nothing.

        :param mark: of the commit that has to be there; empty: whoever made it.
        """
        marks = entries.read_marks(self._root)
        last = max(marks, default=-1)
        fresh = range(max(last, version - entries.KEPT) + 1, version + 1)
        if self._durable and fresh:
            for number in fresh:
                disk.sync_if_there(self._json(number))
            disk.sync(Path(self._root, LOG))
        for number in fresh:
            content = entries.read_entry(self._json(number))
            if content is not None and entries.is_complete(content):
                entries.note(self._root, number, content, durable=self._durable)
            elif content is not None or marks:  # without any, a checkpoint may stand for what is not there
                raise self._replaced(number)
        entry = entries.read_entry(self._json(version))
        known = marks.get(version)
        if (mark and (entry is None or mark.encode() not in entry)) or (known is not None and entry is not None and not known.is_of(entry)):
            raise self._replaced(version)

    def _replaced(self, version: int) -> TableChangedError:
        return TableChangedError(
            f"The entry of version {version} in the log of the queue table {self._root} is not what was written: somebody has changed, removed or "
            "replaced it at this moment. Find who changes files there; look at the table with 'airflow poison check', and run the task again."
        )

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details committed with a version, none for a commit of somebody else or a damaged one; None when its file was cleaned up."""
        info = entries.commit_info(self._json(version))
        return None if info is None else entries.details_of(info) or {}

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
        if base.has_entry and not self._json(base.version).exists():
            message = (
                f"The log of the queue table {self._root} was shortened beyond version {base.version} while this process stood still: whether "
                f"its change counts cannot be told. Run the task again: what was done before is not done twice. Keep the retention of maintenance "
                "longer than any process may stand still."
            )
            raise TableChangedError(message)

    def _refuse_foreign(self, state: DeltaState, known: int) -> None:
        """Raise TableChangedError when the table differs from what the package has last left: see ``past``. Costs one short read."""
        if state.version < known:
            message = (
                f"The queue table {self._root} was at version {known} and is at {state.version} now: somebody put an older copy there, or "
                f"removed commits from {LOG}. Nothing was committed by this verb. Put the newer one back from a backup; or look at what is there "
                "with 'airflow poison check', and run the task again."
            )
            raise TableChangedError(message)
        if state.version > known:
            hands = past.find_foreign(self._root, state.version, known)
            if hands is not None and (what := self._foreign_changes(hands, state)):
                raise TableChangedError(past.foreign_told(self._root, hands, what))
            self._known = max(self._known, state.version)

    def _foreign_changes(self, hands: past.ForeignHands, state: DeltaState) -> Sequence[str]:
        """Return what somebody else has changed; nothing where it was undone or means nothing."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if hands.last_own is None:
            return ["changed what cannot be told any more"]
        try:
            return list(past.foreign_changes(DeltaTable(self._root, version=hands.last_own), state.table))
        except DeltaError as error:
            return [f"changed what cannot be told any more ({first_line(error)})"]

    def _json(self, version: int) -> Path:
        return entries.entry_path(self._root, version)

    def _check_present(self, commit: Commit) -> None:
        """A version must never name a file that is not there (a vacuum by somebody else may just have removed it)."""
        for file in commit.add:
            if not Path(self._root, file.path).is_file():
                message = (
                    f"{file.path} was to become part of the queue table {self._root} and has been removed by somebody else just before. "
                    "Nothing was committed. Find what deletes files there (VACUUM with a short retention, a cleaning job) and stop that."
                )
                raise TableChangedError(message)

    def _write(self, base: DeltaState, commit: Commit, mark: str) -> None:
        from deltalake.transaction import CommitProperties, PostCommitHookProperties

        actions_in_it = len(commit.add) + len(commit.remove) + len(commit.numbers) + len(commit.lasting)
        details = {**commit.details, "operation": commit.operation, "mark": mark, "actions": actions_in_it}
        base.table.create_write_transaction(
            actions_of(commit),
            "append",
            base.table.schema(),
            partition_by=PARTITION_BY,
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=transactions_of(commit),
                custom_metadata={"userMetadata": json.dumps(details)},
            ),
            # What may fail must not come between a commit and its acknowledgement.
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )

    def _is_ours(self, version: int, mark: str, error: Exception) -> bool:
        """Tell a lost race from a disk that cannot be written; a commit that failed after it was made counts as made."""
        found = self.details(version)
        if found is None:
            message = f"The log of the queue table {self._root} cannot be written, so nothing was committed: {why(error)}."
            raise StoreUnreachableError(message) from error
        return found.get("mark") == mark

    def _checkpoint(self, version: int) -> None:
        """Keep opening cheap. Only a shortcut for readers: the commit counts without it, and a damaged one is set aside by ``repair``."""
        if version % CHECKPOINT_INTERVAL:
            return
        from deltalake.exceptions import DeltaError

        try:
            checkpoints.make(self._root, version, durable=self._durable)
        except (DeltaError, OSError) as error:
            log.warning(
                "The checkpoint of version %d of %s could not be written; opening stays slower until the next: %s", version, self._root, error
            )
