"""Replay: what would these settings do? Scripted messages, the real rules and the real receive loop, a virtual clock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.delivery.loop import ReceiveLoop, Sessions
from airflow_poison.core.delivery.replay_queue import Actor, Held, Ledger, ReplayQueue, TimeIsUp
from airflow_poison.core.delivery.replayed import MessageEnd, Replay
from airflow_poison.core.delivery.script import Script, Scripted, as_span
from airflow_poison.core.delivery.scripted_host import ScriptedHost
from airflow_poison.core.errors import InputError
from airflow_poison.core.failures import install_error_handler
from airflow_poison.core.policies import checked_policy
from airflow_poison.core.policies.opening import Opening

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.failures import ErrorHandler
    from airflow_poison.core.policies.opening import Access
    from airflow_poison.core.policies.policy import Policy

MOST_RECEIVES = 10_000


def replay(
    policy: Policy,
    script: Script | Scripted | Mapping[str, str] | str,
    *,
    error_handler: ErrorHandler | type[ErrorHandler] | None = None,
    until: timedelta | None = None,
    most_receives: int = MOST_RECEIVES,
    queue: str = "replay",
    access: Mapping[str, Access] | None = None,
    counters: Mapping[str, int] | None = None,
) -> Replay:
    """Play a script against a policy and return what happened.

    >>> from airflow_poison.core.policies.msmq4 import Msmq4
    >>> hopeless = replay(Msmq4(receive_error_handling="Move"), "rb*")
    >>> len(hopeless.deliveries), hopeless.receives, str(hopeless.elapsed), hopeless.message().place
    (18, 21, '1:00:00', 'poison')

    :param policy: the settings. Messages arrive in the sub-queue that the policy reads.
    :param script: messages and actions; a text is the outcomes of one message named ``m``.
    :param error_handler: told of every poison message; a class is installed as an endpoint would (spec WCF-26, WCF-27).
    :param until: stop the clock this long after the start, also during a delivery; None: when nothing is left to happen.
    :param most_receives: stop an endless replay after this many receives.
    :param queue: the queue's name.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    :param counters: what an earlier endpoint left behind.

    Raises SettingError for what is no policy, InputError for a script that cannot be played, and ErrorHandlerError for an error
    handler class that cannot be used.
    """
    checked_policy(policy)
    script = script if isinstance(script, Script) else Script(script)
    if not getattr(policy, "sessions", True) and any(message.items for message in script.messages):
        raise InputError("a message of the script has items: only a policy with sessions=True takes sessions.")
    handler = install_error_handler(error_handler) if isinstance(error_handler, type) else error_handler
    clock = VirtualClock()
    started = clock.now()
    ledger = Ledger(started)
    arrivals = [_held(number, message, started) for number, message in enumerate(_by_arrival(script), 1)]
    opening = Opening(queue, dict(counters or {}), dict(access or {}))
    stop = started + until if until is not None else None
    actor = Actor(script.actions, started)
    source = ReplayQueue(policy, opening, clock, arrivals, actor=actor, ledger=ledger, most_receives=most_receives, until=stop)
    host = ScriptedHost(source, ledger, handler, queue)
    left = _play(source, host, stop)
    ends = tuple(_end(message, clock.now()) for message in arrivals)
    ended = clock.now() if until is not None else ledger.last
    return Replay(
        tuple(ledger.events),
        tuple(ledger.deliveries),
        ends,
        source.halted,
        started,
        ended,
        endless=left and source.exhausted,
        counters=dict(source.counters),
        reports=tuple(ledger.reports),
    )


def _play(source: ReplayQueue, host: ScriptedHost, until: datetime | None) -> bool:
    """Receive what there is, then jump to the next point in time at which something happens; tell whether anything is left to happen."""
    while True:
        source.catch_up()
        is_up = _receive(source, host)
        following = source.next_instant()
        if is_up or following is None or source.exhausted or (until is not None and following > until):
            if until is not None:
                source.clock.at = until
            return is_up or following is not None
        source.clock.at = following


def _receive(source: ReplayQueue, host: ScriptedHost) -> bool:
    """Receive what there is; tell whether the clock stopped during a delivery, which is under way then."""
    receiver, is_up = source.serve(), False
    if receiver is None:
        return False
    loop = ReceiveLoop(receiver, source, host, Sessions.of(source.opened))
    try:
        loop.run()
    except TimeIsUp:
        is_up = True
    if loop.halt is not None:
        source.halt(loop.halt)
    return is_up


def _by_arrival(script: Script) -> list[Scripted]:
    return sorted(script.messages, key=lambda message: as_span(message.at))


def _held(number: int, message: Scripted, started: datetime) -> Held:
    arrives_at = started + as_span(message.at)
    return Held(
        message=message,
        lookup_id=number,
        arrives_at=arrives_at,
        expires_at=arrives_at + as_span(message.ttl) if message.ttl is not None else None,
    )


def _end(held: Held, now: datetime) -> MessageEnd:
    still = now - held.parked_at if held.parked_at is not None else timedelta(0)
    return MessageEnd(
        held.message.name,
        held.lookup_id,
        str(held.place),
        held.counts,
        held.deliveries,
        held.receives,
        held.waited + still,
        held.due_at,
        held.headers,
    )
