"""Former names of parameters still work, and warn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.decorators.receive import receive_task
from airflow_poison.decorators.send import send_task
from airflow_poison.hooks.conversations import ConversationHook
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.taskgroups import recovery, retry_cycle

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing(message: object) -> None:
    del message


@pytest.mark.parametrize(
    ("given", "task_id"),
    [
        (lambda **name: receive_task(**name)(nothing)(), "nothing"),  # type: ignore[call-arg]  # the queue gives the message
        (lambda **name: send_task(**name)(list)(), "list"),
        (lambda **name: retry_cycle(policy=Msmq4(), handler="json:loads", **name), "retry_cycle.receive"),
        (recovery, "recovery.ask"),
    ],
    ids=["@task.receive", "@task.send", "retry_cycle", "recovery"],
)
def test_a_queue_may_be_called_queue_as_before(given: Callable[..., Any], task_id: str) -> None:
    with DAG("former", schedule=None) as former, pytest.warns(AirflowProviderDeprecationWarning, match="'queue' is called 'queue_name' now"):
        given(queue="orders")
    with DAG("present", schedule=None) as present:
        given(queue_name="orders")
    tasks = [dag.get_task(task_id) for dag in (former, present)]
    assert [(task.queue_name, task.queue) for task in tasks] == [("orders", "default")] * 2  # type: ignore[union-attr]  # an operator of ours


@pytest.mark.parametrize(("decorator", "function"), [(receive_task, nothing), (send_task, list)], ids=["receive", "send"])
def test_beside_queue_name_queue_is_the_executors(decorator: Callable[..., Any], function: Callable[..., Any]) -> None:
    with DAG("both", schedule=None) as dag:
        decorator(queue_name="orders", queue="large")(function)()
    [task] = dag.tasks
    assert (task.queue_name, task.queue) == ("orders", "large")  # type: ignore[union-attr]


@pytest.mark.parametrize("hook", [QueueHook, ConversationHook])
def test_a_hooks_queue_may_be_called_name_as_before(hook: type[QueueHook], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    asked = hook()
    asked.queue(queue_name="orders", policy=Msmq4())
    with pytest.warns(AirflowProviderDeprecationWarning, match="QueueHook.disable: the parameter 'name' is called 'queue_name' now"):
        asked.disable(name="orders")  # type: ignore[call-arg]  # its former name
    assert asked.enable("orders").before == "disabled"
