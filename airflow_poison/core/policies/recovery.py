"""How a disabled queue is recovered from a poison message (spec SB-15, SB-24 to SB-26, SB-34)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EndConversation:
    """END CONVERSATION, which removes all messages of the conversation (spec SB-30).

    :param error: the code that the partner is told, greater than 0; None: the conversation ends without an error.
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

    END_THEN_ENABLE = "end_then_enable"  # nobody can receive the poison message in between
    ENABLE_THEN_END = "enable_then_end"  # the source's order: an activated reader may be faster

    @property
    def steps(self) -> tuple[RecoveryStep, RecoveryStep]:
        """The two steps in their order."""
        first, second = RecoveryStep.END_CONVERSATION, RecoveryStep.ENABLE
        return (first, second) if self is RecoveryOrder.END_THEN_ENABLE else (second, first)
