"""What Airflow is told of this package: an error in here would break every Airflow command of an installation."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.sdk import BaseOperator

from airflow_poison.get_provider_info import get_provider_info
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.manage import (
    QueueAlertOperator,
    QueueAlterOperator,
    QueueInspectOperator,
    QueueMoveOperator,
    QueueRemoveOperator,
    QueueReturnOperator,
)
from airflow_poison.operators.receive import QueueReceiveOperator, ReceivingOperator
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.passes.declaration import ReceiveOptions
from airflow_poison.sensors import QueueDisabledSensor, QueueEnabledSensor, QueueMessagesSensor, QueuePoisonSensor, QueueRetryDueSensor

INFO: dict[str, Any] = get_provider_info()
AIRFLOW = Path(airflow.__file__).parent

OPERATORS = [
    QueueSendOperator(task_id="send", queue_name="orders", messages=[b"a"]),
    QueueReturnOperator(task_id="return", queue_name="orders"),
    QueueReceiveOperator(task_id="receive", queue_name="orders", handler="json:loads"),
    QueueAlertOperator(task_id="alert", queue_name="orders"),
    QueueAlterOperator(task_id="alter", queue_name="orders", action="enable"),
    QueueInspectOperator(task_id="inspect", queue_name="orders"),
    QueueMoveOperator(task_id="move", queue_name="orders"),
    QueueRemoveOperator(task_id="remove", queue_name="orders", lookup_ids=[1]),
    QueueDisabledSensor(task_id="disabled", queue_name="orders"),
    QueueEnabledSensor(task_id="enabled", queue_name="orders"),
    QueueMessagesSensor(task_id="messages", queue_name="orders"),
    QueuePoisonSensor(task_id="poison", queue_name="orders"),
    QueueRetryDueSensor(task_id="due", queue_names=["orders"]),
]


def test_the_provider_info_satisfies_airflows_schema() -> None:
    jsonschema.validate(INFO, json.loads((AIRFLOW / "provider_info.schema.json").read_text()))


def test_the_connection_form_satisfies_the_schema_of_provider_files() -> None:
    schema = json.loads((AIRFLOW / "provider.yaml.schema.json").read_text())["properties"]["connection-types"]
    jsonschema.validate(INFO["connection-types"], schema)


def test_the_package_name_is_the_canonical_one_and_airflow_finds_the_provider() -> None:
    [entry] = [entry for entry in entry_points(group="apache_airflow_provider") if entry.value.startswith("airflow_poison.")]
    assert entry.dist is not None
    assert entry.dist.name == INFO["package-name"] == "airflow-poison"

    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()  # type: ignore[no-untyped-call]  # Airflow's
    assert "airflow-poison" in manager.providers
    hook = manager.hooks["poison"]
    assert hook is not None
    assert hook.hook_name == "Poison queues"


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_that_is_named_can_be_imported(kind: str) -> None:
    modules = [module for entry in INFO[kind] for module in entry["python-modules"]]
    assert modules
    for module in modules:
        importlib.import_module(module)


def test_the_connection_type_names_the_hook() -> None:
    [connection] = INFO["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is QueueHook
    assert connection["connection-type"] == QueueHook.conn_type
    assert connection["ui-field-behaviour"]["hidden-fields"] == QueueHook.get_ui_field_behaviour()["hidden_fields"]


def test_the_connection_form_offers_exactly_the_fields_that_are_understood() -> None:
    from airflow_poison.hooks.connection import FIELDS

    assert set(INFO["connection-types"][0]["conn-fields"]) == set(FIELDS)


PARAMETERS = {"outputs": "output"}
"""Fields that cannot be called as their parameters are: Airflow's operators have an output of their own."""


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_templated_fields_exist_are_not_functions_and_are_said_to_be_templated(operator: BaseOperator) -> None:
    kinds = [kind for kind in type(operator).__mro__ if kind.__module__.startswith("airflow_poison")]
    told = [*kinds, ReceiveOptions] if isinstance(operator, ReceivingOperator) else kinds
    lines = [line for kind in told for line in (kind.__doc__ or "").splitlines()]
    for name in operator.template_fields:
        assert not callable(getattr(operator, name))
        found = [line for line in lines if f":param {PARAMETERS.get(name, name)}:" in line]
        assert found
        assert all("(templated" in line for line in found)
    said = {line.partition(":param ")[2].partition(":")[0] for line in lines if "(templated" in line}
    assert said == {PARAMETERS.get(name, name) for name in operator.template_fields}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_no_parameter_is_a_field_that_airflow_uses_for_something_else(operator: BaseOperator) -> None:
    """``queue``, for example, is the executor's: it decides which worker takes the task."""
    own = {name for name in type(operator).__init__.__annotations__ if name not in {"return", "kwargs"}}
    base = set(vars(BaseOperator(task_id="plain")))
    assert "queue" in base
    assert not own & base
    assert operator.queue == BaseOperator(task_id="plain").queue
