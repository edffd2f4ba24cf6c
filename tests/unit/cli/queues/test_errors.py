"""How commands refuse: one line on standard error, an exit code, and nothing changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.given.command import Ran, run
from tests.unit.cli.queues.given import MOVE, TAKE, orders

if TYPE_CHECKING:
    from collections.abc import Callable


WRONG = [
    ("list nosuch", 2, "There is no queue 'nosuch'"),
    ("list -o xml", 2, "table, json"),
    ("list --conn-id x", 2, "expected one of them"),
    ("show", 2, "QUEUE"),
    ("show nosuch", 2, "Queues there: orders"),
    ("show 'a;b'", 2, "cannot be a queue's name"),
    ("show 'orders;poison'", 2, "Name the queue alone, 'orders': --sub-queue shows its sub-queues"),
    ("show orders --lookup-id ''", 2, "lookup id '': expected a whole number"),
    ("history orders --lookup-id ''", 2, "lookup id '': expected a whole number"),
    ("history orders --type ''", 2, "--type '': expected one of"),
    ("move orders ''", 2, "lookup id '': expected a whole number"),
    ("remove orders '' --yes", 2, "lookup id '': expected a whole number"),
    ("send orders one --send-key ''", 2, "--send-key '': expected a name"),
    (f"receive orders {TAKE} --run-key ' '", 2, "--run-key ' ': expected a name"),
    ("send orders one --system ServiceBroker", 2, "alter orders --system ServiceBroker"),
    (f"receive orders {TAKE} --system ServiceBroker", 2, "'orders' has the rules of Msmq4"),
    ("send new one --system PoisonSubQueue", 2, "reads the sub-queue poison of a queue that exists, and makes none"),
    ("alter orders --set system=ServiceBroker", 2, "--set system=…: expected with --system SYSTEM"),
    ("alter orders --system Msmq9", 2, "the nearest is"),
    ("alter orders --system ServiceBroker --set ReceiveRetryCount=2", 2, "a setting of ServiceBroker"),
    ("show orders --limit -1", 2, "a whole number from 0 on, or all."),
    ("history orders --limit 0", 2, "--limit 0: expected a whole number from 1 on, or all."),
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
    ("send orders --file a.xml", 2, ".xml is the ending of no format that is read; expected --format, one of lines, json, csv, parquet, saved"),
    ("send orders --file a.avro", 2, "Spark alone reads files of avro"),
    ("send orders --source /landing/*.tsv.gz", 2, ".tsv is the ending of no format"),
    ("send orders --file in.csv --format xml", 2, "lines, json, csv, parquet, saved"),
    ("send orders --file in.csv --map body=nosuch", 2, "'nosuch'"),
    ("send orders --file in.csv --map bodi=a", 2, "the nearest is body"),
    ("send orders --file in.csv --map group=a,b", 2, "expected one column"),
    ("send orders --file in.csv --map group=a --group g", 2, "mapped to a column"),
    ("send orders --file in.csv --map properties=a --property b=c", 2, "mapped to columns"),
    ("send orders --file in.csv --map expires_after=a --expires-after 1h", 2, "mapped to a column"),
    ("send orders --file in.csv --map priority=a", 2, "row 1 of in.csv: priority='a': x is no priority"),
    ("send orders --file in.txt --map body=a", 2, "has none"),
    (
        "send orders --file long.csv",
        2,
        "line 2 of long.csv: it has 2 cells, the header 1; delimiter= and header= say how the file is written. Nothing was sent.",
    ),
    ("send orders --file short.csv", 2, "line 2 of short.csv: it has 1 cell, the header 2"),
    ("send orders --file latin.csv", 2, "line 2 of latin.csv: byte 1 is no utf-8; encoding= names another one. Nothing was sent."),
    ("send orders --file quote.csv", 2, "line 2 of quote.csv: a quote opens a cell and is never closed. Nothing was sent."),
    (
        "send orders --file list.jsonl --map group=a",
        2,
        "line 1 of list.jsonl: it is no JSON object, of which fields are wanted, but an array. Nothing was sent.",
    ),
    ("send orders --file list.jsonl --map body=a,b", 2, "line 1 of list.jsonl: expected a JSON object, not list. Nothing was sent."),
    ("send orders --file broken.jsonl", 2, "line 2 of broken.jsonl: it is no JSON: "),
    ("send orders --file deep.jsonl", 2, "it is no JSON: "),
    ("send orders --file in.txt --format parquet", 2, "in.txt cannot be read as parquet: "),
    ("send orders --file in.csv --header 7", 2, "in.csv cannot be read as csv: it has "),
    ("send orders --file in.csv --delimiter ;;", 2, "delimiter=';;' is not allowed"),
    ("send orders --file in.csv --encoding nonsense", 2, "encoding='nonsense' is not allowed"),
    ("send orders --file in.txt --header 1,2", 2, "header=('1', '2') is not allowed"),
    ("send orders one --delimiter ;", 2, "expected with --file"),
    ("send orders --file five.jsonl --format saved --encoding latin-1", 2, "expected with lines, json and csv"),
    ("send orders --file five.jsonl --format saved", 2, "not a message as 'remove --save' writes it"),
    (
        "send orders --file odd.jsonl --format saved",
        2,
        "odd.jsonl, line 1: not a message as 'remove --save' writes it (TypeError: group_id=5, expected str or null)",
    ),
    ("receive orders", 2, "--handler"),
    ("receive orders --handler shop", 2, "module:function"),
    ("receive orders --handler nosuch:take", 2, "nosuch"),
    ("receive orders --handler tests.sessions.sample_handlers:yields", 2, "generator function"),
    ("receive orders --handler tests.sessions.sample_handlers:runs_later", 2, "coroutine function"),
    ("receive orders --handler tests.sessions.sample_handlers:Yields", 2, "is a class"),
    (f"receive nosuch {TAKE}", 2, "--system SYSTEM makes it"),
    (f"receive orders {TAKE} --max-messages 0", 2, "from 1 on"),
    (f"receive orders {TAKE} --isolation container", 2, "container"),
    (f"receive orders {TAKE} --spark local", 2, "with --engine spark"),
    (f"receive orders {TAKE} --engine ray", 2, "spark, local"),
    (f"receive orders {TAKE} --unprocessable nosuch:Error", 2, "nosuch"),
    (f"receive orders {TAKE} --py-files nosuch.zip", 2, "on the machine of the task"),
    (f"receive orders {TAKE} --py-files notes.txt", 2, "files that end in .py, .zip"),
    ("receive orders --transform shop", 2, "transform='shop' is not of the form 'module:function'"),
    ("receive orders --transform nosuch:clean", 2, "transform: "),
    ("receive orders --transform tests.unit.cli.shop:nosuch", 2, "nosuch"),
    (f"receive orders {TAKE} --transform shop:clean", 2, "--handler: expected MODULE:FUNCTION, or --transform MODULE:FUNCTION, and not both"),
    (f"receive orders {TAKE} --mixes-rows", 2, "--mixes-rows: expected with --transform"),
    ("receive orders --transform shop:clean --engine local", 2, "--engine local: expected with --handler; a transformation runs on Spark"),
    ("receive orders --transform shop:clean --isolation none", 2, "--isolation none: expected with --handler"),
    ("receive orders --transform shop:clean --batch arrow", 2, "--batch: expected with --handler; a transformation gets a DataFrame"),
    ("receive orders --transform shop:clean --unprocessable builtins:KeyError", 2, "--unprocessable: expected with --handler"),
    ("receive orders --transform shop:clean --schema 'id nothing'", 2, "'nothing' stands"),
    (f"receive orders {TAKE} --schema 'id int'", 2, "with transform=... or batch=..."),
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
    capsys: pytest.CaptureFixture[str],
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
