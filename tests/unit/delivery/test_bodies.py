"""Bodies become columns: with msgspec and without it the same, and what does not fit spoils nobody else."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery import bodies as module
from airflow_poison.delivery.bodies import _naming_twice, _repeating, columns_as_written, columns_of
from airflow_poison.values.ddl import ddl_type, parse_ddl
from airflow_poison.values.message import Message
from tests.given.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        ("date", b'{"c": "+5881580-07-12"}', "32 bits of days do not reach it"),
        ("timestamp", b'{"c": "+294247-01-10T04:00:54.775808Z"}', "64 bits of microseconds do not reach it"),
        ("timestamp", b'{"c": "55840-11-08T22:15:23Z"}', "expected is an instant such as"),
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
        ("int", b'{"c": NaN}', "JSON has no NaN"),
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


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("ddl", "body", "text"),
    [
        ("c int", b'{"c": 1, "c": 2}', "The name 'c' of the body stands twice in one object."),
        ("c int", b'{"c": 1, "\\u0063": 2}', "The name 'c' of the body stands twice in one object."),
        ("c int, a string", b'{"c": 1, "a": "", "c"   : null}', "The name 'c' of the body stands twice in one object."),
        ("long_name_of_a_column int", b'{"long_name_of_a_column": 1,"long_name_of_a_column": 1}', "stands twice"),
        ("`\u00e9` int", '{"\u00e9": 1, "\\u00e9": 2}'.encode(), "The name '\u00e9' of the body stands twice in one object."),
        ("c struct<x: int>", b'{"c": {"x": 1, "y": 1, "x": 1}}', "The name 'x' of the body stands twice in one object."),
        ("c array<struct<x: int>>", b'{"c": [{"x": 1}, {"x": 1, "x": 1}]}', "The name 'x' of the body stands twice in one object."),
        ("c map<string, int>", b'{"c": {"x": 1, "x": 2}}', "The name 'x' of the body stands twice in one object."),
        ("c map<int, int>", b'{"c": {"1": 1, "1.0": 2}}', "two of its names are the same int"),
        ("c map<int, int>", b'{"c": {" 1": 1}}', "expected is int, not a text"),
        ("c struct<x: int NOT NULL>", b'{"c": {}}', """Column 'c' of the body is {}; 'x' in it is missing or null; it is NOT NULL."""),
        ("c struct<x: decimal(3,1) NOT NULL>", b'{"c": {"x": null}}', "it is NOT NULL"),
        ("c decimal(3,1) NOT NULL", b'{"c": null}', "it is NOT NULL"),
        ("c float", b'{"c": 1e39}', "expected is float, which has no number as large"),
        ("c double", b'{"c": 1e400}', "expected is double, which has no number as large"),
        ("c double", b'{"c": 1e99999999999999999999}', "expected is double, which has no number as large"),
        ("c decimal(38,28)", b'{"c": 1.23456789012345678901234567891}', "10 digits before the point and 28 behind it"),
        ("c decimal(9,2)", b'{"c": "1_000"}', "a number or a text that is one"),
        ("c timestamp", b'{"c": "2013-01-31T05:00:00.1234567Z"}', "with microseconds at most"),
        ("c binary", b'{"c": "YWJ="}', "expected is base64"),
        ("c int", b'{"c": 1, "other": "caf\xe9"}', "byte 22 is no UTF-8"),
        ("c int", b'{"c": 1, "other": NaN}', "JSON has no NaN"),
        ("c int", b'{"c": 1} {"c": 2}', "Extra data"),
        ("c int", b'{"c": 1, "other": ' + b"[" * 600 + b"]" * 600 + b"}", "nested more than 500 deep"),
        ("c int", '{"c": 1}'.encode("utf-16"), "is no UTF-8"),
        ("c int", b'{"c": ' + b"[" * 490 + b"]" * 490 + b"}", "Column 'c' of the body is an array; expected is int, not an array."),
    ],
)
def test_a_body_that_says_more_than_one_thing_or_too_much_is_refused(ddl: str, body: bytes, text: str) -> None:
    schema = parse_ddl(ddl)

    table, failures = columns_of([body], schema)

    assert text in str(failures[0])
    assert table.to_pylist() == [dict.fromkeys(schema.names)]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("ddl", "body", "value"),
    [
        ("c int", b'\xef\xbb\xbf{"c": 1}', 1),
        ("c int", b'{"c": 1e2}', 100),
        ("c int", b'{"c": 1, "other": 1, "other": 2}', 1),
        ("c int", b'{"c": 1, "other": ' + b"9" * 5_000 + b"}", 1),
        ("c int", b'{"c": 1, "other": "' + b"[" * 600 + b'"}', 1),
        ("c int", b'{"c": 1, "' + b"x" * 60_000 + b'": 1}', 1),
        ("c string", b'{"c": "the \\"c\\": of it"}', 'the "c": of it'),
        ("c array<struct<x: int>>", b'{"c": [{"x": 1}, {"x": 1}]}', [{"x": 1}, {"x": 1}]),
        ("c long", b'{"c": 9223372036854775807.0}', 2**63 - 1),
        ("c double", b'{"c": 1e-99999999999999999999}', 0.0),
        ("c decimal(38,20)", b'{"c": 123456789012345678.12345678901234567890}', Decimal("123456789012345678.12345678901234567890")),
        ("c decimal(5,2)", b'{"c": 1.5000}', Decimal("1.50")),
        ("c decimal(5,2)", b'{"c": "1E+2"}', Decimal(100)),
        ("c decimal(5,2)", b'{"c": 0e9}', Decimal(0)),
        ("c timestamp", b'{"c": "2013-01-31T05:00:00.12345600Z"}', datetime(2013, 1, 31, 5, 0, 0, 123456, UTC)),
        ("c map<date, boolean>", b'{"c": {"2013-01-31": true}}', [(date(2013, 1, 31), True)]),
        ("c map<boolean, decimal(3,1)>", b'{"c": {"true": 1.5, "false": null}}', [(True, Decimal("1.5")), (False, None)]),
        ("c struct<x: decimal(3,1), y: binary>", b'{"c": {"x": "1.5", "y": "YWI="}}', {"x": Decimal("1.5"), "y": b"ab"}),
    ],
)
def test_what_a_body_says_is_in_its_columns_to_the_last_digit(ddl: str, body: bytes, value: object) -> None:
    table, failures = columns_of([body], parse_ddl(ddl))

    assert failures == {}
    assert table["c"].to_pylist() == [value]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("kind", "text", "count"),
    [
        ("date", "+55840-11-08", 19_675_925),
        ("date", "+5881580-07-11", 2**31 - 1),
        ("date", "-5877641-06-23", -(2**31)),
        ("date", "-0044-03-15", -735_525),
        ("date", "0000-02-29", -719_469),
        ("timestamp", "0001-01-01T00:00:00+05:00", -62_135_614_800_000_000),
        ("timestamp", "9999-12-31T23:59:59.999999-05:00", 253_402_318_799_999_999),
        ("timestamp", "+55840-11-08T22:15:23.456789Z", 1_700_000_000_123_456_789),
        ("timestamp_ntz", "-0044-03-15 06:00:00.5", -63_549_338_399_500_000),
        ("timestamp", "+294247-01-10T04:00:54.775807Z", 2**63 - 1),
        ("timestamp", "-290308-12-21T19:59:05.224192Z", -(2**63)),
    ],
)
def test_dates_and_instants_have_years_that_python_does_not_have(kind: str, text: str, count: int) -> None:
    table, failures = columns_of([f'{{"c": "{text}", "d": {{"c": "{text}"}}}}'.encode(), b"{}"], parse_ddl(f"c {kind}, d struct<c: {kind}>"))

    assert failures == {}
    size = pa.int32() if kind == "date" else pa.int64()
    assert table["c"].cast(size).to_pylist() == [count, None]
    assert pc.struct_field(table["d"], ["c"]).cast(size).to_pylist() == [count, None]


# msgspec and json_text take and refuse the same -------------------------------------------------------------------------

SCALARS = (
    "byte",
    "int",
    "long",
    "float",
    "double",
    "boolean",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(4,1)",
    "decimal(38,20)",
    "void",
)
NAMES = ("a", "b", "long_name_1", "\u00e9", 'q"')
TEXTS = {
    "number": (
        "0",
        "-0",
        "1",
        "127",
        "128",
        "-129",
        "2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "1.0",
        "1e2",
        "1.5",
        "-0.0",
        "01",
        "1.",
    ),
    "large": (
        "1e39",
        "3.4028235677973366e38",
        "3.4028235677973365e38",
        "1e400",
        "-1e400",
        "1e-400",
        "1" * 40,
        "9" * 400,
        "9007199254740993",
        "1E99999999999999999999",
    ),
    "digits": (
        "123.4",
        "1234",
        "0.05",
        "99.900",
        "0.1000000000000000000000001",
        "123456789012345678.12345678901234567890",
        '"1.5"',
        '"1_0"',
        '" 1"',
        '"NaN"',
        '"007"',
        "NaN",
    ),
    "text": (
        '""',
        '"a"',
        '"\\u00e9"',
        '"\u00e9"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud83d\\ude00"',
        '"\\n\\/"',
        '"\\x"',
        '"tab\t"',
        '"\\"a\\":"',
        '"a": 1',
        "'a'",
    ),
    "moment": (
        *(
            '"2013-01-31"',
            '"2013-02-30"',
            '"2013-1-31"',
            '"20130131"',
            '"2013-01-31T05:00:00"',
            '"2013-01-31t05:00:00z"',
            '"2013-01-31 05:00:00+02:00"',
        ),
        *(
            '"2013-01-31T05:00:00.1234567Z"',
            '"2013-01-31T05:00:00.1234560Z"',
            '"2013-01-31T05:00:00.99999999Z"',
            '"2013-01-31T05:00:60Z"',
            '"T05:00:00Z"',
        ),
        *(
            '"0001-01-01T00:00:00+05:00"',
            '"9999-12-31T23:59:59-05:00"',
            '"+55840-11-08T22:15:23.456789Z"',
            '"-0044-03-15"',
            '"2013-01-31T05:00:00.123456\\u0037Z"',
            '"2013-01-31T24:00:00Z"',
            '"2013-01-31T05:00:00-0200"',
        ),
        *('"2013-01-31T05:00:00+02:60"', '"2013-01-31T05:00Z"', '"\\u0030001-01-01T00:00:00+05:00"'),
    ),
    "other": (
        "null",
        "true",
        "false",
        '"true"',
        '"YWI="',
        '"YWJ="',
        '"YW I="',
        "[]",
        "{}",
        "[1]",
        '{"a": 1}',
        "[[[]]]",
        "tru",
        "",
        '{"x": NaN}',
        "Infinity",
    ),
}
SAMPLES = [text for texts in TEXTS.values() for text in texts]


def ddls(depth: int) -> st.SearchStrategy[str]:
    """Draw types, nested so deep."""
    scalar = st.sampled_from(SCALARS)
    if not depth:
        return scalar
    inner = ddls(depth - 1)
    return st.one_of(
        scalar,
        inner.map("array<{}>".format),
        st.tuples(st.sampled_from([kind for kind in SCALARS if kind != "void"]), inner).map(lambda pair: f"map<{pair[0]}, {pair[1]}>"),
        st.lists(fields(inner), min_size=1, max_size=3, unique_by=lambda field: field.split(":")[0]).map(lambda found: f"struct<{', '.join(found)}>"),
    )


def fields(kind: st.SearchStrategy[str], sign: str = ": ") -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(NAMES), kind, st.sampled_from(["", "", " NOT NULL"])).map(
        lambda found: f"`{found[0]}`{sign}{found[1]}" + (found[2] if found[1] != "void" else "")
    )


def objects(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    name = st.sampled_from([*map(json.dumps, NAMES), '"\u00e9"', '"\\u0061"', '"b"', '"other"', '"1"', '"1.0"', '"true"', '"2013-01-31"', '"1e2"'])
    pair = st.tuples(name, st.sampled_from([":", ": ", " : ", "\n:", " " * 12 + ":"]), value).map("".join)
    return st.lists(pair, max_size=5).map(lambda pairs: "{" + ", ".join(pairs) + "}")


VALUES = st.recursive(
    st.sampled_from(SAMPLES),
    lambda inner: st.one_of(objects(inner), st.lists(inner, max_size=3).map(lambda found: "[" + ",".join(found) + "]")),
    max_leaves=6,
)


def mutated(found: tuple[bytes, list[tuple[int, bytes]]]) -> bytes:
    body, changes = found
    for place, change in changes:
        body = body[: place % (len(body) + 1)] + change + body[place % (len(body) + 1) + 1 :]
    return body


BODIES = st.one_of(
    objects(VALUES).map(str.encode),
    st.tuples(objects(VALUES).map(str.encode), st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=2)), max_size=2)).map(mutated),
    VALUES.map(str.encode),
)


def shown(table: pa.Table) -> list[str]:
    """Return the cells of columns as Arrow writes them, which has years that Python does not have."""
    return [column.to_string(window=1_000_000, container_window=1_000_000) for column in table.columns]


def assert_both_ways_agree(bodies: list[bytes], schema: pa.Schema) -> None:
    fast = columns_of(bodies, schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_typed_decoder", lambda _schema: None)
        slow = columns_of(bodies, schema)

    assert shown(fast[0]) == shown(slow[0])
    assert {place: str(error) for place, error in fast[1].items()} == {place: str(error) for place, error in slow[1].items()}


@given(
    st.lists(fields(ddls(3), " "), min_size=1, max_size=3, unique_by=lambda field: field.split()[0]).map(", ".join),
    st.lists(BODIES, min_size=1, max_size=8),
)
@settings(max_examples=examples(400))
def test_msgspec_and_json_text_make_the_same_of_every_body(ddl: str, bodies: list[bytes]) -> None:
    assert_both_ways_agree(bodies, parse_ddl(ddl))


PIECES = [
    b'{"a": 1}',
    b'{"a": 2}',
    b'{"a":',
    b"3}",
    b'{"b": "}',
    b'{"}',
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b" ",
    b"\r",
    b"\n",
    b"}\n{",
    b"\xef\xbb\xbf",
    b"\0",
]
BESIDE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(b"".join)


@given(st.lists(st.one_of(st.sampled_from(PIECES[:2]), BESIDE), min_size=1, max_size=6), st.sampled_from([b"", b"\n", b"\r\n"]))
@example([b'{"a": 1} {"a": 2}', b'{"a": {}', b"{}}", b'{"a": 3}'], b"")
@example([b'{"a": 1}{"a": 2}', b'{"a":', b"3}"], b"\n")
@example([b'{"a": 1, "b": "}', b'{"}'], b"\n")
@example([b'{"a": 1}\n{"a": 2}', b'{"a": "}', b'{"}', b'{"a": 3}'], b"\n")
@example([b'{"x":', b"{}}", b'{"a": 1} {"a": 2}'], b"\n")
@example([b'{"x":', b"{}}", b'{"a": 1} {"a": 2}'], b"")
@example([b'{"a": 1} ', b'{"a": 2}'], b"\n")
@example([b"{"], b"")
@example([b"{", b'{"a": 1}'], b"\n")
def test_bodies_that_are_decoded_together_are_what_each_is_alone(bodies: list[bytes], end: bytes) -> None:
    assert_both_ways_agree([body + end for body in bodies], parse_ddl("a int"))


def test_objects_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pairwise", lambda _: ())
    for end in (b"", b"\n", b"\r\n"):
        table, failures = columns_of([b'{"a": 1}' + end, b'{"b": [{}]}' + end], parse_ddl("a int"))
        assert (table["a"].to_pylist(), failures) == ([1, None], {})


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize("form", ["{}", "array<{}>", "struct<a: {}>", "map<string, {}>"])
def test_msgspec_and_json_text_make_the_same_of_every_sample(kind: str, form: str) -> None:
    schema = parse_ddl(f"c {form.format(kind)}")
    bodies = [
        ('{"c": ' + {"{": text, "a": f"[{text}]", "s": '{"a": ' + text + "}", "m": '{"x": ' + text + "}"}[form[0]] + "}").encode() for text in SAMPLES
    ]

    assert_both_ways_agree(bodies, schema)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 19.99, "b": 12345678901234567.89, "c": 1}', {"a": 19.99, "b": Decimal("12345678901234567.89"), "c": 1}),
        ('{"a": "é"}'.encode("utf-16"), {"a": "é"}),
        (b"\xef\xbb\xbf[1e400]", [Decimal("1e400")]),
    ],
)
def test_a_handler_of_one_message_gets_each_digit_of_its_body(body: bytes, value: object) -> None:
    found = Message(body).json()

    assert (found, repr(found)) == (value, repr(value))


@pytest.mark.parametrize("body", [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": 1} {"a": 2}', b"", b"[" * 100_000])
def test_a_handler_of_one_message_gets_no_body_that_is_none_or_two(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Message(body).json()


WANTED = ["a", "a long name of a column", "seven_7", "eight_88"]
A_NAME = st.sampled_from(["a", "a", "a long name of a column", "a long name of_a column", "seven_7", "eight_88", '}"{'])
TREES: st.SearchStrategy[object] = st.recursive(
    st.sampled_from([1, None, "text", '{"a": 1', '"a":', "}{", "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(A_NAME, inner), max_size=4).map(tuple),
    max_leaves=12,
)


def written(value: object, spaces: str) -> str:
    """Return JSON of a value; a tuple is an object, whose names may stand twice."""
    if isinstance(value, tuple):
        return "{" + ",".join(f"{json.dumps(name)}{spaces}:{spaces}{written(each, spaces)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + f",{spaces}".join(written(each, spaces) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def has_twice(value: object, names: Sequence[str] | None = None) -> bool:
    """Whether a name of these, of all where there are none, stands twice in one object."""
    if isinstance(value, tuple):
        there = [name for name, _ in value if names is None or name in names]
        return len({*there}) < len(there) or any(has_twice(each, names) for _, each in value)
    return isinstance(value, list) and any(has_twice(each, names) for each in value)


@example([((("a", (("b", 1),)), ("a", 2)), "", False)])
@example([((("a", [(("a", 1),)]), ("b", (("a", ()), ("c", 1), ("a", 2)))), " ", False)])
@given(st.lists(st.tuples(TREES, st.sampled_from(["", " ", "\n  "]), st.booleans()), min_size=1, max_size=12))
def test_no_name_that_stands_twice_in_an_object_goes_unseen(texts: list[tuple[object, str, bool]]) -> None:
    """Beside them are bodies that are no JSON, whose braces do not match."""
    bodies = [written(value, spaces).encode()[: -1 if broken else None] for value, spaces, broken in texts]
    array = pa.array(bodies, pa.large_binary())
    seen = {*_repeating(array).tolist()}
    of_wanted = {*_naming_twice(array, WANTED).tolist()}

    whole = [(place, value) for place, (value, _, broken) in enumerate(texts) if not broken]
    assert {place for place, value in whole if has_twice(value)} <= seen
    assert {place for place, value in whole if has_twice(value, WANTED)} <= of_wanted


def test_lists_of_objects_repeat_names_and_are_not_read_twice() -> None:
    body = json.dumps({"lines": [{"sku": number, "n": {"sku": "}"}} for number in range(8)]}).encode()

    assert not len(_repeating(pa.array([body] * 3, pa.large_binary())))


@pytest.mark.parametrize(("text", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_a_float_takes_what_json_has_no_number_for_as_rows_are_sent(text: str, value: float) -> None:
    body = json.dumps({"d": text, "f": text, "m": {text: text}, "l": [text, 1.5]}).encode()

    table, failures = columns_of([body], parse_ddl("d double, f float, m map<double, float>, l array<double>"))

    assert failures == {}
    (row,) = table.to_pylist()
    assert [repr(each) for each in (row["d"], row["f"], *row["m"][0], *row["l"])] == [*[repr(value)] * 5, "1.5"]
    assert set(columns_of([b'{"d": "nan"}', b'{"d": "1.5"}'], parse_ddl("d double"))[1]) == {0, 1}


@pytest.mark.parametrize(("depth", "fits"), [(499, True), (500, False)])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_deepest_body_fits_wherever_it_stands_among_others(depth: int, opening: bytes, *, fits: bool) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = b'{"c": 1, "other": ' + opening * depth + b"0" + closing * depth + b"}"
    bodies = [body for number in range(20) for body in (deep, b'{"c": 2}' + b" " * number)]
    table, failures = columns_of(bodies, parse_ddl("c int"))
    assert table["c"].to_pylist() == [1 if fits else None, 2] * 20
    assert sorted(failures) == ([] if fits else list(range(0, 40, 2)))


def test_a_body_that_is_null_does_not_fit_whatever_stands_below_it() -> None:
    offsets, content = pa.array([0, 8, 16], pa.int64()).buffers()[1], pa.py_buffer(b'{"c": 1}{"c": 2}')
    valid = pa.array([True, False]).buffers()[1]
    bodies: Any = pa.Array.from_buffers(pa.large_binary(), 2, [valid, offsets, content])
    table, failures = columns_of(bodies, parse_ddl("c int"))
    assert (table["c"].to_pylist(), list(failures)) == ([1, None], [1])


@pytest.mark.parametrize(
    ("was", "is_", "body", "value"),
    [
        ("bigint", "double", b"5", 5.0),
        ("bigint", "double", b"9007199254740993", None),
        ("double", "bigint", b"5.0", 5),
        ("double", "bigint", b"5.5", None),
        ("decimal(38,0)", "decimal(38,10)", b"12", Decimal("12.0000000000")),
        ("int", "string", b"7", "7"),
        ("decimal(5,2)", "string", b"1.5", "1.50"),
        ("boolean", "string", b"true", "true"),
        ("double", "string", b"1.5", None),
        ("string", "int", b'"12"', 12),
        ("string", "int", b'"012"', None),
        ("string", "binary", b'"YWE="', None),
        ("binary", "string", b'"YWE="', None),
        ("timestamp", "string", b'"2026-01-01T10:00:00Z"', None),
        ("timestamp_ntz", "timestamp", b'"2026-01-01T10:00:00"', None),
        ("map<string,int>", "struct<x: int>", b'{"x": 1}', None),
        ("float", "double", b"0.1", 0.10000000149011612),
        ("struct<x: float>", "struct<x: double, y: int>", b'{"x": 0.1}', {"x": 0.10000000149011612, "y": None}),
        ("array<float>", "array<double>", b"[0.5, null]", [0.5, None]),
        ("array<bigint>", "array<string>", b"[1]", ["1"]),
    ],
)
def test_a_body_is_read_by_the_types_that_its_columns_had(was: str, is_: str, body: bytes, value: object) -> None:
    bodies = pa.array([b'{"v": null}', b'{"v": %b}' % body, b'{"v": null, "w": 3}'], pa.binary())
    ids = np.array([9, 4, 5])

    table, failures = columns_as_written(bodies, ids, parse_ddl(f"V {is_}, w int".replace("V", "v")), [(4, f"V {was}")])

    assert table.to_pydict() == {"v": [None, value, None], "w": [None, None, 3]}
    assert [*failures] == ([1] if value is None else [])
    assert all(f"Column 'v' was {ddl_type(parse_ddl(f'v {was}').field(0).type)} when" in str(error) for error in failures.values())


def test_each_body_is_read_by_the_types_of_its_own_time() -> None:
    bodies = pa.array([b'{"v": 9007199254740993}', b'{"v": 0.5}', b'{"v": "0.50"}', b'{"v": "x"}'], pa.binary())

    table, failures = columns_as_written(bodies, np.array([1, 2, 3, 3]), parse_ddl("v string"), [(1, "v bigint"), (2, "v double"), (2, "w int")])

    assert table["v"].to_pylist() == ["9007199254740993", None, "0.50", "x"]
    assert [*failures] == [1]
