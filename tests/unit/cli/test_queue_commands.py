"""The commands on queues as people use them: what they print, their exit codes, and how they refuse."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.cli import humanly, screen
from airflow_poison.cli.receive import Progress
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alter import disable
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.policies.service_broker import ServiceBroker
from airflow_poison.core.store.delta.store import DeltaStore
from tests.unit.cli.running import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.core.store.seam import QueueTable

Capture = pytest.CaptureFixture[str]
TAKE = "--handler tests.unit.cli.shop:take --engine local --isolation none"
MOVE = "--system Msmq4 --set ReceiveErrorHandling=Move ReceiveRetryCount=0 MaxRetryCycles=0"
FAULT = "--system Msmq4 --set ReceiveRetryCount=0 MaxRetryCycles=0"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def poison(capsys: Capture) -> Callable[..., Ran]:
    """Run a command on the store ``q`` of the test."""

    def running(line: str, *, code: int = 0) -> Ran:
        ran = run(capsys, f"{line} --store q")
        assert ran.code == code, ran
        return ran

    return running


def orders() -> QueueTable:
    return DeltaStore("q", durable=False).open("orders")


def answer(ran: Ran) -> Any:
    return json.loads(ran.out)


# A queue's life -------------------------------------------------------------------------------------------------------


def test_messages_are_sent_received_shown_put_back_and_told_of(poison: Callable[..., Ran]) -> None:
    sent = poison(f"send orders one 'bad two' {MOVE}")
    assert sent.out == "Sent 2 messages to orders, lookup ids 1 to 2.\n"
    received = poison(f"receive orders {TAKE}")
    assert re.search(r"2 messages in .*: 1 settled, 1 moved to poison\.", received.out)
    shown = poison("show orders").out
    assert shown.splitlines()[0] == "orders: enabled"
    assert shown.splitlines()[1] == "Msmq4: receive_retry_count=0, max_retry_cycles=0, receive_error_handling=Move"
    assert re.search(r"^ +2 +orders;poison +0 +1 .*LookupError: unknown plane", shown, re.MULTILINE)
    assert poison("move orders all").out == "Moved 1 message of orders: 1 to main.\n"
    events = answer(poison("history orders -o json"))["events"]
    assert [event["event"] for event in events if event["event"] != "POISON_EXCEPTION"] == ["MOVED_POISON", "RETURNED"]


def test_a_handler_is_found_in_the_files_that_are_shipped(poison: Callable[..., Ran], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    far = here / "far"
    far.mkdir()
    (far / "shipped_helper.py").write_text("words = []\n")
    (far / "shipped_handler.py").write_text("from shipped_helper import words\n\ndef take(message):\n    words.append(message.text)\n")
    poison(f"send orders one {MOVE}")
    take = "receive orders --handler shipped_handler:take --engine local --isolation none"
    assert "shipped_handler" in poison(take, code=2).err
    assert "1 settled" in poison(f"{take} --py-files far/shipped_handler.py far/shipped_helper.py").out


def test_a_halted_queue_is_listed_shown_and_decided_about(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one 'bad two' three {FAULT}")
    poison("send idle one --system Msmq4")
    assert poison("decide", code=1).err.startswith("nothing: every queue in ")
    poison(f"receive orders {TAKE}", code=1)

    assert re.search(r"^orders +faulted +2 +remove, return, enable, leave", poison("decide").out, re.MULTILINE)
    shown = poison("decide orders").out
    assert "bad two" in shown
    assert "decide orders return --sub-queue main: " in shown
    [halt] = answer(poison("decide orders -o json"))["halted"]
    assert (halt["lookup_id"], halt["message"]["body"], halt["decisions"]) == (2, "bad two", ["remove", "return", "enable", "leave"])
    assert [each["queue"] for each in answer(poison("decide -o json"))["halted"]] == ["orders"]

    assert poison("decide orders leave").out == "Queue orders is left faulted.\n"
    done = answer(poison("decide orders remove --lookup-id 2 -o json"))
    assert (done["decision"], done["messages"], done["to"]) == ("remove", 1, "orders;poison")
    assert answer(poison("show orders -o json"))["state"] == "enabled"
    assert poison("decide orders enable", code=1).err == "nothing: queue orders receives: there is nothing to decide.\n"
    assert answer(poison("decide orders -o json", code=1))["halted"] == []


def test_a_decision_about_another_message_than_the_suspect_changes_nothing(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one 'bad two' three {FAULT}")
    poison(f"receive orders {TAKE}", code=1)
    before = orders().snapshot()

    refused = poison("decide orders remove --lookup-id 3", code=1)

    assert refused.err == "error: Queue 'orders' is faulted by message 2, not by message 3. Nothing has changed.\n"
    assert orders().snapshot() == before


def test_a_queue_that_was_switched_off_can_only_be_enabled_or_left(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    poison("disable orders --reason 'for the night'")
    [halt] = answer(poison("decide orders -o json"))["halted"]
    assert (halt["reason"], halt["message"], halt["decisions"]) == ("for the night", None, ["enable", "leave"])
    assert "allowed: enable or leave: no single message halted" in poison("decide orders remove", code=2).err
    assert poison("decide orders enable").out == "Queue orders is enabled; it was disabled.\n"


@pytest.mark.parametrize("line", ["decide orders maybe", "decide orders --lookup-id 2", "decide --to-queue bills", "decide orders --sub-queue retry"])
def test_a_wrong_decision_is_refused(poison: Callable[..., Ran], line: str) -> None:
    poison(f"send orders one {MOVE}")
    assert poison(line, code=2).err.count("\n") == 1


def test_every_table_fits_80_columns(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one 'bad {'two ' * 30}' {MOVE} --group a-group")
    poison(f"receive orders {TAKE}")
    poison("send orders late --priority 9")
    for line in ("list", "show orders", "history orders"):
        assert max(map(len, poison(line).out.splitlines())) <= 80, line


def test_a_pipe_gets_one_line_for_each_row_without_colours(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    poison(f"send orders 'bad {'two ' * 40}' {MOVE}")
    poison(f"receive orders {TAKE}")
    shown = poison("show orders").out
    assert "\x1b" not in shown
    assert f"LookupError: unknown plane bad {'two ' * 40}".rstrip() in shown


def test_list_tells_of_halted_queues_claims_and_what_is_rare(poison: Callable[..., Ran]) -> None:
    poison(f"send orders 'bad one' two {FAULT}")
    poison(f"send bills one {FAULT}")
    poison(f"receive orders {TAKE}", code=1)
    bills = DeltaStore("q", durable=False).open("bills")
    bills.claim("run", lease=timedelta(seconds=-1), now=SystemClock().now(), max_messages=10)
    disable(orders(), SystemClock())
    poison("send orders three")
    listed = poison("list").out
    assert "transmission" in listed
    assert re.search(r"^bills +enabled +1 +0 +0 +0 +1 ", listed, re.MULTILINE)
    assert re.search(r"^orders +disabled +2 +0 +0 +1 +0 ", listed, re.MULTILINE)
    found = {queue["queue"]: queue for queue in answer(poison("list -o json"))["queues"]}
    assert (found["bills"]["expired_claims"], found["orders"]["halted_by"]) == (1, 1)
    assert found["orders"]["sub_queues"]["transmission"]["messages"] == 1
    assert "the next receive takes it over" in " ".join(poison("show bills").out.split())


def test_list_without_a_queue_says_so_and_ends_with_1(poison: Callable[..., Ran]) -> None:
    ran = poison("list", code=1)
    assert (ran.out, ran.err.startswith("nothing: there is no queue in")) == ("", True)
    assert answer(poison("list -o json", code=1))["queues"] == []


def test_list_goes_on_behind_a_queue_that_cannot_be_opened(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    ran = poison("list nosuch orders", code=2)
    assert "\norders  enabled     1" in ran.out
    assert ran.err.startswith("error: There is no queue 'nosuch'")


def test_a_halted_queue_ends_receive_and_show_with_1_and_says_what_to_do(poison: Callable[..., Ran]) -> None:
    poison(f"send orders good 'bad one' better {FAULT}")
    ran = poison(f"receive orders {TAKE}", code=1)
    assert ran.err.startswith("halted: Message 2 of queue 'orders' halted it (faulted): LookupError: unknown plane bad one. 'inspect orders'")
    assert poison("show orders", code=1).out.startswith("orders: faulted: message 2 of queue 'orders' halted it")
    assert poison(f"receive orders {TAKE}", code=1).err.startswith("error: Queue 'orders' is faulted")
    assert "bad one" in poison("inspect orders").out
    recovered = poison("recover orders --yes")
    assert recovered.out.endswith("Removed 1 message from orders, and enabled it; it was faulted.\n")
    assert "1 settled" in poison(f"receive orders {TAKE}").out
    assert poison("recover orders --yes", code=1).err.startswith("error: No message halted queue 'orders'")


def test_show_of_single_messages_is_whole_and_misses_none(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one 'bad two' {MOVE} --property kind=test --conversation d1")
    poison(f"receive orders {TAKE}")
    ran = poison("show orders --lookup-id 1,2", code=1)
    assert ran.err == "nothing: not in queue 'orders': 1. Settled, moved or removed, or never sent.\n"
    for part in ("message 2 in orders;poison", "property kind: test", "conversation id: d1", 'raise LookupError(f"unknown plane', "    bad two"):
        assert part in ran.out
    found = answer(poison("show orders --lookup-id 1,2 -o json", code=1))
    assert (found["missing"], found["messages"][0]["body"], found["messages"][0]["last_error"]["type"]) == ([1], "bad two", "LookupError")


def test_show_limits_each_sub_queue_and_reads_bodies_only_when_asked(poison: Callable[..., Ran]) -> None:
    poison(f"send orders 'bad 1' 'bad 2' 'bad 3' {MOVE}")
    poison(f"receive orders {TAKE}")
    poison("send orders 4 5 6")
    found = answer(poison("show orders --limit 2 -o json"))
    assert [message["lookup_id"] for message in found["messages"]] == [4, 5, 1, 2]
    assert found["more"] == {"main": 1, "poison": 1}
    assert "body" not in found["messages"][0]
    assert [message["body"] for message in answer(poison("show orders --limit 1 --body -o json"))["messages"]] == ["4", "bad 1"]
    assert answer(poison("show orders --sub-queue Poison -o json"))["more"] == {}
    assert "1 message more in orders;poison; --limit shows more." in poison("show orders --limit 2").out
    assert "    bad 1" in poison("show orders --sub-queue poison --body").out
    assert "bad 1" not in poison("show orders --limit 0").out


def test_sb_33_an_inspection_rolls_back_and_only_a_strict_one_counts(poison: Callable[..., Ran]) -> None:
    declare(DeltaStore("q", durable=False), "orders", ServiceBroker(), SystemClock())
    poison("send orders one")
    for mode in ("browse", "exempt"):
        assert "    one" in poison(f"inspect orders --mode {mode}").out
    assert answer(poison("show orders -o json"))["counters"] == {}
    for number in range(1, 6):
        seen = answer(poison("inspect orders --mode strict -o json"))
        assert seen["state"] == ("disabled" if number == 5 else "enabled")
    assert "Error 9617" in poison("inspect orders --mode exempt", code=1).err
    assert [message["body"] for message in answer(poison("inspect orders -o json --mode browse"))["messages"]] == ["one"]


def test_sb_27_no_message_is_an_answer_of_1_and_binary_is_hexadecimal(poison: Callable[..., Ran]) -> None:
    poison(f"send orders '' {MOVE}")
    assert "Empty message." in poison("inspect orders").out
    assert poison("inspect orders --conversation d1", code=1).err == "nothing: No message available.\n"
    Path("binary").write_bytes(b"\xff\x00")
    poison("send orders --file binary")
    assert "No validation -- binary message:\n    0xFF00" in poison("show orders --lookup-id 2").out


def test_xml_is_printed_as_it_says_itself_and_saved_as_it_came(poison: Callable[..., Ran]) -> None:
    body = "<order>Größe</order>".encode("utf-16-le")
    Path("xml.jsonl").write_text(json.dumps({"body": base64.b64encode(body).decode(), "body_encoding": "base64"}))
    poison(f"send orders --file xml.jsonl --format saved {MOVE}")
    printed = "  body (40 bytes, XML in UTF-16):\n    <order>Größe</order>\n"
    assert printed in poison("inspect orders").out
    assert printed in poison("show orders --body").out
    assert poison("remove orders 1 --save kept --yes").out.startswith("Saved 1 message")
    poison("send orders --file kept --format saved")
    [again] = orders().read(orders().snapshot().files[0]).to_pylist()
    assert again["body"] == body


def test_what_is_due_is_returned(poison: Callable[..., Ran]) -> None:
    poison("send orders 'bad one' --system Msmq4 --set ReceiveRetryCount=0 RetryCycleDelay=0")
    poison(f"receive orders {TAKE}")
    assert poison("return orders").out == "Returned 1 message of orders to main; 0 messages wait in retry.\n"
    assert answer(poison("return orders -o json"))["returned"] == 0


def test_messages_move_to_poison_to_another_queue_and_back_to_their_origin(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one two three {MOVE}")
    poison(f"send bills old {MOVE}")
    assert poison("move orders --to poison 2").out == "Moved 1 message of orders: 1 to poison.\n"
    assert answer(poison("move orders 1,3 --to-queue bills -o json")) == {"queue": "orders", "moved": 2, "to": {"bills": 2}}
    assert answer(poison("move bills 2 --to origin -o json"))["to"] == {"orders": 1}
    assert poison("move orders 2 99", code=1).err.startswith("error: Message 99 is not in")
    assert answer(poison("show orders -o json"))["sub_queues"]["poison"]["messages"] == 1, "all or none"
    assert answer(poison("move orders all -o json"))["moved"] == 1
    assert answer(poison("move orders all -o json"))["moved"] == 0


def test_state_and_settings_are_changed(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    assert poison("disable orders --reason 'no\nregistry'").out.startswith("Queue orders is disabled. What is sent to it waits")
    assert poison("send orders two").out.endswith("The queue was disabled: held back until it is enabled: 1 message.\n")
    assert "its reason stays" in poison("disable orders --reason other").out
    assert poison("enable orders").out == "Queue orders is enabled; it was disabled: no registry.\n"
    assert poison("enable orders").out == "Queue orders is enabled; it was already.\n"
    assert poison("alter orders --set RetryCycleDelay=90s").out.splitlines()[0] == "retry_cycle_delay: 1800 -> 90"
    assert poison("alter orders --set RetryCycleDelay=90s").out == "orders had these settings already.\n"
    assert answer(poison("restart orders broker -o json"))["after"] == "enabled"
    assert poison("restart orders Endpoint").out == "Restarted the endpoint of orders; its endpoint was enabled and is enabled.\n"
    assert answer(poison("maintain orders -o json --retention 8d"))["queue"] == "orders"
    assert "Versions from 0 on can still be read." in poison("maintain orders").out


def test_history_is_narrowed(poison: Callable[..., Ran]) -> None:
    poison(f"send orders 'bad 1' 'bad 2' {MOVE}")
    poison(f"receive orders {TAKE}")
    found = answer(poison("history orders --type moved-poison --lookup-id 2 -o json"))
    assert [(event["event"], event["lookup_id"], event["details"]["place"]) for event in found["events"]] == [("MOVED_POISON", 2, "poison")]
    assert answer(poison("history orders --limit 1 -o json"))["earlier"] == 3
    assert len(answer(poison("history orders --limit 0 --since 1h -o json"))["events"]) == 4
    assert poison("history orders --limit 1").out.startswith("3 earlier events; --limit shows more.\n")
    assert poison("history orders --since 2100-01-01", code=1).err == "nothing: no such event of queue 'orders' is recorded.\n"
    assert poison("history orders --lookup-id 9", code=1).out == ""


# What is sent ---------------------------------------------------------------------------------------------------------

ROWS = [{"plane": "N1", "carrier": "UA", "urgency": 7}, {"plane": "N2", "carrier": "AA", "urgency": 1}]


def messages(poison: Callable[..., Ran]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(poison("show orders --body --limit 100 -o json"))["messages"]
    return sorted(found, key=lambda message: message["lookup_id"])


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
    }
    poison("send orders one")
    poison("send orders one")
    assert len(messages(poison)) == 4


def test_a_policy_that_is_sent_with_is_recorded_and_warned_of(poison: Callable[..., Ran], here: Path) -> None:
    (here / "policy.json").write_text('{"system": "ActivationSpecification", "BOTHRESH": 5}')
    ran = poison("send orders one --policy-json policy.json --set BOTHRESH=6")
    assert ran.err.startswith("warning: ")
    assert answer(poison("show orders -o json"))["policy"]["backout_threshold"] == 6


# What is removed ------------------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: said))


def test_a_removal_asks_and_takes_nothing_but_yes(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    poison(f"send orders one two {MOVE}")
    for said in ("", "\n", "n\n", "yesterday\n"):
        asked(monkeypatch, said)
        ran = poison("remove orders 1", code=1)
        assert ran.err == "Remove 1 message from orders for good? [y/N] nothing: was removed.\n"
    assert len(messages(poison)) == 2
    asked(monkeypatch, "Y\n")
    assert "    one\nRemoved 1 message from orders.\n" in poison("remove orders 1").out
    assert [each["lookup_id"] for each in messages(poison)] == [2]


@pytest.mark.parametrize("line", ["remove orders 1", "remove orders 1 --conversation", "recover orders --lookup-id 1"])
def test_a_removal_that_a_pass_prevents_prints_and_saves_nothing(poison: Callable[..., Ran], line: str) -> None:
    poison(f"send orders one two {MOVE} --conversation d1")
    orders().claim("run", lease=timedelta(minutes=2), now=SystemClock().now(), max_messages=10)
    ran = poison(f"{line} --yes --save kept", code=2)
    assert ran.err.endswith("being received. Try again when that pass has ended. Nothing has changed.\n")
    assert (ran.out, Path("kept").exists()) == ("", False)


def test_what_is_removed_is_saved_whole_and_can_be_sent_again(poison: Callable[..., Ran], here: Path) -> None:
    large, binary = b"x" * 100_000, b"\xff" * 70_000
    (here / "in").write_bytes(large + b"\n" + binary)
    poison(f"send orders --file in --group g --priority 2 --property a=b --conversation d1 --expires-after 1h {MOVE}")
    before = messages(poison)
    assert (
        poison("remove orders 2 --conversation --yes --save kept.jsonl").out == "Saved 2 messages in kept.jsonl.\nRemoved 2 messages from orders.\n"
    )
    assert messages(poison) == []
    poison("send orders --file kept.jsonl --format saved")
    same = ("message_id", "body_bytes", "group_id", "conversation_id", "priority", "properties", "expires_at", "body")
    assert [[each[name] for name in same] for each in messages(poison)] == [[each[name] for name in same] for each in before]
    assert orders().read(orders().snapshot().files[0])["body"].to_pylist() == [large, binary]


def test_a_file_that_is_there_is_never_written_over(poison: Callable[..., Ran], here: Path) -> None:
    (here / "kept").write_text("old")
    poison(f"send orders one {MOVE}")
    assert "there is such a file already" in poison("remove orders 1 --yes --save kept", code=2).err
    assert (here / "kept").read_text() == "old"
    assert poison("remove orders 1 --yes --save none/kept", code=2).err == "error: none/kept: No such file or directory.\n"
    assert len(messages(poison)) == 1


def test_json_shows_the_whole_messages_before_they_go(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in").write_bytes(b"x" * 100_000)
    poison(f"send orders --file in {MOVE}")
    found = answer(poison("remove orders 1 --yes -o json"))
    assert (found["queue"], len(found["messages"][0]["body"]), found["saved"]) == ("orders", 100_000, None)
    assert messages(poison) == []


def test_a_message_that_is_being_received_stays(poison: Callable[..., Ran], here: Path) -> None:
    poison(f"send orders one {MOVE}")
    orders().claim("run", lease=timedelta(minutes=1), now=SystemClock().now(), max_messages=10)
    assert "is being received" in poison("remove orders 1 --yes", code=2).err
    assert "being received" in poison("show orders").out
    assert "cannot be restarted from outside" in poison("restart orders endpoint", code=2).err
    assert "A pass still finishes 1 message that it has claimed." in poison("disable orders").out


# Errors ---------------------------------------------------------------------------------------------------------------

WRONG = [
    ("list nosuch", 2, "There is no queue 'nosuch'"),
    ("list -o xml", 2, "table, json"),
    ("list --conn-id x", 2, "expected one of them"),
    ("show", 2, "QUEUE"),
    ("show nosuch", 2, "Queues there: orders"),
    ("show 'a;b'", 2, "cannot be a queue's name"),
    ("show orders --limit -1", 2, "a whole number from 0 on"),
    ("show orders --limit ten", 2, "--limit ten"),
    ("show orders --sub-queue main,poisn", 2, "the nearest is poison"),
    ("show orders --lookup-id 1 --sub-queue main", 2, "expected one of them"),
    ("show orders --lookup-id 1,x", 2, "lookup id x"),
    ("show orders --lookup-id 9999999999999999999", 2, "9999999999999999999"),
    ("inspect orders --mode brows", 2, "the nearest is browse"),
    ("inspect orders --mode strict", 2, "only Service Broker"),
    ("inspect orders --lookup-id 1 --conversation d", 2, "expected one of them"),
    ("history orders --type MOVED", 2, "the nearest is"),
    ("history orders --since yesterday", 2, "2013-01-01T12:00Z"),
    ("history orders --since 9999999d", 2, "an instant"),
    ("send nosuch one", 2, "--system SYSTEM makes it"),
    ("send orders", 2, "either BODY"),
    ("send orders one --file in.csv", 2, "either BODY"),
    ("send orders one --map body=a", 2, "with --file"),
    ("send orders one --resend", 2, "with --send-key"),
    ("send orders one --priority 11", 2, "11"),
    ("send orders one --priority high", 2, "--priority high"),
    ("send orders one --property kind", 2, "NAME=VALUE"),
    ("send orders one --expires-after soon", 2, "expected a duration"),
    ("send orders one --set a=b", 2, "--system is missing"),
    ("send orders one --system Msmq5", 2, "Msmq5"),
    ("send orders one --system Msmq4 --set Retries=5", 2, "the nearest is"),
    ("send orders --file none.csv", 2, "none.csv: No such file"),
    ("send orders --file .", 2, "directory"),
    ("send orders --file in.csv --format xml", 2, "lines, jsonl, csv, parquet, saved"),
    ("send orders --file in.csv --map body=nosuch", 2, "'nosuch'"),
    ("send orders --file in.csv --map bodi=a", 2, "the nearest is body"),
    ("send orders --file in.csv --map group=a,b", 2, "expected one column"),
    ("send orders --file in.csv --map group=a --group g", 2, "mapped to a column"),
    ("send orders --file in.csv --map properties=a --property b=c", 2, "mapped to columns"),
    ("send orders --file in.csv --map expires_after=a --expires-after 1h", 2, "mapped to a column"),
    ("send orders --file in.csv --map priority=a", 2, "'x' is no priority"),
    ("send orders --file in.txt --map body=a", 2, "has none"),
    ("send orders --file long.csv", 2, "long.csv, line 2: expected 1 cells"),
    ("send orders --file short.csv", 2, "short.csv, line 2: expected 2 cells"),
    ("send orders --file latin.csv", 2, "no CSV in UTF-8"),
    ("send orders --file quote.csv", 2, "no CSV"),
    ("send orders --file list.jsonl", 2, "list.jsonl, line 1: expected a JSON object, not list"),
    ("send orders --file broken.jsonl", 2, "broken.jsonl, line 2: no JSON"),
    ("send orders --file deep.jsonl", 2, "no JSON"),
    ("send orders --file in.txt --format parquet", 2, "in.txt: no Parquet"),
    ("send orders --file five.jsonl --format saved", 2, "not a message as 'remove --save' writes it"),
    ("send orders --file odd.jsonl --format saved", 2, "a part of a wrong type"),
    ("receive orders", 2, "--handler"),
    ("receive orders --handler shop", 2, "module:function"),
    ("receive orders --handler nosuch:take", 2, "nosuch"),
    (f"receive nosuch {TAKE}", 2, "--system SYSTEM makes it"),
    (f"receive orders {TAKE} --max-messages 0", 2, "from 1 on"),
    (f"receive orders {TAKE} --isolation container", 2, "container"),
    (f"receive orders {TAKE} --spark local", 2, "with --engine spark"),
    (f"receive orders {TAKE} --engine ray", 2, "spark, local"),
    (f"receive orders {TAKE} --unprocessable nosuch:Error", 2, "nosuch"),
    (f"receive orders {TAKE} --py-files nosuch.zip", 2, "on the machine of the task"),
    (f"receive orders {TAKE} --py-files notes.txt", 2, "files that end in .py, .zip"),
    ("return nosuch", 2, "nosuch"),
    ("move orders", 2, "ID"),
    ("move orders x", 2, "lookup id x"),
    ("move orders 1 --to retry", 2, "main, poison, origin"),
    ("move orders 1 --to main --to-queue b", 2, "expected one of them"),
    ("move orders all --to poison", 2, "with --to main"),
    ("move orders 1 --to-queue nosuch", 2, "nosuch"),
    ("move orders 1 --to-queue orders", 2, "another queue"),
    ("move orders 1 --to origin", 2, "poison.origin_queue"),
    ("move orders 99", 1, "Message 99 is not in"),
    ("remove orders 1", 2, "--yes is missing"),
    ("remove orders 99 --yes", 1, "Not in queue 'orders': 99"),
    ("recover orders", 2, "--yes is missing"),
    ("recover orders --yes", 1, "No message halted"),
    ("recover orders --yes --lookup-id 99", 1, "99"),
    ("alter orders", 2, "--set is missing"),
    ("alter orders --set ReceiveRetryCount=many", 2, "'many'"),
    ("alter orders --set Retries=5", 2, "the nearest is"),
    ("restart orders", 2, "WHAT"),
    ("restart orders queue", 2, "endpoint, server, broker"),
    ("maintain orders --retention long", 2, "expected a duration"),
]
FILES = {
    "in.csv": b"a\nx\n",
    "in.txt": b"one\n",
    "long.csv": b"a\nx,y\n",
    "short.csv": b"a,b\nx\n",
    "latin.csv": b"a\n\xe4\n",
    "quote.csv": b'a\n"x\n',
    "list.jsonl": b"[1]\n",
    "broken.jsonl": b'{"a": 1}\n{\n',
    "deep.jsonl": b"[" * 100_000,
    "five.jsonl": b'{"body": 5, "body_encoding": "text"}\n',
    "odd.jsonl": b'{"body": "a", "body_encoding": "text", "group_id": 5}\n',
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one queue, for errors: they change nothing."""
    place = tmp_path_factory.mktemp("errors")
    table = declare(DeltaStore(str(place / "q"), durable=False), "orders", Msmq4(), SystemClock())
    table.append([pa.record_batch({"body": [b"one"]})], "first", SystemClock().now())
    for name, written in FILES.items():
        (place / name).write_bytes(written)
    return place


@pytest.mark.parametrize(("line", "code", "told"), WRONG)
def test_an_error_is_one_line_on_standard_error_and_changes_nothing(
    capsys: Capture,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    line: str,
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(prepared)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    table = DeltaStore("q", durable=False).open("orders")
    version = table.snapshot().version
    ran = run(capsys, f"{line} --store q")
    assert (ran.out, ran.code) == ("", code)
    [error] = ran.err.splitlines()
    assert error.startswith("error: ")
    assert told in error
    assert table.snapshot().version == version


def test_a_table_that_somebody_has_damaged_is_an_error_of_one_line(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    Path("q/orders", orders().snapshot().files[0].path).unlink()
    assert poison("show orders", code=2).err.startswith("error: ")
    assert poison("list", code=2).err.startswith("error: ")


# Processes ------------------------------------------------------------------------------------------------------------


def start(line: str, **more: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "airflow_poison", *shlex.split(line)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, process_group=0, **more)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_an_interrupt_says_what_is_left_and_the_run_key_goes_on_at_once(poison: Callable[..., Ran], isolation: str) -> None:
    line = f"receive orders --handler tests.unit.cli.shop:linger --engine local --isolation {isolation} --store q"
    poison("send orders one two three --system Msmq4")
    with start(line) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (Path("taken").exists() and "2\n" in Path("taken").read_text()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    [told] = err.splitlines()
    assert told.startswith("interrupted: 3 messages of queue 'orders' stay claimed, for what works on them had not ended yet. ")
    key = re.search(r"--run-key (\w+), or from [0-9:]{8} UTC on with any receive\.$", told)
    assert key is not None
    Path("quick").touch()
    with start(f"{line} --run-key {key[1]} -o json") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    numbers = json.loads(out)
    assert (numbers["settled"], numbers["crashes"], numbers["rollbacks"]) == (3, 1, 1), "it was alone with its handler, and counts a rollback"
    assert sorted(Path("taken").read_text().split()) == ["1", "2", "2", "3"], "what had returned is not delivered again"


def test_an_interrupt_of_a_pass_that_can_give_its_claim_up_says_that_any_receive_goes_on(poison: Callable[..., Ran]) -> None:
    line = "receive orders --handler tests.unit.cli.shop:linger_a_little --engine local --isolation none --store q"
    poison("send orders one two --system Msmq4")
    with start(line) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (Path("taken").exists() and "2\n" in Path("taken").read_text()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        "interrupted: the claim of 2 messages of queue 'orders' is given up: any receive goes on with them at once. "
        "What was delivered is written down and is not delivered again; a message that was alone with its handler counts one rollback."
    )
    assert json.loads(poison(f"{line.removesuffix(' --store q')} -o json").out)["settled"] == 2
    assert Path("taken").read_text() == "1\n2\n", "what had returned is not delivered again"


def test_an_interrupt_before_anything_is_claimed_says_so(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_poison.core.passes.attended.AttendedEngine.prepare", interrupt)
    poison("send orders one --system Msmq4")
    assert poison(f"receive orders {TAKE}", code=130).err == (
        "interrupted: nothing of queue 'orders' is claimed by this pass: its messages are settled, or where they were.\n"
    )


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_standard_output_has_the_result_and_nothing_that_handlers_print(poison: Callable[..., Ran], isolation: str) -> None:
    poison("send orders one --system Msmq4")
    line = f"receive orders --handler tests.unit.cli.shop:chat --engine local --isolation {isolation} --store q -o json"
    with start(line) as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["settled"] == 1
    assert "taken 1" in err


def test_a_reader_that_goes_away_is_no_error(poison: Callable[..., Ran]) -> None:
    poison(f"send orders {'one ' * 50} {MOVE}")
    for line in ("show orders --limit 50 --body", "show orders --limit 50 --body -o json", "list"):
        with start(f"{line} --store q") as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == ""
        assert process.returncode == 141


LISTING = """
import sys
from airflow_poison.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
"""


def test_looking_needs_neither_airflow_nor_spark(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    for line in ("list", "show orders", "inspect orders", "history orders", "send orders two", f"receive orders {TAKE}", "return orders"):
        code = f"{LISTING}print(sorted(sys.modules), file=sys.stderr)"
        root = str(Path(__file__).parents[3])
        words = [sys.executable, "-c", code, *shlex.split(line), "--store", "q"]
        ran = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root})
        assert {"'airflow'", "'pyspark'"}.isdisjoint(ran.stderr.split(", ")), line


@pytest.mark.parametrize(("terminal", "written"), [(True, "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K"), (False, "one\ntwo\n")])
def test_progress_is_one_line_of_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, written: str) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr("sys.stderr", shown := Screen())
    progress = Progress()
    progress.tell("one")
    progress.tell("two")
    progress.end()
    progress.end()
    assert shown.getvalue() == written


# Words ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-5, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (3_661, "1 h 1 min"), (90_061, "1 d 1 h"), (86_460, "1 d")],
)
def test_an_age_has_its_two_largest_units(seconds: float, told: str) -> None:
    assert humanly.about(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (64 << 20, "64.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_a_size_is_read_at_once(count: int, told: str) -> None:
    assert humanly.size(count) == told


def test_what_messages_say_steers_no_terminal(poison: Callable[..., Ran], here: Path) -> None:
    assert screen.one_line("a\x1b[2J\tb\r\n") == "a?[2J b"
    (here / "in").write_bytes(b"bad \x1b[2Jred\x07\tend")
    poison(f"send orders --file in {MOVE} --group 'g\x1b[1m'")
    poison(f"receive orders {TAKE}")
    for line in ("show orders", "show orders --lookup-id 1", "show orders --body", "inspect orders --lookup-id 1", "history orders"):
        ran = poison(line)
        assert not {"\x1b", "\x07"} & set(ran.out), line


def test_every_sub_queue_can_be_named() -> None:
    from airflow_poison.cli.declared.argument import PLACES

    assert tuple(SubQueue) == PLACES
