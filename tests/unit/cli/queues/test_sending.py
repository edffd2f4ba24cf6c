"""What is sent from the shell: lines, rows, files, standard input."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.core.clock import SystemClock
from tests.unit.cli.queues.given import MOVE, answer, messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.cli.running import Ran


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
    assert json.loads(first["body"]) == {"at": instant.isoformat(), "nested": [{"day": instant.date().isoformat()}]}
    assert (second["body"], second["properties"]["at"]) == ("/w==", instant.isoformat())


def test_standard_input_is_read_when_it_is_named(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"a": 1}\n'), isatty=lambda: False))
    poison(f"send orders --file - --format jsonl {MOVE}")
    assert messages(poison)[0]["body"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("place", "bodies"), [("in.txt", ["one", "two"]), ("in.jsonl", ['{"a": 1}', '{"a": 2}']), ("in.csv", ['{"a": "1"}', '{"a": "2"}'])]
)
def test_a_byte_order_mark_is_part_of_no_message(poison: Callable[..., Ran], here: Path, place: str, bodies: list[str]) -> None:
    lines = ["a", "1", "2"] if place == "in.csv" else bodies
    (here / place).write_text("\n".join(lines), encoding="utf-8-sig")
    poison(f"send orders --file {place} {MOVE}")
    assert [each["body"] for each in messages(poison)] == bodies


def test_only_the_first_line_of_a_file_begins_with_a_byte_order_mark(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in.txt").write_bytes(b"one\n\xef\xbb\xbftwo")
    poison(f"send orders --file in.txt {MOVE}")
    assert [each["body"] for each in messages(poison)] == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("place", "content", "told"),
    [
        ("in.csv", b"a,b,a\n1,2,3\n", "in.csv, line 1: column 'a' is there twice. The columns are ['a', 'b', 'a']. Rename one of them."),
        ("in.csv", b"a,b\n1,2\n\xff,3\n", "in.csv, line 3: no CSV in UTF-8: "),
        ("in.csv", b'a,b\n1,2\n"x,3\n', "in.csv, line 2: no CSV in UTF-8: unexpected end of data."),
        ("in.jsonl", b'{"a": 1}\n\n{"b": {"x": 1, "x": 2}}\n', "in.jsonl, line 3: no JSON: the name 'x' is there twice in one object."),
        ("in.jsonl", b'{"a": 1}\n{"a": NaN}\n', "in.jsonl, line 2: no JSON: JSON has no NaN; write null or a text."),
        ("in.jsonl", b'{"a": -Infinity}\n', "in.jsonl, line 1: no JSON: JSON has no -Infinity; write null or a text."),
        ("in.jsonl", b'{"a": 1e999}\n', "messages[0], column 'a' cannot become JSON: it has no NaN and no infinity"),
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
    assert "in.parquet: column 'a' is there twice" in ran.err
    assert messages(poison) == []


def test_a_saved_message_with_a_part_of_a_wrong_type_is_named_by_its_line(poison: Callable[..., Ran], here: Path) -> None:
    good = {"body": "x", "body_encoding": "text"}
    (here / "saved.jsonl").write_text("\n".join(json.dumps(row) for row in (good, {**good, "priority": "high"})))
    ran = poison(f"send orders --file saved.jsonl --format saved {MOVE}", code=2)
    assert "saved.jsonl, line 2: not a message as 'remove --save' writes it (TypeError: priority='high', expected int or null)" in ran.err


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
