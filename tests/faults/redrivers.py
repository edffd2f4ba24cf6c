"""Redrivers: people who plan what is to become of many messages, apply the plan in chunks, stop it, go on, and think better of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import cancel, find_plan, id_of, pause, plan, record, resume
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.declaration import Canary
from airflow_poison.store.files import PlanState
from airflow_poison.values.errors import PlanStateError
from airflow_poison.values.schema import SubQueue
from tests.faults.administrators import wait_for
from tests.faults.exact import MARK
from tests.faults.ledger import note
from tests.faults.talks import TALKERS
from tests.faults.world import queues

if TYPE_CHECKING:
    from airflow_poison.desk.plans import PlanView
    from tests.faults.actor import Actor

_BODY = PlanAction(verb=Verb.EDIT, body='{"deed": "ok", "n": 1e400, "text": "\u202e"}')
_EDITS = (
    PlanAction(verb=Verb.EDIT, properties={"mended": "yes"}),
    PlanAction(verb=Verb.EDIT, properties={"mended": None, "more": "\u202e"}),
    PlanAction(verb=Verb.EDIT, patch={"mended": "yes"}),
    PlanAction(verb=Verb.EDIT, patch={"deed": "ok"}, properties={"mended": "yes"}),
    PlanAction(verb=Verb.EDIT, patch={"gone": None}),
    PlanAction(verb=Verb.EDIT, patch={"more": {"mended": "yes"}}),
    PlanAction(verb=Verb.EDIT, function="tests.faults.redrivers:marked"),
    _BODY,
)
_REMOVE, _PUT_BACK = PlanAction(verb=Verb.REMOVE), PlanAction(verb=Verb.PUT_BACK)
_ELSEWHERE = ((_REMOVE, SubQueue.MAIN), (None, SubQueue.MAIN), (None, None), (None, None))
"""What is done in queues that have no poison; None: an edit."""
_WITH_POISON = (
    *_ELSEWHERE,
    *[(_PUT_BACK, SubQueue.POISON)] * 4,
    *[(None, SubQueue.POISON)] * 4,
    (_REMOVE, SubQueue.POISON),
    (PlanAction(verb=Verb.MOVE, target="poison"), None),
    (PlanAction(verb=Verb.MOVE, target="main"), None),
)
_WHERE = ("", "", "lookup_id % 2 = 0", "lookup_id % 3 > 0", "text like '%bad%'")
_WHO = "people"
_PLAN_ENDS = 3
"""So often people look after a plan whose canary waits."""
_GOES_ON = frozenset({PlanState.RUNNING.value, PlanState.CANARY.value})


def marked(body: bytes) -> bytes:
    """Put a mark behind a body; one that has a NUL cannot be edited. What the function of plans does."""
    if b"\0" in body:
        raise ValueError("it has a NUL")
    return body + MARK


def redrives(actor: Actor) -> None:
    """Do what the seed says; run again under the same key, it goes on with the same plan."""
    chance, task = actor.chance, actor.task
    if task.queue in TALKERS:
        return
    chosen, place = chance.choice(_WITH_POISON if task.queue == "move" else _ELSEWHERE)
    action = chosen or chance.choice(_EDITS)
    selection = Selection(sub_queue=place, where=chance.choice(_WHERE))
    limit, chunk, thinks_better = (
        chance.choice([None, 1, 5, 20]),
        chance.choice([1, 1, 3, None]),
        chance.random() < (0.8 if action.verb is Verb.REMOVE else 0.4),
    )
    canary = Canary(chance.randint(1, 3), 0.5) if chance.random() < 0.2 else None
    paused, stops, cancels = (chance.random() < 0.2 for _ in range(3))
    export_to = str(exports_in(actor.place.folder)) if chance.random() < 0.3 else ""
    wait_for(lambda: any(place in {None, file.sub_queue} for file in actor.table.snapshot().files))
    key = f"plan:{task.run_key}"
    planned = plan(actor.table, selection, action, actor.clock, limit=1 if action is _BODY else limit)
    note("will_plan", queue=task.queue, plan=id_of(key), action=action.to_dict(), export_to=export_to)
    plan_id = record(
        actor.table,
        planned,
        actor.clock,
        who=_WHO,
        reason=task.name,
        chunk=chunk,
        canary=canary,
        key=key,
        export_to=export_to,
        paused=paused,
    )
    try:
        _carries_out(actor, plan_id, stops=stops, cancels=cancels)
        if thinks_better and not queues()[task.queue].ordered:  # what comes back comes behind what was received meanwhile
            undo(actor.table, plan_id, actor.clock, who=_WHO)
    except PlanStateError:  # an earlier try has ended or undone it
        return
    note("redrove", queue=task.queue, plan=plan_id)


def _carries_out(actor: Actor, plan_id: str, *, stops: bool, cancels: bool) -> None:
    """Apply a plan; stop it once behind its first chunk, and go on or cancel it."""
    table, clock = actor.table, actor.clock
    done: list[PlanView] = []
    _resumes(actor, plan_id)
    if stops:
        apply(table, plan_id, clock, store=actor.store, progress=done.append, stop=lambda: bool(done))
        if find_plan(table, plan_id).state in _GOES_ON:
            pause(table, plan_id, clock, who=_WHO)
        if cancels:
            cancel(table, plan_id, clock, who=_WHO)
    for _ in range(_PLAN_ENDS):
        if not _resumes(actor, plan_id):
            return
        apply(table, plan_id, clock, store=actor.store)


def _resumes(actor: Actor, plan_id: str) -> bool:
    """Let a plan go on that people or its canary have stopped; return whether it goes on."""
    state = find_plan(actor.table, plan_id).state
    if state in {PlanState.PAUSED.value, PlanState.STOPPED.value}:
        resume(actor.table, plan_id, actor.clock, who=_WHO)
        return True
    return state in _GOES_ON


def exports_in(folder: str | Path) -> Path:
    """Return where plans write their messages before anything is done to them."""
    return Path(folder, "exports")
