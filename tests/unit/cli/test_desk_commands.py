"""The commands on many messages: what they select, show, do, and how they are interrupted and refused."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison import Msmq4
from airflow_poison.cli import values
from airflow_poison.cli.main import parser
from airflow_poison.cli.plans import rate
from airflow_poison.desk.plans import pause, plans
from airflow_poison.desk.queries import query_batches
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import InputError
from airflow_poison.values.fault_points import install
from airflow_poison.values.schema import SubQueue
from tests.given.command import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_poison import Message
    from airflow_poison.store.queue_table import QueueTable

Capture = pytest.CaptureFixture[str]
CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
LATE, KEY = "late", "key"


def refuse(message: Message) -> None:
    fails = message.json().get("fails")
    if fails:
        raise {LATE: ValueError, KEY: KeyError}[fails](f"carrier of {message.json()['number']}")


def add_currency(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "currency": "EUR"}).encode()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueTable:
    """A queue with ten poison messages, 1 to 10: the odd ones were late, the even ones lacked a key."""
    monkeypatch.setenv("COLUMNS", "120")
    made = declare(open_store(str(tmp_path / "q")), "orders", MOVE, CLOCK)
    bodies = [json.dumps({"number": n, "fails": LATE if n % 2 else KEY, "carrier": "VX" if n < 6 else "AA"}).encode() for n in range(1, 11)]
    send(made, messages_to_batches(bodies), key="a", clock=CLOCK)
    receive(made, tmp_path)
    return made


def receive(table: QueueTable, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "q"))
    ReceivePass(table=table, policy=MOVE, handler=refuse, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(
        f"{table.snapshot().version}"
    )


@pytest.fixture
def poison(capsys: Capture, tmp_path: Path, table: QueueTable) -> Callable[[str], Ran]:
    """Run a command on the queue's store."""
    assert table.name == "orders"
    return lambda line: run(capsys, f"{line} --store {tmp_path}/q")


def done(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def ids(table: QueueTable, place: SubQueue = SubQueue.MAIN) -> list[int]:
    return sorted(number or 0 for file in table.snapshot().files if file.sub_queue == place for number in table.read(file)["lookup_id"].to_pylist())


def bodies(table: QueueTable) -> dict[int | None, Any]:
    rows = [row for file in table.snapshot().files for row in table.read(file, ["lookup_id", "body"]).to_pylist()]
    return {row["lookup_id"]: json.loads(row["body"] or b"") for row in rows}


# Looking --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["groups orders", "find orders"])
@pytest.mark.usefixtures("table")
def test_where_no_message_is_selected_the_command_says_where_others_wait(poison: Callable[[str], Ran], command: str) -> None:
    ran = poison(f"{command} --sub-queue retry")
    assert ran.code == 1
    assert ran.err.rstrip().endswith("; 10 in poison: --sub-queue poison."), ran.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [*range(1, 11)]),
        ("--sub-queue any", [*range(1, 11)]),
        ("--sub-queue POISON --error-type KeyError", [2, 4, 6, 8, 10]),
        ("--text 'carrier of 7'", [7]),
        ("--since 1h --until 0s", [*range(1, 11)]),
        ("--until 1h", []),
        ("--count 'move_count>=1' 'abort_count=0' --count 'crash_count<1'", [*range(1, 11)]),
        ("--count 'move_count>1'", []),
        ("--ids 1,3-5,99", [1, 3, 4, 5]),
        ("--where \"body.carrier = 'AA'\" --error-type ValueError", [7, 9]),
        ("--group g", []),
        ("--message-type t", []),
        ("--message-id m", []),
        ("--property a=b", []),
    ],
)
def test_every_option_selects(poison: Callable[[str], Ran], options: str, expected: list[int]) -> None:
    ran = poison(f"find orders {options} -o json")
    assert [row["lookup_id"] for row in json.loads(ran.out)["messages"]] == expected
    assert ran.code == (0 if expected else 1)


def test_an_error_group_is_listed_and_selects(poison: Callable[[str], Ran]) -> None:
    found = done(poison("groups orders -o json"))
    assert [(group["type"], group["messages"]) for group in found["groups"]] in (
        [("KeyError", 5), ("ValueError", 5)],
        [("ValueError", 5), ("KeyError", 5)],
    )
    group = found["groups"][0]
    chosen = done(poison(f"find orders --error {group['error']} -o json"))
    assert chosen["total"] == 5
    assert "5 messages in poison, error=" in poison(f"groups orders --error {group['error']}").out
    assert "1 more groups" in poison("groups orders --limit 1").out


def test_a_page_is_ordered_and_says_where_it_is(poison: Callable[[str], Ran]) -> None:
    out = poison("find orders --order enqueued_at --descending --limit 3 --offset 6").out
    assert out.splitlines()[-1] == "7 to 9 of 10 messages in poison."
    assert "10 before --offset 50" in poison("find orders --offset 50").err


def test_a_query_is_printed_or_written(poison: Callable[[str], Ran], tmp_path: Path) -> None:
    sql = '"select lookup_id, body.carrier, properties, raw from messages where lookup_id < 4 order by 1"'
    out = poison(f"query orders {sql}").out
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [["1", "VX"], ["2", "VX"], ["3", "VX"]]
    assert "there are more rows" in poison(f"query orders {sql} --limit 2").err
    assert done(poison(f"query orders {sql} --limit 2 -o json"))["more"] is True
    for name in ("it.parquet", "it.csv", "it.json"):
        assert done(poison(f"query orders {sql} --to {tmp_path}/{name} -o json")) == {
            "queue": "orders",
            "columns": ["lookup_id", "carrier", "properties", "raw"],
            "rows": 3,
            "to": f"{tmp_path}/{name}",
        }
    assert pq.read_table(tmp_path / "it.parquet")["carrier"].to_pylist() == ["VX"] * 3
    assert [row["lookup_id"] for row in json.loads((tmp_path / "it.json").read_text())] == [1, 2, 3]
    assert (tmp_path / "it.csv").read_text().splitlines()[1].startswith('"1","VX",,"ey')
    most, half = 2**128 - 1, 2**127
    odd = f"select {most}::uhugeint a, [{most}::uint128] b, {{x: {half}::uhugeint}} c, 5::bignum d, '010'::bit e, '12:00:00+02'::timetz f"
    [row] = done(poison(f'query orders "{odd}" -o json'))["rows"]
    assert row == {"a": f"{most}", "b": [f"{most}"], "c": {"x": f"{half}"}, "d": "5", "e": "010", "f": "12:00:00+02"}
    again = poison(f"query orders {sql} --to {tmp_path}/it.csv")
    assert (again.code, "there is such a file already" in again.err) == (2, True)
    assert poison('query orders "select 1 where false"').code == 1


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_an_answer_of_many_batches_is_written_whole_or_not_at_all(poison: Callable[[str], Ran], tmp_path: Path, kind: str) -> None:
    spans = "" if kind == "parquet" else ", interval 1 day as d"
    assert done(poison(f'query orders "select range as n{spans} from range(45001)" --to {tmp_path}/it.{kind} -o json'))["rows"] == 45_001
    content = (tmp_path / f"it.{kind}").read_bytes()
    assert [int(row["n"]) for row in rows_in(content, kind)] == [*range(45_001)]
    late = "select if(range > 40000, error('a late row'), range) as n from range(45001)"
    ran = poison(f'query orders "{late}" --to {tmp_path}/late.{kind}')
    assert (ran.code, "a late row" in ran.err, (tmp_path / f"late.{kind}").exists()) == (2, True, False)


def rows_in(content: bytes, kind: str) -> Sequence[Any]:
    if kind == "parquet":
        return pq.read_table(io.BytesIO(content)).to_pylist()
    return [*csv.DictReader(io.StringIO(content.decode()))] if kind == "csv" else json.loads(content)


def test_an_answer_is_read_batch_by_batch(table: QueueTable) -> None:
    with query_batches(table, "select if(range > 49999000, error('late'), range) as n from range(50000000)") as rows:
        assert rows.read_next_batch()["n"][0].as_py() == 0


# Acting ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "main", "poisoned"),
    [
        ("put-back orders", [*range(1, 11)], []),
        ("put-back orders --error-type KeyError --limit 2 --rate 900/s --chunk 1", [2, 4], [1, 3, 5, 6, 7, 8, 9, 10]),
        ("redrive orders --ids 2-3", [2, 3], [1, 4, 5, 6, 7, 8, 9, 10]),
        ("move orders --ids 2-3", [2, 3], [1, 4, 5, 6, 7, 8, 9, 10]),
        ("move orders --where 'body.number > 8' --to main", [9, 10], [*range(1, 9)]),
        ("remove orders --error-type ValueError", [], [2, 4, 6, 8, 10]),
    ],
)
def test_a_selection_is_done_with_who_and_why_and_undone(
    poison: Callable[[str], Ran], table: QueueTable, line: str, main: list[int], poisoned: list[int]
) -> None:
    dry = done(poison(f"{line} --dry-run -o json"))
    assert (dry["state"], ids(table, SubQueue.POISON)) == ("planned", [*range(1, 11)])
    view = done(poison(f"{line} --yes --reason 'it is mended' -o json"))
    assert (view["state"], view["done"], view["messages"]) == ("done", 10 - len(poisoned), dry["messages"])
    assert (ids(table), ids(table, SubQueue.POISON)) == (main, poisoned)
    told = [event.details for event in table.events() if event.details.get("plan") == view["plan"]]
    assert {(details["who"], details["why"]) for details in told} == {(view["who"], "it is mended")}
    assert re.fullmatch(r"shell:.+@.+", view["who"])
    assert done(poison(f"undo orders {view['plan']} --yes -o json"))["state"] == "undone"
    assert ids(table, SubQueue.POISON) == [*range(1, 11)]


def test_messages_go_to_poison_and_to_other_queues(poison: Callable[[str], Ran], table: QueueTable, tmp_path: Path) -> None:
    other = declare(open_store(str(tmp_path / "q")), "other", MOVE, CLOCK)
    poison("put-back orders --ids 1-3 --yes")
    assert done(poison("move orders --to poison --where 'body.number = 2' --yes -o json"))["done"] == 1
    assert done(poison("move orders --to-queue other --ids 1 --yes -o json"))["done"] == 1
    assert done(poison("send-to orders --to-queue other --ids 3 --yes -o json"))["undoable"] is False
    assert (ids(table), ids(other)) == ([], [1, 2])
    assert done(poison("move other --sub-queue main --to origin --yes -o json"))["done"] == 2
    assert len(ids(table)) == 2


def test_bodies_and_properties_are_edited(poison: Callable[[str], Ran], table: QueueTable, tmp_path: Path) -> None:
    shown = poison("""edit orders --ids 2 --patch '{"fails": null, "who": "me"}' --dry-run""").out
    changed = [line.strip() for line in shown.splitlines() if line.startswith(("  -", "  +"))]
    assert changed == ['-  "fails": "key",', '-  "carrier": "VX"', '+  "carrier": "VX",', '+  "who": "me"']
    assert done(poison("""edit orders --ids 2 --patch '{"fails": null}' --yes -o json"""))["done"] == 1
    (tmp_path / "patch.json").write_text('{"from": "a file"}')
    poison(f"edit orders --ids 3 --patch @{tmp_path}/patch.json --yes")
    view = done(poison("edit orders --ids 4,5 --function tests.unit.cli.test_desk_commands:add_currency --yes -o json"))
    (tmp_path / "body.json").write_text('{"new": 1}')
    poison(f"edit orders --ids 6 --body-from {tmp_path}/body.json --set-property source=me --yes")
    after = bodies(table)
    assert ("fails" in after[2], after[3]["from"], after[4]["currency"], after[5]["currency"], after[6]) == (
        False,
        "a file",
        "EUR",
        "EUR",
        {"new": 1},
    )
    assert done(poison("find orders --property source=me -o json"))["total"] == 1
    poison("edit orders --ids 6 --drop-property source --yes")
    assert poison("find orders --property source=me").code == 1
    poison("""edit orders --ids 6 --patch '{"new": 2}' --put-back --yes""")
    assert (ids(table), bodies(table)[6]) == ([6], {"new": 2})
    poison(f"undo orders {view['plan']} --yes")
    assert "currency" not in bodies(table)[4]


def test_an_editor_changes_one_message(poison: Callable[[str], Ran], table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(
        "EDITOR", f'{sys.executable} -c \'import sys, pathlib; f = pathlib.Path(sys.argv[1]); f.write_text(f.read_text().replace("VX", "LH"))\''
    )
    ran = poison("edit orders --ids 1")
    assert ran.code == 0
    assert "Edit: a new body: 1 message of orders? [y/N]" in ran.err
    assert bodies(table)[1]["carrier"] == "LH"
    unchanged = poison("edit orders --ids 1")
    assert (unchanged.code, "stays as it is" in unchanged.err) == (1, True)
    assert "an editor changes one" in poison("edit orders --ids 1-2").err
    monkeypatch.setenv("EDITOR", "false")
    assert "ended with exit code 1. Nothing was changed." in poison("edit orders --ids 1").err


class Terminal(io.StringIO):
    """A standard input at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_it_is_asked_on_a_terminal(poison: Callable[[str], Ran], table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ran = poison("put-back orders --ids 1-3")
    assert (ran.code, ids(table)) == (1, [])
    assert ran.err.endswith("Put back into main: 3 messages of orders? [y/N] nothing: was done.\n")
    assert plans(table) == ()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert poison("put-back orders --ids 1-3").code == 0
    assert ids(table) == [1, 2, 3]


# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_canary_is_waited_for(poison: Callable[[str], Ran], table: QueueTable, tmp_path: Path) -> None:
    poison("""edit orders --sub-queue poison --patch '{"fails": null}' --yes""")
    receiving = when(table, lambda: bool(ids(table)), lambda: receive(table, tmp_path))
    view = done(poison("redrive orders --canary 4 --share 0.9 --yes -o json"))
    receiving.join()
    assert (view["state"], view["done"], view["canary"]) == ("done", 10, {"messages": 4, "share": 0.9})
    assert len(ids(table)) == 6


def test_a_canary_that_fails_stops_and_says_how_to_go_on(poison: Callable[[str], Ran], table: QueueTable, tmp_path: Path) -> None:
    receiving = when(table, lambda: bool(ids(table)), lambda: receive(table, tmp_path))
    ran = poison("redrive orders --canary 4 --yes")
    receiving.join()
    [plan] = plans(table)
    assert (ran.code, plan.state, plan.done) == (1, "stopped", 4)
    assert f"stopped: of the messages that went first 0 were settled and 4 failed; 'resume orders {plan.plan}' goes on without a canary" in ran.err
    assert done(poison(f"resume orders {plan.plan} -o json"))["state"] == "done"


def when(table: QueueTable, condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Do something in a thread as soon as a condition holds."""

    def look() -> None:
        while not condition():
            time.sleep(0.02)
        act()

    assert table.name == "orders"
    thread = threading.Thread(target=look)
    thread.start()
    return thread


def test_the_patience_of_a_redrive_may_end(poison: Callable[[str], Ran], table: QueueTable) -> None:
    ran = poison("redrive orders --canary 4 --wait 0s --yes")
    [plan] = plans(table)
    assert ran.code == 1
    assert f"waiting: for passes that receive the canary; 'resume orders {plan.plan}' goes on" in ran.err
    assert poison(f"resume orders {plan.plan} --wait 0s").code == 1


def test_what_a_pass_has_claimed_is_said(poison: Callable[[str], Ran], table: QueueTable) -> None:
    from datetime import timedelta

    claim = table.claim("pass", lease=timedelta(minutes=5), now=CLOCK.now(), max_messages=10, sub_queue=SubQueue.POISON)
    assert claim is not None
    ran = poison("put-back orders --yes")
    assert "10 messages of them are claimed by passes" in ran.out
    assert (ran.code, "waiting: for passes that have claimed some of the messages" in ran.err) == (1, True)
    table.release(claim)
    assert poison(f"resume orders {plans(table)[0].plan}").code == 0


def test_an_interrupt_pauses_and_says_how_to_go_on(poison: Callable[[str], Ran], table: QueueTable) -> None:
    before = signal.getsignal(signal.SIGINT)
    install(lambda point: os.kill(os.getpid(), signal.SIGINT) if point == "desk.apply.after_chunk" else None)
    try:
        ran = poison("put-back orders --chunk 3 --yes")
    finally:
        install(None)
    [plan] = plans(table)
    assert (ran.code, plan.state, plan.done) == (130, "paused", 3)
    assert (
        f"interrupted: plan {plan.plan} is paused: 3 of 10 done; 'resume orders {plan.plan}' goes on, 'undo orders {plan.plan}' takes back" in ran.err
    )
    assert signal.getsignal(signal.SIGINT) is before
    assert done(poison(f"resume orders {plan.plan} -o json"))["done"] == 10


def interrupt() -> None:
    """Press Ctrl-C when the command has begun to wait."""
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_a_wait(poison: Callable[[str], Ran], table: QueueTable) -> None:
    interrupting = when(table, lambda: bool(ids(table)), interrupt)
    ran = poison("redrive orders --canary 1 --yes")
    interrupting.join()
    assert (ran.code, plans(table)[0].state) == (130, "paused")
    undone = poison(f"undo orders {plans(table)[0].plan} --yes")
    assert (undone.code, ids(table)) == (0, [])


def test_a_plan_is_paused_and_cancelled_by_others(poison: Callable[[str], Ran], table: QueueTable) -> None:
    other = when(table, lambda: bool(ids(table)), lambda: pause(table, plans(table)[0].plan, CLOCK, who="airflow:bob"))
    ran = poison("redrive orders --canary 1 --yes")
    other.join()
    [plan] = plans(table)
    assert (ran.code, "paused: by airflow:bob" in ran.err) == (1, True)
    assert f"Plan {plan.plan} is paused: 1 of 10 done." in poison(f"pause orders {plan.plan}").out
    assert done(poison(f"cancel orders {plan.plan} --reason no -o json"))["state"] == "cancelled"
    assert (poison(f"resume orders {plan.plan}").code, poison(f"cancel orders {plan.plan}").code) == (2, 0)
    listed = poison("plans orders").out
    assert re.search(rf"{plan.plan} +cancelled +1 +10 +put_back", listed)
    assert "Canary: 1 message first; the others follow when 100% were settled." in poison(f"plans orders {plan.plan}").out
    assert done(poison("plans orders -o json"))["plans"][0] == done(poison(f"plans orders {plan.plan} -o json"))


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("find orders --sub-queue attic", 2, "--sub-queue attic: expected one of"),
        ("find orders --error x", 2, "error='x'"),
        ("find orders --error ''", 2, "--error '': expected a text"),
        ("find orders --where ' '", 2, "--where ' ': expected a text"),
        ("find orders --where 'bodi.x > 1'", 2, "bodi"),
        ("find orders --count 'moves>1'", 2, "counts='moves>1'"),
        ("find orders --since yesterday", 2, "--since yesterday: expected an instant"),
        ("find orders --until never", 2, "--until never: expected an instant"),
        ("find orders --ids 1-x", 2, "lookup_ids='1-x'"),
        ("find orders --property a", 2, "--property a: expected NAME=VALUE"),
        ("find orders --limit 500", 2, "expected a whole number from 1 to 200"),
        ("find orders --order size", 2, "--order size: expected one of"),
        ("groups orders --limit 0", 2, "--limit 0: expected"),
        ("groups nowhere", 2, "nowhere"),
        ("query orders 'delete from messages'", 2, "no SELECT"),
        ("query orders 'select 1' --to it.txt", 2, "--to it.txt: expected a file that ends with .parquet, .csv, .json"),
        ("query orders 'select union_value(a := 1) as w' --to it.parquet", 2, "column 'w' is of type sparse_union"),
        ("plans orders", 1, "queue orders has no plan"),
        ("plans orders 485fa2072da3", 1, "has no plan '485fa2072da3'"),
        ("pause orders 485fa2072da3", 1, "has no plan"),
        ("resume orders 485fa2072da3", 1, "has no plan"),
        ("cancel orders 485fa2072da3", 1, "has no plan"),
        ("undo orders 485fa2072da3 --yes", 1, "has no plan"),
        ("put-back orders", 2, "--yes is missing"),
        ("put-back orders --ids 99 --yes", 1, "no message of orders everywhere, lookup_ids=[99]"),
        ("put-back orders --sub-queue main --yes", 2, "sub_queue='main'"),
        ("put-back orders --rate fast --yes", 2, "--rate fast: expected a whole number"),
        ("put-back orders --rate 0/s --yes", 2, "--rate 0: expected a whole number"),
        ("put-back orders --chunk 0 --yes", 2, "--chunk 0"),
        ("put-back orders --limit 0 --yes", 2, "--limit 0"),
        ("put-back orders --wait soon --yes", 2, "--wait soon"),
        ("redrive orders --canary 0 --yes", 2, "--canary 0"),
        ("redrive orders --canary 5 --share much --yes", 2, "--share much"),
        ("redrive orders --canary 5 --share 7 --yes", 2, "canary.share=7"),
        ("redrive orders --share 0.5 --yes", 2, "--share: expected with --canary"),
        ("move orders", 2, "no message is selected: expected ID …, or options"),
        ("move orders 1 --ids 2 --yes", 2, "and not both"),
        ("move orders 1 --dry-run", 2, "--dry-run: expected with options of a selection"),
        ("move orders --ids 1 --to attic --yes", 2, "--to attic"),
        ("move orders --ids 1 --to main --to-queue other --yes", 2, "expected one of them"),
        ("send-to orders --yes", 2, "no message is selected"),
        ("send-to orders --ids 1 --to-queue nowhere --yes", 2, "nowhere"),
        ("send-to orders --ids 1 --to-queue orders --yes", 2, "target='orders'"),
        ("remove orders --yes", 2, "no message is selected"),
        ("remove orders --ids 1 --save kept.jsonl --yes", 2, "--save and --conversation: expected with ids"),
        ("edit orders --patch {} --yes", 2, "no message is selected"),
        ("edit orders --ids 1 --yes", 2, "no change is given"),
        ("edit orders --ids 1 --patch '{\"a\": 1}' --canary 1 --yes", 2, "canary="),
        ("edit orders --ids 1 --patch {x --yes", 2, "--patch {x: no JSON"),
        ("edit orders --ids 1 --patch @nowhere.json --yes", 2, "nowhere.json: No such file"),
        ("edit orders --ids 1 --patch 7 --yes", 2, "patch=7"),
        ("edit orders --ids 1 --patch {} --function a:b --yes", 2, "one of patch, body and function"),
        ("edit orders --ids 1 --function shop.nowhere:mend --yes", 2, "function='shop.nowhere:mend'"),
        ("edit orders --ids 1 --body-from nowhere.json --yes", 2, "nowhere.json: No such file"),
        ("edit orders --ids 1 --body-from /dev/null --yes", 2, "--body-from /dev/null: it is empty"),
        (f"edit orders --ids 1,2 --body-from {__file__} --yes", 2, "a selection of one message"),
        ("edit orders --ids 1 --set-property a --yes", 2, "--set-property a: expected NAME=VALUE"),
        ("edit orders --ids 1 --set-property poison.edits=x --yes", 2, "poison.edits"),
        ("edit orders --ids 1 --set-property poison.dialog=x --yes", 2, "poison.dialog"),
        ("edit orders --ids 1 --set-property poison.mine=x --yes", 2, "properties='poison.mine' is not allowed"),
        ("edit orders --ids 1 --set-property a=\udcff --yes", 2, r"--set-property 'a=\udcff': expected text in UTF-8"),
        ("edit orders --ids 1 --set-property a=b --reason \udcff --yes", 2, r"--reason '\udcff': expected text in UTF-8"),
        ("find orders --group \udcff", 2, r"--group '\udcff': expected text in UTF-8"),
        ("find \udcff", 2, r"queue '\udcff': expected text in UTF-8"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_changes_nothing(
    poison: Callable[[str], Ran], table: QueueTable, line: str, code: int, says: str
) -> None:
    before = table.snapshot().version
    ran = poison(line)
    assert (ran.code, ran.err.count("\n")) == (code, 1), ran.err
    assert says in ran.err
    assert table.snapshot().version == before


def test_a_rate_is_a_number_a_second() -> None:
    assert [rate(text) for text in ("500/s", " 500 ", None)] == [500, 500, None]
    with pytest.raises(InputError, match="--rate 500/m"):
        rate("500/m")


def test_plans_and_error_groups_are_completed(poison: Callable[[str], Ran], table: QueueTable, tmp_path: Path) -> None:
    poison("put-back orders --ids 1 --yes")
    args = parser().parse_args(["plans", "orders", "--store", f"{tmp_path}/q"])
    assert list(values.plans(args)) == [plans(table)[0].plan]
    assert len(list(values.errors(args))) == 2


# Parked groups --------------------------------------------------------------------------------------------------------


def test_groups_are_parked_and_it_is_shown_who_waits(poison: Callable[[str], Ran], table: QueueTable) -> None:
    assert done(poison("alter orders --park-group on -o json"))["changed"] == {"park_group": [False, True]}
    assert table.snapshot().control.desk["park_group"] is True
    assert "had these settings already" in poison("alter orders --park-group on").out
    send(table, [pa.RecordBatch.from_pydict({"body": [b"1", b"2"], "group_id": ["a", "a"]})], key="b", clock=CLOCK)
    assert "park_group" not in poison("show orders").out
    assert poison("move orders 11 --to poison --yes").code == 0
    assert "1 message of main waits behind earlier ones of 1 group (park_group)." in poison("show orders").out
    shown = done(poison("show orders -o json"))
    assert (shown["behind"], shown["behind_groups"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--park-group maybe", "--park-group maybe: expected one of on, off"),
        ("--park-group on --set ReceiveErrorHandling=Fault", "park_group=True is not allowed; allowed: off for queue 'orders'"),
        ("", "--set is missing: expected NAME=VALUE, --system or --park-group"),
    ],
)
def test_what_cannot_be_altered_changes_nothing(poison: Callable[[str], Ran], table: QueueTable, options: str, said: str) -> None:
    before = table.snapshot().version
    ran = poison(f"alter orders {options}")
    assert ran.code == 2
    assert said in ran.err
    assert table.snapshot().version == before
