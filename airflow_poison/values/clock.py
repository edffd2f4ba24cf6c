"""Time: clocks, which every part of the product is handed, so that tests never wait; and durations.

People write durations ``30m``, ``1h30m``, ``5000ms``, ``90`` (seconds) or ``PT30M``, and read them as ``1 h 30 min``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """Return the machine's time in UTC."""
        return datetime.now(UTC)


@dataclass(slots=True)
class VirtualClock:
    """A clock that moves only by ``advance``; picklable, so Spark tasks see the same instant."""

    at: datetime = datetime(2013, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the instant that the clock stands at."""
        return self.at

    def advance(self, by: timedelta) -> None:
        """Move the clock forward by a duration."""
        self.at += by


EXAMPLES: Final = "30m, 1h30m, 5000ms, 90 (seconds) or PT30M"

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_NUMBER: Final = r"(\d{1,18}(?:\.\d{1,18})?)"
_PART: Final = re.compile(rf"{_NUMBER}\s*(ms|s|min|m|h|d|w)\s*", re.IGNORECASE | re.ASCII)
_PARTS: Final = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE | re.ASCII)
_ISO: Final = re.compile(
    rf"P(?=[\dT])(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE | re.ASCII
)
_ISO_UNITS: Final = ("w", "d", "h", "m", "s")


def read_duration(text: str) -> timedelta | None:
    """Return the duration that a text means; None when it means none, is negative, or is too long for a clock.

    ISO 8601 durations with years or months are refused, because their length varies.
    """
    parts = _parts(text.strip())
    try:
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta(0)) if parts else None
    except OverflowError:
        return None


def is_bare_number(text: str) -> bool:
    """Return whether a duration is written without a unit."""
    return re.fullmatch(_NUMBER, text.strip(), re.ASCII) is not None


def show_duration(span: timedelta) -> str:
    """Return a duration in words: ``0``, ``0.5 s``, ``30 min``, ``2 d 3 h``."""
    seconds = span.total_seconds()
    sign, left = ("-", -span) if seconds < 0 else ("", span)
    words = []
    for unit in ("d", "h", "min"):
        count, left = divmod(left, _UNITS[unit])
        words += [f"{count} {unit}"] if count else []
    if left:
        words.append(f"{left.total_seconds():.6f}".rstrip("0").rstrip(".") + " s")
    return sign + (" ".join(words) or "0")


def _parts(text: str) -> list[tuple[str, str]]:
    """Return the numbers of a duration with their units; none for a text that is no duration."""
    if is_bare_number(text):
        return [(text, "s")]
    if found := _ISO.fullmatch(text):
        return [(number, unit) for number, unit in zip(found.groups(), _ISO_UNITS, strict=True) if number]
    return [(number, unit.lower()) for number, unit in _PART.findall(text)] if _PARTS.fullmatch(text) else []
