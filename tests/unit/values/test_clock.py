"""Dates and instants as text: the same ones come back, of all years that Arrow has."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.values.clock import days_of, micros_of, text_of_days, text_of_micros

DAYS, MICROS = 1 << 31, 1 << 63


@given(st.integers(-DAYS, DAYS - 1))
def test_a_date_comes_back(days: int) -> None:
    assert days_of(text_of_days(days)) == days


@given(st.integers(-MICROS, MICROS - 1))
def test_an_instant_comes_back(micros: int) -> None:
    assert micros_of(text_of_micros(micros), zoned=False) == micros
    assert micros_of(text_of_micros(micros) + "Z", zoned=True) == micros


@given(st.dates())
def test_a_date_of_python_is_written_as_python_does(day: date) -> None:
    assert text_of_days((day - date(1970, 1, 1)).days) == day.isoformat()


@pytest.mark.parametrize(
    ("days", "text"),
    [(19_675_925, "+55840-11-08"), (-735_525, "-0044-03-15"), (-719_528, "0000-01-01"), (-719_529, "-0001-12-31"), (2_932_897, "+10000-01-01")],
)
def test_years_that_are_not_of_four_digits_have_a_sign(days: int, text: str) -> None:
    assert text_of_days(days) == text
