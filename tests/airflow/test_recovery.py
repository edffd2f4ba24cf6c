"""People decide about a halted queue: what they are asked, what their answers do, and what happens when tasks are killed or things have changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput

from airflow_poison import ActivationSpecification, Message, Msmq4, ServiceBroker
from airflow_poison.operators.ask import QueueAskOperator
from airflow_poison.operators.manage import QueueRecoverOperator
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.control import QueueState
from airflow_poison.taskgroups import recovery
from airflow_poison.values import fault_points
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import MessageClaimedError, QueueNotFoundError, SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
USER: HITLUser = {"id": "7", "name": "ann"}
SYSTEMS = [
    pytest.param(ServiceBroker(), "disabled", id="Service Broker"),
    pytest.param(ActivationSpecification(max_server_sessions=1), "stopped", id="activation specification"),
    pytest.param(Msmq4(receive_retry_count=0, max_retry_cycles=0), "faulted", id="MSMQ 4"),
]


class Killed(BaseException):
    """The task's process dies."""


def never(message: Message) -> None:
    if message.text.startswith("bad"):
        raise ValueError("no such shop")


def halt(store: QueueStore, policy: Policy, key: str = "one", *bodies: str) -> QueueTable:
    """Let the first bad message halt the queue."""
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([body.encode() for body in bodies or ("bad <b>one</b>", "good")]), key=key, clock=CLOCK)
    ReceivePass(table=table, policy=policy, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)
    assert table.snapshot().control.state is not QueueState.ENABLED
    return table


def context(run_id: str = "monday") -> Any:
    ti = SimpleNamespace(id="an id", dag_id="shop", run_id=run_id, task_id="task", map_index=-1)
    return {"ti": ti, "task_instance": ti}


class Airflow:
    """What Airflow does for a task that waits for people: it stores the question of a task instance, once, and wakes the task with the answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.question: dict[str, Any] = {}
        monkeypatch.setattr(hitl, "upsert_hitl_detail", self._store)

    def _store(self, **question: Any) -> None:
        self.question = self.question or question

    def park(self, task: QueueAskOperator, run_id: str = "monday") -> dict[str, Any]:
        with pytest.raises(TaskAwaitingInput) as parked:
            task.execute(context(run_id))
        assert parked.value.timeout == task.response_timeout
        return dict(parked.value.kwargs or {})

    def answer(self, task: QueueAskOperator, kwargs: dict[str, Any], chosen: str, *, timedout: bool = False) -> dict[str, Any]:
        event = {"chosen_options": [chosen], "params_input": {}, "responded_at": datetime.now(UTC), "responded_by_user": None if timedout else USER}
        anew = QueueAskOperator(task_id="ask", queue_name=task.queue_name, sub_queue=task.sub_queue)  # in another process
        return cast("dict[str, Any]", anew.execute_complete(context(), event | {"timedout": timedout}, **kwargs))

    def decision(self, which: int | str = 0, **task: Any) -> dict[str, Any]:
        """Ask, and let somebody answer with the n-th option, or a text."""
        ask = QueueAskOperator(task_id="ask", queue_name="orders", **task)
        kwargs = self.park(ask)
        return self.answer(ask, kwargs, which if isinstance(which, str) else self.question["options"][which])


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def recover(decision: dict[str, Any], **task: Any) -> dict[str, Any]:
    return QueueRecoverOperator(task_id="recover", queue_name="orders", decision=decision, **task).execute(context())


def places(table: QueueTable) -> dict[int, str]:
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    return {row["lookup_id"]: row["sub_queue"] for row in sorted(rows, key=lambda row: row["lookup_id"])}


# The question -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), SYSTEMS)
def test_people_are_shown_the_suspect_and_nothing_is_changed(store: QueueStore, airflow: Airflow, policy: Policy, state: str) -> None:
    table = halt(store, policy)
    before = table.snapshot()

    airflow.park(QueueAskOperator(task_id="ask", queue_name="orders", response_timeout=timedelta(hours=1), assigned_users=[USER]))

    asked = airflow.question
    assert asked["subject"] == f"Queue orders is {state} by message 1. What shall be done?"
    assert "```\nbad <b>one</b>\n```" in asked["body"]
    assert "no such shop" in asked["body"]
    assert asked["options"] == [
        "Remove message 1 and enable",
        "Return message 1 and enable",
        "Enable, leave message 1 as it is",
        f"Leave it {state}",
    ]
    assert (asked["defaults"], asked["multiple"], asked["assigned_users"]) == ([f"Leave it {state}"], False, [USER])
    assert table.snapshot().version == before.version


def test_a_queue_that_receives_asks_nobody(store: QueueStore, airflow: Airflow) -> None:
    declare(store, "orders", ServiceBroker(), CLOCK)
    with pytest.raises(AirflowSkipException, match="'orders' receives"):
        QueueAskOperator(task_id="ask", queue_name="orders").execute(context())
    with pytest.raises(QueueNotFoundError):
        QueueAskOperator(task_id="ask", queue_name="nowhere").execute(context())
    assert airflow.question == {}


@pytest.mark.parametrize(
    ("on_timeout", "default"),
    [
        ("leave", ["Leave it disabled"]),
        ("enable", ["Enable, leave message 1 as it is"]),
        ("return", ["Return message 1 and enable"]),
        ("remove", ["Remove message 1 and enable"]),
        ("fail", None),
    ],
)
def test_what_is_decided_when_nobody_answers_is_said_beforehand(store: QueueStore, airflow: Airflow, on_timeout: str, default: object) -> None:
    halt(store, ServiceBroker())
    airflow.park(QueueAskOperator(task_id="ask", queue_name="orders", on_timeout=on_timeout))
    assert airflow.question["defaults"] == default


def test_a_time_out_never_removes_what_is_not_suspected(store: QueueStore, airflow: Airflow) -> None:
    table = declare(store, "orders", ServiceBroker(), CLOCK)
    disable(table, CLOCK, "the shop is closed")
    airflow.park(QueueAskOperator(task_id="ask", queue_name="orders", on_timeout="remove"))
    assert airflow.question["options"] == ["Enable", "Leave it disabled"]
    assert airflow.question["defaults"] == ["Leave it disabled"]
    assert "the shop is closed" in airflow.question["body"]


def test_wrong_parameters_are_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SettingError, match="on_timeout"):
        QueueAskOperator(task_id="ask", queue_name="orders", on_timeout="delete")
    with pytest.raises(SettingError, match="on_asked"):
        QueueAskOperator(task_id="ask", queue_name="orders", on_asked=cast("Any", "slack"))
    with pytest.raises(SettingError, match="on_undecided"):
        QueueRecoverOperator(task_id="recover", queue_name="orders", decision={}, on_undecided=cast("Any", 7))


def test_people_are_told_that_they_are_asked_with_the_same_key_for_each_try(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    told: list[dict[str, Any]] = []
    ask = QueueAskOperator(task_id="ask", queue_name="orders", on_asked=lambda given: told.append(given["poison_alert"]))

    airflow.park(ask)
    send(table, messages_to_batches([b"later"]), key="later", clock=CLOCK)
    airflow.park(ask)
    airflow.park(ask, "tuesday")

    assert [alert["key"] == told[0]["key"] for alert in told] == [True, True, False]
    assert (told[0]["event"], told[0]["kind"], told[0]["lookup_ids"]) == ("DECISION_WANTED", "queue_disabled", [1])
    assert told[0]["what_to_do"].endswith("dags/shop/runs/monday/tasks/task/required_actions?map_index=-1")


# The answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), SYSTEMS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_people_answer_is_done(store: QueueStore, airflow: Airflow, policy: Policy, state: str, which: int) -> None:
    table, to = halt(store, policy), ["orders;poison", "orders", ""][which]

    decision, before = airflow.decision(which), len(list(table.events()))
    result = recover(decision)

    assert (decision["by"], decision["timed_out"]) == (USER, False)
    assert (result["to"], result["messages"], result["lookup_id"]) == (to, 1 if to else 0, 1)
    assert {event.details.get("who") for event in list(table.events())[before:]} == {"airflow:ann"}
    assert places(table) == {1: "poison" if which == 0 else "main", 2: "main"}
    assert table.snapshot().control.state is QueueState.ENABLED


def test_a_refusal_leaves_everything_as_it_is_and_skips_what_follows(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    before = table.snapshot().version

    with pytest.raises(AirflowSkipException, match="left disabled, as ann has decided"):
        recover(airflow.decision(3))

    assert table.snapshot().version == before


def test_when_nobody_answers_people_are_told_and_the_queue_is_left(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    before, told = table.snapshot().version, list[dict[str, Any]]()
    ask = QueueAskOperator(task_id="ask", queue_name="orders")
    decision = airflow.answer(ask, airflow.park(ask), "Leave it disabled", timedout=True)

    for _ in range(2):
        with pytest.raises(AirflowSkipException, match="no answer arrived in time"):
            recover(decision, on_undecided=lambda given: told.append(given["poison_alert"]))

    assert (decision["timed_out"], decision["by"]) == (True, None)
    assert table.snapshot().version == before
    assert [alert["event"] for alert in told] == ["UNDECIDED", "UNDECIDED"]
    assert told[0]["key"] == told[1]["key"]
    assert "so: Leave it disabled." in told[0]["reason"]


def test_somebody_who_refuses_does_not_count_as_nobody(store: QueueStore, airflow: Airflow) -> None:
    halt(store, ServiceBroker())
    told: list[object] = []
    with pytest.raises(AirflowSkipException):
        recover(airflow.decision(3), on_undecided=told.append)
    assert told == []


def test_a_time_out_that_is_to_fail_fails(store: QueueStore, airflow: Airflow) -> None:
    halt(store, ServiceBroker())
    ask = QueueAskOperator(task_id="ask", queue_name="orders", on_timeout="fail")
    kwargs = airflow.park(ask)
    with pytest.raises(HITLTimeoutError):
        ask.execute_complete(context(), {"error": "too late", "error_type": "timeout"}, **kwargs)


def test_a_removed_message_is_kept_where_the_dag_says(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    museum = declare(store, "museum", Msmq4(), CLOCK)
    decision = airflow.decision(0, to_queue="museum")
    assert "it is kept in ` museum `" in airflow.question["body"]

    assert recover(decision, to_queue="museum")["to"] == "museum"
    assert (places(table), len(places(museum))) == ({2: "main"}, 1)


# What has changed meanwhile ---------------------------------------------------------------------------------------------


def test_an_answer_about_one_message_does_not_touch_another(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    decision = airflow.decision(0)
    recover(airflow.decision(0))
    halt(store, ServiceBroker(), "two", "bad two")
    before = places(table)

    with pytest.raises(AirflowFailException, match="was disabled by message 1 when people were asked, and is disabled"):
        QueueRecoverOperator(task_id="recover", queue_name="orders", decision=decision).execute(context("tuesday"))
    assert places(table) == before


def test_an_answer_about_a_queue_that_receives_again_does_nothing(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    decision = airflow.decision(0)
    enable(table, CLOCK)

    with pytest.raises(AirflowFailException, match="is enabled now"):
        recover(decision)
    assert places(table) == {1: "main", 2: "main"}


def test_an_answer_to_the_question_that_airflow_shows_again_fails_when_it_is_about_another_message(store: QueueStore, airflow: Airflow) -> None:
    """The task is cleared; Airflow keeps the question of its first try."""
    table = halt(store, ServiceBroker())
    recover(airflow.decision(0))
    halt(store, ServiceBroker(), "two", "bad two")

    with pytest.raises(AirflowFailException, match="Start a new run"):
        airflow.decision("Remove message 1 and enable")
    assert table.snapshot().control.halted_by == 3


# Kills ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), SYSTEMS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_task_that_is_killed_at_each_of_its_steps_has_done_everything_once_in_the_end(
    store: QueueStore, airflow: Airflow, policy: Policy, state: str, which: int
) -> None:
    table = halt(store, policy)
    decision, kills = airflow.decision(which), 0
    while True:
        left = iter(range(kills + 1))

        def die(_point: str, left: Any = left, last: int = kills) -> None:
            if next(left, -1) == last:
                raise Killed

        fault_points.install(die)
        try:
            result = recover(decision)
        except Killed:
            kills += 1
            continue
        finally:
            fault_points.install(None)
        break

    assert kills >= 2
    assert result["repeated"]
    assert places(table) == {1: "poison" if which == 0 else "main", 2: "main"}
    assert table.snapshot().control.state is QueueState.ENABLED
    done = [event.type for event in table.events() if "run" in event.details]
    assert len(done) == len(set(done)) == (1 if which == 2 else 2)


def test_a_message_that_a_pass_has_is_left_to_it_and_the_task_may_be_tried_again(store: QueueStore, airflow: Airflow) -> None:
    table = halt(store, ServiceBroker())
    decision = airflow.decision(0)
    reason = table.snapshot().control.reason
    enable(table, CLOCK)
    claim = table.claim("pass", lease=timedelta(minutes=1), now=CLOCK.now(), max_messages=9)
    assert claim is not None
    table.alter(lambda control: control.halted(SubQueue.MAIN, QueueState.DISABLED, reason, 1))
    with pytest.raises(MessageClaimedError):
        recover(decision)
    table.release(claim)
    assert recover(decision)["messages"] == 1


# The group --------------------------------------------------------------------------------------------------------------


def test_the_group_of_a_queue_that_receives_is_skipped_with_what_follows(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    from airflow.sdk import task

    declare(store, "orders", ServiceBroker(), CLOCK)
    with DAG("nothing_to_decide", schedule=None) as dag:

        @task
        def go_on() -> None: ...

        recovery("orders") >> go_on()

    ran = run_dag(dag)
    assert ran.tasks == {"recovery.ask": "skipped", "recovery.recover": "skipped", "go_on": "skipped"}


def test_the_group_waits_where_it_is_told_to() -> None:
    with DAG("waits", schedule=None) as dag:
        recovery("orders", wait=True, wait_timeout=timedelta(hours=2), poke_interval=3, sub_queue="poison", group_id="people")
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "people.wait": set(),
        "people.ask": {"people.wait"},
        "people.recover": {"people.ask"},
    }
    wait = cast("Any", dag.get_task("people.wait"))
    assert (wait.timeout, wait.poke_interval, wait.mode, wait.condition.sub_queue) == (7_200, 3, "reschedule", "poison")
