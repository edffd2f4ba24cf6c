"""Tables that an earlier commit of this repository wrote: read and received from."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.dialogs.system_messages import END_DIALOG
from airflow_poison.passes.alter import restart
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.policy import Restart
from airflow_poison.store.control import FORMAT_VERSION
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import NewerFormatError
from tests.given import tables as given
from tests.given.passes import Handler, Queue, calls
from tests.given.tables import ids, send

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore

TABLES = Path(__file__).with_name("tables")


@pytest.fixture
def written(tmp_path: Path) -> DeltaStore:
    """A copy of the tables that an earlier commit wrote."""
    shutil.copytree(TABLES / f"format-{FORMAT_VERSION}", tmp_path / "store")
    return DeltaStore(str(tmp_path / "store"), durable=False)


def an_hour_later(store: QueueStore, name: str, folder: Path) -> Queue:
    table = store.open(name)
    clock = VirtualClock()
    clock.advance(timedelta(hours=1))
    return Queue(store, table, policy_from_dict(table.snapshot().control.policy), Handler(str(folder / "calls")), clock)


# What is refused ---------------------------------------------------------------------------------------------------


def test_another_format_is_refused_and_nothing_is_written(written: DeltaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    version = written.open("orders").snapshot().version
    monkeypatch.setattr("airflow_poison.store.data_files.FORMAT_VERSION", FORMAT_VERSION - 1)
    with pytest.raises(NewerFormatError, match=rf"'orders' has table format {FORMAT_VERSION}; .* knows formats up to {FORMAT_VERSION - 1}\. Install"):
        DeltaStore(written.uri).open("orders")
    monkeypatch.undo()
    assert written.open("orders").snapshot().version == version


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


def test_what_a_dead_pass_has_delivered_is_not_delivered_again(written: DeltaStore, tmp_path: Path) -> None:
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
    queue.table.alter(lambda control: control.blocked(4, queue.clock.now() + timedelta(hours=1)), lambda _, __: [])
    assert queue.receive("blocked").received == 0
    restart(queue.table, queue.clock, Restart.BROKER)
    assert queue.receive("free").received == 1


def test_a_pass_that_died_before_its_commit_is_finished_as_it_was_staged(written: DeltaStore, tmp_path: Path) -> None:
    queue = an_hour_later(written, "sealed", tmp_path)
    result = queue.receive("later")
    assert set(calls(queue.handler)) == set()
    assert (result.received, result.settled, result.parked, result.poisoned, result.passes) == (3, 1, 1, 1, 1)


def test_an_answer_that_a_dead_pass_has_staged_reaches_its_partner_once(written: DeltaStore, tmp_path: Path) -> None:
    warehouse = an_hour_later(written, "warehouse", tmp_path)
    warehouse.receive("later")
    assert set(calls(warehouse.handler)) == set()
    said = [(row["message_type"], row["body"]) for row in given.all_rows(written.open("shop")) if row["sub_queue"] == "main"]
    assert said == [("DEFAULT", b"there is"), (END_DIALOG, b"")]
