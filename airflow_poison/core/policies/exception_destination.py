"""What the default messaging provider does with a message that has used its deliveries (spec DMP-6, DMP-7, DMP-16, DMP-17)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_poison.core.errors import SettingError
from airflow_poison.core.events import EventType
from airflow_poison.core.policies import reliability, report_options
from airflow_poison.core.policies.decisions import Block, Dispose, Disposition
from airflow_poison.core.policies.exception_headers import Reason, exception_headers
from airflow_poison.core.policies.opening import Access
from airflow_poison.core.policies.reliability import Reliability

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.core.policies.decisions import Counts
    from airflow_poison.core.policies.default_messaging import DefaultMessaging
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Entry

_SYSTEM_PREFIX: Final = "_SYSTEM.Exception.Destination."


class ExceptionDestination(StrEnum):
    """The two values of the setting that are not a queue's name (spec DMP-6)."""

    SYSTEM = "System"  # the messaging engine's own queue
    NONE = "None"  # the message stays where it is


def system_default(messaging_engine: str) -> str:
    """Return the exception destination that every messaging engine has (spec DMP-6)."""
    return _SYSTEM_PREFIX + messaging_engine


def check(value: object) -> str:
    """Return the checked setting: ``System``, ``None`` or a queue's name. Raises SettingError."""
    if isinstance(value, str) and value.strip():
        word = value.strip().lower()
        if word != "specify":
            return next((known for known in ExceptionDestination if known.lower() == word), value)
    raise SettingError("exception_destination", value, "System, None (as text) or, for Specify, the name of the exception destination")


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
    level = reliability.of(entry.properties)
    if level is not None and level.is_at_most(limit):
        return f"its reliability {level} is at or below exception_discard_reliability={limit}"
    if policy.temporary_destination:
        return "the destination is temporary"
    if report_options.discards(entry.properties):
        return f"its sender asked for it with {report_options.DISCARD}"
    return ""
