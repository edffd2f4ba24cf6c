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
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta import actions, checkpoints, foreign, repair, shortening
from airflow_poison.core.store.delta.state import DeltaState, EntryMark, Looks
from airflow_poison.core.store.unreachable import why

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from datetime import timedelta

    from airflow_poison.core.store.log import Commit, State
    from airflow_poison.core.store.results import Shortened

log = logging.getLogger(__name__)
LOG = "_delta_log"
_LOOKS = 4
CHECKPOINT_INTERVAL = 20  # versions; without checkpoints an open becomes slow (47 ms at 3,000 versions)


class DeltaLog:
    """The log of the table at ``root``.

    :param durable: force each commit to disk before it is acknowledged (delta-rs itself never does).
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        self._looks = Looks(root)
        self._known = -1  # every version up to this one was looked at

    def load(self) -> DeltaState:
        """Return the newest version. Raises TableChangedError when it cannot be read, and when somebody else has changed the table since ours."""
        known = self._known  # before the look: other threads go on meanwhile
        state = self.newest()
        self._refuse_foreign(state, known)
        return state

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version's entry from another one in its place, while no later one is there. Reads nothing."""
        return None if self._json(version + 1).exists() else EntryMark.of(self._root, version)

    def newest(self) -> DeltaState:
        """Return the newest version, whoever made it; a last commit that a loss of power cut short is taken away first."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        for _ in range(2):
            try:
                state = self._loaded()
            except (TableNotFoundError, DeltaError) as error:
                if not repair.repair(self._root):
                    message = f"The log of the queue table {self._root} cannot be read: {_first_line(error)}. Restore {LOG} from a backup."
                    raise TableChangedError(message) from error
                continue
            except OSError as error:
                raise StoreUnreachableError(self._unreadable(error)) from error
            if not state.is_empty or not repair.repair(self._root):
                return state
        message = f"The log of the queue table {self._root} stays unreadable after its last commit was taken away. Restore {LOG} from a backup."
        raise TableChangedError(message)

    def _unreadable(self, error: OSError) -> str:
        cause = " ".join(str(error).split())
        return (
            f"The log of the queue table {self._root} cannot be read: {cause}. Check that the folder is mounted and that this user may read and "
            "write all of it, then run the task again; nothing was committed."
        )

    def _loaded(self) -> DeltaState:
        """Load what is there now. Who cannot go on from the last look, or was slow while the log was shortened, looks again. Raises DeltaError."""
        from deltalake.exceptions import DeltaError

        for more in reversed(range(_LOOKS)):
            try:
                return self._looks.newest()
            except DeltaError:
                if not more:
                    raise
        raise AssertionError  # pragma: no cover  (the last look raises or returns)

    def commit(self, base: State, commit: Commit) -> bool:
        """Make the version after ``base``; False when somebody else has made it."""
        from deltalake.exceptions import DeltaError

        assert isinstance(base, DeltaState)
        self._check_present(commit)
        if self._durable:
            durability.sync_files(self._root, [file.path for file in commit.add])
            durability.sync_if_there(self._json(base.version))
        mark = uuid4().hex
        reach(f"store.{commit.operation}.before_commit")
        try:
            self._write(base, commit, mark)
        except (DeltaError, OSError) as error:
            if not self._is_ours(base.version + 1, mark, error):
                return False
        self._check_not_shortened(base)
        if self._durable:
            durability.sync_if_there(self._json(base.version + 1))
            durability.sync(Path(self._root, LOG))
        self._known = max(self._known, base.version + 1)
        reach(f"store.{commit.operation}.after_commit")
        self._checkpoint(base.version + 1)
        return True

    def confirm(self, state: State) -> None:
        """Force the entry of a version to disk, and the list of all entries."""
        if self._durable:
            durability.sync_if_there(self._json(state.version))
            durability.sync(Path(self._root, LOG))

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details committed with a version; None when its file was cleaned up."""
        try:
            lines = self._json(version).read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        for line in lines:
            info = json.loads(line).get("commitInfo")
            if info is not None:
                details: dict[str, object] = json.loads(info.get("userMetadata", "{}"))
                return details
        return None

    def removals(self) -> Mapping[str, float]:
        """Return when files were removed from the table, as far back as the log goes."""
        return shortening.removals(Path(self._root, LOG))

    def shorten(self, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what is needed for no version within the retention. Raises TableChangedError."""
        return shortening.shorten(self._root, self.newest().version, retention, durable=self._durable)

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
        """Raise TableChangedError when the table differs from what the package has last left: see ``foreign``. Costs one short read."""
        if state.version < known:
            message = (
                f"The queue table {self._root} was at version {known} and is at {state.version} now: somebody put an older copy there, or "
                f"removed commits from {LOG}. Nothing was committed by this verb. Put the newer one back from a backup; or look at what is there "
                "with 'airflow poison check', and run the task again."
            )
            raise TableChangedError(message)
        if state.version > known:
            hands = foreign.find(self._root, state.version, known)
            if hands is not None and (what := self._foreign_changes(hands, state)):
                raise TableChangedError(foreign.told(self._root, hands, what))
            self._known = max(self._known, state.version)

    def _foreign_changes(self, hands: foreign.ForeignHands, state: DeltaState) -> Sequence[str]:
        """Return what somebody else has changed; nothing where it was undone or means nothing."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if hands.last_own is None:
            return ["changed what cannot be told any more"]
        try:
            return foreign.changes(DeltaTable(self._root, version=hands.last_own), state.table)
        except DeltaError as error:
            return [f"changed what cannot be told any more ({_first_line(error)})"]

    def _json(self, version: int) -> Path:
        return foreign.json_path(self._root, version)

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
        from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

        details = {**commit.details, "operation": commit.operation, "mark": mark}
        numbers = [Transaction(name, number, actions.now_ms()) for name, number in commit.numbers.items()]
        lasting = [Transaction(name, number) for name, number in commit.lasting.items()]  # without a time they never expire
        base.table.create_write_transaction(
            [
                *(actions.add(file, data_change=commit.data_change) for file in commit.add),
                *(actions.remove(file, data_change=commit.data_change) for file in commit.remove),
            ],
            "append",
            base.table.schema(),
            partition_by=actions.PARTITION_BY,
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=numbers + lasting,
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
        """Keep opening cheap. Only a shortcut for readers: the commit counts without it, and a torn one is taken away by ``repair``."""
        if version % CHECKPOINT_INTERVAL:
            return
        from deltalake.exceptions import DeltaError

        try:
            checkpoints.make(self._root, version, durable=self._durable)
        except (DeltaError, OSError) as error:
            log.warning(
                "The checkpoint of version %d of %s could not be written; opening stays slower until the next: %s", version, self._root, error
            )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
