"""The short story of a simulation leaves nothing out."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.cli.simulation import rows
from airflow_poison.rules import SYSTEMS, policy_from_dict
from airflow_poison.rules.simulation.replay import simulate
from airflow_poison.rules.simulation.scripted_host import Action

WORDS = [
    "ok",
    "rb",
    "rb*3",
    "timeout",
    "crash",
    "unprocessable",
    "postpone(30)",
    "postpone(0)",
    "before_operation",
    "savepoint",
    "savepoint(2000)",
    "ok(50)",
]
OUTCOMES = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
ACTIONS = st.lists(st.builds(Action, st.sampled_from([0, 40, 1_800]), st.sampled_from(["open", "restart", "crash", "enable", "close"])), max_size=2)
SETTINGS = [
    *({"system": system} for system in SYSTEMS),
    {"system": "Msmq4", "max_batch_size": 3, "receive_error_handling": "Move"},
    {"system": "Msmq4", "exactly_once": False},
    {"system": "Msmq4", "transaction_scope_required": False},
    {"system": "ActivationSpecification", "backout_threshold": 2, "failure_delivery_count": 4, "max_server_sessions": 2, "early_hand_out": 1},
    {"system": "DefaultMessaging", "exception_destination": "None", "blocked_retry_interval": 7},
]


def story(system: str, settings: dict[str, object], messages: dict[str, str] | None = None, *actions: Action) -> list[tuple[str, str, str]]:
    simulation = simulate(policy_from_dict({"system": system, **settings}), messages, actions=actions)
    return [(str(row.at), row.message, row.what) for row in rows(simulation)]


def test_deliveries_in_a_row_that_end_the_same_way_are_one_row() -> None:
    assert story("Msmq4", {"receive_error_handling": "Move", "max_retry_cycles": 1, "receive_retry_count": 2}) == [
        ("0:00:00", "m", "deliveries 1 to 3: rolled back"),
        ("0:00:00", "m", "found poison, moved to orders;retry"),
        ("0:30:00", "m", "returned to orders"),
        ("0:30:00", "m", "deliveries 4 to 6: rolled back"),
        ("0:30:00", "m", "found poison, moved to orders;poison"),
    ]


def test_each_way_to_end_a_delivery_has_its_words() -> None:
    settings: dict[str, object] = {"receive_error_handling": "Move"}
    assert story("Msmq4", settings, {"a": "postpone(0) before_operation(3) savepoint crash timeout(1) ok", "b": "unprocessable"}) == [
        ("0:00:00", "a", "delivery 1: postponed"),
        ("0:00:03", "a", "not delivered: rolled back (before_operation)"),
        ("0:00:03", "a", "delivery 2: rolled back to its savepoint"),
        ("0:00:03", "a", "delivery 3: rolled back (crash)"),
        ("0:00:03", "a", "delivery 4: rolled back (timeout)"),
        ("0:00:04", "a", "delivery 5: committed"),
        ("0:00:04", "b", "delivery 1: rolled back (unprocessable)"),
        ("0:00:04", "b", "found poison, moved to orders;poison"),
    ]


def test_a_consumed_message_is_processed_or_lost() -> None:
    assert story("Msmq4", {"exactly_once": False}, {"a": "rb", "b": "ok"}) == [
        ("0:00:00", "a", "delivery 1: lost (rb)"),
        ("0:00:00", "b", "delivery 1: processed"),
    ]


def test_sb_e1_the_queue_is_disabled_and_enabled() -> None:
    assert story("ServiceBroker", {}, {"m": "rb*5 ok"}, Action(60, "enable")) == [
        ("0:00:00", "m", "deliveries 1 to 5: rolled back"),
        ("0:00:00", "m", "the queue is disabled"),
        ("0:01:00", "", "the queue is enabled"),
        ("0:01:00", "m", "delivery 6: committed"),
    ]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@given(outcomes=st.lists(OUTCOMES, min_size=1, max_size=3), actions=ACTIONS)
def test_every_delivery_is_in_one_row_and_rows_are_in_order(settings: dict[str, object], outcomes: list[str], actions: list[Action]) -> None:
    messages = {f"m{number}": text for number, text in enumerate(outcomes)}
    simulation = simulate(policy_from_dict(settings), messages, actions=actions, until=timedelta(hours=4), most_receives=60)
    told = rows(simulation)
    numbers = [(row.message, number) for row in told if row.first for number in range(row.first, row.last + 1)]
    assert len(set(numbers)) == len(numbers)
    assert Counter(name for name, _ in numbers) == Counter(delivery.message for delivery in simulation.replay.deliveries)
    for name in messages:
        own = [row.at for row in told if row.message == name]
        assert own == sorted(own)
