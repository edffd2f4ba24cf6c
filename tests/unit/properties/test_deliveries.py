"""No message is delivered more often than the formula of its system says, and a hopeless one exactly so often."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.rules import SYSTEMS
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.given.examples import examples
from tests.unit.properties.formulas import most_deliveries
from tests.unit.properties.scripts import HOPELESS, MOST_RECEIVES, access_to, scripts
from tests.unit.properties.systems import made, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.rules.service_broker import ServiceBroker

FORMULAS = {
    "Msmq4": "WCF-7 WCF-12 WCF-37",
    "Msmq3": "M3-1 M3-10",
    "PoisonSubQueue": "POI-4",
    "DefaultMessaging": "DMP-8 DMP-13 DMP-19",
    "ActivationSpecification": "WMQ-13 ZOS-7",
    "ListenerPort": "LP-2 LP-4 LP-8",
}
NOT_COUNTED = {"postpone", "savepoint"}


@pytest.mark.parametrize("system", FORMULAS, ids=lambda system: f"{system} {FORMULAS[system]}")
@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_message_is_delivered_more_often_than_its_formula_says(system: str, data: st.DataObject) -> None:
    policy, script = data.draw(settings_of(system)), data.draw(scripts())
    access = data.draw(access_to(policy))

    result = replay(policy, script, access=access, most_receives=MOST_RECEIVES)

    most = most_deliveries(policy, script, access)
    counted = Counter(call.message for call in result.deliveries if call.outcome not in NOT_COUNTED)
    assert most is None or max(counted.values(), default=0) <= most


@pytest.mark.parametrize("system", FORMULAS, ids=lambda system: f"{system} {FORMULAS[system]}")
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_hopeless_message_ends_after_as_many_deliveries_as_its_formula_says(system: str, data: st.DataObject) -> None:
    policy = data.draw(settings_of(system, **KEEPS_ON.get(system, {})))
    script = Script(HOPELESS)

    result = replay(policy, script, most_receives=MOST_RECEIVES)

    most = most_deliveries(policy, script, {})
    assert result.endless if most is None else len(result.deliveries) == most


KEEPS_ON: dict[str, dict[str, object]] = {
    "DefaultMessaging": {"exception_destination": "System", "auto_stop_sequential_message_failure": 0},
    "ActivationSpecification": {"stop_endpoint_if_delivery_fails": False, "endpoint_initial_state": "ACTIVE"},
}
"""Settings with which the endpoint goes on until the message has ended."""


@given(
    st.fixed_dictionaries(
        {
            "rollback_limit": st.integers(1, 6),
            "disabling": st.sampled_from(["synchronous", "background"]),
            "scope": st.sampled_from(["queue", "conversation_group"]),
            "max_queue_readers": st.integers(1, 3),
        }
    ),
    st.integers(0, 3),
)
def test_sb_10_24_a_hopeless_message_is_delivered_up_to_the_limit_at_each_enabling(drawn: dict[str, object], enablings: int) -> None:
    limit = drawn["rollback_limit"]
    assert isinstance(limit, int)
    script = Script(Scripted("m", HOPELESS), actions=[Action(10 * number, "enable") for number in range(1, enablings + 1)])

    result = replay(made("ServiceBroker", drawn), script)

    assert len(result.deliveries) == (limit + (drawn["disabling"] == "background")) * (enablings + 1)


@settings(max_examples=examples(80))
@given(settings_of("ServiceBroker", poison_message_handling=True, scope="queue"), scripts())
def test_sb_4_6_13_no_more_rollbacks_in_a_row_than_the_limit_and_what_was_in_flight(policy: ServiceBroker, script: Script) -> None:
    never_back_to_a_savepoint = [replace(message, outcomes=message.outcomes.replace("savepoint", "ok")) for message in script.messages]

    result = replay(policy, Script(*never_back_to_a_savepoint), most_receives=MOST_RECEIVES)

    most = policy.rollback_limit + (policy.disabling == "background") + max(policy.max_queue_readers - 1, 0)
    in_a_row = 0
    for event in result.events:
        in_a_row = 0 if event.type in {"COMMITTED", "DEAD_LETTERED"} else in_a_row + (event.type == "ROLLED_BACK")
        assert in_a_row <= most


STOPS: Mapping[str, Callable[[int], int | None]] = {"reaches": lambda n: max(n, 1), "more_than": lambda n: n + 1, "equals": lambda n: n or None}


@settings(max_examples=examples(60))
@given(st.integers(0, 4), st.integers(0, 4), st.sampled_from(sorted(STOPS)), st.integers(0, 4))
def test_wmq_7_8_10_28_where_a_hopeless_message_stops_the_endpoint_and_where_it_is_requeued(n: int, threshold: int, rule: str, starts: int) -> None:
    drawn = {"failure_delivery_count": n, "backout_threshold": threshold, "stop_rule": rule, "backout_requeue_queue": "B.Q", "max_server_sessions": 1}
    script = Script(HOPELESS, actions=[Action(10 * number, "open") for number in range(1, starts + 1)])

    result = replay(made("ActivationSpecification", drawn), script, most_receives=MOST_RECEIVES)

    first = STOPS[rule](n)
    if first is None or (rule == "equals" and starts):
        assert result.endless if not threshold else len(result.deliveries) == threshold
        return
    delivered = first + starts  # after the limit is reached once, each start has one more delivery
    requeued = 0 < threshold < delivered
    expected = (threshold, None, "B.Q") if requeued else (delivered, "stopped", "main")
    assert (len(result.deliveries), result.halted, result.message().place) == expected


def test_every_system_has_a_formula() -> None:
    assert set(FORMULAS) | {"ServiceBroker"} == set(SYSTEMS)
