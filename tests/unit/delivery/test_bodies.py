"""Bodies become columns: with msgspec and without it the same, and what does not fit spoils nobody else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.core.ddl import parse_ddl
from airflow_poison.core.delivery import bodies as module
from airflow_poison.core.delivery.bodies import columns_of


@pytest.fixture(params=["msgspec", "json"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "json":
        monkeypatch.setattr(module, "_typed_decoder", lambda _schema: None)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("kind", "given_", "value"),
    [
        ("int", 7, 7),
        ("int", 7.0, 7),
        ("long", 2**62, 2**62),
        ("double", 1, 1.0),
        ("boolean", True, True),
        ("string", "é", "é"),
        ("binary", "YWI=", b"ab"),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("timestamp", "2013-01-31T05:00:00+02:00", datetime(2013, 1, 31, 3, tzinfo=UTC)),
        ("timestamp", "2013-01-31 05:00:00.25", datetime(2013, 1, 31, 5, 0, 0, 250_000, tzinfo=UTC)),
        ("timestamp_ntz", "2013-01-31T05:00:00", datetime(2013, 1, 31, 5)),  # noqa: DTZ001  (that is what it is)
        ("decimal(5,2)", 123.45, Decimal("123.45")),
        ("decimal(5,2)", "1.5", Decimal("1.50")),
        ("array<int>", [1, None], [1, None]),
        ("map<string,int>", {"a": 1}, [("a", 1)]),
        ("map<int,string>", {"1": "a"}, [(1, "a")]),
        ("struct<x: date, y: int>", {"x": "2013-01-31", "z": 1}, {"x": date(2013, 1, 31), "y": None}),
        ("array<struct<m: map<string,int>>>", [{"m": {"a": 1}}], [{"m": [("a", 1)]}]),
        ("void", None, None),
        ("int", None, None),
    ],
)
def test_a_value_that_fits(kind: str, given_: Any, value: Any) -> None:
    table, failures = columns_of([json.dumps({"c": given_, "other": [1]}).encode(), b'{"c": null}', b"{}"], parse_ddl(f"c {kind}"))
    assert failures == {}
    assert table["c"].to_pylist() == [value, None, None]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("int", b'{"c": "x"}', """Column 'c' of the body is "x"; expected is int, not a text."""),
        ("int", b'{"c": 1.5}', "expected is int, which has no fraction"),
        ("int", b'{"c": true}', "Column 'c' of the body is true; expected is int, not a boolean."),
        ("byte", b'{"c": 128}', "Column 'c' of the body is 128; expected is byte, from -128 to 127."),
        ("string", b'{"c": 1}', "expected is string, not a number"),
        ("string", b'{"c": "\\ud800"}', "surrogates not allowed"),
        ("boolean", b'{"c": 1}', "expected is boolean, not a number"),
        ("date", b'{"c": "31.1.2013"}', "expected is a date such as '2013-01-31'"),
        ("date", b'{"c": "2013-02-31"}', "day is out of range for month"),
        ("timestamp", b'{"c": "yesterday"}', "expected is an instant such as"),
        ("timestamp_ntz", b'{"c": "2013-01-31T05:00:00Z"}', "expected is timestamp_ntz, which has no offset"),
        ("decimal(5,2)", b'{"c": 1.234}', "3 digits before the point and 2 behind it"),
        ("decimal(5,2)", b'{"c": 1234}', "3 digits before the point and 2 behind it"),
        ("decimal(5,2)", b'{"c": "NaN"}', "expected is decimal(5,2)"),
        ("binary", b'{"c": "?"}', "Column 'c' of the body is \"?\""),
        ("array<int>", b'{"c": [1, "x"]}', "expected is int, not a text"),
        ("array<int>", b'{"c": 1}', "expected is array<int>, not a number"),
        ("struct<x: int>", b'{"c": []}', "expected is struct<x: int>, not an array"),
        ("void", b'{"c": 1}', "expected is"),
        ("int NOT NULL", b"{}", "Column 'c' of the body is missing or null; it is NOT NULL."),
        ("int", b"[1]", "The body is an array; expected is a JSON object with the columns c."),
        ("int", b"{", "The body is no JSON"),
        ("int", b'{"c": NaN}', "NaN is no JSON"),
        ("int", b"", "The body is no JSON"),
        ("int", None, "The body is no JSON"),
        ("int", b'{"c": ' + b"[" * 100_000, "The body is no JSON"),
    ],
)
def test_a_value_that_does_not_fit_names_column_and_value(kind: str, body: bytes | None, text: str) -> None:
    good = b'{"c": null}' if "NOT" not in kind else b'{"c": 1}'
    table, failures = columns_of([good, body, good], parse_ddl(f"c {kind}"))
    assert list(failures) == [1]
    assert text in str(failures[1])
    assert table.num_rows == 3
    assert table["c"][1].as_py() is None


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.just("2013-01-31"), st.lists(st.integers())
)
KINDS = st.sampled_from(["int", "long", "double", "boolean", "string", "date", "decimal(4,1)", "array<long>", "binary", "timestamp"])


@given(KINDS, st.lists(CELLS, max_size=20))
def test_both_decoders_say_the_same(kind: str, cells: list[Any]) -> None:
    schema = parse_ddl(f"c {kind}")
    bodies: list[bytes | None] = [json.dumps({"c": cell}).encode() for cell in cells]
    fast, fast_failures = columns_of(bodies, schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_typed_decoder", lambda _schema: None)
        slow, slow_failures = columns_of(bodies, schema)
    assert fast.to_pylist() == slow.to_pylist()
    assert {place: str(error) for place, error in fast_failures.items()} == {place: str(error) for place, error in slow_failures.items()}
