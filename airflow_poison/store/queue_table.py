"""A queue's table: its folder, its log, and what verbs do to it and read of it. What is above the store knows a queue by ``QueueTable`` alone.

A queue's content is a set of immutable *data files* (spec of the layout: docs/explanation/store.md). A pass claims whole files, delivers their
messages, stages what remains of them and ends with one compare-and-swap that adds what remains and removes what was claimed. Under the table is a
log (``files.Log``), which has two implementations: Delta's and one in memory.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_poison.store import appending, changing, claiming, compaction, data_files, history, parking, plans, row_groups
from airflow_poison.store import stage as stages
from airflow_poison.store.control import Control
from airflow_poison.store.data_files import CLAIM, CONTROL
from airflow_poison.store.disk import Folder, named, raise_named, raise_of_node
from airflow_poison.store.files import Claim, Commit, DataFile, Log, LogState, Shortened, Snapshot
from airflow_poison.values.errors import PlanStateError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import CONVERSATION, LANDING, OUTBOX, PLAN, SOURCE, TRANSMISSION_QUEUE, SubQueue

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


T = TypeVar("T")
_TRIES = 2_000
_LONGEST_PAUSE = 0.02  # seconds; a commit takes 3 to 10 ms
_MESSAGES = frozenset(place.value for place in SubQueue)


@dataclass(frozen=True, slots=True)
class View:
    """One version of a table: what its log says and what that means.

    :param live: the live files of every partition by path, as the log has them.
    :param control_row: the file of the control row.
    :param claim_rows: the files of the claims' rows by run key.
    """

    state: LogState
    snapshot: Snapshot
    live: dict[str, DataFile]
    control_row: DataFile
    claim_rows: dict[str, DataFile]

    def claim_of(self, key: str) -> Claim | None:
        """Return the claim of a run key."""
        return next((claim for claim in self.snapshot.claims if claim.key == key), None)

    def held(self, claim: Claim) -> bool:
        """Whether this holder still has the claim. A key released and claimed anew begins again with epoch 1: its attempt differs."""
        now = self.claim_of(claim.key)
        return now is not None and (now.epoch, now.attempt) == (claim.epoch, claim.attempt)


@dataclass(slots=True, eq=False)
class Table:
    """One queue table.

    :param folder: where its files are.
    :param groups: lookup ids and groups of the messages of files that have been looked at for them, by path.
    """

    name: str
    folder: Folder
    log: Log
    _known: dict[str, Control | Claim] = field(default_factory=dict)
    groups: dict[str, tuple[NDArray[np.int64], pa.Array[Any]]] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """Where the table lies, a folder: what a reader of the format opens. Data files lie below it under the paths that ``DataFile`` says."""
        return self.folder.uri

    @property
    def root(self) -> str:
        """The table's folder on this node: of a store that is a folder, the table itself."""
        return self.folder.root

    @property
    def node(self) -> str:
        """What names the table's folder on this node, where no other node has it; empty where all users share it."""
        return self.folder.node

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
            landings=_by_name(file for file in live.values() if file.sub_queue == LANDING),
            plans=_by_name(file for file in live.values() if file.sub_queue == PLAN),
            sources=tuple(file for file in live.values() if file.sub_queue == SOURCE),
        )
        self._forget_others(controls + claim_files)
        return View(state, snapshot, live, controls[0], {claim.key: file for claim, file in claims})

    def bring(self, found: Iterable[DataFile]) -> None:
        """Bring files to this node before many of them are read one by one: side by side, where that takes requests."""
        self.folder.bring([file.path for file in found])

    def control(self, state: LogState) -> Control:
        """Return the control row of a version, whose other files are not looked at. Raises TableChangedError, NewerFormatError."""
        return self._control(state.paths(CONTROL))

    def change(self, plan: Callable[[View], tuple[Commit | None, T]]) -> T:
        """Commit what ``plan`` makes of the newest version, asked again for each try; return its answer. No commit when it gives None."""
        for _ in self.tries():
            view = self.view()
            commit, answer = plan(view)
            if commit is None:
                self.log.confirm(view.state)
                return answer
            if self.log.commit(view.state, commit):
                return answer
            self.discard(commit.scratch)
        raise AssertionError  # pragma: no cover  (the tries end so)

    def control_change(self, view: View, change: Callable[[Control], Control] | None) -> Commit:
        """Return the part of a commit that replaces the control row; empty when the row stays as it is.

        A queue that is not disabled any more gets what was sent to it meanwhile, so ``transmission`` is never full beside an enabled queue.
        """
        before = view.snapshot.control
        after = change(before) if change else before
        if after == before:
            return Commit("alter")
        row = data_files.write_new(self.folder, CONTROL, 0, data_files.control_to_row(after))
        reach("store.control.after_row")
        held = self.held_files(view) if before.holds_sends and not after.holds_sends else []
        added = [row, *(new for _, new in held)]
        return Commit("alter", add=added, remove=[view.control_row, *(old for old, _ in held)], scratch=added)

    def held_files(self, view: View) -> list[tuple[DataFile, DataFile]]:
        """Give what waits in ``transmission`` a second name in ``main``; return each file with its new place. Nothing is counted."""
        held = [file for file in view.live.values() if file.sub_queue == SubQueue.TRANSMISSION and file.path not in view.snapshot.claimed_paths]
        moved = [(file, data_files.moved(self.folder, file, SubQueue.MAIN, file.move_count)) for file in held]
        if moved:
            reach("store.held.after_links")
        return moved

    def tries(self) -> Iterator[int]:
        """Yield the numbers of tries, pausing a random short time between them. Raises StoreUnreachableError after very many."""
        for number in range(_TRIES):
            if number:
                time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  (only to get out of each other's way)
            yield number
        message = f"{_TRIES} commits to {self.uri} in a row were overtaken by others. Run fewer senders and passes of this queue at once."
        raise StoreUnreachableError(message)

    def discard(self, found: Sequence[DataFile]) -> None:
        """Remove files that never became part of the table."""
        for file in found:
            self.folder.remove(file.path)

    def _control(self, paths: Sequence[str]) -> Control:
        if len(paths) != 1:
            message = (
                f"The queue table {self.uri} has {len(paths)} control rows instead of one: somebody else changed its partition "
                f"{CONTROL!r}. Restore the table to a version before that (RESTORE, or a backup)."
            )
            raise TableChangedError(message)
        known = self._known.get(paths[0])
        if not isinstance(known, Control):
            known = self._known[paths[0]] = data_files.control_from_row(
                data_files.read_columns(self.folder, paths[0], data_files.CONTROL_COLUMNS), self.name
            )
        return known

    def _claim(self, file: DataFile) -> Claim:
        known = self._known.get(file.path)
        if not isinstance(known, Claim):
            known = self._known[file.path] = data_files.claim_from_row(data_files.read_columns(self.folder, file.path, data_files.CLAIM_COLUMNS))
        return known

    def _forget_others(self, kept: Sequence[DataFile]) -> None:
        """Keep what was read from immutable files only while they count."""
        paths = {file.path for file in kept}
        for path in [path for path in self._known if path not in paths]:
            self._known.pop(path, None)


def in_queue_order(found: Iterator[DataFile]) -> tuple[DataFile, ...]:
    """Return files as they are received: highest priority first, then lowest lookup id."""
    return tuple(sorted(found, key=lambda file: (-file.max_priority, file.min_lookup_id, file.path)))


def _by_name(found: Iterator[DataFile]) -> tuple[DataFile, ...]:
    """Return files sorted by name: those whose names say the version that brought them are in commit order (``data_files.commit_prefix``)."""
    return tuple(sorted(found, key=lambda file: file.path.rpartition("/")[2]))


def _as_seen(file: DataFile) -> DataFile:
    """Leave due times out where they have passed: a move between sub-queues changes no row, so they remain in the file."""
    if file.sub_queue in data_files.WAITING or (file.min_due_at is None and file.max_due_at is None):
        return file
    return replace(file, min_due_at=None, max_due_at=None)


# Errors of every verb: more specific errors from below (a lost claim, a missing file, a damaged footer) pass unchanged ------------


def with_named_errors(kind: type[T]) -> type[T]:
    """Have every public method of a class raise errors with its ``uri``.

    Iterators that a method is given are the caller's: what they raise stays as it is.
    """
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(kind, name, _guarded(member))
    return kind


_FORKED = (
    "{} cannot be read or written in a process that was forked from one that has used a queue: delta-rs does not support that. Nothing was done. "
    "Start processes with multiprocessing.get_context('spawn') or 'forkserver', or use queues only in the processes that are forked."
)


def _guarded(member: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(member)
    def act(self: object, *args: object, **kwargs: object) -> object:
        passed: list[BaseException] = []
        try:
            found = member(self, *(_watched(each, passed) for each in args), **{name: _watched(each, passed) for name, each in kwargs.items()})
        except Exception as error:
            if not any(error is other for other in passed):
                if isinstance(self, Table) and self.node:
                    raise_of_node(self.root, self.uri, error)
                raise_named(self.uri, error)  # type: ignore[attr-defined]  # of the class, see ``with_named_errors``
            raise
        except BaseException as error:
            if type(error).__name__ == "PanicException" and "Forked process" in str(error):  # no Exception: workers of a pool would wait for ever
                raise StoreUnreachableError(_FORKED.format(self.uri)) from error  # type: ignore[attr-defined]  # of the class
            raise
        return _named_ones(self.uri, found) if inspect.isgenerator(found) else found  # type: ignore[attr-defined]

    return act


def _watched(given: object, passed: list[BaseException]) -> object:
    """Return what a method is given; of an iterator, one that remembers what it raises."""
    return _remembering(given, passed) if isinstance(given, Iterator) else given


def _remembering(source: Iterator[object], passed: list[BaseException]) -> Iterator[object]:
    try:
        yield from source
    except Exception as error:
        passed.append(error)
        raise


def _named_ones(root: str, found: Iterator[object]) -> Iterator[object]:
    with named(root):
        yield from found


@with_named_errors
class QueueTable(Table):
    """One queue. All changes are atomic and visible to every later call of any process.

    Verbs of other modules are bound here: the table is their first argument. Documented there.
    """

    def __repr__(self) -> str:
        return f"QueueTable({self.name!r}, {self.uri!r})"

    def snapshot(self) -> Snapshot:
        """Return the newest version. Raises TableChangedError when a file that the table needs was deleted."""
        return self.view().snapshot

    def files_at(self, version: int) -> tuple[DataFile, ...]:
        """Return the files of messages of an earlier version, in queue order. Raises PlanStateError when it cannot be looked at any more."""
        newest = self.view()
        if version == newest.state.version:
            return newest.snapshot.files
        if version > newest.state.version:  # Delta Lake's reader would look for every one up to it
            raise PlanStateError(f"Queue {self.name!r} has no version {version}: its newest is {newest.state.version}. Make the plan anew.")
        found = self.log.files_at(version)
        if found is None or any(self.missing(file) for file in found if file.sub_queue in _MESSAGES):
            message = f"Version {version} of queue {self.name!r} cannot be looked at any more: maintenance has removed it. Make the plan anew."
            raise PlanStateError(message)
        return in_queue_order(_as_seen(file) for file in found if file.sub_queue in _MESSAGES)

    def missing(self, file: DataFile) -> bool:
        """Whether a file is not there any more."""
        try:
            self.folder.here(file.path)
            self.folder.size(file.path)
        except FileNotFoundError:
            return True
        return False

    def identity(self) -> str:
        """Return a key that is unique among all queues, also among queues of the same name in other stores."""
        return self.log.identity()

    def mark(self, version: int) -> Hashable | None:
        """Return a version's identity, while it is the newest; None when it is not, or that is not known.

        For frequent looks: a few looks at the folder, nothing is read. Raises OSError.
        """
        return self.log.mark(version)

    # Changes outside a pass
    append = appending.append
    sent_before = appending.sent_before
    alter = changing.alter
    move_files = changing.move_files
    split_file = changing.split_file
    split_files = changing.split_files
    replace_file = changing.replace_file
    replace_files = changing.replace_files
    transact = changing.transact
    remove_outbox = changing.remove_outbox
    remove_transmissions = changing.remove_transmissions
    remove_landings = changing.remove_landings

    # Sources
    stored_sources = plans.stored_sources
    stored_source = plans.stored_source
    source_keys = plans.source_keys
    forget_source = plans.forget_source

    # Plans of people
    record_plan = plans.record_plan
    set_plan_state = plans.set_plan_state
    stored_plans = plans.stored_plans
    plan_states = plans.plan_states
    plan_members = plans.plan_members
    remove_plans = plans.remove_plans
    removals_of = plans.removals_of
    details_of_plan = history.details_of_plan
    bring_back = plans.bring_back

    # A pass
    claim = claiming.claim
    expired = claiming.expired
    take_over = claiming.take_over
    renew = claiming.renew
    release = claiming.release
    finish = claiming.finish
    result = claiming.result
    has_number = claiming.has_number
    behind = parking.behind
    stage = stages.stage
    begin = stages.begin
    leave = stages.leave
    close = stages.close
    sharing = stages.sharing
    journals = stages.journals
    stage_table = stages.stage_table
    unstage = stages.unstage
    manifest = stages.manifest
    seal = stages.seal
    first = row_groups.first
    select = row_groups.select
    batches = row_groups.batches

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with the columns of ``table_schema()``, or some columns of ``message_schema()``."""
        return data_files.read(self.folder, file) if columns is None else data_files.read_columns(self.folder, file.path, columns)

    # Maintenance: changes nothing that anybody reads, and may run beside everything and itself
    compact = compaction.compact
    merge_conversations = compaction.merge_conversations
    clean = compaction.clean

    def shorten_log(self, *, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what the log needs for no version within the retention."""
        return self.log.shorten(retention)

    # History
    events = history.events
    newest_events = history.newest_events
    messages_of = history.messages_of
