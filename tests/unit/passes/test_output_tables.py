"""What an output's table wants is known before the claim, or fails the message of a row: constraints, features, partitions, places, keys."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.outputs import output_table
from airflow_poison.outputs.output import Output, outputs_of
from airflow_poison.outputs.table_rules import Conditions, rules_of
from airflow_poison.passes.land import prepared
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import OutputError
from tests.given.passes import Queue, a_queue

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.values.message import Message

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def echo(message: Message) -> Any:
    """Return the body's JSON."""
    return json.loads(message.body)


def halves(message: Message) -> Any:
    """Return a row for each number of the body, with another one beside it."""
    return [{"n": number, "half": number / 2} for number in json.loads(message.body)]


def received(queue: Queue, out: Path, *bodies: object, isolation: str = "none", handler: Any = echo, **settings: Any) -> Queue:
    key = str(queue.table.snapshot().version)
    queue = queue.sent(*map(json.dumps, bodies), key=key).having(handler=handler)
    queue.receive(key, isolation=isolation, outputs=outputs_of(out, **settings))
    return queue


def errors_of(queue: Queue) -> list[str]:
    return [row["last_error"]["message"] for row in queue.rows().values()]  # type: ignore[index]


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(out)).to_pyarrow_table().to_pylist()
    return found


def field(name: str, kind: Any = "long", nullable: bool = True, **metadata: str) -> dict[str, Any]:  # noqa: FBT001, FBT002  (as the log has it)
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {f"delta.{key}": value for key, value in metadata.items()}}


def a_table(
    out: Path, *fields: dict[str, Any], features: tuple[str, ...] = (), partitions: tuple[str, ...] = (), configuration: dict[str, str] | None = None
) -> None:
    """Make an empty table by its log, as another engine makes one."""
    reads = [feature for feature in features if feature in {"typeWidening", "timestampNtz", "deletionVectors"}]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reads, "writerFeatures": list(features)}
    metadata = {
        "id": "a-table",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": partitions,
        "configuration": configuration or {},
        "createdTime": 0,
    }
    (out / "_delta_log").mkdir(parents=True)
    (out / "_delta_log" / f"{0:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n" + json.dumps({"metaData": metadata}))


INVARIANT = json.dumps({"expression": {"expression": "n > 0"}})


# Rows that break a condition -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize(
    ("fields", "configuration"),
    [
        ((field("n"),), {"delta.constraints.positive": "n > 0"}),
        ((field("n", invariants=INVARIANT),), {}),
        (
            (field("n"), field("other", {"type": "array", "elementType": "long", "containsNull": True})),
            {"delta.constraints.p": "n > 0"},
        ),
    ],
    ids=["constraint", "invariant", "beside a list"],
)
def test_a_row_that_breaks_a_condition_fails_its_message(
    queue: Queue, out: Path, fields: tuple[Any, ...], configuration: dict[str, str], isolation: str
) -> None:
    a_table(out, *fields, features=("checkConstraints", "invariants"), configuration=configuration)

    queue = received(queue, out, {"n": 5}, {"n": -1}, {"n": None}, {"n": 7}, isolation=isolation)
    queue = received(queue, out, {"n": 9}, isolation=isolation)

    assert sorted(row["n"] for row in rows(out)) == [5, 7, 9]
    assert len(errors_of(queue)) == 2
    assert all("it breaks the constraint" in text and text.endswith(": n > 0.") for text in errors_of(queue))


@pytest.mark.parametrize("protocol", [2, 7])
@pytest.mark.parametrize("kind", ["varchar(3)", "char(3)"])
def test_a_text_that_is_longer_than_spark_lets_it_be_fails_its_message(queue: Queue, out: Path, kind: str, protocol: int) -> None:
    limited = field("t", "string") | {"metadata": {"__CHAR_VARCHAR_TYPE_STRING": kind}}
    a_table(out, limited)
    if protocol < 7:
        log = out / "_delta_log" / f"{0:020d}.json"
        log.write_text(
            log.read_text().replace(
                '"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []',
                '"minReaderVersion": 1, "minWriterVersion": 2',
            )
        )

    queue = received(queue, out, {"t": "äöü"}, {"t": "four"}, {"t": None}, {"t": ""})

    assert sorted(row["t"] or "" for row in rows(out)) == ["", "", "äöü"]
    assert [f"it breaks the constraint '{kind} of t'" in text for text in errors_of(queue)] == [True]


def test_a_condition_on_what_has_no_literal_is_tried(queue: Queue, out: Path) -> None:
    a_table(
        out,
        field("n"),
        field("at", {"type": "struct", "fields": [field("city", "string")]}),
        features=("checkConstraints",),
        configuration={"delta.constraints.there": "at['city'] = 'Oslo'"},
    )

    queue = received(queue, out, {"n": 1, "at": {"city": "Oslo"}}, {"n": 2, "at": {"city": "Rome"}}, {"n": 3})

    assert [row["n"] for row in rows(out)] == [1]
    assert len(errors_of(queue)) == 2


def test_a_message_with_a_row_that_breaks_a_condition_lands_none_of_its_rows(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), field("half", "double"), features=("checkConstraints",), configuration={"delta.constraints.small": "n < 10"})

    queue = received(queue, out, [1, 2, 3], [4, 50, 6, 7, 8, 9], handler=halves)

    assert sorted(row["n"] for row in rows(out)) == [1, 2, 3]
    assert errors_of(queue) == ["A row does not fit the output: it breaks the constraint 'small': n < 10."]


@pytest.mark.parametrize(
    ("kind", "condition", "good", "bad"),
    [
        ("string", "v <> 'it''s'", "it", "it's"),
        ("double", "v < 0.5", 0.25, 0.5),
        ("decimal(9,2)", "v <> 1.50", "1.51", "1.5"),
        ("boolean", "v", True, False),
        ("long", "v <> 9007199254740993", (1 << 53), (1 << 53) + 1),
        ("string", "v IN ('a', 'b')", "a", "c"),
        ("string", "length(v) < 3", "äö", "äöü"),
    ],
)
def test_a_condition_is_asked_of_exact_values(out: Path, kind: str, condition: str, good: object, bad: object) -> None:
    from airflow_poison.outputs.output import RowSchema

    a_table(out, field("v", kind), features=("checkConstraints",), configuration={"delta.constraints.c": condition})
    (output,) = prepared(outputs_of(out))
    fitting = RowSchema(output, None)

    assert fitting.rows([{"v": good}])
    with pytest.raises(ValueError, match="breaks the constraint 'c'"):
        fitting.rows([{"v": bad}])


def test_columns_of_provenance_that_must_have_a_value_are_filled(queue: Queue, out: Path) -> None:
    own = [field("_queue", "string", nullable=False), field("_lookup_id", nullable=False), field("_pass", "string", nullable=False)]
    conditions = {"delta.constraints.positive": "n > 0 OR n = any_of"}
    at = field("_received_at", "timestamp", nullable=False)
    a_table(out, field("n"), field("any_of"), *own, at, features=("checkConstraints", "invariants"), configuration=conditions)

    queue = received(queue, out, {"n": 1}, {"n": -1}, provenance=True)

    assert [(row["n"], row["_queue"], row["_lookup_id"]) for row in rows(out)] == [(1, "orders", 1)]
    assert len(errors_of(queue)) == 1


def test_many_rows_are_tried_at_once_and_one_row_is_only_asked_about(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr("airflow_poison.outputs.table_rules.trial", lambda _rules, batch, **_: tried.append(batch.num_rows))
    a_table(out, field("n"), features=("checkConstraints",), configuration={"delta.constraints.positive": "n > 0"})
    conditions = Conditions(rules_of(DeltaTable(str(out)), local=True), evolve=False)

    conditions.broken_by(pa.RecordBatch.from_pydict({"n": [1]}))
    conditions.broken_by(pa.RecordBatch.from_pydict({"n": list(range(1, 100))}))

    assert tried == [99]


def test_columns_that_are_computed_are_no_columns_of_rows(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), field("twice", generationExpression="n * 2"), features=("generatedColumns",))

    queue = received(queue, out, {"n": 2}, {"n": 3, "twice": 7})

    assert rows(out) == [{"n": 2, "twice": 4}]
    assert "has no column 'twice'; it has n" in errors_of(queue)[0]


# Partitions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "a" * 260, "é" * 60, "~" * 130])
def test_a_value_that_cannot_name_a_folder_fails_its_message(queue: Queue, out: Path, value: str) -> None:
    a_table(out, field("n"), field("day", "string"), partitions=("day",))
    names = ["good", "a b/c%:=", "a" * 250, None, " "]

    queue = received(queue, out, *({"n": 1, "day": name} for name in [*names, value]))

    assert sorted(map(str, (row["day"] for row in rows(out)))) == sorted(map(str, names))
    assert "one of partitions" in errors_of(queue)[0]


def test_a_number_whose_digits_are_too_long_for_a_folder_fails_its_message(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), field("v", "double"), partitions=("v",))

    queue = received(queue, out, {"n": 1, "v": 0.1}, {"n": 2, "v": 1e300}, {"n": 3, "v": 1e-300})

    assert [row["v"] for row in rows(out)] == [0.1]
    assert len(errors_of(queue)) == 2


def test_a_decimal_below_0_with_a_fraction_names_no_folder(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), field("v", "decimal(9,2)"), partitions=("v",))

    queue = received(queue, out, *({"n": 1, "v": value} for value in ("1.05", "-0.50", "-5.00", "-0.01")))

    assert sorted(str(row["v"]) for row in rows(out)) == ["-5.00", "1.05"]
    assert all("no decimal below 0 with a fraction" in text for text in errors_of(queue))
    assert len(errors_of(queue)) == 2


# Known before the claim ------------------------------------------------------------------------------------------------


def refused(queue: Queue, out: Path, says: str, **settings: Any) -> None:
    with pytest.raises(OutputError, match=says):
        received(queue, out, {"n": 1}, **settings)
    assert queue.table.snapshot().claims == ()
    assert len(queue.rows()) == 1


@pytest.mark.parametrize("feature", ["rowTracking", "identityColumns", "icebergCompatV2", "typeWidening", "madeUp"])
def test_a_table_with_a_feature_that_is_not_written_is_refused(queue: Queue, out: Path, feature: str) -> None:
    a_table(out, field("n"), features=(feature,))

    refused(queue, out, rf"(?i)cannot be written to: .*{feature}.*Nothing was claimed")


def test_a_table_whose_condition_is_not_understood_is_refused(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), features=("checkConstraints",), configuration={"delta.constraints.odd": "made_up(n) > 0"})

    refused(queue, out, "cannot be written to: .*made_up")


def test_keys_are_refused_for_a_table_that_only_grows(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), features=("appendOnly",), configuration={"delta.appendOnly": "true"})

    refused(queue, out, "append-only, and output_keys replace rows", keys=["n"])
    received(queue, out, {"n": 2})
    assert sorted(row["n"] for row in rows(out)) == [1, 2]


def test_keys_are_refused_for_a_table_with_computed_columns(queue: Queue, out: Path) -> None:
    """delta-rs does not compute them for rows that it replaces."""
    a_table(out, field("n"), field("twice", generationExpression="n * 2"), features=("generatedColumns",))

    refused(queue, out, "it computes 'twice', and output_keys replace rows", keys=["n"])


def test_partitions_of_bytes_are_refused(queue: Queue, out: Path) -> None:
    a_table(out, field("n"), field("b", "binary"), partitions=("b",))

    refused(queue, out, "partitioned by 'b', and bytes do not come back")


@pytest.mark.parametrize("evolve", [False, True])
def test_names_that_differ_by_case_are_refused(queue: Queue, out: Path, evolve: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    a_table(out, field("n"))

    refused(queue, out, "'N'", schema="N bigint", evolve=evolve)


@pytest.mark.parametrize("place", ["store", "store/orders", "store/orders/deeper", "."])
def test_an_output_where_the_store_is_is_refused(queue: Queue, tmp_path: Path, place: str) -> None:
    refused(queue, tmp_path / place, "maintenance of one would remove files of the other")


def test_an_output_beside_the_queues_is_taken(queue: Queue, tmp_path: Path) -> None:
    received(queue, tmp_path / "store-of-rows", {"n": 1})

    assert rows(tmp_path / "store-of-rows") == [{"n": 1}]


def test_a_feature_that_a_table_gets_while_rows_wait_is_named_at_once(out: Path) -> None:
    """Such an error of delta-rs has the type of a commit that others have overtaken."""
    a_table(out, field("n"), features=("rowTracking",))

    with pytest.raises(OutputError, match=r"RowTracking.*They wait in the queue's own table"):
        output_table.land(Output(uri=str(out), delta=True), [pa.RecordBatch.from_pydict({"n": [1]})], "test", 1, "key")


# Keys ------------------------------------------------------------------------------------------------------------------

KEYS = [None, math.nan, 0.0, 1.5]


@pytest.mark.parametrize("together", [False, True])
def test_a_row_replaces_the_row_with_the_same_keys_whatever_they_are(queue: Queue, out: Path, together: bool) -> None:  # noqa: FBT001  (as above)
    settings: dict[str, Any] = {"keys": ["k", "s"], "schema": "k double, s string, v bigint"}
    first = [{"k": key, "s": text, "v": 1} for key in KEYS for text in ("x", None, "")]
    second = [{**row, "k": -0.0 if row["k"] == 0.0 else row["k"], "v": 2} for row in first]
    for bodies in [first + second] if together else [first, second]:
        queue = received(queue, out, *bodies, handler=echo, **settings)

    found = rows(out)
    assert len(found) == len(first)
    assert {row["v"] for row in found} == {2}


def test_keys_are_equal_that_are_written_in_other_types(queue: Queue, out: Path) -> None:
    for key in (1, 1.0, None):
        queue = received(queue, out, {"k": key, "v": str(key)}, keys=["k"], schema="k int, v string")

    assert sorted((row["k"] or 0, row["v"]) for row in rows(out)) == [(0, "None"), (1, "1.0")]


def test_keys_of_partitions_with_nulls_are_replaced(queue: Queue, out: Path) -> None:
    a_table(out, field("p", "string"), field("v"), partitions=("p",))
    for value in (1, 2):
        queue = received(queue, out, {"p": None, "v": value}, {"p": "a", "v": value}, keys=["p"])

    assert sorted(map(str, rows(out))) == sorted(map(str, [{"p": None, "v": 2}, {"p": "a", "v": 2}]))


def test_keys_that_are_nested_are_compared_whole(queue: Queue, out: Path) -> None:
    for value in (1, 2):
        queue = received(queue, out, {"k": {"a": [1, None]}, "v": value}, {"k": {"a": [1, None]}, "v": value + 10}, keys=["k"])

    assert rows(out) == [{"k": {"a": [1, None]}, "v": 12}]


def test_keys_with_nulls_take_no_longer(out: Path) -> None:
    """An OR in place of a null-safe equality compares each row with each."""
    size = 100_000
    there = pa.table({"k": pa.array(range(size), pa.int64()), "s": [None if number % 7 == 0 else f"s{number % 50}" for number in range(size)]})
    write_deltalake(str(out), there.append_column("v", pa.array([0] * size, pa.int64())))
    news = there.slice(size // 2, 10_000).append_column("v", pa.array([1] * 10_000, pa.int64()))

    began = time.perf_counter()
    output_table.land(Output(uri=str(out), keys=("k", "s"), delta=True), news.to_batches(), "test", 1, "key")
    seconds = time.perf_counter() - began

    assert (len(rows(out)), sum(row["v"] for row in rows(out))) == (size, 10_000)
    assert seconds < 10  # 0.1 s where nothing else runs


def test_a_column_that_must_have_a_value_is_there_when_columns_are_added(queue: Queue, out: Path) -> None:
    """delta-rs 1.6 refuses each MERGE with its own evolution of the schema on such a table (delta-io/delta-rs#4527)."""
    a_table(out, field("n", nullable=False), field("v"), features=("invariants",))
    for value in (1, 2):
        queue = received(queue, out, {"n": 1, "v": value}, {"n": value + 5, "v": 0}, keys=["n"], evolve=True)

    assert sorted((row["n"], row["v"]) for row in rows(out)) == [(1, 2), (6, 0), (7, 0)]
