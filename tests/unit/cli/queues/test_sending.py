"""What is sent from the shell: lines, rows, files, standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.values.clock import SystemClock
from tests.unit.cli.queues.given import MOVE, answer, messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.given.command import Ran


COLUMNS: list[tuple[str, pa.DataType]] = [
    ("n", pa.int64()),
    ("d", pa.decimal128(9, 2)),
    ("at", pa.timestamp("us", "UTC")),
    ("m", pa.map_(pa.string(), pa.int64())),
    ("b", pa.binary()),
]
ROWS = [{"plane": "N1", "carrier": "UA", "urgency": 7}, {"plane": "N2", "carrier": "AA", "urgency": 1}]


def test_lines_are_messages_as_they_are(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in.txt").write_bytes(b"one\r\n\n \xe4 two")
    poison(f"send orders --file in.txt --priority 7 --group g --message-type t --expires-after 1h --property a=b c= {MOVE}")
    sent = messages(poison)
    assert [(each["body"], each["body_encoding"]) for each in sorted(sent, key=lambda each: each["lookup_id"])] == [
        ("one", "text"),
        ("", "text"),
        ("IOQgdHdv", "base64"),
    ]
    assert {(each["priority"], each["group_id"], each["message_type"], bool(each["expires_at"])) for each in sent} == {(7, "g", "t", True)}
    assert sent[0]["properties"] == {"a": "b", "c": ""}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_rows_are_mapped(poison: Callable[..., Ran], here: Path, form: str) -> None:
    place = here / f"in.{form}"
    match form:
        case "jsonl":
            place.write_text("\n\n".join(map(json.dumps, ROWS)))
        case "csv":
            place.write_text("\ufeffplane,carrier,urgency\nN1,UA,7\nN2,AA,1\n", encoding="utf-8")
        case _:
            pq.write_table(pa.Table.from_pylist(ROWS), place)
    poison(f"send orders --file {place} --map body=plane,carrier group=carrier priority=urgency properties=plane --message-type t {MOVE}")
    sent = messages(poison)
    assert [json.loads(each["body"]) for each in sent] == [{"plane": "N1", "carrier": "UA"}, {"plane": "N2", "carrier": "AA"}]
    assert [(each["group_id"], each["priority"], each["properties"]["plane"], each["message_type"]) for each in sent] == [
        ("UA", 7, "N1", "t"),
        ("AA", 1, "N2", "t"),
    ]


def test_parquet_has_values_that_json_has_not(poison: Callable[..., Ran], here: Path) -> None:
    instant = SystemClock().now().replace(microsecond=0)
    pq.write_table(pa.table({"at": [instant], "body": [b"\xff"], "nested": [[{"day": instant.date()}]]}), here / "in.parquet")
    poison(f"send orders --file in.parquet --map body=at,nested {MOVE}")
    poison("send orders --file in.parquet --map body=body properties=at")
    first, second = messages(poison)
    assert json.loads(first["body"]) == {"at": instant.strftime("%Y-%m-%dT%H:%M:%S.000Z"), "nested": [{"day": instant.date().isoformat()}]}
    assert (second["body"], second["properties"]["at"]) == ("/w==", instant.strftime("%Y-%m-%dT%H:%M:%S.000Z"))


def test_standard_input_is_read_when_it_is_named(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"a": 1}\n'), isatty=lambda: False))
    poison(f"send orders --file - --format json {MOVE}")
    assert messages(poison)[0]["body"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("place", "bodies"), [("in.txt", ["one", "two"]), ("in.jsonl", ['{"a": 1}', '{"a": 2}']), ("in.csv", ['{"a":"1"}', '{"a":"2"}'])]
)
def test_a_byte_order_mark_is_part_of_no_message(poison: Callable[..., Ran], here: Path, place: str, bodies: list[str]) -> None:
    lines = ["a", "1", "2"] if place == "in.csv" else bodies
    (here / place).write_text("\n".join(lines), encoding="utf-8-sig")
    poison(f"send orders --file {place} {MOVE}")
    assert [each["body"] for each in messages(poison)] == bodies


DIGITS = b'{"amount": 12345678901234567.89, "rate": 1.10, "big": 1e400, "rate": 2.0}'


@pytest.mark.parametrize("place", ["in.jsonl", "in.ndjson.gz", "in.jsonl.bz2"])
def test_lines_of_json_are_sent_as_they_are(poison: Callable[..., Ran], here: Path, place: str) -> None:
    content = DIGITS + b'\r\n\n[1.10]\n"text"\n'
    packed = {"in.jsonl": content, "in.ndjson.gz": gzip.compress(content), "in.jsonl.bz2": bz2.compress(content)}
    (here / place).write_bytes(packed[place])
    poison(f"send orders --file {place} {MOVE}")
    assert [each["body"] for each in messages(poison)] == [DIGITS.decode(), "[1.10]", '"text"']


def test_fields_of_json_lines_keep_their_digits(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in.jsonl").write_text('{"amount": 12345678901234567.89, "rate": 1.10, "deep": {"n": 1e400}, "text": "x", "group": "g"}\n')
    poison(f"send orders --file in.jsonl --map body=amount,rate,deep group=group {MOVE}")
    poison("send orders --file in.jsonl --map body=text")
    first, second = messages(poison)
    assert (first["body"], first["group_id"]) == ('{"amount": 12345678901234567.89, "rate": 1.10, "deep": {"n": 1e400}}', "g")
    assert (second["body"], second["group_id"]) == ("x", None)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("b,a", "body='b': line 1 of in.jsonl has no such field; its fields are ['a']."),
        ("a", "body='a': line 1 of in.jsonl has no text there; a body is text. For JSON name several fields."),
    ],
)
def test_a_line_without_the_fields_of_its_body_is_refused(poison: Callable[..., Ran], here: Path, body: str, told: str) -> None:
    (here / "in.jsonl").write_text('{"a": 1}\n')
    assert poison(f"send orders --file in.jsonl --map body={body} {MOVE}", code=2).err == f"error: {told} Nothing was sent.\n"


@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv"])
def test_the_name_of_a_file_may_be_no_utf8(poison: Callable[..., Ran], here: Path, ending: str) -> None:
    name = os.fsdecode(b"caf\xe9.") + ending
    (here / name).write_bytes(b"[1]\n" * 2)
    poison(f"send orders --file {name} {MOVE}")
    assert len(messages(poison)) == (1 if ending == "csv" else 2)


def test_how_csv_is_written_is_said(poison: Callable[..., Ran], here: Path) -> None:
    (here / "a.csv").write_bytes(b"# export\nid\tname\nNA\tcaf\xe9\n")
    (here / "b.csv").write_bytes(b'1;\n2;""\n')
    poison(rf"send orders --file a.csv --delimiter '\t' --encoding latin-1 --header 2 {MOVE}")
    poison("send orders --file b.csv --delimiter ';' --header id,name")
    assert [each["body"] for each in messages(poison)] == ['{"id":"NA","name":"caf\u00e9"}', '{"id":"1","name":null}', '{"id":"2","name":""}']


@pytest.mark.parametrize(
    ("place", "content", "options"),
    [
        ("in.csv", b'a,b\r\n1,NA\r\n,""\r\n"x\ny",2\r\n', ""),
        ("in.csv", b"a;b\n1;caf\xe9\n", "--delimiter ';' --encoding latin-1"),
        ("in.jsonl", b'\xef\xbb\xbf{"a": 1.10}\n\n[]\r\n', ""),
        ("in.jsonl", '\ufeff{"a": "\u00e9"}\n'.encode("utf-16-le"), ""),
        ("in.txt", b"\xef\xbb\xbf a\n\n\xff\r\nb", ""),
        ("in.parquet", None, ""),
    ],
)
def test_files_and_sources_make_the_same_bodies(poison: Callable[..., Ran], here: Path, place: str, content: bytes | None, options: str) -> None:
    if content is None:
        rows = {"n": [1, None], "d": [Decimal("1.10"), None], "at": [SystemClock().now()] * 2, "m": [[("a", 1)], None], "b": [b"\xff", None]}
        pq.write_table(pa.table(rows, schema=pa.schema(COLUMNS)), here / place)
    else:
        (here / place).write_bytes(content)
    os.utime(here / place, (1, 1))
    form = {"jsonl": "json", "txt": "lines"}.get(place[3:], place[3:])
    poison(f"send one --file {place} {options} {MOVE}")
    poison(f"send two --source {here}/{place} --format {form} {options} {MOVE}")
    one, two = ([(each["body"], each["body_encoding"]) for each in messages(poison, queue)] for queue in ("one", "two"))
    assert one == two
    assert one


def test_only_the_first_line_of_a_file_begins_with_a_byte_order_mark(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in.txt").write_bytes(b"one\n\xef\xbb\xbftwo")
    poison(f"send orders --file in.txt {MOVE}")
    assert [each["body"] for each in messages(poison)] == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("place", "content", "told"),
    [
        ("in.csv", b"a,b,a\n1,2,3\n", "line 2 of in.csv: the header, line 1, names column 'a' twice: a, b, a."),
        ("in.csv", b"a,b\n1,2\n\xff,3\n", "line 3 of in.csv: byte 1 is no utf-8; encoding= names another one."),
        ("in.csv", b'a,b\n1,2\n"x,3\n', "line 3 of in.csv: a quote opens a cell and is never closed."),
        ("in.jsonl", b'{"a": 1}\n{"a": NaN}\n', "line 2 of in.jsonl: it is no JSON: JSON has no NaN."),
        ("in.jsonl", b'{"a": -Infinity}\n', "line 1 of in.jsonl: it is no JSON: JSON has no -Infinity."),
        ("in.jsonl.gz", gzip.compress(b"1\n" * 10)[:-9], "in.jsonl.gz cannot be read as json: Compressed file ended before the end-"),
    ],
)
def test_what_would_be_sent_otherwise_than_given_is_refused(poison: Callable[..., Ran], here: Path, place: str, content: bytes, told: str) -> None:
    (here / place).write_bytes(content)
    ran = poison(f"send orders --file {place} {MOVE}", code=2)
    assert ran.err.startswith(f"error: {told}")
    assert ran.err.endswith("Nothing was sent.\n")
    assert messages(poison) == []


def test_two_columns_of_one_name_in_a_parquet_file_are_refused(poison: Callable[..., Ran], here: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), here / "in.parquet")
    ran = poison(f"send orders --file in.parquet {MOVE}", code=2)
    assert "in.parquet cannot be read as parquet: column 'a' is there twice" in ran.err
    assert messages(poison) == []


def test_a_saved_message_with_a_part_of_a_wrong_type_is_named_by_its_line(poison: Callable[..., Ran], here: Path) -> None:
    good = {"body": "x", "body_encoding": "text"}
    (here / "saved.jsonl").write_text("\n".join(json.dumps(row) for row in (good, {**good, "priority": "high"})))
    ran = poison(f"send orders --file saved.jsonl --format saved {MOVE}", code=2)
    assert "saved.jsonl, line 2: not a message as 'remove --save' writes it (TypeError: priority='high', expected int or null)" in ran.err


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"group_id": "\ud800"}, r"ValueError: group_id='\ud800', expected text that UTF-8 can hold"),
        ({"message_id": "\udcff"}, r"message_id='\udcff'"),
        ({"properties": {"a": "\ud800"}}, r"a='\ud800'"),
        ({"properties": {"\ud800": "a"}}, r"\ud800='\ud800'"),
        ({"body": "\ud800"}, "UnicodeEncodeError"),
        ({"body_cut": True, "body_bytes": 70_000}, "body_cut=true: only the beginning of the body's 70000 bytes is here"),
    ],
)
def test_a_saved_message_that_cannot_be_sent_as_it_was_is_refused(
    poison: Callable[..., Ran], here: Path, wrong: dict[str, object], says: str
) -> None:
    (here / "saved.jsonl").write_text(json.dumps({"body": "x", "body_encoding": "text", **wrong}))
    ran = poison(f"send orders --file saved.jsonl --format saved {MOVE}", code=2)
    assert "saved.jsonl, line 1: " in ran.err
    assert says in ran.err


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress])
def test_saved_messages_are_decompressed_as_their_file_says(poison: Callable[..., Ran], here: Path, packed: Callable[[bytes], bytes]) -> None:
    bodies = ["x" * 3_000_000, "", "caf\u00e9"]
    content = packed("\n\n".join(json.dumps({"body": body, "body_encoding": "text"}) for body in bodies).encode())
    name = "saved.jsonl.gz" if packed is gzip.compress else "saved.jsonl.bz2"
    (here / name).write_bytes(content)
    assert poison(f"send orders --file {name} --format saved {MOVE}").out.startswith("Sent 3 messages")
    assert [each["body_bytes"] for each in messages(poison)] == [3_000_000, 0, 5]
    (here / name).write_bytes(content[: len(content) // 2])
    ran = poison(f"send orders --file {name} --format saved", code=2)
    assert f"{name} cannot be decompressed" in ran.err or f"{name}, line 1: no JSON" in ran.err


@pytest.mark.parametrize("option", ["--group", "--property a=", "--message-type", "--conversation", "--send-key"])
def test_parts_of_messages_are_utf8(poison: Callable[..., Ran], option: str) -> None:
    gap = "" if option.endswith("=") else " "
    ran = poison(f"send orders one {option}{gap}\udcff {MOVE}", code=2)
    assert ran.err.startswith(f"error: {option.split(maxsplit=1)[0]} ")
    assert r"\udcff': expected text in UTF-8" in ran.err


def test_a_priority_above_the_highest_is_refused_by_its_option(poison: Callable[..., Ran]) -> None:
    assert poison(f"send orders one --priority 11 {MOVE}", code=2).err == "error: --priority 11: expected a whole number from 0 to 10.\n"


def test_a_send_key_names_what_is_sent(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE} --send-key today")
    assert poison("send orders one --send-key today").out == (
        "An earlier send with this key has sent 1 message to orders, lookup id 1; nothing was sent now.\n"
    )
    assert answer(poison("send orders one --send-key today --resend -o json")) == {
        "queue": "orders",
        "sent": 1,
        "first_lookup_id": 2,
        "repeated": False,
        "held": 0,
        "malformed": 0,
    }
    poison("send orders one")
    poison("send orders one")
    assert len(messages(poison)) == 4


def test_a_policy_that_is_sent_with_is_recorded_and_warned_of(poison: Callable[..., Ran], here: Path) -> None:
    (here / "policy.json").write_text('{"system": "ActivationSpecification", "BOTHRESH": 5}')
    ran = poison("send orders one --policy-json policy.json --set BOTHRESH=6")
    assert ran.err.startswith("warning: ")
    assert answer(poison("show orders -o json"))["policy"]["backout_threshold"] == 6
