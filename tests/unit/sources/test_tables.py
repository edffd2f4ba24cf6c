"""``Jdbc`` and ``Outbox`` over SQLite: each row once, what is refused, and what rows become."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.passes.take import positions, reset_position, take
from airflow_poison.sources.database import _column, _url, address_of
from airflow_poison.sources.jdbc import Jdbc, Outbox
from airflow_poison.sources.source import Connection, Position, Reached
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.fault_points import install
from airflow_poison.values.mapping import ColumnMapping
from tests.given.passes import DiedError, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_poison.sources.source import Source

OUTBOX = "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL, sent INTEGER, at DATETIME)"


class Database:
    """A database in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.run(OUTBOX)

    def run(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def add(self, *bodies: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany("INSERT INTO outbox (body) VALUES (?)", [(body,) for body in bodies])

    def insert(self, key: int, body: str) -> None:
        self.run("INSERT INTO outbox (id, body) VALUES (?, ?)", key, body)

    def bodies(self) -> list[str]:
        return [row[0] for row in self.run("SELECT body FROM outbox ORDER BY id")]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "shop.db")


BODY = ColumnMapping(body="body")


def rows_in(queue: Queue) -> list[dict[str, Any]]:
    return [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]


def bodies_in(queue: Queue) -> list[str]:
    return sorted(row["body"].decode() for row in rows_in(queue))


class Takes:
    """Takes one after the other, each with a key of its own."""

    def __init__(self, queue: Queue, source: Source, mapping: ColumnMapping = BODY) -> None:
        self.queue, self.source, self.mapping, self._number = queue, source, mapping, 0

    def __call__(self, limit: int | None = None) -> int:
        self._number += 1
        return take(self.queue.table, self.source, key=f"take-{self._number}", clock=self.queue.clock, mapping=self.mapping, limit=limit).sent


def everything(source: Source) -> list[Any]:
    """Read what a source has from its beginning."""
    planned = source.plan(Position(), limit=None)
    return [] if planned is None else list(planned.batches())


class TestJdbcContract(SourceContract):
    """A table with growing ids."""

    mapping = BODY

    @pytest.fixture(autouse=True)
    def _empty(self, tmp_path: Path) -> None:
        self.database = Database(tmp_path / "shop.db")

    def source(self) -> Source:
        return Jdbc(self.database.url, "outbox", "id", overlap=2)

    def add(self, bodies: Sequence[str]) -> None:
        self.database.add(*bodies)


class TestOutboxContract(TestJdbcContract):
    """An outbox whose rows are deleted."""

    def source(self) -> Source:
        return Outbox(self.database.url, "outbox", "id", delete=True)

    def test_a_reset_position_begins_anew(self) -> None:
        """What was taken is not there any more."""
        queue = Takes(_queue_of(self), self.source())
        self.add(["1", "2"])
        assert (queue(), self.database.bodies()) == (2, [])
        assert reset_position(queue.queue.table, self.source().name, queue.queue.clock)
        self.add(["3"])
        assert (queue(), bodies_in(queue.queue)) == (1, ["1", "2", "3"])


class TestMarkedContract(TestOutboxContract):
    """An outbox whose rows are marked."""

    def source(self) -> Source:
        return Outbox(self.database.url, "outbox", "id", mark="sent")

    def test_a_reset_position_begins_anew(self) -> None:
        """What was taken is marked, and does not come again."""
        queue = Takes(_queue_of(self), self.source())
        self.add(["1", "2"])
        assert (queue(), self.database.run("SELECT sent FROM outbox")) == (2, [(1,), (1,)])
        assert reset_position(queue.queue.table, self.source().name, queue.queue.clock)
        assert queue() == 0


def _queue_of(test: TestJdbcContract) -> Queue:
    from airflow_poison.store.memory import MemoryStore
    from tests.given.passes import a_queue

    return a_queue(MemoryStore(), test.database.path.parent)


# Jdbc -----------------------------------------------------------------------------------------------------------------


def test_rows_that_become_visible_late_are_taken_within_the_overlap_and_once(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Jdbc(database.url, "outbox", "id", overlap=3))
    for key in (1, 2, 6):
        database.insert(key, f"b{key}")
    assert takes() == 3
    database.insert(5, "b5")
    database.insert(3, "b3")
    assert (takes(), takes()) == (2, 0)
    database.insert(7, "b7")
    database.insert(4, "b4")
    assert (takes(), takes()) == (2, 0)
    assert bodies_in(queue) == ["b1", "b2", "b3", "b4", "b5", "b6", "b7"]


def test_keys_before_the_window_are_forgotten(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Jdbc(database.url, "outbox", "id", overlap=10))
    database.add(*(f"b{each}" for each in range(2_500)))
    assert takes() == 2_500
    (stored,) = queue.table.stored_sources()
    assert sorted(map(int, queue.table.source_keys(stored)["at"].to_numpy())) == list(range(2_490, 2_501))
    database.add("new")
    takes()
    (stored,) = queue.table.stored_sources()
    assert sorted(map(int, queue.table.source_keys(stored)["at"].to_numpy())) == list(range(2_491, 2_502))


def test_a_limit_goes_on_where_it_stopped_and_takes_what_came_before_it_meanwhile(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Jdbc(database.url, "outbox", "id", overlap=5))
    for key in (1, 3, 4, 5, 6):
        database.insert(key, f"b{key}")
    assert takes(limit=3) == 3
    database.insert(2, "b2")
    assert [takes(limit=2) for _ in range(3)] == [2, 1, 0]
    assert bodies_in(queue) == ["b1", "b2", "b3", "b4", "b5", "b6"]


def test_the_watermark_never_goes_back(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Jdbc(database.url, "outbox", "id", overlap=5))
    database.insert(10, "b10")
    takes()
    database.insert(6, "b6")
    takes()
    (found,) = positions(queue.table)
    assert (found.position, dict(found.at)) == ("id 10", {"order_by": "id", "watermark": 10})


def test_a_backfill_takes_rows_again(database: Database, queue: Queue) -> None:
    source = Jdbc(database.url, "outbox", "id", overlap=5)
    database.add("a", "b", "c", "d")
    Takes(queue, source)()
    take(queue.table, source, key="again", clock=queue.clock, mapping=BODY, between=("2", "4"))
    assert bodies_in(queue) == ["a", "b", "b", "c", "c", "d"]
    with pytest.raises(InputError, match="'x' is no place to begin or to end; expected a whole number"):
        source.between("x", "2")


def test_a_position_of_another_column_is_refused(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, other INTEGER NOT NULL, body TEXT)")
    database.run("INSERT INTO t VALUES (1, 1, 'a')")
    Takes(queue, Jdbc(database.url, "t", "id", overlap=5))()
    with pytest.raises(SourceError, match=r"order_by='other': source .* was taken with order_by='id' so far"):
        take(queue.table, Jdbc(database.url, "t", "other", overlap=5), key="other", clock=queue.clock)


TABLES = """
CREATE TABLE kinds (id INTEGER PRIMARY KEY, label TEXT, real DOUBLE, price NUMERIC(10, 2), flag BOOLEAN, day DATE, at DATETIME, raw BLOB, doc JSON,
  none INTEGER, free)
"""


def test_rows_become_json_with_the_types_of_their_columns(database: Database, queue: Queue) -> None:
    database.run(TABLES)
    row = (1, 'ä"', 1.5, 9.99, 1, "2024-02-29", "2024-02-29 12:00:00.000000", b"\xff", '{"a": [1, null]}', None, 7)
    database.run(f"INSERT INTO kinds VALUES ({', '.join('?' * len(row))})", *row)
    Takes(queue, Jdbc(database.url, "kinds", "id", overlap=5), ColumnMapping())()
    assert json.loads(rows_in(queue)[0]["body"]) == {
        "id": 1, "label": 'ä"', "real": 1.5, "price": 9.99, "flag": True, "day": "2024-02-29", "at": "2024-02-29T12:00:00.000", "raw": "/w==",
        "doc": {"a": [1, None]}, "none": None, "free": "7",
    }  # fmt: skip


def test_keys_may_be_bytes(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE t (k BLOB PRIMARY KEY NOT NULL, n INTEGER NOT NULL)")
    database.run("INSERT INTO t VALUES (x'ff01', 1)")
    takes = Takes(queue, Jdbc(database.url, "t", "n", overlap=5), ColumnMapping())
    assert takes() == 1
    database.run("INSERT INTO t VALUES (x'ff02', 1)")
    assert (takes(), takes()) == (1, 0)


def test_what_is_no_json_in_a_column_of_json_is_text(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, doc JSON)")
    database.run("""INSERT INTO t VALUES (1, '{"a": 1}'), (2, '{nonsense'), (3, NULL), (4, 'null')""")
    assert Takes(queue, Jdbc(database.url, "t", "id", overlap=5), ColumnMapping())() == 4
    found = {body["id"]: body["doc"] for body in (json.loads(row["body"]) for row in rows_in(queue))}
    assert found == {1: {"a": 1}, 2: "{nonsense", 3: None, 4: None}


def test_a_value_that_is_not_of_its_columns_type_stops_nothing(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, priority INTEGER, body TEXT)")
    database.run("INSERT INTO t VALUES (1, 'high', 'a'), (2, 7, 'b'), (3, 99, NULL)")
    Takes(queue, Jdbc(database.url, "t", "id", overlap=5), ColumnMapping(body="body", priority="priority"))()
    found = {row["body"].decode(): (row["priority"], row["reason"]) for row in rows_in(queue)}
    assert found["b"] == (7, None)
    assert found["a"][1].startswith("MalformedError: priority='priority': high is no priority")
    assert found['{"id":3,"priority":99,"body":null}'][1].startswith("MalformedError: body='body': it is null")


ODD = [
    ("NUMERIC(10, 2)", "9.999", "9.999", [("'n/a'", '"n/a"'), ("1e300", "1e+300"), ("CAST(X'ff' AS TEXT)", '"/w=="')]),
    ("INTEGER", "9007199254740993", "9007199254740993", [("1.5", '"1.5"'), ("'n/a'", '"n/a"')]),
    ("DOUBLE", "0.1", "0.1", [("'n/a'", '"n/a"'), ("9e999", '"Infinity"')]),
    ("BOOLEAN", "1", "true", [("2", '"2"'), ("'yes'", '"yes"')]),
    ("DATE", "'2026-01-01'", '"2026-01-01"', [("'20260101'", '"20260101"'), ("'0000-00-00'", '"0000-00-00"'), ("1767225600", '"1767225600"')]),
    (
        "DATETIME",
        "'2026-01-01 00:00:00'",
        '"2026-01-01T00:00:00.000"',
        [("'2026-01-01T00:00:00Z'", '"2026-01-01T00:00:00Z"'), ("'never'", '"never"')],
    ),
    ("TEXT", "'x'", '"x"', [("X'ff'", '"ff"'), ("CAST(X'61ff' AS TEXT)", '"61ff"')]),
    ("JSON", "'{\"a\":1.10}'", '{"a":1.10}', [("'{'", '"{"'), ("'NaN'", '"NaN"')]),
    ("", "'x'", '"x"', [("0.1", '"0.1"'), ("7", '"7"')]),
]


@pytest.mark.parametrize(("kind", "values"), [(each[0], each[1:]) for each in ODD], ids=[each[0] for each in ODD])
def test_an_odd_value_comes_as_what_it_is_and_changes_none_beside_it(
    database: Database, queue: Queue, kind: str, values: tuple[str, str, list[tuple[str, str]]]
) -> None:
    good, as_json, odd = values
    database.run(f"CREATE TABLE odd (id INTEGER PRIMARY KEY, v {kind})")
    given = [good, *(value for value, _ in odd), "NULL", good]
    database.run(f"INSERT INTO odd (v) VALUES {', '.join(f'({value})' for value in given)}")

    Takes(queue, Jdbc(database.url, "odd", "id", overlap=5), ColumnMapping(group="v"))()

    found = sorted(row["body"].decode() for row in rows_in(queue))
    assert found == [f'{{"id":{at},"v":{value}}}' for at, value in enumerate([as_json, *(said for _, said in odd), "null", as_json], 1)]
    assert {row["reason"] for row in rows_in(queue)} == {None}


def test_a_body_that_is_not_of_its_columns_type_is_its_text(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)")
    database.run("INSERT INTO t VALUES (1, 'a'), (2, X'ff')")
    Takes(queue, Jdbc(database.url, "t", "id", overlap=5))()
    assert bodies_in(queue) == ["a", "ff"]


# Outbox ---------------------------------------------------------------------------------------------------------------


def test_killed_between_the_commit_and_the_deletion_each_row_comes_once(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Outbox(database.url, "outbox", "id", delete=True))
    database.add("a", "b")

    def die(point: str) -> None:
        if point == "store.append.after_commit":
            raise DiedError

    install(die)
    try:
        with pytest.raises(DiedError):
            takes()
    finally:
        install(None)
    assert database.bodies() == ["a", "b"]
    database.add("c")
    assert (takes(), takes()) == (1, 0)
    assert (bodies_in(queue), database.bodies()) == (["a", "b", "c"], [])


def test_nothing_is_deleted_before_the_commit(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Outbox(database.url, "outbox", "id", delete=True))
    database.add("a")
    seen: list[list[str]] = []
    install(lambda point: seen.append(database.bodies()) if point == "store.append.before_commit" else None)
    try:
        takes()
    finally:
        install(None)
    assert (seen, database.bodies()) == ([["a"]], [])


def test_only_rows_that_were_taken_are_deleted(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Outbox(database.url, "outbox", "id", delete=True))
    database.add(*(f"b{each:04}" for each in range(1_200)))
    assert takes(limit=700) == 700
    assert database.bodies() == [f"b{each:04}" for each in range(700, 1_200)]
    assert (takes(), len(set(bodies_in(queue)))) == (500, 1_200)
    (found,) = positions(queue.table)
    assert found.position == "1,200 rows were taken"


def test_a_database_that_cannot_be_informed_is_by_the_next_take(database: Database, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    takes = Takes(queue, Outbox(database.url, "outbox", "id", delete=True))
    database.add("a")
    database.run("CREATE TRIGGER no BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'not now'); END")
    with caplog.at_level(logging.WARNING):
        assert takes() == 1
    assert "the source could not be informed" in caplog.text
    with pytest.raises(SourceError, match="cannot be read: not now"):
        takes()
    database.run("DROP TRIGGER no")
    assert (takes(), database.bodies(), bodies_in(queue)) == (0, [], ["a"])


def test_rows_that_stay_though_they_were_deleted_are_no_second_message(database: Database, queue: Queue) -> None:
    takes = Takes(queue, Outbox(database.url, "outbox", "id", delete=True))
    database.add("a")
    database.run("CREATE TRIGGER no BEFORE DELETE ON outbox BEGIN SELECT RAISE(IGNORE); END")
    takes()
    with pytest.raises(SourceError, match=r"the row with id=1 is in the queue, and is still there though it was deleted\. Does a trigger"):
        takes()
    assert bodies_in(queue) == ["a"]


def test_ids_that_sqlite_gives_again_are_refused(database: Database) -> None:
    database.run("CREATE TABLE again (id INTEGER PRIMARY KEY, body TEXT)")
    with pytest.raises(SourceError, match="SQLite gives the ids of deleted rows again"):
        Outbox(database.url, "again", "id", delete=True).plan(Position(), limit=None)


def test_a_mark_is_the_time_where_the_column_has_times_and_keys_may_be_text(database: Database, queue: Queue) -> None:
    database.run("CREATE TABLE box (name TEXT PRIMARY KEY, body TEXT, done DATETIME)")
    database.run("INSERT INTO box VALUES ('x', 'a', NULL), ('it''s', 'b', NULL), ('z', 'c', '2024-01-01 00:00:00')")
    takes = Takes(queue, Outbox(database.url, "box", "name", mark="done"))
    assert (takes(), takes(), bodies_in(queue)) == (2, 0, ["a", "b"])
    assert database.run("SELECT count(*) FROM box WHERE done IS NULL") == [(0,)]
    assert database.run("SELECT done FROM box WHERE name = 'z'") == [("2024-01-01 00:00:00",)]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda url: Jdbc(url, "gone", "id", overlap=1), "Table 'gone' of source .* there is no such table or view"),
        (lambda url: Jdbc(url, "outbox", "gone", overlap=1), "order_by='gone': .* has no such column; it has id, body, sent, at"),
        (lambda url: Jdbc(url, "outbox", "id", key="gone", overlap=1), "key='gone': .* has no such column"),
        (lambda url: Jdbc(url, "outbox", "body", overlap=1), "order_by='body' of .* is TEXT; expected whole numbers or instants"),
        (lambda url: Jdbc(url, "outbox", "at", overlap=timedelta(1)), "order_by='at' of .* SQLite keeps instants as text"),
        (lambda url: Jdbc(url, "outbox", "id", overlap=timedelta(1)), "overlap=.*order_by='id' of .* is INTEGER; expected a number"),
        (lambda url: Jdbc(url, "outbox", "id", key="body", overlap=1), "key='body': several rows of .* may have the same one"),
        (lambda url: Jdbc(url, "keyless", "id", overlap=1), "has no primary key"),
        (lambda url: Jdbc(url, "odd", "id", key="part", overlap=1), "key='part': several rows of .* may have the same one.*known as that are: sure"),
        (lambda url: Jdbc(url, "odd", "id", key="made", overlap=1), "key='made': several rows"),
        (lambda url: Jdbc(url, "odd", "id", key="nulls", overlap=1), "key='nulls': several rows"),
        (lambda url: Outbox(url, "odd", "id", key="part", delete=True), "key='part': several rows"),
        (lambda url: Jdbc(url, "huge", "id", key="id", overlap=1), "9223372036854775808 in the column of order_by= is beyond 64 bits"),
        (lambda url: Jdbc(url, "bare", "id", key="id", overlap=1), "has rows whose 'id' is null"),
        (lambda _url: Jdbc("sqlite:////nowhere/x.db", "t", "id", overlap=1), "There is no database file '/nowhere/x.db'"),
        (lambda _url: Jdbc("nonsense://x/y", "t", "id", overlap=1), "cannot be reached: .*nonsense.*Expected an SQLAlchemy URL"),
        (lambda _url: Jdbc("shop", "t", "id", overlap=1), "Airflow has not looked up connection 'shop'"),
        (lambda url: Outbox(url, "outbox", "id", mark="gone"), "mark='gone': .* has no such column"),
        (lambda url: Outbox(url, "outbox", "id", mark="body"), "mark='body' of .* is TEXT; expected booleans, whole numbers or instants"),
        (lambda url: Outbox(url, "outbox", "id", key="at", delete=True), "key='at' of .* expected whole numbers, text or UUIDs"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_names_and_a_next_step(database: Database, source: Any, words: str) -> None:
    database.run("CREATE TABLE bare (id INTEGER, body TEXT)")
    database.run("INSERT INTO bare VALUES (1, 'a'), (NULL, 'b')")
    database.run("CREATE TABLE keyless (id INTEGER NOT NULL)")
    database.run("CREATE TABLE odd (id INTEGER NOT NULL, part TEXT NOT NULL, made TEXT NOT NULL, nulls TEXT UNIQUE, sure TEXT NOT NULL UNIQUE)")
    database.run("CREATE UNIQUE INDEX some ON odd (part) WHERE id > 3")
    database.run("CREATE UNIQUE INDEX lowered ON odd (lower(made))")
    database.run("CREATE TABLE huge (id NUMERIC(30, 0) NOT NULL)")
    database.run("INSERT INTO huge VALUES (9223372036854775808.0)")
    database.add("a")
    with pytest.raises(SourceError, match=words):
        everything(source(database.url))


def test_a_table_that_counts_anew_is_said(database: Database, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    takes = Takes(queue, Jdbc(database.url, "outbox", "id", overlap=5))
    database.insert(100, "a")
    assert (takes(), takes(), caplog.text) == (1, 0, "")
    database.run("DELETE FROM outbox")
    database.insert(1, "b")
    with caplog.at_level(logging.WARNING):
        assert takes() == 0
    assert "its newest id is 1, and source" in caplog.text
    assert "looks at rows from 95 on" in caplog.text


def test_a_column_that_is_dropped_between_plan_and_reading_is_an_error(database: Database) -> None:
    database.add("a")
    planned = Jdbc(database.url, "outbox", "id", overlap=1).plan(Position(), limit=None)
    assert planned is not None
    database.run("ALTER TABLE outbox RENAME COLUMN id TO key")
    with pytest.raises(SourceError, match=r"order_by='id': .* has no such column; it has key, body"):
        list(planned.batches())


def test_rows_that_are_gone_between_plan_and_reading_move_nothing(database: Database) -> None:
    database.add("a")
    planned = Jdbc(database.url, "outbox", "id", overlap=1).plan(Position(), limit=None)
    assert planned is not None
    database.run("DELETE FROM outbox")
    assert (list(planned.batches()), planned.reached()) == ([], Reached({}))


@pytest.mark.parametrize("overlap", [0, -1, True, timedelta(0), timedelta(-1), 1.5, None])
def test_a_bare_watermark_is_not_offered(overlap: Any) -> None:
    with pytest.raises(SettingError, match="overlap="):
        Jdbc("shop", "orders", "id", overlap=overlap)


@pytest.mark.parametrize("settings", [{}, {"delete": True, "mark": "sent"}])
def test_an_outbox_says_what_becomes_of_its_rows(settings: Any) -> None:
    with pytest.raises(SettingError, match="delete="):
        Outbox("shop", "outbox", "id", **settings)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql+psycopg2://me:secret@db:1/shop?sslmode=require", "postgresql://db:1/shop"),
        *((f"postgresql://me:sec{each}ret@db:1/shop", "postgresql://db:1/shop") for each in "/?#:[@"),
        ("postgresql://db/shop?password=secret&options=a@b", "postgresql://db/shop"),
        ("sqlite:////data/a@b/shop.db", "sqlite:////data/a@b/shop.db"),
        ("shop_db", "shop_db"),
    ],
)
def test_a_source_is_named_without_the_password_of_its_address(address: str, name: str) -> None:
    assert Jdbc(address, "orders", "id", overlap=1).name == f"{name}:orders"


def test_a_connection_is_looked_up_and_no_text_shows_its_password() -> None:
    source = Jdbc("shop", "orders", "id", overlap=1)
    connection = Connection("shop", "postgres", "db.example", 5433, "me", "p@ss/word", "shop", {"sslmode": "require", "other": 1})
    connected = source.connected(lambda conn_id: connection if conn_id == "shop" else pytest.fail(conn_id))
    assert connected.address == "postgresql://me:p%40ss%2Fword@db.example:5433/shop?sslmode=require"  # type: ignore[attr-defined]
    assert (connected.name, source.name) == ("shop:orders", "shop:orders")
    assert "word" not in repr(connected)
    direct = Jdbc("postgresql+psycopg2://me:secret@db:1/shop?sslmode=require", "orders", "id", overlap=1)
    assert (direct.name, direct.connected(pytest.fail)) == ("postgresql://db:1/shop:orders", direct)
    assert "secret" not in repr(direct)


def test_the_address_of_a_file_and_of_a_scheme_that_is_named() -> None:
    assert address_of(Connection("x", "sqlite", "/data/shop.db")) == "sqlite:////data/shop.db"
    assert address_of(Connection("x", "generic", "h", extra={"sqlalchemy_scheme": "mysql+pymysql"})) == "mysql+pymysql://h"


def test_mysqls_own_types_and_drivers_are_known() -> None:
    import pyarrow as pa
    from sqlalchemy import Column as SqlColumn
    from sqlalchemy.dialects import mysql, postgresql

    kinds = {"flags": mysql.BIT(4), "tags": mysql.SET("x", "y"), "bits": postgresql.BIT(4)}
    found = {name: _column(SqlColumn(name, kind)) for name, kind in kinds.items()}
    assert {name: (each.kind, each.as_text) for name, each in found.items()} == {
        "flags": (pa.uint64(), False),
        "tags": (pa.string(), True),
        "bits": (pa.string(), True),
    }
    assert [_url(f"{scheme}://a@host/shop").drivername for scheme in ("mysql", "mariadb")] == ["mysql+pymysql", "mariadb+pymysql"]


def test_rows_of_an_outbox_without_a_key_are_passed_over(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE box (id integer, v text, sent int)")
        connection.executemany("INSERT INTO box (id, v) VALUES (?, ?)", [(1, "a"), (None, "b"), (3, "c")])
    source = Outbox(f"sqlite:///{tmp_path}/db", "box", "id", mark="sent")

    planned = source.plan(Position(), limit=None)
    assert planned is not None
    assert [number for batch in planned.batches() for number in batch.column("id").to_pylist()] == [1, 3]
    reached = planned.reached()
    position = Position(reached.at, lambda: reached.keys)  # type: ignore[arg-type, return-value]  # it has some
    source.acknowledge(position)
    again = source.plan(position, limit=None)

    assert again is not None
    assert again.what == ""
    assert [sentence.partition(" of ")[0] for take in (planned, again) for sentence in take.passed_over] == ["1 row", "1 row"]


def reached_by(source: Outbox, rows: int) -> Reached:
    """Take so many rows, and return the position behind them."""
    planned = source.plan(Position(), limit=None)
    assert planned is not None
    assert sum(batch.num_rows for batch in planned.batches()) == rows
    return planned.reached()


def test_a_row_with_the_key_of_one_that_was_taken_is_not_marked_with_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("CREATE TABLE box (id integer, v text, sent int)")
        connection.executemany("INSERT INTO box (id, v) VALUES (?, ?)", [(1, "a"), (3, "c")])
        connection.commit()
        source = Outbox(f"sqlite:///{tmp_path}/db", "box", "id", mark="sent")
        reached = reached_by(source, 2)
        connection.execute("INSERT INTO box (id, v) VALUES (3, 'late')")
        connection.commit()

        with pytest.raises(SourceError, match="more rows have id=3 than were taken"):
            source.acknowledge(Position(reached.at, lambda: reached.keys))  # type: ignore[arg-type, return-value]  # it has some
        assert connection.execute("SELECT count(*) FROM box WHERE sent IS NULL").fetchall() == [(3,)]


def test_rows_of_one_key_that_were_all_taken_are_marked_wherever_a_statement_ends(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("CREATE TABLE box (id integer, sent int)")
        connection.executemany("INSERT INTO box (id) VALUES (?)", [(0,), *((number,) for number in range(1, 400) for _ in range(2))])
        connection.commit()
        source = Outbox(f"sqlite:///{tmp_path}/db", "box", "id", mark="sent")

        reached = reached_by(source, 799)
        source.acknowledge(Position(reached.at, lambda: reached.keys))  # type: ignore[arg-type, return-value]  # it has some

        assert connection.execute("SELECT count(*) FROM box WHERE sent IS NULL").fetchall() == [(0,)]
