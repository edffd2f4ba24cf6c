"""What ``Jdbc`` and ``Outbox`` hold whatever the database is: rows that become visible late, and takers that are killed."""

from __future__ import annotations

import random
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from airflow_poison.passes.take import positions
from airflow_poison.sources.jdbc import Jdbc, Outbox
from tests.live.source_kills import KILLS, a_table, bodies, killed, taken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.sources.database import TableSource


class Database(Protocol):
    """A database with the empty tables ``orders`` (``id``, ``body``, ``at``) and ``outbox`` (these and ``sent``)."""

    url: str

    def connect(self) -> Any:
        """Return a connection of the database's driver, with a transaction of its own."""

    def run(self, *statements: str) -> list[Any]:
        """Run statements; return the rows of the last one."""


def add(connection: Any, *names: str, table: str = "orders") -> None:
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"INSERT INTO {table} (body) VALUES (%s)", [name])


def names_in(table: Any) -> list[str]:
    return [body["body"] for body in bodies(table)]


class Writers:
    """Transactions that end in another order than they begin, and some that never do."""

    def __init__(self, connect: Callable[[], Any], table: str) -> None:
        self.connect, self.table = connect, table
        self.committed: list[str] = []
        self._draw, self._open = random.Random(5), list[tuple[Any, list[str]]]()

    def __call__(self, number: int) -> None:
        for each in range(4):
            names = [f"{number}-{each}-{row}" for row in range(self._draw.choice([1, 5, 40]))]
            connection = self.connect()
            add(connection, *names, table=self.table)
            self._open.append((connection, names))
        self._draw.shuffle(self._open)
        while len(self._open) > 3:
            self._end(*self._open.pop())

    def end(self) -> list[str]:
        while self._open:
            self._end(*self._open.pop())
        return sorted(self.committed)

    def _end(self, connection: Any, names: list[str]) -> None:
        if self._draw.random() < 0.2:
            connection.rollback()
        else:
            connection.commit()
            self.committed += names
        connection.close()


SOURCES: dict[str, Callable[[str], TableSource]] = {
    "jdbc ids": lambda url: Jdbc(url, "orders", "id", overlap=2_000),
    "jdbc instants": lambda url: Jdbc(url, "orders", "at", overlap=timedelta(minutes=10)),
    "outbox deleted": lambda url: Outbox(url, "outbox", "at", key="id", delete=True),
    "outbox marked": lambda url: Outbox(url, "outbox", "at", key="id", mark="sent"),
}


class TablesOfADatabase:
    """The tests. A subclass's module has the fixture ``database``.

    :cvar kills: of two takers that race.
    """

    kills = KILLS

    @pytest.mark.parametrize(("order_by", "overlap"), [("id", 10), ("at", timedelta(minutes=5))])
    def test_a_row_whose_transaction_ends_late_is_taken_once(self, database: Database, tmp_path: Path, order_by: str, overlap: Any) -> None:
        table, source = a_table(tmp_path), Jdbc(database.url, "orders", order_by, overlap=overlap)
        with closing(database.connect()) as late, closing(database.connect()) as early:
            add(late, "late")
            add(early, "early")
            early.commit()
            assert (taken(table, source), names_in(table)) == (1, ["early"])
            late.commit()
        assert [taken(table, source) for _ in range(2)] == [1, 0]
        assert names_in(table) == ["early", "late"]

    @pytest.mark.parametrize("how", [{"delete": True}, {"mark": "sent"}])
    def test_an_outbox_is_emptied_or_marked_and_late_rows_come(self, database: Database, tmp_path: Path, how: Any) -> None:
        table, source = a_table(tmp_path), Outbox(database.url, "outbox", "at", key="id", **how)
        with closing(database.connect()) as late, closing(database.connect()) as early:
            add(late, "late", table="outbox")
            add(early, *map(str, range(1_200)), table="outbox")
            early.commit()
            assert [taken(table, source, limit=700), taken(table, source)] == [700, 500]
            late.commit()
        assert [taken(table, source) for _ in range(2)] == [1, 0]
        assert names_in(table) == [*map(str, range(1_200)), "late"]
        left = database.run("SELECT count(*), coalesce(sum(CASE WHEN sent THEN 1 ELSE 0 END), 0) FROM outbox")
        assert left == [(0, 0) if "delete" in how else (1_201, 1_201)]

    @pytest.mark.parametrize("kind", SOURCES)
    def test_two_takers_that_race_and_are_killed_take_each_committed_row_once(self, database: Database, tmp_path: Path, kind: str) -> None:
        source = SOURCES[kind](database.url)
        writers = Writers(database.connect, source.table)

        def arrive(number: int) -> None:
            if number < self.kills - 1:
                writers(number)
            else:
                writers.end()

        table = killed(tmp_path, source, arrive, kills=self.kills)
        assert sorted(names_in(table)) == writers.end()
        (found,) = positions(table)
        assert found.messages == len(writers.committed)
        if kind.startswith("outbox"):
            assert database.run("SELECT count(*) FROM outbox WHERE sent IS NOT TRUE") == [(0,)]
