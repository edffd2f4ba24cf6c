"""Plans: they write nothing before they are recorded, do each message once whoever dies, and are undone where nobody has received a message since."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.desk.actions import PlanAction, Verb, original_body
from airflow_poison.desk.applying import apply, undo, waits_at
from airflow_poison.desk.plans import CanarySeen, Plan, cancel, find_plan, judged, pause, plan, plans, record, resume, stored
from airflow_poison.desk.rule_runs import redrive, run_rules
from airflow_poison.desk.selection import Selection
from airflow_poison.fsck.check import check
from airflow_poison.passes.alter import declare
from airflow_poison.passes.declaration import Canary
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.move import move, put_back, remove
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import (
    PlanNotFoundError,
    PlanStateError,
    PlanUnreadableError,
    QueueNotFoundError,
    SettingError,
    StoreUnreachableError,
)
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, NO_RETRY, DiedError
from tests.unit.desk.conftest import body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.desk.plans import PlanView
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

MAIN, POISON, RETRY = SubQueue.MAIN, SubQueue.POISON, SubQueue.RETRY
PUT_BACK = PlanAction(verb=Verb.PUT_BACK)
REMOVE = PlanAction(verb=Verb.REMOVE)
PATCH = PlanAction(verb=Verb.EDIT, patch={"fails": None, "currency": "EUR"}, properties={"mended": "yes"})
PATCH_AND_PUT_BACK = replace(PATCH, target="main")
ACTIONS = [PUT_BACK, REMOVE, PATCH, PATCH_AND_PUT_BACK]
ALL = range(1, 10)
POINTS: tuple[str, ...] = (
    "store.plan.before_commit",
    "store.plan.after_commit",
    "store.split.before_commit",
    "desk.apply.after_split",
    "desk.apply.before_chunk",
)
POINTS += ("store.replace.after_files", "store.replace.before_commit", "store.replace.after_commit", "desk.apply.after_chunk")


def planned(queue: Queue, action: PlanAction = PUT_BACK, **conditions: Any) -> Plan:
    return plan(queue.table, Selection(**conditions), action, queue.clock)


def recorded(
    queue: Queue, action: PlanAction = PUT_BACK, *, key: str = "", chunk: int | None = 2, canary: Canary | None = None, **conditions: Any
) -> str:
    made = planned(queue, action, **conditions)
    return record(queue.table, made, queue.clock, who="shell:ann@here", reason="mended", chunk=chunk, canary=canary, key=key)


def applied(queue: Queue, plan_id: str) -> PlanView:
    return apply(queue.table, plan_id, queue.clock, store=queue.store, wait=lambda _seconds: None)


def undone(queue: Queue, plan_id: str) -> PlanView:
    return undo(queue.table, plan_id, queue.clock, who="shell:bob@here")


def places(queue: Queue) -> dict[int, str]:
    return {number: str(row["sub_queue"]) for number, row in sorted(queue.rows().items())}


def test_what_another_one_has_moved_before_the_plan_is_not_undone_with_it(poisoned: Queue) -> None:
    """It stands where the plan would have put it, with as many moves. A fault campaign has found it."""
    made = planned(poisoned)
    put_back(poisoned.table, poisoned.clock, [3])
    plan_id = record(poisoned.table, made, poisoned.clock, who="x")
    before = applied(poisoned, plan_id)

    view = undone(poisoned, plan_id)

    assert before.done == before.messages - 1
    assert (view.done, places(poisoned)[3]) == (0, "main")
    assert {place for number, place in places(poisoned).items() if number != 3} == {"poison"}


def in_place(queue: Queue, place: SubQueue) -> list[int]:
    return [number for number, where in places(queue).items() if where == place]


def states(queue: Queue) -> list[str]:
    return [event.details["state"] for event in queue.table.events() if event.type.value == "PLAN_CHANGED"]


def is_whole(queue: Queue) -> bool:
    """Whether the check finds nothing wrong; the store in memory cannot be checked."""
    if not isinstance(queue.store, DeltaStore):
        return True
    found = [each for each in check(queue.table, queue.clock).findings if each.severity.value == "error"]
    assert found == []
    return True


# Planned --------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_would_happen_and_writes_nothing(poisoned: Queue) -> None:
    before = poisoned.table.snapshot().version
    view = planned(poisoned, where="body.carrier = 'VX'").view
    assert (view.messages, view.state, view.plan, view.version) == (5, "planned", "", before)
    assert [(group.type, group.messages) for group in view.groups] == [("ValueError", 3), ("KeyError", 2)]
    assert [sample.lookup_id for sample in view.samples][:2] == [5, 1]  # one of each group first
    assert sorted(sample.lookup_id for sample in view.samples) == [1, 3, 5, 7, 9]
    assert poisoned.table.snapshot().version == before


def test_an_edit_shows_bodies_before_and_after(poisoned: Queue) -> None:
    poisoned.sent("no JSON").receive("two")
    view = planned(poisoned, PATCH).view
    samples = {each.lookup_id: each for each in view.samples}
    assert json.loads(samples[5].after or "")["currency"] == "EUR"
    assert samples[5].before == body(5, "value", "could not convert 'x5' at 555", carrier="VX", delay=50)
    assert (samples[10].after, samples[10].unfit[:26]) == (None, "the body cannot be patched")


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({"verb": "put_bak"}, "verb='put_bak'"),
        ({"verb": "move"}, "target=''"),
        ({"verb": "move", "target": "retry"}, "target='retry'"),
        ({"verb": "remove", "target": "x"}, "target='x'"),
        ({"verb": "edit"}, "edit="),
        ({"verb": "edit", "patch": {}, "body": "x"}, "one of patch, body and function"),
        ({"verb": "edit", "patch": [1]}, "a JSON object"),
        ({"verb": "edit", "patch": {"a": 1}, "target": "poison"}, "target='poison'.*main, or nothing"),
        ({"verb": "put_back", "patch": {"a": 1}}, "verb='edit'"),
        ({"verb": "edit", "properties": {"poison.edits": "x"}}, "the product.s own"),
        ({"verb": "put_back", "targt": "x"}, "did you mean 'target'"),
    ],
)
def test_an_action_that_is_none_is_refused(action: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        PlanAction.from_dict(action)


def test_an_action_is_refused_where_it_cannot_be_done(poisoned: Queue) -> None:
    with pytest.raises(SettingError, match="sub_queue='main'"):
        planned(poisoned, PUT_BACK, sub_queue=MAIN)
    with pytest.raises(SettingError, match=r"function='no\.such:thing'"):
        planned(poisoned, PlanAction(verb=Verb.EDIT, function="no.such:thing"))
    with pytest.raises(SettingError, match="rate=0"):
        record(poisoned.table, planned(poisoned), poisoned.clock, who="x", rate=0)
    with pytest.raises(SettingError, match=r"canary\.share=2"):
        Canary(1, 2)
    with pytest.raises(PlanNotFoundError, match="'nobody'"):
        find_plan(poisoned.table, "nobody")


# Applied --------------------------------------------------------------------------------------------------------------


def test_messages_are_put_back_in_chunks_with_one_more_move(poisoned: Queue) -> None:
    view = applied(poisoned, recorded(poisoned, error_type="ValueError"))
    assert (view.state, view.done, view.skipped, view.who) == ("done", 5, 0, "shell:ann@here")
    assert in_place(poisoned, MAIN) == [5, 6, 7, 8, 9]
    assert all(poisoned.counts(number) == (0, 2) for number in range(5, 10))
    events = [event for event in poisoned.table.events() if event.type.value == "RETURNED"]
    assert sorted(event.lookup_id or 0 for event in events) == [5, 6, 7, 8, 9]
    assert {(e.details["who"], e.details["why"], e.details["plan"], e.details["origin"]) for e in events} == {
        ("shell:ann@here", "mended", view.plan, "poison")
    }
    assert is_whole(poisoned)


def test_a_whole_file_goes_by_a_second_name(poisoned: Queue) -> None:
    names = {file.size for file in poisoned.table.snapshot().files}
    assert applied(poisoned, recorded(poisoned, chunk=None)).done == 9
    assert {file.size for file in poisoned.table.snapshot().files} == names
    assert in_place(poisoned, MAIN) == list(ALL)


def test_messages_are_removed_and_come_back(poisoned: Queue) -> None:
    before = poisoned.rows()
    plan_id = recorded(poisoned, REMOVE, where="body.delay >= 30")
    assert applied(poisoned, plan_id).done == 7
    assert (sorted(poisoned.rows()), is_whole(poisoned)) == ([1, 2], True)
    view = undone(poisoned, plan_id)
    assert (view.state, view.done, poisoned.rows(), is_whole(poisoned)) == ("undone", 0, before, True)
    assert undone_again_is_refused(poisoned, plan_id)


def undone_again_is_refused(queue: Queue, plan_id: str) -> bool:
    with pytest.raises(PlanStateError, match="is undone; expected"):
        undone(queue, plan_id)
    return True


def test_messages_are_edited_and_the_original_stays(poisoned: Queue) -> None:
    before = poisoned.rows()
    plan_id = recorded(poisoned, PATCH, error_type="KeyError")
    assert applied(poisoned, plan_id).done == 4
    row: Mapping[str, Any] = poisoned.rows()[1]
    properties = dict(row["properties"])
    assert json.loads(row["body"]) == {"number": 1, "says": "delay", "carrier": "VX", "delay": 10, "currency": "EUR"}
    assert (properties["mended"], properties["source"]) == ("yes", "test")
    assert original_body(row["body"], properties) == before[1]["body"]
    assert poisoned.rows()[5] == before[5]
    assert undone(poisoned, plan_id).done == 0
    assert poisoned.rows() == before
    assert is_whole(poisoned)


def test_only_the_last_edit_is_undone(poisoned: Queue) -> None:
    first, second = recorded(poisoned, PATCH), recorded(poisoned, PlanAction(verb=Verb.EDIT, body="{}"), lookup_ids=(1,))
    applied(poisoned, first)
    applied(poisoned, second)
    undone(poisoned, first)
    assert poisoned.rows()[1]["body"] == b"{}"
    assert poisoned.rows()[2]["properties"] == [("source", "test")]
    assert undone(poisoned, second).state == "undone"
    assert json.loads(str(poisoned.rows()[1]["body"], "utf-8"))["currency"] == "EUR"  # type: ignore[call-overload]  # bytes


def test_what_an_edit_does_not_fit_stays_as_it_is(poisoned: Queue) -> None:
    poisoned.sent("no JSON").receive("two")
    view = applied(poisoned, recorded(poisoned, PATCH))
    assert (view.state, view.done, view.skipped) == ("done", 9, 1)
    assert poisoned.rows()[10]["body"] == b"no JSON"


def test_an_edited_message_is_received_as_it_is_now(poisoned: Queue) -> None:
    applied(poisoned, recorded(poisoned, PATCH))
    applied(poisoned, recorded(poisoned))
    assert poisoned.receive("again").settled == 9


def test_messages_are_edited_and_put_back_in_one_plan_with_a_canary(poisoned: Queue) -> None:
    poisoned.sent("no JSON").receive("two")
    before = poisoned.rows()
    plan_id = recorded(poisoned, PATCH_AND_PUT_BACK, canary=Canary(3, 0.9))
    # a canary that the patch does not fit has failed
    assert (applied(poisoned, plan_id).state, in_place(poisoned, MAIN)) == ("stopped", [1, 5])
    assert judged(poisoned.table, stored(poisoned.table, plan_id)) == CanarySeen(0, 1, 2, (10,))
    resume(poisoned.table, plan_id, poisoned.clock, who="x")
    assert (applied(poisoned, plan_id).skipped, in_place(poisoned, MAIN), in_place(poisoned, POISON)) == (1, list(ALL), [10])
    # undone: each is where it was, as it was; what was received meanwhile stays
    assert poisoned.receive("three", max_messages=2).settled == 2
    assert (undone(poisoned, plan_id).done, in_place(poisoned, POISON)) == (2, [2, 3, 4, 6, 7, 8, 9, 10])
    content = ("body", "properties")
    assert all(row[name] == before[number][name] for number, row in poisoned.rows().items() for name in content)
    assert is_whole(poisoned)


def test_a_message_that_fails_again_can_be_edited_and_put_back_again(poisoned: Queue) -> None:
    applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.EDIT, patch={"says": "again"}, target="main"), lookup_ids=(3,)))
    poisoned.receive("two")
    assert applied(poisoned, recorded(poisoned, PATCH_AND_PUT_BACK, lookup_ids=(3,))).done == 1
    assert (poisoned.receive("three").settled, 3 in poisoned.rows()) == (1, False)


def test_an_edited_message_that_another_plan_edits_in_main_is_not_undone_by_the_first(poisoned: Queue) -> None:
    first = recorded(poisoned, PATCH_AND_PUT_BACK)
    applied(poisoned, first)
    applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.EDIT, body="{}"), lookup_ids=(3,), sub_queue=MAIN))
    assert (undone(poisoned, first).done, in_place(poisoned, MAIN), poisoned.rows()[3]["body"]) == (1, [3], b"{}")


def test_a_canary_is_of_what_goes_to_main(poisoned: Queue) -> None:
    with pytest.raises(SettingError, match=r"canary=.*puts messages into main"):
        recorded(poisoned, PATCH, canary=Canary(1))


def test_messages_are_sent_to_another_queue_once(poisoned: Queue) -> None:
    other = declare(poisoned.store, "other", NO_RETRY, poisoned.clock)
    plan_id = recorded(poisoned, PlanAction(verb=Verb.SEND_TO, target="other"), error_type="KeyError")
    assert applied(poisoned, plan_id).done == 4
    assert sum(file.rows for file in other.snapshot().files) == 4
    with pytest.raises(PlanStateError, match="other queues"):
        undone(poisoned, plan_id)
    with pytest.raises(QueueNotFoundError):
        applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.SEND_TO, target="nowhere")))
    assert in_place(poisoned, POISON) == [5, 6, 7, 8, 9]
    assert applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.SEND_TO))).skipped == 5  # they do not say where they came from


def test_later_arrivals_are_not_in_a_plan(poisoned: Queue) -> None:
    plan_id = recorded(poisoned)
    poisoned.sent(body(10, "key", "delay")).receive("two")
    put_back(poisoned.table, poisoned.clock, [1, 2])
    poisoned.receive("three")  # they are in poison again
    view = applied(poisoned, plan_id)
    assert (view.state, view.done, view.skipped) == ("done", 7, 2)
    assert in_place(poisoned, POISON) == [1, 2, 10]


def test_an_earlier_version_that_somebody_has_seen_is_planned(poisoned: Queue) -> None:
    seen = poisoned.table.snapshot().version
    poisoned.sent(body(10, "key", "delay")).receive("two")
    made = plan(poisoned.table, Selection(), PUT_BACK, poisoned.clock, version=seen)
    assert (made.view.messages, made.view.version) == (9, seen)
    assert applied(poisoned, record(poisoned.table, made, poisoned.clock, who="x")).done == 9
    with pytest.raises(PlanStateError, match="has no version 9999"):
        plan(poisoned.table, Selection(), PUT_BACK, poisoned.clock, version=9_999)


def test_what_a_pass_has_claimed_waits(poisoned: Queue) -> None:
    plan_id = recorded(poisoned)
    claim = poisoned.table.claim("pass", lease=LEASE, now=poisoned.clock.now(), max_messages=9, sub_queue=POISON)
    assert claim is not None
    assert (applied(poisoned, plan_id).state, applied(poisoned, plan_id).done) == ("running", 0)
    poisoned.table.release(claim)
    assert (applied(poisoned, plan_id).state, applied(poisoned, plan_id).done) == ("done", 9)


def test_a_message_that_blocks_the_queue_ends_the_block_when_it_leaves(poisoned: Queue) -> None:
    poisoned.sent(body(10))
    until = poisoned.clock.now() + timedelta(hours=1)
    poisoned.table.alter(lambda control: control.blocked(10, until), lambda _, __: [])
    applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.EDIT, body="{}"), sub_queue=MAIN))
    assert poisoned.table.snapshot().control.blocked_until(poisoned.clock.now()) == until
    applied(poisoned, recorded(poisoned, PlanAction(verb=Verb.MOVE, target="poison"), sub_queue=MAIN))
    assert poisoned.table.snapshot().control.blocked_until(poisoned.clock.now()) is None


def test_the_same_key_is_the_same_plan(poisoned: Queue) -> None:
    first = recorded(poisoned, key="run-1")
    applied(poisoned, first)
    assert recorded(poisoned, key="run-1", lookup_ids=()) == first
    assert (len(plans(poisoned.table)), find_plan(poisoned.table, first).messages) == (1, 9)
    assert applied(poisoned, first).done == 9


def test_a_plan_goes_at_its_rate(poisoned: Queue) -> None:
    waits: list[float] = []
    plan_id = record(poisoned.table, planned(poisoned), poisoned.clock, who="x", rate=3)
    view = apply(poisoned.table, plan_id, poisoned.clock, wait=waits.append)
    assert (view.done, len(waits)) == (9, 3)
    assert all(0.5 < seconds <= 1 for seconds in waits)


def test_a_chunk_that_is_larger_than_a_second_of_the_rate_is_one_commit(poisoned: Queue) -> None:
    waits: list[float] = []
    plan_id = record(poisoned.table, planned(poisoned), poisoned.clock, who="x", rate=3, chunk=6)
    assert apply(poisoned.table, plan_id, poisoned.clock, wait=waits.append).done == 9
    assert [round(seconds) for seconds in waits] == [2, 1]


def test_a_body_is_of_one_message(poisoned: Queue) -> None:
    with pytest.raises(SettingError, match=r"body='9 messages'.* one message"):
        planned(poisoned, PlanAction(verb=Verb.EDIT, body="{}"))
    assert planned(poisoned, PlanAction(verb=Verb.EDIT, body="{}"), lookup_ids=(3,)).view.messages == 1


# Paused, cancelled, undone --------------------------------------------------------------------------------------------


def test_a_plan_is_paused_resumed_and_cancelled(poisoned: Queue, at_point: AtPoint) -> None:
    plan_id = recorded(poisoned)
    at_point.do("desk.apply.after_chunk", lambda: pause(poisoned.table, plan_id, poisoned.clock, who="x", reason="wait"))
    view = applied(poisoned, plan_id)
    assert (view.state, view.done) == ("paused", 2)
    assert applied(poisoned, plan_id).done == 2
    resume(poisoned.table, plan_id, poisoned.clock, who="x")
    at_point.do("desk.apply.after_chunk", lambda: cancel(poisoned.table, plan_id, poisoned.clock, who="x"))
    assert (applied(poisoned, plan_id).state, find_plan(poisoned.table, plan_id).done) == ("cancelled", 4)
    with pytest.raises(PlanStateError, match="is cancelled; expected running"):
        applied(poisoned, plan_id)
    with pytest.raises(PlanStateError, match="is cancelled; expected running or paused"):
        resume(poisoned.table, plan_id, poisoned.clock, who="x")
    assert (undone(poisoned, plan_id).state, in_place(poisoned, POISON)) == ("undone", list(ALL))
    assert states(poisoned) == ["paused", "running", "cancelled", "undoing", "undone"]


def test_a_pause_holds_for_a_chunk_whose_commit_has_not_been_made(poisoned: Queue, at_point: AtPoint) -> None:
    plan_id = recorded(poisoned)
    at_point.do("store.replace.after_files", lambda: pause(poisoned.table, plan_id, poisoned.clock, who="x"))
    assert (applied(poisoned, plan_id).done, in_place(poisoned, MAIN)) == (0, [])


def test_what_was_received_is_not_undone(poisoned: Queue) -> None:
    plan_id = recorded(poisoned)
    applied(poisoned, plan_id)
    poisoned.receive("two", max_messages=2)  # they fail again
    move(poisoned.table, poisoned.clock, [3], POISON)
    remove(poisoned.table, 4, poisoned.clock)
    view = undone(poisoned, plan_id)
    assert (view.state, view.done) == ("undone", 4)
    assert [poisoned.counts(number)[1] for number in (1, 3, 5)] == [3, 3, 3]


# Canaries -------------------------------------------------------------------------------------------------------------


def test_a_canary_goes_first_and_the_others_follow_when_it_is_good(poisoned: Queue) -> None:
    applied(poisoned, recorded(poisoned, PATCH))
    plan_id = recorded(poisoned, canary=Canary(3))
    view = applied(poisoned, plan_id)
    assert (view.state, view.done, in_place(poisoned, MAIN)) == ("canary", 3, [1, 2, 5])
    assert applied(poisoned, plan_id).state == "canary"
    assert poisoned.receive("two").settled == 3
    assert (applied(poisoned, plan_id).state, in_place(poisoned, MAIN)) == ("done", [3, 4, 6, 7, 8, 9])


def test_a_canary_that_fails_stops_the_plan(poisoned: Queue) -> None:
    applied(poisoned, recorded(poisoned, PATCH, error_type="KeyError"))
    plan_id = recorded(poisoned, canary=Canary(4, 0.75))
    applied(poisoned, plan_id)
    result = poisoned.receive("two")
    assert (result.settled, result.poisoned) == (2, 2)
    view = applied(poisoned, plan_id)
    assert (view.state, view.done) == ("stopped", 4)
    assert applied(poisoned, plan_id).state == "stopped"
    resume(poisoned.table, plan_id, poisoned.clock, who="x", reason="go on all the same")
    assert applied(poisoned, plan_id).state == "done"


def test_a_canary_that_was_removed_has_not_been_settled(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(1))
    applied(poisoned, plan_id)
    remove(poisoned.table, in_place(poisoned, MAIN)[0], poisoned.clock)
    assert applied(poisoned, plan_id).state == "stopped"


def test_a_canary_whose_process_has_died_is_resumed_as_one(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(2))
    before = poisoned.table.snapshot().version
    assert resume(poisoned.table, plan_id, poisoned.clock, who="x").state == "canary"
    assert poisoned.table.snapshot().version == before


def test_a_paused_canary_is_a_canary_again(poisoned: Queue) -> None:
    plan_id = recorded(poisoned, canary=Canary(1))
    pause(poisoned.table, plan_id, poisoned.clock, who="x")
    assert resume(poisoned.table, plan_id, poisoned.clock, who="x").state == "canary"


# Whoever dies ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.verb} {action.target}")
@pytest.mark.parametrize("point", POINTS)
def test_who_dies_anywhere_does_each_message_once(poisoned: Queue, at_point: AtPoint, point: str, action: PlanAction) -> None:
    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    for _ in range(2):
        try:
            view = applied(poisoned, recorded(poisoned, action, key="it", where="body.number != 4"))
        except DiedError:
            continue
    assert (view.state, view.done) == ("done", 8)
    moves = {number: row["move_count"] for number, row in poisoned.rows().items()}
    edits = {number: str(row["properties"]).count('"plan"') for number, row in poisoned.rows().items()}
    match action.verb:
        case Verb.PUT_BACK:
            assert moves == {number: 1 if number == 4 else 2 for number in ALL}
        case Verb.REMOVE:
            assert list(moves) == [4]
        case _:
            assert edits == {number: int(number != 4) for number in ALL}
            assert moves == {number: 2 if action.target and number != 4 else 1 for number in ALL}
    told = [event.lookup_id for event in poisoned.table.events() if event.type is action.event and event.details.get("plan")]
    assert sorted(told) == [number for number in ALL if number != 4]  # type: ignore[type-var]
    assert is_whole(poisoned)


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.verb} {action.target}")
@pytest.mark.parametrize("point", ["desk.undo.before_chunk", "store.bring_back.before_commit", "store.bring_back.after_commit", *POINTS[2:]])
def test_who_dies_undoing_undoes_the_rest(poisoned: Queue, at_point: AtPoint, point: str, action: PlanAction) -> None:
    before = {number: row["body"] for number, row in poisoned.rows().items()}
    plan_id = recorded(poisoned, action)
    applied(poisoned, plan_id)

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    try:
        view = undone(poisoned, plan_id)
    except DiedError:
        view = undone(poisoned, plan_id)
    assert (view.state, view.done, in_place(poisoned, POISON)) == ("undone", 0, list(ALL))
    assert {number: row["body"] for number, row in poisoned.rows().items()} == before
    assert is_whole(poisoned)


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.verb} {action.target}")
@pytest.mark.parametrize("point", ["desk.apply.before_chunk", "store.replace.before_commit", "desk.apply.after_split"])
def test_two_at_the_same_time_do_each_message_once(poisoned: Queue, at_point: AtPoint, point: str, action: PlanAction) -> None:
    plan_id = recorded(poisoned, action)
    at_point.do(point, lambda: applied(poisoned, plan_id))
    assert applied(poisoned, plan_id).done == 9
    told = [event.lookup_id for event in poisoned.table.events() if event.type is action.event and event.details.get("plan")]
    assert sorted(told) == list(ALL)  # type: ignore[type-var]
    assert is_whole(poisoned)


# What cannot go on ----------------------------------------------------------------------------------------------------


def test_a_plan_that_cannot_go_on_has_failed_says_why_and_goes_on_when_that_is_mended(poisoned: Queue) -> None:
    # given a queue that goes away between the plan and its application
    plan_id = recorded(poisoned, PlanAction(verb=Verb.SEND_TO, target="gone"))
    # when
    with pytest.raises(QueueNotFoundError):
        applied(poisoned, plan_id)
    # then
    failed = find_plan(poisoned.table, plan_id)
    assert (failed.state, failed.done, states(poisoned)[-1]) == ("failed", 0, "failed")
    assert failed.error.startswith("QueueNotFoundError: There is no queue 'gone'")
    assert poisoned.store.uri not in failed.error
    assert waits_at(poisoned.table, plan_id) is None
    # and when the queue is there, whoever applies or resumes it goes on
    other = declare(poisoned.store, "gone", NO_RETRY, poisoned.clock)
    done = applied(poisoned, plan_id)
    assert (done.state, done.done, done.error) == ("done", 9, "")
    assert sum(file.rows for file in other.snapshot().files) == 9
    assert is_whole(poisoned)


def with_another_record(queue: Queue, plan_id: str, body: bytes) -> None:
    """Put another text in the place of what a plan says."""
    found = stored(queue.table, plan_id)
    path = queue.table.folder.here(found.files[0].path)
    rows = pq.read_table(path, partitioning=None)
    place = rows.schema.get_field_index("body")
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.array([body], rows.schema.field(place).type)), path)


def changed(queue: Queue, plan_id: str, **parts: Any) -> bytes:
    return json.dumps({name: value for name, value in {**stored(queue.table, plan_id).record, **parts}.items() if value is not None}).encode()


BROKEN: dict[str, Callable[[Queue, str], bytes]] = {
    "no JSON": lambda _queue, _plan: b"{",
    "another kind of JSON": lambda _queue, _plan: b"[5]",
    "no time": lambda queue, plan_id: changed(queue, plan_id, at=None),
    "a selection of a newer version": lambda queue, plan_id: changed(queue, plan_id, selection={"newer": 1}),
    "an action of a newer version": lambda queue, plan_id: changed(queue, plan_id, action={"verb": "burn"}),
    "nothing of its messages": lambda queue, plan_id: changed(queue, plan_id, messages=None),
    "facts that are none": lambda queue, plan_id: changed(queue, plan_id, facts=[1]),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_plan_that_cannot_be_read_keeps_no_other_one_from_its_messages(poisoned: Queue, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = (recorded(poisoned, lookup_ids=ids) for ids in ((1, 2), (3, 4), (5, 6)))
    with_another_record(poisoned, second, BROKEN[broken](poisoned, second))

    assert [view.plan for view in plans(poisoned.table)] == [third, first]
    assert second in caplog.text
    with pytest.raises((PlanNotFoundError, PlanUnreadableError), match=second):
        find_plan(poisoned.table, second)
    with pytest.raises((PlanNotFoundError, PlanUnreadableError), match=second):
        applied(poisoned, second)
    assert [applied(poisoned, each).state for each in (first, third)] == ["done", "done"]
    run_rules(poisoned.table, poisoned.clock, who="ann", store=poisoned.store)
    redrive(poisoned.table, poisoned.clock, who="ann", version="2")
    maintain(poisoned.table, poisoned.clock)
    assert in_place(poisoned, MAIN)[:4] == [1, 2, 5, 6]


@pytest.mark.parametrize("act", [pause, cancel])
def test_what_somebody_has_paused_or_cancelled_meanwhile_has_not_failed(poisoned: Queue, at_point: AtPoint, act: Callable[..., PlanView]) -> None:
    plan_id = recorded(poisoned)

    def fail() -> None:
        act(poisoned.table, plan_id, poisoned.clock, who="ann")
        raise RecursionError("4111 is a value")

    at_point.do("desk.apply.before_chunk", fail)
    with pytest.raises(RecursionError):
        applied(poisoned, plan_id)
    assert find_plan(poisoned.table, plan_id).state in {"paused", "cancelled"}


def test_an_error_that_is_none_of_ours_is_named_by_its_type_alone(poisoned: Queue, at_point: AtPoint) -> None:
    plan_id = recorded(poisoned, canary=Canary(2))

    def fail() -> None:
        raise RecursionError("4111 is a value")

    at_point.do("desk.apply.before_chunk", fail)
    with pytest.raises(RecursionError):
        applied(poisoned, plan_id)
    failed = find_plan(poisoned.table, plan_id)
    assert (failed.state, failed.error) == ("failed", "RecursionError")
    # it goes on with its canary, and can be ended
    assert resume(poisoned.table, plan_id, poisoned.clock, who="ann").state == "canary"
    assert cancel(poisoned.table, plan_id, poisoned.clock, who="ann").state == "cancelled"


@pytest.mark.parametrize("error", [StoreUnreachableError("away"), OSError(5, "away")])
def test_what_may_pass_leaves_the_plan_as_it_is(poisoned: Queue, at_point: AtPoint, error: Exception) -> None:
    plan_id = recorded(poisoned)

    def fail() -> None:
        raise error

    at_point.do("desk.apply.before_chunk", fail)
    with pytest.raises(type(error)):
        applied(poisoned, plan_id)
    assert find_plan(poisoned.table, plan_id).state == "running"
    assert applied(poisoned, plan_id).state == "done"
