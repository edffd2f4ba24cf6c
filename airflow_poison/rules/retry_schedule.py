"""When retries run: windows in a time zone that due times are moved into, and the instants of retry cycles. Pure: time is handed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from airflow_poison.values.clock import EPOCH, time_zone
from airflow_poison.values.errors import SettingError

_ALLOWED: Final = (
    "weekdays and times, or a cron expression, in a time zone: 'Mon-Fri 22:00-06:00 Europe/Berlin', '* 22-23,0-5 * * MON-FRI Europe/Berlin'; "
    "several with semicolons: 'Mon-Fri 22:00-06:00; Sat,Sun 00:00-24:00 Europe/Berlin'"
)
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY: Final = r"(?:mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_ZONE: Final = r"(?:\s+(?P<zone>[A-Za-z][\w/+-]*))?"
_PART: Final = re.compile(
    rf"(?P<days>{_DAY}(?:\s*[-,]\s*{_DAY})*)?\s*(?P<start>\d\d?:\d\d)\s*-\s*(?P<end>\d\d?:\d\d){_ZONE}", re.ASCII | re.IGNORECASE
)
_CRON: Final = re.compile(rf"(?P<cron>(?:[\d*,/?-]+\s+){{3}}(?:[\d*,/?-]|[a-z]{{3}})+\s+(?:[\d*,/?-]|[a-z]{{3}})+){_ZONE}", re.ASCII | re.IGNORECASE)
_NUMBERS: Final = re.compile(r"\d\d?(?:-\d\d?)?(?:,\d\d?(?:-\d\d?)?)*", re.ASCII)
_ALLOWED_NUMBERS: Final = tuple(frozenset(range(least, most + 1)) for least, most in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)))
"""The numbers in the fields of a cron expression; weekdays begin with Sunday."""
_DAY_MINUTES: Final = 24 * 60
_DATES: Final = 28 * 366
"""After so many days, all dates have been on all weekdays."""
_FIRST: Final = datetime(2000, 1, 1)  # noqa: DTZ001  (readings of wall clocks have no zone)
_ONE_DAY: Final = timedelta(days=1)
TICK: Final = timedelta(microseconds=1)
LEAST: Final = timedelta(seconds=1)
"""The shortest time between two runs."""
_Spans = list[tuple[int, int]]
"""Ranges of times, in minutes of a day: beginning, and end, which is not in it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Times of some days.

    :param weekdays: 0 is Monday; None: any.
    :param dates: days of the month; None: any. Where weekdays are named, too, a day of either is one, as cron has it.
    """

    spans: _Spans
    weekdays: frozenset[int] | None
    dates: frozenset[int] | None = None
    months: frozenset[int] | None = None

    def has(self, day: datetime) -> bool:
        """Whether a day is one of them."""
        named = [number in days for number, days in ((day.weekday(), self.weekdays), (day.day, self.dates)) if days is not None]
        return (not named or any(named)) and (self.months is None or day.month in self.months)


@dataclass(frozen=True, slots=True)
class RetryWindow:
    """Times at which retries may fall due: those at which a clock on a wall in ``zone`` shows a time of one of ``parts``.

    Where clocks are set forward, a window that begins at a time that does not exist opens at the instant at which they are set; at this instant alone
    where none of its times exists. Where clocks are set back, a window is open both times that the clock shows its times.
    """

    parts: tuple[_Part, ...]
    zone: tzinfo
    _known: dict[tuple[int, int, int], _Spans] = field(default_factory=dict, compare=False)

    def opened(self, at: datetime) -> datetime:
        """Return, in UTC, an instant (aware) that the window has, else the next one at which it opens."""
        at = _utc(at)
        return at if self._has(self._wall(at)) else self.opens_after(at - TICK)

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

    def of(self, day: datetime) -> _Spans:
        """Return the times of a day that the window has, in order and apart from each other.

        :param day: its beginning, as a clock on a wall shows it.
        """
        key = day.month, day.day, day.weekday()
        if key not in self._known:
            self._known[key] = _joined(span for part in self.parts if part.has(day) for span in part.spans)
        return self._known[key]

    def _opens_at_change(self, before: datetime, after: datetime) -> bool:
        """Whether the window opens when clocks are set from one reading to another: it was not open, and is, or would have opened in between."""
        return not self._has(before - TICK) and (self._has(after) or self._next_beginning(before - TICK) < after)

    def _wall(self, at: datetime) -> datetime:
        return at.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _has(self, wall: datetime) -> bool:
        minute = wall.hour * 60 + wall.minute
        return any(start <= minute < end for start, end in self.of(wall))

    def _next_beginning(self, wall: datetime) -> datetime:
        """Return the next reading, after one, at which times of the window begin; where they go on over midnight, they do not."""
        day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        while True:
            for start, _ in self.of(day):
                begins = day + timedelta(minutes=start)
                if begins > wall and (start or not self._has(day - TICK)):
                    return begins
            day += _ONE_DAY

    def _offset_change(self, after: datetime, until: datetime) -> datetime | None:
        """Return the first instant after one, up to another, with another offset from UTC. Offsets change less often than daily."""
        offset = self._offset(after)
        low = after
        while low < until:
            high = min(low + _ONE_DAY, until)
            if self._offset(high) != offset:
                first, last = int((low - EPOCH).total_seconds()), -int(-((high - EPOCH) / LEAST) // 1)
                while last - first > 1:
                    middle = (first + last) // 2
                    first, last = (first, middle) if self._offset(EPOCH + middle * LEAST) != offset else (middle, last)
                return EPOCH + last * LEAST
            low = high
        return None

    def _offset(self, at: datetime) -> timedelta | None:
        return at.astimezone(self.zone).utcoffset()


def _utc(at: datetime) -> datetime:
    """Return an instant as a plain datetime: differences of pendulum's cannot be divided by durations."""
    at = at.astimezone(UTC)
    return datetime.combine(at.date(), at.time(), UTC)


def _joined(spans: Iterable[tuple[int, int]]) -> _Spans:
    found: _Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def retry_window(setting: str, value: object) -> str:
    """Return the text of a window as it is stored: ``Mon-Fri 22:00-06:00 Europe/Berlin``. Raises SettingError.

    Weekdays may be left out: then it is every day. A range that ends before it begins ends on the next day. Without a zone it is UTC. Of a cron
    expression, the window has the minutes that match; it is stored in numbers, which are read without croniter: Spark's executors need not have it.
    """
    ranges, crons, zone = _parse(setting, value)
    _window(setting, value, ranges, crons, zone)
    ordered = sorted(ranges, key=lambda part: (sorted(part[0]), part[1:]))
    texts = [f"{_days_text(days)}{_clock(start)}-{_clock(end)}" for days, start, end in ordered]
    return f"{'; '.join(texts + sorted(map(_cron_text, crons)))} {zone}"


@lru_cache(maxsize=64)
def window_of(text: str) -> RetryWindow:
    """Return the window that a text means. Raises SettingError."""
    return _window("retry_window", text, *_parse("retry_window", text))


_Range = tuple[frozenset[int], int, int]
"""Weekdays (0 is Monday), and minutes of a day: the beginning, and the end."""
_Cron = tuple[frozenset[int] | None, ...]
"""The numbers of each field; None: all."""


def _parse(setting: str, value: object) -> tuple[list[_Range], list[_Cron], str]:
    if not isinstance(value, str):
        raise SettingError(setting, value, _ALLOWED)
    ranges, crons, zones = list[_Range](), list[_Cron](), list[str]()
    for text in value.split(";"):
        found = _PART.fullmatch(text.strip()) or _CRON.fullmatch(text.strip())
        if found is None or zones:  # the zone stands at the end, once
            raise SettingError(setting, value, _ALLOWED)
        if found.re is _CRON:
            crons.append(_cron(setting, value, " ".join(found["cron"].split())))
        else:
            ranges.append(_range(setting, value, found))
        zones += [found["zone"]] if found["zone"] else []
    return ranges, crons, zones[0] if zones else "UTC"


def _range(setting: str, value: str, found: re.Match[str]) -> _Range:
    start, end = (_minutes(setting, value, found[name]) for name in ("start", "end"))
    if start in {end, _DAY_MINUTES}:
        raise SettingError(setting, value, "a range of times that begins before 24:00 and does not end when it begins; a whole day is 00:00-24:00")
    return _days(found["days"]), start, end


def _cron(setting: str, value: str, text: str) -> _Cron:
    plain = tuple(map(_numbers, text.split(), _ALLOWED_NUMBERS))
    if frozenset() not in plain:
        return plain
    from croniter import croniter

    try:
        expanded = croniter.expand(text)[0]
    except ValueError as error:  # all of croniter's are
        raise SettingError(setting, value, f"a cron expression of minute, hour, day, month and weekday ({error})") from error
    found = (None if numbers == ["*"] else frozenset(map(int, numbers)) for numbers in expanded)
    return tuple(numbers if read == frozenset() else read for read, numbers in zip(plain, found, strict=True))


def _numbers(text: str, allowed: frozenset[int]) -> frozenset[int] | None:
    """Return the numbers of a field as it is stored; None for all; an empty set for a field that is written in another way."""
    if text == "*":
        return None
    ends = [(int(part[:2].strip("-")), int(part[-2:].strip("-"))) for part in text.split(",")] if _NUMBERS.fullmatch(text) else []
    rows = [range(first, last + 1) for first, last in ends]
    numbers = frozenset(number for row in rows for number in row)
    return numbers if all(rows) and numbers <= allowed else frozenset()


def _cron_text(fields: _Cron) -> str:
    return " ".join("*" if numbers is None else _listed(numbers, range(60)) for numbers in fields)


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


def _window(setting: str, value: object, ranges: Iterable[_Range], crons: Iterable[_Cron], zone: str) -> RetryWindow:
    window = RetryWindow((*_parts_of(ranges), *map(_part_of, crons)), time_zone(setting, zone))
    if not any(window.of(_FIRST + number * _ONE_DAY) for number in range(_DATES)):
        raise SettingError(setting, value, "days that a month has")
    if all(window.of(_FIRST + number * _ONE_DAY) == [(0, _DAY_MINUTES)] for number in range(_DATES)):
        raise SettingError(setting, value, "times of which some are left out; without a window (None) retries fall due at any time")
    return window


def _parts_of(ranges: Iterable[_Range]) -> Iterator[_Part]:
    """Yield the times of each day; a range that ends on the next day is cut in two."""
    for days, start, end in ranges:
        yield _Part([(start, end if end > start else _DAY_MINUTES)], days)
        if end <= start:
            yield _Part([(0, end)] if end else [], frozenset((day + 1) % 7 for day in days))


def _part_of(fields: _Cron) -> _Part:
    minutes, hours, dates, months, weekdays = fields
    spans = _joined((hour * 60 + minute, hour * 60 + minute + 1) for hour in hours or range(24) for minute in minutes or range(60))
    return _Part(spans, None if weekdays is None else frozenset((day - 1) % 7 for day in weekdays), dates, months)


def _days_text(days: frozenset[int]) -> str:
    """Return weekdays; nothing for all."""
    return "" if len(days) == len(_DAYS) else f"{_listed(days, _DAYS)} "


def _listed(numbers: Iterable[int], names: Sequence[object]) -> str:
    """Return numbers by their names, three or more in a row with a hyphen."""
    rows = list[list[int]]()
    for number in sorted(numbers):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    texts = (f"{names[row[0]]}{'-' if len(row) > 2 else ','}{names[row[-1]]}" if len(row) > 1 else f"{names[row[0]]}" for row in rows)  # noqa: PLR2004
    return ",".join(texts)


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
        return EPOCH + (_utc(at) - EPOCH) // self.every * self.every
