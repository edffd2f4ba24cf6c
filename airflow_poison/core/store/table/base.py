"""A table: its folder, its log, its newest snapshot, and the loop that changes it by compare-and-swap."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_poison.core.errors import StoreUnreachableError, TableChangedError
from airflow_poison.core.schema import CONVERSATION, OUTBOX, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.core.store.control import Control
from airflow_poison.core.store.files import Claim, DataFile, Snapshot
from airflow_poison.core.store.table import files, rows
from airflow_poison.core.store.table.files import CLAIM, CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_poison.core.store.log import Commit, Log, State

T = TypeVar("T")
_TRIES = 2_000
_LONGEST_PAUSE = 0.02  # seconds; a commit takes 3 to 10 ms
_WAITING = frozenset({SubQueue.RETRY.value, SubQueue.POSTPONED.value})
_MESSAGES = frozenset(place.value for place in SubQueue)


@dataclass(frozen=True, slots=True)
class View:
    """One version of a table: what its log says and what that means.

    :param live: the live files of every partition by path, as the log has them.
    :param control_row: the file of the control row.
    :param claim_rows: the files of the claims' rows by run key.
    """

    state: State
    snapshot: Snapshot
    live: dict[str, DataFile]
    control_row: DataFile
    claim_rows: dict[str, DataFile]

    @property
    def claimed(self) -> set[str]:
        """Paths that a claim holds, expired or not."""
        return {file.path for claim in self.snapshot.claims for file in claim.files}

    def claim_of(self, key: str) -> Claim | None:
        """Return the claim of a run key."""
        return next((claim for claim in self.snapshot.claims if claim.key == key), None)

    def held(self, claim: Claim) -> bool:
        """Whether this holder still has the claim. A key released and claimed anew begins again with epoch 1: its attempt differs."""
        now = self.claim_of(claim.key)
        return now is not None and (now.epoch, now.attempt) == (claim.epoch, claim.attempt)


@dataclass(slots=True)
class Table:
    """One queue table.

    :param root: its folder, absolute.
    :param durable: whether staged files and manifests are forced to disk.
    """

    name: str
    root: str
    log: Log
    durable: bool = True
    _known: dict[str, Control | Claim] = field(default_factory=dict)

    def view(self) -> View:
        """Return the newest version. Raises TableChangedError, NewerFormatError."""
        state = self.log.load()
        live = {file.path: file for file in state.files}
        controls = [file for file in live.values() if file.sub_queue == CONTROL]
        control = self._control([file.path for file in controls])
        claim_files = sorted((file for file in live.values() if file.sub_queue == CLAIM), key=lambda file: file.path)
        claims = [(self._claim(file), file) for file in claim_files]
        snapshot = Snapshot(
            version=state.version,
            control=control,
            files=in_queue_order(_as_seen(file) for file in live.values() if file.sub_queue in _MESSAGES),
            claims=tuple(claim for claim, _ in claims),
            outbox=in_queue_order(file for file in live.values() if file.sub_queue == OUTBOX),
            conversations=_by_name(file for file in live.values() if file.sub_queue == CONVERSATION),
            transmissions=_by_name(file for file in live.values() if file.sub_queue == TRANSMISSION_QUEUE),
        )
        self._forget_others(controls + claim_files)
        return View(state, snapshot, live, controls[0], {claim.key: file for claim, file in claims})

    def control(self, state: State) -> Control:
        """Return the control row of a version, whose other files are not looked at. Raises TableChangedError, NewerFormatError."""
        return self._control(state.paths(CONTROL))

    def change(self, plan: Callable[[View], tuple[Commit | None, T]]) -> T:
        """Commit what ``plan`` makes of the newest version, asked again for each try; return its answer. No commit when it gives None."""
        for _ in patience(self.root):
            view = self.view()
            commit, answer = plan(view)
            if commit is None:
                self.log.confirm(view.state)
                return answer
            if self.log.commit(view.state, commit):
                return answer
            self.discard(commit.scratch)
        raise AssertionError  # pragma: no cover  (patience raises)

    def discard(self, found: Sequence[DataFile]) -> None:
        """Remove files that never became part of the table."""
        for file in found:
            Path(self.root, file.path).unlink(missing_ok=True)

    def _control(self, paths: Sequence[str]) -> Control:
        if len(paths) != 1:
            message = (
                f"The queue table {self.root} has {len(paths)} control rows instead of one: somebody else changed its partition "
                f"{CONTROL!r}. Restore the table to a version before that (RESTORE, or a backup)."
            )
            raise TableChangedError(message)
        known = self._known.get(paths[0])
        if not isinstance(known, Control):
            known = self._known[paths[0]] = rows.control_from_row(files.read_columns(self.root, paths[0], rows.CONTROL_COLUMNS), self.name)
        return known

    def _claim(self, file: DataFile) -> Claim:
        known = self._known.get(file.path)
        if not isinstance(known, Claim):
            known = self._known[file.path] = rows.claim_from_row(files.read_columns(self.root, file.path, rows.CLAIM_COLUMNS))
        return known

    def _forget_others(self, kept: Sequence[DataFile]) -> None:
        """Keep what was read from immutable files only while they count."""
        paths = {file.path for file in kept}
        for path in [path for path in self._known if path not in paths]:
            self._known.pop(path, None)


def patience(root: str) -> Iterator[int]:
    """Yield the numbers of tries, pausing a random short time between them. Raises StoreUnreachableError after very many."""
    for number in range(_TRIES):
        if number:
            time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  (only to get out of each other's way)
        yield number
    message = f"{_TRIES} commits to {root} in a row were overtaken by others. Run fewer senders and passes of this queue at once."
    raise StoreUnreachableError(message)


def in_queue_order(found: Iterator[DataFile]) -> tuple[DataFile, ...]:
    """Return files as they are received: highest priority first, then lowest lookup id."""
    return tuple(sorted(found, key=lambda file: (-file.max_priority, file.min_lookup_id, file.path)))


def _by_name(found: Iterator[DataFile]) -> tuple[DataFile, ...]:
    """Return files sorted by name: those whose names say the version that brought them are in commit order (``files.commit_prefix``)."""
    return tuple(sorted(found, key=lambda file: file.path.rpartition("/")[2]))


def _as_seen(file: DataFile) -> DataFile:
    """Leave due times out where they have passed: a move between sub-queues changes no row, so they remain in the file."""
    if file.sub_queue in _WAITING or (file.min_due_at is None and file.max_due_at is None):
        return file
    return replace(file, min_due_at=None, max_due_at=None)
