"""``Jdbc`` and ``Outbox`` with a real PostgreSQL: rows that become visible late, streamed reads, errors, and takers that are killed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg2  # type: ignore[import-untyped]
import pytest

from airflow_poison.sources.jdbc import Jdbc, Outbox
from airflow_poison.sources.source import Position
from airflow_poison.values.errors import SourceError
from tests.live.celery_parts import postgres
from tests.live.databases import TablesOfADatabase, names_in
from tests.live.source_kills import ROOT, a_table, bodies, rows, taken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.sources.source import Source

ORDERS = "CREATE TABLE orders (id bigserial PRIMARY KEY, body text, at timestamptz NOT NULL DEFAULT clock_timestamp())"
OUTBOX = "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), body text, at timestamptz DEFAULT clock_timestamp(), sent boolean)"
MEBIBYTE = 1 << 20


class Database:
    """A database of a running server."""

    def __init__(self, address: str) -> None:
        self.url = f"postgresql://{address}"

    def connect(self, *, autocommit: bool = False) -> Any:
        connection = psycopg2.connect(self.url)
        connection.autocommit = autocommit
        return connection

    def run(self, *statements: str) -> list[Any]:
        with closing(self.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with postgres() as address:
        yield Database(address)


@pytest.fixture
def database(server: Database) -> Database:
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT ALL ON SCHEMA public TO PUBLIC", ORDERS, OUTBOX)
    return server


class TestPostgreSQL(TablesOfADatabase):
    """A real PostgreSQL."""


def test_an_instant_in_the_future_leaves_nothing_behind(database: Database, tmp_path: Path) -> None:
    table, source = a_table(tmp_path), Jdbc(database.url, "orders", "at", overlap=timedelta(minutes=5))
    database.run("INSERT INTO orders (body, at) VALUES ('future', '2999-01-01')")
    assert taken(table, source) == 1
    database.run("INSERT INTO orders (body) VALUES ('now')")
    assert [taken(table, source) for _ in range(2)] == [1, 0]
    assert names_in(table) == ["future", "now"]


def test_a_row_that_changes_is_taken_again_where_order_by_says_so(database: Database, tmp_path: Path) -> None:
    table, source = a_table(tmp_path), Jdbc(database.url, "orders", "at", overlap=timedelta(minutes=5))
    database.run("INSERT INTO orders (body) VALUES ('a'), ('b')")
    taken(table, source)
    database.run("UPDATE orders SET body = 'c', at = clock_timestamp() WHERE body = 'a'")
    assert [taken(table, source) for _ in range(2)] == [1, 0]
    assert sorted(names_in(table)) == ["a", "b", "c"]


def test_a_backfill_takes_what_lies_between_two_instants_again(database: Database, tmp_path: Path) -> None:
    table, source = a_table(tmp_path), Jdbc(database.url, "orders", "at", overlap=timedelta(minutes=5))
    database.run("INSERT INTO orders (body, at) SELECT 'd' || day, make_timestamptz(2026, 1, day, 0, 0, 0, 'UTC') FROM generate_series(1, 4) day")
    assert taken(table, source, between=("2026-01-02", "2026-01-04T01:00:00+01:00")) == 2
    assert [taken(table, source) for _ in range(2)] == [4, 0]
    assert names_in(table) == ["d2", "d3", "d1", "d2", "d3", "d4"]


def test_keys_are_the_same_whatever_zone_and_style_a_user_has(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n int NOT NULL, at timestamptz PRIMARY KEY, body text)")
    database.run("INSERT INTO t VALUES (1, '2024-02-29 12:00:00.000001+00', 'a')")
    table, source = a_table(tmp_path), Jdbc(database.url, "t", "n", overlap=5)
    assert taken(table, source) == 1
    database.run("ALTER ROLE airflow SET TimeZone = 'Asia/Kolkata'", "ALTER ROLE airflow SET datestyle = 'SQL, DMY'")
    try:
        assert taken(table, source) == 0
    finally:
        database.run("ALTER ROLE airflow RESET ALL")


def test_rows_are_the_same_whatever_encoding_and_digits_a_user_has(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n int PRIMARY KEY, f double precision, body text)", "INSERT INTO t VALUES (1, 0.1::float8 + 0.2, '€')")
    database.run("ALTER ROLE airflow SET client_encoding = 'LATIN1'", "ALTER ROLE airflow SET extra_float_digits = 0")
    try:
        taken(table := a_table(tmp_path), Jdbc(database.url, "t", "n", overlap=5))
    finally:
        database.run("ALTER ROLE airflow RESET ALL")
    assert bodies(table) == [{"n": 1, "f": 0.1 + 0.2, "body": "€"}]


def test_what_rows_of_each_type_become(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE kinds (id int PRIMARY KEY, n numeric, p numeric(10, 2), r real, f boolean, d date, t time, z timestamptz, l timestamp,"
        " i interval, j jsonb, u uuid, a int[], raw bytea, none text, m money, aa int[][])",
        "INSERT INTO kinds VALUES (1, 12345678901234567890.5, 2.50, 0.1, true, '2024-02-29', '01:02:03', '2024-02-29 12:00:00.123456+05:30',"
        " '2024-02-29 12:00:00', '1 day', '{\"a\": [1, null]}', '00000000-0000-0000-0000-000000000001', '{1,null}', '\\xff', null, 1.5, '{{1},{2}}')",
    )
    table = a_table(tmp_path)
    taken(table, Jdbc(database.url, "public.kinds", "id", overlap=5))
    assert bodies(table) == [
        {
            "id": 1, "n": 12345678901234567890.5, "p": 2.5, "r": 0.1, "f": True, "d": "2024-02-29", "t": "01:02:03",
            "z": "2024-02-29T06:30:00.123456Z", "l": "2024-02-29T12:00:00.000",
            "i": "P1D", "j": {"a": [1, None]}, "u": "00000000-0000-0000-0000-000000000001", "a": [1, None], "raw": "/w==",
             "none": None, "m": "$1.50", "aa": [[1], [2]],
        }
    ]  # fmt: skip


ODD = [
    ("numeric(10, 2)", "1.10", "1.10", [("'NaN'", '"NaN"')]),
    ("numeric", "1.50", "1.50", [("1e60", "1" + "0" * 60), ("0.0000001", "0.0000001"), ("'NaN'", '"NaN"'), ("'-Infinity'", '"-Infinity"')]),
    ("double precision", "0.1", "0.1", [("'NaN'", '"NaN"'), ("1e300", "1e+300")]),
    (
        "date",
        "'2026-01-01'",
        '"2026-01-01"',
        [("'20260-01-01'", '"20260-01-01"'), ("'infinity'", '"infinity"'), ("'-infinity'", '"-infinity"'), ("'0044-03-15 BC'", '"0044-03-15 BC"')],
    ),
    (
        "timestamptz",
        "'2026-01-01 01:00+01'",
        '"2026-01-01T00:00:00.000Z"',
        [("'20260-01-01'", '"20260-01-01 00:00:00+00"'), ("'infinity'", '"infinity"'), ("'0044-03-15 BC'", '"0044-03-15 00:00:00+00 BC"')],
    ),
    ("timestamp", "'2026-01-01 00:00:00.000001'", '"2026-01-01T00:00:00.000001"', [("'-infinity'", '"-infinity"')]),
    ("time", "'01:02:03.5'", '"01:02:03.5"', [("'24:00'", '"24:00:00"')]),
    ("int[]", "'{1,null}'", "[1,null]", [("'{{1,2},{3,4}}'", "[[1,2],[3,4]]"), ("'{}'", "[]")]),
    ("numeric[]", "'{1.10}'", "[1.10]", [("'{NaN,1e30}'", '["NaN",1000000000000000000000000000000]')]),
    ("date[]", "'{2026-01-01}'", '["2026-01-01"]', [("'{infinity}'", '["infinity"]')]),
    ("timestamptz[]", "'{2026-01-01 01:00+01}'", '["2026-01-01T00:00:00+00:00"]', [("'{0044-03-15 BC}'", '["0044-03-15T00:00:00+00:00 BC"]')]),
    ("float8[]", "'{0.1,null}'", "[0.1,null]", [("array[0.1::float8 + 0.2, 'NaN', '-Infinity']", '[0.30000000000000004,"NaN","-Infinity"]')]),
    ("json[]", """array['{"a":1.10,  "b":[]}'::json]""", '[{"a":1.10,  "b":[]}]', [("array['null'::json, null]", "[null,null]")]),
    ("jsonb[]", "array['12345678901234567.89'::jsonb]", "[12345678901234567.89]", [("""array['"a"'::jsonb, '[1]']""", '["a",[1]]')]),
    ("uuid[]", "'{00000000-0000-0000-0000-000000000001}'", '["00000000-0000-0000-0000-000000000001"]', []),
    ("text[]", """array['', 'NULL', null, '{"', 'é\n']""", r"""["","NULL",null,"{\"","é\n"]""", []),
    ("bool[]", "'{t,null}'", "[true,null]", []),
    ("mood[]", "'{ok,null}'", '["ok",null]', []),
    ("cents[]", "'{1.10}'", "[1.10]", [("'{NaN}'", '["NaN"]')]),
    ("bytea[]", "array['\\xff'::bytea, null]", '["/w==", null]', [("'{}'", "[]")]),
    ("jsonb", "'[1]'", "[1]", [("""'{"a": 12345678901234567.89, "b": 1e400}'""", '{"a": 12345678901234567.89, "b": ' + "1" + "0" * 400 + "}")]),
    ("json", "'[1]'", "[1]", [("""'{"a":1,  "a":1.10}'""", '{"a":1,  "a":1.10}')]),
    ("bit(3)", "b'101'", '"101"', []),
    ("interval", "'1.5 seconds'", '"PT1.5S"', [("'-1 mon'", '"P-1M"')]),
    ("int4range", "'[1,2]'", '"[1,3)"', [("'empty'", '"empty"')]),
    ("mood", "'ok'", '"ok"', []),
    ("cents", "1.10", "1.10", [("'NaN'", '"NaN"')]),
    ("price", "1.10", "1.10", [("'NaN'", '"NaN"')]),
    ("citext[]", "'{a,null}'", '["a",null]', [("'{}'", "[]"), ("'{{A},{b}}'", '[["A"],["b"]]')]),
    ("bytea", "'\\xff'", '"/w=="', [("''", '""')]),
]


@pytest.mark.parametrize(("kind", "values"), [(each[0], each[1:]) for each in ODD], ids=[each[0] for each in ODD])
def test_an_odd_value_comes_as_what_it_is_and_changes_none_beside_it(
    database: Database, tmp_path: Path, kind: str, values: tuple[str, str, list[tuple[str, str]]]
) -> None:
    good, as_json, odd = values
    database.run(
        "CREATE TYPE mood AS ENUM ('ok')", "CREATE DOMAIN cents AS numeric(10, 2)", "CREATE DOMAIN price AS cents", "CREATE EXTENSION citext"
    )
    given = ", ".join(f"({number}, {value}, {value})" for number, value in enumerate([good, *(value for value, _ in odd), "NULL", good]))
    database.run(f"CREATE TABLE odd (id int PRIMARY KEY, v {kind}, w {kind} NULL)", f"INSERT INTO odd VALUES {given}")
    table = a_table(tmp_path)

    taken(table, Jdbc(database.url, "odd", "id", overlap=5))

    assert [row["reason"] for row in rows(table)] == [None] * (len(odd) + 3)
    found = sorted((row["body"].decode() for row in rows(table)), key=lambda body: int(body[6 : body.index(",")]))
    wanted = [as_json, *(said for _, said in odd), "null", as_json]
    assert found == [f'{{"id":{number},"v":{value},"w":{value}}}' for number, value in enumerate(wanted)]


def test_rows_whose_order_is_no_date_of_pythons_are_taken_once(database: Database, tmp_path: Path) -> None:
    values = ", ".join(f"('{each}', '{each}')" for each in ("infinity", "20260-01-01", "0044-03-15 BC", "-infinity", "2026-01-01"))
    database.run(f"INSERT INTO orders (body, at) VALUES {values}")
    table, source = a_table(tmp_path), Jdbc(database.url, "orders", "at", overlap=timedelta(minutes=5))

    assert [taken(table, source) for _ in range(3)] == [5, 0, 0]


def test_a_unique_index_of_a_materialized_view_is_a_key(database: Database, tmp_path: Path) -> None:
    database.run("INSERT INTO orders (body) VALUES ('a')", "CREATE MATERIALIZED VIEW v AS SELECT * FROM orders", "CREATE UNIQUE INDEX ON v (id)")
    table, source = a_table(tmp_path), Jdbc(database.url, "v", "id", overlap=5, key="id")
    assert [taken(table, source) for _ in range(2)] == [1, 0]
    with pytest.raises(SourceError, match=r"key='body': several rows of .* may have the same one.*: id\."):
        taken(a_table(tmp_path / "other"), Jdbc(database.url, "v", "id", overlap=5, key="body"))


# Errors -----------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_an_error_with_names_and_a_next_step(database: Database, tmp_path: Path) -> None:
    database.run("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "INSERT INTO orders (body) VALUES ('a')")
    reader, gone = (database.url.replace("airflow@", f"{name}@") for name in ("reader", "nobody"))
    for source, words in (
        (
            Jdbc(reader, "orders", "id", overlap=1),
            r"'orders' of source 'postgresql://.*orders' cannot be read: permission denied for table orders\. Check",
        ),
        (Jdbc(gone, "orders", "id", overlap=1), 'cannot be read: .*role "nobody" does not exist'),
        (Jdbc("postgresql://x@127.0.0.1:1/y", "orders", "id", overlap=1), "cannot be read: .*Connection refused"),
        (Jdbc(database.url, "nowhere.orders", "id", overlap=1), "there is no such table or view"),
        (Jdbc(database.url, "orders", "gone", overlap=1), "order_by='gone': .* has no such column; it has id, body, at. Was it renamed"),
        (Jdbc(database.url, "outbox", "id", overlap=1), "order_by='id' of .* is UUID; expected whole numbers or instants"),
    ):
        with pytest.raises(SourceError, match=words):
            taken(a_table(tmp_path / "errors"), source)


def test_an_order_that_is_not_a_number_is_an_error_that_names_it(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n numeric(20) PRIMARY KEY)", "INSERT INTO t VALUES (1), ('NaN')")
    with pytest.raises(SourceError, match="NaN in the column of order_by= is no place in an order; expected a whole number"):
        taken(a_table(tmp_path), Jdbc(database.url, "t", "n", overlap=5))
    with pytest.raises(SourceError, match="has a row whose key is NaN; expected a whole number"):
        taken(a_table(tmp_path / "outbox"), Outbox(database.url, "t", "n", delete=True))


def test_an_outbox_that_may_not_be_emptied_sends_nothing_twice(database: Database, tmp_path: Path) -> None:
    database.run(
        "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT SELECT ON outbox TO reader", "INSERT INTO outbox (body) VALUES ('a')"
    )
    table, source = a_table(tmp_path), Outbox(database.url.replace("airflow@", "reader@"), "outbox", "at", key="id", delete=True)
    taken(table, source)
    with pytest.raises(SourceError, match="permission denied for table outbox"):
        taken(table, source)
    database.run("GRANT DELETE ON outbox TO reader")
    assert (taken(table, source), names_in(table), database.run("SELECT count(*) FROM outbox")) == (0, ["a"], [(0,)])
    database.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_a_column_that_is_dropped_while_rows_are_taken_is_an_error(database: Database) -> None:
    database.run("INSERT INTO orders (body) VALUES ('a')")
    planned = Jdbc(database.url, "orders", "id", overlap=1).plan(Position(), limit=None)
    assert planned is not None
    database.run("ALTER TABLE orders RENAME COLUMN id TO number")
    with pytest.raises(SourceError, match=r"order_by='id': .* has no such column; it has number, body, at"):
        list(planned.batches())


# Memory -----------------------------------------------------------------------------------------------------------------

_READ = """
import pickle, sys
from pathlib import Path
from airflow_poison.sources.source import Position
planned = pickle.loads(bytes.fromhex(sys.argv[1])).plan(Position(), limit=None)
def peak():
    return int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")))
rows = 0
for number, batch in enumerate(planned.batches()):
    rows += batch.num_rows
    if number == 20:
        before = peak()
planned.reached()
print(rows, (peak() - before) * 1024)
"""


@pytest.mark.parametrize("kind", ["jdbc", "outbox"])
def test_half_a_million_rows_are_read_a_batch_at_a_time(database: Database, kind: str) -> None:
    database.run("INSERT INTO orders (body) SELECT repeat('x', 500) FROM generate_series(1, 500000)")
    jdbc = Jdbc(database.url, "orders", "id", overlap=1_000)
    source: Source = jdbc if kind == "jdbc" else Outbox(database.url, "orders", "id", delete=True)
    said = subprocess.run([sys.executable, "-c", _READ, pickle.dumps(source).hex()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows, grown = map(int, said.split())
    assert rows == 500_000
    assert grown < {"jdbc": 24, "outbox": 120}[kind] * MEBIBYTE  # all rows have 250; an outbox keeps their keys
