"""Conditions on bodies: numbers are compared with all their digits, and a body that a condition cannot be evaluated for does not meet it."""

from __future__ import annotations

import json
import operator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.desk import sql
from airflow_poison.desk.queries import find, query
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.desk.sql import literal
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueryError
from tests.given.examples import examples
from tests.given.passes import a_queue

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue

BIG = 1234567890123456789


def having(store: QueueStore, tmp_path: Path, *bodies: str) -> Queue:
    queue = a_queue(store, tmp_path)
    queue.sent(*bodies)
    return queue


def met(queue: Queue, where: str) -> list[int]:
    return [row.lookup_id for row in find(queue.table, Selection(where=where, sub_queue=None)).messages]


@pytest.mark.parametrize("mask", [None, "$.secret"])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (f"body.id = {BIG}", [2]),
        (f"{BIG} = body.id", [2]),
        (f"body.id <> {BIG}", [1, 3]),
        (f"body.id < {BIG}", [1]),
        (f"body.id <= {BIG}", [1, 2]),
        (f"{BIG} < body.id", [3]),
        (f"body.id >= {BIG}", [2, 3]),
        (f"body.id between {BIG} and {BIG}", [2]),
        (f"body.id not between {BIG} and {BIG}", [1, 3]),
        (f"body.id in (5, {BIG})", [2]),
        (f"body.id in ({BIG}.0, 'n/a')", [2, 4]),
        (f"body.id not in (5, {BIG})", [1, 3]),
        (f"body.id is distinct from {BIG}", [1, 3, 4, 5]),
        (f"body.id is not distinct from {BIG}", [2]),
        (f"{BIG} in (body.id, 5)", [2]),
        (f"{BIG} between body.id and body.id", [2]),
        (f"(body ->> 'id') = {BIG}", [2]),
        (f"((body -> 'in') ->> 'id') = {BIG}", [2]),
        (f"body.in.id = {BIG}", [2]),
        (f"(body ->> '$.list[1]') = {BIG}", [2]),
        (f"body.id = {BIG - 1} + 1", [2]),
        ("body.id = lookup_id", []),
        ("body.n = lookup_id", [1, 2, 3]),
        (f"case body.id when {BIG} then true end", [2]),
    ],
)
def test_digits_beyond_a_double_count(store: QueueStore, tmp_path: Path, where: str, mask: str | None, expected: list[int]) -> None:
    # given neighbours that are the same double, a body with a text there, and one without it
    near = [f'{{"secret": 1, "n": {n}, "id": {id_}, "in": {{"id": {id_}}}, "list": [0, {id_}]}}' for n, id_ in ((1, BIG - 1), (2, BIG), (3, BIG + 1))]
    queue = having(store, tmp_path, *near, '{"id": "n/a"}', "no JSON")
    declare_mask(queue.table, SystemClock(), mask or [])
    # then
    assert met(queue, where) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("cast(body.due as date) < date '2026-06-01'", [1]),
        ("body.due::date < date '2026-06-01'", [1]),
        ("strptime(body.due, '%Y-%m-%d') < timestamp '2026-06-01'", [1]),
        ("not (strptime(body.due, '%Y-%m-%d') > timestamp '2026-06-01')", [1]),
        ("body.amount = 5 or strptime(body.due, '%Y-%m-%d') < timestamp '2026-06-01'", [1, 2]),
        ("date_part('year', cast(body.due as timestamp)) = 2026", [1]),
        ("cast(text as json) is not null", [1, 2, 3, 4]),
        ("body.amount > 10 * 2", [3]),
        ("body.amount = 5", [2]),
        ("body.amount in (5, 6)", [2]),
        ("body.amount between 5 and 6", [2]),
        ("body.amount not in (5, 6)", [3]),
        ("coalesce(cast(body.amount as integer), 0) = 0", [1, 3, 4, 5]),
        ("random() < 2 and body.amount = 5", [2]),
    ],
)
def test_a_body_that_a_condition_cannot_be_evaluated_for_does_not_meet_it(store: QueueStore, tmp_path: Path, where: str, expected: list[int]) -> None:
    # given a date, an amount that is none, and others
    queue = having(
        store,
        tmp_path,
        '{"due": "2026-01-01", "amount": "n/a"}',
        '{"due": "n/a", "amount": 5}',
        '{"amount": "1e400"}',
        '{"amount": "NaN"}',
        "[" * 20_000,
    )
    # then
    assert met(queue, where) == expected


@pytest.mark.parametrize("where", ["cast(body.due as date) < date '2026-13-01'", "body.due < strptime('x', '%Y')", "enqueued_at > 'yesterday'"])
def test_a_wrong_constant_is_an_error_although_wrong_bodies_are_none(store: QueueStore, tmp_path: Path, where: str) -> None:
    # given
    queue = having(store, tmp_path, '{"due": "2026-01-01"}')
    # then
    with pytest.raises(QueryError):
        met(queue, where)


def test_a_condition_of_a_thousand_brackets_is_refused(store: QueueStore, tmp_path: Path) -> None:
    # given
    queue = having(store, tmp_path, "{}")
    # then
    with pytest.raises(QueryError):
        met(queue, f"{'not (' * 3_000}true{')' * 3_000}")


# Any two numbers, written in any way ----------------------------------------------------------------------------------

_DIGITS = st.text("0123456789", min_size=1, max_size=25)
_NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole.lstrip('0') or '0'}{f'.{fraction}' if fraction else ''}{exponent}",
    st.sampled_from(["", "-"]),
    _DIGITS,
    st.one_of(st.just(""), _DIGITS),
    st.one_of(
        st.just(""),
        st.builds(
            lambda letter, sign, digits: f"{letter}{sign}{digits}", st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 420)
        ),
    ),
)


@st.composite
def near(draw: st.DrawFn) -> tuple[str, str]:
    """Two numbers that are often the same, or the same double."""
    one = draw(_NUMBERS)
    other = draw(
        st.one_of(
            _NUMBERS,
            st.sampled_from([one, f"{Decimal(one):f}" if abs(Decimal(one).adjusted()) < 400 else one]),
            st.builds(
                lambda last: f"{one.lower().partition('e')[0]}{'' if '.' in one else '.'}{last}{one[len(one.lower().partition('e')[0]) :]}", _DIGITS
            ),
        )
    )
    return one, other


_COMPARED = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is distinct from": operator.ne,
}


@given(near(), st.sampled_from(sorted(_COMPARED)), st.booleans())
def test_a_condition_compares_as_decimals_do(numbers: tuple[str, str], sign: str, turned: bool) -> None:  # noqa: FBT001  (drawn)
    # given
    one, other = numbers
    expected = _COMPARED[sign](Decimal(one), Decimal(other))
    where = f"body.x {sign} {other}"
    if turned:
        where = f"{other} {sign} body.x"
        expected = _COMPARED[sign](Decimal(other), Decimal(one))
    # then
    assert _meets(f'{{"x": {one}}}', where) is expected, (one, sign, other)
    assert _meets(f'{{"x": {one}}}', f"body.x in (7e7, {other})") is (Decimal(one) in {Decimal(other), Decimal("7e7")})


def _meets(body: str, where: str) -> bool:
    """Whether a body meets a condition, without a queue."""
    engine = _engine()
    [(met,)] = engine.execute(
        f"select count(*) from (select try_cast(? as json) as body, 1 as lookup_id) as messages where {sql.checked_condition(engine, where)}", [body]
    ).fetchall()
    return bool(met)


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str]:
    """A value as JSON writes it in one of its ways, and a text that it may be equal to."""
    text = draw(st.text(st.sampled_from("aVé ._-0e") | st.sampled_from('\\/"{}[],:'), max_size=4))
    ways = [lambda each: json.dumps(each)[1:-1], lambda each: json.dumps(each, ensure_ascii=False)[1:-1], lambda each: f"\\u{ord(each):04x}"]
    escaped = "".join(draw(st.sampled_from(ways))(each) for each in text)
    return draw(st.sampled_from([*[(f'"{escaped}"', text)] * 10, (f'"{escaped}"', text + "a"), *_SHOWN]))


_SHOWN = [
    *(("1e2", "100.0"), ("100", "100"), ("-0.50", "-0.5"), ("true", "true"), ("null", "null"), ("inf", "inf"), ("NaN", "nan")),
    *(("-Infinity", "-Infinity"), ('{ "a" : 1 }', '{"a":1}'), ("[ 1 , 2 ]", "[1,2]"), ('"1e2"', "1e2")),
]
"""Values as JSON writes them, and texts that they are shown as, or nearly."""


@settings(max_examples=examples(400))
@given(written(), st.sampled_from(["body.x = {}", "{} = body.x", "body.x = {} and true", "body ->> 'x' = {}", "true and (body.x = {} and true)"]))
def test_a_text_that_is_looked_for_first_leaves_nothing_out(found: tuple[str, str], where: str) -> None:
    value, text = found
    condition, body = where.format(literal(text)), f'{{"x": {value}}}'
    engine = _engine()
    parts, values = sql.condition(engine, Selection(sub_queue=None, where=condition))
    [(met,)] = engine.execute(
        f"select count(*) from (select try_cast(b as json) as body, b as text, 1 as lookup_id from (select ? as b)) as messages where {parts}",
        [body, *values],
    ).fetchall()
    assert bool(met) is _meets(body, condition)


@pytest.mark.parametrize(
    ("where", "needed"),
    [
        ("body.carrier = 'VX' and body.delay > 60", ["VX"]),
        ("'VX' = body.a.b and (lookup_id > 1 and body ->> 'c' = 'd-é')", ["VX", "d-é"]),
        ("body.carrier = 'VX' or body.delay > 60", []),
        ("not (body.carrier = 'VX')", []),
        ("body.carrier <> 'VX'", []),
        ("body.delay = '100.0'", []),
        ("message_id = 'VX'", []),
        ("", []),
        ("body.carrier =", []),
    ],
)
def test_texts_that_bodies_must_have(where: str, needed: list[str]) -> None:
    assert sql._needed_texts(_engine(), where) == needed


_engines: list[Any] = []


def _engine() -> Any:
    """Return an engine with an empty view of messages."""
    if not _engines:
        import duckdb

        engine = duckdb.connect()
        sql.add_numbers(engine)
        engine.execute("create view messages as select null::json as body, 1 as lookup_id, '' as text, '' as message_id where false")
        _engines.append(engine)
    return _engines[0]


# Queries read messages and events, and nothing else ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_parquet('{file}')",
        "select * from '{file}'",
        "select * from located",
        "select * from main.located",
        "select * from memory.main.messages",
        "select * from parquet_metadata('{file}')",
        "select * from glob('*')",
        "select * from read_text('/etc/hostname')",
        "select current_setting('allowed_paths')",
        "select * from duckdb_settings()",
        "select * from duckdb_views",
        "select * from information_schema.tables",
        "select * from query_table('located')",
        "select * from query('from located')",
        "select * from (show all tables)",
        "select * from (describe located)",
        "select (select count(*) from located)",
        "select lookup_id from messages where lookup_id in (select lookup_id from located)",
        "with located as (select * from located) select * from located",
        "with a as (select * from located), located as (select 1) select * from a",
        "select * from (with located as (select 1) select * from located) as a, located",
        "select json_serialize_plan('select * from located')",
    ],
)
def test_a_query_reads_no_other_table(store: QueueStore, tmp_path: Path, text: str) -> None:
    # given
    queue = having(store, tmp_path, '{"card": "4111"}')
    declare_mask(queue.table, SystemClock(), "$.card")
    [file] = [each for each in queue.table.snapshot().files if each.sub_queue == "main"]
    # then
    with pytest.raises(QueryError):
        query(queue.table, text.format(file=queue.table.folder.here(file.path)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("with mine as (from messages), others as (from mine) select count(*) from others join events using (lookup_id)", 0),
        ("with recursive n as (select 1 as i union all select i + 1 from n where i < 3) select max(i) from n", 3),
        ("select sum(n) from messages, unnest([1, 2]) as t(n)", 3),
        ("select max(v) from (values (1), (2)) as t(v)", 2),
        ("select count(*) from range(3)", 3),
        ("select count(*) from (summarize messages)", 23),
        ("select sum(cast(body.amount as integer)) from messages", None),
        (f"select count(*) from messages as m where m.body.id = {BIG}", 1),
    ],
)
def test_a_query_has_tables_of_its_own(store: QueueStore, tmp_path: Path, text: str, expected: int | None) -> None:
    # given
    queue = having(store, tmp_path, f'{{"id": {BIG}, "amount": "n/a"}}')
    # then
    assert query(queue.table, text).to_pylist()[0].popitem()[1] == expected


EXACT = '{"n":[7,5.10],"u":"1.50","o":{"a.b":[{"c":1e2}]},"big":123456789012345678901234567890,"wide":12345678901234567.89,"s":"x1.50"}'


@pytest.mark.parametrize(
    ("taken", "value"),
    [
        ("body.n[1]", "5.10"),
        ("body['n'][1]", "5.10"),
        ("body.n", "[7,5.10]"),
        ("body->'n'", "[7,5.10]"),
        ("body->'n'->>'$[1]'", "5.10"),
        ("json_extract(body, '$.n')", "[7,5.10]"),
        ("body.o['a.b'][0].c", "1e2"),
        ("body->'o'", '{"a.b":[{"c":1e2}]}'),
        ("body.big", "123456789012345678901234567890"),
        ("body.wide::decimal(38,2)::varchar", "12345678901234567.89"),
        ("body.s", "x1.50"),
        ("body.u", "1.50"),
        ("body", EXACT),
        ("body.n[7]", None),
        ("body.u[0]", None),
    ],
)
def test_values_of_bodies_are_shown_with_all_their_digits(store: QueueStore, tmp_path: Path, taken: str, value: str | None) -> None:
    queue = having(store, tmp_path, EXACT)

    assert query(queue.table, f"select {taken} as v from messages").to_pylist() == [{"v": value}]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("body.n[1] = 5", [1]),
        ("body.n[1].x = 5", []),
        ("body['n'][0] = 7", [1, 3]),
        ("body->'n'->>'$[1]' = 5", [1]),
        ("body->>'n' = '50'", [2]),
        ("body.n[1] = 5 or body.n = 50", [1, 2]),
    ],
)
def test_brackets_and_arrows_take_elements_of_lists(store: QueueStore, tmp_path: Path, where: str, expected: list[int]) -> None:
    queue = having(store, tmp_path, '{"n":[7,5]}', '{"n":50}', '{"n":[7,6]}')

    assert met(queue, where) == expected


@pytest.mark.parametrize("where", ["body.n[-1] = 5", "body.n[lookup_id] = 5", "body[abort_count] = 1"])
def test_an_element_that_is_counted_otherwise_is_an_error(store: QueueStore, tmp_path: Path, where: str) -> None:
    queue = having(store, tmp_path, '{"n":[7,5]}')

    with pytest.raises(QueryError, match=r"elements from 0 on: body\.items\[0\]"):
        met(queue, where)
