"""What of a queue one can be told, and up to where one has been told: positions that survive a restart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.watching.conditions import RetryDue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.store.seam import Snapshot


class Happening(StrEnum):
    """What of a queue one can be told."""

    MESSAGES = "messages"  # a pass could take messages that it could not take before
    RETRY_DUE = "retry_due"  # a return would move messages that were not due before
    POISONED = "poisoned"  # messages went to poison or to another queue, or were dropped or rejected, by the rules
    BLOCKED = "blocked"  # messages block the queue, or wait at their place, by the rules
    DISABLED = "disabled"  # the rules have disabled, stopped or faulted an endpoint
    ENABLED = "enabled"  # an endpoint receives again


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where somebody has been told.

    :param version: of the queue; what later ones record is still to be told.
    :param files: marks of the files that are told of; only those that still are as they were told.
    """

    version: int = -1
    files: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"version": self.version, "files": sorted(self.files)}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Return the position of a JSON form."""
        return cls(int(told["version"]), frozenset(told["files"]))


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
            ends = [claim.expires_at for claim in snapshot.claims if claim.expires_at > now]
            return snapshot.control.blocked_until(now) or min(ends, default=None)
        case _:
            return None
