"""Plans of people as a part of the table: what one says, the messages that it is about, its state, and how many of them are done.

A plan is two files of the partition ``_plan``: one row with what it says, and a row for each of its messages. Its state and its progress are numbers
of the log, so a commit that does a part of a plan counts it, too.

Positions of sources as a part of the table: how far each was taken, in the commit that added its messages.

A source has one row in the partition ``_source`` that says its position, and files of keys where no order says what was taken. A commit that takes
the source further removes the row and adds another one: only this keeps two takes at the same time apart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_poison.store import data_files, history
from airflow_poison.store.data_files import commit_prefix
from airflow_poison.store.files import Advance, Commit, DataFile, LogState, PlanState, PlanStep, Snapshot
from airflow_poison.values.errors import PlanNotFoundError, PlanStateError, PlanUnreadableError, SourceTakenError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import PLAN, SOURCE, message_schema, table_schema

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import Table, View

_log = logging.getLogger(__name__)

_POSITION_RECORD, _KEYS = 0, 1
"""Parts of the partition, as move counts."""
_FEW = 16
"""Files of keys of one source, from which on the next commit joins them."""


@dataclass(frozen=True, slots=True)
class StoredSource:
    """How far a source was taken, as it is stored.

    :param record: the record of the last take, plain JSON values.
    :param file: of the row that says it; another one with each take.
    :param keys: files of keys.
    """

    name: str
    record: Mapping[str, Any]
    file: DataFile
    keys: tuple[DataFile, ...]


def stored_sources(table: Table, snapshot: Snapshot | None = None) -> tuple[StoredSource, ...]:
    """Return the sources that were taken into the queue, by name.

    :param snapshot: of this version. None: the newest.
    """
    return _stored_position(table, table.log.load()) if snapshot is None else _sources_in(table, snapshot.sources)


def stored_source(table: Table, name: str) -> StoredSource | None:
    """Return how far a source was taken; None when it was not."""
    return next((each for each in stored_sources(table) if each.name == name), None)


def source_keys(table: Table, found: StoredSource) -> pa.Table:
    """Return the keys of a source: ``key`` and ``at``. Raises TableChangedError."""
    table.bring(found.keys)
    parts = [data_files.read_columns(table.folder, file.path, ["message_id", "lookup_id"]).rename_columns(["key", "at"]) for file in found.keys]
    empty = pa.table({"key": pa.array([], pa.string()), "at": pa.array([], pa.int64())})
    return pa.concat_tables([empty, *parts]).combine_chunks()


def forget_source(table: Table, name: str, now: datetime) -> bool:
    """Forget how far a source was taken, in one commit; False when it was not known. It is taken from its beginning then."""

    def attempt(view: View) -> tuple[Commit | None, bool]:
        found = next((each for each in _stored_position(table, view.state) if each.name == name), None)
        if found is None:
            return None, False
        event = Event(EventType.POSITION_RESET, now, details={"source": name, "position": str(found.record.get("position", ""))})
        happened = data_files.write_events(table.folder, view.state.version + 1, [event])
        return Commit("forget_source", add=happened, remove=[found.file, *found.keys], details={"source": name}, scratch=happened), True

    return table.change(attempt)


# The part of a send ---------------------------------------------------------------------------------------------------


class Advancing:
    """The files by which a send takes a source further: keys are written once, the row for each try of the commit."""

    def __init__(self, table: Table, advance: Advance) -> None:
        self._table, self._advance = table, advance
        known = self._before(table.log.load())
        old = () if known is None else known.keys
        joined = advance.keys_since is not None or len(old) >= _FEW
        self._gone = old if joined else ()
        self._kept = () if joined else old
        self._keys = self._write_keys(known if joined else None)

    def part(self, state: LogState) -> tuple[list[DataFile], list[DataFile]]:
        """Return what a commit on a version adds and removes. Raises SourceTakenError when another send has advanced the source."""
        known = self._before(state)
        self._keys = [data_files.renamed(self._table.folder, file) for file in self._keys]
        kept = [file.path for file in (*self._kept, *self._keys)]
        record = {**self._advance.record, "keys": kept}
        row = data_files.one_row(SOURCE, lookup_id=0, message_id=self._advance.source, body=json.dumps(record).encode())
        written = data_files.write_new(self._table.folder, SOURCE, _POSITION_RECORD, row)
        reach("store.append.after_position")
        return [written, *self._keys], [] if known is None else [known.file, *self._gone]

    def discard(self) -> None:
        """Remove the files of keys: they did not become part of the table."""
        self._table.discard(self._keys)

    def _before(self, state: LogState) -> StoredSource | None:
        known = next((each for each in _stored_position(self._table, state) if each.name == self._advance.source), None)
        if (None if known is None else known.file.path) != self._advance.before:
            raise SourceTakenError(
                f"Somebody else has taken source {self._advance.source!r} into queue {self._table.name!r} meanwhile. Nothing was sent."
            )
        return known

    def _write_keys(self, joined: StoredSource | None) -> list[DataFile]:
        keys, since = self._advance.keys, self._advance.keys_since
        parts = [] if keys is None else [keys.select(["key", "at"])]
        if joined is not None:
            parts.insert(0, source_keys(self._table, joined))
        if not parts:
            return []
        together = pa.concat_tables(parts)
        if since is not None:
            together = together.filter(pc.greater_equal(together["at"], pa.scalar(since, pa.int64())))
        if not together.num_rows:
            return []
        count = together.num_rows
        cells = {
            "message_id": together["key"],
            "lookup_id": together["at"],
            "sub_queue": pa.repeat(pa.scalar(SOURCE), count),
            "move_count": pa.repeat(pa.scalar(_KEYS, pa.int32()), count),
        }
        rows = pa.table([cells.get(each.name, pa.nulls(count, each.type)) for each in table_schema()], schema=table_schema())
        return [data_files.write_new(self._table.folder, SOURCE, _KEYS, rows)]


def _stored_position(table: Table, state: LogState) -> tuple[StoredSource, ...]:
    paths = state.paths(SOURCE)
    if not paths:
        return ()
    return _sources_in(table, [file for file in state.files if file.sub_queue == SOURCE])


def _sources_in(table: Table, there: Sequence[DataFile]) -> tuple[StoredSource, ...]:
    live = {file.path: file for file in there}
    found = [_read(table, live, file) for file in live.values() if file.move_count == _POSITION_RECORD]
    return tuple(sorted(found, key=lambda each: each.name))


def _read(table: Table, live: Mapping[str, DataFile], file: DataFile) -> StoredSource:
    row = data_files.read_columns(table.folder, file.path, ["message_id", "body"]).to_pylist()[0]
    record = json.loads(row["body"])
    keys: Sequence[str] = record.pop("keys")
    return StoredSource(row["message_id"], record, file, tuple(live[path] for path in keys))


_STATES = tuple(PlanState)
_RECORD, _MEMBERS = 0, 1
"""Parts of a version, in the names of a plan's two files."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as it is stored.

    :param record: what it says, plain JSON values.
    :param done: messages of it that are done.
    :param canary_passed: the canary succeeded, or the plan was continued without one.
    :param members: the file of its messages.
    """

    plan: str
    record: Mapping[str, Any]
    state: PlanState
    done: int
    canary_passed: bool
    members: DataFile
    files: tuple[DataFile, ...]


def record_plan(
    table: Table, plan: str, record: Mapping[str, object], members: pa.Table, events: Sequence[Event], *, state: PlanState = PlanState.RUNNING
) -> bool:
    """Record a plan, in one commit; False when one with this id has been recorded before.

    :param members: ``table_schema()``; its messages by lookup id, as ``members_of`` gives them.
    """
    note = data_files.write_new(table.folder, PLAN, 0, data_files.one_row(PLAN, lookup_id=0, message_id=plan, body=json.dumps(record).encode()))
    written = [note, data_files.write_new(table.folder, PLAN, 0, members)]
    reach("store.plan.after_files")

    def attempt(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(_done(plan)) is not None:
            return None, False
        version = view.state.version + 1
        written[:] = [
            data_files.renamed(table.folder, file, prefix=commit_prefix(version, part))
            for part, file in zip((_RECORD, _MEMBERS), written, strict=True)
        ]
        happened = data_files.write_events(table.folder, version, events)
        numbers = {_done(plan): 0, _state(plan): _STATES.index(state)}
        return Commit("plan", add=[*written, *happened], numbers=numbers, details={"plan": plan}, scratch=happened), True

    made = table.change(attempt)  # files stay when this raises: the commit may have happened
    if not made:
        table.discard(written)
    return made


def set_plan_state(table: Table, plan: str, state: PlanState, allowed: Collection[PlanState], events: Sequence[Event]) -> None:
    """Bring a plan into another state, in one commit; nothing happens when it is in it. Raises PlanNotFoundError, PlanStateError."""

    def attempt(view: View) -> tuple[Commit | None, None]:
        now = _state_of(table, view.state, plan)
        if now is state:
            return None, None
        if now not in allowed:
            raise _refusal(table, plan, now, allowed)
        happened = data_files.write_events(table.folder, view.state.version + 1, events)
        numbers = {_state(plan): _STATES.index(state)} | ({_passed(plan): 1} if state is PlanState.RUNNING else {})
        return Commit("plan", add=happened, numbers=numbers, details={"plan": plan}, scratch=happened), None

    table.change(attempt)


def stored_plans(table: Table) -> tuple[StoredPlan, ...]:
    """Return the recorded plans, the oldest first; without those whose state the log has forgotten, after 30 days.

    One that cannot be read is named in the log, and keeps no other one from being read.
    """
    view = table.view()
    found, stored = iter(view.snapshot.plans), list[StoredPlan]()
    for note, members in zip(found, found, strict=True):
        try:
            each = _stored(table, view.state, note, members)
        except (PlanUnreadableError, TableChangedError) as error:
            _log.warning("A plan of queue %s is passed over: %s", table.name, error)
        else:
            stored += [] if each is None else [each]
    return tuple(stored)


def plan_states(table: Table, ids: MutableMapping[str, str]) -> dict[str, PlanState]:
    """Return the states of the recorded plans by their ids, the oldest first, without what they say.

    :param ids: of the plans whose files were read before, by path; what is read now is added.
    """
    view, states = table.view(), dict[str, PlanState]()
    for note in view.snapshot.plans[::2]:
        if note.path not in ids:
            [plan] = data_files.read_columns(table.folder, note.path, ["message_id"])["message_id"].to_pylist()
            ids[note.path] = plan or ""
        number = view.state.number(_state(ids[note.path]))
        if number is not None:
            states[ids[note.path]] = _STATES[number]
    return states


def plan_members(table: Table, plan: StoredPlan) -> pa.Table:
    """Return the messages of a plan: ``lookup_id``, and where each was, as ``message_type`` (sub-queue), ``priority`` (move count) and ``due_at``."""
    return data_files.read_columns(table.folder, plan.members.path, ["lookup_id", "message_type", "priority", "due_at"])


@dataclass(frozen=True, slots=True)
class Removal:
    """Messages of one file that a plan has taken out of the queue.

    :param number: of the removals of its plan.
    :param path: where the file was; it is there until maintenance has cleaned up what the newest versions do not need.
    """

    number: int
    path: str
    lookup_ids: tuple[int, ...]


def removals_of(table: Table, plan: str) -> tuple[Removal, ...]:
    """Return the removals of a plan from its events, in order."""
    removals = [details for details in history.details_of_plan(table, plan) if "lookup_ids" in details and details.get("place") == ""]
    return tuple(Removal(number, each["path"], tuple(history.from_ranges(each["lookup_ids"]))) for number, each in enumerate(removals))


def bring_back(table: Table, removal: Removal, step: PlanStep, event: Event) -> bool | None:
    """Bring the messages of a removal back to where they were, in one commit; False when that was done before, None when their file is gone.

    Raises PlanStateError.
    """
    place = data_files.partition_of(removal.path)
    assert place is not None, removal.path
    try:
        rows = data_files.read_columns(table.folder, removal.path, message_schema().names)
    except TableChangedError:
        return None
    chosen = rows.filter(pc.is_in(rows["lookup_id"], pa.array(removal.lookup_ids, pa.int64())))
    written = [data_files.write_new(table.folder, place[0], place[1], chosen)]
    reach("store.bring_back.after_files")
    key = f"{_done(step.plan)}:back:{removal.number}"

    def attempt(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(key) is not None:
            return None, False
        numbers = {**counted(table, view.state, step), key: 1}
        written[:] = [data_files.renamed(table.folder, file) for file in written]
        happened = data_files.write_events(table.folder, view.state.version + 1, [event])
        details = {"plan": step.plan, "brought_back": chosen.num_rows}
        return Commit("bring_back", add=[*written, *happened], numbers=numbers, details=details, scratch=happened), True

    made = table.change(attempt)  # files stay when this raises: the commit may have happened
    if not made:
        table.discard(written)
    return made


def remove_plans(table: Table, plans: Sequence[StoredPlan]) -> int:
    """Remove plans, and those whose state the log has forgotten, in one commit; return how many. What they have done stays done."""
    wanted = [file for each in plans for file in each.files]

    def attempt(view: View) -> tuple[Commit | None, int]:
        found = iter(view.snapshot.plans)
        forgotten = [file for pair in zip(found, found, strict=True) if _is_forgotten(table, view.state, pair[0]) for file in pair]
        present = [view.live[file.path] for file in (*wanted, *forgotten) if file.path in view.live]
        return (Commit("remove_plans", remove=present) if present else None), len(present) // 2

    return table.change(attempt)


def counted(table: Table, state: LogState, step: PlanStep) -> Mapping[str, int]:
    """Return the numbers of the commit that does a step. Raises PlanNotFoundError, PlanStateError."""
    now = _state_of(table, state, step.plan)
    if now not in step.states:
        raise _refusal(table, step.plan, now, step.states)
    return {_done(step.plan): (state.number(_done(step.plan)) or 0) + step.messages}


def _stored(table: Table, state: LogState, note: DataFile, members: DataFile) -> StoredPlan | None:
    row = data_files.read_columns(table.folder, note.path, ["message_id", "body"]).to_pylist()[0]
    plan, number = row["message_id"], state.number(_state(row["message_id"]))
    if number is None:
        return None
    passed = state.number(_passed(plan)) is not None
    return StoredPlan(plan, _record(table, plan, row["body"]), _STATES[number], state.number(_done(plan)) or 0, passed, members, (note, members))


def _is_forgotten(table: Table, state: LogState, note: DataFile) -> bool:
    """Whether the log knows no state of a plan any more; not of one whose file cannot be read."""
    try:
        [plan] = data_files.read_columns(table.folder, note.path, ["message_id"])["message_id"].to_pylist()
    except TableChangedError:
        return False
    return state.number(_state(plan or "")) is None


def _record(table: Table, plan: str, body: bytes) -> Mapping[str, Any]:
    """Return what a plan says. Raises PlanUnreadableError for what is no JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(table.name, plan, error) from error
    if not isinstance(found, dict):
        raise unreadable(table.name, plan, TypeError("it is no JSON object"))
    return found


def unreadable(queue: str, plan: str, error: Exception) -> PlanUnreadableError:
    """Return the error for a plan whose record is none."""
    return PlanUnreadableError(
        f"What plan {plan!r} of queue {queue!r} says cannot be read ({type(error).__name__}: {error}): a newer version of this package, or something "
        "else, has written it. Nothing is done by it, and other plans are as they were. Read it with the version that made it."
    )


def _state_of(table: Table, state: LogState, plan: str) -> PlanState:
    number = state.number(_state(plan))
    if number is None:
        raise PlanNotFoundError(f"Queue {table.name!r} has no plan {plan!r}: its plans are listed by 'airflow poison plans {table.name}'.")
    return _STATES[number]


def _refusal(table: Table, plan: str, now: PlanState, allowed: Collection[PlanState]) -> PlanStateError:
    wanted = " or ".join(each.value for each in PlanState if each in allowed)
    return PlanStateError(f"Plan {plan!r} of queue {table.name!r} is {now.value}; expected {wanted}. Nothing has changed.")


def _done(plan: str) -> str:
    return f"plan:{plan}"


def _state(plan: str) -> str:
    return f"plan:{plan}:state"


def _passed(plan: str) -> str:
    return f"plan:{plan}:canary"
