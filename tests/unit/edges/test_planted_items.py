"""Loops over what others wrote: one poisonous item among good ones is named, and the others are as without it; the shell shows no traceback."""

from __future__ import annotations

import os
import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_poison import Files, Jdbc
from airflow_poison.cli.main import COMMANDS
from airflow_poison.passes.take import take
from tests.unit.edges.conftest import MOVE, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.sources.source import Source
    from tests.unit.edges.conftest import Shell

GOOD = b'{"n": 1}\n'


# Sources --------------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> Source:
    return Files(f"{folder}/**/*", format="json", settled=timedelta(0))


def _parquet(folder: Path) -> Source:
    for name in ("a", "c"):
        pq.write_table(pa.table({"n": [1]}), folder / f"{name}.parquet")
    return Files(f"{folder}/*.parquet", format="parquet", settled=timedelta(0))


def _rows(folder: Path) -> Source:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("create table t (id integer primary key, n decimal(9, 2))")
        database.executemany("insert into t (n) values (?)", [("1",), ("1e60",), ("1",)])
    database.close()
    return Jdbc(f"sqlite:///{folder}/shop.db", "t", "id", overlap=10)


SOURCES: dict[str, tuple[Callable[[Path], object], Callable[[Path], Source], int]] = {
    "a name that is no UTF-8": (lambda folder: (folder / os.fsdecode(b"b\xff.jsonl")).write_bytes(GOOD), _files, 2),
    "a name with a line end": (lambda folder: (folder / "b\n.jsonl").write_bytes(GOOD), _files, 3),
    "a circle of links": (lambda folder: (folder / "b").symlink_to(folder / "b"), _files, 2),
    "a link to nothing": (lambda folder: (folder / "b.jsonl").symlink_to(folder / "nothing"), _files, 2),
    "deep JSON": (lambda folder: (folder / "b.jsonl").write_bytes(b"[" * 100_000), _files, 2),
    "no text": (lambda folder: (folder / "b.jsonl").write_bytes(b"\xff\xfe\x00"), _files, 2),
    "an empty Parquet file": (lambda folder: (folder / "b.parquet").write_bytes(b""), _parquet, 2),  # iceberg 4051, spark-avro 168
    "a cut Parquet file": (lambda folder: (folder / "b.parquet").write_bytes(b"PAR1"), _parquet, 2),
    "a value that its column does not have": (lambda _folder: None, _rows, 2),
}


@pytest.mark.parametrize("planted", SOURCES)
def test_a_source_takes_what_is_beside_a_poisonous_item(planted: str, tmp_path: Path) -> None:
    plant, source, good = SOURCES[planted]
    for name in ("a.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(GOOD)
    plant(tmp_path)
    table, clock = a_queue()

    result = take(table, source(tmp_path), key="take", clock=clock)

    assert result.sent - result.malformed >= good
    assert result.malformed or result.passed_over or result.sent == 3


# Stores and the shell -------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(shell: Shell) -> Shell:
    """Give a store with a queue of odd messages, and beside it a table that is no queue, a damaged queue, and a file."""
    for queue in ("good", "broken"):
        assert shell("send", queue, '{"n": 1}', "n/a", '{"t": "\\ud800"}', "[" * 2_000, *MOVE).code == 0
    shell.fail("good")
    write_deltalake(shell.folder / "queues" / "alien", pa.table({"n": [1]}))
    log = max((shell.folder / "queues" / "broken" / "_delta_log").glob("*.json"))
    log.write_bytes(b'{"add": 5}\n\xff')
    (shell.folder / "queues" / "file").write_bytes(b"\x00")
    return shell


MORE = {
    "move": ["1"],
    "send": ["x"],
    "receive": ["--handler", "edge_handlers:bad", "--engine", "local"],
    "query": ["select 1"],
    "remove": ["1", "--yes"],
    "inspect": ["--lookup-id", "1"],
}


@pytest.mark.parametrize("queue", ["broken", "alien", "file", "good"])
def test_no_command_ends_with_a_traceback(queue: str, planted: Shell) -> None:
    for command in COMMANDS:
        ran = planted(command.name, queue, *MORE.get(command.name, []))  # raises what is no error of the user
        assert "Traceback" not in ran.out + ran.err, command.name


def test_a_list_has_each_queue_beside_those_that_cannot_be_read(planted: Shell) -> None:
    ran = planted("list")

    assert "good" in ran.out
    assert "broken" in ran.out + ran.err
