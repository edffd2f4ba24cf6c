"""What of a queue one can be told, and up to where one has been told: positions that survive a restart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.watching.conditions import RetryDue, free_or_due

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.store.files import Snapshot


class Happening(StrEnum):
    """What of a queue one can be told."""

    MESSAGES = "messages"  # a pass could take messages that it could not take before
    RETRY_DUE = "retry_due"  # a return would move messages that were not due before
    POISONED = "poisoned"  # messages went to poison or to another queue, or were dropped or rejected, by the rules
    BLOCKED = "blocked"  # messages block the queue, or wait at their place, by the rules
    DISABLED = "disabled"  # an endpoint does not receive any more: the rules have halted it, or people have switched it off
    ENABLED = "enabled"  # an endpoint receives again


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where somebody has been told.

    :param version: of the queue; what later ones record is still to be told.
    :param marks: of the files or of the halted endpoints that are told of; only those that still are as they were told.
    """

    version: int = -1
    marks: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"version": self.version, "marks": sorted(self.marks)}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Return the position of a JSON form."""
        return cls(int(told["version"]), frozenset(told["marks"]))


@dataclass(frozen=True, slots=True)
class News:
    """What is to be told.

    :param payloads: plain values, each with ``event``, ``queue`` and ``key``; a repeated one has the same key.
    :param position: up to where is told with them.
    """

    payloads: tuple[dict[str, Any], ...]
    position: Position


def ripens(happening: Happening, snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when time alone may make something happen, at the earliest."""
    match happening:
        case Happening.RETRY_DUE:
            return RetryDue().met(snapshot, now).not_before
        case Happening.MESSAGES:
            return snapshot.control.blocked_until(now) or free_or_due(snapshot, now)
        case _:
            return None
