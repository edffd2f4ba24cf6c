"""The settings of a receive are declared once; every door has them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_poison import Msmq4, Store
from airflow_poison.decorators import ReceiveDecoratedOperator
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.declaration import DEFAULTS, Receive, ReceiveOptions
from airflow_poison.queue import Queue
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.testing import receive
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.values.message import Message

HANDLER = "json:loads"


def land(message: Message) -> None:
    if message.text == "bad":
        raise ValueError(message.text)


@pytest.mark.parametrize("door", [QueueReceiveOperator, QueueReceiveSubmitOperator, ReceiveDecoratedOperator, retry_cycle])
def test_a_door_shows_every_setting_with_its_default(door: Callable[..., object]) -> None:
    shown: dict[str, inspect.Parameter] = {}
    for thing in getattr(door, "__mro__", (door,)):
        shown = {**inspect.signature(thing).parameters, **shown}
    for name, default in DEFAULTS.items():
        assert shown[name].default == default or (name == "policy" and shown[name].default is inspect.Parameter.empty), name


@pytest.mark.parametrize("door", [receive, Queue.receive, Receive.of])
def test_a_door_without_airflow_takes_the_options_as_they_are(door: Callable[..., object]) -> None:
    assert inspect.signature(door).parameters["options"].annotation == "Unpack[ReceiveOptions]"


def test_every_option_has_a_default_and_its_text() -> None:
    assert set(DEFAULTS) == {"handler", "policy", *ReceiveOptions.__annotations__}
    for name in ReceiveOptions.__annotations__:
        assert f":param {name}:" in (ReceiveOptions.__doc__ or "")


def test_default_arguments_of_a_dag_reach_settings() -> None:
    defaults: dict[str, Any] = {"isolation": "none", "spans": ["bills"], "handler_version": "7"}
    with DAG("defaults", schedule=None, default_args=defaults):
        task = QueueReceiveOperator(task_id="receive", queue_name="orders", handler=HANDLER)
    declared = task.rendered()
    assert (declared.isolation, declared.spans, declared.handler_version) == ("none", ("bills",), "7")


@pytest.mark.parametrize(
    "call",
    [
        lambda: Receive.of("orders", handler=HANDLER, batches=5),  # type: ignore[call-arg]
        lambda: QueueReceiveOperator(task_id="receive", queue_name="orders", handler=HANDLER, batches=5),  # type: ignore[call-arg]
        lambda: receive(land, ["a"], Msmq4(), batches=5),  # type: ignore[call-arg]
    ],
)
def test_what_is_no_setting_is_named(call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, SettingError), match="batches"):
        call()


def test_a_queue_is_received_from_without_airflow(tmp_path: Path) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    orders = Store(str(tmp_path)).declare("orders", policy)
    assert orders.send(["good", "bad"], key="one").sent == 2
    assert orders.send(["good", "bad"], key="one").repeated
    result = orders.receive(land, isolation="none")
    assert (result.settled, result.poisoned) == (1, 1)
    assert orders.put_back(reason="INC-7") == 1
    event = orders.history().events[-1]
    assert (event.details["who"], event.details["why"]) == (orders.actor, "INC-7")


def test_settings_make_the_same_settings_again() -> None:
    given: dict[str, Any] = {"batch": "arrow", "schema": "id int", "output": "/lake/out", "evolve": True, "max_messages": 7}
    found = Receive.of("orders", handler=HANDLER, **given)
    assert Receive(**found.settings()) == found


def test_what_a_queue_declares_is_signed_by_its_own_actor(tmp_path: Path) -> None:
    store = Store(str(tmp_path), actor="shell:ann@home")
    store.declare("orders", Msmq4())
    mine = Queue(store, "orders", actor="shell:bob@work")
    mine.declare(mask=["$.card"])
    assert mine.history().events[-1].details["who"] == "shell:bob@work"
