"""``check`` as people use it: what it prints, its exit codes, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.fsck.files import Kind
from airflow_poison.passes.alter import declare
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock
from tests.given.command import Ran, run
from tests.given.pages import ROOT, blocks
from tests.given.tables import send

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable

Capture = pytest.CaptureFixture[str]
REFERENCE = (ROOT / "docs/reference/command-line.md").read_text().partition("## `airflow poison check`")[2].partition("\n## ")[0]


@pytest.fixture
def orders(tmp_path: Path) -> QueueTable:
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    declare(store, "bills", Msmq4(), SystemClock())
    table = declare(store, "orders", Msmq4(), SystemClock())
    send(table, 3)
    return table


def checked(capsys: Capture, table: QueueTable, line: str = "") -> Ran:
    return run(capsys, f"check --store {Path(table.uri).parent} {line}")


def test_a_sound_store_ends_with_0(capsys: Capture, orders: QueueTable) -> None:
    ran = checked(capsys, orders)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == ["bills: nothing is wrong; version 2, 0 sent", "orders: nothing is wrong; version 3, 3 sent = 3 waiting"]


def test_findings_end_with_1_and_say_what_where_and_what_to_do(capsys: Capture, orders: QueueTable) -> None:
    path = orders.snapshot().files[0].path
    Path(orders.uri, path).unlink()
    ran = checked(capsys, orders, "orders")
    assert (ran.code, ran.err) == (1, "")
    heading, finding, todo = ran.out.splitlines()
    assert heading == "orders: 1 finding(s); version 3, 3 sent = 3 waiting"
    assert finding == f"  error file_missing: {path}: a file with 3 row(s), lookup ids 1 to 3, is gone, and no commit removed it."
    assert todo.startswith("    Restore the table or the file from a backup")


@pytest.mark.parametrize("line", ["nosuch --store {store}", "--store {store}/none", "--store memory://x", "--store {store} --conn-id x", "-o xml"])
def test_what_cannot_be_checked_ends_with_2(capsys: Capture, orders: QueueTable, line: str) -> None:
    ran = run(capsys, "check " + line.format(store=Path(orders.uri).parent))
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(r"error: .*\n", ran.err)


def test_json_is_one_object(capsys: Capture, orders: QueueTable) -> None:
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    found = json.loads(checked(capsys, orders, "--output json").out)
    assert (found["done"], found["failed"]) == ([], [])
    [finding] = found["queues"][1]["findings"]
    assert (finding["kind"], finding["severity"], finding["where"], finding["mendable"]) == ("foreign_commit", "error", "version 4", True)
    assert found["queues"][1]["account"]["foreign"] == 3


def test_repair_mends_and_checks_again(capsys: Capture, orders: QueueTable) -> None:
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    ran = checked(capsys, orders, "--repair")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "mended: orders: went back to version 3: undid what somebody else has committed since"
    assert send(orders, 1, "more").first_lookup_id == 4


def test_what_cannot_be_mended_is_told(capsys: Capture, orders: QueueTable) -> None:
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    Path(orders.uri, next(Path(orders.uri).rglob("sub_queue=main/*/*.parquet"))).unlink()
    ran = checked(capsys, orders, "--repair")
    assert ran.code == 1
    assert ran.err.startswith("error: orders: The queue table")
    assert "cannot go back to version 3" in ran.err


def test_accept_lets_stand_what_was_done_to_the_named_queues(capsys: Capture, orders: QueueTable) -> None:
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    assert checked(capsys, orders, "--repair --accept").code == 2
    assert checked(capsys, orders, "orders --accept").code == 2
    ran = checked(capsys, orders, "orders --repair --accept")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "orders: nothing is wrong; version 5, 3 sent = 3 taken out by others"


def test_the_guide_shows_what_is_printed(capsys: Capture, orders: QueueTable) -> None:
    [shown] = [block.code for block in blocks(ROOT / "docs/how-to/check-a-store.md") if block.language == "console"]
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    assert checked(capsys, orders).out.splitlines() == shown.rstrip("\n").splitlines()[1:]


def test_it_needs_neither_airflow_nor_spark(orders: QueueTable) -> None:
    code = "import sys, json; from airflow_poison.cli.main import main; main(sys.argv[1:]); print(sorted(sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code, "check", "--store", str(Path(orders.uri).parent)], check=True, capture_output=True, text=True)
    assert {"'airflow'", "'pyspark'"}.isdisjoint(ran.stderr.split(", "))


def test_the_reference_has_every_key_and_every_kind(capsys: Capture, orders: QueueTable) -> None:
    assert [kind for kind in Kind if f"`{kind}`" not in REFERENCE] == []
    DeltaTable(orders.uri).delete("sub_queue = 'main'")
    found = json.loads(checked(capsys, orders, "-o json").out)
    keys = {*found, *found["queues"][1], *found["queues"][1]["account"], *found["queues"][1]["findings"][0]}
    assert {key for key in keys if f"`{key}`" not in REFERENCE} == set()


@pytest.mark.parametrize("damage", ["a link to itself", "a folder where an entry was"])
def test_a_queue_that_cannot_be_read_keeps_no_other_one_from_being_checked_and_mended(capsys: Capture, orders: QueueTable, damage: str) -> None:
    if damage == "a link to itself":
        name, place = "loop", Path(orders.uri).parent / "loop"
        place.symlink_to(place)
    else:
        name, place = "bills", Path(orders.uri).parent / "bills" / "_delta_log" / f"{3:020d}.json"
        place.mkdir()
    ran = checked(capsys, orders)
    assert ran.code == 1
    assert f"{name}: 1 finding(s)" in ran.out
    assert "error queue_unreadable: nothing was checked: " in ran.out
    assert "orders: nothing is wrong; version 3" in ran.out

    newest = Path(orders.uri, "_delta_log", f"{3:020d}.json")
    newest.write_bytes(b"")
    ran = checked(capsys, orders, "--repair")
    assert (ran.code, f"error: {name}: " in ran.err) == (1, True)
    assert "mended: orders: put 1 damaged commit(s) back from their copies: version 3" in ran.out
