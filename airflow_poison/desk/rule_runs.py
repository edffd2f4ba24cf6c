"""Runs of a queue's rules: which messages each rule has now, and what it does with them. A dry run only says so.

What a rule has done is read from the queue, never from memory: how often it has put a message back and which messages it has reported from recorded
events, and what it has asked from its recorded plans. So a run that is killed anywhere is gone on with by the next one, and does each message once.

Redrive for a new handler: for each new ``handler_version`` some messages of each error group go back to main, and then the others.

Off unless the setting is recorded in the queue. Each error group has a plan of its own with a canary: a canary that fails stops only its own group.
A version is redriven once in a queue, also when versions change back and forth.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_poison.desk import sql
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, check_target, kept
from airflow_poison.desk.exports import export_files
from airflow_poison.desk.plans import CHUNK, OPEN, cancel, facts_of, find_plan, id_of, plan, record
from airflow_poison.desk.queries import files_of, groups
from airflow_poison.desk.rules import RuleVerb, configure, rules_before, rules_of
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.declaration import Canary
from airflow_poison.store.control import DESK, QueueState
from airflow_poison.store.files import PlanState
from airflow_poison.store.history import as_ranges
from airflow_poison.values.errors import PlanStateError, QueryError, SettingError, TableChangedError
from airflow_poison.values.events import Event, EventType, acting
from airflow_poison.values.fault_points import reach
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    import duckdb

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.desk.rules import Rule
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


RULE = "rule"
"""The key of a rule's name in the events of its plans and alerts."""


@dataclass(frozen=True, slots=True)
class RuleResult(Plain):
    """What one rule has, and what it did.

    :param messages: it has now: no earlier rule has them. ``now``: of these, those that it takes in this run.
    :param waiting: those whose time has not come, or whose plan waits: for an answer, or because it is paused.
    :param plan: the plan that does it, or proposes it; empty: there is none. ``state``: of that plan; ``done``: messages that it has done.
    :param files: where the plan's messages were written before they were removed.
    """

    rule: str
    verb: RuleVerb
    messages: int
    now: int
    waiting: int
    plan: str = ""
    state: str = ""
    done: int = 0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RulesResult(Plain):
    """What the rules of a queue have, in their order, and did.

    :param messages: in poison. ``unmatched``: of these, those that no rule has.
    :param continued: plans of earlier runs that were gone on with.
    """

    queue: str
    version: int
    at: datetime
    dry_run: bool
    messages: int
    unmatched: int
    rules: tuple[RuleResult, ...]
    continued: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Has:
    """What a rule has: how many messages, how many wait, and the lookup ids of those that it takes now.

    :param alerted: how often it had alerted people before.
    """

    rule: Rule
    messages: int
    waiting: int
    now: Sequence[int]
    alerted: int

    @property
    def result(self) -> RuleResult:
        return RuleResult(self.rule.name, self.rule.verb, self.messages, len(self.now), self.waiting)


@dataclass(frozen=True, slots=True)
class _Look:
    """What all rules have in one version of the queue."""

    version: int
    messages: int
    unmatched: int
    has: tuple[_Has, ...]


def dry_run(table: QueueTable, clock: Clock, rules: Sequence[Rule] | None = None, store: QueueStore | None = None) -> RulesResult:
    """Say what each rule has and would take now. Writes nothing. Raises QueryError, QueueNotFoundError for a queue that a rule would send to.

    :param rules: to try; None: those that are recorded in the queue.
    :param store: of the queue; None: whether there are the queues that rules send to is not asked.
    """
    failed = list[Exception]()
    seen = _look(table, rules_of(table.snapshot().control) if rules is None else rules, clock.now(), failed)
    if failed:
        raise failed[0]
    for has in seen.has:
        if store is not None and has.now and has.rule.target:
            check_target(has.rule.target, table, store)
    return _result(table, seen, clock, dry_run=True, rules=tuple(has.result for has in seen.has))


def run_rules(
    table: QueueTable,
    clock: Clock,
    *,
    who: str,
    store: QueueStore | None = None,
    run: str = "",
    progress: Callable[[PlanView], object] = lambda _view: None,
    stop: Callable[[], bool] = lambda: False,
) -> RulesResult:
    """Do what the rules of a queue say, as far as it is time. Safe to call again, and in several processes at the same time. Raises QueryError.

    A rule that cannot be read, or whose condition cannot be asked, is an error when those before it have run; those behind it do not, since messages
    that it would have are not theirs.

    Each rule that puts back, sends or removes does so by a recorded plan. One that asks records its plan paused: it waits until it is resumed or
    cancelled. One that tells records an event, from which alerts are made.

    :param who: runs them, as the events say.
    :param store: of the queue, for messages that are sent to other queues.
    :param run: names the run: its rules have one plan each, however often it is called.
    """
    did, failed, ways = list[RuleResult](), list[Exception](), _Ways(store, progress, stop)
    rules, wrong = rules_before(table.snapshot().control)
    continued = _continued(table, rules, clock, who, ways, failed)
    failed += [] if wrong is None else [wrong]
    seen = _look(table, rules, clock.now(), failed)
    for has in seen.has:
        with kept(failed):
            did.append(_done(table, has, clock, who, run, seen.version, ways))
    if failed:
        raise failed[0]
    return _result(table, seen, clock, dry_run=False, rules=tuple(did), continued=tuple(continued))


def proposal(table: QueueTable, run: str, rule: str) -> StoredPlan | None:
    """Return the proposal of a run for a rule that is not decided yet."""
    mine = id_of(_key(run, rule))
    return next((each for each in table.stored_plans() if each.plan == mine and each.state is PlanState.PAUSED), None)


@dataclass(frozen=True, slots=True)
class _Ways:
    store: QueueStore | None
    progress: Callable[[PlanView], object]
    stop: Callable[[], bool]


def _result(table: QueueTable, seen: _Look, clock: Clock, **parts: Any) -> RulesResult:
    return RulesResult(queue=table.name, version=seen.version, at=clock.now(), messages=seen.messages, unmatched=seen.unmatched, **parts)


def _key(run: str, rule: str) -> str:
    return f"rules\x1f{run}\x1f{rule}"


# What is done ---------------------------------------------------------------------------------------------------------


def _continued(table: QueueTable, rules: Sequence[Rule], clock: Clock, who: str, ways: _Ways, failed: list[Exception]) -> list[str]:  # noqa: PLR0917
    """Go on with the plans of runs that were killed, and with those whose messages could not be written; return which.

    Where messages are written first, the plans of a rule are done one after the other, so that none is written twice. A plan that has removed nothing
    is cancelled when its rule writes to another place now: the old one may never be there.
    """
    places, waiting, done = {rule.name: rule.export_to for rule in rules}, set[str](), list[str]()
    for found in _interrupted(table):
        rule, place = facts_of(found)[RULE], found.record.get("export_to")
        if place and rule in waiting:
            continue
        with kept(failed):
            if place and places.get(rule, place) != place and not find_plan(table, found.plan).done:
                cancel(table, found.plan, clock, who=who, reason=f"rule {rule} writes to {places[rule] or 'no place'} now")
                continue
            waiting.add(rule)
            view = apply(table, found.plan, clock, store=ways.store, progress=ways.progress, stop=ways.stop)
            done.append(found.plan)
            if view.state == PlanState.DONE:
                waiting.discard(rule)
    return done


def _interrupted(table: QueueTable) -> list[StoredPlan]:
    of_rules = [found for found in table.stored_plans() if RULE in facts_of(found)]
    return [found for found in of_rules if found.state is PlanState.RUNNING or (found.state is PlanState.FAILED and found.record.get("export_to"))]


def _writes_the_same(table: QueueTable, rule: Rule, plan_id: str, lookup_ids: Sequence[int]) -> str:
    """Return the plan of another run of a rule, recorded before, that writes some of these messages; empty: there is none."""
    wanted = set(lookup_ids)
    for found in table.stored_plans():
        if found.plan == plan_id:
            break
        is_open = found.state in OPEN and facts_of(found).get(RULE) == rule.name and found.record.get("export_to")
        if is_open and not wanted.isdisjoint(table.plan_members(found)["lookup_id"].to_pylist()):
            return found.plan
    return ""


def _done(table: QueueTable, has: _Has, clock: Clock, who: str, run: str, version: int, ways: _Ways) -> RuleResult:  # noqa: PLR0917
    rule, action, result = has.rule, has.rule.action, has.result
    if not has.now or ways.stop():
        return result
    if action is None:
        return replace(result, done=_record_alert(table, has, clock, who))
    planned = plan(table, rule.when, action, clock, version=version, among=has.now)
    reach("desk.rules.before_plan")
    asks = rule.verb is RuleVerb.ASK
    plan_id = record(
        table,
        planned,
        clock,
        who=who,
        reason=f"rule {rule.name}",
        key=_key(run, rule.name) if run else "",
        facts={RULE: rule.name},
        paused=asks,
        export_to=rule.export_to,
    )
    reach("desk.rules.after_plan")
    if rule.export_to and (first := _writes_the_same(table, rule, plan_id, has.now)):
        cancel(table, plan_id, clock, who=who, reason=f"plan {first} does the same")
        return replace(result, plan=first, state=find_plan(table, first).state)
    if asks:
        return replace(result, plan=plan_id, state=PlanState.PAUSED.value)
    try:
        view = apply(table, plan_id, clock, store=ways.store, progress=ways.progress, stop=ways.stop)
    except PlanStateError:  # a plan of an earlier call of this run, which was cancelled or undone
        return replace(result, plan=plan_id)
    files = export_files(table.name, plan_id, rule.export_to, view.messages, ways.store) if rule.export_to else ()
    return replace(result, plan=plan_id, state=view.state, done=view.done, files=tuple(files))


def _record_alert(table: QueueTable, has: _Has, clock: Clock, who: str) -> int:
    """Record the event for an alert about messages, once, also in several processes: a counter of the queue decides. Return of how many."""
    counter, alerted = _counter(has.rule), 0
    for first in range(0, len(has.now), CHUNK):
        ids, number = has.now[first : first + CHUNK], has.alerted + first // CHUNK
        details = {"count": str(len(ids)), "max_lookup_id": str(ids[-1]), "path": "", "lookup_ids": as_ranges(ids), RULE: has.rule.name}
        event = Event(EventType.TOLD, clock.now(), ids[0], details=details)
        reach("desk.rules.before_telling")
        with acting(who, f"rule {has.rule.name}"):
            after = table.alter(
                partial(_counted, counter=counter, number=number),
                lambda before, after, event=event: [] if before == after else [event],  # type: ignore[misc]  # bound now
            )
        reach("desk.rules.after_telling")
        if after.counters.get(counter, 0) != number + 1:
            break
        alerted += len(ids)
    return alerted


def _counted(control: Control, counter: str, number: int) -> Control:
    """Return the row with one more alert counted; unchanged where another process was faster."""
    return control.with_counters({counter: number + 1}) if control.counters.get(counter, 0) == number else control


def _counter(rule: Rule) -> str:
    return f"{DESK}told:{rule.name}"


# What rules have ------------------------------------------------------------------------------------------------------


def _look(table: QueueTable, rules: Sequence[Rule], now: datetime, failed: list[Exception]) -> _Look:
    """Return what the rules have, up to the first whose condition cannot be asked.

    :param failed: gets what is wrong with that one.
    """
    import duckdb

    snapshot = table.snapshot()
    with sql.messages(table, files_of(snapshot.files, Selection()), events=True) as engine:
        _past(table, engine)
        try:
            _matched(engine, rules)
        except (QueryError, duckdb.Error) as error:
            if isinstance(error, duckdb.InterruptException):
                raise
            rules = _asked(engine, rules, failed)
            _matched(engine, rules)
        _note_taken(table, engine, rules, failed)
        [(messages, unmatched)] = engine.execute("select count(*), count(*) filter (rule is null) from matched").fetchall()
        has = tuple(_of(engine, number, rule, now, snapshot.control.counters.get(_counter(rule), 0)) for number, rule in enumerate(rules))
    return _Look(snapshot.version, messages, unmatched, has)


def _past(table: QueueTable, engine: duckdb.DuckDBPyConnection) -> None:
    """Make tables of past events: ``became``, when messages became poison, and ``past``, what rules have done to them, and how often."""
    engine.execute(
        f"""create temp table single as select lookup_id, occurred_at as moved_at from events
        where event = '{EventType.MOVED_POISON}' and (details ->> 'count') is null"""
    )
    engine.execute("create temp table done (rule varchar, event varchar, lookup_id bigint)")
    together = engine.execute(
        f"""select event, (details ->> '{RULE}'), occurred_at, details from events where (details ->> 'count') is not null
        and (event = '{EventType.MOVED_POISON}' or (event in ('{EventType.RETURNED}', '{EventType.TOLD}') and (details ->> '{RULE}') is not null))"""
    ).fetchall()
    for event, rule, at, details in together:
        ids = list(table.messages_of(json.loads(details)) or ())
        if event == EventType.MOVED_POISON:
            engine.execute("insert into single select unnest(?::bigint[]), ?", [ids, at])
        else:
            engine.execute("insert into done select ?, ?, unnest(?::bigint[])", [rule, event, ids])
    engine.execute("create temp table became as select lookup_id, max(moved_at) as moved_at from single group by lookup_id")
    engine.execute("create temp table past as select rule, event, lookup_id, count(*) as times from done group by all")


def _asked(engine: duckdb.DuckDBPyConnection, rules: Sequence[Rule], failed: list[Exception]) -> Sequence[Rule]:
    """Return the rules before the first whose condition cannot be asked."""
    import duckdb

    for number, rule in enumerate(rules):
        try:
            where, values = sql.condition(engine, rule.when)
            engine.execute(f"select count(*) from messages where {where}", values)
        except (QueryError, duckdb.Error) as error:
            failed.append(QueryError(f"Rule {rule.name!r} of this queue cannot be asked: {error} It and the rules behind it did nothing."))
            return rules[:number]
    return rules


def _matched(engine: duckdb.DuckDBPyConnection, rules: Sequence[Rule]) -> None:
    """Make the table ``matched``: every poison message, and the number of the first rule that has it."""
    cases, values = list[str](), list[object]()
    for number, rule in enumerate(rules):
        where, given = sql.condition(engine, rule.when)
        if rule.at_most is not None:
            where += " and lookup_id not in (select lookup_id from past where rule = ? and event = ? and times >= ?)"
            given += [rule.name, EventType.RETURNED.value, rule.at_most]
        cases.append(f"when {where} then {number}")
        values += given
    which = f"case {' '.join(cases)} end" if cases else "null::integer"
    engine.execute(f"create temp table matched as select lookup_id, move_count, enqueued_at, {which} as rule from messages", values)


def _note_taken(table: QueueTable, engine: duckdb.DuckDBPyConnection, rules: Sequence[Rule], failed: list[Exception]) -> None:
    """Make the table ``held``: messages that a rule does not take (again); those that wait for its plan, and those that it is done with.

    A message that has moved since a plan was made is another one: it may be asked about again. A rule with a plan whose messages cannot be read takes
    none.

    :param failed: gets why they cannot be read.
    """
    named = {verb: [rule.name for rule in rules if rule.verb is verb] for verb in RuleVerb}
    engine.execute(
        f"""create temp table held as select rule, lookup_id, null::bigint as move_count, false as waits from past
        where event = '{EventType.TOLD}' and rule in (select unnest(?::varchar[]))""",
        [named[RuleVerb.TELL]],
    )
    for found in table.stored_plans():
        rule, is_open = facts_of(found).get(RULE), found.state in OPEN
        if rule is not None and (is_open or rule in named[RuleVerb.ASK]):
            try:
                members = table.plan_members(found)
            except TableChangedError as error:
                failed.append(error)
                engine.execute("insert into held select ?, lookup_id, null, true from messages", [rule])
                continue
            ids, moves = members["lookup_id"].to_pylist(), members["priority"].to_pylist()
            engine.execute("insert into held select ?, unnest(?::bigint[]), unnest(?::bigint[]), ?", [rule, ids, moves, is_open])


def _of(engine: duckdb.DuckDBPyConnection, number: int, rule: Rule, now: datetime, alerted: int) -> _Has:
    engine.execute(
        """create or replace temp table mine as select matched.lookup_id, coalesce(became.moved_at, matched.enqueued_at) <= ? as is_due,
          (select bool_or(waits) from held where held.rule = ? and held.lookup_id = matched.lookup_id
           and coalesce(held.move_count, matched.move_count) = matched.move_count) as waits
        from matched left join became using (lookup_id) where matched.rule = ?""",
        [now - rule.after, rule.name, number],
    )
    [(messages, waiting)] = engine.execute("select count(*), count(*) filter (coalesce(waits, not is_due)) from mine").fetchall()
    ids = engine.execute("select lookup_id from mine where is_due and waits is null order by lookup_id").fetchnumpy()["lookup_id"].tolist()
    return _Has(rule, messages, waiting, ids, alerted)


SETTING, SEEN = "redrive_on_new_handler", "handlers"
"""The parts of a queue's desk: the canary of a redrive; and the handler versions that are not new any more, the newest last."""
HANDLER, GROUP = "handler", "group"
"""What the events of a redrive's plans say: the version of the handler, and the error group."""
MOST_GROUPS = 100
"""The largest error groups that are redriven; the others are left to people."""
_MOST_SEEN = 1_000
_LONGEST = 200
_UNDER_WAY = frozenset({PlanState.CANARY, PlanState.RUNNING})


def set_redrive(table: QueueTable, canary: Canary | Mapping[str, Any] | None, clock: Clock) -> Canary | None:
    """Record that a queue redrives for each new version of its handler; None: not any more, which is the default. Raises SettingError.

    The first version that the queue sees after this starts nothing.

    :param canary: so many messages of each error group go first, and such a share of them must be settled before the others follow.
    """
    wanted = checked_canary(canary)
    configure(table, clock, **({SETTING: None, SEEN: None} if wanted is None else {SETTING: wanted.to_dict()}))
    return wanted


def checked_canary(canary: Canary | Mapping[str, Any] | None) -> Canary | None:
    """Return a canary that is given as such or as plain values. Raises SettingError."""
    if canary is None or isinstance(canary, Canary):
        return canary
    try:
        return Canary(**canary)
    except TypeError:
        raise SettingError(SETTING, canary, "Canary(10, 0.95), {'messages': 10, 'share': 0.95}, or None") from None


def checked_version(version: str | None) -> str | None:
    """Return a version of a handler. Raises SettingError for anything but a text that is neither empty nor longer than 200 characters."""
    if version is None or (isinstance(version, str) and version.strip() and len(version) <= _LONGEST):
        return version
    raise SettingError("handler_version", version, f"a text of 1 to {_LONGEST} characters, another one for each version of the handler")


def redrive(table: QueueTable, clock: Clock, version: str | None = None, *, who: str) -> tuple[PlanView, ...]:
    """Begin a redrive for a new version, and go on with those that wait for their canaries; return the plans that it has touched.

    Called before a pass claims anything, or without one. Killed anywhere and called again, it does each message once. A queue that is not enabled is
    left as it is. Raises SettingError.

    :param version: of the handler that is about to receive; None: only go on.
    """
    checked_version(version)
    control = table.snapshot().control
    if control.desk.get(SETTING) is None or control.state is not QueueState.ENABLED:
        return ()
    if version is not None and version not in _seen(control):
        if _seen(control):
            _begin(table, clock, version, who)
        reach("desk.redrive.before_seen")
        _note(table, version)
    return tuple(_go_on(table, clock))


def _seen(control: Control) -> Sequence[str]:
    seen: Any = control.desk.get(SEEN) or ()
    return tuple(seen)


def _note(table: QueueTable, version: str) -> None:
    """Note that a version is not new any more."""

    def change(control: Control) -> Control:
        if version in _seen(control):
            return control
        return replace(control, desk={**control.desk, SEEN: [*_seen(control), version][-_MOST_SEEN:]})

    table.alter(change)


def _begin(table: QueueTable, clock: Clock, version: str, who: str) -> None:
    """Record the plans of a new version, one for each error group; plans of an earlier one that are not done are cancelled."""
    canary = checked_canary(table.snapshot().control.desk.get(SETTING))  # type: ignore[arg-type]  # as it was recorded
    for found in table.stored_plans():
        if facts_of(found).get(HANDLER, version) != version and found.state in _UNDER_WAY:
            with suppress(PlanStateError):  # it has ended meanwhile
                cancel(table, found.plan, clock, who=who, reason=f"handler version {version} is newer")
    put_back = PlanAction(verb=Verb.PUT_BACK)
    for group in groups(table, Selection(), clock, limit=MOST_GROUPS).groups:
        if group.error:
            planned = plan(table, Selection(error=group.error), put_back, clock)
            reach("desk.redrive.before_plan")
            record(
                table,
                planned,
                clock,
                who=who,
                reason=f"new handler version {version}",
                canary=canary,
                key=f"redrive\x1f{version}\x1f{group.error}",
                facts={HANDLER: version, GROUP: f"{group.type} {group.error}"},
            )
            reach("desk.redrive.after_plan")


def _go_on(table: QueueTable, clock: Clock) -> list[PlanView]:
    """Go on with the plans of redrives as far as their canaries let them."""
    touched, failed = [], list[Exception]()
    for found in table.stored_plans():
        if HANDLER in facts_of(found) and found.state in _UNDER_WAY:
            with kept(failed):
                with suppress(PlanStateError):  # it was cancelled meanwhile
                    apply(table, found.plan, clock)
                touched.append(find_plan(table, found.plan))
    if failed:
        raise failed[0]
    return touched
