"""Durations as people write and read them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.values.clock import in_words, is_bare_number, read_duration, show_duration


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0", timedelta(0)),
        ("90", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        ("5000ms", timedelta(seconds=5)),
        ("30m", timedelta(minutes=30)),
        ("30 min", timedelta(minutes=30)),
        ("1h30m", timedelta(minutes=90)),
        ("1 h 30 min", timedelta(minutes=90)),
        ("1.5H", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("PT30M", timedelta(minutes=30)),
        ("pt1h30m", timedelta(minutes=90)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("P2W", timedelta(weeks=2)),
        ("P1D", timedelta(days=1)),
        ("PT1,5H", timedelta(minutes=90)),
        ("PT16.48M", timedelta(minutes=16.48)),  # python-pendulum/pendulum#534, and #833 for those below
    ],
)
def test_a_text_is_a_duration(text: str, span: timedelta) -> None:
    assert read_duration(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "-5s",
        "5 x",
        "h",
        "1e3",
        "1,5h",
        "P",
        "PT",
        "PT12M3M1M",
        "P1D2D",
        "PT4294967297M",
        "P1M",
        "P1Y",
        "30 M5",
        "inf",
        "nan",
        "٣m",
        "9" * 40 + "d",
        "999999999999d",
        "P1DT",
        "PT9999999999999999H",
        "P-1D",
        "PT5",
        "P1Y2D",
    ],
)
def test_a_text_is_no_duration(text: str) -> None:
    assert read_duration(text) is None


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "0"),
        (timedelta(milliseconds=1), "0.001 s"),
        (timedelta(seconds=4.9), "4.9 s"),
        (timedelta(minutes=90), "1 h 30 min"),
        (timedelta(days=2, seconds=1), "2 d 1 s"),
        (-timedelta(minutes=1), "-1 min"),
    ],
)
def test_a_duration_is_shown_in_words(span: timedelta, text: str) -> None:
    assert show_duration(span) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_what_is_shown_can_be_read(span: timedelta) -> None:
    assert read_duration(show_duration(span)) == span


def test_a_bare_number_has_no_unit() -> None:
    assert is_bare_number("5000")
    assert not is_bare_number("5000ms")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(minutes=30), "30 minutes"),
        (timedelta(hours=1), "hour"),
        (timedelta(hours=1, minutes=30), "1 hour 30 minutes"),
        (timedelta(days=9), "1 week 2 days"),
        (timedelta(seconds=1.5), "1.5 s"),
    ],
)
def test_a_duration_is_said_in_whole_words(span: timedelta, text: str) -> None:
    assert in_words(span) == text
