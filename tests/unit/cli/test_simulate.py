"""What a simulation says became of messages and of the endpoint."""

from __future__ import annotations

import doctest
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.rules import SYSTEMS, policy_from_dict
from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.described import typed_policy
from airflow_poison.rules.simulation import replay as module
from airflow_poison.rules.simulation.replay import simulate
from airflow_poison.rules.simulation.scripted_host import Action
from airflow_poison.values.errors import InputError, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.simulation.result import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::airflow_poison.values.errors.ConfigurationWarning")

MOVE = {"ReceiveErrorHandling": "Move"}
BACKOUT = {"BOTHRESH": "2", "BOQNAME": "B", "failureDeliveryCount": "5"}
HOUR = timedelta(hours=1)


def played(system: str, settings: Mapping[str, object] | None = None, *args: Any, **kwargs: Any) -> Simulation:
    return simulate(typed_policy(system, settings or {}), *args, **kwargs)


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(module).failed == 0


def test_wcf_e1_a_hopeless_message_has_its_numbers() -> None:
    simulation = played("Msmq4", MOVE)
    [fate] = simulation.fates
    assert (fate.end.deliveries, fate.end.receives, fate.moves, fate.end.waited) == (18, 21, 5, HOUR)
    assert (fate.end.place, fate.settled, fate.at) == ("poison", True, HOUR)
    assert (simulation.halts, simulation.replay.endless) == ((), False)


def test_wcf_21_a_fault_is_told_with_its_time_and_message() -> None:
    simulation = played("Msmq4", {}, {"good": "ok", "bad": "rb*"})
    [halt] = simulation.halts
    assert (halt.at, halt.how, halt.message) == (HOUR, Halted.FAULTED, "bad")
    good, bad = simulation.fates
    assert (good.settled, bad.settled, bad.end.place) == (True, False, "main")
    assert "The endpoint faults 1 h after the start, at bad." in simulation.answer


ANSWERS = [
    pytest.param("Msmq4", MOVE, {"m": "rb*7 ok"}, {}, "m is processed after 8 deliveries, 30 min after the start.", id="late success"),
    pytest.param("Msmq4", {"receive_error_handling": "Drop"}, {"m": "rb*"}, {}, "m is dropped after 18 deliveries, 1 h after the start.", id="drop"),
    pytest.param(
        "Msmq4",
        {"receive_error_handling": "Reject"},
        {"m": "rb*"},
        {},
        "m ends in the sender's dead-letter queue after 18 deliveries, 1 h after the start.",
        id="reject",
    ),
    pytest.param("Msmq4", {"ExactlyOnce": "no"}, {"m": "rb"}, {}, "m is lost after 1 delivery, at once.", id="lost"),
    pytest.param(
        "Msmq4",
        {},
        {"m": "rb*"},
        {"until": timedelta(minutes=10)},
        "m waits in orders;retry after 6 deliveries, until 30 min after the start.",
        id="parked",
    ),
    pytest.param(
        "Msmq4",
        {"retry_subqueues": "per_cycle"},
        {"m": "rb*"},
        {"until": timedelta(minutes=40)},
        "m waits in orders;retry2 after 12 deliveries, until 1 h after the start.",
        id="parked per cycle",
    ),
    pytest.param(
        "Msmq4",
        {},
        {"m": "postpone(60)"},
        {"until": timedelta(seconds=5)},
        "m is postponed after 1 delivery, until 1 min after the start.",
        id="postponed",
    ),
    pytest.param("Msmq4", {}, {"m": "ok"}, {"until": timedelta(seconds=5), "at": {"m": 9}}, "m has not arrived.", id="not arrived"),
    pytest.param("Msmq4", {}, {"m": "ok"}, {"actions": [Action(0, "close")]}, "m stays in orders without a delivery.", id="closed"),
    pytest.param("Msmq4", {}, {}, {}, "Nothing happens.", id="no message"),
    pytest.param(
        "PoisonSubQueue",
        {},
        {"m": "rb*"},
        {},
        "m stays in orders;poison after 6 deliveries, because the endpoint has halted.",
        id="POI-1 read from poison",
    ),
    pytest.param(
        "ServiceBroker", {}, {"m": "rb*", "n": "ok"}, {}, "n stays in orders without a delivery, because the endpoint has halted.", id="SB-4 behind"
    ),
    pytest.param(
        "ServiceBroker",
        {},
        {"m": "rb*"},
        {"actions": [Action(3600, "remove", "m"), Action(3600, "enable")]},
        "m is removed by hand after 5 deliveries, 1 h after the start.",
        id="SB-26 removed",
    ),
    pytest.param(
        "ServiceBroker",
        {},
        {"m": "rb*5"},
        {"actions": [Action(60, "enable")]},
        "It was opened again, and has not halted since.",
        id="SB-24 enabled",
    ),
    pytest.param(
        "ServiceBroker",
        {},
        {"m": "ok"},
        {"actions": [Action(0, "disable")]},
        "The endpoint is disabled. It receives nothing until it is enabled.",
        id="off",
    ),
    pytest.param(
        "ServiceBroker",
        {"POISON_MESSAGE_HANDLING": "OFF"},
        {"m": "rb*"},
        {},
        "It does not end: the simulation was stopped after 10,000 receives, and would go on.",
        id="SB-11 endless",
    ),
    pytest.param(
        "DefaultMessaging", {}, {"m": "rb*"}, {}, "m ends in _SYSTEM.Exception.Destination.ME1 after 5 deliveries, at once.", id="DMP-6 exceptioned"
    ),
    pytest.param(
        "DefaultMessaging",
        {"Exception destination": "None"},
        {"m": "rb*"},
        {"most_receives": 8},
        "It does not end: the simulation was stopped after 8 receives (15 s after the start), and would go on.",
        id="DMP-12 endless",
    ),
    pytest.param(
        "DefaultMessaging",
        {"Exception destination": "None", "override_blocked_retry_timeout": "on"},
        {"m": "rb*", "n": "ok"},
        {},
        "m stays in orders after 5 deliveries, blocked until the broker restarts or it is removed.",
        id="DMP-10 never",
    ),
    pytest.param(
        "DefaultMessaging",
        {"Exception destination": "None", "override_blocked_retry_timeout": "on"},
        {"m": "rb*", "n": "ok"},
        {},
        "The endpoint does not halt, but m blocks the queue.",
        id="DMP-14 blocks",
    ),
    pytest.param(
        "DefaultMessaging",
        {"Exception destination": "None", "override_blocked_retry_timeout": "on", "destination_blocked": "no"},
        {"m": "rb*"},
        {},
        "m is blocked after 5 deliveries, until the broker restarts or it is removed.",
        id="DMP-14 alone",
    ),
    pytest.param("ActivationSpecification", BACKOUT, {"m": "rb*"}, {}, "m ends in B after 2 deliveries, at once.", id="WMQ-10 requeued"),
    pytest.param(
        "ActivationSpecification",
        BACKOUT,
        {"m": "rb*"},
        {"access": {"B": "missing"}},
        "m ends in SYSTEM.DEAD.LETTER.QUEUE after 2 deliveries, at once.",
        id="WMQ-22 missing",
    ),
    pytest.param(
        "ActivationSpecification",
        BACKOUT,
        {"m": "rb*"},
        {"access": {"B": "denied", "SYSTEM.DEAD.LETTER.QUEUE": "denied"}},
        "m is blocked after 2 deliveries, until the broker restarts or it is removed.",
        id="WMQ-22 denied",
    ),
    pytest.param(
        "ActivationSpecification",
        {"WAS_EndpointInitialState": "INACTIVE"},
        {"m": "ok"},
        {},
        "The endpoint is stopped. It receives nothing until it is enabled.",
        id="WMQ-27 inactive",
    ),
    pytest.param(
        "ListenerPort",
        {"maxRetries": "2"},
        {"m": "rb*"},
        {"actions": [Action(60, "alter", settings={"maxRetries": "5"}), Action(60, "open")]},
        "The endpoint stops 1 min after the start, at m.",
        id="LP-2 altered",
    ),
    pytest.param(
        "Msmq4",
        MOVE,
        {f"m{number}": "rb*" for number in range(7)} | {"good": "ok"},
        {},
        "7 messages: each ends in orders;poison.",
        id="many messages",
    ),
]


@pytest.mark.parametrize(("system", "settings", "messages", "how", "sentence"), ANSWERS)
def test_the_answer_says_what_became_of_messages_and_endpoint(
    system: str, settings: Mapping[str, object], messages: Mapping[str, str], how: Mapping[str, Any], sentence: str
) -> None:
    assert sentence in played(system, settings, messages, **how).answer


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_answers_and_its_json_is_json(system: str) -> None:
    simulation = played(system, {}, {"a": "rb*", "b": "ok"}, until=timedelta(hours=3))
    found = json.loads(json.dumps(simulation.to_dict()))
    assert policy_from_dict(found["policy"]) == simulation.policy
    assert found["answer"]["deliveries"] == len(found["deliveries"]) == sum(message["deliveries"] for message in found["messages"])
    assert found["answer"]["text"] == list(simulation.answer)
    assert {message["name"] for message in found["messages"]} == set(found["answer"]["ends"]) == {"a", "b"}


def test_json_times_are_seconds_after_the_start() -> None:
    found: Any = played("Msmq4", MOVE, at={"m": timedelta(seconds=1.5)}).to_dict()
    assert [event["at"] for event in found["events"] if event["event"] == "RETURNED"] == [1801, 3601]  # whole seconds: spec WCF-30
    assert (found["deliveries"][0]["at"], found["messages"][0]["arrives"], found["answer"]["elapsed"]) == (1.5, 1.5, 3601)


def test_json_leaves_routine_out_unless_it_is_asked_for() -> None:
    simulation: Any = played("Msmq4", MOVE)
    assert len(simulation.to_dict()["events"]) == 8
    assert len(simulation.to_dict(routine=True)["events"]) == len(simulation.replay.events) == 44


REFUSED = [
    pytest.param({"messages": {"m": "fail"}}, InputError, "'fail'", id="outcome"),
    pytest.param({"at": {"x": 1}}, InputError, "no message 'x'", id="arrival of nobody"),
    pytest.param({"access": {"B": "missing"}}, InputError, "'B' changes nothing", id="unknown queue"),
    pytest.param({"access": {"B": "gone"}}, InputError, "granted, missing, denied", id="unknown access"),
    pytest.param({"actions": [Action(0, "remove", "x")]}, InputError, "remove", id="unknown message"),
    pytest.param({"actions": [Action(9, "alter", settings={"Retries": "5"})]}, SettingError, "'Retries'", id="alter's name"),
    pytest.param(
        {"actions": [Action(9, "alter", settings={"MaxRetryCycles": "-5"})], "until": timedelta(seconds=1)},
        SettingError,
        "max_retry_cycles",
        id="alter's value, also when it never comes to it",
    ),
    pytest.param({"until": timedelta(days=9_999_999)}, InputError, "9999", id="beyond all calendars"),
]


@pytest.mark.parametrize(("how", "error", "words"), REFUSED)
def test_what_cannot_be_simulated_is_named(how: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        played("Msmq4", MOVE, how.pop("messages", None), **how)


@pytest.mark.parametrize("policy", ["x", None, {"system": "Msmq4"}])
def test_what_is_no_policy_is_not_simulated(policy: Any) -> None:
    with pytest.raises(SettingError, match=r"policy=.*a policy of airflow_poison"):
        simulate(policy)


@pytest.mark.parametrize("messages", ["x", ["rb"], {"m": 5}])
def test_what_is_no_script_of_messages_is_not_simulated(messages: Any) -> None:
    with pytest.raises(SettingError, match=r"messages=.*rb rb ok"):
        simulate(typed_policy("Msmq4", {}), messages)


def test_a_clock_that_runs_out_of_years_is_named() -> None:
    with pytest.raises(InputError, match="year 9999"):
        played("Msmq4", MOVE | {"RetryCycleDelay": "36500d", "MaxRetryCycles": "1000"})
