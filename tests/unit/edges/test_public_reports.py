"""Small inputs with which users of other tools lost data, through the shell: each record, digit and byte is in the queue or in its poison."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import timedelta
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import Jdbc, JsonSchema, Kafka, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.passes.take import take
from airflow_poison.store.memory import MemoryStore
from airflow_poison.testing import receive
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import InputError, MalformedError, SettingError
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from airflow_poison.values.schema import MAX_BODY_BYTES
from tests.unit.edges.conftest import LONG_AGO, MOVE, a_queue
from tests.unit.edges.test_seams import ROWS, Planted

if TYPE_CHECKING:
    from tests.unit.edges.conftest import Shell

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
DEEP = "[" * 200_000 + "]" * 200_000


# CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "good", "malformed"),
    [
        ("id,name\n1,a,\n2,b,\n3,c,\n", [], 3),  # a comma too many
        ("\nid,name\n1,a\n2,b\n", ['{"id":"1","name":"a"}', '{"id":"2","name":"b"}'], 0),  # a blank line first
        ("# export of today\nid,name\n1,a\n2,b\n", [], 3),  # a comment first: it is the header, unless header= names another line
        ("id;price\n1;1,50\n2;2,75\n", [], 2),  # another delimiter
        ("country,name\nNA,Namibia\nDE,null\n", ['{"country":"NA","name":"Namibia"}', '{"country":"DE","name":"null"}'], 0),
        ('id,name\n1,"open\n2,b\n3,c\n', ['{"id":"2","name":"b"}', '{"id":"3","name":"c"}'], 1),  # a quote that nothing closes
        ("id,name\r1,a\r2,b\r", ['{"id":"1","name":"a"}', '{"id":"2","name":"b"}'], 0),  # line ends of old Macs
    ],
)
def test_each_row_of_csv_is_a_message_or_malformed(shell: Shell, text: str, good: list[str], malformed: int) -> None:
    shell.file("in/x.csv", text)

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.csv", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    found = shell.rows("q")
    assert sorted(json.dumps(json.loads(text), separators=(",", ":")) for place, text, _ in found if place == "main") == sorted(good)
    assert sum(place == "poison" for place, *_ in found) == malformed


def test_a_byte_of_another_encoding_is_the_fault_of_its_row_alone(shell: Shell) -> None:
    rows = b"".join(b"%d,ok\n" % number for number in range(999))
    shell.file("in/x.csv", b"id,name\n" + rows + b"999,caf\xe9\n")

    shell("send", "q", "--source", f"{shell.folder}/in/*.csv", "--system", "Msmq4")

    assert [
        row for row in shell.rows("q", "sub_queue, raw = '999,caf\\xE9'::blob, count(*) over (partition by sub_queue)") if row[0] == "poison"
    ] == [("poison", True, 1)]
    assert len(shell.rows("q")) == 1_000


def test_a_large_cell_ends_no_file(shell: Shell) -> None:
    shell.file("in/x.csv", b"id,t\n1,a\n2," + b"x" * (3 << 20) + b"\n3,c\n")

    shell("send", "q", "--source", f"{shell.folder}/in/*.csv", "--system", "Msmq4")

    assert shell.rows("q", "sub_queue, length(text)") == [("main", 18), ("main", 17 + (3 << 20)), ("main", 18)]


# One bad item among good ones -----------------------------------------------------------------------------------------


CHUNKS = {
    "the rest of a file is damaged (fluent-bit 3707, 3229)": b'{"n": 3\xff\x00\x01"\n\x00\x00\x00',
    "a row is cut in the middle of an escape (ClickHouse 52005)": b'{"n": "\\u12"}\n',
    "a zero byte stands before an object (ClickHouse 4442)": b'\x00{"n": 3}\n',
    "a value is not quoted (ClickHouse 6916)": b'{"n": ~}\n',
}


@pytest.mark.parametrize("chunk", CHUNKS)
def test_what_is_whole_in_a_damaged_file_is_taken(shell: Shell, chunk: str) -> None:
    shell.file("in/a.jsonl", b'{"n": 1}\n{"n": 2}\n' + CHUNKS[chunk])
    shell.file("in/b.jsonl", b'{"n": 4}\n')

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.jsonl", "--format", "json", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    places = [(place, text) for place, text, _ in shell.rows("q")]
    assert [text for place, text in places if place == "main"] == ['{"n": 1}', '{"n": 2}', '{"n": 4}']
    assert [place for place, _ in places if place != "main"] == ["poison"] * (len(places) - 3)
    assert len(places) > 3


@pytest.mark.parametrize("odd", [b"", b"id,name\n", b"\n\n", b"id,name\n1,a\n\n2,b\n"], ids=["empty", "a header alone", "blank", "a blank line"])
def test_a_file_without_rows_stops_no_other(shell: Shell, odd: bytes) -> None:
    """As in airbyte 13171 (a file with a header alone) and 2352 (a blank line), where the whole sync failed."""
    shell.file("in/a.csv", odd)
    shell.file("in/b.csv", "id,name\n9,z\n")

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.csv", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    found = shell.rows("q")
    assert [place for place, *_ in found] == ["main"] * len(found)
    assert [json.loads(text)["id"] for _, text, _ in found][-1] == "9"
    assert len(found) == 1 + odd.count(b"1,a") + odd.count(b"2,b")


def test_a_record_that_is_too_large_is_one_message_of_poison(shell: Shell) -> None:
    """As in airbyte 27124, where one large value had all rows of its file left out silently, and fluent-bit 3495, which retried them for ever."""
    large = b'{"n": "' + b"x" * MAX_BODY_BYTES + b'"}\n'
    shell.file("in/a.jsonl", b'{"n": 1}\n' + large + b'{"n": 3}\n')

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.jsonl", "--format", "json", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    assert sorted(shell.rows("q", "sub_queue, length(text) < 10")) == [("main", True), ("main", True), ("poison", False)]


@pytest.mark.parametrize("bad", [b'{"n": "no number"}', b'{"n": ', b'{"n": "\\u12"}', b"\xff\xfe", b"[" * 100_000], ids=range(5))
def test_a_message_of_kafka_that_cannot_be_parsed_stops_no_partition(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ClickHouse 2675, 6916, 10647, 14201, where one message was read again and again, and nothing behind it."""
    topic = Planted("none", 0, ValueError(), {(0, 1): bad})
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda *_args, **_more: topic.client("Consumer"))
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", lambda *_args, **_more: topic.client("AdminClient"))
    table, clock = a_queue()
    schema = JsonSchema({"properties": {"n": {"type": "number"}}})
    topic.values = {place: b'{"n": %d}' % place[1] for place in product((0, 1), range(ROWS))} | topic.values

    result = take(table, Kafka("t", {"bootstrap.servers": "127.0.0.1:1"}, schema=schema), key="take", clock=clock)

    assert (result.sent, result.malformed) == (2 * ROWS, 1)
    [poison] = [row for file in table.snapshot().files for row in table.read(file).to_pylist() if row["sub_queue"] == "poison"]
    assert poison["body"] == bad
    assert dict(poison["properties"])["kafka.offset"] == "1"


def test_a_row_of_a_database_that_cannot_be_sent_stops_none_behind_it(shell: Shell) -> None:
    """As in kafka-connect-cosmosdb 419, where all records behind a bad one were left in the database."""
    with sqlite3.connect(shell.folder / "shop.db") as database:
        database.execute("create table t (id integer primary key, at timestamp, n decimal(9, 2))")
        database.executemany("insert into t (at, n) values (?, ?)", [("2026-01-01 00:00:00", "1"), ("yesterday", "x"), ("2026-01-02 00:00:00", "3")])
    database.close()
    table, clock = a_queue()

    result = take(table, Jdbc(f"sqlite:///{shell.folder}/shop.db", "t", "id", overlap=1), key="take", clock=clock)
    again = take(table, Jdbc(f"sqlite:///{shell.folder}/shop.db", "t", "id", overlap=1), key="again", clock=clock)

    assert (result.sent, again.sent) == (3, 0)
    assert result.malformed <= 1


# Names of files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "whole"])
def test_a_name_that_is_no_utf8_stops_no_take(shell: Shell, form: str) -> None:
    shell.file("in/a.json", '{"n": 1}\n')
    path = os.fsencode(shell.folder) + b"/in/caf\xe9.json"
    with open(path, "w") as file:  # noqa: PTH123  (a name of bytes)
        file.write('{"n": 2}\n')
    os.utime(path, (LONG_AGO, LONG_AGO))

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.json", "--format", form, "--system", "Msmq4")

    assert ran.code == 0, ran.err
    assert sorted(text.strip() for text in shell.texts("q")) == ['{"n": 1}', '{"n": 2}']


def test_a_circle_of_links_stops_no_take_and_takes_nothing_twice(shell: Shell) -> None:
    shell.file("in/a.json", '{"n": 1}\n')
    (shell.folder / "in/sub").mkdir()
    (shell.folder / "in/sub/up").symlink_to("..")
    (shell.folder / "in/b.json").symlink_to("a.json")
    (shell.folder / "in/round.json").symlink_to("round.json")

    ran = shell("send", "q", "--source", f"{shell.folder}/in/**/*.json", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    assert shell.texts("q") == ['{"n": 1}']


# Digits ---------------------------------------------------------------------------------------------------------------


def test_json_lines_keep_their_digits(shell: Shell) -> None:
    line = '{"amount": 12345678901234567.89, "rate": 1.10, "huge": 1e400, "twice": 1, "twice": 2}'
    path = shell.file("x.jsonl", f"{line}\n")

    shell("send", "q", "--file", path, "--system", "Msmq4")

    assert shell.texts("q") == [line]


def test_a_condition_on_a_large_number_selects_no_neighbour(shell: Shell) -> None:
    numbers = (9007199254740992, 9007199254740993, 1234567890123456788, 1234567890123456789)
    shell("send", "q", *(f'{{"id": {number}}}' for number in numbers), *MOVE)
    shell.fail("q")

    ran = shell("remove", "q", "--where", "body.id = 1234567890123456789", "--yes")

    assert ran.code == 0, ran.err
    assert shell.texts("q") == [f'{{"id": {number}}}' for number in numbers[:3]]


@pytest.mark.parametrize(
    "body", ['{"id": 1, "amount": 12345678901234567.89, "rate": 1.10}', '{"id": 2, "x": 1e400}', '{"id": 3, "a": 1, "a": 2}', '{"t": "\\ud83d"}']
)
def test_a_patch_changes_no_other_field(shell: Shell, body: str) -> None:
    shell("send", "q", body, *MOVE)
    shell.fail("q")

    ran = shell("edit", "q", "--sub-queue", "poison", "--patch", '{"currency": "EUR"}', "--yes")

    assert ran.code == 0, ran.err
    assert shell.texts("q") == [body[:-1] + ', "currency": "EUR"}']


@pytest.mark.parametrize("odd", [DEEP, "no JSON", '{"a": NaN}'])
def test_a_body_that_cannot_be_patched_leaves_no_plan_open(shell: Shell, odd: str) -> None:
    path = shell.file("x.txt", f'{{"a": 1}}\n{odd}\n{{"a": 2}}\n')
    shell("send", "q", "--file", path, "--format", "lines", *MOVE)
    shell.fail("q")

    shell("edit", "q", "--sub-queue", "poison", "--patch", '{"b": 3}', "--yes")

    assert shell.texts("q") == ['{"a": 1, "b": 3}', odd, '{"a": 2, "b": 3}']
    assert [plan["state"] for plan in json.loads(shell("plans", "q", "--output", "json").out)["plans"]] == ["done"]


def test_decimals_keep_their_digits_at_each_depth_of_parquet(shell: Shell) -> None:
    exact = Decimal("12345678901234567.89")
    table = pa.table(
        {"flat": pa.array([exact]), "s": pa.array([{"x": exact}]), "m": pa.array([[("k", exact)]], pa.map_(pa.string(), pa.decimal128(19, 2)))}
    )
    path = shell.file("in/x.parquet", b"")
    pq.write_table(table, path)
    os.utime(path, (LONG_AGO, LONG_AGO))

    shell("send", "q", "--source", f"{shell.folder}/in/*.parquet", "--system", "Msmq4")

    assert [text.count("12345678901234567.89") for text in shell.texts("q")] == [3]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-(2**63) + 2, 0], pa.timestamp("us")),
        pa.array([[("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int64())),
        pa.array([Decimal(1), None], pa.decimal256(60, 0)),
    ],
    ids=["instant", "map", "decimal256"],
)
def test_an_odd_value_of_one_file_stops_no_other(shell: Shell, column: pa.Array) -> None:  # type: ignore[type-arg]
    for name, values in (("a", column), ("b", pa.array([1]))):
        path = shell.file(f"in/{name}.parquet", b"")
        pq.write_table(pa.table({"v": values}), path)
        os.utime(path, (LONG_AGO, LONG_AGO))

    ran = shell("send", "q", "--source", f"{shell.folder}/in/*.parquet", "--system", "Msmq4")

    assert ran.code == 0, ran.err
    found = shell.rows("q")
    assert len(found) == 3
    assert '{"v":1}' in [text.replace(" ", "") for place, text, _ in found if place == "main"]


# Schemas --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("price", "fits"), [("19.99", True), ("4.35", True), ("0.07", True), ("1.005", False), ("NaN", False), ("1e400", True)])
def test_a_multiple_of_a_decimal_is_exact(price: str, fits: bool) -> None:  # noqa: FBT001  (a table)
    schema = JsonSchema({"properties": {"price": {"type": "number", "multipleOf": 0.01}}})
    body = b'{"price": %s}' % price.encode()

    if fits:
        assert schema.decode(body) == body
    else:
        with pytest.raises(MalformedError):
            schema.decode(body)


# Outputs --------------------------------------------------------------------------------------------------------------


def test_rows_with_a_null_key_replace_each_other(shell: Shell) -> None:
    output = shell.folder / "out"
    for total in (10, 11, 12):
        shell("send", "q", json.dumps({"day": "2026-11-01", "segment": None, "total": total}), *MOVE)
        settings = ("--output-keys", "day,segment", "--output-schema", "day string, segment string, total bigint")
        ran = shell("receive", "q", "--handler", "edge_handlers:land", "--engine", "local", "--output-table", output, *settings)
        assert ran.code == 0, ran.err

    assert DeltaTable(output).to_pyarrow_table().to_pylist() == [{"day": "2026-11-01", "segment": None, "total": 12}]


def test_a_row_that_a_constraint_refuses_is_the_failure_of_its_message(shell: Shell) -> None:
    output = shell.folder / "out"
    write_deltalake(output, pa.table({"id": pa.array([0], pa.int64()), "amount": pa.array([1], pa.int64())}))
    DeltaTable(output).alter.add_constraint({"positive": "amount > 0"})
    receiving = ("receive", "q", "--handler", "edge_handlers:land", "--engine", "local", "--output-table", output)

    shell("send", "q", '{"id": 1, "amount": 5}', '{"id": 2, "amount": -1}', '{"id": 3, "amount": 7}', *MOVE)
    shell(*receiving)
    shell("send", "q", '{"id": 4, "amount": 9}')
    ran = shell(*receiving)

    assert ran.code == 0, ran.err
    assert DeltaTable(output).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [0, 1, 3, 4]
    assert [(place, text) for place, text, _ in shell.rows("q")] == [("poison", '{"id": 2, "amount": -1}')]


@pytest.mark.parametrize("kind", ["took", "time", "empty", "case", "uuid"])
def test_a_value_that_delta_does_not_have_is_the_failure_of_its_message(shell: Shell, kind: str) -> None:
    receiving = ("receive", "q", "--handler", "edge_handlers:odd", "--engine", "local", "--output-table", shell.folder / "out", "--evolve")

    shell("send", "q", "good", kind, *MOVE)
    shell(*receiving)
    shell("send", "q", "good")
    ran = shell(*receiving)

    assert ran.code == 0, ran.err
    assert DeltaTable(shell.folder / "out").to_pyarrow_table().to_pylist() == [{"id": 1}, {"id": 1}]
    assert [(place, text) for place, text, _ in shell.rows("q")] == [("poison", kind)]


def test_a_test_says_what_production_does_with_a_value_that_delta_does_not_have() -> None:
    received = receive(lambda _message: {"took": timedelta(1)}, ["x"], POLICY, output="/x")

    assert received.places == ["poison"]


@pytest.mark.parametrize("batch", ["arrow", "pandas", "polars"])
def test_a_null_changes_no_number_beside_it(batch: str) -> None:
    large = 2**53 + 1
    bodies = [{"n": large}, {"n": None}, {"n": 3}]

    received = receive(lambda frame: frame, bodies, POLICY, batch=batch, schema="n bigint", output="/x", output_schema="n bigint")

    assert received.places == ["processed"] * 3
    assert [row["n"] for row in received.rows] == [large, None, 3]


def test_a_map_that_a_frame_has_lands() -> None:
    kind = pa.map_(pa.string(), pa.int64())

    def land(frame: pa.Table) -> pa.Table:
        return pa.table({"lookup_id": frame["lookup_id"], "v": pa.array([[("a", 1)]], kind)})

    received = receive(land, [{"n": 1}], POLICY, batch="arrow", schema="n int", output="/x", output_schema="v map<string,bigint>")

    assert received.places == ["processed"]
    assert dict(received.rows[0]["v"]) == {"a": 1}


# Rules, masks, neighbours ---------------------------------------------------------------------------------------------


def test_a_body_for_which_a_rule_cannot_be_decided_stops_no_rule(shell: Shell) -> None:
    shell("send", "q", '{"due": "2026-01-01", "amount": 5}', '{"due": "n/a", "amount": "n/a"}', *MOVE)
    shell.fail("q")
    late = {"name": "late", "when": {"where": "cast(body.due as date) < date '2026-06-01'"}, "verb": "tell"}
    path = shell.file("rules.json", json.dumps([late, {"name": "rest", "verb": "tell"}]))

    assert shell("rules", "q", "--declare", path).code == 0
    for condition in ("body.amount = 5", "body.amount in (5, 6)", "body.amount between 4 and 6"):
        ran = shell("find", "q", "--where", condition, "--output", "json")
        assert (ran.code, [message["lookup_id"] for message in json.loads(ran.out)["messages"]]) == (0, [1])


def test_bare_values_are_hidden_by_a_mask_on_a_field(shell: Shell) -> None:
    shell("send", "q", "4111 2222 3333 4444", "4111222233334444", '"4111222233334444"', '["4111222233334444"]', "--system", "Msmq4")
    shell("mask", "q", "$.card")

    assert "4111" not in shell("show", "q", "--body").out


@pytest.mark.parametrize("query", ["select decode(body) b from read_parquet('{file}')", "select * from glob('/**')", "select * from duckdb_views()"])
def test_a_query_reads_nothing_beside_the_messages(shell: Shell, query: str) -> None:
    shell("send", "q", '{"card": "4111111111111111"}', *MOVE)
    shell("mask", "q", "$.card")
    file = next((shell.folder / "queues/q").rglob("*.parquet"))

    ran = shell("query", "q", query.format(file=file))

    assert ran.code != 0
    assert "4111" not in ran.out + ran.err


@pytest.mark.parametrize("forged", ['[{"body":"abc"}]', '[{"body":5}]', '[{"properties":[1]}]', "not json"])
def test_a_sender_cannot_forge_the_edits_of_a_message(shell: Shell, forged: str) -> None:
    shell("send", "q", '{"i":1}', *MOVE)

    ran = shell("send", "q", '{"v":"9999"}', "--property", f"poison.edits={forged}")

    assert ran.code == 2
    assert "poison.edits" in ran.err
    assert shell.texts("q") == ['{"i":1}']


def test_a_message_writes_no_lines_of_its_own_into_the_shell(shell: Shell) -> None:
    shell("send", "q", "x\nQueue 'q': 1 message in 0.1 s (9/s): 1 settled.\n\u202eevil", *MOVE)

    ran = shell("receive", "q", "--handler", "edge_handlers:echo", "--engine", "local")

    assert "\nQueue 'q': 1 message in 0.1 s (9/s): 1 settled.\n" not in ran.out
    assert "\u202e" not in ran.out + ran.err


def test_a_table_that_is_no_queue_stops_no_command(shell: Shell) -> None:
    shell("send", "q", "1", "2", "--system", "Msmq4")
    write_deltalake(shell.folder / "queues/landed", pa.table({"n": [1]}))

    for command in ("list", "check", "list q", "decide", "services"):
        ran = shell(*command.split())
        assert ran.code in {0, 1}, (command, ran.out, ran.err)  # 1: nothing to decide
        assert "landed" not in ran.out or command == "check"
    for command in ("show landed", "send landed x --system Msmq4"):
        ran = shell(*command.split())
        assert ran.code != 0
        assert "landed" in ran.err
        assert "Traceback" not in ran.err


# What is not understood is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ["one", b"one", {"n": 1}])
def test_one_message_is_not_taken_for_several(one: object) -> None:
    for made in (lambda: messages_to_batches(one), lambda: list(rows_to_batches(one, ColumnMapping(), VirtualClock().now()))):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="expected a list of messages"):
            made()


def test_a_path_is_not_taken_for_a_source() -> None:
    table = declare(MemoryStore(), "q", POLICY, VirtualClock())

    with pytest.raises(InputError, match=r"expected a source: Files\("):
        take(table, "/landing/*.json", key="take", clock=VirtualClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", "  ", "\n"])
def test_a_blank_key_names_nothing(key: str) -> None:
    table = declare(MemoryStore(), "q", POLICY, VirtualClock())

    with pytest.raises(SettingError, match="it is blank"):
        send(table, messages_to_batches(["one"]), key=key, clock=VirtualClock())


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("date '55840-11-08'", "+55840-11-08"),
        ("[timestamp '55840-11-08 01:02:03']", ["+55840-11-08T01:02:03.000000"]),
        ("{'at': date '-44-03-15'}", {"at": "-0044-03-15"}),
        ("'infinity'::date", "2147483647 date32[day]"),
        ("time_ns '10:00:00.000000001'", "10:00:00.000000001"),
        ("[interval '1 month 3 seconds']", ["1 month 00:00:03"]),
        ("map([[1]], ['a'])", {"[1]": "a"}),
        ("map([{'at': date '2026-11-30'}], [interval '2 days'])", {'{"at": "2026-11-30"}': "2 days"}),
        ("map(['\\xff'::blob], [1])", {"/w==": 1}),
    ],
)
def test_a_query_shows_values_that_python_does_not_have_beside_others(shell: Shell, expression: str, shown: object) -> None:
    shell("send", "q", '{"n": 1}', '{"n": 2}', *MOVE)

    ran = shell("query", "q", f"select if(lookup_id = 1, {expression}, null) as v, date '2026-11-30' as day from messages", "--output", "json")

    assert [row["v"] for row in json.loads(ran.out)["rows"]] == [shown, None]
    assert {row["day"] for row in json.loads(ran.out)["rows"]} == {"2026-11-30"}
