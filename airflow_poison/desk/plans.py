"""Plans: what is to be done to which messages of one version of a queue. Made without writing anything, recorded once, listed, paused, cancelled.

A plan's messages are remembered as they were: by lookup id, sub-queue, move count and due time. What has changed since is not touched, so messages
that came later, or came again, are not in the plan. ``applying`` does what a plan says; a canary says how the messages that were done first ended.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import numpy as np

from airflow_poison.desk import sql
from airflow_poison.desk.actions import Edited, PlanAction, UnfitError, Verb, editor
from airflow_poison.desk.queries import files_of
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.browse import look_up
from airflow_poison.passes.declaration import Canary
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.runs import check_key
from airflow_poison.rules.settings import whole_number
from airflow_poison.store.files import PlanState
from airflow_poison.store.history import from_ranges
from airflow_poison.store.plans import unreadable
from airflow_poison.values.errors import PlanNotFoundError, PlanUnreadableError, SettingError
from airflow_poison.values.events import WHO, Event, EventType, acting
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import PLAN, SubQueue, message_schema, table_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_log = logging.getLogger(__name__)

_LEFT = frozenset(
    {EventType.DROPPED, EventType.REJECTED, EventType.EXCEPTIONED, EventType.REQUEUED, EventType.DEAD_LETTERED, EventType.FAULTED, EventType.LOST}
)
"""Ends of a message other than that its handler returned."""


@dataclass(frozen=True, slots=True)
class CanarySeen(Plain):
    """What has become of a canary's messages.

    :param settled: gone because their handler returned.
    :param failed: in poison again, or gone in another way.
    :param waiting: still to be received, or to be tried again.
    :param again: the lookup ids of those that are in poison again.
    """

    settled: int
    failed: int
    waiting: int
    again: tuple[int, ...] = ()

    def good(self, wanted: Canary | None) -> bool:
        """Whether enough were settled."""
        return wanted is None or self.settled >= wanted.share * self._all

    def decided(self, wanted: Canary | None) -> bool:
        """Whether those that wait change nothing any more."""
        return self.good(wanted) or (wanted is not None and self.settled + self.waiting < wanted.share * self._all)

    @property
    def _all(self) -> int:
        return self.settled + self.failed + self.waiting


def judged(table: QueueTable, found: StoredPlan, unfit: Collection[int] = ()) -> CanarySeen:
    """Look at what has become of a plan's canary.

    :param unfit: messages that an edit does not fit: they stay as they are, so they have failed.
    """
    ids = set(found.record["canary"]["ids"])
    members = Members.stored(table.plan_members(found)).only(sorted(ids))
    planned = dict(zip(members.ids.tolist(), members.moves.tolist(), strict=True))
    here, again = 0, list[int]()
    for file in table.snapshot().files:
        if any(file.min_lookup_id <= each <= file.max_lookup_id for each in ids):
            there = [number for number in table.select(file, ids, ["lookup_id"])["lookup_id"].to_pylist() if number is not None]
            here += len(there)
            stay = there if found.state is PlanState.STOPPED else [number for number in there if number in unfit]
            moved = [number for number in there if file.sub_queue == SubQueue.POISON and file.move_count > planned[number]]
            again += {*moved, *(number for number in stay if file.move_count == planned[number])}
    newest, _ = table.newest_events(10 * len(ids), lookup_ids=ids, types=_LEFT)
    gone = {event.lookup_id for event in newest if event.details.get("by") != "undo"}
    gone_otherwise = len(gone & ids) if here < len(ids) else 0
    return CanarySeen(len(ids) - here - gone_otherwise, len(again) + gone_otherwise, here - len(again), tuple(again))


def canary_errors(table: QueueTable, again: Sequence[int]) -> tuple[PlannedGroup, ...]:
    """Return by which errors messages of a canary are in poison again, the most frequent first. What it shows has no hidden values."""
    if not again:
        return ()
    chosen = Selection(lookup_ids=tuple(again))
    with sql.messages(table, files_of(table.snapshot().files, chosen)) as engine:
        where, values = sql.condition(engine, chosen)
        counted = f"""select coalesce(error, ''), coalesce(any_value(error_type), ''), coalesce(any_value(error_message), ''), count(*) as messages
            from messages where {where} group by 1 order by messages desc, 1 limit {GROUPS}"""
        return tuple(PlannedGroup(*each) for each in engine.execute(counted, values).fetchall())


PLACES = tuple(SubQueue)
WAITING = frozenset({SubQueue.RETRY.value, SubQueue.POSTPONED.value})
COLUMNS = ("lookup_id", "due_at")
"""The columns that identify the rows of a file."""
NEVER = -1


@dataclass(frozen=True, slots=True)
class Members:
    """Messages, each with the sub-queue, the move count and the due time that it is to be found with. Columns of equal length, sorted by lookup id.

    :param places: numbers of sub-queues in the order of ``PLACES``.
    :param dues: microseconds; -1 where it is of no matter.
    """

    ids: Numbers
    places: Numbers
    moves: Numbers
    dues: Numbers

    @classmethod
    def stored(cls, rows: pa.Table) -> Self:
        """Return the members that a plan's file has (``QueueTable.plan_members``)."""
        names = pa.array([place.value for place in PLACES])
        places = np.asarray(pc.index_in(rows["message_type"], value_set=names).to_numpy(), np.int64)
        found = cls(counts_of(rows["lookup_id"]), places, counts_of(rows["priority"]), due_numbers(rows["due_at"]))
        waiting = np.isin(places, [PLACES.index(SubQueue(each)) for each in WAITING])
        return replace(found, dues=np.where(waiting, found.dues, NEVER))

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, ids: Sequence[int]) -> Self:
        """Return those with these lookup ids."""
        return self._where(np.isin(self.ids, np.array(ids, np.int64)))

    def without(self, ids: Collection[int]) -> Self:
        """Return those without these lookup ids."""
        return self._where(~np.isin(self.ids, np.array([*ids], np.int64)))

    def moved_to(self, place: SubQueue) -> Self:
        """Return them as they are after a move by hand: what was postponed comes to ``main`` uncounted."""
        uncounted = self.places == PLACES.index(SubQueue.POSTPONED) if place is SubQueue.MAIN else np.zeros(len(self), bool)
        return replace(
            self, places=np.full(len(self), PLACES.index(place), np.int64), moves=self.moves + ~uncounted, dues=np.full(len(self), NEVER, np.int64)
        )

    def where_they_were(self, ids: Numbers) -> list[SubQueue]:
        """Return the sub-queues of some of them."""
        return [PLACES[number] for number in self.places[np.searchsorted(self.ids, ids)]]

    def may_be_in(self, file: DataFile) -> bool:
        """Whether the statistics of a file allow it to hold one of them."""
        start, end = np.searchsorted(self.ids, [file.min_lookup_id, file.max_lookup_id + 1])
        return bool((self.places[start:end] == PLACES.index(SubQueue(file.sub_queue))).any())

    def mask(self, file: DataFile, rows: pa.Table) -> Mask:
        """Return which rows of a file are theirs, as they are to be found.

        :param rows: with ``COLUMNS``.
        """
        ids = counts_of(rows["lookup_id"])
        if not len(self):
            return np.zeros(len(ids), bool)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        found: Mask = (self.ids[at] == ids) & (self.places[at] == PLACES.index(SubQueue(file.sub_queue))) & (self.moves[at] == file.move_count)
        if file.sub_queue in WAITING:
            found &= (self.dues[at] == NEVER) | (self.dues[at] == due_numbers(rows["due_at"]))
        return found

    def _where(self, mask: Mask) -> Self:
        return replace(self, ids=self.ids[mask], places=self.places[mask], moves=self.moves[mask], dues=self.dues[mask])


def counts_of(column: Any) -> Numbers:
    """Return whole numbers; 0 for none."""
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def due_numbers(column: Any) -> Numbers:
    """Return due times as microseconds; -1 for none."""
    return np.asarray(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(NEVER).to_numpy(), dtype=np.int64)


CHUNK = 50_000
"""So many messages are changed in one commit, unless a plan says otherwise."""
PLANNED = "planned"
"""The state of a plan that is not recorded."""
GROUPS, SAMPLES, SAMPLE_BYTES = 50, 10, 2_048
OPEN = frozenset({PlanState.RUNNING, PlanState.CANARY, PlanState.PAUSED, PlanState.STOPPED, PlanState.FAILED})
"""States of plans that may go on."""
UNFIT, UNFIT_WHY = "unfit", "unfit_why"
"""What the event of a plan's end says of messages that it could not be done to: their lookup ids, and the reasons of the first ones as JSON."""


@dataclass(frozen=True, slots=True)
class PlannedGroup(Plain):
    """Messages of a plan that failed alike."""

    error: str
    type: str
    text: str
    messages: int


@dataclass(frozen=True, slots=True)
class Sample(Plain):
    """A message of a plan.

    :param before: of an edit, the beginning of the body; ``after``: what it becomes. ``unfit``: why it cannot be edited.
    """

    lookup_id: int
    sub_queue: str
    reason: str
    before: str | None = None
    after: str | None = None
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class UnfitMessage(Plain):
    """A message of a plan that stays as it is.

    :param why: empty where more messages stay than reasons are recorded.
    """

    lookup_id: int
    why: str


@dataclass(frozen=True, slots=True)
class PlanView(Plain):
    """A plan as people and tasks see it; ``state`` is ``planned`` while it is not recorded, and ``plan``, its id, empty.

    :param messages: in the plan; ``done``: of these, those that it was done to.
    :param skipped: those that had changed since, or that an edit did not fit; known when it has ended.
    :param claimed: messages that passes had claimed at the last look: they wait.
    :param export_to: where its messages are written before anything is done to them; empty: nowhere.
    :param unfit: of one that is done, the skipped messages that it could not be done to; only of a plan that is asked for by its id.
    :param error: why one that has failed could not go on; only of a plan that is asked for by its id.
    """

    queue: str
    plan: str
    version: int
    action: PlanAction
    selection: Selection
    at: datetime
    messages: int
    claimed: int = 0
    groups: tuple[PlannedGroup, ...] = ()
    samples: tuple[Sample, ...] = ()
    state: str = PLANNED
    done: int = 0
    skipped: int = 0
    who: str = ""
    reason: str = ""
    rate: int | None = None
    chunk: int | None = None
    canary: Canary | None = None
    export_to: str = ""
    unfit: tuple[UnfitMessage, ...] = ()
    error: str = ""

    @property
    def undoable(self) -> bool:
        """Whether undoing can bring messages back that were not received since."""
        return self.action.verb is not Verb.SEND_TO

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return Plain.to_dict(self) | {"undoable": self.undoable}


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that is not recorded: what people see, and its messages.

    :param action: with the values that the view hides.
    :param members: ``lookup_id``, ``sub_queue``, ``move_count``, ``due_at``, ``error``; by lookup id. Texts are dictionaries: the page keeps plans.
    """

    view: PlanView
    action: PlanAction = field(repr=False)
    members: pa.Table = field(repr=False)


def plan(
    table: QueueTable,
    selection: Selection,
    action: PlanAction,
    clock: Clock,
    *,
    limit: int | None = None,
    version: int | None = None,
    unmask: bool = False,
    among: Sequence[int] | None = None,
) -> Plan:
    """Say what an action would do to a selection's messages of the newest version. Writes nothing. What it shows has no hidden values.

    :param limit: only so many messages, those with the lowest lookup ids.
    :param version: an earlier version, which was shown; None: the newest.
    :param unmask: the selection's conditions see values that the queue hides.
    :param among: the selection's messages with these lookup ids only, which the plan does not say.
    Raises SettingError for a sub-queue whose messages the action cannot be done to, QueryError for a condition that is none, PlanStateError for a
    version that cannot be looked at any more.
    """
    if selection.sub_queue is not None and selection.sub_queue not in action.places:
        names = " or ".join(place.value for place in PLACES if place in action.places)
        raise SettingError("sub_queue", selection.sub_queue.value, f"{names}, for verb={action.verb.value!r}")
    if limit is not None:
        whole_number("limit", limit, 1)
    snapshot = table.snapshot()
    masking = Masking.recorded(snapshot.control.desk)
    version = snapshot.version if version is None else whole_number("version", version, most=2**63 - 1)
    found = [file for file in files_of(table.files_at(version), selection) if file.sub_queue in action.places]
    taken = [str(table.folder.here(file.path)) for file in found if file.path in snapshot.claimed_paths]
    with sql.messages(table, found, unmask=unmask) as engine:
        where, values = sql.condition(engine, selection, among)
        most = "" if limit is None else f"order by lookup_id limit {limit}"
        rows: pa.Table = engine.sql(  # no texts: a million of them are most of what a plan takes
            f"""select lookup_id, sub_queue, move_count, due_at, coalesce(error, '') as error, file in (select unnest(?::varchar[])) as claimed
            from located where {where} {most}""",
            params=[taken, *values],
        ).to_arrow_table(CHUNK)
        engine.register("chosen", rows)  # a table of the engine's takes twice as much
        [(messages, claimed)] = engine.execute("select count(*), count(*) filter (claimed) from chosen").fetchall()
        if action.body is not None and messages > 1:
            raise SettingError("body", f"{messages:,} messages", "a selection of one message: the others would lose theirs; use patch or function")
        engine.execute(
            f"""create temp table grouped as with counted as
            (select error, count(*) as messages, min(lookup_id) as lookup_id from chosen group by error order by messages desc, error limit {GROUPS})
            select counted.*, coalesce(error_type, '') as type, coalesce(error_message, '') as message, coalesce(reason, '') as reason, sub_queue
            from counted join (select lookup_id, sub_queue, error_type, error_message, reason from located) as located using (lookup_id)"""
        )
        groups = engine.execute("select error, type, message, messages from grouped order by messages desc, error").fetchall()
        samples = _samples(table, engine, action, masking)
        kept = ("lookup_id", "sub_queue", "move_count", "due_at", "error")
        columns = {name: rows[name].dictionary_encode() if name in {"sub_queue", "error"} else rows[name] for name in kept}
        members = rows.from_pydict(columns).sort_by("lookup_id").combine_chunks()  # a copy: a column of the engine's keeps all of its memory
    shown = action.without_values(masking)
    view = PlanView(table.name, "", version, shown, selection, clock.now(), messages, claimed, tuple(PlannedGroup(*each) for each in groups), samples)
    return Plan(view, action, members)


def _samples(table: QueueTable, engine: duckdb.DuckDBPyConnection, action: PlanAction, masking: Masking | None) -> tuple[Sample, ...]:
    """Return some messages: one of each of the largest groups, and where there are few groups, more of them."""
    chosen = engine.execute(f"select lookup_id, sub_queue, reason from grouped order by messages desc, lookup_id limit {SAMPLES}").fetchall()
    if len(chosen) < SAMPLES:
        chosen += engine.execute(
            f"""with more as
            (select lookup_id from chosen where lookup_id not in (select lookup_id from grouped) order by lookup_id limit {SAMPLES - len(chosen)})
            select lookup_id, sub_queue, coalesce(reason, '') from located join more using (lookup_id) order by lookup_id"""
        ).fetchall()
    found = tuple(Sample(*each) for each in chosen)
    if action.verb is not Verb.EDIT:
        return found

    edit = editor(action, "")
    rows = {row.lookup_id: row for row in look_up(table, Chosen.ids([each.lookup_id for each in found]), unmask=True)}
    contents = {number: Edited(row.body, row.properties) for number, row in rows.items()}
    return tuple(_edited(each, contents[each.lookup_id], edit, masking) for each in found if each.lookup_id in rows)


def _edited(sample: Sample, before: Edited, edit: Any, masking: Masking | None) -> Sample:
    try:
        after = edit(before)
    except UnfitError as error:
        why = str(error) if masking is None else masking.values(before.body, before.properties).hide(str(error))
        return replace(sample, before=_begin(before.body, masking), unfit=why)
    return replace(sample, before=_begin(before.body, masking), after=_begin(after.body, masking))


def _begin(body: bytes, masking: Masking | None) -> str:
    return (body if masking is None else masking.body(body))[:SAMPLE_BYTES].decode(errors="replace")


# Recorded plans -------------------------------------------------------------------------------------------------------


def record(
    table: QueueTable,
    planned: Plan,
    clock: Clock,
    *,
    who: str,
    reason: str = "",
    rate: int | None = None,
    chunk: int | None = None,
    canary: Canary | None = None,
    key: str = "",
    export_to: str = "",
    facts: Mapping[str, str] = MappingProxyType({}),
    paused: bool = False,
) -> str:
    """Record a plan in the queue, in one commit, so that any process can apply it; return its id.

    :param who: who decided it, as its events say; ``reason``: why.
    :param rate: messages a second, at most; None: as fast as it goes.
    :param chunk: messages of one commit; None: 50,000, or what ``rate`` allows in a second.
    :param key: names what decided it: recorded again with the same key, it is the same plan, whatever its messages would be now.
    :param export_to: a folder, or a prefix in an object store, where its messages are written before anything is done to them.
    :param facts: further texts by name that its events say, for example which rule of the queue has made it.
    :param paused: it waits until it is resumed.
    Raises SettingError.
    """
    for name, value in (("rate", rate), ("chunk", chunk)):
        if value is not None:
            whole_number(name, value, 1)
    if canary is not None and planned.view.action.place is not SubQueue.MAIN:
        raise SettingError("canary", canary, "none, or an action that puts messages into main, where a pass settles them")
    view, now = planned.view, clock.now()
    plan_id = id_of(key) if key else uuid4().hex[:12]
    recorded = view.to_dict() | {
        "action": planned.action.to_dict(),
        "plan": plan_id,
        "at": now.isoformat(),
        "who": who,
        "reason": reason,
        "rate": rate,
        "chunk": chunk,
        "export_to": export_to,
        "facts": dict(facts),
    }
    recorded |= {"canary": None if canary is None else canary.to_dict() | {"ids": _canary_ids(planned.members, canary.messages)}}
    state = PlanState.PAUSED if paused else PlanState.RUNNING if canary is None else PlanState.CANARY
    noted = {"plan": plan_id, "verb": view.action.verb.value, "messages": str(view.messages), "selection": str(view.selection)}
    noted |= {**facts, "state": state.value}
    with acting(who, reason):
        table.record_plan(
            plan_id,
            recorded,
            _members(planned.members),
            [Event(EventType.PLANNED, now, details=noted)],
            state=state,
        )
    return plan_id


def id_of(key: str) -> str:
    """Return the id of the plan that is recorded with a key."""
    return sha256(check_key(key).encode()).hexdigest()[:12]


def _members(members: pa.Table) -> pa.Table:

    columns = {
        "lookup_id": members["lookup_id"],
        "message_type": members["sub_queue"].cast(pa.string()),
        "priority": members["move_count"].cast(pa.int32()),
        "due_at": members["due_at"].cast(message_schema().field("due_at").type),
        "sub_queue": pa.repeat(pa.scalar(PLAN), members.num_rows),
        "move_count": pa.repeat(pa.scalar(0, pa.int32()), members.num_rows),
    }
    cells = [columns.get(each.name, pa.nulls(members.num_rows, each.type)) for each in table_schema()]
    return pa.table(cells, schema=table_schema())


def _canary_ids(members: pa.Table, most: int) -> list[int]:
    """Return some messages of each error group, so many in all."""
    groups: dict[str, list[int]] = {}
    for lookup_id, error in zip(members["lookup_id"].to_pylist(), members["error"].to_pylist(), strict=True):
        some = groups.setdefault(error or "", [])
        if len(some) < most:
            some.append(lookup_id or 0)
    chosen: list[int] = []
    while len(chosen) < most and any(groups.values()):
        for some in groups.values():
            if some and len(chosen) < most:
                chosen.append(some.pop(0))
    return sorted(chosen)


def plans(table: QueueTable) -> tuple[PlanView, ...]:
    """Return the recorded plans of a queue, the newest first. One that cannot be read is named in the log, and keeps no other one from its place."""
    found = list[PlanView]()
    for each in reversed(table.stored_plans()):
        try:
            found.append(view_of(table, each))
        except PlanUnreadableError as error:
            _log.warning("A plan of queue %s is passed over: %s", table.name, error)
    return tuple(found)


def find_plan(table: QueueTable, plan_id: str) -> PlanView:
    """Return a recorded plan. Raises PlanNotFoundError."""
    view = view_of(table, stored(table, plan_id))
    if view.state == PlanState.FAILED:
        return replace(view, error=_last_details(table, plan_id, PlanState.FAILED).get("error", ""))
    return replace(view, unfit=_unfit(table, plan_id)) if view.skipped else view


def _unfit(table: QueueTable, plan_id: str) -> tuple[UnfitMessage, ...]:
    """Return what the end of a plan says of messages that it could not be done to."""
    found = next((details for details in table.details_of_plan(plan_id) if UNFIT in details), None)
    if found is None:
        return ()
    why = json.loads(found[UNFIT_WHY])
    return tuple(UnfitMessage(number, why.get(str(number), "")) for number in from_ranges(found[UNFIT]))


def stored(table: QueueTable, plan_id: str) -> StoredPlan:
    """Return a plan as it is stored. Raises PlanNotFoundError."""
    found = next((each for each in table.stored_plans() if each.plan == plan_id), None)
    if found is None:
        raise PlanNotFoundError(f"Queue {table.name!r} has no plan {plan_id!r}: 'airflow poison plans {table.name}' lists those that it has.")
    return found


def facts_of(found: StoredPlan) -> Mapping[str, str]:
    """Return the further texts that a plan's events say; none where they cannot be read."""
    facts = found.record.get("facts", {})
    return facts if isinstance(facts, dict) else {}


def view_of(table: QueueTable, found: StoredPlan) -> PlanView:
    """Return a stored plan as people see it. Raises PlanUnreadableError."""
    try:
        return _view_of(table, found)
    except (SettingError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise unreadable(table.name, found.plan, error) from error


def _view_of(table: QueueTable, found: StoredPlan) -> PlanView:
    recorded: Mapping[str, Any] = found.record
    canary = recorded.get("canary")
    if not isinstance(recorded.get("facts", {}), dict):
        raise TypeError("facts is no JSON object")
    return PlanView(
        queue=table.name,
        plan=found.plan,
        version=recorded["version"],
        action=PlanAction.from_dict(recorded["action"]).without_values(Masking.recorded(table.snapshot().control.desk)),
        selection=Selection.from_dict(recorded["selection"]),
        at=datetime.fromisoformat(recorded["at"]).astimezone(UTC),
        messages=recorded["messages"],
        groups=tuple(PlannedGroup(**each) for each in recorded["groups"]),
        samples=tuple(Sample(**each) for each in recorded["samples"]),
        state=found.state.value,
        done=found.done,
        skipped=recorded["messages"] - found.done if found.state is PlanState.DONE else 0,
        who=recorded["who"],
        reason=recorded["reason"],
        rate=recorded["rate"],
        chunk=recorded["chunk"],
        canary=None if canary is None else Canary(canary["messages"], canary["share"]),
        export_to=recorded.get("export_to", ""),
    )


def why_stopped(table: QueueTable, plan_id: str) -> str:
    """Return what has become of the canary that has stopped a plan, as a clause."""
    last = _last_details(table, plan_id, PlanState.STOPPED)
    if not last:
        return "its canary has failed"
    settled, failed = last.get("settled", "0"), last.get("failed", "0")
    return f"of the messages that went first {int(settled):,} were settled and {int(failed):,} failed"


def paused_by(table: QueueTable, plan_id: str) -> str:
    """Return who has paused a plan last; empty when it is not paused."""
    return _last_details(table, plan_id, PlanState.PAUSED).get(WHO, "")


def _last_details(table: QueueTable, plan_id: str, state: PlanState) -> Mapping[str, str]:
    """Return what the event says that has brought a plan into a state last; nothing when none has."""
    found = [details for details in table.details_of_plan(plan_id) if details.get("state") == state]
    return found[-1] if found else {}


def change_state(table: QueueTable, plan_id: str, state: PlanState, allowed: frozenset[PlanState], clock: Clock, **facts: str) -> PlanView:
    """Bring a plan into another state, and record that. Raises PlanNotFoundError, PlanStateError."""
    noted = {"plan": plan_id, "state": state.value, **facts_of(stored(table, plan_id)), **facts}
    table.set_plan_state(plan_id, state, allowed, [Event(EventType.PLAN_CHANGED, clock.now(), details=noted)])
    return find_plan(table, plan_id)


def pause(table: QueueTable, plan_id: str, clock: Clock, *, who: str, reason: str = "") -> PlanView:
    """Let nothing more become of a plan until it is resumed; a chunk whose commit is being made is the last one."""
    with acting(who, reason):
        return change_state(table, plan_id, PlanState.PAUSED, frozenset({PlanState.RUNNING, PlanState.CANARY}), clock)


def resume(table: QueueTable, plan_id: str, clock: Clock, *, who: str, reason: str = "") -> PlanView:
    """Let a paused or failed plan go on where it was; one that its canary has stopped goes on without one. ``apply`` does the rest.

    Nothing changes for a plan that is not paused: its process may have died.
    """
    with acting(who, reason):
        found = stored(table, plan_id)
        waits = found.state is not PlanState.STOPPED and found.record.get("canary") is not None and not found.canary_passed
        state = PlanState.CANARY if waits else PlanState.RUNNING
        return change_state(table, plan_id, state, frozenset({PlanState.PAUSED, PlanState.STOPPED, PlanState.FAILED, state}), clock)


def cancel(table: QueueTable, plan_id: str, clock: Clock, *, who: str, reason: str = "") -> PlanView:
    """End a plan; what it has done stays done."""
    with acting(who, reason):
        return change_state(table, plan_id, PlanState.CANCELLED, OPEN, clock)
