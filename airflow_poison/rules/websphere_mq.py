"""What activation specifications and listener ports share (spec sections 6, 7 and 8): the attributes of a WebSphere MQ queue and its backout rules.

When is a message requeued, where does it go, which count does z/OS keep, and when does a count of failures end receiving?

Undelivered messages of WebSphere MQ: the Report field of their descriptor, and the dead-letter header (spec WMQ-24).
"""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, ClassVar, Final, assert_never

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Halt, Halted, Report, Return, aborted
from airflow_poison.rules.policy import Access, Entry, Opening, Policy, Receiver, Restart
from airflow_poison.rules.settings import LARGEST
from airflow_poison.values.errors import ConfigurationHint, ConfigurationWarning, DeadLetterHeaderError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind

DISCARD: Final = "JMS_IBM_Report_Discard_Msg"
EXCEPTION: Final = "JMS_IBM_Report_Exception"
REPLY_TO: Final = "JMSReplyTo"

OPTIONS: Final = {
    "MQRO_EXCEPTION": 0x0100_0000,
    "MQRO_EXCEPTION_WITH_DATA": 0x0300_0000,
    "MQRO_EXCEPTION_WITH_FULL_DATA": 0x0700_0000,
    "MQRO_DISCARD_MSG": 0x0800_0000,
}
_EXCEPTION_BITS: Final = OPTIONS["MQRO_EXCEPTION_WITH_FULL_DATA"]
_BYTES_OF_BODY: Final = {
    OPTIONS["MQRO_EXCEPTION"]: 0,
    OPTIONS["MQRO_EXCEPTION_WITH_DATA"]: 100,
    OPTIONS["MQRO_EXCEPTION_WITH_FULL_DATA"]: None,
}
_QUEUE_URI: Final = re.compile(r"queue://[^/]*/(?P<queue>[^?]*)(\?.*)?")


def discards(properties: Mapping[str, str]) -> bool:
    """Return whether an undeliverable message is to be discarded; else it goes to the dead-letter queue."""
    return bool(_options(properties.get(DISCARD, "")) & OPTIONS["MQRO_DISCARD_MSG"])


def exception_reports(properties: Mapping[str, str], feedback: int) -> tuple[Report, ...]:
    """Return the exception report that the sender asked for: to its reply-to queue, with no data, the first 100 bytes, or all.

    :param properties: of the message. ``JMS_IBM_Report_Exception`` is the name of an MQRO option or its number, ``JMSReplyTo`` a queue's
        name or its URI (``queue://manager/NAME``).
    :param feedback: why the message was not delivered, a reason code.
    """
    reply_to = _queue(properties.get(REPLY_TO, ""))
    option = _options(properties.get(EXCEPTION, "")) & _EXCEPTION_BITS
    if not reply_to or option not in _BYTES_OF_BODY:
        return ()
    return (Report(to=reply_to, feedback=feedback, data=_BYTES_OF_BODY[option]),)


def _options(text: str) -> int:
    """Return the bits of an option that is given by name or by number; none for any other text."""
    word = text.strip().upper()
    return int(word) if word.isascii() and word.isdigit() else OPTIONS.get(word, 0)


def _queue(reply_to: str) -> str:
    uri = _QUEUE_URI.fullmatch(reply_to.strip())
    return uri["queue"] if uri else reply_to.strip()


LENGTH: Final = 172
STRUCTURE_ID: Final = b"DLH "
VERSION: Final = 1
NATIVE_ENCODING: Final = 273
"""MQENC_NATIVE of Java: integers with the highest byte first, IEEE floats."""
UTF_8: Final = 1208
JAVA_APPLICATION: Final = 28
"""MQAT_JAVA."""

_LAYOUT: Final = "4s i i 48s 48s i i 8s i 28s 8s 8s"
_BIG, _LITTLE = struct.Struct(">" + _LAYOUT), struct.Struct("<" + _LAYOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHeader:
    """The dead-letter header MQDLH, 172 bytes before a message on a dead-letter queue: why it lies there, and how to read it (spec WMQ-25).

    Texts that are longer than their field are cut when the header is built; characters outside ASCII become ``?``.

    :param reason: a reason code, for example 2362 MQRC_BACKOUT_THRESHOLD_REACHED.
    :param destination: the queue that the message was on, 48 bytes.
    :param queue_manager: that queue's manager, 48 bytes.
    :param encoding: how the message's numbers are written.
    :param coded_char_set_id: the character set of its text.
    :param format: its format name, 8 bytes; empty: MQFMT_NONE.
    :param application_type: what kind of application put it here.
    :param application: that application's name, 28 bytes.
    :param put_at: when, UTC; kept to hundredths of a second. None: not known.
    """

    reason: int
    destination: str
    queue_manager: str = ""
    encoding: int = NATIVE_ENCODING
    coded_char_set_id: int = UTF_8
    format: str = ""
    application_type: int = JAVA_APPLICATION
    application: str = "airflow-poison"
    put_at: datetime | None = None


_IN_ORDER: Final = tuple(each.name for each in fields(DeadLetterHeader))[:-1]
"""What stands in the header between its version and when it was put here, in this order."""


def build(header: DeadLetterHeader) -> bytes:
    """Return the header as 172 bytes, integers with the highest byte first, texts padded with blanks."""
    values = [getattr(header, name) for name in _IN_ORDER]
    cells = [_padded(value) if isinstance(value, str) else value for value in (*values, *_date_and_time(header.put_at))]
    return _BIG.pack(STRUCTURE_ID, VERSION, *cells)


def parse(header: bytes) -> DeadLetterHeader:
    """Read a header in either byte order. Raises DeadLetterHeaderError for bytes that are none."""
    if len(header) != LENGTH or not header.startswith(STRUCTURE_ID):
        raise DeadLetterHeaderError(
            f"{len(header)} bytes that begin with {header[:4]!r} are no MQDLH: it has {LENGTH} and begins with {STRUCTURE_ID!r}."
        )
    layout = next((layout for layout in (_BIG, _LITTLE) if layout.unpack(header)[1] == VERSION), None)
    if layout is None:
        raise DeadLetterHeaderError(f"this MQDLH has version {header[4:8].hex()} (hexadecimal); only version {VERSION} is known.")
    *values, date, time = (_text(cell) if isinstance(cell, bytes) else cell for cell in layout.unpack(header)[2:])
    cells: dict[str, Any] = dict(zip(_IN_ORDER, values, strict=True))
    return DeadLetterHeader(**cells, put_at=_put_at(date, time))


def _date_and_time(put_at: datetime | None) -> tuple[str, str]:
    if put_at is None:
        return "", ""
    instant = put_at.astimezone(UTC)
    return f"{instant:%Y%m%d}", f"{instant:%H%M%S}{instant.microsecond // 10_000:02}"


def _put_at(date: str, time: str) -> datetime | None:
    if not date and not time:
        return None
    try:
        return datetime.strptime(f"{date}{time}0000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
    except ValueError as error:
        raise DeadLetterHeaderError(f"PutDate {date!r} and PutTime {time!r} of an MQDLH are no YYYYMMDD and HHMMSSTH.") from error


def _padded(text: str) -> bytes:
    """Return a text as wide as the widest field; packing cuts it to the width of its own."""
    return text.encode("ascii", "replace").ljust(48)


def _text(padded: bytes) -> str:
    return padded.decode("ascii", "replace").rstrip(" \0")


SYSTEM_DEAD_LETTER_QUEUE: Final = "SYSTEM.DEAD.LETTER.QUEUE"
MOST_EARLY_HAND_OUTS: Final = 2
_QUEUE_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_MANAGER_NAME: Final = r"[A-Za-z0-9._/%]{0,48}"
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


class StopRule(StrEnum):
    """How the count of failures that ends receiving is compared with its limit (spec WMQ-7, WMQ-28, LP-2; section 11, items 18 and 23)."""

    REACHES = "reaches"  # count >= max(limit, 1)
    MORE_THAN = "more_than"  # count > limit
    EQUALS = "equals"  # count = limit


class NextMessage(StrEnum):
    """Which message a session takes next (spec WMQ-29)."""

    SWEEP = "sweep"  # the one behind the last that was taken; at the end from the top again
    TOP = "top"  # the top of the queue


def _matching(setting: str, value: object, *, pattern: str, allowed: str) -> str:
    if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
        return value
    raise SettingError(setting, value, allowed)


_queue_or_nothing = partial(_matching, pattern=f"({_QUEUE_NAME})?", allowed="a queue's name, or nothing")


_YES_AND_NO: Final = {"yes": True, "no": False, "mqqa_backout_hardened": True, "mqqa_backout_not_hardened": False}


def _hardened(given: str, name: str, value: object) -> object:
    """Translate what MQ calls hardened and not hardened, in several words (spec ZOS-9)."""
    if name != "harden_get_backout":
        return value
    meant = _YES_AND_NO.get(value.lower(), value) if isinstance(value, str) else value
    return not meant if given.lower() == "nohardenbo" and isinstance(meant, bool) else meant


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSphereMqSettings(Policy):
    """Base of frozen settings: the attributes of the queue, its queue manager, and how sessions take messages.

    :param backout_threshold: BOTHRESH: rollbacks after which a message is requeued, 0 to 2147483647; 0: never (spec WMQ-11).
    :param backout_requeue_queue: BOQNAME: the queue that it is requeued to; empty: the dead-letter queue (spec WMQ-10).
    :param dead_letter_queue: the queue manager's DEADQ (spec WMQ-22).
    :param queue_manager: its name in dead-letter headers, up to 48 characters (spec WMQ-25).
    :param compare: a message is requeued when its count is ``at_least`` BOTHRESH or only when it ``equals`` it (spec section 11, item 20).
    :param zos: the queue manager runs on z/OS, which counts rollbacks on a copy in memory (spec ZOS-1 to ZOS-5).
    :param harden_get_backout: HARDENBO: on z/OS, whether the stored count rises with the copy's and survives a restart of the queue
        manager (spec ZOS-6). None: not on z/OS. Elsewhere the count is always kept (spec ZOS-9).
    :param shared_queue: on z/OS, a shared queue, which always keeps the count (spec ZOS-9).
    :param transaction_timeout: the total transaction lifetime: how long one delivery may take, a duration > 0.
    :param next_message: ``sweep`` or ``top``; None: a sweep with several sessions, else the top (spec WMQ-29).
    :param early_hand_out: how many sessions get their next message before all results of a round are in, 0 to 2 (spec WMQ-20).
    """

    reads_properties = True
    jms: ClassVar[bool] = True
    checks: ClassVar[Mapping[str, settings.Check]] = {
        "backout_requeue_queue": _queue_or_nothing,
        "dead_letter_queue": partial(_matching, pattern=_QUEUE_NAME, allowed="a queue's name"),
        "queue_manager": partial(_matching, pattern=_MANAGER_NAME, allowed="up to 48 letters, digits, '.', '/', '_' and '%'"),
        "harden_get_backout": settings.optional(settings.flag),
        "next_message": settings.optional(partial(settings.choice, choices=NextMessage)),
        "transaction_timeout": partial(settings.duration, least=settings.TICK),
        "early_hand_out": partial(settings.whole_number, most=MOST_EARLY_HAND_OUTS),
        "max_server_sessions": partial(settings.whole_number, least=1),
        "max_sessions": partial(settings.whole_number, least=1),
    }
    meant: ClassVar[settings.Meaning] = staticmethod(_hardened)
    aliases: ClassVar[Mapping[str, str]] = {
        "Backout threshold": "backout_threshold",
        "BOTHRESH": "backout_threshold",
        "backoutThreshold": "backout_threshold",
        "Backout requeue queue": "backout_requeue_queue",
        "BOQNAME": "backout_requeue_queue",
        "backoutRequeueName": "backout_requeue_queue",
        "DEADQ": "dead_letter_queue",
        "QMNAME": "queue_manager",
        "queueManager": "queue_manager",
        "HARDENBO": "harden_get_backout",
        "NOHARDENBO": "harden_get_backout",
        "HNDBKTCNT": "harden_get_backout",
        "HardenGetBackout": "harden_get_backout",
    }

    backout_threshold: int = 0
    backout_requeue_queue: str = ""
    dead_letter_queue: str = SYSTEM_DEAD_LETTER_QUEUE
    queue_manager: str = ""
    compare: Compare | str = Compare.AT_LEAST
    zos: bool = False
    harden_get_backout: bool | None = None
    shared_queue: bool = False
    transaction_timeout: timedelta = timedelta(seconds=120)
    next_message: NextMessage | str | None = None
    early_hand_out: int = 0

    @property
    def sweeps(self) -> bool:
        """Whether a session takes the message behind the last that was taken (spec WMQ-29)."""
        if self.next_message is None:
            return self.server_sessions > 1
        return self.next_message == NextMessage.SWEEP

    @property
    def destinations(self) -> tuple[str, ...]:
        """The backout queue, which must exist, unless it is the dead-letter queue: every queue manager has one (spec WMQ-10)."""
        return () if self.backout_requeue_queue in {"", self.dead_letter_queue} else (self.backout_requeue_queue,)

    @property
    def hardened(self) -> bool:
        """Whether the stored message carries the count (spec ZOS-6, ZOS-9)."""
        return not self.zos or self.shared_queue or self.harden_get_backout is True

    def rolled_back(self, counts: Counts) -> Counts:
        """Return the counts after a rollback (spec WMQ-9); on z/OS they stop at 255 (spec ZOS-9)."""
        return counts if self.zos and counts.abort_count >= LARGEST_ON_ZOS else aborted(counts)

    def stored_backout_count(self, counts: Counts) -> int:
        """Return the count of the stored message; ``counts`` belong to its copy on z/OS (spec ZOS-3, ZOS-6)."""
        return counts.abort_count if self.hardened else 0

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:
        """Lose the copy's count with the queue manager, which it belongs to, unless it is hardened; no count elsewhere (spec ZOS-5, ZOS-6)."""
        return replace(counts, abort_count=0) if restart is Restart.BROKER and not self.hardened else counts

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what is rarely wanted of the queue's attributes (spec WMQ-E9, ZOS-9)."""
        threshold = self.backout_threshold
        if threshold and not self.backout_requeue_queue:
            yield ConfigurationWarning(f"backout_threshold={threshold} without backout_requeue_queue: {self.dead_letter_queue} will be used.")
        if self.zos and threshold > LARGEST_ON_ZOS:
            yield ConfigurationWarning(f"backout_threshold={threshold} is never reached on z/OS: backouts are counted up to {LARGEST_ON_ZOS} there.")
        if not self.zos and (self.shared_queue or self.harden_get_backout is False):
            yield ConfigurationHint("harden_get_backout and shared_queue change nothing outside z/OS: the count is always kept there.")


def access_with(granted: Collection[Authority | str]) -> Access:
    """Return whether these authorities suffice to requeue to a queue: all five are needed (spec WMQ-22)."""
    return Access.GRANTED if set(Authority) <= set(granted) else Access.DENIED


@dataclass(slots=True)
class WebSphereMqReceiver(Receiver):
    """A started endpoint, as far as both kinds are alike: which messages it delivers, and where the others go."""

    policy: WebSphereMqSettings
    opening: Opening
    _stopped: bool = field(default=False, init=False)
    """Whether it has stopped, while other sessions end their work."""

    def before(self, entry: Entry, now: datetime) -> Deliver | Dispose | Block:
        """Deliver, or requeue a message whose count has reached BOTHRESH; never with BOTHRESH 0 (spec WMQ-10, WMQ-11, LP-4)."""
        threshold, count = self.policy.backout_threshold, entry.counts.abort_count
        reached = count == threshold if self.policy.compare == Compare.EQUALS else count >= threshold
        return self.requeue(entry, Reason.BACKOUT_THRESHOLD_REACHED, now) if threshold and reached else Deliver(entry.counts)

    def after_rollback(self, entry: Entry, failure: Failure, now: datetime) -> Return | Halt:  # noqa: ARG002  (the interface's signature)
        """Count the failure, and stop at the limit, once (spec WMQ-12, WMQ-20, LP-2, LP-3)."""
        if failure.kind is FailureKind.UNPROCESSABLE:
            return Return(entry.counts)
        counts = self.policy.rolled_back(entry.counts)
        details = self._failed(counts)
        if self._stopped or not details:
            return Return(counts)
        self._stopped = True
        return Halt(Halted.STOPPED, counts, (EventType.STOPPED,), details)

    @abstractmethod
    def _failed(self, counts: Counts) -> dict[str, str]:
        """Take note of a failure; return the facts of the stop that it leads to, none when receiving goes on."""

    def give_up(self, entry: Entry, failure: Failure, now: datetime) -> Dispose | Block:
        """Send the message where a requeue would go, at once: with a format error when it cannot be read (spec WMQ-24)."""
        unreadable = failure.kind is FailureKind.UNREADABLE
        return self.requeue(entry, Reason.JMS_FORMAT_ERROR if unreadable else Reason.BACKOUT_THRESHOLD_REACHED, now)

    def requeue(self, entry: Entry, reason: Reason, now: datetime) -> Dispose | Block:
        """Send a message to the backout queue or, when that cannot be used, where its Report field says (spec WMQ-10, WMQ-22, WMQ-24)."""
        policy, counts, obstacle = self.policy, entry.counts, self._obstacle()
        details = {"reason": f"{reason} MQRC_{reason.name}"} | ({"obstacle": obstacle} if obstacle else {})
        send = partial(Dispose, details=details, reports=exception_reports(entry.properties, reason))
        if not obstacle:
            return send(Disposition.SEND, counts, (EventType.REQUEUED,), destination=policy.backout_requeue_queue)
        if discards(entry.properties):
            return send(Disposition.DROP, counts, (EventType.DROPPED,))
        queue, access = policy.dead_letter_queue, self.opening.can_send_to(policy.dead_letter_queue)
        if access is not Access.GRANTED:
            stuck = {"obstacle": f"{obstacle}; the dead-letter queue {queue}: {access}"}
            return Block(counts, None, (EventType.BLOCKED,), whole_queue=False, details=details | stuck)
        headers = {HEADER: b64encode(self._dead_letter_header(entry, reason, now)).decode("ascii")}
        return send(Disposition.SEND, counts, (EventType.DEAD_LETTERED,), destination=queue, headers=headers)

    def _obstacle(self) -> str:
        """Say why the backout queue cannot be used; empty when it can."""
        queue = self.policy.backout_requeue_queue
        if not queue:
            return "there is no backout_requeue_queue"
        access = self.opening.can_send_to(queue)
        return "" if access is Access.GRANTED else f"the backout queue {queue}: {access}"

    def _dead_letter_header(self, entry: Entry, reason: Reason, now: datetime) -> bytes:
        header = DeadLetterHeader(
            reason=reason,
            destination=self.opening.queue,
            queue_manager=self.policy.queue_manager,
            encoding=_number(entry.properties, "JMS_IBM_Encoding", NATIVE_ENCODING),
            coded_char_set_id=_number(entry.properties, "JMS_IBM_Character_Set", UTF_8),
            format=entry.properties.get("JMS_IBM_Format", ""),
            put_at=now,
        )
        return build(header)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= LARGEST else default


def first_stop(rule: StopRule, limit: int) -> int | None:
    """Return the smallest count that ends receiving; None when none does, for every failure makes the count at least 1."""
    match rule:
        case StopRule.REACHES:
            return max(limit, 1)
        case StopRule.MORE_THAN:
            return limit + 1
        case StopRule.EQUALS:
            return limit or None
        case _:
            assert_never(rule)


def stops(rule: StopRule, count: int, limit: int) -> bool:
    """Return whether receiving ends after a failure that made the count what it is."""
    return count == limit if rule is StopRule.EQUALS else count >= (first_stop(rule, limit) or 0)
