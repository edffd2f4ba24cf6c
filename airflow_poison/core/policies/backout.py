"""The backout rules of a WebSphere MQ queue: when a message is requeued, where it goes, and which count z/OS keeps.

Shared by activation specifications and listener ports (spec WMQ-10 to WMQ-14, WMQ-22, WMQ-24, LP-4, section 8).
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from airflow_poison.core.events import EventType
from airflow_poison.core.failures import FailureKind
from airflow_poison.core.policies import dead_letter_header, report_options
from airflow_poison.core.policies.decisions import Block, Dispose, Disposition
from airflow_poison.core.policies.opening import Access
from airflow_poison.core.policies.restarts import Restart
from airflow_poison.core.policies.settings import LARGEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from airflow_poison.core.failures import Failure
    from airflow_poison.core.policies.decisions import Counts
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Entry
    from airflow_poison.core.policies.websphere_mq import WebSphereMqSettings

LARGEST_ON_ZOS: Final = 255
"""Where z/OS stops counting (spec ZOS-9)."""
HEADER: Final = "mq.dead_letter_header"
"""The property that carries the MQDLH of a dead-lettered message, in base64."""


class Compare(StrEnum):
    """How a message's count is compared with BOTHRESH (spec section 11, item 20)."""

    AT_LEAST = "at_least"
    EQUALS = "equals"


class Reason(IntEnum):
    """Why a message is not delivered: reason codes of MQ, also the feedback of reports (spec WMQ-24)."""

    BACKOUT_THRESHOLD_REACHED = 2362
    JMS_FORMAT_ERROR = 2364


class Authority(StrEnum):
    """What the server's user must be allowed to do on the backout queue (spec WMQ-22)."""

    GET = "Get"
    INQUIRE = "Inquire"
    PASS_ALL_CONTEXT = "Pass All Context"  # noqa: S105  (no password)
    PUT = "Put"
    SET_ALL_CONTEXT = "Set All Context"


def access_with(granted: Collection[Authority | str]) -> Access:
    """Return whether these authorities suffice to requeue to a queue: all five are needed (spec WMQ-22)."""
    return Access.GRANTED if set(Authority) <= set(granted) else Access.DENIED


# Counting -------------------------------------------------------------------------------------------------------


def rolled_back(policy: WebSphereMqSettings, counts: Counts) -> Counts:
    """Return the counts after a rollback (spec WMQ-9); on z/OS they stop at 255 (spec ZOS-9)."""
    most = LARGEST_ON_ZOS if policy.zos else LARGEST
    return counts if counts.abort_count >= most else replace(counts, abort_count=counts.abort_count + 1)


def counts_after(policy: WebSphereMqSettings, counts: Counts, restart: Restart) -> Counts:
    """Return the counts after a restart: the copy is the queue manager's, and lost with it unless hardened (spec ZOS-5, ZOS-6)."""
    return replace(counts, abort_count=0) if restart is Restart.BROKER and not policy.hardened else counts


def stored_backout_count(policy: WebSphereMqSettings, counts: Counts) -> int:
    """Return the count of the stored message; ``counts`` are those of its copy on z/OS (spec ZOS-3, ZOS-6)."""
    return counts.abort_count if policy.hardened else 0


# Requeueing -----------------------------------------------------------------------------------------------------


def threshold_reached(policy: WebSphereMqSettings, counts: Counts) -> bool:
    """Return whether a detected message is requeued and not delivered; never with BOTHRESH 0 (spec WMQ-10, WMQ-11)."""
    threshold, count = policy.backout_threshold, counts.abort_count
    if not threshold:
        return False
    return count == threshold if policy.compare == Compare.EQUALS else count >= threshold


def reason_of(failure: Failure) -> Reason:
    """Return the reason code of a message that is given up: a format error when it cannot be read (spec WMQ-24)."""
    return Reason.JMS_FORMAT_ERROR if failure.kind is FailureKind.UNREADABLE else Reason.BACKOUT_THRESHOLD_REACHED


def requeue(policy: WebSphereMqSettings, entry: Entry, opening: Opening, reason: Reason, now: datetime) -> Dispose | Block:
    """Send a message to the backout queue or, when that cannot be used, where its Report field says (spec WMQ-10, WMQ-22, WMQ-24)."""
    obstacle = _obstacle(policy, opening)
    details = {"reason": f"{reason} MQRC_{reason.name}"} | ({"obstacle": obstacle} if obstacle else {})
    reports = report_options.exception_reports(entry.properties, reason)
    if not obstacle:
        return Dispose(
            Disposition.SEND,
            entry.counts,
            (EventType.REQUEUED,),
            destination=policy.backout_requeue_queue,
            details=details,
            reports=reports,
        )
    if report_options.discards(entry.properties):
        return Dispose(Disposition.DROP, entry.counts, (EventType.DROPPED,), details=details, reports=reports)
    access = opening.can_send_to(policy.dead_letter_queue)
    if access is not Access.GRANTED:
        stuck = f"{obstacle}; the dead-letter queue {policy.dead_letter_queue}: {access}"
        return Block(entry.counts, None, (EventType.BLOCKED,), whole_queue=False, details=details | {"obstacle": stuck})
    return Dispose(
        Disposition.SEND,
        entry.counts,
        (EventType.DEAD_LETTERED,),
        destination=policy.dead_letter_queue,
        headers={HEADER: b64encode(_dead_letter_header(policy, entry, opening, reason, now)).decode("ascii")},
        details=details,
        reports=reports,
    )


def _obstacle(policy: WebSphereMqSettings, opening: Opening) -> str:
    """Say why the backout queue cannot be used; empty when it can."""
    queue = policy.backout_requeue_queue
    if not queue:
        return "there is no backout_requeue_queue"
    access = opening.can_send_to(queue)
    return "" if access is Access.GRANTED else f"the backout queue {queue}: {access}"


def _dead_letter_header(policy: WebSphereMqSettings, entry: Entry, opening: Opening, reason: Reason, now: datetime) -> bytes:
    header = dead_letter_header.DeadLetterHeader(
        reason=reason,
        destination=opening.queue,
        queue_manager=policy.queue_manager,
        encoding=_number(entry.properties, "JMS_IBM_Encoding", dead_letter_header.NATIVE_ENCODING),
        coded_char_set_id=_number(entry.properties, "JMS_IBM_Character_Set", dead_letter_header.UTF_8),
        format=entry.properties.get("JMS_IBM_Format", ""),
        put_at=now,
    )
    return dead_letter_header.build(header)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= LARGEST else default
