"""When retries run: windows in a time zone that due times are moved into, and the instants of retry cycles. Pure: time is handed in."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from airflow_poison.values.clock import time_zone
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import tzinfo

EXAMPLE: Final = "Mon-Fri 22:00-06:00 Europe/Berlin"
_ALLOWED: Final = (
    f"weekdays and times in a time zone, such as {EXAMPLE!r}; several with semicolons: 'Mon-Fri 22:00-06:00; Sat,Sun 00:00-24:00 Europe/Berlin'"
)
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY: Final = r"(?:mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_PART: Final = re.compile(
    rf"(?P<days>{_DAY}(?:\s*[-,]\s*{_DAY})*)?\s*(?P<start>\d\d?:\d\d)\s*-\s*(?P<end>\d\d?:\d\d)(?:\s+(?P<zone>[A-Za-z][\w/+-]*))?",
    re.ASCII | re.IGNORECASE,
)
_DAY_MINUTES: Final = 24 * 60
_WEEK: Final = timedelta(days=7)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY: Final = datetime(1970, 1, 5)  # noqa: DTZ001  (readings of wall clocks have no zone)
TICK: Final = timedelta(microseconds=1)
LEAST: Final = timedelta(seconds=1)
"""The shortest time between two runs."""


@dataclass(frozen=True, slots=True)
class RetryWindow:
    """Times of the week at which retries may fall due: those at which a clock on a wall in ``zone`` shows one of ``spans``.

    Where clocks are set forward, a window that begins at a time that does not exist opens at the instant at which they are set; at this instant alone
    where none of its times exists. Where clocks are set back, a window is open both times that the clock shows its times.

    :param spans: beginning and end of each, as durations since Monday 00:00; in order, apart from each other, within the week.
    """

    spans: tuple[tuple[timedelta, timedelta], ...]
    zone: tzinfo

    def opened(self, at: datetime) -> datetime:
        """Return, in UTC, an instant (aware) that the window has, else the next one at which it opens."""
        at = _utc(at)
        return at if self._has(self._wall(at)) else self.opens_after(at)

    def opens_after(self, at: datetime) -> datetime:
        """Return the first instant after one (aware) at which the window opens, in UTC."""
        at = _utc(at)
        while True:
            wall = self._wall(at)
            opens = at + (self._next_beginning(wall) - wall)
            change = self._offset_change(at, opens)
            if change is None:
                return opens
            if self._opens_at_change(wall + (change - at), self._wall(change)):
                return change
            at = change

    def _opens_at_change(self, before: datetime, after: datetime) -> bool:
        """Whether the window opens when clocks are set from one reading to another: it was not open, and is, or would have opened in between."""
        return not self._has(before - TICK) and (self._has(after) or self._next_beginning(before - TICK) < after)

    def _wall(self, at: datetime) -> datetime:
        return at.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _has(self, wall: datetime) -> bool:
        since = (wall - _MONDAY) % _WEEK
        return any(start <= since < end for start, end in self.spans)

    def _next_beginning(self, wall: datetime) -> datetime:
        """Return the next reading, after one, at which a span begins; where one ends with the week and another begins with it, nothing does."""
        since = (wall - _MONDAY) % _WEEK
        joined = self.spans[-1][1] == _WEEK
        starts = [start for start, _ in self.spans if start or not joined]
        following = starts[bisect_right(starts, since) % len(starts)]
        return wall + ((following - since) % _WEEK or _WEEK)

    def _offset_change(self, after: datetime, until: datetime) -> datetime | None:
        """Return the first instant after one, up to another, with another offset from UTC. Offsets change less often than daily."""
        offset, day = self._offset(after), timedelta(days=1)
        low = after
        while low < until:
            high = min(low + day, until)
            if self._offset(high) != offset:
                first, last = int((low - _EPOCH).total_seconds()), -int(-((high - _EPOCH) / LEAST) // 1)
                while last - first > 1:
                    middle = (first + last) // 2
                    first, last = (first, middle) if self._offset(_EPOCH + middle * LEAST) != offset else (middle, last)
                return _EPOCH + last * LEAST
            low = high
        return None

    def _offset(self, at: datetime) -> timedelta | None:
        return at.astimezone(self.zone).utcoffset()


def _utc(at: datetime) -> datetime:
    """Return an instant as a plain datetime: differences of pendulum's cannot be divided by durations."""
    at = at.astimezone(UTC)
    return datetime.combine(at.date(), at.time(), UTC)


def retry_window(setting: str, value: object) -> str:
    """Return the text of a window as it is stored: ``Mon-Fri 22:00-06:00 Europe/Berlin``. Raises SettingError.

    Weekdays may be left out: then it is every day. A range that ends before it begins ends on the next day. Without a zone it is UTC.
    """
    parts, zone = _parse(setting, value)
    ordered = sorted(parts, key=lambda part: (sorted(part[0]), part[1:]))
    ranges = "; ".join(f"{_days_text(days)}{_clock(start)}-{_clock(end)}" for days, start, end in ordered)
    _window(setting, value, parts, zone)
    return f"{ranges} {zone}"


@lru_cache(maxsize=64)
def window_of(text: str) -> RetryWindow:
    """Return the window that a text means. Raises SettingError."""
    return _window("retry_window", text, *_parse("retry_window", text))


_Part = tuple[frozenset[int], int, int]
"""Weekdays (0 is Monday), and minutes of a day: the beginning, and the end."""


def _parse(setting: str, value: object) -> tuple[list[_Part], str]:
    if not isinstance(value, str):
        raise SettingError(setting, value, _ALLOWED)
    parts, zones = list[_Part](), list[str]()
    for text in value.split(";"):
        found = _PART.fullmatch(text.strip())
        if found is None or zones:  # the zone stands at the end, once
            raise SettingError(setting, value, _ALLOWED)
        start, end = (_minutes(setting, value, found[name]) for name in ("start", "end"))
        if start in {end, _DAY_MINUTES}:
            raise SettingError(
                setting, value, "a range of times that begins before 24:00 and does not end when it begins; a whole day is 00:00-24:00"
            )
        parts.append((_days(found["days"]), start, end))
        zones += [found["zone"]] if found["zone"] else []
    return parts, zones[0] if zones else "UTC"


def _minutes(setting: str, value: object, text: str) -> int:
    hour, minute = map(int, text.split(":"))
    if minute >= 60 or hour * 60 + minute > _DAY_MINUTES:  # noqa: PLR2004  (of an hour)
        raise SettingError(setting, value, f"times from 00:00 to 24:00 instead of {text}")
    return hour * 60 + minute


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    found = set[int]()
    for part in text.split(","):
        first, *others = (_DAYS.index(day.strip()[:3].title()) for day in part.split("-"))
        for last in others:
            found |= {(first + step) % 7 for step in range((last - first) % 7 + 1)}
        found.add(first)
    return frozenset(found)


def _window(setting: str, value: object, parts: Iterable[_Part], zone: str) -> RetryWindow:
    place = time_zone(setting, zone)
    spans = list[tuple[timedelta, timedelta]]()
    for start, end in sorted(_spans_of(parts)):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    if spans == [(timedelta(0), _WEEK)]:
        raise SettingError(setting, value, "times of which some are left out; without a window (None) retries fall due at any time")
    return RetryWindow(tuple(spans), place)


def _spans_of(parts: Iterable[_Part]) -> Iterator[tuple[timedelta, timedelta]]:
    """Return the spans of a week; one that goes on into the next week is cut in two."""
    for days, start, end in parts:
        for day in days:
            first = timedelta(days=day, minutes=start)
            last = timedelta(days=day, minutes=end if end > start else end + _DAY_MINUTES)
            yield first, min(last, _WEEK)
            if last > _WEEK:
                yield timedelta(0), last - _WEEK


def _days_text(days: frozenset[int]) -> str:
    """Return weekdays, three or more in a row with a hyphen; nothing for all."""
    if len(days) == len(_DAYS):
        return ""
    rows = list[list[int]]()
    for day in sorted(days):
        if rows and rows[-1][-1] == day - 1:
            rows[-1].append(day)
        else:
            rows.append([day])
    texts = (f"{_DAYS[row[0]]}{'-' if len(row) > 2 else ','}{_DAYS[row[-1]]}" if len(row) > 1 else _DAYS[row[0]] for row in rows)  # noqa: PLR2004
    return ",".join(texts) + " "


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """The instants at which retry cycles run: every ``every`` since 1970-01-01T00:00Z, and whenever the window opens.

    So no message waits longer than ``every`` after it is due, and what was moved into a window is taken when the window opens.

    :param every: the policy's RetryCycleDelay, above 0.
    """

    every: timedelta
    window: RetryWindow | None = None

    def after(self, at: datetime) -> datetime:
        """Return the first instant of a run after one (aware), in UTC."""
        following = self._on_grid(at) + self.every
        return following if self.window is None else min(following, self.window.opens_after(at))

    def until(self, at: datetime) -> datetime:
        """Return the last instant of a run up to one (aware) and with it, in UTC."""
        last = self._on_grid(at)
        while self.window is not None and (opens := self.window.opens_after(last)) <= at:
            last = opens
        return last

    def before(self, at: datetime) -> datetime:
        """Return the last instant of a run before one (aware), in UTC."""
        return self.until(at - TICK)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many runs there are after an instant, up to another and with it."""
        found = (self._on_grid(until) - self._on_grid(after)) // self.every
        while self.window is not None and (after := self.window.opens_after(after)) <= until:
            found += self._on_grid(after) != after
        return found

    def _on_grid(self, at: datetime) -> datetime:
        return _EPOCH + (_utc(at) - _EPOCH) // self.every * self.every
