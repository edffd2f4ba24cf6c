"""Redrivers: people who plan what is to become of many messages, apply the plan in chunks, and think better of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.desk.actions import PlanAction, Verb
from airflow_poison.core.desk.applying import apply, undo
from airflow_poison.core.desk.plans import find_plan, plan, record
from airflow_poison.core.desk.selection import Selection
from airflow_poison.core.errors import PlanStateError
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.files import PlanState
from tests.faults.administrators import wait_for
from tests.faults.ledger import note
from tests.faults.talks import TALKERS
from tests.faults.world import queues

if TYPE_CHECKING:
    from tests.faults.actor import Actor

_EDIT = PlanAction(verb=Verb.EDIT, properties={"mended": "yes"})
_ANYWHERE = ((_EDIT, SubQueue.MAIN), (_EDIT, None), (PlanAction(verb=Verb.REMOVE), SubQueue.MAIN))
"""What is done in queues that have no poison."""
_WITH_POISON = (
    *_ANYWHERE,
    *[(PlanAction(verb=Verb.PUT_BACK), SubQueue.POISON)] * 4,
    *[(_EDIT, SubQueue.POISON)] * 2,
    (PlanAction(verb=Verb.REMOVE), SubQueue.POISON),
    (PlanAction(verb=Verb.MOVE, target="poison"), None),
    (PlanAction(verb=Verb.MOVE, target="main"), None),
)
_WHERE = ("", "lookup_id % 2 = 0", "lookup_id % 3 > 0", "text like '%bad%'")
_WHO = "people"


def redrives(actor: Actor) -> None:
    """Do what the seed says; run again under the same key, it goes on with the same plan."""
    chance, task = actor.chance, actor.task
    if task.queue in TALKERS:
        return
    action, place = chance.choice(_WITH_POISON if task.queue == "move" else _ANYWHERE)
    selection = Selection(sub_queue=place, where=chance.choice(_WHERE))
    limit, chunk, thinks_better = (
        chance.choice([None, 1, 5, 20]),
        chance.choice([1, 1, 3, None]),
        chance.random() < (0.8 if action.verb is Verb.REMOVE else 0.4),
    )
    wait_for(lambda: any(place in {None, file.sub_queue} for file in actor.table.snapshot().files))
    planned = plan(actor.table, selection, action, actor.clock, limit=limit)
    plan_id = record(actor.table, planned, actor.clock, who=_WHO, reason=task.name, chunk=chunk, key=f"plan:{task.run_key}")
    if find_plan(actor.table, plan_id).state == PlanState.RUNNING.value:
        apply(actor.table, plan_id, actor.clock, store=actor.store)
    if thinks_better and not queues()[task.queue].ordered:  # what comes back comes behind what was received meanwhile
        try:
            undo(actor.table, plan_id, actor.clock, who=_WHO)
        except PlanStateError:  # an earlier try has undone it
            return
    note("redrove", queue=task.queue, plan=plan_id)
