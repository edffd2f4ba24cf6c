"""Undelivered messages of WebSphere MQ: the Report field of their descriptor, and the dead-letter header (spec WMQ-24)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_poison.rules.decisions import Report
from airflow_poison.values.errors import DeadLetterHeaderError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
