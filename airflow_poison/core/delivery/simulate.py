"""Simulate: what would these settings do to my messages? A replay from plain values, with the answer that people want."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.replay import MOST_RECEIVES, replay
from airflow_poison.core.delivery.script import Script, Scripted, Verb, as_span
from airflow_poison.core.delivery.simulated import Simulation
from airflow_poison.core.errors import InputError
from airflow_poison.core.policies import policy_class
from airflow_poison.core.policies.described import typed_settings
from airflow_poison.core.policies.opening import Access
from airflow_poison.core.texts import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from airflow_poison.core.delivery.replayed import Replay
    from airflow_poison.core.delivery.script import Action
    from airflow_poison.core.policies.policy import Policy

HOPELESS = {"m": "rb*"}
"""One message that is rolled back for ever."""


def simulate(
    policy: Policy,
    messages: Mapping[str, str] | None = None,
    *,
    at: Mapping[str, timedelta | float] | None = None,
    actions: Iterable[Action] = (),
    until: timedelta | None = None,
    most_receives: int = MOST_RECEIVES,
    access: Mapping[str, Access | str] | None = None,
    queue: str = "orders",
) -> Simulation:
    """Play messages against a policy and return what became of them.

    >>> from airflow_poison.core.policies.msmq4 import Msmq4
    >>> print(simulate(Msmq4(receive_error_handling="Move")))
    18 deliveries in 21 receives.
    The last thing happens 1 h after the start.
    m ends in orders;poison after 18 deliveries, 1 h after the start.
    The endpoint does not halt.

    :param policy: the settings, see also ``typed_policy``.
    :param messages: outcomes of deliveries by the message's name, as in ``Outcomes``; None: one hopeless message ``m``.
    :param at: when messages arrive after the start, a duration or seconds; the others are there from the start.
    :param actions: what people do meanwhile. New settings of ``alter`` may be texts, as people type them.
    :param until: stop the clock this long after the start; None: when nothing is left to happen.
    :param most_receives: stop an endless simulation after this many receives.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    :param queue: the queue's name.

    Raises InputError for what cannot be played, and SettingError for settings of ``alter`` that are not allowed.
    """
    messages = HOPELESS if messages is None else messages
    arrivals = {_known(name, messages): when for name, when in (at or {}).items()}
    script = Script(*(Scripted(name, outcomes, arrivals.get(name, 0)) for name, outcomes in messages.items()), actions=_typed(policy, actions))
    policies = _policies(policy, script.actions)
    permissions = {name: _access(name, value) for name, value in (access or {}).items()}
    try:
        played = replay(policy, script, until=until, most_receives=most_receives, queue=queue, access=permissions)
    except OverflowError as error:
        raise InputError("the simulation goes on beyond the year 9999; stop it earlier with until.") from error
    _check_queues(permissions, policies, played)
    return Simulation(policy, queue, script, until, played)


def _known(name: str, messages: Collection[str]) -> str:
    if name in messages:
        return name
    raise InputError(f"no message {name!r} to arrive: the messages are {', '.join(messages) or 'none'}.")


def _access(queue: str, value: Access | str) -> Access:
    if value in set(Access):
        return Access(value)
    raise InputError(f"access to {queue}: {str(value)!r} is not one of {', '.join(Access)}.")


def _check_queues(names: Iterable[str], policies: Sequence[Policy], played: Replay) -> None:
    """Refuse a queue that means nothing to the policy: neither a setting names it nor anything that happened."""
    named = {value for policy in policies for value in policy.to_dict().values() if isinstance(value, str)}
    facts = [fact for event in played.events for fact in event.details.values()]
    queues = {name for policy in policies for name in policy.destinations} | {message.place for message in played.messages if message.headers}
    for name in names:
        if name not in named and not any(name in fact for fact in facts):
            hint = f" The nearest is {nearest(name, queues)}." if queues else ""
            raise InputError(f"access to {name!r} changes nothing: no setting names this queue, and no message was to go there.{hint}")


def _typed(policy: Policy, actions: Iterable[Action]) -> list[Action]:
    """Return actions with the settings of ``alter`` as JSON values. Raises SettingError."""
    known = policy_class(policy.system)
    return [replace(action, settings=typed_settings(known, action.settings)) for action in actions]


def _policies(policy: Policy, actions: Iterable[Action]) -> list[Policy]:
    """Return the policy and what it becomes with each ``alter``. Raises SettingError, before anything is played."""
    found = [policy]
    for action in sorted(actions, key=lambda action: as_span(action.at)):
        if action.verb == Verb.ALTER:
            found.append(found[-1].altered(action.settings))
    return found
