"""What a task declares about batches, and what that does not go with."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery.handlers import Batching, refuse_dialogs
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.testing import receive
from airflow_poison.values.errors import SettingError
from airflow_poison.values.failures import PoisonRows

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy


def test_nothing_is_declared() -> None:
    assert Batching.of(None) is None
    assert Batching.of("polars", 7, "a int") == Batching("polars", 7, "a int")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": "spark"}, "batch='spark' is not allowed; allowed: 'arrow', 'pandas', 'polars', or None for one message at a time"),
        ({"batch": "arrow", "batch_size": 0}, "batch_size=0 is not allowed; allowed: a whole number of messages from 1 to 1,000,000"),
        ({"batch": "arrow", "batch_size": True}, "batch_size=True is not allowed"),
        ({"batch": "arrow", "batch_size": "10"}, "batch_size='10' is not allowed"),
        ({"batch": None, "schema": "a int"}, "schema='a int' is not allowed; allowed: None for a handler of single messages"),
        ({"batch": "arrow", "schema": "a flot"}, "at character 3 'flot' stands"),
        ({"batch": "arrow", "schema": "lookup_id long"}, "columns of other names than 'lookup_id'"),
    ],
)
def test_a_wrong_declaration_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as raised:
        Batching.of(**given)
    assert text in str(raised.value)


def _quietly(make: Any, **settings: Any) -> Policy:
    with warnings.catch_warnings(action="ignore"):
        policy: Policy = make(**settings)
    return policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Msmq4(max_batch_size=5), "no batch while the policy batches by its own rules (max_batch_size=5); set that to 0"),
        (Msmq4(sessions=True), "a session of several items (sessions=True)"),
        (
            _quietly(ActivationSpecification, max_server_sessions=1, next_message="sweep"),
            "no batch while a receive goes on behind the message that was taken last",
        ),
        (_quietly(DefaultMessaging, auto_stop_sequential_message_failure=3, max_concurrency=3), "no batch while 3 messages are processed"),
        (_quietly(ServiceBroker, max_queue_readers=2), "no batch while 2 messages are processed at the same time"),
    ],
)
def test_a_policy_whose_transactions_cannot_be_batches_is_refused(policy: Policy, text: str) -> None:
    with pytest.raises(SettingError) as raised:
        Batching("arrow").check_policy(policy)
    assert text in str(raised.value)
    with pytest.raises(SettingError):
        receive(print, [b"a"], policy, batch="arrow")


@pytest.mark.parametrize("policy", [Msmq4(), _quietly(ListenerPort), _quietly(ActivationSpecification, stop_endpoint_if_delivery_fails=False)])
def test_other_policies_are_not(policy: Policy) -> None:
    Batching("arrow").check_policy(policy)


def test_a_queue_with_conversations_is_refused() -> None:
    refuse_dialogs(None, "orders")
    with pytest.raises(SettingError, match="no batch for queue 'orders': it has conversations"):
        refuse_dialogs(Batching("arrow"), "orders")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_poison.delivery.handlers.find_spec", lambda _name: None)
    with pytest.raises(SettingError, match="polars is not: pip install polars"):
        receive(print, [b"a"], Msmq4(), batch="polars")


# PoisonRows


def test_rows_are_named_by_lookup_id_or_by_a_mask() -> None:
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
    import polars as pl
    import pyarrow as pa

    ids = [10, 20, 30]
    assert PoisonRows({20: "late", 99: "of another batch"}).named(ids) == {1: "late"}
    assert PoisonRows([False, True, None], "why").named(ids) == {1: "why"}
    assert PoisonRows([None, "late", ""]).named(ids) == {1: "late"}
    for mask in (np.array([0, 1, 0], bool), pd.Series([False, True, False]), pl.Series([False, True, None]), pa.array([False, True, None])):
        assert PoisonRows(mask).named(ids) == {1: "named by the handler"}
    assert PoisonRows(pd.Series([float("nan"), "late", None], dtype=object)).named(ids) == {1: "late"}
    assert PoisonRows([True, True]).named(ids) == {}
    assert PoisonRows({10: None, 20: "late", 30: float("nan")}).named(ids) == {1: "late"}
    assert PoisonRows({10: False, 20: True, 30: np.False_}, "why").named(ids) == {1: "why"}
    assert PoisonRows({10: pd.NA, 20: ValueError("late")}).named(ids) == {1: "late"}


def test_it_says_what_it_names_and_travels() -> None:
    import pickle

    assert str(PoisonRows({7: "late"})) == "late"
    assert str(PoisonRows([True, False, "late"])) == "2 messages are poison, the first: named by the handler"
    assert str(PoisonRows([])) == "0 messages are poison"
    assert pickle.loads(pickle.dumps(PoisonRows({7: "late"}, "x"))).named([7]) == {0: "late"}
