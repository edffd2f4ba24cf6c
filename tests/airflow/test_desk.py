"""What DAGs do with many messages: redrive, count, query; each in a real run, without Spark, and killed wherever it can be."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_poison import Message, Msmq4
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.plans import plans
from airflow_poison.desk.selection import Selection
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.desk import QueueGroupsOperator, QueueQueryOperator, QueueRedriveOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.declaration import Canary
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.triggers import PlanTrigger
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PlanNotFoundError, PlanStateError, QueryError, QueueNotFoundError, SettingError
from airflow_poison.values.schema import SubQueue
from tests.airflow import redrive_process
from tests.airflow.test_triggers import first, within
from tests.given.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
LATE, KEY = "late", "key"


def refuse(message: Message) -> None:
    fails = message.json().get("fails")
    if fails:
        raise {LATE: ValueError, KEY: KeyError}[fails](f"carrier of {message.json()['number']}")


def receive(store: QueueStore, table: QueueTable) -> None:
    ReceivePass(table=table, policy=MOVE, handler=refuse, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(
        f"{table.snapshot().version}"
    )


@pytest.fixture
def table(store: QueueStore) -> QueueTable:
    """A queue with ten poison messages, 1 to 10: the odd ones were late, the even ones lacked a key."""
    made = declare(store, "orders", MOVE, CLOCK)
    bodies = [json.dumps({"number": n, "fails": LATE if n % 2 else KEY, "carrier": "VX" if n < 6 else "AA"}).encode() for n in range(1, 11)]
    send(made, messages_to_batches(bodies), key="a", clock=CLOCK)
    receive(store, made)
    return made


def ids(table: QueueTable, place: SubQueue = SubQueue.MAIN) -> list[int]:
    return sorted(number or 0 for file in table.snapshot().files if file.sub_queue == place for number in table.read(file)["lookup_id"].to_pylist())


def done_to(table: QueueTable) -> Counter[int | None]:
    """How often each message was put back."""
    return Counter(event.lookup_id for event in table.events() if event.type == "RETURNED")


def signed(table: QueueTable, kind: str) -> set[tuple[str | None, str | None]]:
    return {(event.details.get("who"), event.details.get("why")) for event in table.events() if event.type == kind}


def mended(**more: Any) -> None:
    """Mend all messages, so that their handler returns."""
    QueueHook().queue("orders").redrive(action={"verb": "edit", "patch": {"fails": None}}, reason="the key is there again", **more)


# Redrive --------------------------------------------------------------------------------------------------------------


def test_a_selection_in_templates_is_put_back_once_and_a_rerun_does_nothing(table: QueueTable, run_dag: Callable[..., Ran]) -> None:
    with DAG("redrive", schedule=None, params={"carrier": "VX"}) as dag:
        QueueRedriveOperator(
            task_id="redrive",
            queue_name="orders",
            selection={"error_type": "{{ 'KeyError' }}", "where": "body.carrier = '{{ params.carrier }}'", "lookup_ids": "{{ '1-9' }}"},
            rate="{{ 1000 }}",
            limit="{{ 1 }}",
            chunk="{{ 5 }}",
            reason="mended in {{ dag.dag_id }}",
            deferrable=False,
        )
    when = SystemClock().now()
    ran = run_dag(dag, when)
    assert ran.state == "success", ran.errors
    told = ran.returned["redrive"]
    assert (told["messages"], told["done"], told["state"], told["rate"], told["chunk"]) == (1, 1, "done", 1000, 5)
    assert told["selection"] == {"sub_queue": "poison", "error_type": "KeyError", "where": "body.carrier = 'VX'", "lookup_ids": list(range(1, 10))}
    assert ids(table) == [2]
    [(who, why)] = signed(table, "RETURNED")
    assert who is not None
    assert (who.split("/")[0], who.split("/")[-1], why) == ("dag:redrive", "redrive", "mended in redrive")
    assert run_dag(dag, when).returned["redrive"] == told
    assert ids(table) == [2]


def test_selections_actions_and_canaries_are_objects_or_results_of_tasks(table: QueueTable, run_dag: Callable[..., Ran]) -> None:
    with DAG("objects", schedule=None) as dag:

        @task
        def wanted() -> dict[str, Any]:
            return {"lookup_ids": [3]}

        poisoned = QueueRedriveOperator(
            task_id="object", queue_name="orders", selection=Selection(lookup_ids=(1, 2)), action=PlanAction(verb=Verb.REMOVE), deferrable=False
        )
        text = QueueRedriveOperator(
            task_id="text", queue_name="orders", selection='{"lookup_ids": "4"}', action='{"verb": "move", "target": "main"}', deferrable=False
        )
        poisoned >> text >> QueueRedriveOperator(task_id="task", queue_name="orders", selection=cast("dict[str, Any]", wanted()), deferrable=False)
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert (ids(table), ids(table, SubQueue.POISON)) == ([3, 4], [5, 6, 7, 8, 9, 10])


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_others_follow_a_canary_that_is_good(store: QueueStore, table: QueueTable, run_dag: Callable[..., Ran], *, deferrable: bool) -> None:
    mended()
    with DAG("canary", schedule=None) as dag:
        QueueRedriveOperator(task_id="redrive", queue_name="orders", canary="{{ 4 }}", deferrable=deferrable, poll_interval=0.05)
    with received_when_canary(store, table) as seen:
        ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert (seen, ran.returned["redrive"]["done"], len(ids(table))) == ([[1, 2, 3, 4]], 10, 6)


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_canary_that_fails_fails_the_task_for_good(store: QueueStore, table: QueueTable, run_dag: Callable[..., Ran], *, deferrable: bool) -> None:
    with DAG("bad_canary", schedule=None, default_args={"retries": 3}) as dag:
        QueueRedriveOperator(task_id="redrive", queue_name="orders", canary={"messages": 2, "share": 0.5}, deferrable=deferrable, poll_interval=0.05)
    with received_when_canary(store, table):
        ran = run_dag(dag)
    assert ran.tasks == {"redrive": "failed"}
    error = ran.errors["redrive"]
    assert isinstance(error, AirflowFailException)
    assert "has stopped after 2 of 10 messages: of the messages that went first 0 were settled and 2 failed. 'airflow poison resume orders" in str(
        error
    )
    assert (ids(table), len(ids(table, SubQueue.POISON))) == ([], 10)


class received_when_canary:  # noqa: N801  (a context manager)
    """Run a pass in a thread when the canary's messages are in ``main``; remember which they were."""

    def __init__(self, store: QueueStore, table: QueueTable) -> None:
        self.seen: list[list[int]] = []
        self.store, self.table, self.ended = store, table, threading.Event()
        self.thread = threading.Thread(target=self.act)

    def act(self) -> None:
        while not self.ended.wait(0.05):
            if [view.state for view in plans(self.table)][:1] == ["canary"] and ids(self.table):
                self.seen.append(ids(self.table))
                receive(self.store, self.table)
                return

    def __enter__(self) -> list[list[int]]:
        self.thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def test_a_long_wait_between_chunks_is_spent_in_the_triggerer(
    table: QueueTable, monkeypatch: pytest.MonkeyPatch, run_dag: Callable[..., Ran]
) -> None:
    waits: list[dict[str, Any]] = []
    monkeypatch.setattr("airflow_poison.operators.desk.SHORT", 0.5)
    real = PlanTrigger.__init__

    def noted(self: PlanTrigger, *args: Any, **kwargs: Any) -> None:
        waits.append(kwargs)
        real(self, *args, **kwargs)

    monkeypatch.setattr(PlanTrigger, "__init__", noted)
    with DAG("slow", schedule=None) as dag:
        QueueRedriveOperator(task_id="redrive", queue_name="orders", rate=5, chunk=5, deferrable=True, poll_interval=0.05)
    ran = run_dag(dag)
    assert (ran.state, ran.returned["redrive"]["done"]) == ("success", 10), ran.errors
    assert len({wait["not_before"] for wait in waits}) == 2
    assert all(count == 1 for count in done_to(table).values())


def test_a_plan_that_somebody_has_cancelled_fails_the_task(table: QueueTable, run_dag: Callable[..., Ran]) -> None:
    when = SystemClock().now()
    with DAG("cancelled", schedule=None) as dag:
        QueueRedriveOperator(task_id="redrive", queue_name="orders", canary=1, deferrable=False)
    act_when(table, "canary", lambda view: QueueHook().queue("orders").cancel(view.plan, "not today"))
    assert "is cancelled after 1 of 10 messages" in str(run_dag(dag, when).errors["redrive"])
    assert "is cancelled after 1 of 10 messages" in str(run_dag(dag, when).errors["redrive"])


def test_while_somebody_has_paused_the_plan_the_task_waits(store: QueueStore, table: QueueTable, run_dag: Callable[..., Ran]) -> None:
    mended()
    with DAG("paused", schedule=None) as dag:
        QueueRedriveOperator(task_id="redrive", queue_name="orders", canary=1, deferrable=True, poll_interval=0.05)

    def pause_and_resume(view: PlanView) -> None:
        QueueHook().queue("orders").pause(view.plan, "look first")
        receive(store, table)
        time.sleep(0.5)
        assert QueueHook().queue("orders").find_plan(view.plan).state == "paused"
        QueueHook().queue("orders").resume(view.plan)

    act_when(table, "canary", pause_and_resume)
    ran = run_dag(dag)
    assert (ran.state, ran.returned["redrive"]["done"]) == ("success", 10), ran.errors


def act_when(table: QueueTable, state: str, act: Callable[[PlanView], object]) -> None:
    """Do something in a thread when the newest plan is in a state, and a message is in ``main``."""

    def look() -> None:
        until(lambda: [plan.state for plan in plans(table)[:1]] == [state] and ids(table))
        act(plans(table)[0])

    threading.Thread(target=look, daemon=True).start()


# Killed ---------------------------------------------------------------------------------------------------------------

POINTS = (
    "store.plan.before_commit",
    "store.plan.after_commit",
    "desk.apply.after_split",
    "desk.apply.before_chunk",
    "store.replace.before_commit",
    "store.replace.after_commit",
    "desk.apply.after_chunk",
)


@pytest.mark.parametrize("point", [POINTS[0], *(pytest.param(point, marks=pytest.mark.long) for point in POINTS[1:])])
def test_a_worker_that_is_killed_anywhere_goes_on_with_the_same_plan(table: QueueTable, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv("AIRFLOW_POISON_FAULT", f"{point}:kill")
    assert redrive_process.start("r1", chunk=3).ended().code == -signal.SIGKILL
    monkeypatch.delenv("AIRFLOW_POISON_FAULT")
    ended = redrive_process.start("r1", chunk=3).ended()
    assert "done 10 of 10 done" in ended.printed, ended.errors
    assert done_to(table) == dict.fromkeys(range(1, 11), 1)
    assert len(plans(table)) == 1


@pytest.mark.parametrize("point", ["desk.apply.before_chunk", "desk.apply.after_chunk"])
def test_two_workers_with_the_same_task_do_each_message_once(table: QueueTable, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_POISON_FAULT", f"{point}:stop")
    stopped = redrive_process.start("r1", chunk=3)
    pid = stopped._process.pid
    assert pid is not None
    until(lambda: is_stopped(pid))
    monkeypatch.delenv("AIRFLOW_POISON_FAULT")
    assert "done 10 of 10 done" in redrive_process.start("r1", chunk=3).ended().printed
    while stopped._process.exitcode is None:  # it may stop at several points
        os.kill(pid, signal.SIGCONT)
        stopped._process.join(0.05)
    assert "done 10 of 10 done" in stopped.ended().printed
    assert done_to(table) == dict.fromkeys(range(1, 11), 1)


def is_stopped(pid: int) -> bool:
    import psutil

    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


@pytest.mark.long
def test_a_task_that_is_ended_pauses_the_plan_and_goes_on_when_it_runs_again(table: QueueTable) -> None:
    ending = redrive_process.start("r1", rate=1)
    until(lambda: ids(table))
    assert ending._process.pid is not None
    os.kill(ending._process.pid, signal.SIGTERM)
    ended = ending.ended()
    assert ended.code == 1
    assert "PlanStateError: The task was ended; plan" in ended.errors
    [view] = plans(table)
    assert (view.state, 0 < view.done < 10) == ("paused", True)
    assert {why for _, why in signed(table, "PLAN_CHANGED")} == {"its task was ended"}
    QueueHook().queue("orders").pause(view.plan)  # it is paused already: nothing happens
    assert "done 10 of 10 done" in redrive_process.start("r1", rate=1).ended().printed
    assert done_to(table) == dict.fromkeys(range(1, 11), 1)


# Triggers -------------------------------------------------------------------------------------------------------------


def trigger(plan: str, **more: Any) -> PlanTrigger:
    return PlanTrigger("orders", plan, poll_interval=0.05, who="dag:shop/r1/redrive", **more)


def test_a_trigger_fires_when_something_can_be_done(table: QueueTable) -> None:
    plan = QueueHook().queue("orders").record()
    assert within(20, lambda: first(trigger(plan))).payload == {"plan": plan}
    copied = PlanTrigger(**trigger(plan).serialize()[1])
    assert copied.serialize() == trigger(plan).serialize()


def test_a_trigger_lets_other_commits_pass(store: QueueStore, table: QueueTable) -> None:
    view = QueueHook().queue("orders").redrive(canary=2)
    version = table.snapshot().version
    send(table, messages_to_batches([b"{}"]), key="b", clock=CLOCK)
    with pytest.raises(TimeoutError):
        within(1, lambda: first(trigger(view.plan, version=version)))
    receive(store, table)
    assert within(20, lambda: first(trigger(view.plan, version=version))).payload == {"plan": view.plan}


def test_a_trigger_tells_that_the_queue_is_gone(store: QueueStore) -> None:
    told = within(20, lambda: first(trigger("x"))).payload
    assert told["error"] == "QueueNotFoundError"
    with pytest.raises(QueueNotFoundError):
        QueueRedriveOperator(task_id="x", queue_name="orders").execute_complete({}, told)


def test_a_trigger_whose_task_is_ended_pauses_the_plan(table: QueueTable) -> None:
    plan = QueueHook().queue("orders").record()
    within(20, trigger(plan).on_kill)
    assert QueueHook().queue("orders").find_plan(plan).state == "paused"
    assert signed(table, "PLAN_CHANGED") == {("dag:shop/r1/redrive", "its task was ended")}
    QueueHook().queue("orders").cancel(plan)
    within(20, trigger(plan).on_kill)
    assert QueueHook().queue("orders").find_plan(plan).state == "cancelled"


# Groups and queries ---------------------------------------------------------------------------------------------------


def test_groups_and_answers_are_results_of_tasks(table: QueueTable, run_dag: Callable[..., Ran]) -> None:
    with DAG("looks", schedule=None) as dag:
        groups = QueueGroupsOperator(task_id="groups", queue_name="orders", selection={"where": "body.carrier = '{{ 'VX' }}'"}, limit=1)
        query = "select lookup_id, body.carrier, enqueued_at, properties, raw from messages where lookup_id < {{ 4 }} order by 1"
        groups >> QueueQueryOperator(task_id="query", queue_name="orders", sql=query, limit=2)
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    [group] = ran.returned["groups"]["groups"]
    assert (group["type"], group["messages"], ran.returned["groups"]["more"]) == ("ValueError", 3, 1)
    answer = ran.returned["query"]
    assert (answer["columns"], answer["more"]) == (["lookup_id", "carrier", "enqueued_at", "properties", "raw"], True)
    assert [(row["lookup_id"], row["carrier"]) for row in answer["rows"]] == [(1, "VX"), (2, "VX")]
    assert all(isinstance(row["enqueued_at"], str) and isinstance(row["raw"], str) for row in answer["rows"])


# The hook -------------------------------------------------------------------------------------------------------------


def test_the_hook_has_the_same_verbs(table: QueueTable) -> None:
    hook = QueueHook()
    assert [group.messages for group in hook.queue("orders").groups().groups] == [5, 5]
    assert hook.queue("orders").find({"error_type": "KeyError"}, limit=2).total == 5
    assert hook.queue("orders").query("select count(*) as n from messages").to_pylist() == [{"n": 10}]
    dry = hook.queue("orders").plan({"lookup_ids": [1, 2]}, "remove")
    assert (dry.messages, dry.state, hook.queue("orders").plans()) == (2, "planned", ())
    view = hook.queue("orders").redrive({"lookup_ids": [1, 2]}, "remove", reason="no use", chunk=1)
    assert (view.done, view.state, len(ids(table, SubQueue.POISON))) == (2, "done", 8)
    assert signed(table, "DROPPED") == {(view.who, "no use")}
    assert view.who.startswith("shell:")
    assert hook.queue("orders").undo(view.plan, "a mistake").state == "undone"
    plan = hook.queue("orders").record(canary=2, key="nightly")
    assert hook.queue("orders").record({"lookup_ids": [1]}, key="nightly") == plan
    assert hook.queue("orders").pause(plan, "wait").state == "paused"
    assert hook.queue("orders").resume(plan).state == "canary"
    assert hook.queue("orders").cancel(plan).state == "cancelled"
    assert [each.plan for each in hook.queue("orders").plans()] == [plan, view.plan]
    assert hook.queue("orders").find_plan(plan).canary == Canary(2, 1.0)


def test_everything_that_people_do_says_who_and_why(table: QueueTable) -> None:
    hook = QueueHook()
    hook.queue("orders").disable("night")
    hook.queue("orders").enable(reason="day")
    hook.queue("orders").alter({"receive_retry_count": 2}, reason="slower")
    hook.queue("orders").put_back([1], reason="again")
    hook.queue("orders").move([1], "poison", reason="not again")
    hook.queue("orders").remove(2, reason="no use")
    kinds = {"QUEUE_ENABLED": "day", "RETURNED": "again", "DROPPED": "no use"}
    who = {event.details.get("who") for event in table.events() if event.details.get("why")}
    assert len(who) == 1
    for kind, why in kinds.items():
        assert {each for _, each in signed(table, kind)} == {why}, kind
    assert {why for _, why in signed(table, "POLICY_CHANGED")} == {"night", "slower"}
    assert (None, None) in signed(table, "MOVED_POISON")  # what a pass does is not signed
    assert "not again" in {why for _, why in signed(table, "MOVED_POISON")}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"selection": {"eror": "x"}}, SettingError, "selection='eror'"),
        ({"selection": {"error": "x"}}, SettingError, "error='x'"),
        ({"selection": {"counts": "moves>1"}}, SettingError, "counts='moves>1'"),
        ({"selection": {"since": "yesterday"}}, SettingError, "since='yesterday'"),
        ({"selection": {"lookup_ids": "one"}}, SettingError, "lookup_ids='one'"),
        ({"selection": {"sub_queue": "attic"}}, SettingError, "sub_queue='attic'"),
        ({"selection": {"properties": ["a"]}}, SettingError, "properties="),
        ({"selection": {"where": "bodi.x = 1"}}, QueryError, "bodi"),
        ({"selection": "all of it"}, SettingError, "selection='all of it'"),
        ({"selection": "[1]"}, SettingError, "selection='[1]'"),
        ({"selection": 7}, SettingError, "selection=7"),
        ({"selection": {"error_type": ""}, "action": "remove"}, SettingError, "error_type=''"),
        ({"selection": '{"error_type": "KeyError", "where": ""}', "action": {"verb": "remove"}}, SettingError, "where=''"),
        ({"selection": {"lookup_ids": None}, "action": "remove"}, SettingError, "lookup_ids=None"),
        ({"selection": '{"sub_queue": null, "error": null}', "action": "remove"}, SettingError, "error=None"),
        ({"selection": "", "action": "remove"}, SettingError, "selection=''"),
        ({"selection": "null", "action": "remove"}, SettingError, "selection='null'"),
        ({"action": "reply"}, SettingError, "verb='reply'"),
        ({"action": {"verb": "move", "target": "attic"}}, SettingError, "target='attic'"),
        ({"action": {"verb": "edit"}}, SettingError, "edit="),
        ({"action": '{"verb"'}, SettingError, "action="),
        ({"action": {"verb": "edit", "function": "shop.nowhere:mend"}}, SettingError, "function='shop.nowhere:mend'"),
        ({"action": {"verb": "send_to", "target": "nowhere"}}, QueueNotFoundError, "nowhere"),
        ({"canary": 0}, SettingError, "canary.messages=0"),
        ({"canary": {"messages": 2, "share": 7}}, SettingError, "canary.share=7"),
        ({"canary": {"many": 2}}, SettingError, "canary="),
        ({"canary": "some"}, SettingError, "canary='some'"),
        ({"canary": True}, SettingError, "canary=True"),
        ({"rate": 0}, SettingError, "rate=0"),
        ({"rate": "fast"}, SettingError, "rate='fast'"),
        ({"chunk": -1}, SettingError, "chunk=-1"),
        ({"limit": 0}, SettingError, "limit=0"),
        ({"limit": "x"}, SettingError, "limit='x'"),
        ({"queue_name": "nowhere"}, QueueNotFoundError, "nowhere"),
    ],
)
def test_what_is_no_redrive_is_refused_and_changes_nothing(table: QueueTable, arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    wrong = QueueRedriveOperator(**{"task_id": "redrive", "queue_name": "orders", "deferrable": False, **arguments})
    before = table.snapshot().version
    with pytest.raises(error) as found:
        wrong.execute(cast("Context", {"ti": SimpleNamespace(dag_id="shop", run_id="r1", task_id="redrive", map_index=-1)}))
    assert says in str(found.value)
    assert table.snapshot().version == before


def test_a_plan_that_is_not_there_or_has_ended_is_named(table: QueueTable) -> None:
    queue = QueueHook().queue("orders")
    for act in (queue.apply, queue.pause, queue.resume, queue.cancel, queue.undo, queue.find_plan):
        with pytest.raises(PlanNotFoundError, match=r"'nothing'.*airflow poison plans orders"):
            act("nothing")
    plan = queue.record()
    queue.cancel(plan)
    with pytest.raises(PlanStateError, match="is cancelled; expected running or canary"):
        queue.apply(plan)
