"""What the service integration bus adds to a message that it sends to an exception destination (spec DMP-18)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

REASON: Final = "JMS_IBM_ExceptionReason"
TIMESTAMP: Final = "JMS_IBM_ExceptionTimestamp"
MESSAGE: Final = "JMS_IBM_ExceptionMessage"
PROBLEM_DESTINATION: Final = "JMS_IBM_ExceptionProblemDestination"
PROBLEM_SUBSCRIPTION: Final = "JMS_IBM_ExceptionProblemSubscription"
"""Only of messages that a subscription had received; a queue's messages do not have it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def exception_headers(reason: Reason, problem_destination: str, rollbacks: int, at: datetime) -> dict[str, str]:
    """Return the properties that the message gets; its other properties stay as they are.

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
