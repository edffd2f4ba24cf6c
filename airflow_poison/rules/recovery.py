"""How Service Broker queues are freed of poison messages: what people do, and what the application does itself before the queue is disabled.

People inspect a conversation's message and give it back (spec SB-27 to SB-29, SB-33), end its conversation and enable the queue (spec SB-15,
SB-24 to SB-26, SB-34). An application counts failures, one count a conversation: ``TrackMessage`` of the product documentation (spec SB-58, SB-59).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Halt, Return
from airflow_poison.values.errors import InputError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.texts import xml_codec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.rules.policy import Entry, Receiver


@dataclass(frozen=True, slots=True)
class EndConversation:
    """END CONVERSATION, which removes all messages of the conversation (spec SB-30).

    :param error: the error code that the partner gets, greater than 0; None: the conversation ends without an error.
    """

    error: int | None = None
    description: str = ""


REMOVAL = EndConversation(127, "Unable to process message.")
"""How people remove a poison message, after an inspection (spec SB-26)."""


class RecoveryStep(StrEnum):
    """One step of a recovery."""

    END_CONVERSATION = "end_conversation"  # with an error: removes the poison message
    ENABLE = "enable"  # ALTER QUEUE ... STATUS = ON: removes nothing (spec SB-24)


class RecoveryOrder(StrEnum):
    """Which step comes first (spec SB-34)."""

    END_THEN_ENABLE = "end_then_enable"  # no pass can receive the poison message in between
    ENABLE_THEN_END = "enable_then_end"  # the source's order: an activated reader may be faster

    @property
    def steps(self) -> tuple[RecoveryStep, RecoveryStep]:
        """The two steps in their order."""
        first, second = RecoveryStep.END_CONVERSATION, RecoveryStep.ENABLE
        return (first, second) if self is RecoveryOrder.END_THEN_ENABLE else (second, first)


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
        """Whether it needs a queue that is ON and a message that is not locked; browsing needs neither."""
        return self is not Inspection.BROWSE

    @property
    def wait(self) -> timedelta:
        """How long it waits for a locked message."""
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


FAILED_TOO_OFTEN = EndConversation(500, "Unable to process message.")


@dataclass(frozen=True, slots=True)
class Tracked:
    """What is left after an outcome.

    :param counts: the failures of each conversation that has any; to be kept in the transaction that commits.
    :param end: how the conversation ends now; None: it goes on.
    """

    counts: Mapping[str, int]
    end: EndConversation | None = None


@dataclass(frozen=True, slots=True)
class FailureTracking:
    """The rule of ``TrackMessage``. Raises SettingError for a value that is not allowed.

    The pattern: begin a transaction, save it, receive; on a failure roll back to the savepoint, track the failure, commit. Nothing rolls back in
    full, so the queue's own counter stays 0, and automatic detection remains what it is meant for: a safeguard against fatal errors.

    :param max_failures: failures of a conversation that are forgiven, 0 to 2147483647; the next one ends it. With the default the
        fourth failure does, as in the documentation's sample (spec section 11, item 10).
    """

    max_failures: int = 3

    def __post_init__(self) -> None:
        settings.put(self, max_failures=settings.whole_number("max_failures", self.max_failures))

    def failed(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Count a failure; above ``max_failures`` clear the count and end the conversation with an error."""
        failures = counts.get(conversation, 0) + 1
        if failures > self.max_failures:
            return Tracked(_without(counts, conversation), FAILED_TOO_OFTEN)
        return Tracked({**counts, conversation: failures})

    def succeeded(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Clear the count."""
        return Tracked(_without(counts, conversation))

    def partner_ended(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Clear the count and end the conversation: an Error or EndDialog message was received."""
        return Tracked(_without(counts, conversation), EndConversation())


def _without(counts: Mapping[str, int], conversation: str) -> Mapping[str, int]:
    return {other: failures for other, failures in counts.items() if other != conversation}
