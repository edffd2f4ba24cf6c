"""Error handlers: what an application does when a message is found poison (spec WCF-18, WCF-26, WCF-27)."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import final

from airflow_poison.core.errors import ErrorHandlerError, PoisonMessageError


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
