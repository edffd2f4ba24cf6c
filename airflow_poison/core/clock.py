"""Where time comes from. Every part of the product is handed a clock, so tests never wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """Return the machine's time in UTC."""
        return datetime.now(UTC)


@dataclass(slots=True)
class VirtualClock:
    """A clock that moves only when told to; picklable, so Spark tasks see the same instant."""

    at: datetime = datetime(2013, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the instant that the clock stands at."""
        return self.at

    def advance(self, by: timedelta) -> None:
        """Move the clock forward by a duration."""
        self.at += by
