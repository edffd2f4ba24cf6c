"""The commands on conversations and services: what they print, their exit codes, and how they refuse."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.dialogs.services import EVENT_NOTIFICATION, Contract, MessageType, Service
from airflow_poison.dialogs.system_messages import ERROR, ErrorDocument
from airflow_poison.passes.alter import declare
from airflow_poison.passes.conversations import conversations, declare_services, drop_service, transmission_queue
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.events import EventType
from tests.given.command import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLOCK = SystemClock()
PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET", "late": "TARGET"}, [MessageType("order", "X")])
TAKE = "--handler tests.unit.cli.shop:take --engine local --isolation none"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaStore:
    """A queue of each service."""
    monkeypatch.chdir(tmp_path)
    store = DeltaStore(str(tmp_path / "q"), durable=False)
    for queue, service in (("orders", "Orders"), ("warehouse", "Warehouse")):
        declare_services(store, declare(store, queue, ServiceBroker(), CLOCK), [Service(service, [PARTS])])
    return store


@pytest.fixture
def poison(store: DeltaStore, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command on the store of the test."""

    def running(line: str, *, code: int = 0) -> Ran:
        ran = run(capsys, f"{line} --store {store.uri}")
        assert ran.code == code, ran
        return ran

    return running


BEGIN = "begin-dialog orders '{}' --service Orders --far-service Warehouse"


def begun(poison: Callable[..., Ran], body: str = "<bolt/>", more: str = "") -> tuple[str, str]:
    """Begin a dialog; return its handles at the initiator and at the target."""
    done = json.loads(poison(f"{BEGIN.format(body)} {more} -o json").out)
    [handle] = done["conversations"]
    [far] = [row for row in listed(poison, "warehouse") if row["conversation_id"] == handle]
    return handle, far["handle"]


def listed(poison: Callable[..., Ran], queue: str, more: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(poison(f"conversations {queue} {more} -o json").out)["conversations"]
    return found


def errors(store: DeltaStore, queue: str) -> list[tuple[int, str]]:
    table = store.open(queue)
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    documents = [ErrorDocument.from_xml(row["body"]) for row in rows if row["message_type"] == ERROR]
    return [(document.code, document.description) for document in documents]


def state(store: DeltaStore) -> QueueState:
    return store.open("warehouse").snapshot().control.state


def test_event_notifications_are_created_listed_and_dropped_and_the_history_says_by_whom(store: DeltaStore, poison: Callable[..., Ran]) -> None:
    declare_services(store, store.open("warehouse"), [Service("Watch", [EVENT_NOTIFICATION])])
    assert "has no event notification" in poison("event-notifications orders", code=1).err

    made = poison("event-notifications orders --create night --service Watch --reason shift")
    assert made.out == "Event notification 'night': service Watch gets a message whenever queue 'orders' is disabled.\n"
    assert json.loads(poison("event-notifications orders -o json").out) == {"queue": "orders", "event_notifications": {"night": "Watch"}}
    poison("event-notifications orders --create night --service Watch")
    poison("event-notifications orders --drop night")

    events = [event.details for event in store.open("orders").events(types=[EventType.POLICY_CHANGED]) if "event_notification" in event.details]
    assert [(each["event_notification"], each.get("created"), each.get("dropped")) for each in events] == [
        ("night", "Watch", None),
        ("night", None, "Watch"),
    ]
    assert events[0]["why"] == "shift"
    assert events[0]["who"].startswith("shell:")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--create night", "expected --create NAME --service SERVICE"),
        ("--service Watch", "expected --create NAME --service SERVICE"),
        ("--create night --service Watch --drop night", "or --drop NAME"),
        ("--create night --service Nothing", "no service 'Nothing'"),
        ("--create night --service Warehouse", "EVENT_NOTIFICATION"),
        ("--drop night", "it has none"),
    ],
)
def test_event_notifications_that_cannot_be_are_refused(poison: Callable[..., Ran], options: str, text: str) -> None:
    assert text in poison(f"event-notifications orders {options}", code=2).err


def test_services_are_listed_with_queue_contract_and_message_types(store: DeltaStore, poison: Callable[..., Ran]) -> None:
    out = poison("services").out
    assert "Warehouse" in out
    assert "order (INITIATOR, X), shipped (TARGET, N), late (TARGET, N)" in out
    told = json.loads(poison("services warehouse -o json").out)
    assert (told["store"], [(each["queue"], each["name"]) for each in told["services"]]) == (store.uri, [("warehouse", "Warehouse")])
    assert told["services"][0]["contracts"]["parts"]["senders"] == {"order": "INITIATOR", "shipped": "TARGET", "late": "TARGET"}


def test_a_store_without_services_says_how_they_come(store: DeltaStore, poison: Callable[..., Ran]) -> None:
    declare(store, "plain", Msmq4(), CLOCK)
    assert "no queue" in poison("services plain", code=1).err
    assert "plane" in poison("services plane", code=2).err


def test_a_dialog_is_begun_and_shown_at_both_sides(poison: Callable[..., Ran]) -> None:
    two = BEGIN.format("<bolt/>' '<nut/>")
    ran = poison(f"{two} --priority 7 --lifetime 2h --timer 5m --send-key one")
    [row] = listed(poison, "orders")
    assert ran.out == f"Began dialog {row['handle']} with Warehouse; sent 2 messages.\n"
    [far] = listed(poison, "warehouse")
    assert (far["waiting"], far["priority"], far["far_service"], far["is_initiator"]) == ({"order": 2}, 7, "Orders", False)
    shown = poison(f"conversations orders --conversation {row['handle']}").out
    assert f"conversation {row['handle']}: CO, conversing\n  of both sides: {row['handle']}\n  side: initiator, service Orders\n" in shown
    assert "timer: " in shown
    assert "lifetime: " in shown
    table = poison("conversations orders").out
    assert row["handle"] in table
    assert "in 5 min" in table or "in 4 min" in table

    again = poison(f"{two} --send-key one")
    assert "An earlier call with this key has begun" in again.out
    assert len(listed(poison, "warehouse")) == 1


def test_send_on_and_the_timer(poison: Callable[..., Ran], store: DeltaStore) -> None:
    near, far = begun(poison)
    assert poison(f"send-on orders {near} '<nut/>'").out == "Sent 1 message to Warehouse.\n"
    told = json.loads(poison(f"send-on warehouse {far} tomorrow --message-type late --send-key k -o json").out)
    assert (told["sent"], told["arrived"], told["repeated"]) == (1, 1, False)
    assert json.loads(poison(f"send-on warehouse {far} tomorrow --message-type late --send-key k -o json").out)["repeated"]
    assert listed(poison, "orders")[0]["waiting"] == {"late": 1}
    poison(f"set-timer warehouse {far} 90s")
    [row] = conversations(store.open("warehouse"))
    assert row.dialog_timer is not None


def test_what_a_disabled_partner_does_not_take_is_said_and_comes_when_it_is_enabled(poison: Callable[..., Ran]) -> None:
    poison("disable warehouse")
    assert "Waits at this side until a disabled queue is enabled: 1 message." in poison(BEGIN.format("<bolt/>")).out
    poison("conversations warehouse", code=1)
    poison("enable warehouse")
    assert listed(poison, "warehouse")[0]["waiting"] == {"order": 1}


@pytest.mark.parametrize("order", ["end_then_enable", "enable_then_end"])
def test_a_poison_message_goes_with_its_conversation_and_the_queue_is_enabled(poison: Callable[..., Ran], store: DeltaStore, order: str) -> None:
    _, far = begun(poison)
    poison(f"alter warehouse --set recovery_order={order}")
    poison(f"receive warehouse {TAKE.replace('take', 'refuse')}", code=1)
    assert state(store) is QueueState.DISABLED
    ran = poison(f"end-conversation warehouse {far} --error 127 --description 'Unable to process message.' --enable --save kept.jsonl --yes")
    told = "Orders gets error 127: Unable to process message."
    assert f"Ended conversation {far}; removed 1 message from warehouse. {told} Queue warehouse is enabled." in ran.out
    assert state(store) is QueueState.ENABLED
    assert errors(store, "orders") == [(127, "Unable to process message.")]
    assert listed(poison, "warehouse", "--ended")[0]["state"] == "CD"
    assert listed(poison, "orders")[0]["state"] == "ER"


def test_people_decide_from_the_shell_to_end_the_conversation(poison: Callable[..., Ran], store: DeltaStore) -> None:
    _, far = begun(poison)
    poison(f"receive warehouse {TAKE.replace('take', 'refuse')}", code=1)
    [halted] = json.loads(poison("decide warehouse -o json").out)["halted"]
    assert (halted["decisions"][0], halted["conversation"]["handle"]) == ("end", far)
    shown = poison("decide warehouse").out
    assert f"conversation {far}" in shown
    assert "decide warehouse end --sub-queue main" in shown
    assert "--error" in poison("decide warehouse remove --error 3", code=2).err
    assert "--error" in poison("decide warehouse --error 3", code=2).err
    ran = poison("decide warehouse end --error 31 --description Torn.")
    assert f"1 message went with conversation {far}; Orders gets error 31." in ran.out
    assert (state(store), errors(store, "orders")) == (QueueState.ENABLED, [(31, "Torn.")])


def test_recover_tells_the_partner(poison: Callable[..., Ran], store: DeltaStore) -> None:
    _, far = begun(poison)
    poison(f"receive warehouse {TAKE.replace('take', 'refuse')}", code=1)
    ran = poison("recover warehouse --yes")
    assert f"Conversation {far} was ended; Orders gets error 127: Unable to process message." in ran.out
    assert (state(store), errors(store, "orders")) == (QueueState.ENABLED, [(127, "Unable to process message.")])


def test_sb_32_a_halt_and_a_removal_name_the_partner_that_waits(poison: Callable[..., Ran]) -> None:
    _, far = begun(poison)
    refused = poison(f"receive warehouse {TAKE.replace('take', 'refuse')}", code=1).err
    assert "'recover warehouse' ends its conversation with an error for service 'Orders' and enables the queue" in refused
    said = poison("remove warehouse 1 --yes").err
    assert f"Service 'Orders' waits for an answer in conversation {far}: end it with" in said
    assert f"airflow poison end-conversation warehouse {far} --error 127 --description 'Unable to process message.'" in said


def test_sb_18_sb_27_the_shell_says_what_the_sources_say(poison: Callable[..., Ran], store: DeltaStore) -> None:
    plain = Contract("plain", {"note": "INITIATOR"})
    for queue, service in (("orders", "Orders"), ("warehouse", "Warehouse")):
        declare_services(store, store.open(queue), [Service(service, [PARTS, plain])])
    _, far = begun(poison, more="--contract parts")
    assert "<bolt/>" in poison("inspect warehouse").out
    done = json.loads(poison("begin-dialog orders ab --service Orders --far-service Warehouse --contract plain -o json").out)
    [other] = [row["handle"] for row in listed(poison, "warehouse") if row["conversation_id"] == done["conversations"][0]]
    assert "    No validation -- binary message:\n    0x6162\n" in poison(f"inspect warehouse --conversation {other}").out
    assert "<bolt/>" in poison(f"inspect warehouse --conversation {far}").out
    poison("disable warehouse --reason look")
    assert "Error 9617: Queue 'warehouse' is disabled: look." in poison(f"receive warehouse {TAKE}", code=1).err


def test_sb_19_what_waits_for_a_disabled_partner_is_shown_at_its_sender(poison: Callable[..., Ran], store: DeltaStore) -> None:
    near, _ = begun(poison)
    assert "unsent" not in poison("list").out
    poison("disable warehouse --reason look")
    poison(f"send-on orders {near} '<nut/>'")
    assert "unsent" in poison("list").out
    assert "unsent: 1 message for service Warehouse: queue 'warehouse' is disabled." in poison("show orders").out
    assert json.loads(poison("show orders -o json").out)["unsent"] == 1
    [message] = transmission_queue(store, store.open("orders"))
    assert (message.conversation, message.to_service, message.message_type, message.sequence) == (near, "Warehouse", "order", 2)
    drop_service(store.open("warehouse"), "Warehouse")
    assert [each.status for each in transmission_queue(store, store.open("orders"), 5)] == ["no queue has the service"]


def test_an_end_prints_what_it_removes_and_wants_an_answer(poison: Callable[..., Ran], store: DeltaStore) -> None:
    near, far = begun(poison)
    assert "--yes is missing" in poison(f"end-conversation warehouse {far}", code=2).err
    assert listed(poison, "warehouse")[0]["waiting"] == {"order": 1}
    assert "<bolt/>" in poison(f"end-conversation warehouse {far} --cleanup --yes").out
    assert errors(store, "orders") == []
    assert json.loads(poison(f"end-conversation orders {near} -o json").out) == {"queue": "orders", "messages": [], "saved": None}
    assert listed(poison, "orders")[0]["state"] == "DO"


def test_refusals(poison: Callable[..., Ran], store: DeltaStore) -> None:
    _, far = begun(poison)
    declare_services(store, store.open("orders"), [Service("Two", [PARTS, Contract("more", {"x": "ANY"})])])
    refused = {
        f"{BEGIN.format('x')} --contract none": "--contract none: expected one of service Orders: parts",
        "begin-dialog orders x --service Two --far-service W": "--contract is missing: service Two has more, parts",
        f"{BEGIN.format('x')} --priority 11": "--priority 11: expected a whole number from 1 to 10.",
        f"{BEGIN.format('x')} --priority 0": "--priority 0: expected a whole number from 1 to 10.",
        f"{BEGIN.format('x')} --lifetime soon": "--lifetime soon",
        f"{BEGIN.format('x')} --lifetime 0": "--lifetime 0: expected a duration above 0 and up to 36500 days.",
        f"{BEGIN.format('x')} --timer 99999999h": "--timer 99999999h: expected a duration above 0 and up to 36500 days.",
        f"send-on warehouse {far} x": "--message-type is missing: contract parts lets this side send late, shipped",
        f"send-on warehouse {far} x --message-type order": "order",
        f"end-conversation warehouse {far} --cleanup --error 3": "--cleanup",
        f"end-conversation warehouse {far} --description x --yes": "--description: expected with --error",
        f"end-conversation warehouse {far} --error 0 --yes": "--error 0: expected a whole number from 1 to 2147483647.",
        f"end-conversation warehouse {far} --error 2147483648 --yes": "--error 2147483648: expected",
        f"end-conversation warehouse {far} --error 3 --description {'x' * 3001} --yes": "at most 3,000 characters; it has 3,001",
        f"set-timer warehouse {far} soon": "DURATION soon",
        f"set-timer warehouse {far} 0": "DURATION 0: expected a duration above 0 and up to 36500 days.",
        "decide warehouse end --error 2147483648": "--error 2147483648: expected",
        "begin-dialog orders x --service Nobody --far-service W": "Nobody",
    }
    for line, said in refused.items():
        assert said in poison(line, code=2).err
    assert listed(poison, "warehouse")[0]["state"] == "SI"
    for line in ("conversations orders --conversation x", "send-on orders x y", "set-timer orders x 5", "end-conversation orders x"):
        assert "8426" in poison(line, code=1).err


# Services that a receive declares -------------------------------------------------------------------------------------

NAMED = "tests.unit.cli.services"
BROKER = "--system ServiceBroker"


@pytest.mark.parametrize("names", [f"{NAMED}:both {NAMED}:orders", f"{NAMED}:listed --services {NAMED}:orders"])
def test_a_receive_declares_services_and_makes_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Callable[..., Ran], names: str
) -> None:
    monkeypatch.chdir(tmp_path)
    drop_all(DeltaStore(str(tmp_path / "q"), durable=False))
    assert poison(f"receive parts {TAKE} {BROKER} --services {names}").err == ""
    told = json.loads(poison("services parts -o json").out)["services"]
    assert [(each["queue"], each["name"]) for each in told] == [("parts", "Warehouse"), ("parts", "Spares"), ("parts", "Orders")]


def drop_all(store: DeltaStore) -> None:
    """Take the services of the fixture away, whose names are wanted."""
    for queue, service in (("orders", "Orders"), ("warehouse", "Warehouse")):
        drop_service(store.open(queue), service)


def test_services_are_declared_again_and_a_dialog_follows_them(poison: Callable[..., Ran]) -> None:
    poison(f"receive orders {TAKE} --services {NAMED}:orders")
    handle, far = begun(poison)
    assert json.loads(poison("services orders -o json").out)["services"][0]["contracts"]["parts"]["senders"] == {
        "order": "INITIATOR",
        "shipped": "TARGET",
    }
    assert (handle, far) != ("", "")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--services nosuch:orders", "--services nosuch:orders: importing the module 'nosuch' failed with ModuleNotFoundError"),
        (f"--services {NAMED}:other", f"--services {NAMED}:other: the module '{NAMED}'"),
        (f"--services {NAMED}:other", "has no 'other'"),
        ("--services orders", "--services orders: expected MODULE:NAME"),
        (f"--services {NAMED}:PARTS", f"--services {NAMED}:PARTS: expected a Service, or a list or tuple of them, not Contract"),
        (f"--services {NAMED}:mixed", f"--services {NAMED}:mixed: expected a Service, or a list or tuple of them, not a list with str"),
        (f"--services {NAMED}:none", f"--services {NAMED}:none: expected a Service, or a list or tuple of them, not an empty tuple"),
        (f"--services {NAMED}:both", "a name that no other queue's service has; queue 'warehouse' has one"),
        (f"--services {NAMED}:orders {NAMED}:orders", "--services: service Orders is given twice"),
    ],
)
def test_services_that_are_none_change_nothing(store: DeltaStore, poison: Callable[..., Ran], more: str, said: str) -> None:
    before = store.open("orders").snapshot().control
    ran = poison(f"receive orders {TAKE} {more}", code=2)
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert store.open("orders").snapshot().control == before
    assert poison(f"receive fresh {TAKE} {BROKER} {more}", code=2).err.count("\n") == 1


def test_services_need_service_brokers_rules(poison: Callable[..., Ran]) -> None:
    said = poison(f"receive plain {TAKE} --system Msmq4 --services {NAMED}:orders", code=2).err
    assert "only on a queue with Service Broker's rules; queue 'plain' has others" in said


# What is said -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["", "-o json"])
def test_a_body_that_is_none_of_its_type_is_sent_and_warned_of(poison: Callable[..., Ran], output: str) -> None:
    two = BEGIN.format("<bolt>' '<nut/>")
    ran = poison(f"{two} {output}")
    assert ran.err.startswith("warning: body 1 is none of message type order: it is no well-formed XML: ")
    assert ran.err.endswith(" Where it arrives it is refused, and an Error message comes back.\n")
    assert ran.err.count("\n") == 1
    handle = listed(poison, "orders")[0]["handle"]
    assert poison(f"send-on orders {handle} bolt {output}").err.startswith("warning: body 1 is none of message type order: ")
    poison(f"{BEGIN.format('<bolt>')} --message-type nosuch", code=2)


def test_an_error_message_that_is_there_at_once_is_told_of(poison: Callable[..., Ran]) -> None:
    ran = poison("begin-dialog orders '<bolt/>' --service Orders --far-service Nowhere")
    [row] = listed(poison, "orders")
    shows = f"inspect orders --conversation {row['handle']} --mode browse"
    assert ran.err == f"warning: an Error message has arrived on conversation {row['handle']}; '{shows}' shows it.\n"
    assert "-8490" in poison(shows).out


def test_what_was_begun_before_with_the_key_sends_nothing(poison: Callable[..., Ran]) -> None:
    begun(poison, "<bolt/>", "--send-key one")
    again = poison(f"{BEGIN.format('no XML')} --send-key one -o json")
    assert (json.loads(again.out)["sent"], json.loads(again.out)["repeated"], again.err) == (0, True, "")


@pytest.mark.parametrize("more", ["--error 3 --description {long}", "--description x"])
def test_an_end_that_is_refused_prints_and_saves_nothing(poison: Callable[..., Ran], tmp_path: Path, more: str) -> None:
    _, far = begun(poison)
    line = f"end-conversation warehouse {far} --yes {more.format(long='x' * 3001)}"
    assert poison(line, code=2).out == ""
    poison(f"{line} --save kept", code=2)
    assert not (tmp_path / "kept").exists()


def test_an_end_while_a_pass_receives_prints_and_saves_nothing(poison: Callable[..., Ran], store: DeltaStore, tmp_path: Path) -> None:
    _, far = begun(poison)
    store.open("warehouse").claim("run", lease=timedelta(minutes=2), now=CLOCK.now(), max_messages=10, exclusive=True)
    ran = poison(f"end-conversation warehouse {far} --yes --save kept", code=2)
    assert ran.err.startswith(f"error: Conversation '{far}' of queue 'warehouse' is locked")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "Orders gets a message that it has ended."),
        ("--error 3 --description Torn.", "Orders gets error 3: Torn."),
        ("--error 3", "Orders gets error 3."),
        ("--cleanup", "Orders gets no message."),
    ],
)
def test_an_end_says_what_the_partner_is_told(poison: Callable[..., Ran], more: str, told: str) -> None:
    near, far = begun(poison)
    ran = poison(f"end-conversation warehouse {far} --yes {more}")
    assert ran.out.splitlines()[-1] == f"Ended conversation {far}; removed 1 message from warehouse. {told}"
    if not more:
        assert poison(f"end-conversation orders {near} --yes").out.splitlines()[-1] == (
            f"Ended conversation {near}; removed 1 message from orders. Warehouse has ended it before."
        )


def test_services_show_which_bodies_have_to_fit_a_schema(poison: Callable[..., Ran], store: DeltaStore) -> None:
    kinds = [MessageType("y", schema={"type": "object"})]
    declare_services(store, store.open("orders"), [Service("Two", [Contract("more", {"x": "ANY", "y": "ANY"}, kinds)])])
    assert "x (ANY, N), y (ANY, N with a JSON Schema)" in poison("services orders").out


def test_sb_27_a_queue_that_is_disabled_names_the_inspection_that_works(poison: Callable[..., Ran]) -> None:
    begun(poison)
    halted = poison(f"receive warehouse {TAKE.replace('take', 'refuse')}", code=1).err
    assert "'inspect warehouse --mode browse' shows it" in halted
    assert "<bolt/>" in poison("inspect warehouse --mode browse").out
    assert poison("inspect warehouse", code=1).err.endswith("Here that is --mode browse.\n")
