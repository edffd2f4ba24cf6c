"""Each door hands over the same bytes for the same record: the shell's files, files of a source, a path that is sent, Kafka, databases, Delta."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_poison import DeltaChanges, Files, Jdbc
from airflow_poison.passes.send import send
from airflow_poison.passes.take import take
from airflow_poison.sources.kafka_topic import to_messages
from airflow_poison.sources.paths import PathFiles
from airflow_poison.sources.source import NO_BODY
from airflow_poison.values.json_text import tree
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from tests.unit.edges.conftest import LONG_AGO, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_poison.sources.source import Source
    from airflow_poison.store.queue_table import QueueTable
    from tests.unit.edges.conftest import Shell

LINES = [
    b'{"amount": 12345678901234567.89, "rate": 1.10}',
    b'{"huge": 1e400, "tiny": 1E-400, "zero": -0.0}',
    b'{"a": 1, "a": 2}',
    b'{"t": "\\ud83d", "u": "\\u0061", "\xc5\x81": "\xe2\x80\xae"}',
    b'{ "spaces" :\t1 }',
    b'"a text"',
    b"[1, 2]",
    b"null",
    b'{"n/a": "n/a", "NA": "NA", "null": "null"}',
    b'{"at": "2013-01-31T05:00:00.1234567Z"}',
]
WRONG = [b'{"a": NaN}', b'{"a": "caf\xe9"}', b"{'a': 1}", b'{"a": 1} {"a": 2}', b'{"a": 1', b"\x00"]
TABLE = pa.table(
    {
        "whole": pa.array([2**63 - 1, None, -1]),
        "exact": pa.array([Decimal("12345678901234567.89"), None, Decimal("0.10")], pa.decimal128(19, 2)),
        "real": pa.array([0.1, None, 1e300]),
        "text": pa.array(["NA", None, 'a "quote",\nand more']),
        "truth": pa.array([True, None, False]),
        "day": pa.array([date(2013, 1, 31), None, date(1, 1, 1)]),
        "at": pa.array([datetime(2013, 1, 31, 5, 0, 0, 123_456, UTC), None, datetime(2013, 1, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
        "list": pa.array([[Decimal("1.10")], None, []], pa.list_(pa.decimal128(19, 2))),
        "struct": pa.array([{"x": Decimal("1.10")}, None, {"x": None}], pa.struct([("x", pa.decimal128(19, 2))])),
        "map": pa.array([[("k", Decimal("12345678901234567.89"))], None, []], pa.map_(pa.string(), pa.decimal128(19, 2))),
    }
)
CSV = b'id,name,note\r\n1,NA,""\r\n2,null,\r\n3,nan,"a ""quote"",\nand more"\r\n4,1_000,\xc5\x81\r\n'

Places = dict[str, list[bytes]]


def in_queue(table: QueueTable) -> Places:
    """Return bodies by sub-queue, in the order of their lookup ids."""
    found: Places = {}
    for file in sorted(table.snapshot().files, key=lambda file: file.min_lookup_id):
        found.setdefault(str(file.sub_queue), []).extend(row["body"] for row in table.read(file).to_pylist())
    return found


def taken(source: Source) -> Places:
    table, clock = a_queue()
    take(table, source, key="take", clock=clock)
    return in_queue(table)


def of_path(path: Path, form: str) -> Places:
    table, clock = a_queue()
    files = PathFiles.at(str(path), form, {"header": "true"} if form == "csv" else {}, {})
    assert files is not None
    send(table, files.messages(ColumnMapping(), clock.now()), key="send", clock=clock)
    return in_queue(table)


def of_files(path: Path, form: str) -> Places:
    return taken(Files(str(path), format=form, settled=timedelta(0)))


def of_shell(shell: Shell, path: Path, form: str) -> Places:
    ran = shell("send", "q", "--file", path, "--format", form, "--system", "Msmq4")
    assert ran.code == 0, ran.err
    return {"main": [bytes.fromhex(raw) for (raw,) in shell.rows("q", "hex(raw)")]}


def of_kafka(values: Sequence[bytes]) -> Places:
    count = len(values)
    records = pa.record_batch(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.int64()),
            "headers": pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )
    table, clock = a_queue()
    messages = to_messages(records, "topic")
    send(table, [messages.select([name for name in messages.schema.names if name != NO_BODY])], key="send", clock=clock)
    return in_queue(table)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def put(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        os.utime(path, (LONG_AGO, LONG_AGO))
        return path

    return put


def test_json_lines_are_the_same_bytes_through_each_door(shell: Shell, put: Callable[[str, bytes], Path]) -> None:
    path = put("x.jsonl", b"\n".join(LINES) + b"\n")

    for found in (of_shell(shell, path, "json"), of_files(path, "json"), of_path(path, "json"), of_kafka(LINES)):
        assert found == {"main": LINES}


def test_lines_that_are_no_json_are_malformed_with_their_bytes_through_each_door(shell: Shell, put: Callable[[str, bytes], Path]) -> None:
    path = put("x.jsonl", b"\n".join([LINES[0], *WRONG, LINES[1]]) + b"\n")

    for found in (of_files(path, "json"), of_path(path, "json")):
        assert found == {"main": LINES[:2], "poison": WRONG}
    assert of_kafka(WRONG) == {"main": WRONG}  # bytes, of which only a schema asks more
    ran = shell("send", "q", "--file", path, "--format", "json", "--system", "Msmq4")
    assert ran.code == 2
    assert "line 2" in ran.err  # a file that a person sends is refused whole


def test_a_byte_order_mark_and_utf_16_are_no_part_of_a_body_through_each_door(shell: Shell, put: Callable[[str, bytes], Path]) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        path = put(f"{encoding}.jsonl", '{"a": "Ł"}\n{"a": 2}\n'.encode(encoding))
        wanted = {"main": ['{"a": "Ł"}'.encode(), b'{"a": 2}']}

        assert of_files(path, "json") == of_path(path, "json") == wanted
        assert of_files(path, "lines") == of_path(path, "text") == wanted
    assert of_shell(shell, path, "json") == wanted


def test_lines_of_text_are_the_same_bytes_through_each_door(shell: Shell, put: Callable[[str, bytes], Path]) -> None:
    lines = [b"", b"  ", b"caf\xe9", b"\x00", b"x\ry"]
    path = put("x.txt", b"\r\n".join(lines) + b"\n")

    for found in (of_shell(shell, path, "lines"), of_files(path, "lines"), of_path(path, "text")):
        assert found == {"main": lines}


def test_cells_of_csv_are_the_same_through_each_door(shell: Shell, put: Callable[[str, bytes], Path]) -> None:
    path = put("x.csv", CSV)
    wanted = [
        b'{"id":"1","name":"NA","note":""}',
        b'{"id":"2","name":"null","note":null}',
        b'{"id":"3","name":"nan","note":"a \\"quote\\",\\nand more"}',
        '{"id":"4","name":"1_000","note":"Ł"}'.encode(),
    ]

    for found in (of_shell(shell, path, "csv"), of_files(path, "csv"), of_path(path, "csv")):
        assert found == {"main": wanted}


def test_typed_rows_are_the_same_json_through_each_door(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(TABLE, path)
    os.utime(path, (LONG_AGO, LONG_AGO))
    write_deltalake(tmp_path / "delta", TABLE)
    table, clock = a_queue()
    send(table, rows_to_batches(_python_rows(), ColumnMapping(), clock.now()), key="send", clock=clock)

    found = of_files(path, "parquet")

    assert found == of_path(path, "parquet") == of_shell(shell, path, "parquet") == taken(DeltaChanges(str(tmp_path / "delta")))
    assert [body.count(b"12345678901234567.89") for body in found["main"]] == [2, 0, 0]
    assert [*map(tree, in_queue(table)["main"])] == [*map(tree, found["main"])]  # with spaces


def _python_rows() -> list[dict[str, object]]:
    """Return the rows as Python has them: maps as dicts."""
    rows = TABLE.to_pylist()
    return [{**row, "map": None if row["map"] is None else dict(row["map"])} for row in rows]


def test_json_of_a_database_keeps_its_text(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table bodies (id integer primary key, v json)")
        database.executemany("insert into bodies (v) values (?)", [(line.decode(),) for line in LINES])
    database.close()

    found = taken(Jdbc(f"sqlite:///{tmp_path}/shop.db", "bodies", "id", overlap=10))

    assert [body.partition(b'"v":')[2] for body in found["main"]] == [line + b"}" for line in LINES]
