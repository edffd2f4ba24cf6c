"""Strategies that draw what passes on a queue table can play: deliveries that take no time, and people who act between passes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted, Verb
from airflow_poison.values.schema import SubQueue
from tests.conformance.examples.shape import Example
from tests.unit.properties.scripts import MOST_RECEIVES, groups, instants, named, properties
from tests.unit.properties.systems import PLAYED, SIZE_LIMIT, TICK, settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_poison.rules.policy import Policy

UNLIKE_ON_TABLES: Mapping[str, Mapping[str, object]] = {
    "Msmq4": {"return_order": "due_time"},  # a head timer watches single messages; what was parked together returns together (WCF-31)
}
"""By system, what is not drawn: with other values passes are not the replay's one endpoint that stays open."""
UNLIKE_IN_TASKS: Mapping[str, Mapping[str, object]] = {
    "Msmq4": {"max_batch_size": 0},  # each task makes batches of its own
    "Msmq3": {"seen_table_size": 256},  # each task has a table of its own, as each service of a farm (M3-6)
    "ServiceBroker": {"scope": "queue"},  # groups in different tasks do not wait for each other
}
"""By system, what is not drawn where several tasks deliver."""
ALTERED: Mapping[str, tuple[str, ...]] = {
    "Msmq4": ("receive_retry_count", "max_retry_cycles", "receive_error_handling", "retry_cycle_delay"),
    "Msmq3": ("receive_retry_count", "receive_error_handling"),
    "PoisonSubQueue": ("receive_retry_count", "receive_error_handling"),
    "ServiceBroker": ("rollback_limit", "scope", "poison_message_handling", "max_queue_readers"),
    "DefaultMessaging": ("max_failed_deliveries", "destination_blocked", "auto_stop_sequential_message_failure"),
    "ActivationSpecification": ("backout_threshold", "failure_delivery_count", "stop_endpoint_if_delivery_fails", "max_server_sessions"),
    "ListenerPort": ("backout_threshold", "max_retries", "max_sessions"),
}
"""By system, settings that people change."""
VERBS = ("close", "open", "restart", "restart_server", "restart_broker", "enable", "disable")
LAST_TICK = 20
AFTERWARDS = 10_000.0
"""When everything has happened that is going to."""

later_instants = st.sampled_from([1, 2, 1, 2, 3, 4, 5, 0]).map(lambda number: number * TICK)
few_instants = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5]).map(lambda number: number * TICK)


@st.composite
def table_examples(draw: st.DrawFn, system: str, most_messages: int = 4, *, in_tasks: bool = False) -> Example:
    """Draw a policy and a script that ends, perhaps with somebody who takes a message out and starts the endpoint again.

    :param in_tasks: it is played by child processes in several tasks of a job: handlers can crash, and only what needs one order has it.
    """
    in_tasks_alone = UNLIKE_IN_TASKS.get(system, {}) if in_tasks else {}
    policy = draw(settings_of(system, **UNLIKE_ON_TABLES.get(system, {}), **in_tasks_alone))
    if isinstance(policy, Msmq4) and _remembers_in_memory(policy):  # its restarts are in the first ticks, and a window moves passes behind them
        with warnings.catch_warnings(action="ignore"):
            policy = replace(policy, retry_window=None)
    access = draw(st.fixed_dictionaries({name: st.sampled_from([Access.GRANTED, Access.GRANTED, Access.MISSING]) for name in policy.destinations}))
    messages, actions = draw(_messages(policy, most_messages, crashes=in_tasks)), draw(_actions(policy, in_tasks_alone))
    left = [
        end for end in replay(policy, Script(*messages, actions=actions), access=access, most_receives=MOST_RECEIVES).messages if end.place == "main"
    ]
    anybody_looks = draw(st.booleans())
    if left and anybody_looks:
        removed = draw(st.sampled_from(left))
        actions += [Action(AFTERWARDS, Verb.REMOVE, removed.name), Action(AFTERWARDS, Verb.OPEN)]
        actions += _restarts(policy, AFTERWARDS + TICK)
    return Example("drawn", policy, Script(*messages, actions=actions), {}, access=access)


def _messages(policy: Policy, most: int, *, crashes: bool) -> st.SearchStrategy[list[Scripted]]:
    drawn = st.builds(
        Scripted,
        name=st.just(""),
        outcomes=_outcomes(policy, crashes=crashes),
        at=few_instants,
        priority=st.integers(4, 6),
        ttl=st.none() | instants,
        size=st.sampled_from([0, 0, 0, SIZE_LIMIT + 1]),
        group=groups,
        properties=properties,
    )
    return (st.lists(drawn, min_size=1, max_size=most) | st.lists(drawn, min_size=most, max_size=most)).map(named)


def _outcomes(policy: Policy, *, crashes: bool) -> st.SearchStrategy[str]:
    """What waits in ``postponed`` comes back file by file: only what waits for the same time can be told beforehand.

    What the reader of a poison sub-queue postpones comes back in its next pass.
    """
    waits_besides = isinstance(policy, DefaultMessaging) and not policy.blocks_destination
    postponed = [] if waits_besides or policy.reads is SubQueue.POISON else [f"postpone({TICK})"]
    words = st.sampled_from(["ok", "rb", "rb", "rb", "unprocessable", *postponed, *(["crash"] if crashes else [])])
    return st.lists(words, max_size=6).map(" ".join) | st.sampled_from(["rb*20", "rb*3 ok"])


@st.composite
def _actions(draw: st.DrawFn, policy: Policy, kept: Collection[str]) -> list[Action]:
    """Draw what people do. An endpoint that keeps something in memory alone is restarted whenever a pass can begin: each pass is one.

    :param kept: settings that nobody changes.
    """
    never_disabled = policy.reads is SubQueue.POISON
    verbs = [verb for verb in VERBS if not never_disabled or verb not in {"enable", "disable"}]
    one = st.builds(Action, later_instants, st.sampled_from(verbs))
    actions = draw(st.lists(one, max_size=4) | st.lists(one, min_size=3, max_size=3))
    if draw(st.booleans()):
        name, at = draw(st.sampled_from([name for name in ALTERED[policy.system] if name not in kept])), draw(later_instants)
        value = draw(PLAYED[policy.system][name])
        actions += [Action(at, Verb.ALTER, settings={name: _plain(value)}), Action(at, Verb.RESTART)]
    return actions + _restarts(policy, 0.0)


def _restarts(policy: Policy, since: float) -> list[Action]:
    return [Action(since + number * TICK, Verb.RESTART) for number in range(LAST_TICK)] if _remembers_in_memory(policy) else []


def _plain(value: object) -> object:
    """Return a setting as JSON keeps it."""
    return value.total_seconds() if hasattr(value, "total_seconds") else value


def _remembers_in_memory(policy: Policy) -> bool:
    """Whether an open endpoint keeps something that the next one does not find: seen counts (M3-4), the size of batches (WCF-42)."""
    return isinstance(policy, Msmq3) or (isinstance(policy, Msmq4) and policy.max_batch_size > 1)
