"""JSON of bodies: what is read is what stands there, and a patch changes its own fields alone."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.values.json_text import JsonError, Number, Pairs, decoded, natural_values, patched, read_json, syntax_error, tree, values, written

DEEP = b"[" * 200_000 + b"]" * 200_000
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).map(Number)
TREES = st.recursive(
    st.none() | st.booleans() | st.text(st.characters()) | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(st.text(max_size=5), inner), max_size=4).map(Pairs),
    max_leaves=12,
)


@given(TREES)
def test_a_tree_is_written_as_it_was_read(value: object) -> None:
    assert tree(written(value).encode("utf-8", "surrogatepass")) == value


def test_zero_keeps_its_sign_where_it_is_written_again() -> None:
    assert written(read_json(b'{"a": -0, "b": [-0.0, 0]}')) == '{"a": -0, "b": [-0.0, 0]}'
    assert patched(b'{"a":1}', read_json('{"a": -0}')) == b'{"a":-0}'
    assert type(values(b"-0")) is int


@given(NUMBERS)
def test_numbers_keep_their_digits(number: Number) -> None:
    read = values(number.encode())

    assert Decimal(read) == Decimal(number)
    assert isinstance(read, Decimal) == any(sign in number for sign in ".eE")
    assert Decimal(written(read)) == Decimal(number)


@given(NUMBERS)
def test_a_natural_number_is_a_float_only_where_a_float_is_the_same_number(number: Number) -> None:
    read = natural_values(number.encode())

    assert Decimal(repr(read) if isinstance(read, float) else read) == Decimal(number)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"NaN", "JSON has no NaN"),
        (b'{"a": -Infinity}', "JSON has no -Infinity"),
        (b'{"a": 1} {"a": 2}', "Extra data"),
        (b'{"a": "caf\xe9"}', "byte 10 is no UTF-8"),
        (b"", "Expecting value"),
        (DEEP, "nested too deeply"),
        (b"{'a': 1}", "Expecting property name"),
    ],
)
def test_what_is_no_json_is_refused_by_each_reader(body: bytes, why: str) -> None:
    assert why in str(syntax_error(body))
    for read in (values, natural_values, lambda given: patched(given, {"b": 1})):
        with pytest.raises(JsonError, match=why):
            read(body)


PARTS = [*b'{}[]:,"\\10-+.eE \t\n\r\0\x01\x1f\x7f\x80\xff\x0b\xa0']
TOKENS = [
    *(bytes([each]) for each in PARTS),
    *(b"null", b"true", b"NaN", b"-Infinity", b"\\ud800", b"\\u12", b"\\x", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b'"a":1', b"9" * 25, b"1" * 5_000, b"e400", b"e9999999999999999999", b"[" * 400),
]


def test_a_body_is_json_where_python_reads_it_as_such() -> None:
    chance, seen = random.Random(1), set[bool]()
    whole = json.dumps({"a": [1, -2.5e3, None, True, {"b": "xé\n"}], "c": "\\ud800", "d": ""}, ensure_ascii=False).encode()
    for turn in range(20_000):
        body = bytearray(whole if turn % 2 else b"")
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(body) + 1)
            body[place : place + chance.randrange(2)] = chance.choice(TOKENS)
        seen.add(read := reads(bytes(body)))
        assert (syntax_error(bytes(body)) is None) == read, bytes(body)
    assert seen == {True, False}


def reads(body: bytes) -> bool:
    """Whether Python reads a body, of which numbers of any size are left as they are."""

    def no(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(decoded(body), parse_int=str, parse_float=str, parse_constant=no)
    except ValueError:
        return False
    return True


def test_values_of_one_name_are_not_dropped() -> None:
    body = b'{"a": 1, "a": 2}'

    assert syntax_error(body) is None
    assert tree(body) == Pairs([("a", Number("1")), ("a", Number("2"))])
    with pytest.raises(JsonError, match="'a' stands twice"):
        values(body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_byte_order_mark_is_no_part_of_the_text(encoding: str) -> None:
    body = '{"name": "Łódź"}'.encode(encoding)

    assert decoded(body) == '{"name": "Łódź"}'
    assert decoded(patched(body, {"n": 1})) == '{"name": "Łódź", "n": 1}'


@pytest.mark.parametrize("value", [float("nan"), Decimal("Infinity"), object(), {1: 2}, [10**5_000]])
def test_values_that_json_does_not_have_are_refused(value: object) -> None:
    with pytest.raises(JsonError):
        written([value])


# Patches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "patch", "expected"),
    [  # the examples of RFC 7396, appendix A, of patches that are objects
        ('{"a":"b"}', {"a": "c"}, '{"a":"c"}'),
        ('{"a":"b"}', {"b": "c"}, '{"a":"b","b":"c"}'),
        ('{"a":"b"}', {"a": None}, "{}"),
        ('{"a":"b","b":"c"}', {"a": None}, '{"b":"c"}'),
        ('{"a":["b"]}', {"a": "c"}, '{"a":"c"}'),
        ('{"a":"c"}', {"a": ["b"]}, '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', {"a": {"b": "d", "c": None}}, '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', {"a": [1]}, '{"a":[1]}'),
        ('{"e":null}', {"a": 1}, '{"e":null,"a":1}'),
        ("[1,2]", {"a": "b", "c": None}, '{"a": "b"}'),
        ("{}", {"a": {"bb": {"ccc": None}}}, '{"a": {"bb": {}}}'),
    ],
)
def test_patches_of_the_rfc(body: str, patch: dict[str, Any], expected: str) -> None:
    assert patched(body.encode(), patch).decode() == expected


@pytest.mark.parametrize(
    ("body", "patch", "expected"),
    [
        (
            '{"id": 1, "amount": 12345678901234567.89, "rate": 1.10}',
            {"c": "EUR"},
            '{"id": 1, "amount": 12345678901234567.89, "rate": 1.10, "c": "EUR"}',
        ),
        ('{"x": 1e400}', {"c": 1}, '{"x": 1e400, "c": 1}'),
        ('{"a": 1, "a": 2, "b": 3}', {"b": 4}, '{"a": 1, "a": 2, "b": 4}'),
        ('{"a": 1, "a": 2, "b": 3}', {"a": 5}, '{"a": 5, "a": 5, "b": 3}'),
        ('{"t": "\\ud800"}', {"c": 1}, '{"t": "\\ud800", "c": 1}'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', {"a": None, "c": 3}, '{\n  "b": 2,\n  "c": 3\n}\n'),
        ('{"a": {"b":1 , "c" : 2}, "d":1}', {"a": {"b": None}}, '{"a": {"c" : 2}, "d":1}'),
        ("{}", {"d": Decimal("1.10")}, '{"d": 1.10}'),
    ],
)
def test_the_text_beside_a_patch_stays(body: str, patch: dict[str, Any], expected: str) -> None:
    assert patched(body.encode(), patch).decode() == expected


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), TREES), max_size=5).map(Pairs), st.text(st.characters(codec="utf-8")))
def test_a_patch_of_another_field_keeps_every_byte(before: Pairs, name: str) -> None:
    body = written(before).encode()
    others = [(each, value) for each, value in before if each != name]
    patch = {name: "new"}

    after = patched(body, patch)

    assert [pair for pair in tree(after) if pair[0] != name] == others  # type: ignore[attr-defined]  # it is an object
    assert after.startswith(body[:-1]) or len(others) < len(before)
    assert json.loads(after)[name] == "new"
