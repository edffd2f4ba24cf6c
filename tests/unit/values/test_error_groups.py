"""Error groups: names of columns tell failures apart; values, numbers, paths and names of files do not."""

from __future__ import annotations

import time

import pytest

from airflow_poison.values.failures import Failure, FailureKind, fingerprint, origin


def group(text: str, type_: str = "ValueError", trace: str = "") -> str:
    return fingerprint(Failure(FailureKind.EXCEPTION, type_, text, trace))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("null l_orderkey", "null l_shipmode"),
        ("NOT NULL constraint violated for column: l_orderkey.", "NOT NULL constraint violated for column: l_shipmode."),
        ("column 'l_orderkey' is null", "column 'l_shipmode' is null"),
        ("field \"fare\": 'x' is no number", "field \"tax\": 'x' is no number"),
        ("[CAST] `fare` cannot be cast", "[CAST] `tax` cannot be cast"),
        ("$: 'carrier' is a required property", "$: 'flight' is a required property"),
        ("$.fare: 'x' is not of type 'number'", "$.tax: 'x' is not of type 'number'"),
        ("no fare", "no tax"),
    ],
)
def test_names_of_columns_tell_groups_apart(one: str, other: str) -> None:
    assert group(one) != group(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/lake/in/a.parquet is no Parquet file", "/lake/in/2026/b-17.parquet is no Parquet file"),
        ("s3://bucket/in/a.csv, line 3: two cells", "s3://bucket/in/b.csv, line 17: two cells"),
        ("alpha.csv cannot be read", "beta.csv cannot be read"),
        ("C:\\in\\a cannot be read", "C:\\in\\b cannot be read"),
        ("column 'fare': 'n/a' is no number", "column 'fare': '1,5x' is no number"),
        ("no customer 17", "no customer 18"),
        ("can't find 'a', won't try", "can't find 'b', won't try"),
        ("mail to a@example.org bounced", "mail to b.c@example.com bounced"),
        ("2013-01-31T05:00:00.123 is too late", "2014-02-01T06:00:00 is too late"),
        ("id 0123456789abcdef is gone", "id fedcba9876543210 is gone"),
        ("Max retries exceeded with url: /orders/17?x=1", "Max retries exceeded with url: /orders/abc"),
    ],
)
def test_data_does_not(one: str, other: str) -> None:
    assert group(one) == group(other)


def test_the_text_of_a_key_error_is_a_name() -> None:
    assert group("'carrier'", "KeyError") != group("'delay'", "KeyError")
    assert group("'carrier'", "LookupError") == group("'delay'", "LookupError")
    assert group("'order_17'", "KeyError") == group("'order_18'", "KeyError")
    assert group("'carrier of 3'", "KeyError") == group("'John Smith'", "KeyError")


def test_the_place_tells_groups_apart_and_an_outage_reads_it_alone() -> None:
    here, there = '  File "land.py", line 1, in land', '  File "land.py", line 2, in land'
    assert group("bad", trace=here) != group("bad", trace=there)
    assert origin(Failure(FailureKind.EXCEPTION, "E", "no fare", here)) == origin(Failure(FailureKind.EXCEPTION, "E", "no tax", here))


@pytest.mark.parametrize(
    "text", ["a" * 4_096, "'" * 4_096, "a." * 2_048, "/" * 4_096, "a@" * 2_048, "\ud800", "column " * 585, "1" * 4_096, "'a" * 2_048]
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    assert len(group(text)) == 12
    assert time.process_time() - began < 0.5
