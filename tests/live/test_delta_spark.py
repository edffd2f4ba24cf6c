"""``DeltaChanges`` of a table that Spark writes with Delta Lake's own classes: what Spark's change feed tells is what comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.sources.delta_changes import DeltaChanges
from airflow_poison.values.errors import SourceError
from tests.live.source_kills import a_table, bodies, taken
from tools.servers.maven import fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Sql = Callable[[str], list[dict[str, Any]]]

ROOT = Path(__file__).resolve().parents[2]
VERSION = "4.2.0"
PARTS = "'plain', 'a b', 'c/d', 'e=f', 'ü%'"


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sql]:
    """Run SQL in a Spark of its own."""
    jars = fetched(f"delta-spark-{VERSION}", ("io.delta", "delta-spark_4.1_2.13", VERSION))
    command = [sys.executable, "-m", "tests.live.delta_sql", str(jars)]
    folder, environment = tmp_path_factory.mktemp("warehouse"), {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(line: str) -> list[dict[str, Any]]:
            asked.write(" ".join(line.split()) + "\n")
            asked.flush()
            answer = json.loads(answers.readline() or json.dumps((folder / "log").read_text()[-3_000:]))
            assert isinstance(answer, list), answer
            return answer

        yield run
        asked.close()


def made(sql: Sql, uri: Path, **properties: str) -> str:
    """Make a table of orders in partitions whose names need care; return its name in SQL."""
    told = ", ".join(f"{name.replace('_', '.')} = {value}" for name, value in properties.items())
    sql(
        f"create table delta.`{uri}` (id bigint, amount decimal(10, 2), at timestamp, day date, tags array<string>, part string) using delta "
        f"partitioned by (part) tblproperties ({told})"
    )
    return f"delta.`{uri}`"


def add(sql: Sql, table: str, first: int, number: int) -> None:
    sql(
        f"insert into {table} select id, cast(id as decimal(10, 2)) / 4, timestamp'1900-01-01 00:00:00.123456' + make_interval(0, 0, 0, id * 7000), "
        f"date'1582-10-01' + cast(id * 1000 as int), array(cast(id as string), null), element_at(array({PARTS}, null), cast(id % 6 as int) + 1) "
        f"from range({first}, {first + number})"
    )


def alike(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return rows without what Spark and we write differently: columns that are null, and the time of a commit."""
    kept = [{name: value for name, value in row.items() if value is not None and name != "_commit_timestamp"} for row in rows]
    for row in kept:
        row["amount"], row["at"] = float(row["amount"]), str(datetime.fromisoformat(row["at"]).replace(tzinfo=None))
    return Counter(json.dumps(row, sort_keys=True) for row in kept)


def test_all_that_spark_changes_comes_as_its_own_feed_tells_it(sql: Sql, tmp_path: Path) -> None:
    uri, queue = tmp_path / "orders", a_table(tmp_path)
    table = made(sql, uri, delta_enableChangeDataFeed="true")
    source = DeltaChanges(str(uri), start=0, changes=True)
    add(sql, table, 0, 40)
    first = taken(queue, source)
    sql(f"update {table} set amount = amount + 1 where id % 3 = 0")
    sql(f"delete from {table} where id % 5 = 0")
    sql(f"delete from {table} where part = 'a b'")
    sql(
        f"merge into {table} t using (select id, cast(1 as decimal(10, 2)) amount from range(30, 50)) s on t.id = s.id "
        "when matched and t.id < 35 then delete when matched then update set amount = s.amount "
        "when not matched then insert (id, amount, at, day, part) values (s.id, s.amount, timestamp'2026-01-01', date'2026-01-01', 'new')"
    )
    sql(f"optimize {table}")
    sql(f"insert overwrite {table} select * from {table} where id < 20")
    add(sql, table, 100, 5)
    second = taken(queue, source)
    told = sql(f"select * except (at), cast(at as string) at from table_changes('{table}', 0)")
    assert (first, first + second) == (40, len(told))
    assert alike(bodies(queue)) == alike(told)
    assert taken(queue, source) == 0


def test_rows_that_spark_adds_come_once_across_its_optimize(sql: Sql, tmp_path: Path) -> None:
    uri, queue = tmp_path / "orders", a_table(tmp_path)
    table = made(sql, uri, delta_checkpointInterval="100")  # this Spark cannot read the checkpoints of this Delta
    source = DeltaChanges(str(uri))
    for number in range(8):
        add(sql, table, number * 10, 10)
        if number % 3 == 2:
            sql(f"optimize {table}")
        if number % 2:
            taken(queue, source)
    assert alike(bodies(queue)) == alike(sql(f"select * except (at), cast(at as string) at from {table}"))
    sql(f"update {table} set amount = 0 where id = 1")
    with pytest.raises(SourceError, match=r"changes or removes rows \(UPDATE\)"):
        taken(queue, source)


@pytest.mark.parametrize(
    ("properties", "statement", "says"),
    [
        ({"delta_enableDeletionVectors": "true"}, "delete from {} where id = 3", "deletion vectors"),
        ({"delta_columnMapping_mode": "'name'"}, "select 1", r"delta\.columnMapping\.mode='name'"),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_is_sent(sql: Sql, tmp_path: Path, properties: dict[str, str], statement: str, says: str) -> None:
    uri, queue = tmp_path / "orders", a_table(tmp_path)
    table = made(sql, uri, **properties)
    add(sql, table, 0, 40)
    sql(statement.format(table))
    with pytest.raises(SourceError, match=says):
        taken(queue, DeltaChanges(str(uri)))
    assert bodies(queue) == []
