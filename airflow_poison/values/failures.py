"""How a delivery can end other than by success: the kinds of rollback, what a handler may raise to choose one, and error handlers.

An error handler is what an application does when a message is found poison (spec WCF-18, WCF-26, WCF-27).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import final

from airflow_poison.values.errors import ErrorHandlerError, PoisonMessageError


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


class PoisonRows(Exception):  # noqa: N818  (a verdict on messages, named by users; not an error of this package)
    """Raised by a handler of batches that knows which messages made it fail. They are charged, the others are delivered again at once.

    :param rows: why, by lookup id (None, NaN and False: the row is good); or a mask aligned with the frame (list, array or series): true or a text
        where a row is poison. A mask of another length than the frame, and lookup ids that are not in it, name nothing: where nothing is named, the
        batch is searched.
    :param why: what is wrong with rows without a text of their own.
    """

    def __init__(self, rows: Mapping[int, object] | Iterable[object], why: str = "named by the handler") -> None:
        self.why = why
        self.rows: dict[int, str] | list[object] = (
            {int(number): text for number, mark in rows.items() if (text := _reason(mark, why)) is not None}
            if isinstance(rows, Mapping)
            else _listed(rows)
        )
        self._marked = {} if isinstance(self.rows, dict) else _marked(self.rows, why)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[PoisonRows], tuple[object, str]]:
        return type(self), (self.rows, self.why)

    def named(self, lookup_ids: Sequence[int]) -> dict[int, str]:
        """Return why, by position in a frame.

        :param lookup_ids: of the frame.
        """
        if isinstance(self.rows, dict):
            return {place: self.rows[number] for place, number in enumerate(lookup_ids) if number in self.rows}
        return self._marked if len(self.rows) == len(lookup_ids) else {}

    def _text(self) -> str:
        whys = list((self.rows if isinstance(self.rows, dict) else self._marked).values())
        return whys[0] if len(whys) == 1 else f"{len(whys)} messages are poison" + (f", the first: {whys[0]}" if whys else "")


def _listed(marks: Iterable[object]) -> list[object]:
    """Return the marks of a mask as Python values."""
    as_list = getattr(marks, "to_pylist", None) or getattr(marks, "to_list", None) or getattr(marks, "tolist", None)
    return list(marks) if as_list is None else list(as_list())


def _reason(mark: object, why: str) -> str | None:
    """Return what a row of a mapping is named with; None: with nothing, it is good."""
    if type(mark).__name__ in {"bool", "bool_"}:
        return why if mark else None
    is_null = mark is None or type(mark).__name__ in {"NAType", "NaTType"} or (isinstance(mark, float) and mark != mark)  # noqa: PLR0124  (NaN)
    return None if is_null else str(mark)


def _marked(marks: list[object], why: str) -> dict[int, str]:
    """Return why, by position, what is marked; a null of pandas (NaN, NA) marks nothing."""
    places = [place for place, mark in enumerate(marks) if mark is not False and mark is not None]
    found = [(place, mark) for place in places if isinstance(mark := marks[place], str | bool | int) and mark]
    return {place: mark if isinstance(mark, str) else why for place, mark in found}


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


# Failures that are alike


_NAMES_OF_CODE = re.compile(r"(?:^|\.)(?:Key|Attribute|Name|UnboundLocal|Import|ModuleNotFound)Error$|MissingField$")
"""Types of failures whose quoted text names something of the code or the schema, not a value."""
_QUOTED = r""""[^"]*"|(?<!\w)'[^']*'"""
_NAME = r"[A-Za-z_][\w.]*"
_COLUMN = (
    rf"""`[^`]*`|\b(?:columns?|fields?|attributes?|propert(?:y|ies))\b[ :=]*(?:{_QUOTED}|{_NAME})|["']{_NAME}["'](?= is (?:a )?(?:null|required)\b)"""
)
"""What names a column, and stays."""
_BEGIN, _SIGN = r"""(?<![^\s'"`,;()\[\]{}])""", r"""[^\s'"`,;()\[\]{}]"""
_DATA = (
    rf"{_BEGIN}{_SIGN}*[/\\]{_SIGN}*"  # paths and addresses
    r"|(?<![\w.-])[\w.-]+\.(?:jsonl?|ndjson|csv|tsv|txt|parquet|avro|orc|xml|gz|zip)\b"  # names of files
    r"|0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){4}|[0-9a-fA-F]{12,}|(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+|\d+(?:[.,:-]\d+)*"
)
_NUMBER = re.compile(r"\d+")
_DROPPED = re.compile(rf"(?P<kept>{_COLUMN})|{_QUOTED}|{_DATA}", re.IGNORECASE)
_DROPPED_OF_CODE = re.compile(rf"""(?P<kept>{_COLUMN})|(?P<name>(["']){_NAME}\3)|{_QUOTED}|{_DATA}""", re.IGNORECASE)


@lru_cache(200)
def fingerprint(failure: Failure) -> str:
    """Return the id of a failure's error group, 12 hexadecimal digits: failures of one type at one place, whose texts differ only in data.

    Names of columns distinguish groups; values, numbers, paths and names of files do not. A missing key (``KeyError``) is a name when it looks like
    one, but for its digits: ``'id_1'`` and ``'id_2'`` are one group.
    """
    of_code = _NAMES_OF_CODE.search(failure.type) is not None
    return _digits(_origin(failure), (_DROPPED_OF_CODE if of_code else _DROPPED).sub(_kept, failure.text))


def _kept(found: re.Match[str]) -> str:
    parts = found.groupdict()
    return parts["kept"] or _NUMBER.sub("#", parts.get("name") or "#")


@lru_cache(200)
def origin(failure: Failure) -> str:
    """Return 12 hexadecimal digits that failures of one type at one place share, whatever they say: an outage says something else of each message."""
    return _digits(_origin(failure))


def _origin(failure: Failure) -> str:
    frames = [line.strip() for line in failure.trace.splitlines() if line.lstrip().startswith("File ")]
    return f"{failure.kind}|{failure.type}|{frames[-1] if frames else ''}"


def _digits(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode(errors="surrogatepass")).hexdigest()[:12]


def error_cell(failure: Failure) -> dict[str, str]:
    """Return a failure as the column ``last_error`` has it."""
    return {
        "kind": failure.kind.value,
        "type": failure.type,
        "message": failure.text,
        "fingerprint": fingerprint(failure),
        "trace": failure.trace,
    }


class ErrorHandler(ABC):
    """Called for every error of an endpoint: once for each cycle of a hopeless message, so ``max_retry_cycles + 1`` times.

    A handler makes most sense with ``receive_error_handling="Fault"``: there, the message must be taken out.
    """

    @abstractmethod
    def handle_error(self, error: BaseException) -> bool:
        """Take note of an error; return True when it is dealt with. Any other answer fails the receive task, after its commit."""

    @final  # noqa: B027  (doing nothing is the rule)
    def provide_fault(self, error: BaseException) -> None:
        """Do nothing: queues are one-way, there is no sender to answer."""


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
