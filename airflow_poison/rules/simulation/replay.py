"""Play messages against settings: ``replay`` plays a script, ``simulate`` plain values; with the real rules and loop, on a virtual clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_poison.rules import checked_policy, policy_class
from airflow_poison.rules.described import typed_settings
from airflow_poison.rules.loop import ReceiveLoop, Sessions
from airflow_poison.rules.policy import Access, Opening, Policy
from airflow_poison.rules.simulation.replay_queue import Held, ReplayQueue, TimeIsUp
from airflow_poison.rules.simulation.result import Simulation
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted, ScriptedDelivery, ScriptedHost, Verb, as_span
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import InputError, SettingError
from airflow_poison.values.events import ROUTINE, Event, EventType
from airflow_poison.values.failures import ErrorHandler, install_error_handler
from airflow_poison.values.texts import nearest

if TYPE_CHECKING:
    from airflow_poison.rules.decisions import Counts, Halted, Report


MOST_RECEIVES = 10_000
START = VirtualClock().now()
"""When simulations start, unless they say when."""


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
    start: datetime = START,
) -> Replay:
    """Play a script against a policy and return what happened.

    >>> from airflow_poison.rules.msmq4 import Msmq4
    >>> hopeless = replay(Msmq4(receive_error_handling="Move"), "rb*")
    >>> len(hopeless.deliveries), hopeless.receives, str(hopeless.elapsed), hopeless.message().place
    (18, 21, '1:00:00', 'poison')

    :param policy: the settings. Messages arrive in the sub-queue that the policy reads.
    :param script: messages and actions; a text is the outcomes of one message named ``m``.
    :param error_handler: called for every poison message; a class is installed as an endpoint would (spec WCF-26, WCF-27).
    :param until: stop the clock this long after the start, also during a delivery; None: when nothing is left to happen.
    :param most_receives: stop an endless replay after this many receives.
    :param queue: the queue's name.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    :param counters: what an earlier endpoint left behind.
    :param start: what the clock shows at the start, aware; it matters where the policy has a ``retry_window``.

    Raises SettingError for what is no policy, InputError for a script that cannot be played, and ErrorHandlerError for an error
    handler class that cannot be used.
    """
    checked_policy(policy)
    script = script if isinstance(script, Script) else Script(script)
    if not getattr(policy, "sessions", True) and any(message.items for message in script.messages):
        raise InputError("a message of the script has items: only a policy with sessions=True takes sessions.")
    handler = install_error_handler(error_handler) if isinstance(error_handler, type) else error_handler
    clock = VirtualClock(start.astimezone(UTC))
    stop = clock.now() + until if until is not None else None
    opening = Opening(queue, dict(counters or {}), dict(access or {}))
    source = ReplayQueue(policy, opening, clock, script, most_receives=most_receives, until=stop)
    left = _play(source, ScriptedHost(source, handler), stop)
    ledger = source.ledger
    return Replay(
        tuple(ledger.events),
        tuple(ledger.deliveries),
        tuple(_end(message, clock.now()) for message in source.messages),
        source.halted,
        ledger.started,
        clock.now() if until is not None else ledger.last,
        endless=left and source.exhausted,
        counters=dict(source.counters),
        reports=tuple(ledger.reports),
    )


def _play(source: ReplayQueue, host: ScriptedHost, until: datetime | None) -> bool:
    """Receive what there is, then jump to the next point in time at which something happens; return whether anything is left to happen."""
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
    """Receive what there is; return whether the clock stopped during a delivery, which is under way then."""
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


def _end(held: Held, now: datetime) -> MessageEnd:
    if held.parked_at is not None:
        held.waited += now - held.parked_at
    held.place = str(held.place)
    return MessageEnd(**{end.name: getattr(held, end.name) for end in fields(MessageEnd)})


# What happened


_WIDEST = 60


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """Where a message ended.

    :param place: a sub-queue (``main``, ``retry``, ``retry1``, ``poison``, ``postponed``), ``dead_letter``, or what became of it:
        ``in_delivery`` when the clock stopped, ``processed``, ``dropped``, ``lost`` (consumed, and its handler failed), ``removed``, ``not_arrived``;
        or the name of the queue that it was sent to.
    :param counts: its counts there; not specified for a message that has left its queue.
    :param deliveries: calls of the handler.
    :param receives: receives, with and without delivery.
    :param waited: time in the retry sub-queue.
    :param headers: properties that it got when it was sent to another queue.
    :param due_at: when it may leave retry, UTC; None elsewhere.
    """

    name: str
    lookup_id: int
    place: str
    counts: Counts
    deliveries: int
    receives: int
    waited: timedelta
    due_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened.

    :param events: every event of spec 0.3; ``details["message"]`` is the message's name.
    :param deliveries: every call of the handler.
    :param messages: the end of each message.
    :param halted: how the endpoint ended; None when it is open or was closed by hand.
    :param started: when it began, UTC.
    :param ended: when the last thing happened, UTC.
    :param endless: it was stopped at its limit of receives and would have gone on.
    :param counters: what the endpoint leaves behind for the next one.
    :param reports: the report messages that dispositions sent (spec WMQ-24).
    """

    events: tuple[Event, ...]
    deliveries: tuple[ScriptedDelivery, ...]
    messages: tuple[MessageEnd, ...]
    halted: Halted | None
    started: datetime
    ended: datetime
    endless: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()

    @property
    def receives(self) -> int:
        """Receives of all messages, with and without delivery."""
        return sum(message.receives for message in self.messages)

    @property
    def exceptions(self) -> int:
        """How often a message was found poison."""
        return sum(event.type is EventType.POISON_EXCEPTION for event in self.events)

    @property
    def waited(self) -> timedelta:
        """Time that messages spent in the retry sub-queue, all together."""
        return sum((message.waited for message in self.messages), timedelta(0))

    @property
    def elapsed(self) -> timedelta:
        """Time from the start to the last thing that happened."""
        return self.ended - self.started

    def message(self, name: str = "m") -> MessageEnd:
        """Return the end of one message. Raises KeyError."""
        return {message.name: message for message in self.messages}[name]

    def story(self, name: str | None = None, *, routine: bool = False) -> list[str]:
        """Return the names of the events of one message, or of all; deliveries, commits and rollbacks only when asked for."""
        chosen = (event for event in self.events if name is None or event.details.get("message") == name)
        return [str(event.type) for event in chosen if routine or event.type not in ROUTINE]

    def __str__(self) -> str:
        happened = [("time", "event", "message", "AC", "MC", "details"), *(self._row(event) for event in self.events)]
        ends = [("message", "deliveries", "receives", "waited", "end", "AC", "MC"), *(_end_row(message) for message in self.messages)]
        blocks = [_table(happened), _table(ends)]
        if self.halted is not None:
            blocks.append(f"The endpoint is {self.halted}.")
        if self.endless:
            blocks.append(f"Stopped after {self.receives} receives; it would go on.")
        return "\n\n".join(blocks)

    def _row(self, event: Event) -> tuple[str, ...]:
        facts = ", ".join(f"{key}={_short(value)}" for key, value in event.details.items() if key != "message")
        name = event.details.get("message", "")
        counts = (str(event.abort_count), str(event.move_count)) if name else ("", "")
        return (str(event.at - self.started), event.type, name, *counts, facts)


def _short(text: str) -> str:
    """Return a text that fits into a table; documents do not."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _end_row(message: MessageEnd) -> tuple[str, ...]:
    counts = (str(message.counts.abort_count), str(message.counts.move_count))
    return (message.name, str(message.deliveries), str(message.receives), str(message.waited), message.place, *counts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


# From plain values


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
    start: datetime = START,
) -> Simulation:
    """Play messages against a policy and return what became of them.

    >>> from airflow_poison.rules.msmq4 import Msmq4
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
    :param start: what the clock shows at the start, aware; it matters where the policy has a ``retry_window``.

    Raises InputError for what cannot be played, and SettingError for what is no policy, no messages or no settings of ``alter``.
    """
    if checked_policy(policy) is None:
        raise SettingError("policy", policy, "a policy of airflow_poison, such as Msmq4()")
    messages = HOPELESS if messages is None else messages
    if not isinstance(messages, Mapping) or not all(isinstance(outcomes, str) for outcomes in messages.values()):
        raise SettingError("messages", messages, 'outcomes by the name of a message, such as {"m": "rb rb ok"}')
    arrivals = {_known(name, messages): when for name, when in (at or {}).items()}
    script = Script(*(Scripted(name, outcomes, arrivals.get(name, 0)) for name, outcomes in messages.items()), actions=_typed(policy, actions))
    policies = _policies(policy, script.actions)
    permissions = {name: _access(name, value) for name, value in (access or {}).items()}
    try:
        played = replay(policy, script, until=until, most_receives=most_receives, queue=queue, access=permissions, start=start)
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
