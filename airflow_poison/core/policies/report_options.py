"""What the sender of a WebSphere MQ message asks for when it is not delivered: the Report field of its descriptor (spec WMQ-24)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_poison.core.policies.decisions import Report

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
