"""WebSphere default messaging provider: redelivery up to a limit, then an exception destination or a wait (spec section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import ClassVar, Final, TypeVar

from airflow_poison.rules import settings, websphere_mq
from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Halted, Return, aborted
from airflow_poison.rules.policy import FIRST, Access, Entry, Opening, Policy, Receiver, Restart
from airflow_poison.values.clock import EPOCH
from airflow_poison.values.errors import ConfigurationWarning, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind

SEQUENTIAL_FAILURES: Final = "sequential_failures"
"""The counter of rollbacks in a row, while the endpoint may stop for them (spec DMP-20)."""
_ENGINE_INTERVAL: Final = "Default blocked destination retry interval"
"""The console's word for ``blocked_retry_interval``, which it shows in milliseconds."""

D = TypeVar("D", bound=Return | Dispose | Block)


class NegativeTimeout(StrEnum):
    """What a blocked retry timeout of -1 means when it holds (spec section 11, item 16)."""

    NEVER = "never"
    ENGINE_DEFAULT = "engine_default"


_SYSTEM_PREFIX: Final = "_SYSTEM.Exception.Destination."
REASON: Final = "JMS_IBM_ExceptionReason"
TIMESTAMP: Final = "JMS_IBM_ExceptionTimestamp"
MESSAGE: Final = "JMS_IBM_ExceptionMessage"
PROBLEM_DESTINATION: Final = "JMS_IBM_ExceptionProblemDestination"

PROPERTY: Final = "reliability"
"""The property of a message that names its reliability."""


class ExceptionDestination(StrEnum):
    """The two values of the setting that are not a queue's name (spec DMP-6)."""

    SYSTEM = "System"  # the messaging engine's own queue
    NONE = "None"  # the message stays where it is


class Reason(StrEnum):
    """Why a message goes to an exception destination."""

    BACKOUT_THRESHOLD = "SIRC0035"  # it was rolled back as often as its destination allows
    ROUTED = "SIRC0101"  # a program says that it belongs there
    FORMAT = "SIRC0105"  # it cannot be read


_TEXTS: Final = {
    Reason.BACKOUT_THRESHOLD: "the message was rolled back {rollbacks} times and has reached the maximum of failed deliveries of {destination}.",
    Reason.ROUTED: "the handler of {destination} found the message unprocessable.",
    Reason.FORMAT: "the message of {destination} cannot be read.",
}


class Reliability(StrEnum):
    """How reliable a message is on a service integration bus, from the lowest level to the highest (spec DMP-16)."""

    BEST_EFFORT_NONPERSISTENT = "best_effort_nonpersistent"
    EXPRESS_NONPERSISTENT = "express_nonpersistent"
    RELIABLE_NONPERSISTENT = "reliable_nonpersistent"
    RELIABLE_PERSISTENT = "reliable_persistent"
    ASSURED_PERSISTENT = "assured_persistent"


def named(text: str) -> Reliability | None:
    """Return the level of a name in any spelling of the product (``BestEffortNonPersistent``, ``BEST_EFFORT_NONPERSISTENT``)."""
    return _BY_LETTERS.get(_letters(text))


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


_LEVELS: Final = tuple(Reliability)
_BY_LETTERS: Final = {_letters(level): level for level in Reliability}


def _destination(setting: str, value: object) -> str:
    """Return the checked setting: ``System``, ``None`` or a queue's name. Raises SettingError."""
    if isinstance(value, str) and value.strip():
        word = value.strip().lower()
        if word != "specify":
            return next((known for known in ExceptionDestination if known.lower() == word), value)
    raise SettingError(setting, value, "System, None (as text) or, for Specify, the name of the exception destination")


def _reliability(setting: str, value: object) -> Reliability:
    """Return the checked level, in any spelling of the product. Raises SettingError."""
    level = named(value) if isinstance(value, str) else None
    return level or settings.choice(setting, value, Reliability)


def _engine_name(setting: str, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise SettingError(setting, value, "the name of a messaging engine")


def _in_seconds(given: str, name: str, value: object) -> object:  # noqa: ARG001  (a Meaning)
    """Turn the engine's interval, in the console's word, from milliseconds into seconds."""
    if given.lower() != _ENGINE_INTERVAL.lower() or not isinstance(value, int | float) or isinstance(value, bool):
        return value
    return value / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultMessaging(Policy):
    """The settings of a bus destination and of its reader. Raises SettingError for a value that is not allowed.

    :param max_failed_deliveries: rollbacks after which a message goes elsewhere, 0 to 2147483647; 0 behaves like 1 (spec DMP-5, DMP-13).
    :param exception_destination: where it goes (spec DMP-6): ``System``, the messaging engine's own queue; ``None``, nowhere: it stays and
        waits; or, for ``Specify``, the name of a queue. No queue of the name ``System``, ``None`` or ``Specify`` can be specified.
    :param messaging_engine: its name ends the name of the engine's own queue, ``_SYSTEM.Exception.Destination.ME1``.
    :param blocked_retry_interval: the engine's wait with ``None``, a duration >= 0 (spec DMP-9).
    :param override_blocked_retry_timeout: the box that lets the destination's own wait hold (spec DMP-10, DMP-11).
    :param blocked_retry_timeout: the destination's own wait in milliseconds, 0 to 2147483647; 0: redelivered at once; or -1 (spec DMP-10).
    :param negative_timeout: a wait of -1 is for ever (``never``) or the engine's (``engine_default``, spec DMP-15).
    :param destination_blocked: nothing of the destination is delivered while a message waits; False: only that message waits (spec DMP-14).
    :param persist_redelivery_count: the redelivery count survives a restart of the messaging engine (spec DMP-19).
    :param exception_discard_reliability: a message of this or a lower reliability is discarded instead of sent to the exception
        destination (spec DMP-16). A message that names no reliability (property ``reliability``) is never discarded for it.
    :param temporary_destination: every message that has used its deliveries is discarded instead (spec DMP-16).
    :param strict_message_ordering: one message at a time, and none before an earlier one has left (spec DMP-20).
    :param max_concurrency: how many messages an endpoint that keeps an order processes at the same time, at least 1.
    :param auto_stop_sequential_message_failure: rollbacks in a row that stop the endpoint; 0: it never stops. Any other value means 1 with
        strict ordering or without an exception destination (spec DMP-20).
    :param transaction_timeout: the total transaction lifetime: how long one delivery may take, a duration > 0.

    Memory: a message's redelivery count is stored with it, and a restart of the messaging engine sets it to 0 unless it is persisted. The
    counter of rollbacks in a row is kept for the next pass while the endpoint goes on; every stop, start and restart sets it to 0, and so
    does a pass that is killed and resumed. A message or a destination that waits does so until its time or a restart of the engine.

    Warns with ConfigurationWarning about settings that lose or block messages, and where strict ordering overrides others.
    """

    system: ClassVar[str] = "DefaultMessaging"
    checks: ClassVar[Mapping[str, settings.Check]] = {
        "exception_destination": _destination,
        "messaging_engine": _engine_name,
        "blocked_retry_timeout": partial(settings.whole_number, least=-1),
        "exception_discard_reliability": _reliability,
        "max_concurrency": partial(settings.whole_number, least=1),
        "transaction_timeout": partial(settings.duration, least=settings.TICK),
    }
    meant: ClassVar[settings.Meaning] = staticmethod(_in_seconds)
    jms: ClassVar[bool] = True
    title: ClassVar[str] = "WebSphere default messaging provider (service integration bus)"
    aliases: ClassVar[Mapping[str, str]] = {
        "Maximum failed deliveries": "max_failed_deliveries",
        "maxFailedDeliveries": "max_failed_deliveries",
        "Exception destination": "exception_destination",
        "exceptionDestination": "exception_destination",
        _ENGINE_INTERVAL: "blocked_retry_interval",
        "Override messaging engine blocked retry timeout default": "override_blocked_retry_timeout",
        "Blocked retry timeout in milliseconds": "blocked_retry_timeout",
        "sib.processor.blockedRetryTimeout": "blocked_retry_timeout",
        "blockedRetryTimeout": "blocked_retry_timeout",
        "persistRedeliveryCount": "persist_redelivery_count",
        "exceptionDiscardReliability": "exception_discard_reliability",
        "maintainStrictOrder": "strict_message_ordering",
        "maxConcurrency": "max_concurrency",
        "autoStopSequentialMessageFailure": "auto_stop_sequential_message_failure",
    }

    max_failed_deliveries: int = 5
    exception_destination: str = ExceptionDestination.SYSTEM
    messaging_engine: str = "ME1"
    blocked_retry_interval: timedelta = timedelta(milliseconds=5000)
    override_blocked_retry_timeout: bool = False
    blocked_retry_timeout: int = -1
    negative_timeout: NegativeTimeout | str = NegativeTimeout.NEVER
    destination_blocked: bool = True
    persist_redelivery_count: bool = False
    exception_discard_reliability: Reliability | str = Reliability.BEST_EFFORT_NONPERSISTENT
    temporary_destination: bool = False
    strict_message_ordering: bool = False
    max_concurrency: int = 1
    auto_stop_sequential_message_failure: int = 0
    transaction_timeout: timedelta = timedelta(seconds=120)

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what loses or blocks messages, and where strict ordering overrides other settings."""
        if self.auto_stop_sequential_message_failure > 1 and (forced := _forced_stop(self)):
            yield ConfigurationWarning(forced)
        if self.strict_message_ordering and self.max_concurrency > 1:
            yield ConfigurationWarning(f"CWSIV1101: with strict message ordering max_concurrency={self.max_concurrency} means 1.")
        if self.temporary_destination:
            yield ConfigurationWarning("temporary_destination=True: a message that has used its deliveries is lost.")
        if self.exception_discard_reliability != Reliability.BEST_EFFORT_NONPERSISTENT:
            lost = self.exception_discard_reliability
            text = f"exception_discard_reliability={lost}: messages up to this reliability that have used their deliveries are lost."
            yield ConfigurationWarning(text)
        if self.keeps_messages and self.blocked_wait is None:
            text = "blocked_retry_timeout=-1: a message that has used its deliveries is never delivered again, and what it blocks neither."
            yield ConfigurationWarning(text)

    @property
    def keeps_messages(self) -> bool:
        """Whether a message that has used its deliveries stays at its destination (spec DMP-6)."""
        return self.exception_destination == ExceptionDestination.NONE

    @property
    def blocks_destination(self) -> bool:
        """Whether the whole destination waits with a message that waits (spec DMP-14); with strict ordering it always does."""
        return self.destination_blocked or self.strict_message_ordering

    @property
    def stop_threshold(self) -> int:
        """Rollbacks in a row that stop the endpoint; 0: it never stops (spec DMP-20)."""
        forced = self.strict_message_ordering or self.keeps_messages
        return min(self.auto_stop_sequential_message_failure, 1) if forced else self.auto_stop_sequential_message_failure

    @property
    def halting(self) -> bool:
        """Whether the endpoint can stop, or needs one order: a strict one, or because a message that waits blocks those behind it."""
        return self.strict_message_ordering or self.stop_threshold > 0 or (self.keeps_messages and self.blocks_destination)

    @property
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: neither on rollbacks in a row nor on a blocked destination."""
        return self.stop_threshold == 0 and not (self.keeps_messages and self.blocks_destination)

    @property
    def server_sessions(self) -> int:
        """How many messages are processed at the same time; one with strict ordering (spec DMP-20)."""
        return 1 if self.strict_message_ordering else self.max_concurrency

    @property
    def strict_order(self) -> bool:
        """Whether nothing overtakes a message (spec DMP-20)."""
        return self.strict_message_ordering

    @property
    def reads_properties(self) -> bool:
        """Whether a message may be discarded for its reliability or its report options (spec DMP-16)."""
        return not self.keeps_messages

    @property
    def system_default(self) -> str:
        """The exception destination that every messaging engine has (spec DMP-6)."""
        return _SYSTEM_PREFIX + self.messaging_engine

    @property
    def destinations(self) -> tuple[str, ...]:
        """The queue that is specified, which must exist (spec DMP-17); every messaging engine has its own."""
        own = {*ExceptionDestination, self.system_default}
        return () if self.exception_destination in own else (self.exception_destination,)

    @property
    def obstacle(self) -> str:
        """Why a message stays that has used its deliveries (spec DMP-6); empty: it goes to an exception destination."""
        return "exception_destination=None: a message that has used its deliveries stays" if self.keeps_messages else ""

    @property
    def blocked_wait(self) -> timedelta | None:
        """How long a message that has used its deliveries waits for the next one (spec DMP-9 to DMP-11); None: for ever."""
        if not self.override_blocked_retry_timeout:
            return self.blocked_retry_interval
        if self.blocked_retry_timeout >= 0:
            return timedelta(milliseconds=self.blocked_retry_timeout)
        return None if self.negative_timeout == NegativeTimeout.NEVER else self.blocked_retry_interval

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:
        """Set the redelivery count to 0 when the messaging engine restarts, unless it is persisted (spec DMP-19)."""
        return counts if restart is not Restart.BROKER or self.persist_redelivery_count else Counts(0, counts.move_count)

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:  # noqa: ARG002  (the interface's signature)
        """Begin a new sequence of failures: each consumer session has its own (spec DMP-20)."""
        return {}

    def counters_when_enabled(self, counters: Mapping[str, int], *, starts: bool) -> Mapping[str, int]:  # noqa: ARG002  (the interface's signature)
        """Begin the sequence of failures anew."""
        return {}

    def open(self, opening: Opening = FIRST) -> DefaultMessagingReceiver:
        """Start the endpoint, with the sequence of failures that an earlier pass left."""
        return DefaultMessagingReceiver(self, opening, min(opening.counters.get(SEQUENTIAL_FAILURES, 0), self.stop_threshold))


@dataclass(slots=True)
class DefaultMessagingReceiver(Receiver):
    """A started endpoint, with its rollbacks in a row.

    Once they have reached the limit it stops: at once when the message stays, else before the next delivery.
    """

    policy: DefaultMessaging
    opening: Opening
    _failures: int
    _stopped: bool = field(default=False, init=False)

    def before(self, entry: Entry, now: datetime) -> Deliver | Halt:  # noqa: ARG002  (the interface's signature)
        """Deliver: a message's count is compared after a rollback, never before a delivery (spec DMP-7)."""
        return self._stop(entry.counts) if self._stop_is_due else Deliver(entry.counts)

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return | Dispose | Block | Halt:
        """Raise the redelivery count, then compare it (spec DMP-4, DMP-7, DMP-8, DMP-13)."""
        counts = aborted(entry.counts)
        self._count_failure()
        if failure.kind is FailureKind.UNPROCESSABLE:
            return Return(counts)
        if counts.abort_count < self.policy.max_failed_deliveries:
            return self._or_stop(Return(counts))
        return self._or_stop(self._undeliverable(entry, counts, Reason.BACKOUT_THRESHOLD, now))

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> Dispose | Block | Halt:
        """Do at once what the last rollback would have led to."""
        reason = Reason.FORMAT if failure.kind is FailureKind.UNREADABLE else Reason.ROUTED
        return self._or_stop(self._undeliverable(entry, entry.counts, reason, now))

    def transaction_committed(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  (the interface's signature)
        """End the sequence of failures."""
        if not self._stop_is_due:
            self._failures = 0

    def counters(self) -> Mapping[str, int]:
        """Leave the sequence of failures to the next pass; a stop has ended it."""
        return {SEQUENTIAL_FAILURES: self._failures} if self._failures else {}

    @property
    def _stop_is_due(self) -> bool:
        return 0 < self.policy.stop_threshold <= self._failures

    def _count_failure(self) -> None:
        """Count a failure, up to the limit; what was in flight at a stop begins no new sequence."""
        if not self._stopped:
            self._failures = min(self._failures + 1, self.policy.stop_threshold)

    def _or_stop(self, decision: D) -> D | Halt:
        """Stop when the limit is reached and the message stays."""
        if isinstance(decision, Dispose) or not self._stop_is_due:
            return decision
        return self._stop(decision.counts, decision.details.get("warning", "") if isinstance(decision, Block) else "")

    def _stop(self, counts: Counts, also: str = "") -> Halt:
        self._stopped, self._failures = True, 0
        warnings = "; ".join(filter(None, (_forced_stop(self.policy), also)))
        details = {"reason": f"sequential message failures: {self.policy.stop_threshold}"} | ({"warning": warnings} if warnings else {})
        return Halt(Halted.STOPPED, counts, (EventType.STOPPED,), details)

    def _undeliverable(self, entry: Entry, counts: Counts, reason: Reason, now: datetime) -> Dispose | Block:
        """Return the disposition of a message that has used its deliveries; ``counts`` are after the last rollback (spec DMP-6, DMP-7)."""
        policy = self.policy
        block = partial(Block, counts, events=(EventType.BLOCKED,), whole_queue=policy.blocks_destination)
        if policy.keeps_messages:
            return block(until=None if policy.blocked_wait is None else now + policy.blocked_wait, details={"obstacle": policy.obstacle})
        if why := _discard(policy, entry):
            return Dispose(Disposition.DROP, counts, (EventType.DROPPED,), details={"reason": why})
        queue, warning = self._usable()
        match self.opening.can_send_to(queue):
            case Access.GRANTED:
                headers = _exception_headers(reason, self.opening.queue, counts.abort_count, now)
                details = {"warning": warning} if warning else {}
                return Dispose(Disposition.SEND, counts, (EventType.EXCEPTIONED,), destination=queue, headers=headers, details=details)
            case Access.MISSING:  # until another try (spec DMP-17)
                warning = f"CWSIP0291: the exception destination {queue} is missing: sending is tried again."
                return block(until=now + policy.blocked_retry_interval, details={"warning": warning})
            case _:  # until a restart (spec section 11.1)
                warning = f"CWSIP0313: no authority to send to the exception destination {queue}: blocked until a restart."
                return block(until=None, details={"warning": warning})

    def _usable(self) -> tuple[str, str]:
        """Return the queue to send to and a warning: the engine's own queue stands in for one that is missing (spec DMP-17)."""
        specified, default = self.policy.exception_destination, self.policy.system_default
        if specified == ExceptionDestination.SYSTEM:
            return default, ""
        if self.opening.can_send_to(specified) is not Access.MISSING:
            return specified, ""
        return default, f"CWSIP0291: the exception destination {specified} is missing; {default} is used."


def _discard(policy: DefaultMessaging, entry: Entry) -> str:
    """Say why the message is discarded and not sent; empty when it is sent (spec DMP-16)."""
    limit = Reliability(policy.exception_discard_reliability)
    level = named(entry.properties.get(PROPERTY, ""))  # None when it names none: never discarded for its reliability
    if level is not None and _LEVELS.index(level) <= _LEVELS.index(limit):
        return f"its reliability {level} is at or below exception_discard_reliability={limit}"
    if policy.temporary_destination:
        return "the destination is temporary"
    if websphere_mq.discards(entry.properties):
        return f"its sender asked for it with {websphere_mq.DISCARD}"
    return ""


def _exception_headers(reason: Reason, problem_destination: str, rollbacks: int, at: datetime) -> dict[str, str]:
    """Return the properties that the bus adds to the message, whose others stay as they are (spec DMP-18).

    :param problem_destination: the queue that it could not be delivered from.
    :param rollbacks: its redelivery count.
    :param at: when it is sent, UTC; the timestamp is in milliseconds since 1970, as JMS writes it.
    """
    text = _TEXTS[reason].format(rollbacks=rollbacks, destination=problem_destination)
    return {
        REASON: reason.value,
        TIMESTAMP: str((at - EPOCH) // timedelta(milliseconds=1)),
        MESSAGE: f"{reason}: {text}",
        PROBLEM_DESTINATION: problem_destination,
    }


def _forced_stop(policy: DefaultMessaging) -> str:
    """Say that, and why, the first failure stops the endpoint whatever the setting says (spec DMP-20); empty when the setting holds."""
    given = policy.auto_stop_sequential_message_failure
    if not given or not (policy.strict_message_ordering or policy.keeps_messages):
        return ""
    code, why = ("CWSIV0906", "strict message ordering") if policy.strict_message_ordering else ("CWSIV0907", "no exception destination")
    return f"{code}: with {why} the first failure stops the endpoint (auto_stop_sequential_message_failure={given})."
