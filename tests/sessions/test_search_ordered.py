"""Batches come to the same ends as messages that are delivered one by one, under every system's rules."""

from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.session import Decided
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.service_broker import ServiceBroker
from tests.given.examples import examples
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, told
from tests.sessions.frame_handlers import alone, script

if TYPE_CHECKING:
    from airflow_poison.delivery.session import BatchReport
    from airflow_poison.rules.policy import Policy
    from tests.sessions.conftest import Opener

MINUTE: dict[str, Any] = {"transaction_timeout": timedelta(minutes=1)}


def _policies() -> dict[str, Policy]:
    with warnings.catch_warnings(action="ignore"):  # settings that are allowed and rarely wanted
        return {
            "service broker": ServiceBroker(**MINUTE),
            "msmq3": Msmq3(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Drop", **MINUTE),
            "msmq3 fault": Msmq3(receive_retry_count=2, max_retry_cycles=0, **MINUTE),
            "msmq4": Msmq4(receive_retry_count=2, max_retry_cycles=1, **MINUTE),
            "msmq4 fault": Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Fault", **MINUTE),
            "msmq4 context": Msmq4(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Reject", receive_context=True, **MINUTE),
            "poison": PoisonSubQueue(receive_retry_count=1, **MINUTE),
            "default messaging": DefaultMessaging(max_concurrency=1, **MINUTE),
            "default messaging stops": DefaultMessaging(max_concurrency=1, auto_stop_sequential_message_failure=3, **MINUTE),
            "activation": ActivationSpecification(max_server_sessions=1, next_message="top", **MINUTE),
            "activation on": ActivationSpecification(max_server_sessions=1, stop_endpoint_if_delivery_fails=False, **MINUTE),
            "listener port": ListenerPort(**MINUTE),
        }


POLICIES = _policies()
WORDS = ["raise", "named", "heals 1", "heals 2", "unprocessable", "postpone", "crowd 1", "crowd 7"]


def told_of(report: BatchReport) -> dict[str, Any]:
    """Return what becomes of the messages."""
    decided = report.decided or Decided({})
    ends = {row: (type(end), end.counts) for row, end in decided.ends.items()}
    failures = {row: (failure.kind, failure.text) for row, failure in report.failures.items()}
    return {"words": told(report.words), "failures": failures, "halted": report.halted, "ends": ends, "halt": decided.halt is not None}


@pytest.mark.long
@pytest.mark.parametrize("system", POLICIES)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 300), st.dictionaries(st.integers(0, 299), st.sampled_from(WORDS), max_size=6), st.sampled_from([2, 30, 10_000]))
@example(20, {5: "raise", 6: "named", 19: "raise"}, 10_000)
@example(20, dict.fromkeys(range(20), "heals 1"), 10_000)
@example(20, {0: "named", 3: "named", 9: "unprocessable", 12: "named"}, 10_000)
def test_inline(session: Opener, system: str, messages: int, culprits: dict[int, str], size: int) -> None:
    bodies: list[bytes | str | None] = [culprits.get(row, "ok") for row in range(messages)]
    rules = POLICIES[system]
    one_by_one = session(alone, "none", policy=rules, partition="0").deliver(batch_of(bodies))
    together = session(script, "none", policy=rules, partition="1", batching=Batching("arrow", size)).deliver(batch_of(bodies))

    theirs = {row: (kind, text.replace("PoisonRows", "ValueError")) for row, (kind, text) in told_of(together)["failures"].items()}
    assert told_of(together) | {"failures": theirs} == told_of(one_by_one)


@pytest.mark.parametrize("system", ["service broker", "msmq3", "msmq4"])
def test_in_a_child_process_that_dies(session: Opener, system: str) -> None:
    bodies: list[bytes | str | None] = ["ok"] * 250
    bodies[120], bodies[200] = "heals-dead 1", "heals 1"
    together = session(script, policy=POLICIES[system], batching=Batching("arrow")).deliver(batch_of(bodies))

    found = told(together.words)
    assert {row: (word[1], word[2]) for row, word in enumerate(found) if word != COMMITTED} == {120: (1, 1), 200: (1, 0)}
    assert together.crashes == 1
    assert together.searched.rows_handed >= 250


def test_a_batch_that_holds_an_order_is_unstable_when_its_parts_succeed(session: Opener, isolation: str) -> None:
    bodies: list[bytes | str | None] = ["crowd 99", *["ok"] * 199]
    report = session(script, isolation, policy=POLICIES["service broker"], batching=Batching("arrow")).deliver(batch_of(bodies))

    assert told(report.words) == [COMMITTED] * 200
    assert [each["messages"] for each in report.searched.unstable] == ["100", "200"]


def test_bodies_that_do_not_fit_are_failures_without_a_call(session: Opener, isolation: str) -> None:
    batching = Batching("arrow", schema="n int")
    bodies: list[bytes | str | None] = ['{"n": 1}', '{"n": "x"}', "nothing", '{"n": 2}']
    for system in ("service broker", "msmq4"):
        report = session("tests.sessions.frame_handlers:adds", isolation, policy=POLICIES[system], batching=batching).deliver(batch_of(bodies))

        assert report.failures[1].text == """Column 'n' of the body is "x"; expected is int, not a text."""
        assert report.failures[1].type == "airflow_poison.values.errors.BodyError"
        if system == "msmq4":
            assert report.failures[2].text.startswith("The body is no JSON: ")


def test_counters_of_a_queue_are_those_of_deliveries_one_by_one(session: Opener) -> None:
    rules = replace(ServiceBroker(), **MINUTE)
    bodies: list[bytes | str | None] = ["ok", "heals 3", *["ok"] * 40, "heals 2"]
    one, many = session(alone, "none", policy=rules, partition="0"), session(script, "none", policy=rules, partition="1", batching=Batching("arrow"))
    one.deliver(batch_of(bodies))
    many.deliver(batch_of(bodies))

    assert many.counters() == one.counters()
