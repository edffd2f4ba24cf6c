"""Inspection: look at a conversation's message and give it back (spec SB-27 to SB-29, SB-33)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.core.body_text import xml_codec
from airflow_poison.core.errors import InputError
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Halt, Return

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_poison.core.policies.seam import Entry, Receiver

WAIT = timedelta(seconds=2)
"""How long an inspection that receives waits for a message that the application holds (spec SB-29)."""

NO_MESSAGE = "No message available."
EMPTY = "Empty message."
BINARY = "No validation -- binary message:"

_INSPECTED = Failure(FailureKind.EXCEPTION, text="rolled back by an inspection")


class Inspection(StrEnum):
    """How an inspection reads, and whether its rollback counts (spec SB-33)."""

    EXEMPT = "exempt"  # RECEIVE and ROLLBACK, not counted
    STRICT = "strict"  # RECEIVE and ROLLBACK, counted like any other: five in a row disable the queue
    BROWSE = "browse"  # read without a lock

    @property
    def receives(self) -> bool:
        """Whether it needs a queue that is ON and a message that nobody holds; browsing needs neither."""
        return self is not Inspection.BROWSE

    @property
    def wait(self) -> timedelta:
        """How long it waits for a message that somebody holds."""
        return WAIT if self.receives else timedelta(0)

    def give_back(self, receiver: Receiver, entry: Entry, now: datetime) -> Return | Halt:
        """Return the message to the queue, whatever was printed (spec SB-28). Not asked when there was none: nothing was received (SB-8).

        :param receiver: an endpoint of the queue; it counts the rollback of a strict inspection.
        """
        if self is not Inspection.STRICT:
            return Return(entry.counts)
        receiver.transaction_aborted(became_poison=False)
        decision = receiver.after_rollback(entry, _INSPECTED, now)
        assert isinstance(decision, Return | Halt), decision
        return decision


class Validation(StrEnum):
    """How the bodies of a message type are validated, as the column ``validation`` says (spec SB-52)."""

    EMPTY = "E"
    NONE = "N"
    XML = "X"


@dataclass(frozen=True, slots=True)
class Printed:
    """What an inspection prints.

    :param text: its line of text.
    :param binary: bytes that it prints after the line as they are; ``str()`` shows them in hexadecimal.
    """

    text: str
    binary: bytes | None = None

    def __str__(self) -> str:
        return self.text if self.binary is None else f"{self.text}\n0x{self.binary.hex().upper()}"


def printed(body: bytes | None, validation: str = "") -> Printed:
    """Return what the inspection of a message prints (spec SB-27).

    :param body: None when no message was available in time.
    :param validation: the column's letter. It is two characters wide there and may end in a blank (spec section 10, Q-9).
    Raises InputError for a letter that is none.
    """
    if body is None:
        return Printed(NO_MESSAGE)
    letter = validation.strip()
    if letter not in set(Validation):
        raise InputError(f"validation {validation!r}: expected one of {', '.join(Validation)}.")
    match Validation(letter):
        case Validation.EMPTY:
            return Printed(EMPTY)
        case Validation.XML:
            return Printed(_xml_text(body))
        case Validation.NONE:
            return Printed(BINARY, body)


def _xml_text(body: bytes) -> str:
    """Return XML as text, in the encoding that it says; what is none of that is shown with escapes."""
    return body.decode(xml_codec(body) or "utf-8", "backslashreplace")
