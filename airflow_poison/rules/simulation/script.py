"""Scripts for replays: messages with the outcomes of their deliveries, and what people do to the endpoint meanwhile."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_poison.values.errors import InputError
from airflow_poison.values.schema import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
