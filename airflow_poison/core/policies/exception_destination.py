"""What the default messaging provider does with a message that has used its deliveries (spec DMP-6, DMP-7, DMP-16 to DMP-18)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_poison.core.errors import SettingError
from airflow_poison.core.events import EventType
from airflow_poison.core.policies import undelivered
from airflow_poison.core.policies.decisions import Block, Dispose, Disposition
from airflow_poison.core.policies.policy import Access
from airflow_poison.core.policies.settings import choice

if TYPE_CHECKING:
    from airflow_poison.core.policies.decisions import Counts
    from airflow_poison.core.policies.default_messaging import DefaultMessaging
    from airflow_poison.core.policies.policy import Entry, Opening


_SYSTEM_PREFIX: Final = "_SYSTEM.Exception.Destination."
REASON: Final = "JMS_IBM_ExceptionReason"
TIMESTAMP: Final = "JMS_IBM_ExceptionTimestamp"
MESSAGE: Final = "JMS_IBM_ExceptionMessage"
PROBLEM_DESTINATION: Final = "JMS_IBM_ExceptionProblemDestination"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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

    def is_at_most(self, limit: Reliability) -> bool:
        """Return whether this level is at or below another."""
        levels = list(Reliability)
        return levels.index(self) <= levels.index(limit)


def named(text: str) -> Reliability | None:
    """Return the level of a name in any spelling of the product (``BestEffortNonPersistent``, ``BEST_EFFORT_NONPERSISTENT``)."""
    return _BY_LETTERS.get(_letters(text))


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


_BY_LETTERS: Final = {_letters(level): level for level in Reliability}


def system_default(messaging_engine: str) -> str:
    """Return the exception destination that every messaging engine has (spec DMP-6)."""
    return _SYSTEM_PREFIX + messaging_engine


def check(setting: str, value: object) -> str:
    """Return the checked setting: ``System``, ``None`` or a queue's name. Raises SettingError."""
    if isinstance(value, str) and value.strip():
        word = value.strip().lower()
        if word != "specify":
            return next((known for known in ExceptionDestination if known.lower() == word), value)
    raise SettingError(setting, value, "System, None (as text) or, for Specify, the name of the exception destination")


def check_reliability(setting: str, value: object) -> Reliability:
    """Return the checked level, in any spelling of the product. Raises SettingError."""
    level = named(value) if isinstance(value, str) else None
    return level or choice(setting, value, Reliability)


def undeliverable(policy: DefaultMessaging, entry: Entry, counts: Counts, opening: Opening, reason: Reason, *, now: datetime) -> Dispose | Block:
    """Return what becomes of the message; ``counts`` are its counts after the last rollback."""
    if policy.keeps_messages:
        wait = policy.blocked_wait
        return Block(counts, None if wait is None else now + wait, (EventType.BLOCKED,), whole_queue=policy.blocks_destination)
    if why := _discard(policy, entry):
        return Dispose(Disposition.DROP, counts, (EventType.DROPPED,), details={"reason": why})
    queue, warning = _usable(policy, opening)
    access = opening.can_send_to(queue)
    if access is not Access.GRANTED:
        return _cannot_send(policy, counts, queue, access, now)
    return Dispose(
        Disposition.SEND,
        counts,
        (EventType.EXCEPTIONED,),
        destination=queue,
        headers=exception_headers(reason, opening.queue, counts.abort_count, now),
        details={"warning": warning} if warning else {},
    )


def _cannot_send(policy: DefaultMessaging, counts: Counts, queue: str, access: Access, now: datetime) -> Block:
    """Keep the message: until a restart when an authority is lacking, until another try when the queue is missing (spec DMP-17, section 11.1)."""
    until: datetime | None = None
    warning = f"CWSIP0313: no authority to send to the exception destination {queue}: blocked until a restart."
    if access is Access.MISSING:
        until = now + policy.blocked_retry_interval
        warning = f"CWSIP0291: the exception destination {queue} is missing: sending is tried again."
    return Block(counts, until, (EventType.BLOCKED,), whole_queue=policy.blocks_destination, details={"warning": warning})


def _usable(policy: DefaultMessaging, opening: Opening) -> tuple[str, str]:
    """Return the queue to send to and a warning: the engine's own queue stands in for one that is missing (spec DMP-17)."""
    default = system_default(policy.messaging_engine)
    if policy.exception_destination == ExceptionDestination.SYSTEM:
        return default, ""
    specified = policy.exception_destination
    if opening.can_send_to(specified) is not Access.MISSING:
        return specified, ""
    return default, f"CWSIP0291: the exception destination {specified} is missing; {default} is used."


def _discard(policy: DefaultMessaging, entry: Entry) -> str:
    """Say why the message is discarded and not sent; empty when it is sent (spec DMP-16)."""
    limit = Reliability(policy.exception_discard_reliability)
    level = named(entry.properties.get(PROPERTY, ""))  # None when it names none: never discarded for its reliability
    if level is not None and level.is_at_most(limit):
        return f"its reliability {level} is at or below exception_discard_reliability={limit}"
    if policy.temporary_destination:
        return "the destination is temporary"
    if undelivered.discards(entry.properties):
        return f"its sender asked for it with {undelivered.DISCARD}"
    return ""


def exception_headers(reason: Reason, problem_destination: str, rollbacks: int, at: datetime) -> dict[str, str]:
    """Return the properties that the bus adds to the message, whose others stay as they are (spec DMP-18).

    :param problem_destination: the queue that it could not be delivered from.
    :param rollbacks: its redelivery count.
    :param at: when it is sent, UTC; the timestamp is in milliseconds since 1970, as JMS writes it.
    """
    text = _TEXTS[reason].format(rollbacks=rollbacks, destination=problem_destination)
    return {
        REASON: reason.value,
        TIMESTAMP: str((at - _EPOCH) // timedelta(milliseconds=1)),
        MESSAGE: f"{reason}: {text}",
        PROBLEM_DESTINATION: problem_destination,
    }
