"""Following a plan: it waits while passes or people hold the plan back, and ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.desk import applying
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, follow, waits_at
from airflow_poison.desk.plans import cancel, pause, paused_by, plan, record, resume
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.declaration import Canary
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE
from tests.unit.desk.conftest import body

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue

PUT_BACK = PlanAction(verb=Verb.PUT_BACK)


def recorded(queue: Queue, action: PlanAction = PUT_BACK, *, canary: Canary | None = None) -> str:
    return record(queue.table, plan(queue.table, Selection(), action, queue.clock), queue.clock, who="x", canary=canary)


def followed(queue: Queue, plan_id: str, *meanwhile: Callable[[], object], **more: Any) -> tuple[PlanView, int]:
    """Follow a plan; while it waits, one after the other happens. Return how often it waited."""
    left, waits = list(meanwhile), [0]

    def wait(_seconds: float) -> None:
        waits[0] += 1
        left.pop(0)()

    return follow(queue.table, plan_id, queue.clock, wait=wait, **more), waits[0]


def test_it_ends_at_once_when_nothing_holds_it(poisoned: Queue) -> None:
    view, waits = followed(poisoned, recorded(poisoned))
    assert (view.state, view.done, waits) == ("done", 9, 0)


def test_it_waits_for_the_canary_and_then_does_the_others(queue: Queue) -> None:
    queue.sent(*(body(n, "key", "x") for n in range(1, 5)), key="a").receive("one")
    edit = PlanAction(verb=Verb.EDIT, patch={"fails": None})
    assert follow(queue.table, recorded(queue, edit), queue.clock).done == 4
    plan_id = recorded(queue, canary=Canary(2, 1.0))
    view, waits = followed(queue, plan_id, lambda: None, lambda: queue.sent(body(9), key="b"), lambda: queue.receive("two"))
    assert (view.state, view.done, waits) == ("done", 4, 3)


def test_it_ends_when_the_canary_stops_it(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(2, 1.0))
    assert waits_at(poisoned.table, plan_id) is None
    view, _ = followed(poisoned, plan_id, lambda: poisoned.receive("two"))
    assert (view.state, view.done) == ("stopped", 2)
    assert waits_at(poisoned.table, plan_id) is None


def test_its_patience_may_end_first(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(2, 1.0))
    view, waits = followed(poisoned, plan_id, patience=0)
    assert (view.state, view.done, waits) == ("canary", 2, 0)
    assert waits_at(poisoned.table, plan_id) == poisoned.table.snapshot().version


def test_what_a_pass_has_claimed_is_waited_for(poisoned: Queue) -> None:
    plan_id = recorded(poisoned)
    claim = poisoned.table.claim("pass", lease=LEASE, now=poisoned.clock.now(), max_messages=9, sub_queue=SubQueue.POISON)
    assert claim is not None
    view, waits = followed(poisoned, plan_id, lambda: None, lambda: poisoned.table.release(claim))
    assert (view.state, view.done, waits) == ("done", 9, 2)


@pytest.mark.parametrize("action", [PlanAction(verb=Verb.EDIT, patch={"x": 1}), PlanAction(verb=Verb.REMOVE)], ids=str)
def test_what_does_not_fit_or_is_done_is_nothing_to_wait_for(poisoned: Queue, action: PlanAction) -> None:
    plan_id = recorded(poisoned, action)
    apply(poisoned.table, plan_id, poisoned.clock)
    assert waits_at(poisoned.table, plan_id) is None


def test_a_pause_ends_it_unless_it_is_to_wait_through_pauses(poisoned: Queue) -> None:
    plan_id, other = recorded(poisoned, canary=Canary(2, 1.0)), "shell:bob@here"
    assert paused_by(poisoned.table, plan_id) == ""
    view, _ = followed(poisoned, plan_id, lambda: pause(poisoned.table, plan_id, poisoned.clock, who=other))
    assert (view.state, paused_by(poisoned.table, plan_id)) == ("paused", other)
    assert waits_at(poisoned.table, plan_id) == poisoned.table.snapshot().version
    view, waits = followed(
        poisoned,
        plan_id,
        lambda: None,
        lambda: resume(poisoned.table, plan_id, poisoned.clock, who=other),
        lambda: poisoned.receive("two"),
        through_pauses=True,
    )
    assert (view.state, waits) == ("stopped", 3)


def test_it_ends_when_somebody_cancels(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(2, 1.0))
    view, waits = followed(poisoned, plan_id, lambda: cancel(poisoned.table, plan_id, poisoned.clock, who="x"))
    assert (view.state, waits) == ("cancelled", 1)


def test_it_ends_when_it_is_told_to(poisoned: Queue) -> None:
    plan_id, asked = recorded(poisoned, canary=Canary(2, 1.0)), list[str]()
    view, waits = followed(poisoned, plan_id, lambda: asked.append("stop"), stop=lambda: bool(asked))
    assert (view.state, waits) == ("canary", 1)


def test_it_ends_when_somebody_cancels_just_before_it_goes_on(poisoned: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = recorded(poisoned, canary=Canary(2, 1.0))

    def waits_after_all(table: QueueTable, plan_id: str) -> int | None:
        cancel(table, plan_id, poisoned.clock, who="x")
        return waits_at(table, plan_id)

    monkeypatch.setattr(applying, "waits_at", waits_after_all)
    assert followed(poisoned, plan_id)[0].state == "cancelled"
