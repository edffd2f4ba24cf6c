"""Rows with which users of other tools lost their whole batch, or retried it for ever: here the others land, and the message of such a row is poison.

Reported for Kafka Connect's sinks (confluentinc/kafka-connect-jdbc 380, 721, 920, 998, debezium 7716, kafka-connect-elasticsearch 219,
iceberg-kafka-connect 335, kafka-connect-tdengine 19), Logstash (logstash-output-google_bigquery 5, 44), the loader of Snowplow
(snowplow-bigquery-loader 320) and Beam (18531, 21247).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.delivery.handlers import Batching
from airflow_poison.outputs import table_rules as output_rules
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import OutputError
from airflow_poison.values.schema import SubQueue
from tests.given.landing import of, once, reached
from tests.given.passes import Queue, a_queue
from tests.unit.edges.conftest import POLICY

if TYPE_CHECKING:
    from airflow_poison.values.message import Message

AT = datetime(2026, 1, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {"id": 1, "at": AT, "tags": ["a"], "price": Decimal("1.25"), "address": {"city": "Oslo"}}
COLUMNS = pa.schema(
    [  # type: ignore[arg-type]  # both forms
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("price", pa.decimal128(5, 2)),
        ("address", pa.struct([("city", pa.string())])),
    ]
)
BAD: dict[str, dict[str, Any]] = {
    "a null in a column that must have a value (kafka-connect-jdbc 380)": {"id": None},
    "a constraint that only the table knows (kafka-connect-jdbc 920, debezium 7716)": {"id": -1},
    "a value longer than its column (kafka-connect-jdbc 721)": {"price": Decimal("123456.78")},
    "a timestamp that is none (logstash-output-google_bigquery 44)": {"at": "yesterday"},
    "a column that the table lacks (snowplow-bigquery-loader 320)": {"new": 1},
    "another kind of value than the table has (kafka-connect-elasticsearch 219)": {"tags": {"a": "b"}},
    "a struct where a text was (iceberg-kafka-connect 335)": {"address": {"city": {"name": "Oslo"}}},
    "an instant that no column has (kafka-connect-tdengine 19)": {"at": float("nan")},
}


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "out", pa.Table.from_pylist([], schema=COLUMNS))
    DeltaTable(tmp_path / "out").alter.add_constraint({"positive": "id > 0"})
    return tmp_path / "out"


def landed(out: Path, column: str = "id") -> list[int]:
    return sorted(int(number or 0) for number in DeltaTable(out).to_pyarrow_table()[column].to_pylist())


@pytest.mark.parametrize("bad", BAD)
def test_one_row_that_cannot_be_written_concerns_its_message_alone(bad: str, queue: Queue, out: Path) -> None:
    def row(message: Message) -> dict[str, Any]:
        return GOOD | ({"id": int(message.text)} if message.text != "bad" else BAD[bad])

    queue.sent("1", "2", "bad", "4", "5").receive(handler=row, isolation="none", **of(out))

    assert landed(out) == [1, 2, 4, 5]
    assert list(queue.rows(SubQueue.POISON)) == [3]
    assert list(queue.rows(SubQueue.MAIN)) == []


@pytest.mark.parametrize("column", ["id", "price"])
def test_one_row_of_a_batch_that_cannot_be_written_concerns_its_message_alone(column: str, queue: Queue, out: Path) -> None:
    def rows(frame: pa.Table) -> pa.Table:
        numbers = frame["body"].cast(pa.string()).cast(pa.int64())
        prices = [Decimal("123456.78") if column == "price" and number.as_py() == 3 else Decimal(1) for number in numbers]
        ids = [-1 if column == "id" and number.as_py() == 3 else number.as_py() for number in numbers]
        return pa.table({"lookup_id": frame["lookup_id"], "id": pa.array(ids, pa.int64()), "price": pa.array(prices, pa.decimal128(8, 2))})

    queue.sent("1", "2", "3", "4", "5").receive(handler=rows, isolation="none", batching=Batching("arrow"), **of(out))

    assert landed(out) == [1, 2, 4, 5]
    assert list(queue.rows(SubQueue.POISON)) == [3]


def test_one_of_many_rows_that_a_constraint_refuses_by_then_concerns_its_message_alone(queue: Queue, tmp_path: Path) -> None:
    """As in capsem 125, where one row rolled a million others back, and Beam 19420 and 21247, where it lost or retried its batch."""
    out, many = tmp_path / "many", 5_000
    write_deltalake(out, pa.table({"n": pa.array([], pa.int64())}))
    batching = Batching("arrow", 1_000)

    def rows(frame: pa.Table) -> pa.Table:
        return pa.table({"lookup_id": frame["lookup_id"], "n": frame["body"].cast(pa.string()).cast(pa.int64())})

    with reached(once("output.land.before_write", lambda: DeltaTable(out).alter.add_constraint({"small": f"n <> {many // 2}"}))):
        queue.sent(*map(str, range(1, many + 1))).receive(handler=rows, isolation="none", batching=batching, **of(out))

    assert landed(out, "n") == [number for number in range(1, many + 1) if number != many // 2]
    assert list(queue.rows()) == [many // 2]


def test_a_row_of_which_a_constraint_knows_nothing_is_refused_by_name(queue: Queue, out: Path) -> None:
    """As in delta 1714 and delta-rs 4721, where null breaks a CHECK and no row was shown, and vector 23633, where nobody could tell which one."""
    DeltaTable(out).alter.add_constraint({"cheap": "CAST(price AS DOUBLE) < 100"})

    queue.sent("1", "2", "3").receive(
        handler=lambda message: GOOD | {"id": int(message.text)} | ({"price": None} if message.text == "2" else {}), isolation="none", **of(out)
    )

    assert landed(out) == [1, 3]
    poison = queue.rows(SubQueue.POISON)
    assert [(number, "it breaks the constraint 'cheap'" in str(row["reason"])) for number, row in poison.items()] == [(2, True)]


def test_a_table_that_is_gone_by_then_stops_no_other_one(queue: Queue, out: Path, tmp_path: Path) -> None:
    """As in Beam 21713, where rows for a table that is not there stopped all processing: it is made again, and they land."""

    def rows(message: Message) -> dict[str, list[dict[str, Any]]]:
        return {"first": [{"n": int(message.text)}], "second": [GOOD | {"id": int(message.text)}]}

    with reached(once("output.land.before_write", lambda: shutil.rmtree(out))):
        queue.sent("1", "2").receive(handler=rows, isolation="none", **of({"first": tmp_path / "first", "second": out}))

    assert landed(tmp_path / "first", "n") == landed(out) == [1, 2]
    assert queue.rows() == {}


def test_a_table_that_takes_no_row_is_said_before_a_message_is_claimed(queue: Queue, out: Path) -> None:
    """As in Beam 18531, where the rows of a table that cannot be written were retried for ever."""
    entry = max((out / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["checkConstraints", "shinyNew"]}
    entry.write_text("\n".join(json.dumps({"protocol": protocol} if "protocol" in line else line) for line in lines))

    for run in ("one", "two"):
        with pytest.raises(OutputError, match="Nothing was claimed"):
            queue.sent("1", key="send").receive(run, handler=lambda _message: GOOD, isolation="none", **of(out))

    assert [(row["abort_count"], row["body"]) for row in queue.rows(SubQueue.MAIN).values()] == [(0, b"1")]


def test_a_topic_that_fails_makes_no_other_one_land_twice(queue: Queue, out: Path, tmp_path: Path) -> None:
    """As in kafka-connect-jdbc 380, where the failure of one table's row had the rows of another table inserted again."""

    def rows(message: Message) -> dict[str, list[dict[str, Any]]]:
        return {"first": [{"n": int(message.text)}], "second": [GOOD | {"id": int(message.text) or None}]}

    for run in ("one", "two"):
        queue.sent("1", "0", "3", key=run).receive(run, handler=rows, isolation="none", **of({"first": tmp_path / "first", "second": out}))

    assert landed(tmp_path / "first", "n") == [1, 1, 3, 3]
    assert landed(out) == [1, 1, 3, 3]
    assert list(queue.rows(SubQueue.POISON)) == [2, 5]


def test_the_folder_of_a_trial_whose_process_was_killed_is_removed_a_day_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, new = tmp_path / "poison-trial-old", tmp_path / "poison-trial-new"
    for folder in (old, new):
        (folder / "part").mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    output_rules._remove_old_trials.cache_clear()

    with output_rules._trial_folder() as made:
        assert sorted(tmp_path.iterdir()) == sorted([new, Path(made)])
    assert list(tmp_path.iterdir()) == [new]
