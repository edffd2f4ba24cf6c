"""How a delivery can end other than by success: the kinds of rollback, and what a handler may raise to choose one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Unprocessable(Exception):  # noqa: N818  (a verdict on the message, named by users; not an error of this package)
    """Raised by a handler: this message can never succeed. It goes to the final disposition at once, without retries."""


class Postpone(Exception):  # noqa: N818  (a request to the receiver; not an error)
    """Raised by a handler: give the message back without counting and deliver it again after a delay.

    :param delay: how long to wait, at least zero; more than 36,500 days are cut to that. A reader of the poison sub-queue gets it again in
        its next pass, whatever the delay.
    """

    def __init__(self, delay: timedelta = timedelta(0), reason: str = "") -> None:
        if delay < timedelta(0):
            message = f"Postpone(delay={delay!r}): the delay must be zero or more."
            raise ValueError(message)
        super().__init__(reason or f"postponed by {delay}")
        self.delay = delay


class FailureKind(StrEnum):
    """Why a delivery did not commit."""

    EXCEPTION = "exception"  # the handler raised
    CRASH = "crash"  # the process that ran it ended
    TIMEOUT = "timeout"  # it did not end within the transaction timeout
    UNPROCESSABLE = "unprocessable"  # the handler raised Unprocessable
    UNREADABLE = "unreadable"  # never handed to the handler: above the size limit, not decodable (spec WCF-29)
    POSTPONED = "postponed"  # the handler raised Postpone; not counted
    SAVEPOINT = "savepoint"  # the handler rolled back to its savepoint, and the transaction committed; not counted (spec SB-8)


@dataclass(frozen=True, slots=True)
class Failure:
    """One delivery that was rolled back.

    :param kind: why.
    :param type: the exception's qualified type, or ``exit code 3`` or ``signal SIGKILL`` for a crash.
    :param text: the exception's message, cut to 4,096 characters.
    :param trace: the traceback, or a crashed child's standard error, cut to 8,192 characters.
    :param delay: how long a postponed message waits; zero otherwise.
    """

    kind: FailureKind
    type: str = ""
    text: str = ""
    trace: str = ""
    delay: timedelta = timedelta(0)
