"""Time: clocks, which every part of the product is handed, so that tests never wait; durations, instants in people's time zones, dates as text.

People write durations ``30m``, ``1h30m``, ``5000ms``, ``90`` (seconds) or ``PT30M``, and read them as ``1 h 30 min``. pendulum reads those of
ISO 8601; it is imported when there is one, for it takes longer than a command of the shell.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, timedelta, tzinfo
from typing import Final, Protocol

from airflow_poison.values.errors import SettingError


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
_UNREADABLE: Final = re.compile(r"[PT]$|\d{10}|[+-]|([WDHMS])[^T]*\1", re.IGNORECASE)
"""What pendulum reads as something else: no number behind the last letter, numbers beyond its range, which begin again at 0, and a unit twice."""


def read_duration(text: str) -> timedelta | None:
    """Return the duration that a text means; None when it means none, is negative, or is too long for a clock.

    ISO 8601 durations with years or months are refused, because their length varies.
    """
    text = text.strip()
    if text[:1] in {"P", "p"}:
        return _iso_duration(text)
    parts = [(text, "s")] if is_bare_number(text) else _PART.findall(text) if _PARTS.fullmatch(text) else []
    try:
        return sum((float(number) * _UNITS[unit.lower()] for number, unit in parts), timedelta(0)) if parts else None
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


def in_words(span: timedelta) -> str:
    """Return a duration in whole words: ``30 minutes``, ``1 day 2 hours``, ``hour`` for a single one; fractions of a second as ``show_duration``."""
    from pendulum import duration

    if span.microseconds:
        return show_duration(span)
    words = duration(days=span.days, seconds=span.seconds).in_words()
    return words.removeprefix("1 ") if words.count(" ") == 1 else words


def time_zone(setting: str, name: str) -> tzinfo:
    """Return a time zone by its name. Raises SettingError, for the setting that names it."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo("UTC" if name.lower() == "utc" else name)
    except (KeyError, OSError, ValueError) as error:  # a folder of zones, and what is no path, among them
        raise SettingError(setting, name, "the name of a time zone, such as Europe/Berlin or UTC") from error


SYSTEM: Final = "system"
"""What names the machine's own time zone, as in Airflow's configuration."""


_chosen: ContextVar[tuple[str, str] | None] = ContextVar("_chosen", default=None)


@contextmanager
def in_zone(setting: str, name: str) -> Iterator[None]:
    """Read and write instants of a block in a time zone. Raises SettingError, for the setting that names it."""
    token = _chosen.set((setting, name))
    try:
        zone_of_people()
        yield
    finally:
        _chosen.reset(token)


def zone_of_people() -> tzinfo | None:
    """Return the time zone that people read instants in; None: the machine's own. Raises SettingError.

    It is the one of ``in_zone``; without that, Airflow's default in a process that has read Airflow's configuration, else UTC.
    """
    airflow = sys.modules.get("airflow.configuration")
    default = "UTC" if airflow is None else str(airflow.conf.get("core", "default_timezone", fallback="UTC"))
    setting, name = _chosen.get() or ("default_timezone", default)
    return None if name.lower() == SYSTEM else time_zone(setting, name)


def show_instant(at: datetime) -> str:
    """Return an instant in people's time zone, to the second and with the zone: ``2026-03-29 03:00:00 CEST``."""
    return f"{at.astimezone(zone_of_people()):%Y-%m-%d %H:%M:%S %Z}"


def show_recorded(text: str) -> str:
    """Return an instant that is recorded in ISO 8601 as ``show_instant`` does."""
    return show_instant(datetime.fromisoformat(text))


def _iso_duration(text: str) -> timedelta | None:
    from pendulum import Duration, parse

    if _UNREADABLE.search(text):
        return None
    try:
        found = parse(text.upper())
    except ValueError:
        return None
    return found.as_timedelta() if isinstance(found, Duration) and not found.years and not found.months else None


# Dates and instants of all years that Arrow and Spark have, as ISO 8601 writes them ------------------------------------

_DAY = r"(?:\d{4}|[+-]\d{4,7})-\d\d-\d\d"  # a sign stands before years that are not of four digits
_DATE = re.compile(_DAY, re.ASCII)
_INSTANT = re.compile(rf"({_DAY})[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{{1,6}})0*)?([Zz]|[+-]\d\d:?[0-5]\d)?", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_OF_DAY = 86_400_000_000
_CYCLE, _DAYS_OF_CYCLE, _DAYS_TO_2000 = 400, 146_097, 10_957
"""Years after which the calendar repeats, and their days; days from 1970 to 2000."""


def days_of(text: str) -> int:
    """Return the days from 1970 to a date. Raises ValueError, also beyond 32 bits."""
    if not _DATE.fullmatch(text):
        raise ValueError("expected is a date such as '2013-01-31'")
    return _in_bits(_days_of(text), 32, "days")


def micros_of(text: str, *, zoned: bool) -> int:
    """Return the microseconds from 1970 to an instant. Raises ValueError, also beyond 64 bits.

    :param zoned: it may have an offset; without one it is UTC.
    """
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError("expected is an instant such as '2013-01-31T05:00:00Z', with microseconds at most")
    day, clock, fraction, offset = found.groups()
    if offset and not zoned:
        raise ValueError("expected is timestamp_ntz, which has no offset")
    at = datetime.fromisoformat(f"1970-01-01T{clock}.{(fraction or '0').ljust(6, '0')}{(offset or 'Z').upper()}")
    return _in_bits(_days_of(day) * _MICROS_OF_DAY + (at - EPOCH) // timedelta(microseconds=1), 64, "microseconds")


def text_of_days(days: int) -> str:
    """Return the date that is so many days from 1970, as ``days_of`` takes it."""
    cycles, rest = divmod(days - _DAYS_TO_2000, _DAYS_OF_CYCLE)
    day = date(2000, 1, 1) + timedelta(days=rest)
    year = day.year + cycles * _CYCLE
    return f"{year:{'04d' if 0 <= year <= MAXYEAR else '+05d'}}-{day:%m-%d}"


def text_of_micros(micros: int) -> str:
    """Return the instant that is so many microseconds from 1970, as ``micros_of`` takes it, without an offset."""
    days, rest = divmod(micros, _MICROS_OF_DAY)
    return f"{text_of_days(days)} {(EPOCH + timedelta(microseconds=rest)).time().isoformat('microseconds')}"


def _days_of(text: str) -> int:
    year, month, day = text.rsplit("-", 2)
    cycles, rest = divmod(int(year), _CYCLE)  # the calendar repeats: Python counts the days of a year that it has
    return (date(2000 + rest, int(month), int(day)) - date(2000, 1, 1)).days + (cycles - 2000 // _CYCLE) * _DAYS_OF_CYCLE + _DAYS_TO_2000


def _in_bits(number: int, bits: int, what: str) -> int:
    if not -1 << (bits - 1) <= number < 1 << (bits - 1):
        raise ValueError(f"{bits} bits of {what} do not reach it")
    return number
