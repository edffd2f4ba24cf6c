"""The host of a replay: handlers whose outcomes are scripted, and decisions carried out in memory.

Scripts for replays: messages with the outcomes of their deliveries, and what people do to the endpoint meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Halt, Park, Report
from airflow_poison.rules.loop import Host
from airflow_poison.values.errors import InputError, PoisonMessageError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import ErrorHandler, Failure, FailureKind
from airflow_poison.values.schema import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from airflow_poison.rules.simulation.replay_queue import Held, ReplayQueue
    from airflow_poison.values.clock import Clock


class OutcomeKind(StrEnum):
    """How one delivery ends, as scripts write it."""

    OK = "ok"  # the handler returns
    RB = "rb"  # it raises
    TIMEOUT = "timeout"  # it does not end within the transaction timeout
    CRASH = "crash"  # its process ends
    UNPROCESSABLE = "unprocessable"  # it raises Unprocessable
    BEFORE_OPERATION = "before_operation"  # it is never called, and the transaction times out (spec WCF-34)
    POSTPONE = "postpone"  # it raises Postpone
    SAVEPOINT = "savepoint"  # it rolls back to its savepoint, and the transaction commits (spec SB-8)
    UNCONSUMED = "unconsumed"  # it returns without having consumed the session from this item on (spec WCF-39)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome.

    :param span: what stands in parentheses: how long the delivery takes or, for ``postpone``, how long the message waits.
        None when nothing stands there: no time, or for ``timeout`` and ``before_operation`` the transaction timeout.
    """

    kind: OutcomeKind
    span: timedelta | None = None


_WORD = re.compile(r"(?P<kind>[a-z_]+)(\((?P<span>\d+(\.\d+)?)\))?(?P<many>\*(?P<times>\d+)?)?")
_OK = Outcome(OutcomeKind.OK)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of a message's deliveries, one after the other.

    :param text: words such as ``rb rb ok``, ``rb*5 ok``, ``rb*`` (for ever), ``ok(50)`` (takes 50 s), ``postpone(60)``. After the last
        word every delivery is ``ok``. Raises InputError for anything else.
    """

    text: str
    _runs: tuple[tuple[Outcome, int | None], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        runs = tuple(self._run(word) for word in self.text.split())
        if any(times is None for _, times in runs[:-1]):
            raise InputError(f"outcomes {self.text!r}: only the last word can go on for ever.")
        object.__setattr__(self, "_runs", runs)

    def __iter__(self) -> Iterator[Outcome]:
        for outcome, times in self._runs:
            left = times
            while left != 0:
                yield outcome
                left = left - 1 if left is not None else None
        while True:
            yield _OK

    def _run(self, word: str) -> tuple[Outcome, int | None]:
        found = _WORD.fullmatch(word)
        if found is None or found["kind"] not in set(OutcomeKind):
            raise InputError(f"outcomes {self.text!r}: {word!r} is not one of {', '.join(OutcomeKind)}, each with (seconds), * or *times if wanted.")
        span = timedelta(seconds=float(found["span"])) if found["span"] else None
        times = 1 if found["many"] is None else int(found["times"]) if found["times"] else None
        return Outcome(OutcomeKind(found["kind"]), span), times


@dataclass(frozen=True, slots=True)
class Scripted:
    """A message of a script. Messages that arrive at the same time arrive in the order of the script.

    :param name: what the result calls it; unique in its script.
    :param outcomes: how its deliveries end, see ``Outcomes``.
    :param at: when it arrives after the start, a duration or seconds.
    :param priority: higher is received earlier.
    :param ttl: time to live from its arrival, a duration or seconds; None: for ever.
    :param size: bytes of its body.
    :param unreadable: why the channel can never hand it over (spec WCF-29); empty: it can.
    :param items: the items of a session by name, each with its own outcomes; they are worked off in order until one fails
        (spec WCF-38). Needs a policy with ``sessions=True``; ``outcomes`` is not used.
    :param locked: how many tries of a move fail because another reader holds the message (spec WCF-19).
    :param abort_count: rollbacks that it arrives with.
    :param move_count: moves that it arrives with.
    :param group: its conversation group; empty: a group of its own.
    :param properties: its properties.
    """

    name: str
    outcomes: str = "ok"
    at: timedelta | float = 0
    priority: int = DEFAULT_PRIORITY
    ttl: timedelta | float | None = None
    size: int = 0
    unreadable: str = ""
    items: Mapping[str, str] = field(default_factory=dict)
    locked: int = 0
    abort_count: int = 0
    move_count: int = 0
    group: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


class Verb(StrEnum):
    """What people do while a script runs."""

    CLOSE = "close"  # close the endpoint; a delivery under way is rolled back and counted (spec section 11.1)
    OPEN = "open"  # open it again, also after a fault, a stop or a disabled queue
    RESTART = "restart"  # close and open
    RESTART_SERVER = "restart_server"  # the application's host goes down and comes up, with its endpoint
    RESTART_BROKER = "restart_broker"  # the broker goes down and comes up; the endpoint is open again when it was open before
    CRASH = "crash"  # the application's host is killed: what the endpoint keeps in memory is lost, and it is open again
    ENABLE = "enable"  # ALTER QUEUE ... STATUS = ON: opens, and starts the endpoint's counters anew (spec SB-7)
    DISABLE = "disable"  # ALTER QUEUE ... STATUS = OFF by hand: no event (spec section 11, item 3)
    ALTER = "alter"  # change settings; they hold when the endpoint opens next (spec WMQ-23)
    PUT_BACK = "put_back"  # put a message back from poison (spec WCF-28)
    REMOVE = "remove"  # take a message out by hand (spec WCF-25)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that people do at a point in time, before anything else happens then.

    :param at: when, after the start, a duration or seconds.
    :param verb: a ``Verb``.
    :param message: the name of the message that is put back or removed. It must be there then; of one in delivery the
        end of its transaction is waited for, planned or not (spec section 11.1).
    :param settings: new values of ``alter``, in our words or the manual's.
    """

    at: timedelta | float
    verb: Verb | str
    message: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)


class Script:
    """What a replay plays: messages and actions.

    :param messages: a message each, or one mapping from names to outcomes, or a text: the outcomes of a single message ``m``.
    :param actions: what people do meanwhile; at the same time, in this order.

    Raises InputError for two messages of one name, unknown verbs and actions on unknown messages.
    """

    def __init__(self, *messages: Scripted | Mapping[str, str] | str, actions: Iterable[Action] = ()) -> None:
        self.messages: tuple[Scripted, ...] = tuple(message for given in messages for message in _scripted(given))
        self.actions: tuple[Action, ...] = tuple(actions)
        names = [message.name for message in self.messages]
        if len(set(names)) < len(names):
            raise InputError(f"names {names}: every message of a script needs a name of its own.")
        for action in self.actions:
            _check(action, names)

    def __repr__(self) -> str:
        messages = "".join(f"{_changed(message)}, " for message in self.messages)
        return f"Script({messages}actions=[{', '.join(map(_changed, self.actions))}])"


def as_span(value: timedelta | float) -> timedelta:
    """Return a duration that may be given in seconds."""
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def _scripted(given: Scripted | Mapping[str, str] | str) -> list[Scripted]:
    if isinstance(given, Scripted):
        return [given]
    if isinstance(given, str):
        return [Scripted("m", given)]
    return [Scripted(name, outcomes) for name, outcomes in given.items()]


def _changed(value: Scripted | Action) -> str:
    """Return how a message or an action is written, without what it has by default."""
    shown = [each.name for each in fields(value) if getattr(value, each.name) != _default(each)]
    return f"{type(value).__name__}({', '.join(f'{name}={_plain(getattr(value, name))!r}' for name in shown)})"


def _default(given: Field[Any]) -> object:
    return given.default if given.default_factory is MISSING else given.default_factory()


def _plain(value: object) -> object:
    return str(value) if isinstance(value, StrEnum) else value


def _check(action: Action, names: list[str]) -> None:
    if action.verb not in set(Verb):
        raise InputError(f"action {action.verb!r}: expected one of {', '.join(Verb)}.")
    about_message = action.verb in {Verb.PUT_BACK, Verb.REMOVE}
    if about_message != bool(action.message) or (about_message and action.message not in names):
        raise InputError(f"action {action.verb} with message={action.message!r}: expected {names if about_message else 'no message'}.")
    if (action.verb == Verb.ALTER) != bool(action.settings):
        expected = "settings to change" if action.verb == Verb.ALTER else "no settings"
        raise InputError(f"action {action.verb} with settings={dict(action.settings)!r}: expected {expected}.")


PROCESSED = "processed"
LOST = "lost"

_FAILURES = {
    OutcomeKind.RB: FailureKind.EXCEPTION,
    OutcomeKind.TIMEOUT: FailureKind.TIMEOUT,
    OutcomeKind.CRASH: FailureKind.CRASH,
    OutcomeKind.UNPROCESSABLE: FailureKind.UNPROCESSABLE,
    OutcomeKind.BEFORE_OPERATION: FailureKind.TIMEOUT,
    OutcomeKind.POSTPONE: FailureKind.POSTPONED,
    OutcomeKind.SAVEPOINT: FailureKind.SAVEPOINT,
    OutcomeKind.UNCONSUMED: FailureKind.EXCEPTION,
}
_LASTS_FOR_THE_TIMEOUT = {OutcomeKind.TIMEOUT, OutcomeKind.BEFORE_OPERATION}


class ScriptedHost(Host["Held"]):
    """A replay."""

    def __init__(self, source: ReplayQueue, error_handler: ErrorHandler | None) -> None:
        self._source, self._ledger, self._error_handler = source, source.ledger, error_handler
        self._begun: dict[int, _Begun] = {}

    def now(self) -> datetime:
        return self._source.clock.now()

    def unreadable(self, entry: Held) -> Failure | None:
        """Say why the channel cannot hand the message over: the script says so, or the policy."""
        reason = entry.message.unreadable or self._source.opened.unreadable(entry)
        return Failure(FailureKind.UNREADABLE, text=reason) if reason else None

    def deliver(self, entry: Held, delivery: Deliver) -> Failure | None:
        self.begin(entry, delivery)
        return self.result(entry)

    def begin(self, entry: Held, delivery: Deliver) -> None:
        began = self.now()
        outcome, items = _work(entry)
        if outcome.kind is not OutcomeKind.BEFORE_OPERATION:
            entry.deliveries += 1
            self._ledger.write(EventType.DELIVERED, entry)
            self._ledger.deliveries.append(ScriptedDelivery(entry.name, began - self._ledger.started, delivery.counts, outcome.kind, items))
        self._begun[entry.lookup_id] = _Begun(outcome, delivery, began)

    def result(self, entry: Held) -> Failure | None:
        begun = self._begun.pop(entry.lookup_id)
        failure = self._spend(begun)
        if failure is not None and begun.delivery.at_most_once:
            entry.place = LOST
        return failure

    def committed(self, entries: Sequence[Held]) -> None:
        for entry in entries:
            entry.place = PROCESSED
            self._ledger.write(EventType.COMMITTED, entry)

    def rolled_back(self, entries: Sequence[Held], culprit: Held | None, failure: Failure) -> None:
        for entry in entries:
            reason = failure.text if entry is culprit or culprit is None else f"with {culprit.name}"
            self._ledger.write(EventType.ROLLED_BACK, entry, error=reason)

    def move(self, entry: Held, decision: Park | Dispose) -> bool:  # noqa: ARG002  (the interface's signature)
        """Fail as often as the script says that a reader holds the message."""
        if not entry.locked:
            return True
        entry.locked -= 1
        return False

    def wait(self, entry: Held) -> None:  # noqa: ARG002  (the interface's signature)
        """Let the time between two tries go by."""
        if self._source.receiver is not None:
            self._source.spend(self._source.receiver.move_interval, interruptible=False)

    def ended(self, entry: Held, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        """Put the message where it goes, and record the event."""
        place = self._source.carry_out(entry, decision)
        entry.counts = decision.counts
        facts = {"place": place} | ({"error": failure.text or failure.kind} if failure is not None else {})
        if isinstance(decision, Dispose | Block | Halt):
            facts |= decision.details
        for event in decision.events:
            self._write_event(event, entry, **({} if event is EventType.POISON_EXCEPTION else facts))

    def halted(self, decision: Halt) -> None:
        for event in decision.events:
            self._ledger.write(event, None, **decision.details)

    def left_in_place(self, entry: Held, decision: Park | Dispose) -> None:
        for event in decision.events[:-1]:
            self._write_event(event, entry, error="the message is held by another reader")

    def postponed(self, entry: Held, failure: Failure) -> None:
        self._source.postpone(entry, failure.delay)

    def _write_event(self, event: EventType, entry: Held, **facts: str) -> None:
        self._ledger.write(event, entry, **facts)
        if event is EventType.POISON_EXCEPTION and self._error_handler is not None:
            self._error_handler.handle_error(PoisonMessageError(entry.lookup_id, self._source.queue))

    def _spend(self, begun: _Begun) -> Failure | None:
        """Let the delivery take its time, no longer than the transaction; who closes the endpoint meanwhile rolls it back."""
        outcome = begun.outcome
        timeout = self._source.opened.effective_transaction_timeout
        postponed = outcome.kind is OutcomeKind.POSTPONE
        span = timedelta(0) if outcome.span is None or postponed else outcome.span
        if not begun.delivery.at_most_once:
            if outcome.kind in _LASTS_FOR_THE_TIMEOUT and outcome.span is None:
                span = timeout
            elif span > timeout:
                outcome, span = Outcome(OutcomeKind.TIMEOUT), timeout
        left = max(begun.at + span - self.now(), timedelta(0))
        if not self._source.spend(left):
            return Failure(FailureKind.CRASH, text="the endpoint was closed during the delivery")
        if outcome.kind is OutcomeKind.OK:
            return None
        delay = outcome.span if outcome.span is not None and postponed else timedelta(0)
        return Failure(_FAILURES[outcome.kind], text=outcome.kind, delay=delay)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A delivery under way."""

    outcome: Outcome
    delivery: Deliver
    at: datetime


def _work(entry: Held) -> tuple[Outcome, tuple[str, ...]]:
    """Return the outcome of one delivery; a session works its items off in order until one is not ``ok`` (spec WCF-38)."""
    if not entry.items:
        return next(entry.outcomes), ()
    worked: list[str] = []
    for name, outcomes in entry.items.items():
        outcome = next(outcomes)
        if outcome.kind is OutcomeKind.UNCONSUMED:
            return outcome, tuple(worked)
        worked.append(name)
        if outcome.kind is not OutcomeKind.OK:
            return outcome, tuple(worked)
    return Outcome(OutcomeKind.OK), tuple(worked)


class PlayedEvents:
    """Everything that happened, in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = self.last = clock.now()
        self.events: list[Event] = []
        self.deliveries: list[ScriptedDelivery] = []
        self.reports: list[Report] = []

    def write(self, event: EventType, held: Held | None = None, **details: str) -> None:
        """Write down an event of now, with the counts that the message has."""
        self.last = at = self._clock.now()
        if held is None:
            self.events.append(Event(event, at, details=details))
            return
        named = {"message": held.name, **details}
        self.events.append(Event(event, at, held.lookup_id, held.counts.abort_count, held.counts.move_count, named))


@dataclass(frozen=True, slots=True)
class ScriptedDelivery:
    """One call of the handler.

    :param message: the message's name.
    :param at: when the call began, after the start.
    :param counts: what the handler saw.
    :param outcome: how the call ended, as scripts write it; how it would have, where the endpoint was closed or the clock stopped before.
    :param items: the items of a session that were worked on, the failing one included.
    """

    message: str
    at: timedelta
    counts: Counts
    outcome: str
    items: tuple[str, ...] = ()
