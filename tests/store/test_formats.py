"""Tables that earlier commits of this repository wrote: refused, upgraded, read and received from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison import ServiceBroker
from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.conversations.services import DEFAULT_CONTRACT, Service
from airflow_poison.core.conversations.system_messages import END_DIALOG
from airflow_poison.core.errors import NewerFormatError
from airflow_poison.core.passes.alter import declare, restart
from airflow_poison.core.passes.conversations import declare_services
from airflow_poison.core.passes.transmission import pull
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.policies.policy import Restart
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.control import FORMAT_VERSION
from airflow_poison.core.store.delta import entries
from airflow_poison.core.store.delta.store import DeltaStore
from airflow_poison.core.store.table import appending
from tests.store import given
from tests.store.given import CONTROL, NOW, ids, send
from tests.unit.passes.given import Handler, Queue, calls

if TYPE_CHECKING:
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable
    from tests.store.points import AtPoint

TABLES = Path(__file__).with_name("tables")


@pytest.fixture(params=sorted(path.name for path in TABLES.glob("format-*")))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaStore:
    """A copy of the tables that were written in a format, this version's included."""
    return copied(request.param, tmp_path)


@pytest.fixture(params=range(1, FORMAT_VERSION))
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaStore:
    """A copy of the tables that were written in an earlier format."""
    return copied(f"format-{request.param}", tmp_path)


@pytest.fixture
def earlier_format(earlier: DeltaStore) -> int:
    """The format that the tables are in; looking does not upgrade them."""
    return earlier.open("orders", upgrade=False).snapshot().control.format_version


def copied(name: str, folder: Path) -> DeltaStore:
    shutil.copytree(TABLES / name, folder / "store")
    return DeltaStore(str(folder / "store"), durable=False)


def an_hour_later(store: QueueStore, name: str, folder: Path) -> Queue:
    table = store.open(name)
    clock = VirtualClock()
    clock.advance(timedelta(hours=1))
    return Queue(store, table, policy_from_dict(table.snapshot().control.policy), Handler(str(folder / "calls")), clock)


def newest(table: QueueTable) -> object:
    info = entries.commit_info(entries.entry_path(table.uri, table.snapshot().version))
    assert info is not None
    details = entries.details_of(info)
    assert details is not None
    return {name: value for name, value in details.items() if name not in {"mark", "actions"}}


# What is upgraded --------------------------------------------------------------------------------------------------


def test_a_table_of_an_earlier_format_is_upgraded_in_one_commit_when_it_is_opened(earlier: DeltaStore, earlier_format: int) -> None:
    assert earlier_format < FORMAT_VERSION
    log = Path(earlier.uri, "orders", "_delta_log")
    before = len(list(log.glob("*.json")))
    table = earlier.open("orders")
    assert table.snapshot().control.format_version == FORMAT_VERSION
    assert newest(table) == {"operation": "upgrade", "from": earlier_format, "to": FORMAT_VERSION}
    earlier.open("orders")
    assert len(list(log.glob("*.json"))) == before + 1


def test_an_upgrade_that_died_is_made_by_the_next_open(earlier: DeltaStore, at_point: AtPoint) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    at_point.do("store.upgrade.before_commit", die)
    with pytest.raises(KeyboardInterrupt):
        earlier.open("orders")
    assert earlier.open("orders").snapshot().control.format_version == FORMAT_VERSION


def test_upgrades_at_the_same_time_make_one_commit(earlier: DeltaStore, at_point: AtPoint) -> None:
    log = Path(earlier.uri, "orders", "_delta_log")
    before = len(list(log.glob("*.json")))
    at_point.do("store.upgrade.before_commit", lambda: DeltaStore(earlier.uri, durable=False).open("orders"))
    earlier.open("orders")
    assert len(list(log.glob("*.json"))) == before + 1


def test_an_upgrade_keeps_the_last_lookup_id_for_good(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Format 1 let the log forget it; then the highest id among the files is what is known."""
    with monkeypatch.context() as format_1:
        format_1.setattr("airflow_poison.core.store.delta.store.FORMAT_VERSION", 1)
        format_1.setattr("airflow_poison.core.store.bucket.store.FORMAT_VERSION", 1)
        format_1.setattr("airflow_poison.core.store.memory.FORMAT_VERSION", 1)
        format_1.setattr(appending, "SEQUENCE", "forgotten")
        send(store.create("orders", replace(CONTROL, format_version=1), NOW), 3)
    table = store.open("orders")
    assert table.log.load().number("seq") == 3
    assert send(table, 2, "more").first_lookup_id == 4


def test_who_looks_for_services_and_for_what_partners_hold_upgrades_no_queue_of_others(earlier: DeltaStore, earlier_format: int) -> None:
    """Else a pass over one queue would stop the passes of workers that still run an earlier version, whatever queues they are on."""
    clock = VirtualClock()
    table = declare(earlier, "dialogs", ServiceBroker(), clock)
    declare_services(earlier, table, [Service("Dialogs", [DEFAULT_CONTRACT])], clock)
    pull(earlier, table, clock)
    assert earlier.open("orders", upgrade=False).snapshot().control.format_version == earlier_format


# What is refused ---------------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_and_nothing_is_written(earlier: DeltaStore, earlier_format: int, monkeypatch: pytest.MonkeyPatch) -> None:
    version = earlier.open("orders").snapshot().version
    monkeypatch.setattr("airflow_poison.core.store.table.files.FORMAT_VERSION", earlier_format)
    says = rf"'orders' has table format {FORMAT_VERSION}; .* knows formats up to {earlier_format}\. Install"
    with pytest.raises(NewerFormatError, match=says):
        DeltaStore(earlier.uri).open("orders")
    monkeypatch.undo()
    assert earlier.open("orders").snapshot().version == version


def test_a_pass_of_an_earlier_format_cannot_finish_after_the_upgrade(
    earlier: DeltaStore, earlier_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as then:
        for module in ("delta.store", "table.files"):
            then.setattr(f"airflow_poison.core.store.{module}.FORMAT_VERSION", earlier_format)
        holder = earlier.open("letters")
        claimed = given.claim(holder)
        holder.stage_table(claimed, given.put(given.rows_of(holder, claimed), "poison"))
        manifest = given.seal(holder, claimed)
    DeltaStore(earlier.uri).open("letters")
    with monkeypatch.context() as then:
        then.setattr("airflow_poison.core.store.table.files.FORMAT_VERSION", earlier_format)
        with pytest.raises(NewerFormatError):
            holder.finish(claimed, manifest, now=NOW)
    assert ids(earlier.open("letters"), SubQueue.MAIN) == [4]


# What goes on ------------------------------------------------------------------------------------------------------


def test_messages_keep_their_places_and_counts(written: DeltaStore) -> None:
    rows = given.all_rows(written.open("orders"))
    found = {row["lookup_id"]: (row["sub_queue"], row["abort_count"], row["move_count"], row["body"]) for row in rows}
    assert found == {
        2: ("poison", 0, 3, b"bad 2"),
        4: ("main", 0, 0, b"later 4"),
        5: ("poison", 0, 1, b"never 5"),
        7: ("retry", 0, 1, b"bad 7"),
        8: ("main", 0, 0, b"ok 8"),
        9: ("main", 0, 0, b"bad 9"),
        10: ("main", 0, 0, b"ok 10"),
        11: ("main", 0, 0, b"ok 11"),
        12: ("main", 0, 0, b"ok 12"),
    }


def test_what_a_dead_pass_of_an_earlier_format_has_delivered_is_not_delivered_again(written: DeltaStore, tmp_path: Path) -> None:
    queue = an_hour_later(written, "orders", tmp_path)
    result = queue.receive("later")
    assert set(calls(queue.handler)) == {11, 12}  # what the others did is in the journal
    assert (result.received, result.settled, result.parked, result.postponed, result.passes) == (6, 4, 1, 1, 2)
    assert queue.counts(9) == (0, 1)
    assert ids(queue.table) == [2, 4, 5, 7, 9]


def test_letters_that_a_dead_relay_has_left_are_sent_on(written: DeltaStore, tmp_path: Path) -> None:
    queue = an_hour_later(written, "letters", tmp_path)
    queue.receive("later")
    assert queue.table.snapshot().outbox == ()
    assert [row["body"] for row in given.all_rows(written.open("letters.dead-letter"))] == [b"never 1"]


def test_keys_of_sends_and_runs_are_remembered(written: DeltaStore) -> None:
    table = written.open("orders")
    assert send(table, 9, "first").repeated
    assert table.result("one-0")
    assert send(table, 1, "new").first_lookup_id == 13


def test_its_verbs_are_those_of_this_version(written: DeltaStore, tmp_path: Path) -> None:
    queue = an_hour_later(written, "letters", tmp_path)
    queue.table.alter(lambda control: control.blocked(4, queue.clock.now() + timedelta(hours=1)), lambda _, __: [], queue.clock.now())
    assert queue.receive("blocked").received == 0
    restart(queue.table, queue.clock, Restart.BROKER)
    assert queue.receive("free").received == 1


def test_a_pass_that_died_before_its_commit_is_finished_as_it_was_staged(tmp_path: Path) -> None:
    queue = an_hour_later(copied(f"format-{FORMAT_VERSION}", tmp_path), "sealed", tmp_path)
    result = queue.receive("later")
    assert set(calls(queue.handler)) == set()
    assert (result.received, result.settled, result.parked, result.poisoned, result.passes) == (3, 1, 1, 1, 1)


def test_an_answer_that_a_dead_pass_has_staged_reaches_its_partner_once(tmp_path: Path) -> None:
    store = copied(f"format-{FORMAT_VERSION}", tmp_path)
    warehouse = an_hour_later(store, "warehouse", tmp_path)
    warehouse.receive("later")
    assert set(calls(warehouse.handler)) == set()
    said = [(row["message_type"], row["body"]) for row in given.all_rows(store.open("shop")) if row["sub_queue"] == "main"]
    assert said == [("DEFAULT", b"there is"), (END_DIALOG, b"")]
