"""A queue's life as people see it in the shell: what the commands print, and their exit codes."""

from __future__ import annotations

import base64
import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.passes.alter import declare, disable
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.unit.cli.queues.given import FAULT, MOVE, TAKE, answer, orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.command import Ran


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


def test_a_handler_of_batches(poison: Callable[..., Ran], here: Path) -> None:
    Path("orders.jsonl").write_text('{"tailnum": "N1"}\n{"tailnum": 2}\n{"tailnum": "bad"}\n')
    poison(f"send orders --file orders.jsonl {MOVE}")
    take = "receive orders --handler tests.unit.cli.shop:take_many --engine local --isolation none"
    assert "--batch-size: expected with --batch." in poison(f"{take} --batch-size 7", code=2).err
    assert "batch='spark' is not allowed" in poison(f"{take} --batch spark", code=2).err
    assert "'strin' stands" in poison(f"{take} --batch arrow --schema 'tailnum strin'", code=2).err

    received = poison(f"{take} --batch arrow --batch-size 7 --schema 'tailnum string'")

    assert re.search(r"3 messages in .*: 1 settled, 2 moved to poison\.", received.out)
    assert "In batches 2 messages were handed over; 0 probes for culprits." in received.out


def test_a_small_pass_needs_no_spark(poison: Callable[..., Ran], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_poison.spark.session.get_session", lambda *_: pytest.fail("a JVM is started"))
    poison(f"send orders N1 bad {MOVE}")

    received = poison("receive orders --handler tests.unit.cli.shop:take --engine auto --isolation none")

    assert re.search(r"2 messages in .*: 1 settled, 1 moved to poison\.", received.out)


def test_rows_that_a_handler_returns(poison: Callable[..., Ran], here: Path) -> None:
    poison(f"send orders N1 'bad two' N3 {MOVE}")
    land = "receive orders --handler tests.unit.cli.shop:land --engine local --isolation none"
    assert "--output-schema 'tailnum strin' is not allowed" in poison(f"{land} --output-table landed --output-schema 'tailnum strin'", code=2).err
    assert "--output-schema 'n int' is not allowed; allowed: a setting of an output" in poison(f"{land} --output-schema 'n int'", code=2).err
    assert "--output-table two: where there are several, expected NAME=VALUE" in poison(f"{land} --output-table one=/x two", code=2).err

    received = poison(f"{land} --output-table landed --output-schema 'tailnum string' --output-keys tailnum")

    assert "2 rows landed in the output." in received.out
    assert sorted(DeltaTable("landed").to_pyarrow_table().to_pylist(), key=str) == [{"tailnum": "N1"}, {"tailnum": "N3"}]


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


@pytest.mark.parametrize("columns", ["0", "1", "20", "-5", "many"])
def test_no_column_is_gone_where_the_terminal_says_that_it_has_no_room(
    poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    poison(f"send orders one {MOVE}")
    monkeypatch.setenv("COLUMNS", columns)
    assert re.search(r"^queue +state +main +retry +poison ", poison("list").out, re.MULTILINE)
    assert re.search(r"^orders +enabled +1 ", poison("list").out, re.MULTILINE)


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


def test_dmp_14_a_blocked_queue_names_the_message_and_its_obstacle(poison: Callable[..., Ran]) -> None:
    why = "exception_destination=None: a message that has used its deliveries stays"
    poison("send orders 'bad one' two --system DefaultMessaging --set exceptionDestination=None maxFailedDeliveries=1 blocked_retry_interval=1h")

    received = " ".join(poison(f"receive orders {TAKE}").out.split())
    again = " ".join(poison(f"receive orders {TAKE}").out.split())

    assert f"Why messages are blocked: {why}" in received
    assert "is blocked by message 1 until" in again
    assert why in again
    assert f"orders is blocked by message 1: {why}" in " ".join(poison("list").out.split())
    assert f"by message 1: {why}" in " ".join(poison("show orders").out.split())
    [queue] = answer(poison("list -o json"))["queues"]
    assert (queue["blocked_by"], queue["obstacle"]) == (1, why)


@pytest.mark.parametrize(
    ("settings", "letters"),
    [
        ("--system ActivationSpecification --set BOTHRESH=1 failureDeliveryCount=5", "SYSTEM.DEAD.LETTER.QUEUE"),
        ("--system Msmq4 --set ReceiveRetryCount=0 MaxRetryCycles=0 ReceiveErrorHandling=Reject", "orders.dead-letter"),
    ],
    ids=["WMQ-24", "WCF-23"],
)
def test_a_dead_letter_is_inspected_with_its_exception(poison: Callable[..., Ran], settings: str, letters: str) -> None:
    poison(f"send orders 'bad one' {settings}")
    poison(f"receive orders {TAKE}")

    seen = " ".join(poison(f"inspect {letters}").out.split())

    assert "last error: LookupError: unknown plane bad one" in seen
    assert "reason: " in seen
    assert "in take raise LookupError" in seen  # its trace


def test_list_without_a_queue_says_so_and_ends_with_1(poison: Callable[..., Ran]) -> None:
    Path("q").mkdir()
    ran = poison("list", code=1)
    assert (ran.out, ran.err.startswith("nothing: there is no queue in")) == ("", True)
    found = answer(poison("list -o json", code=1))
    assert (found["queues"], found["exists"]) == ([], True)


def test_a_store_whose_folder_does_not_exist_is_told_from_an_empty_one(poison: Callable[..., Ran]) -> None:
    ran = poison("list", code=1)
    folder = Path("q").absolute()
    told = "nothing: there is no queue yet: the store's folder FOLDER does not exist. The first send makes it; if it was there before, mount it"
    assert (ran.out, " ".join(ran.err.split()).startswith(told.replace("FOLDER", str(folder)))) == ("", True), ran.err
    found = answer(poison("list -o json", code=1))
    assert (found["queues"], found["exists"]) == ([], False)
    for line, code in (("show orders", 2), ("check", 2), ("check orders", 2), ("decide", 1)):
        ran = poison(line, code=code)
        assert f"the store's folder {folder} does not exist" in " ".join(ran.err.split()), line
    assert not folder.exists()


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
    assert len(answer(poison("show orders --limit all -o json"))["messages"]) == len(answer(poison("show orders --limit 99 -o json"))["messages"])


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
    assert poison("return orders --reason 'cron is down'").out == "Returned 1 message of orders to main; 0 messages wait in retry.\n"
    [told] = [event["details"] for event in answer(poison("history orders -o json"))["events"] if event["event"] == "RETURNED"]
    assert told["why"] == "cron is down"
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
    assert poison("disable orders --endpoint-only").out == "Queue orders is stopped. What is sent to it arrives, and waits in main.\n"
    assert poison("disable orders --endpoint-only").out.startswith("Queue orders is stopped; it was already")
    poison("enable orders")
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
    assert len(answer(poison("history orders --limit all --since 1h -o json"))["events"]) == 4
    assert poison("history orders --limit 1").out.startswith("3 earlier events; --limit shows more.\n")
    assert poison("history orders --since 2100-01-01", code=1).err == "nothing: no such event of queue 'orders' is recorded.\n"
    assert poison("history orders --lookup-id 9", code=1).out == ""


def test_a_receive_that_spans_another_queue_disables_both(poison: Callable[..., Ran]) -> None:
    for queue in ("bills", "orders"):
        poison(f"send {queue} bad --system ServiceBroker")

    poison(f"receive orders {TAKE} --spans bills", code=1)

    assert "disabled" in poison("show orders", code=1).out
    assert "disabled" in poison("show bills", code=1).out
