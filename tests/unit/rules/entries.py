"""An entry of the rules for tests, and the instant at which they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_poison.rules.decisions import Counts
from airflow_poison.values.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = datetime(2013, 1, 1, 12, 0, 0, 700_000, tzinfo=UTC)
RAISED = Failure(FailureKind.EXCEPTION, text="rb")


@dataclass
class Message:
    """A message as far as rules look at it."""

    counts: Counts = field(default_factory=Counts)
    size: int = 0
    expires_at: datetime | None = None
    lookup_id: int = 1
    group: str = "g"
    properties: Mapping[str, str] = field(default_factory=dict)


def message(abort_count: int = 0, move_count: int = 0, size: int = 0, expires_at: datetime | None = None) -> Message:
    return Message(Counts(abort_count, move_count), size, expires_at)
