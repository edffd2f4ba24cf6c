"""Whatever receives takes the same settings: a task, a function, a cycle, a submitted pass."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_poison import Canary, Msmq4, Outage, ServiceBroker
from airflow_poison.delivery.handlers import Batching, Transformation
from airflow_poison.dialogs.services import DEFAULT_CONTRACT, Service
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.submit import QueueReceiveSubmitOperator
from airflow_poison.passes.declaration import Receive
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.errors import HandlerNotFoundError, SettingError

POLICY = Msmq4(retry_cycle_delay=timedelta(minutes=1))
GIVEN: dict[str, Any] = {
    "services": (Service("Warehouse", [DEFAULT_CONTRACT]),),
    "max_messages": 7,
    "isolation": "none",
    "unprocessable": ("builtins:KeyError",),
    "py_files": ["/a.zip"],
    "outage": Outage(at_least=30),
    "mask": ["$.card"],
    "handler_version": "2",
    "redrive_on_new_handler": Canary(10),
    "conn_id": "poison_big",
    "output": "/lake/landed",
    "output_schema": "n bigint",
    "output_keys": ["n"],
    "evolve": True,
    "provenance": True,
    "on_bad_cell": "null",
}
BATCHES: dict[str, Any] = {"batch": "polars", "batch_size": 77, "schema": "carrier string"}
SEVERAL = {"queues", "parallelism"}
"""Settings of the operator alone."""
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


def upsert(rows: object, key: str) -> None:
    """Take rows."""


async def soon(rows: object, key: str) -> None:
    """Run never."""


WAYS = [by_operator, by_function, by_cycle, by_submission]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_takes_the_settings_of_a_pass(way: Any) -> None:
    receives = way(**GIVEN)
    own = {"py_files": receives.py_files, "conn_id": receives.conn_id}
    options = {name: value for name, value in GIVEN.items() if name not in own}
    assert own == {name: GIVEN[name] for name in own}
    wanted = Receive.of("orders", handler="json:loads", policy=POLICY, **options)
    assert replace(receives.rendered(), handler="json:loads") == wanted
    assert {"queue_name", "handler", "max_messages", "outputs", "py_files", "conn_id"} <= set(receives.template_fields)
    assert [asset.uri for asset in receives.outlets] == ["file:///lake/landed"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_gives_rows_to_a_function(way: Any) -> None:
    receives = way(deliver=upsert)
    assert receives.rendered().deliver is upsert
    assert [output.uri for output in receives.rendered().outputs] == [""]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_takes_the_queues_that_a_transaction_spans(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="Service Broker's rules"):
        way(spans=["bills"])
    monkeypatch.setitem(globals(), "POLICY", ServiceBroker())
    assert way(spans=["bills"]).rendered().spans == ("bills",)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_receive_takes_batches(way: Any) -> None:
    assert way(**BATCHES).rendered().batching == Batching("polars", 77, "carrier string")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": "spark"}, "batch='spark' is not allowed"),
        ({"batch": "arrow", "batch_size": 0}, "batch_size=0 is not allowed"),
        ({"schema": "a int"}, "with transform=... or batch=..."),
        ({"batch": "arrow", "schema": "a flot"}, "'flot' stands"),
        ({"batch": "arrow", "services": GIVEN["services"]}, "it has conversations"),
        ({"spans": "bills"}, "spans='bills' is not allowed; allowed: a list of queue names"),
        ({"evolve": "False", "output": "/out"}, "evolve='False' is not allowed; allowed: True or False"),
        ({"provenance": 1, "output": "/out"}, "provenance=1 is not allowed; allowed: True or False"),
        ({"mixes_rows": True}, "mixes_rows=True is not allowed; allowed: a setting of a transformation"),
        ({"deliver": upsert, "output": "/lake/landed"}, "an output or a deliver function, not both"),
        ({"deliver": "shop:upsert"}, "deliver='shop:upsert' is not allowed; allowed: a function of an Arrow table and a key"),
        ({"deliver": "shop:upsert"}, "give the function itself, not its name"),
        ({"deliver": 7}, "deliver=7 is not allowed; allowed: a function of an Arrow table and a key, like 'def deliver(rows, key)'."),
        ({"deliver": len}, "this cannot be called so (too many positional arguments)"),
        ({"deliver": dict}, "this is a class, and calling it would deliver nothing: give a function, or an object of it"),
        ({"deliver": soon}, "this is a coroutine function, and calling it would deliver nothing: write it as a plain function"),
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


# A transformation in the handler's place


MOVE = Msmq4(retry_cycle_delay=timedelta(minutes=1), receive_error_handling="Move")


def clean(df: Any) -> Any:
    return df


def transforming_operator(**given: Any) -> Any:
    return QueueReceiveOperator(**{"task_id": "receive", "queue_name": "orders", "policy": MOVE, "transform": clean, **given})


def transforming_submission(**given: Any) -> Any:
    return QueueReceiveSubmitOperator(**{"task_id": "receive", "queue_name": "orders", "policy": MOVE, "transform": clean, **given})


def transforming_cycle(**given: Any) -> Any:
    with DAG("cycle", schedule=None) as dag:
        retry_cycle("orders", **{"policy": MOVE, "transform": clean, **given})
    return dag.get_task("retry_cycle.receive")


def transforming_function(**given: Any) -> Any:
    with DAG("function", schedule=None) as dag:
        task.receive(**{"queue_name": "orders", "policy": MOVE, "transform": True, **given})(clean)()
    return dag.get_task("clean")


TRANSFORMING = [transforming_operator, transforming_submission, transforming_cycle, transforming_function]


@pytest.mark.parametrize("way", TRANSFORMING)
def test_every_way_to_receive_takes_a_transformation(way: Any) -> None:
    receives = way(schema="carrier string", mixes_rows=True, output="/lake/landed")

    assert (receives.transform, receives.handler, receives.rendered().batching) == (f"{__name__}:clean", None, None)
    assert receives.rendered().handler == Transformation(clean, "carrier string", mixes_rows=True)
    assert "transform" in receives.template_fields


@pytest.mark.parametrize("way", TRANSFORMING)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": "arrow"}, "batch='arrow' is not allowed; allowed: None with transform=..."),
        ({"isolation": "none"}, "isolation='none' is not allowed; allowed: 'process'"),
        ({"unprocessable": ["builtins:KeyError"]}, "unprocessable=['builtins:KeyError'] is not allowed; allowed: none with transform=..."),
        ({"schema": "carrier strin"}, "'strin' stands"),
        ({"schema": "_poison string"}, "columns of other names than lookup_id and _poison"),
        ({"policy": ServiceBroker()}, "a policy whose decisions depend on one message alone"),
        ({"policy": Msmq4(receive_error_handling="Fault"), "mixes_rows": True}, "a policy that does not halt at a message"),
        ({"services": GIVEN["services"]}, "a queue without conversations"),
    ],
)
def test_what_a_transformation_does_not_go_with_is_refused_when_the_dag_is_parsed(way: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as raised:
        way(**given)
    assert text in str(raised.value)


@pytest.mark.parametrize("way", TRANSFORMING[:-1])
@pytest.mark.parametrize(
    ("transform", "text"),
    [
        ("shop", "transform='shop' is not of the form 'module:function'"),
        (3, "transform=3 is int; name a function of a DataFrame"),
        (lambda df, day: df, "cannot be called with a DataFrame alone"),  # noqa: ARG005
        (partial(asyncio.sleep), "is a coroutine or a generator: called, it would not run"),
    ],
)
def test_what_is_no_transformation_is_refused_when_the_dag_is_parsed(way: Any, transform: Any, text: str) -> None:
    with pytest.raises(HandlerNotFoundError) as raised:
        way(transform=transform)
    assert text in str(raised.value)


@pytest.mark.parametrize("way", [by_operator, by_submission, by_cycle])
def test_a_handler_and_a_transformation_are_one_too_many(way: Any) -> None:
    with pytest.raises(SettingError, match=r"transform='shop:clean' is not allowed; allowed: either handler or transform, and not both"):
        way(transform="shop:clean")


@pytest.mark.parametrize("way", TRANSFORMING[:-1])
def test_either_a_handler_or_a_transformation_is_wanted(way: Any) -> None:
    with pytest.raises(SettingError, match=r"handler=None is not allowed; allowed: an importable name such as 'shop.arrivals:land'"):
        way(transform=None)


def test_the_decorator_wants_no_name_of_a_transformation() -> None:
    with pytest.raises(SettingError, match=r"@task.receive: transform='shop:clean' is not allowed; allowed: True"):
        task.receive(queue_name="orders", transform="shop:clean")


def test_these_are_all_settings_that_a_pass_has() -> None:
    """Another one has to be given to every way, and to be shown here."""
    of_all = {*GIVEN, *BATCHES, "transform", "mixes_rows", "policy", "deliver", "park_group", "spans", "source"}
    assert own(QueueReceiveOperator) - SEVERAL - ALERTS - {"spark_conn_id"} == {*of_all, "queue_name", "handler"}
    assert own(QueueReceiveSubmitOperator) - {"spark_conn_id"} == {*of_all, "queue_name", "handler"}
    assert {*of_all, *ALERTS, "spark_conn_id"} <= set(inspect.signature(retry_cycle).parameters)
