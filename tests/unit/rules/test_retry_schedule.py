"""Retry windows and cycles against a reckoning that looks at each minute of two years on a wall clock, in zones with different rules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pendulum
import pytest
from croniter import croniter

from airflow_poison import Msmq4
from airflow_poison.rules.decisions import Park
from airflow_poison.rules.policy import FIRST
from airflow_poison.rules.retry_schedule import RetrySchedule, retry_window, window_of
from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Script, Scripted
from airflow_poison.values.errors import SettingError
from tests.unit.rules.entries import message

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZONES = ("UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca")
"""Without changes; at 2 and 3 o'clock; at midnight, so that days begin at 1; by half an hour; around Ramadan."""
START = datetime(2025, 1, 1, tzinfo=UTC)
MINUTES = 2 * 365 * 24 * 60
MONDAY = pendulum.datetime(2024, 12, 30).naive()
DAYS_SHOWN = 2 * 365 + 4
WEEK = 7 * 24 * 60
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@cache
def readings(zone: str) -> NDArray[np.int64]:
    """Return what a wall clock shows in each minute, in minutes since the Monday before the start, and one minute more in front."""
    found = np.empty(MINUTES + 60, np.int64)
    for half in range(-2, MINUTES // 30):  # clocks change at full and half hours
        shown = pendulum.instance(START + timedelta(minutes=30 * half)).in_timezone(zone).naive()
        first = 30 * half + 60
        found[first : first + 30] = int((shown - MONDAY).total_seconds() // 60) + np.arange(30)
    return found[59:]


@dataclass(frozen=True)
class Drawn:
    """A window as text, and whether it has each minute that a wall clock shows since the Monday before the start."""

    text: str
    zone: str
    has: NDArray[np.bool_]

    @cached_property
    def opens(self) -> NDArray[np.int64]:
        """Return the minutes at whose beginning the window opens."""
        shown = readings(self.zone)
        has = self.has[shown]
        opens = has[1:] & ~has[:-1]
        for minute in np.flatnonzero(np.diff(shown) > 1):  # clocks are set forward: a beginning in between counts
            left_out = np.arange(shown[minute] + 1, shown[minute + 1])
            opens[minute] |= not has[minute] and bool((self.has[left_out] & ~self.has[left_out - 1]).any())
        return np.flatnonzero(opens)

    def opened(self, minute: int) -> int | None:
        """Return the minute itself, or the next one at which the window opens; None: after these years."""
        if self.has[readings(self.zone)[minute + 1]]:
            return minute
        opens = self.opens
        following = int(np.searchsorted(opens, minute))
        return int(opens[following]) if following < len(opens) else None


def drawn(random: Random) -> Drawn:
    """Return a window: one to three ranges, often around the hours at which clocks are set, or cron expressions."""
    zone, has, parts, crons = random.choice(ZONES), np.zeros(WEEK, bool), list[str](), np.zeros(DAYS_SHOWN * 1440, bool)
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.4:
            text, found = cron(random)
            parts.append(text)
            crons |= found
            continue
        days = random.sample(range(7), random.randint(1, 7))
        hours = random.choice(((0, 4), (0, 23)))
        start = random.randint(*hours) * 60 + random.choice((0, 15, 30, 59, random.randrange(60)))
        end = random.choice((start + random.randint(1, 90), random.randint(0, 1440)))
        end = min(end, 1440)
        if start == end:
            end = 1440
        for day in days:
            length = end - start if end > start else end + 1440 - start
            has[(day * 1440 + start + np.arange(length)) % WEEK] = True
        told = "" if len(days) == 7 else ",".join(random.choice((DAYS[day], DAYS[day].lower())) for day in days) + " "
        parts.append(f"{told}{start // 60}:{start % 60:02}-{end // 60:02}:{end % 60:02}")
    both = np.resize(has, crons.size) | crons
    if both.all() or not both.any():
        return drawn(random)
    return Drawn("; ".join(parts) + f" {zone}", zone, both)


def cron_field(random: Random, least: int, most: int, names: tuple[str, ...] = ()) -> tuple[str, set[int] | None]:
    """Return a field of a cron expression, and its numbers; None: all."""
    match random.choice(("all", "all", "numbers", "range", "step")):
        case "numbers":
            found = random.sample(range(least, most + 1), random.randint(1, 4))
            return ",".join(random.choice((str(number), names[number - least])) if names else str(number) for number in found), set(found)
        case "range":
            first = random.randint(least, most - 1)
            last = random.randint(first + 1, most)
            return f"{first}-{last}", set(range(first, last + 1))
        case "step":
            step = random.randint(2, 9)
            return f"*/{step}", set(range(least, most + 1, step))
        case _:
            return "*", None


def cron(random: Random) -> tuple[str, NDArray[np.bool_]]:
    """Return a cron expression, and whether each minute that a wall clock shows matches it."""
    hour: tuple[str, set[int] | None] = random.choice((("2", {2}), ("0-3", {0, 1, 2, 3}), cron_field(random, 0, 23)))
    days = cron_field(random, 1, 31), cron_field(random, 1, 12, MONTHS), cron_field(random, 0, 6, ("SUN", *(day.upper() for day in DAYS[:6])))
    fields = cron_field(random, 0, 59), hour, *days
    minutes, hours, dates, months, weekdays = (numbers for _, numbers in fields)
    matching = []
    for number in range(DAYS_SHOWN):
        day = MONDAY + timedelta(days=number)
        either = [day.day in dates] if dates is not None else []
        either += [day.isoweekday() % 7 in weekdays] if weekdays is not None else []
        matching.append((not either or any(either)) and (months is None or day.month in months))
    times = [(hours is None or hour in hours) and (minutes is None or minute in minutes) for hour in range(24) for minute in range(60)]
    return " ".join(text for text, _ in fields), np.outer(matching, times).ravel()


MOST = 3_000


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def check_window(random: Random, window: Drawn) -> None:
    """Each opening of the two years, and of some weeks where there are many, is found, and random instants fall due when they should."""
    stored = retry_window("retry_window", window.text)
    assert retry_window("retry_window", stored) == stored
    found = window_of(stored)
    first = random.choice((0, random.randrange(MINUTES))) if len(window.opens) > MOST else 0
    expected = [at(int(minute)) for minute in window.opens if minute >= first][:MOST]
    opens, instant = list[datetime](), at(first) - timedelta(microseconds=1)
    while len(opens) < MOST and (instant := found.opens_after(instant)) < at(MINUTES):
        opens.append(instant)
    assert opens == expected, window.text
    policy = Msmq4(retry_cycle_delay=timedelta(minutes=random.randint(0, 3_000)), retry_window=window.text)
    for _ in range(50):
        minute = random.randrange(MINUTES - 5_000)
        after = minute + policy.retry_cycle_delay // timedelta(minutes=1)
        decision = policy.open(FIRST).before(message(abort_count=6), at(minute))
        assert isinstance(decision, Park)
        due = window.opened(after)
        assert due is None or decision.due_at == at(due), (window.text, minute)


def drawn_runs(random: Random, window: Drawn | None) -> tuple[int, int, set[int]]:
    """Return a delay, the first minute of two weeks, and those at which runs are due: multiples of the delay, and when the window opens."""
    every = random.choice((random.randint(1, 120), random.randint(1, 20_000)))
    first = random.randrange(MINUTES - 20_160)
    since_1970 = int((START - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(minutes=1))
    runs = {minute for minute in range(first, first + 20_160) if (minute + since_1970) % every == 0}
    if window is not None:
        runs |= {int(minute) for minute in window.opens if first <= minute < first + 20_160}
    return every, first, runs


def check_schedule(random: Random, window: Drawn | None) -> None:
    """The runs of two weeks are found, and what is due waits one delay at most."""
    every, first, runs = drawn_runs(random, window)
    schedule = RetrySchedule(timedelta(minutes=every), None if window is None else window_of(window.text))
    found, instant = list[datetime](), at(first) - timedelta(microseconds=1)
    while (instant := schedule.after(instant)) < at(first + 20_160):
        found.append(instant)
    assert found == [at(minute) for minute in sorted(runs)]
    assert all(later - earlier <= schedule.every for earlier, later in pairwise(found))
    for earlier, later in pairwise(found[:200]):
        assert schedule.before(later) == schedule.until(later - timedelta(microseconds=1)) == earlier
        assert schedule.until(later) == later
    assert schedule.count(at(first), at(first + 20_159)) == len([minute for minute in runs if minute > first])


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 25))])
def test_windows_and_cycles_are_those_that_a_wall_clock_shows(seed: int) -> None:
    random = Random(seed)
    window = drawn(random)
    check_window(random, window)
    check_schedule(random, random.choice((window, None)))


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
def test_a_thousand_windows_and_cycles_are_those_that_a_wall_clock_shows() -> None:
    for seed in range(1_000):
        random = Random(f"long {seed}")
        window = drawn(random)
        check_window(random, window)
        check_schedule(random, random.choice((window, None)))


BERLIN = "Europe/Berlin"
SPRING, AUTUMN = pendulum.datetime(2026, 3, 29, tz=BERLIN), pendulum.datetime(2026, 10, 25, tz=BERLIN)


@pytest.mark.parametrize(
    ("text", "after", "opens"),
    [
        ("02:30-04:00 Europe/Berlin", SPRING, "2026-03-29T03:00+02:00"),  # begins at a time that does not exist
        ("02:15-02:45 Europe/Berlin", SPRING, "2026-03-29T03:00+02:00"),  # none of its times exists
        ("03:00-04:00 Europe/Berlin", SPRING, "2026-03-29T03:00+02:00"),
        ("01:30-02:30 Europe/Berlin", SPRING, "2026-03-29T01:30+01:00"),
        ("02:15-02:45 Europe/Berlin", AUTUMN, "2026-10-25T02:15+02:00"),
        ("02:15-02:45 Europe/Berlin", AUTUMN.add(hours=3), "2026-10-25T02:15+01:00"),  # 02:00 for the second time: open again
        ("01:00-02:30 Europe/Berlin", AUTUMN.add(hours=1), "2026-10-25T02:00+01:00"),
        ("22:00-06:00 Europe/Berlin", AUTUMN, "2026-10-25T22:00+01:00"),
        ("30 2 * * * Europe/Berlin", SPRING, "2026-03-29T03:00+02:00"),
        ("* 1-2 * * * Europe/Berlin", SPRING.add(hours=2), "2026-03-30T01:00+02:00"),
        ("15-45 2 * * * Europe/Berlin", AUTUMN.add(hours=3), "2026-10-25T02:15+01:00"),
        ("*/30 * * * * Europe/Berlin", AUTUMN.add(hours=2, minutes=45), "2026-10-25T02:00+01:00"),
        ("0 0 29 2 * Europe/Berlin", SPRING, "2028-02-29T00:00+01:00"),
    ],
)
def test_a_window_opens_on_the_days_on_which_clocks_are_set(text: str, after: datetime, opens: str) -> None:
    assert window_of(text).opens_after(after) == datetime.fromisoformat(opens)


@pytest.mark.parametrize(
    ("text", "at", "due"),
    [
        # attune-io/attune#798: whose day is the morning behind a night?
        ("Mon-Fri 22:00-06:00 America/New_York", "2026-03-07T01:00-05:00", "2026-03-07T01:00-05:00"),  # a Saturday: Friday's night
        ("Mon-Fri 22:00-06:00 America/New_York", "2026-03-09T01:00-04:00", "2026-03-09T22:00-04:00"),  # a Monday: Sunday's night
        ("02:00-03:00 America/New_York", "2026-03-08T00:00-05:00", "2026-03-08T03:00-04:00"),  # argoproj/argo-workflows#8137, rundeck/rundeck#6879
        ("01:00-23:00 America/Santiago", "2026-09-05T23:30-04:00", "2026-09-06T01:00-03:00"),  # Hexagon/croner#132: no midnight in Chile
        ("00:00-00:30 America/Santiago", "2026-09-05T23:30-04:00", "2026-09-06T01:00-03:00"),
        ("21:00-22:00 America/New_York", "2026-11-01T00:00-04:00", "2026-11-01T21:00-05:00"),  # scylladb/scylla-manager#3085: 22 h after 00:00
        ("08:00-09:00 Europe/Rome", "2025-10-23T07:30+02:00", "2025-10-23T08:00+02:00"),  # louislam/uptime-kuma#6233: in summer, too
        ("01:00-02:00 Europe/London", "2025-10-26T00:59+01:00", "2025-10-26T01:00+01:00"),  # node-red-contrib-cron-plus#108: an hour was lost
        ("01:00-02:00 Europe/London", "2025-10-26T01:30+00:00", "2025-10-26T01:30+00:00"),
        ("Sat,Sun 05:00-19:00 UTC", "2025-10-20T08:49+02:00", "2025-10-25T05:00+00:00"),  # googlecloudrobotics/core#575: days that overlap
        ("Mon 23:00-02:00", "2025-12-09T01:00+00:00", "2025-12-09T01:00+00:00"),  # syofyanzuhad/uptime-kita#11: Monday's night, on Tuesday
        ("30 2 * * * America/New_York", "2021-03-14T00:00-05:00", "2021-03-14T03:00-04:00"),  # kelektiv/node-cron#563: left out
        ("*/30 * * * * Australia/Melbourne", "2024-04-07T02:31+11:00", "2024-04-07T02:00+10:00"),  # kelektiv/node-cron#881: an hour was lost
        ("0 * * * * America/Los_Angeles", "2026-11-01T01:01-07:00", "2026-11-01T01:00-08:00"),  # celery/celery#10107: the same
        ("0 12 * * 1 Europe/Amsterdam", "2013-10-28T00:00+01:00", "2013-10-28T12:00+01:00"),  # celery/celery#1604: at 11 and at 12
        ("0 20 * * * Europe/Paris", "2022-10-30T20:01+01:00", "2022-10-31T20:00+01:00"),  # pallets-eco/croniter#25: at 21
        ("* * * */3 * America/New_York", "2015-02-15T00:00-05:00", "2015-04-01T00:00-04:00"),  # cronie-crond/cronie#217: an hour late
        ("0 12 * * 0 Europe/Berlin", "2022-03-24T12:00+01:00", "2022-03-27T12:00+02:00"),  # cronie-crond/cronie#218: a week late
        ("0 0 13 * 5", "2026-01-10T00:00+00:00", "2026-01-13T00:00+00:00"),  # josiahcarlson/parse-crontab#49: a 13th that is no Friday
    ],
)
def test_windows_of_public_reports_open_as_their_users_expect(text: str, at: str, due: str) -> None:
    assert window_of(text).opened(datetime.fromisoformat(at)) == datetime.fromisoformat(due)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "Mon-Fri 22:00-06:00 Europe/Berlin"),
        ("22:00-06:00", "22:00-06:00 UTC"),
        (" monday - FRIDAY 22:00 - 6:00  Europe/Berlin ", "Mon-Fri 22:00-06:00 Europe/Berlin"),
        ("sun,sat 0:00-24:00; mon-fri 22:00-6:00 Asia/Kolkata", "Mon-Fri 22:00-06:00; Sat,Sun 00:00-24:00 Asia/Kolkata"),
        ("Fri-Mon 1:00-2:00", "Mon,Fri-Sun 01:00-02:00 UTC"),
        ("* 22-23,0-5 * * MON-FRI Europe/Berlin", "* 0-5,22,23 * * 1-5 Europe/Berlin"),
        ("*/15  22-5 1-1 jan,JUL sun-mon", "0,15,30,45 0-5,22,23 1 1,7 0,1 UTC"),
        ("* 0-3 * * sat; * 0-5 * * 7; Sat 22:00-24:00 Asia/Kolkata", "Sat 22:00-24:00; * 0-3 * * 6; * 0-5 * * 0 Asia/Kolkata"),
    ],
)
def test_a_window_is_stored_in_one_form(text: str, stored: str) -> None:
    assert Msmq4(retry_window=text).retry_window == stored
    assert retry_window("retry_window", stored) == stored
    assert Msmq4.from_dict(Msmq4(retry_window=text).to_dict()) == Msmq4(retry_window=stored)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "weekdays and times"),
        ("at night", "weekdays and times"),
        ("Mon-Fri", "weekdays and times"),
        ("Mon-Fri 22:00-06:00 UTC; Sat 01:00-02:00 UTC", "weekdays and times"),
        ("22:00-25:00", "instead of 25:00"),
        ("22:60-23:00", "instead of 22:60"),
        ("24:00-06:00", "begins before 24:00"),
        ("06:00-06:00", "a whole day is 00:00-24:00"),
        ("00:00-24:00", "without a window"),
        ("Mon-Thu 00:00-24:00; Fri-Sun 00:00-24:00", "without a window"),
        ("22:00-06:00 Europe/Bern", "the name of a time zone"),
        ("* 22-23 * * 1-5 Europe/Bern", "the name of a time zone"),
        ("* 24 * * *", "a cron expression of minute"),
        ("60 * * * *", "a cron expression of minute"),
        ("*/0 * * * *", "a cron expression of minute"),
        ("* * * mon *", "a cron expression of minute"),
        ("* * * *", "weekdays and times, or a cron expression"),
        ("* * * * * 30", "weekdays and times, or a cron expression"),
        ("* * L * *", "weekdays and times, or a cron expression"),
        ("* * 15W * *", "weekdays and times, or a cron expression"),
        ("* * * * 5#2", "weekdays and times, or a cron expression"),
        ("R * * * *", "weekdays and times, or a cron expression"),  # another minute each time that it is read
        ("@daily", "weekdays and times, or a cron expression"),
        ("* * 30,31 2 *", "days that a month has"),
        ("* * * * *", "without a window"),
        ("* 0-11 * * *; 12:00-24:00", "without a window"),
        ("22:00-06:00 Europe", "the name of a time zone"),
    ],
)
def test_a_window_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as refused:
        Msmq4(retry_window=text)
    assert str(refused.value).startswith("retry_window='")


def test_a_window_that_opens_at_the_instant_alone_at_which_clocks_are_set_has_it() -> None:
    assert window_of("02:15-02:45 Europe/Berlin").opened(SPRING.add(hours=2)) == SPRING.add(hours=2)


def test_the_minutes_of_a_cron_expression_are_those_that_croniter_matches() -> None:
    random = Random("croniter")
    for _ in range(60):
        text, _ = cron(random)
        window = window_of(f"{text} {BERLIN}")
        for instant in (at(random.randrange(MINUTES)) for _ in range(20)):
            shown = pendulum.instance(instant).in_timezone(BERLIN).naive()
            assert (window.opened(instant) == instant) == croniter.match(text, shown), (text, shown)


def test_a_stored_cron_expression_is_read_without_croniter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's executors need not have it."""
    stored = Msmq4(retry_window="*/20 22-5 * feb-nov MON-FRI Europe/Berlin").retry_window
    monkeypatch.setitem(sys.modules, "croniter", None)
    assert stored is not None
    assert window_of(stored).opened(SPRING) == SPRING.add(days=1)
    assert Msmq4(retry_window=stored).retry_window == stored


def test_a_message_that_would_be_due_by_day_waits_until_the_window_opens() -> None:
    played = replay(
        Msmq4(retry_window="22:00-06:00 Europe/Berlin", receive_error_handling="Move"), Script(Scripted("m", "rb*6 ok", timedelta(hours=9)))
    )
    assert played.deliveries[-1].at == timedelta(hours=21)  # the clock begins on 2013-01-01T00:00Z


def test_a_message_that_another_reader_holds_while_the_window_closes_waits_until_it_opens_again() -> None:
    policy = Msmq4(receive_retry_count=0, retry_cycle_delay=timedelta(0), retry_window="00:00-00:01", receive_error_handling="Move")
    held = Scripted("m", "rb ok", timedelta(seconds=58), locked=30)  # 30 tries, 100 ms apart: it is moved at 00:01:01
    assert replay(policy, Script(held)).deliveries[-1].at == timedelta(days=1)


def test_an_instant_of_pendulum_is_one() -> None:
    receiver = Msmq4(retry_window="22:00-06:00").open()
    assert receiver.parked_until(pendulum.datetime(2026, 11, 27, 12, tz=BERLIN)) == datetime(2026, 11, 27, 22, tzinfo=UTC)
