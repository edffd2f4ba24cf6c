"""How a delivery can end other than by success: the kinds of rollback, what a handler may raise to choose one, and error handlers.

An error handler is what an application does when a message is found poison (spec WCF-18, WCF-26, WCF-27).
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import final

from airflow_poison.core.errors import ErrorHandlerError, PoisonMessageError


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


def fingerprint(failure: Failure) -> str:
    """Return 12 hexadecimal digits that failures of the same type at the same place share."""
    return _fingerprint(failure.kind, failure.type, failure.trace)


@lru_cache(1_000)
def _fingerprint(kind: FailureKind, type_: str, trace: str) -> str:
    frames = [line.strip() for line in trace.splitlines() if line.lstrip().startswith("File ")]
    return hashlib.sha256(f"{kind}|{type_}|{frames[-1] if frames else ''}".encode()).hexdigest()[:12]


class ErrorHandler(ABC):
    """Told of every error of an endpoint: once for each cycle of a hopeless message, so ``max_retry_cycles + 1`` times.

    A handler makes most sense with ``receive_error_handling="Fault"``: there, somebody must take the message out.
    """

    @abstractmethod
    def handle_error(self, error: BaseException) -> bool:
        """Take note of an error; return True when it is dealt with."""

    @final  # noqa: B027  (doing nothing is the rule)
    def provide_fault(self, error: BaseException) -> None:
        """Do nothing: queues are one-way, there is nobody to answer."""


class PoisonErrorHandler(ErrorHandler):
    """Records the lookup ids of poison messages, so that they can be taken out of the queue (spec WCF-25, WCF-26)."""

    def __init__(self) -> None:
        self.lookup_ids: list[int] = []

    def handle_error(self, error: BaseException) -> bool:
        """Return True for exactly PoisonMessageError, and record its message; False for any other error, also for a subclass."""
        if type(error) is not PoisonMessageError:
            return False
        self.lookup_ids.append(error.lookup_id)
        return True


def install_error_handler(handler: type[ErrorHandler]) -> ErrorHandler:
    """Make an error handler when its endpoint opens (spec WCF-27).

    :param handler: a class that implements ErrorHandler and whose constructor needs no parameters.

    Raises ErrorHandlerError when it is something else.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    if not (isinstance(handler, type) and issubclass(handler, ErrorHandler)) or inspect.isabstract(handler):
        raise ErrorHandlerError(f"The error handler {name} must be a class that implements ErrorHandler, with its method handle_error.")
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise ErrorHandlerError(f"The error handler {name} must have a constructor without parameters: {error}.") from error
    return handler()
