"""Strategies that draw scripts: messages, what becomes of their deliveries, and what people do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.unit.properties.systems import SIZE_LIMIT, TICK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.policy import Policy
    from airflow_poison.rules.simulation.replay import Replay

MOST_RECEIVES = 250
"""Where a replay that goes on for ever is cut."""
HOPELESS = "rb*"
VERBS = ["close", "open", "restart", "restart_server", "restart_broker", "crash", "enable", "disable"]

instants = st.integers(0, 12).map(lambda number: number * TICK)
outcomes = st.lists(
    st.sampled_from(
        ["ok", "rb", "rb", "rb(3)", "timeout(7)", "crash", "unprocessable", "before_operation(4)", "postpone(5)", "savepoint", "ok(50)", "ok(500)"]
    ),
    max_size=6,
).map(" ".join) | st.sampled_from([HOPELESS, "rb(3)*"])
groups = st.sampled_from(["", "", "g1", "g2"])
properties = st.sampled_from(
    [
        {},
        {},
        {"JMS_IBM_Report_Discard_Msg": "MQRO_DISCARD_MSG"},
        {"JMS_IBM_Report_Exception": "MQRO_EXCEPTION", "JMSReplyTo": "R.Q"},
        {"reliability": "ReliablePersistent"},
    ]
)
messages = st.builds(
    Scripted,
    name=st.just(""),
    outcomes=outcomes,
    at=instants,
    priority=st.integers(4, 6),
    ttl=st.none() | instants,
    size=st.sampled_from([0, 0, 0, SIZE_LIMIT + 1]),
    unreadable=st.sampled_from(["", "", "", "bad framing"]),
    locked=st.sampled_from([0, 0, 1, 51]),
    group=groups,
    properties=properties,
)


def named(drawn: list[Scripted]) -> list[Scripted]:
    """Give each message a name of its own."""
    fields = Scripted.__dataclass_fields__
    return [Scripted(**{**{name: getattr(message, name) for name in fields}, "name": f"m{number}"}) for number, message in enumerate(drawn, 1)]


@st.composite
def scripts(draw: st.DrawFn, most_messages: int = 5) -> Script:
    """Draw a script in which everything can happen that does not need a message to be at a certain place."""
    drawn = draw(st.lists(messages, min_size=1, max_size=most_messages))
    actions = draw(st.lists(st.builds(Action, st.integers(0, 1200).map(lambda tenth: tenth / 10), st.sampled_from(VERBS)), max_size=4))
    return Script(*named(drawn), actions=actions)


def access_to(policy: Policy) -> st.SearchStrategy[Mapping[str, Access]]:
    """Draw which of its destinations a policy cannot simply send to."""
    return st.fixed_dictionaries({name: st.sampled_from([Access.GRANTED, Access.GRANTED, *Access]) for name in policy.destinations})


@st.composite
def replays(draw: st.DrawFn, policies: st.SearchStrategy[Policy]) -> tuple[Policy, Script, Replay]:
    """Draw a policy and a script, and play it."""
    policy = draw(policies)
    script = draw(scripts())
    return policy, script, replay(policy, script, access=draw(access_to(policy)), most_receives=MOST_RECEIVES)
