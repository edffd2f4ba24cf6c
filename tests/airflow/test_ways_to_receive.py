"""Whatever receives takes the same settings: a task, a function, a cycle, a submitted pass."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_poison import Msmq4, Outage
from airflow_poison.core.conversations.services import DEFAULT_CONTRACT, Service
from airflow_poison.core.delivery.batching import Batching
from airflow_poison.core.errors import SettingError
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.taskgroups import retry_cycle

POLICY = Msmq4(retry_cycle_delay=timedelta(minutes=1))
GIVEN: dict[str, Any] = {
    "services": (Service("Warehouse", [DEFAULT_CONTRACT]),),
    "max_messages": 7,
    "isolation": "none",
    "unprocessable": ("builtins:KeyError",),
    "py_files": ["/a.zip"],
    "outage": Outage(at_least=30),
    "conn_id": "poison_big",
    "output": "/lake/landed",
    "output_schema": "n bigint",
    "output_keys": ["n"],
    "evolve": True,
    "provenance": True,
}
KEPT_AS = {"output": "outputs"}
"""Airflow's operators have an output of their own."""
OF_OUTPUT = {"output_schema": "schema", "output_keys": "keys", "evolve": "evolve", "provenance": "provenance"}
BATCHES: dict[str, Any] = {"batch": "polars", "batch_size": 77, "schema": "carrier string"}
SEVERAL = {"queues", "parallelism"}
ALERTS = {"on_queue_disabled", "on_poison", "on_blocked", "on_outage", "on_outage_over", "error_handler"}


def own(operator: type) -> set[str]:
    """Return the parameters of an operator and of its bases in this package."""
    ours = [kind for kind in operator.__mro__ if kind.__module__.startswith("airflow_poison.") and "__init__" in vars(kind)]
    return {name for kind in ours for name in inspect.signature(kind.__init__).parameters} - {"self", "kwargs"}  # type: ignore[misc]  # a class's own


def by_cycle(**given: Any) -> Any:
    with DAG("cycle", schedule=None) as dag:
        retry_cycle("orders", POLICY, "json:loads", **given)
    return dag.get_task("retry_cycle.receive")


def by_function(**given: Any) -> Any:
    with DAG("function", schedule=None) as dag:

        @task.receive(queue_name="orders", policy=POLICY, **given)
        def take(message: object) -> None:
            """Settle a message."""

        take()  # type: ignore[call-arg]  # a decorated function is called without its message
    return dag.get_task("take")


def by_operator(**given: Any) -> Any:
    return QueueReceiveOperator(task_id="receive", queue_name="orders", policy=POLICY, handler="json:loads", **given)


def by_submission(**given: Any) -> Any:
    return QueueReceiveSubmitOperator(task_id="receive", queue_name="orders", policy=POLICY, handler="json:loads", **given)


WAYS = [by_operator, by_function, by_cycle, by_submission]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_takes_the_settings_of_a_pass(way: Any) -> None:
    receives = way(**GIVEN)
    of_output = {name: receives.output_settings[kept_as] for name, kept_as in OF_OUTPUT.items()}
    assert {name: getattr(receives, KEPT_AS.get(name, name)) for name in GIVEN.keys() - of_output} | of_output == GIVEN
    assert {"queue_name", "handler", "max_messages", "outputs", "py_files", "conn_id"} <= set(receives.template_fields)
    assert [asset.uri for asset in receives.outlets] == ["file:///lake/landed"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_takes_batches(way: Any) -> None:
    receives = way(**BATCHES)
    assert {name: getattr(receives, name) for name in BATCHES} == BATCHES
    assert receives.batching == Batching("polars", 77, "carrier string")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": "spark"}, "batch='spark' is not allowed"),
        ({"batch": "arrow", "batch_size": 0}, "batch_size=0 is not allowed"),
        ({"schema": "a int"}, "None without batch"),
        ({"batch": "arrow", "schema": "a flot"}, "'flot' stands"),
        ({"batch": "arrow", "services": GIVEN["services"]}, "it has conversations"),
    ],
)
def test_every_way_to_receive_refuses_what_does_not_go_together(way: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as raised:
        way(**given)
    assert text in str(raised.value)


def test_batches_beside_the_batching_of_the_specification_are_refused() -> None:
    given: dict[str, Any] = {"task_id": "receive", "handler": "json:loads", "batch": "arrow"}
    with pytest.raises(SettingError, match="max_batch_size=5"):
        QueueReceiveOperator(queue_name="orders", policy=Msmq4(max_batch_size=5), **given)
    with pytest.raises(SettingError, match="max_batch_size=5"):
        QueueReceiveOperator(queues=[{"queue_name": "orders", "policy": Msmq4(max_batch_size=5)}], **given)


def test_these_are_all_settings_that_a_pass_has() -> None:
    """Another one has to be given to every way, and to be shown here."""
    assert own(QueueReceiveOperator) - SEVERAL - ALERTS == {*GIVEN, *BATCHES, "queue_name", "handler", "policy", "deliver"}
    assert own(QueueReceiveSubmitOperator) - {"spark_conn_id", "deliver"} == {*GIVEN, *BATCHES, "queue_name", "handler", "policy"}
    assert {*GIVEN, *BATCHES, *ALERTS, "deliver"} <= set(inspect.signature(retry_cycle).parameters)
