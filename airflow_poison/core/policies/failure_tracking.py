"""Failures counted by the application itself, one count a conversation: ``TrackMessage`` of the product documentation (spec SB-58, SB-59).

The pattern: begin a transaction, save it, receive; on a failure roll back to the savepoint, track the failure, commit. Nothing rolls back
in full, so the queue's own counter stays 0, and automatic detection remains what it is meant for: a safeguard against fatal errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.policies import settings
from airflow_poison.core.policies.recovery import EndConversation

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """The rule. Raises SettingError for a value that is not allowed.

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
