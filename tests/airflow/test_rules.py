"""QueueRulesOperator, rules and automatic redrives in DAGs: what is done, told and asked, and what answers do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskAwaitingInput

from airflow_poison import Canary, Message, Msmq4, Rule
from airflow_poison.desk.plans import plans
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.desk import QueueRulesOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue

from .conftest import define_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
KEYS = {"error_type": "KeyError"}
USER = {"id": "7", "name": "ann"}


def fails(message: Message) -> None:
    """Fail as the body says."""
    raise {"key": KeyError, "value": ValueError}[message.text](message.text)


def succeed(message: Message) -> None:
    """The mended handler."""
    assert message.text


def rule(name: str, verb: str, when: Any = None, **parts: Any) -> Rule:
    return Rule.from_dict({"name": name, "verb": verb, "when": when or {}, **parts})


@pytest.fixture
def table(store: QueueStore) -> QueueTable:
    """A queue with two poison messages that lack a key, and three with a wrong value."""
    found = declare(store, "orders", POLICY, CLOCK)
    send(found, messages_to_batches([b"key"] * 2 + [b"value"] * 3), key="one", clock=CLOCK)
    ReceivePass(table=found, policy=POLICY, handler=fails, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run("one")
    return found


def context(run_id: str = "monday") -> Any:
    ti = SimpleNamespace(id="an id", dag_id="shop", run_id=run_id, task_id="rules", map_index=-1)
    return {"ti": ti, "task_instance": ti}


def rules(*given: Rule, run_id: str = "monday", **parts: Any) -> dict[str, Any]:
    task = QueueRulesOperator(task_id="rules", queue_name="orders", rules=given or None, **parts)
    return cast("dict[str, Any]", task.execute(context(run_id)))


def in_place(table: QueueTable, place: SubQueue) -> list[int]:
    files = [file for file in table.snapshot().files if file.sub_queue == place]
    return sorted(row["lookup_id"] for file in files for row in table.read(file).to_pylist())


def parked(monkeypatch: pytest.MonkeyPatch, *given: Rule, run_id: str = "monday") -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the rules until people are asked; return the question, and what the task is woken up with."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **question: asked.update(question))
    with pytest.raises(TaskAwaitingInput) as waits:
        rules(*given, run_id=run_id)
    return asked, json.loads(json.dumps(waits.value.kwargs))


def answered(kwargs: dict[str, Any], *chosen: str, timedout: bool = False) -> dict[str, Any]:
    """Wake the task up in another process."""
    user = None if timedout else USER
    event = {"chosen_options": list(chosen), "params_input": {}, "responded_at": datetime.now(UTC), "responded_by_user": user, "timedout": timedout}
    return cast("dict[str, Any]", QueueRulesOperator(task_id="rules", queue_name="orders").execute_complete(context(), event, **kwargs))


def test_rules_are_recorded_and_run(table: QueueTable) -> None:
    result = rules(rule("keys", "put_back", KEYS), rule("rest", "tell"))
    assert [(each["rule"], each["messages"], each["done"]) for each in result["rules"]] == [("keys", 2, 2), ("rest", 3, 3)]
    assert (in_place(table, SubQueue.MAIN), in_place(table, SubQueue.POISON)) == ([1, 2], [3, 4, 5])
    assert plans(table)[0].who == "dag:shop/monday/rules"
    assert [each["rule"] for each in rules(run_id="tuesday")["rules"]] == ["keys", "rest"]
    with pytest.raises(SettingError, match="did you mean 'when'"):
        QueueRulesOperator(task_id="rules", queue_name="orders", rules=[{"name": "a", "verb": "tell", "whn": {}}])


def test_a_dry_run_changes_nothing(table: QueueTable) -> None:
    before = table.snapshot().version
    result = rules(rule("keys", "remove", KEYS), dry_run=True)
    assert (result["rules"][0]["now"], result["unmatched"], table.snapshot().version) == (2, 3, before)
    assert json.loads(json.dumps(result)) == result


def test_who_is_told_is_told_once(table: QueueTable) -> None:
    heard: list[str] = []
    for run_id in ("monday", "tuesday"):
        rules(rule("rest", "tell"), run_id=run_id, on_told=[lambda given: heard.append(given["poison_alert"]["reason"])])
    assert heard == ["5 messages of queue 'orders' wait in poison; rule 'rest' tells of them."]
    assert in_place(table, SubQueue.POISON) == [1, 2, 3, 4, 5]


ASKS = (rule("keys", "ask", KEYS), rule("rest", "ask", proposes="remove"))


def test_people_agree_to_what_they_choose(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    question, kwargs = parked(monkeypatch, *ASKS)
    assert question["options"] == ["rule keys: put back 2 messages", "rule rest: remove 3 messages", "Leave them in poison"]
    assert (question["multiple"], question["defaults"]) == (True, ["Leave them in poison"])
    assert "KeyError" in question["body"]
    result = answered(kwargs, "rule keys: put back 2 messages")
    assert (result["by"], result["timed_out"]) == (USER, False)
    assert (in_place(table, SubQueue.MAIN), in_place(table, SubQueue.POISON)) == ([1, 2], [3, 4, 5])
    assert sorted(each.state for each in plans(table)) == ["cancelled", "done"]
    assert answered(kwargs, "rule keys: put back 2 messages")["rules"] == result["rules"]  # a try that was killed is tried again
    assert (in_place(table, SubQueue.MAIN), sorted(each.state for each in plans(table))) == ([1, 2], ["cancelled", "done"])


def test_nobody_answers(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    _, kwargs = parked(monkeypatch, *ASKS)
    assert answered(kwargs, "Leave them in poison", timedout=True)["timed_out"]
    assert {each.state for each in plans(table)} == {"paused"}
    assert [each["waiting"] for each in rules(run_id="tuesday")["rules"]] == [2, 3]


def test_a_task_that_runs_again_asks_the_same(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = parked(monkeypatch, *ASKS)
    again, _ = parked(monkeypatch, *ASKS)
    assert (again["options"], len(plans(table))) == (first["options"], 2)


def test_it_need_not_wait(table: QueueTable) -> None:
    assert [each["state"] for each in rules(*ASKS, wait=False)["rules"]] == ["paused", "paused"]
    assert len(plans(table)) == 2


def test_the_hook_declares_and_runs_rules(table: QueueTable) -> None:
    hook = QueueHook()
    hook.queue("orders").declare_rules([{"name": "keys", "verb": "put_back", "when": KEYS}])
    assert hook.queue("orders").run_rules(dry_run=True).rules[0].now == 2
    assert hook.queue("orders").run_rules().rules[0].done == 2
    assert hook.queue("orders").redrive_on_new_handler({"messages": 2}) == Canary(2)
    assert in_place(table, SubQueue.MAIN) == [1, 2]


def test_a_new_handler_redrives(store: QueueStore, table: QueueTable, run_dag: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "poison_default", {"store": str(table.uri).rpartition("/")[0], "small_pass": 20_000})
    QueueHook().queue("orders").redrive_on_new_handler(Canary(1))
    with DAG("redrive", schedule=None) as dag:
        given: dict[str, Any] = {"queue_name": "orders", "handler": "tests.airflow.test_rules:succeed", "isolation": "none"}
        known = QueueReceiveOperator(task_id="known", handler_version="1", **given)
        first = QueueReceiveOperator(task_id="first", handler_version="{{ 1 + 1 }}", **given)
        second = QueueReceiveOperator(task_id="second", handler_version="2", **given)
        known >> first >> second
    ran = run_dag(dag)
    assert (ran.state, *(ran.returned[each]["settled"] for each in ("known", "first", "second"))) == ("success", 0, 2, 3)
    assert store.open("orders").snapshot().files == ()


def test_a_cycle_has_its_rules_before_it_receives() -> None:
    versions: dict[str, Any] = {"handler_version": "2", "redrive_on_new_handler": Canary(5)}
    with DAG("cycle", schedule=None) as dag:
        retry_cycle("orders", POLICY, "tests.airflow.test_rules:succeed", rules=[rule("keys", "put_back", KEYS)], **versions)
    ruled, received = dag.get_task("retry_cycle.rules"), cast("QueueReceiveOperator", dag.get_task("retry_cycle.receive"))
    assert ruled.upstream_task_ids == {"retry_cycle.return"}
    assert ruled.downstream_task_ids == {"retry_cycle.receive"}
    assert cast("QueueRulesOperator", ruled).rules == (rule("keys", "put_back", KEYS),)
    assert (received.handler_version, received.receive.redrive_on_new_handler) == ("2", Canary(5))
    with pytest.raises(SettingError, match="handler_version=None"):
        QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads", redrive_on_new_handler=Canary(5))
