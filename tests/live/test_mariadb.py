"""``Jdbc`` and ``Outbox`` with a real MariaDB, over PyMySQL: what is different there from PostgreSQL."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql  # type: ignore[import-untyped]
import pytest

from airflow_poison.sources.jdbc import Jdbc
from airflow_poison.values.errors import SourceError
from tests.live.databases import TablesOfADatabase
from tests.live.source_kills import a_table, bodies, rows, taken
from tests.live.topic import until
from tools.servers.spark import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator


MARIADB = shutil.which("mariadbd", path="/usr/sbin:/usr/bin") or ""
ORDERS = "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, body text, at timestamp(6) NOT NULL DEFAULT current_timestamp(6))"
OUTBOX = (
    "CREATE TABLE outbox (id char(36) PRIMARY KEY DEFAULT uuid(), body text, at timestamp(6) NOT NULL DEFAULT current_timestamp(6), sent boolean)"
)

pytestmark = pytest.mark.skipif(not MARIADB, reason="no MariaDB here: apt install mariadb-server")


class Database:
    """The database of a running server."""

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"mysql://airflow:pw@127.0.0.1:{port}/shop"

    def connect(self, *, autocommit: bool = False) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="airflow", password="pw", database="shop", autocommit=autocommit)

    def run(self, *statements: str) -> list[Any]:
        with closing(self.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


@contextmanager
def mariadb() -> Iterator[Database]:
    """Run a MariaDB with an empty database."""
    folder, (port,) = Path(tempfile.mkdtemp(prefix="airflow-poison-mariadb-")), free_ports(1)
    socket, common = folder / "socket", ["--no-defaults", f"--datadir={folder}/data", "--user=root"]
    install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    where = [f"--port={port}", f"--socket={socket}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
    make = (
        "CREATE DATABASE shop CHARACTER SET utf8mb4; CREATE USER airflow@'127.0.0.1' IDENTIFIED BY 'pw'; "
        "GRANT ALL ON *.* TO airflow@'127.0.0.1' WITH GRANT OPTION"
    )
    try:
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        with subprocess.Popen([MARIADB, *common, *where], stderr=subprocess.DEVNULL) as server:
            try:
                until(socket.exists)
                subprocess.run(["mariadb", "--no-defaults", f"--socket={socket}", "--user=root", "-e", make], check=True)
                yield Database(port)
            finally:
                server.terminate()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with mariadb() as there:
        yield there


@pytest.fixture
def database(server: Database) -> Database:
    server.run("DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET utf8mb4", "USE shop", ORDERS, OUTBOX)
    return server


class TestMariaDB(TablesOfADatabase):
    """A real MariaDB."""

    kills = 20


@pytest.mark.parametrize("scheme", ["mariadb", "mysql+pymysql"])
def test_each_kind_of_address_finds_a_driver(database: Database, tmp_path: Path, scheme: str) -> None:
    database.run("INSERT INTO orders (body) VALUES ('a')")
    assert taken(a_table(tmp_path), Jdbc(database.url.replace("mysql", scheme, 1), "orders", "id", overlap=10)) == 1


def test_instants_are_the_same_whatever_zone_the_server_has(database: Database, tmp_path: Path) -> None:
    database.run("SET time_zone = '+00:00'", "INSERT INTO orders (body, at) VALUES ('a', '2024-02-29 12:00:00.000001')")
    table, source = a_table(tmp_path), Jdbc(database.url, "orders", "at", overlap=timedelta(minutes=5))
    assert taken(table, source) == 1
    database.run("SET GLOBAL time_zone = '+05:30'")
    try:
        assert taken(table, source) == 0
        assert bodies(table)[0]["at"] == "2024-02-29T12:00:00.000001"
    finally:
        database.run("SET GLOBAL time_zone = 'SYSTEM'")


def test_what_rows_of_each_type_become(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE kinds (id int PRIMARY KEY, n decimal(30, 1), r float, f boolean, d date, t time(6), l datetime(3), j json, u uuid,"
        " raw varbinary(9), bytes blob, none text, e enum('a', 'b'), s set('x', 'y', 'z'), b bit(4), yes bit(1), y year, big bigint unsigned)",
        "INSERT INTO kinds VALUES (1, 12345678901234567890.5, 0.1, true, '2024-02-29', '01:02:03.5', '2024-02-29 12:00:00', '{\"a\": [1, null]}',"
        " '00000000-0000-0000-0000-000000000001', x'ff', x'00ff', NULL, 'b', 'y,x,z', b'1010', b'1', 2024, 18446744073709551615)",
    )
    table = a_table(tmp_path)
    taken(table, Jdbc(database.url, "kinds", "id", overlap=5))
    assert bodies(table) == [
        {
            "id": 1, "n": 12345678901234567890.5, "r": 0.1, "f": 1, "d": "2024-02-29", "t": "01:02:03.5", "l": "2024-02-29T12:00:00.000",
            "j": '{"a": [1, null]}', "u": "00000000-0000-0000-0000-000000000001", "raw": "/w==", "bytes": "AP8=", "none": None,
            "e": "b", "s": "x,y,z", "b": 10, "yes": 1, "y": "2024", "big": 18446744073709551615,
        }
    ]  # fmt: skip


def test_an_odd_value_comes_as_what_it_is_and_changes_none_beside_it(database: Database, tmp_path: Path) -> None:
    database.run(
        "SET sql_mode = ''",
        "CREATE TABLE odd (id int PRIMARY KEY, d date, t time, l datetime, n decimal(10, 2))",
        "INSERT INTO odd VALUES (1, '2026-01-01', '01:02:03', '2026-01-01', 1.10), (2, '0000-00-00', '-838:59:59', '0000-00-00', NULL)",
    )
    table = a_table(tmp_path)

    taken(table, Jdbc(database.url, "odd", "id", overlap=5))

    assert [row["body"].decode() for row in rows(table)] == [
        '{"id":1,"d":"2026-01-01","t":"01:02:03","l":"2026-01-01T00:00:00.000","n":1.10}',
        '{"id":2,"d":"0000-00-00","t":"-838:59:59","l":"0000-00-00 00:00:00","n":null}',
    ]


@pytest.mark.parametrize("kind", ["timestamp", "datetime(6)"])
def test_a_row_without_a_date_comes_first_and_once(database: Database, tmp_path: Path, kind: str) -> None:
    rows_ = "('none', '0000-00-00'), ('old', '1990-01-01'), ('new', '2026-01-01 00:00:01')"
    database.run("SET sql_mode = ''", f"CREATE TABLE t (k char(4) PRIMARY KEY, at {kind} NOT NULL)", f"INSERT INTO t VALUES {rows_}")
    table, source = a_table(tmp_path), Jdbc(database.url, "t", "at", overlap=timedelta(minutes=5))
    assert [taken(table, source) for _ in range(2)] == [3, 0]
    assert [body["k"] for body in bodies(table)] == ["none", "old", "new"]


def test_an_instant_without_a_month_is_an_error_that_names_it(database: Database, tmp_path: Path) -> None:
    database.run("SET sql_mode = ''", "CREATE TABLE t (k int PRIMARY KEY, at datetime NOT NULL)")
    database.run("SET sql_mode = ''", "INSERT INTO t VALUES (1, '2026-00-10')")
    with pytest.raises(SourceError, match="2026-00-10 00:00:00 in the column of order_by= is no place in an order; expected a whole number or"):
        taken(a_table(tmp_path), Jdbc(database.url, "t", "at", overlap=timedelta(minutes=5)))


def test_floats_doubles_and_bits_keep_their_digits(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE digits (id int PRIMARY KEY, f float, d double, r real, b bit(64))",
        f"INSERT INTO digits VALUES (1, 0.1, 0.1, 1e-300, 1), (2, 16777215, 0.12345678901234568, 1e300, b'{'1' * 64}')",
    )
    table = a_table(tmp_path)

    taken(table, Jdbc(database.url, "digits", "id", overlap=5))

    assert bodies(table) == [
        {"id": 1, "f": 0.1, "d": 0.1, "r": 1e-300, "b": 1},
        {"id": 2, "f": 16777215.0, "d": 0.12345678901234568, "r": 1e300, "b": 2**64 - 1},
    ]


@pytest.mark.parametrize(
    ("kind", "first", "others"),
    [
        ("binary(2)", "x'ff01'", ["x'ff02'", "x'fe01'"]),
        ("bit(8)", "b'11111111'", ["b'11111110'"]),
        ("float", "1234567", ["1234568"]),
        ("set('x', 'y')", "'x,y'", ["'x'"]),
    ],
)
def test_keys_that_are_no_text_are_told_apart(database: Database, tmp_path: Path, kind: str, first: str, others: list[str]) -> None:
    database.run(f"CREATE TABLE t (k {kind} PRIMARY KEY, n int NOT NULL)", f"INSERT INTO t VALUES ({first}, 1)")
    table, source = a_table(tmp_path), Jdbc(database.url, "t", "n", overlap=5)
    assert taken(table, source) == 1
    database.run(f"INSERT INTO t VALUES {', '.join(f'({other}, 1)' for other in others)}")
    assert [taken(table, source) for _ in range(2)] == [len(others), 0]


def test_what_cannot_be_read_is_an_error_with_names_and_a_next_step(database: Database, tmp_path: Path) -> None:
    database.run("INSERT INTO orders (body) VALUES ('a')", "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'pw'")
    try:
        for source, words in (
            (Jdbc(database.url.replace("airflow:", "reader:"), "orders", "id", overlap=1), "cannot be read: .*Access denied for user 'reader'"),
            (Jdbc(database.url.replace(":pw", ":no"), "orders", "id", overlap=1), "cannot be read: .*Access denied for user 'airflow'"),
            (Jdbc("mysql://x@127.0.0.1:1/y", "orders", "id", overlap=1), "cannot be read: .*Connection refused"),
            (Jdbc(database.url, "nowhere.orders", "id", overlap=1), "there is no such table or view"),
            (Jdbc(database.url, "orders", "gone", overlap=1), "order_by='gone': .* has no such column; it has id, body, at. Was it renamed"),
            (Jdbc(database.url, "outbox", "id", overlap=1), r"order_by='id' of .* is CHAR\(36\).*; expected whole numbers or instants"),
        ):
            with pytest.raises(SourceError, match=words):
                taken(a_table(tmp_path / "errors"), source)
    finally:
        database.run("DROP USER reader@'127.0.0.1'")
