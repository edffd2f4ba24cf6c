"""Applying: do what a recorded plan says, in chunks, each one commit that counts its messages. Killed and called again, it does each once.

To follow a plan is to apply it again whenever passes let it go on, until it has ended.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.desk.actions import Edited, PlanAction, UnfitError, Verb, editor, last_edit, unedited
from airflow_poison.desk.exports import exported
from airflow_poison.desk.plans import (
    CHUNK,
    COLUMNS,
    OPEN,
    UNFIT,
    UNFIT_WHY,
    Members,
    change_state,
    counts_of,
    facts_of,
    find_plan,
    judged,
    resume,
    stored,
    view_of,
)
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.move import moved_rows
from airflow_poison.passes.relay import ORIGIN_QUEUE, addressed, relay
from airflow_poison.store.control import BLOCKED_BY
from airflow_poison.store.data_files import partition_of
from airflow_poison.store.files import PlanState, PlanStep, Replacement
from airflow_poison.store.history import as_ranges
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PlanStateError, PoisonError, SettingError, StoreUnreachableError, TableChangedError
from airflow_poison.values.events import Event, EventType, acting
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.masking import EDITS, Masking
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_poison.desk.plans import Mask, PlanView
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

    Unfit = Callable[[int, Edited, str], None]
    Become = Callable[[pa.Table], tuple[pa.Table | None, Mask]]
    EventsOf = Callable[[SubQueue, Any], Iterator[tuple[EventType, dict[str, str], Any]]]

LOOK = 1.0
"""Seconds between two looks at the queue's version."""


def follow(
    table: QueueTable,
    plan_id: str,
    clock: Clock,
    *,
    store: QueueStore | None = None,
    progress: Callable[[PlanView], object] = lambda _view: None,
    stop: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
    patience: float | None = None,
    through_pauses: bool = False,
) -> PlanView:
    """Apply a plan until it has ended, and return it. While nothing can be done it only looks at the queue's version.

    :param patience: seconds for which passes are waited for, each time; None: without an end, 0: not at all.
    :param through_pauses: wait, too, while it is paused; else a pause ends it.
    The other parameters, and what is raised: as of ``apply``.
    """
    waiting = {PlanState.RUNNING, PlanState.CANARY} | ({PlanState.PAUSED} if through_pauses else set())
    while True:
        seen: int | None = table.snapshot().version
        view = apply(table, plan_id, clock, store=store, progress=progress, stop=stop, wait=wait)
        end = None if patience is None else time.monotonic() + patience
        while view.state in waiting and (seen := _nothing_to_do(table, plan_id, seen)) is not None:
            left = LOOK if end is None else min(LOOK, end - time.monotonic())
            if stop() or left <= 0:
                return view
            wait(left)
            view = find_plan(table, plan_id)
        view = find_plan(table, plan_id)  # it may have been cancelled just now
        if view.state not in waiting or stop():
            return view


def _nothing_to_do(table: QueueTable, plan_id: str, version: int | None) -> int | None:
    """Return the newest version if nothing can be done at it; None: there is something to do.

    :param version: at which everything that could be done was done.
    """
    return version if table.snapshot().version == version else waits_at(table, plan_id)


_EDITED = 10_000
"""So many messages are edited in one commit: their bodies are in memory several times."""
_MOST_REASONS, _MOST_REASON = 20, 500
_TRIES = 20
"""So often in a row others may be faster before it is an error."""
_UNDOABLE = OPEN | {PlanState.DONE, PlanState.CANCELLED, PlanState.UNDOING}


def apply(
    table: QueueTable,
    plan_id: str,
    clock: Clock,
    *,
    store: QueueStore | None = None,
    progress: Callable[[PlanView], object] = lambda _view: None,
    stop: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
) -> PlanView:
    """Do what a plan says, as far as it can be done now, and return it. Safe to call again, and in several processes at the same time.

    It ends when everything is done (``done``), when passes have claimed what is left or a canary's messages are still to be received (``running``,
    ``canary``: call it again), when its canary has failed (``stopped``), or when it was paused or cancelled. An error that would come again
    makes the plan ``failed``, with the error, and is raised; called again, it goes on where it was.

    :param store: of the queue, for messages that are sent to other queues.
    :param progress: called after each chunk.
    :param stop: asked before each chunk.
    :param wait: sleeps for seconds, where the plan has a rate.
    Raises PlanNotFoundError, PlanStateError for a plan that has ended, SettingError, QueueNotFoundError.
    """
    found = stored(table, plan_id)
    if found.state is PlanState.FAILED:
        resume(table, plan_id, clock, who=found.record["who"], reason=found.record["reason"])
        found = stored(table, plan_id)
    if found.state not in {PlanState.RUNNING, PlanState.CANARY}:
        if found.state in {PlanState.DONE, PlanState.PAUSED, PlanState.STOPPED}:
            return find_plan(table, plan_id)
        raise PlanStateError(f"Plan {plan_id!r} of queue {table.name!r} is {found.state.value}; expected running or canary. Nothing has changed.")
    with acting(found.record["who"], found.record["reason"]):
        try:
            return _applied(table, found, clock, store, _Callbacks(table, plan_id, progress, stop, wait))
        except _PASSING:
            raise
        except Exception as error:
            with suppress(PoisonError):  # it cannot be written, or was paused or cancelled
                change_state(
                    table, plan_id, PlanState.FAILED, frozenset({PlanState.RUNNING, PlanState.CANARY}), clock, error=_why(error, table, store)
                )
            raise


@contextmanager
def kept(failed: list[Exception]) -> Iterator[None]:
    """Keep the error of one plan or rule of several: the others go on, and the caller raises the error after them."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, it is raised after the others)
        failed.append(error)


_PASSING = (PlanStateError, TableChangedError, StoreUnreachableError, OSError)
"""What may be otherwise the next time: the plan stays as it is."""


def _why(error: Exception, table: QueueTable, store: QueueStore | None) -> str:
    """Return why a plan has failed, as everybody may read it: without the store's place, and of errors that are none of ours the type."""
    place = table.uri if store is None else store.uri
    text = f": {error}".replace(place, "the store") if isinstance(error, PoisonError) else ""
    return f"{type(error).__name__}{text}"[:_MOST_REASON]


def waits_at(table: QueueTable, plan_id: str) -> int | None:
    """Return the version of the queue at which ``apply`` would do nothing: passes have to end first, or the plan is paused.

    None: there is something to do, or the plan has ended. Raises PlanNotFoundError.
    """
    snapshot, found = table.snapshot(), stored(table, plan_id)
    if found.state is PlanState.PAUSED:
        return snapshot.version
    if found.state not in {PlanState.RUNNING, PlanState.CANARY}:
        return None
    planned, members = view_of(table, found), Members.stored(table.plan_members(found))
    if found.state is PlanState.CANARY:
        members = members.only(found.record["canary"]["ids"])
    edited_by = plan_id if planned.action.verb is Verb.EDIT else ""
    looked = _Change(members, lambda rows: (rows, _all(rows)), _plain_events(planned.action.event), edited_by=edited_by)
    chunks = _Chunks(table, plan_id, looked, SystemClock(), CHUNK, _Callbacks(table, plan_id, lambda _view: None, lambda: False, time.sleep))
    if chunks.is_free(snapshot):
        return None
    if found.state is PlanState.RUNNING:
        return snapshot.version if chunks.claimed(snapshot) else None
    seen = judged(table, found)
    return snapshot.version if seen.waiting and not seen.decided(planned.canary) else None


def undo(
    table: QueueTable,
    plan_id: str,
    clock: Clock,
    *,
    who: str,
    reason: str = "",
    progress: Callable[[PlanView], object] = lambda _view: None,
    stop: Callable[[], bool] = lambda: False,
) -> PlanView:
    """Take back what a plan has done to messages that were not received, moved or edited since; return it with ``done``: the ones that stay done.

    Each moves back to where it was, with one more move: counts never fall. An edited body becomes what it was. Removed messages come back while the
    table still has their files. What passes have claimed is left out; undo again when they have ended.
    Raises PlanNotFoundError, and PlanStateError for a plan whose messages were sent to other queues.
    """
    found, planned = stored(table, plan_id), find_plan(table, plan_id)
    if not planned.undoable:
        raise PlanStateError(f"Plan {plan_id!r} of queue {table.name!r} has sent messages to other queues; they can be moved back only from there.")
    with acting(who, reason):
        change_state(table, plan_id, PlanState.UNDOING, _UNDOABLE, clock)
        members, callbacks = Members.stored(table.plan_members(found)), _Callbacks(table, plan_id, progress, stop, time.sleep)
        if planned.action.place is not None:
            members = members.without(_moved_by_others(table, plan_id, planned.version))
        if planned.action.verb is Verb.REMOVE:
            complete = _brought_back(table, plan_id, clock, callbacks)
        else:
            complete = _Chunks(
                table,
                plan_id,
                _reversed(planned.action, plan_id, members),
                clock,
                _EDITED if planned.action.verb is Verb.EDIT else CHUNK,
                callbacks,
                back=True,
            ).run()
        if complete:
            change_state(table, plan_id, PlanState.UNDONE, frozenset({PlanState.UNDOING}), clock)
    return find_plan(table, plan_id)


def _moved_by_others(table: QueueTable, plan: str, since: int) -> set[int]:
    """Return the messages that were moved since a version, and not by a plan: where they are now is not its doing, although it may look so."""
    own, others = set[int](), set[int]()
    for event in table.events(since):
        if event.lookup_id is not None and event.type in _MOVES:
            (own if event.details.get("plan") == plan else others).add(event.lookup_id)
    return others - own


def _applied(table: QueueTable, found: StoredPlan, clock: Clock, store: QueueStore | None, callbacks: _Callbacks) -> PlanView:
    planned, members = view_of(table, found), Members.stored(table.plan_members(found))
    if planned.export_to:
        members = members.only(exported(table, found.plan, planned.export_to, members, store))
    left = _Left(Masking.recorded(table.snapshot().control.desk))
    change = _change(PlanAction.from_dict(found.record["action"]), found.plan, members, table, store, left.add)
    change = replace(change, facts=facts_of(found))
    most = _EDITED if planned.action.verb is Verb.EDIT else CHUNK
    chunk = min(planned.chunk or planned.rate or most, most)
    states = frozenset({found.state})
    if found.state is PlanState.CANARY:
        ids = found.record["canary"]["ids"]
        if not _Chunks(table, found.plan, change.of(members.only(ids)), clock, chunk, callbacks, rate=planned.rate, states=states).run():
            return find_plan(table, found.plan)
        seen = judged(table, found, left.reasons)
        if seen.waiting and not seen.decided(planned.canary):
            return find_plan(table, found.plan)
        good = seen.good(planned.canary)
        facts = {"settled": str(seen.settled), "failed": str(seen.failed)}
        with suppress(PlanStateError):  # it was paused or cancelled
            change_state(table, found.plan, PlanState.RUNNING if good else PlanState.STOPPED, states, clock, **facts)
        if not good:
            return find_plan(table, found.plan)
        states = frozenset({PlanState.RUNNING})
    relayed = None if store is None else lambda: relay(store, table, clock)
    if _Chunks(table, found.plan, change, clock, chunk, callbacks, rate=planned.rate, states=states, relayed=relayed).run():
        with suppress(PlanStateError):
            change_state(table, found.plan, PlanState.DONE, states, clock, **left.facts())
    return find_plan(table, found.plan)


@dataclass(frozen=True, slots=True)
class _Callbacks:
    """The callbacks of a plan: its progress, and whether to go on."""

    table: QueueTable
    plan: str
    progress: Callable[[PlanView], object]
    stop: Callable[[], bool]
    wait: Callable[[float], None]

    def after(self) -> None:
        """Report the progress."""
        self.progress(find_plan(self.table, self.plan))


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of members.

    :param members: as they are to be found.
    :param become: from rows (``table_schema()``) to what they become, and which of them can; None: they go.
    :param events_of: from a sub-queue and the lookup ids of messages there that are changed to its events: type, facts and lookup ids.
    :param place: where whole files can go by a second name; None: their rows have to be written.
    :param counted: whether it is a move.
    :param leaves: whether a message that blocks the queue does so no more.
    :param edited_by: the plan whose edits are to be found (undone) or not to be found (made) as the last ones of a message; empty: no matter.
    """

    members: Members
    become: Become
    events_of: EventsOf
    place: SubQueue | None = None
    counted: bool = False
    leaves: bool = True
    edited_by: str = ""
    undoes: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    def of(self, members: Members) -> _Change:
        """Return the same for other members."""
        return replace(self, members=members)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a file that are to be changed."""

    file: DataFile
    mask: Mask
    chosen: int


@dataclass(slots=True)
class _Chunks:
    """Changes members chunk by chunk, until none is left that no pass has claimed.

    :param back: what is done is undone: the plan's progress falls.
    """

    table: QueueTable
    plan: str
    change: _Change
    clock: Clock
    chunk: int
    callbacks: _Callbacks
    rate: int | None = None
    states: frozenset[PlanState] = frozenset({PlanState.UNDOING})
    relayed: Callable[[], object] | None = None
    back: bool = False
    _finished: set[str] = field(default_factory=set)
    _failed: int = 0

    def run(self) -> bool:
        """Return whether all is done; False when passes have claimed some, or it was stopped."""
        while not self.callbacks.stop():
            try:
                begun = time.monotonic()
                done = self._step()
            except PlanStateError:
                return False
            except TableChangedError:  # a pass was faster
                self._failed += 1
                if self._failed > _TRIES:
                    raise
                continue
            self._failed = 0
            if done is None:
                return not self.claimed(self.table.snapshot())
            if done:
                self.callbacks.after()
                if self.rate is not None:
                    self.callbacks.wait(max(0.0, done / self.rate - (time.monotonic() - begun)))
        return False

    def _step(self) -> int | None:
        """Change one chunk, or split a file that is larger than one; return how many messages were changed, None when there is nothing to do."""
        snapshot, batch, chosen = self.table.snapshot(), list[_Part](), 0
        for file in self._free(snapshot):
            part = self._part(file)
            if not part.chosen:
                self._finished.add(file.path)
                continue
            if part.chosen > self.chunk or file.rows > CHUNK:
                if batch:
                    break
                self._split(part)
                return 0
            if batch and chosen + part.chosen > self.chunk:
                break
            batch.append(part)
            chosen += part.chosen
        return self._commit(batch) if batch else None

    def _free(self, snapshot: Snapshot) -> Iterator[DataFile]:
        claimed = snapshot.claimed_paths
        for file in snapshot.files:
            if file.path not in self._finished and file.path not in claimed and self.change.members.may_be_in(file):
                yield file

    def is_free(self, snapshot: Snapshot) -> bool:
        """Whether one of the members is in a file that no pass has claimed."""
        return any(self._part(file).chosen for file in self._free(snapshot))

    def claimed(self, snapshot: Snapshot) -> int:
        """Return how many of the members passes have claimed."""
        claimed = snapshot.claimed_paths
        return sum(self._part(file).chosen for file in snapshot.files if file.path in claimed and self.change.members.may_be_in(file))

    def _part(self, file: DataFile) -> _Part:
        mask = self.change.members.mask(file, self.table.read(file, COLUMNS))
        if self.change.edited_by and mask.any():
            mask &= _last_edited_by(self.table.read(file, ["properties"]), self.change.edited_by) == self.change.undoes
        return _Part(file, mask, int(mask.sum()))

    def _split(self, part: _Part) -> None:
        """Split a file into pieces that are one chunk each, and pieces with its other rows; only one piece is in memory."""

        def pieces() -> Iterator[pa.Table]:
            start = 0
            for rows in self.table.batches(part.file, CHUNK):
                here = pa.array(part.mask[start : start + rows.num_rows])
                start += rows.num_rows
                chosen = rows.filter(here)
                for first in range(0, chosen.num_rows, self.chunk):
                    yield chosen.slice(first, self.chunk)
                yield rows.filter(pc.invert(here))

        self.table.split_file(part.file, pieces())
        reach("desk.apply.after_split")

    def _commit(self, batch: Sequence[_Part]) -> int:
        whole = [part for part in batch if self._goes_whole(part)]
        moves = [(part.file, self.change.place) for part in whole if self.change.place is not None]
        events = [event for part in whole for event in self._events(part.file, self._ids(part))]
        done, leaving = [sum(part.chosen for part in whole)], [self._ids(part) for part in whole]

        def replacements() -> Iterator[Replacement]:
            for part in batch:
                if part not in whole:
                    made, ids = self._replacement(part)
                    if made is None:
                        self._finished.add(part.file.path)
                        continue
                    events.extend(self._events(part.file, ids))
                    leaving.append(ids)
                    done[0] += len(ids)
                    yield made

        def freed(control: Control) -> Control:
            blocks = control.counters.get(BLOCKED_BY)
            return control.unblocked() if blocks is not None and self.change.leaves and any((ids == blocks).any() for ids in leaving) else control

        made = list(replacements())
        if not made and not moves:
            return 0
        reach("desk.apply.before_chunk")
        step = PlanStep(self.plan, -done[0] if self.back else done[0], self.states)
        self.table.replace_files(made, events, change=freed, moves=moves, step=step)
        reach("desk.apply.after_chunk")
        if self.relayed is not None:
            self.relayed()
        return done[0]

    def _goes_whole(self, part: _Part) -> bool:
        """Whether the file can go by a second name: all of its rows are members, and no column of them changes."""
        file, place = part.file, self.change.place
        if place is None or part.chosen < file.rows or (file.sub_queue == SubQueue.POSTPONED and place is SubQueue.MAIN):
            return False
        return not counts_of(self.table.read(file, ["abort_count"])["abort_count"]).any()

    def _ids(self, part: _Part) -> Any:
        return np.asarray(self.table.read(part.file, ["lookup_id"])["lookup_id"].to_numpy())[part.mask]

    def _replacement(self, part: _Part) -> tuple[Replacement | None, Any]:
        """Return what takes a file's place, and the members that are changed; None when none can be."""
        rows = self.table.read(part.file)
        here = pa.array(part.mask)
        chosen, others = rows.filter(here), rows.filter(pc.invert(here))
        after, fit = self.change.become(chosen)
        ids = np.asarray(chosen["lookup_id"].to_numpy())[fit]
        if not fit.any():
            return None, ids
        if not fit.all():
            others = pa.concat_tables([others, chosen.filter(pa.array(~fit))])
        if after is None:
            return Replacement(part.file, others, removed=len(ids)), ids
        return Replacement(part.file, pa.concat_tables([after, others])), ids

    def _events(self, file: DataFile, ids: Any) -> Iterator[Event]:
        moved = file.move_count + self.change.counted
        for kind, facts, some in self.change.events_of(SubQueue(file.sub_queue), ids):
            yield Event(
                kind, self.clock.now(), int(some.min()), 0, moved, _details(self.plan, file.path, some.tolist()) | {**self.change.facts, **facts}
            )


def _details(plan: str, path: str, lookup_ids: Sequence[int]) -> dict[str, str]:
    """Return what an event says that stands for messages of one file."""
    numbers = sorted(lookup_ids)
    known = {"count": str(len(numbers)), "max_lookup_id": str(numbers[-1]), "path": path, "lookup_ids": as_ranges(numbers)}
    return known | {"by": BY_HAND, "plan": plan}


def _brought_back(table: QueueTable, plan: str, clock: Clock, callbacks: _Callbacks) -> bool:
    """Bring back what a plan has removed, file by file, as far as the files are there."""
    for removal in table.removals_of(plan):
        if callbacks.stop():
            return False
        place, _ = partition_of(removal.path) or (SubQueue.MAIN.value, 0)
        details = _details(plan, removal.path, removal.lookup_ids) | {"place": place, "undone": "true"}
        event = Event(_BACK_IN.get(SubQueue(place), EventType.RETURNED), clock.now(), removal.lookup_ids[0], details=details)
        reach("desk.undo.before_chunk")
        table.bring_back(removal, PlanStep(plan, -len(removal.lookup_ids), frozenset({PlanState.UNDOING})), event)
        callbacks.after()
    return True


_BACK_IN = {SubQueue.MAIN: EventType.RETURNED, SubQueue.RETRY: EventType.MOVED_RETRY, SubQueue.POISON: EventType.MOVED_POISON}
"""The event of messages that come to a sub-queue; nothing where coming there is no move."""


_MOVES = frozenset(_BACK_IN.values())


# Changes of rows -------------------------------------------------------------------------------------------------


def _change(  # noqa: PLR0917
    action: PlanAction, plan: str, members: Members, table: QueueTable, store: QueueStore | None, unfit: Unfit
) -> _Change:
    match action.verb:
        case Verb.PUT_BACK | Verb.MOVE:
            place = action.place
            assert place is not None
            return _Change(members, lambda rows: (moved_rows(rows, place), _all(rows)), _move_events(place), place, counted=True)
        case Verb.REMOVE:
            return _Change(members, lambda rows: (None, _all(rows)), _plain_events(action.event, place=""))
        case Verb.EDIT:
            edits = _edits(editor(action, plan), unfit, action.place)
            if action.place is None:
                return _Change(members, edits, _plain_events(action.event), leaves=False, edited_by=plan)
            return _Change(members, edits, _plain_events(action.event, then=_move_events(action.place)), counted=True)
        case Verb.SEND_TO:
            return _Change(members, _letters(action.target, table, store, unfit), _plain_events(action.event, place=action.target or "origin"))


def _plain_events(event: EventType, then: EventsOf = lambda _was, _ids: iter(()), **facts: str) -> EventsOf:
    def events_of(was: SubQueue, ids: Any) -> Iterator[tuple[EventType, dict[str, str], Any]]:
        yield event, facts, ids
        yield from then(was, ids)

    return events_of


def _move_events(place: SubQueue) -> EventsOf:
    def events_of(was: SubQueue, ids: Any) -> Iterator[tuple[EventType, dict[str, str], Any]]:
        if was is not SubQueue.POSTPONED or place is not SubQueue.MAIN:  # that is no move
            yield _BACK_IN[place], {"place": place.value} | ({"origin": was.value} if was is SubQueue.POISON else {}), ids

    return events_of


def _reversed(action: PlanAction, plan: str, members: Members) -> _Change:
    edits = action.verb is Verb.EDIT
    become, place = _edits(partial(unedited, plan=plan)), action.place
    if place is None:
        return _Change(members, become, _plain_events(EventType.EDITED, undone="true"), leaves=False, edited_by=plan, undoes=True)
    after = members.moved_to(place)

    def back(rows: pa.Table) -> tuple[pa.Table | None, Mask]:
        """Move messages back that were not received: their abort count is still 0."""
        untouched = counts_of(rows["abort_count"]) == 0
        chosen = rows.filter(pa.array(untouched))
        if edits:
            chosen, untouched[untouched] = become(chosen)
        was = members.where_they_were(np.asarray(chosen["lookup_id"].to_numpy()))
        parts = [moved_rows(chosen.filter(pa.array([each is target for each in was])), target) for target in dict.fromkeys(was)]
        return pa.concat_tables(parts) if parts else chosen, untouched

    def events_of(_was: SubQueue, ids: Any) -> Iterator[tuple[EventType, dict[str, str], Any]]:
        was = members.where_they_were(ids)
        for target in dict.fromkeys(was):
            if target in _BACK_IN:
                yield _BACK_IN[target], {"place": target.value, "undone": "true"}, ids[[each is target for each in was]]

    if not edits:
        return _Change(after, back, events_of, counted=True)
    return _Change(after, back, _plain_events(EventType.EDITED, then=events_of, undone="true"), counted=True, edited_by=plan, undoes=True)


def _all(rows: pa.Table) -> Mask:
    return np.ones(rows.num_rows, bool)


def _last_edited_by(rows: pa.Table, plan: str) -> Mask:
    """Return the rows whose last edit is a plan's."""
    edits = pc.map_lookup(rows["properties"], EDITS, "last")
    last = pc.ends_with(edits, last_edit(plan))
    return np.asarray(pc.fill_null(last, pa.scalar(value=False)).to_numpy(zero_copy_only=False), dtype=bool)


def _edits(
    edit: Callable[[Edited], Edited], unfit: Unfit = lambda _number, _content, _why: None, place: SubQueue | None = None
) -> Callable[[pa.Table], tuple[pa.Table, Mask]]:
    """Return what edits rows.

    :param unfit: called for each message that stays as it is, with the reason.
    :param place: where the others go; None: they stay.
    """

    def become(rows: pa.Table) -> tuple[pa.Table, Mask]:

        bodies, properties, fit = list[bytes](), list[Any](), np.zeros(rows.num_rows, bool)
        cells = (rows[name].to_pylist() for name in ("lookup_id", "body", "properties"))
        for row, (number, body, cell) in enumerate(zip(*cells, strict=True)):
            before = Edited(body or b"", dict(cell or ()))
            try:
                after = edit(before)
            except UnfitError as error:
                unfit(number or 0, before, str(error))
                continue
            fit[row] = True
            bodies.append(after.body)
            properties.append(list(after.properties.items()))
        edited = with_columns(rows.filter(pa.array(fit)), body=bodies, properties=properties)
        return (edited if place is None else moved_rows(edited, place)), fit

    return become


def check_target(target: str, table: QueueTable, store: QueueStore) -> None:
    """Raise SettingError or QueueNotFoundError for a queue that the messages of another one cannot be sent to."""
    if target == table.name:
        raise SettingError("target", target, "another queue than the one that the messages are in")
    store.open(target, read_only=True)  # a typing error must not make one


def _letters(target: str, table: QueueTable, store: QueueStore | None, unfit: Unfit) -> Become:
    if store is None:
        raise SettingError("store", None, "the store of the queue, for messages that are sent to another one")
    wrong = {"": f"it has no property {ORIGIN_QUEUE}, so it came from no other queue"}
    if target:
        check_target(target, table, store)

    def is_wrong(origin: str) -> bool:
        """Whether messages cannot go to a queue that a message names; asked once of each."""
        if origin not in wrong:
            try:
                check_target(origin, table, store)
                wrong[origin] = ""
            except PoisonError as error:
                wrong[origin] = f"it came from {origin!r}: {error}"
        return bool(wrong[origin])

    def become(rows: pa.Table) -> tuple[pa.Table, Mask]:

        ids, bodies, properties = (rows[name].to_pylist() for name in ("lookup_id", "body", "properties"))
        contents = [Edited(body or b"", dict(cell or ())) for body, cell in zip(bodies, properties, strict=True)]
        targets = [target or each.properties.get(ORIGIN_QUEUE, "") for each in contents]
        fit = np.array([bool(target) or not is_wrong(each) for each in targets], bool)
        for place in np.flatnonzero(~fit):
            unfit(ids[place] or 0, contents[place], wrong[targets[place]])
        return addressed(rows.filter(pa.array(fit)), [each for each, fits in zip(targets, fit, strict=True) if fits]), fit

    return become


@dataclass(frozen=True, slots=True)
class _Left:
    """Messages of a plan that stay as they are, with the reasons, of which the first ones are recorded."""

    masking: Masking | None
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, lookup_id: int, content: Edited, why: str) -> None:
        """Note a message, and the reason without what the queue hides."""
        known = lookup_id in self.reasons or len(self.reasons) < _MOST_REASONS
        hidden = why if self.masking is None or not known else self.masking.values(content.body, content.properties).hide(why)
        self.reasons[lookup_id] = hidden[:_MOST_REASON] if known else ""

    def facts(self) -> dict[str, str]:
        """Return what the event of the plan's end says of them."""
        if not self.reasons:
            return {}
        texts = {str(number): why for number, why in self.reasons.items() if why}
        return {UNFIT: as_ranges(sorted(self.reasons)), UNFIT_WHY: json.dumps(texts)}
