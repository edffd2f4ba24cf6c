"""What people do to a queue by hand: put messages back from poison, and take one out by its lookup id."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Msmq4
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare
from airflow_poison.passes.move import put_back, remove
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import open_store
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError, TableChangedError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock()


@pytest.fixture(params=["delta", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> QueueTable:
    """A queue with messages 1 to 4 in one file of main."""
    store = open_store(str(tmp_path) if request.param == "delta" else f"memory://{tmp_path}")
    table = declare(store, "orders", Msmq4(), CLOCK)
    send(table, messages_to_batches([b"one", b"two", b"three", b"four"]), key="k", clock=CLOCK)
    return table


@pytest.fixture
def poison(table: QueueTable) -> QueueTable:
    """The same with all messages in poison."""
    table.move_files(lambda snapshot: snapshot.files, SubQueue.POISON, CLOCK.now())
    return table


def rows(table: QueueTable) -> dict[tuple[str, int], list[int]]:
    """Return the lookup ids by sub-queue and move count."""
    found: dict[tuple[str, int], list[int]] = {}
    for file in table.snapshot().files:
        ids = found.setdefault((file.sub_queue, file.move_count), [])
        ids.extend(int(lookup_id or 0) for lookup_id in table.read(file).column("lookup_id").to_pylist())
        ids.sort()
    return found


def claim(table: QueueTable, sub_queue: SubQueue) -> None:
    claimed = table.claim("pass", lease=timedelta(minutes=1), now=CLOCK.now(), max_messages=10, sub_queue=sub_queue)
    assert claimed is not None


def test_a_removed_message_is_returned_and_its_neighbours_stay(table: QueueTable) -> None:
    message = remove(table, 2, CLOCK)
    assert (message.lookup_id, message.body) == (2, b"two")
    assert rows(table) == {("main", 0): [1, 3, 4]}


def test_the_last_message_of_a_file_can_be_removed(table: QueueTable) -> None:
    for lookup_id in (1, 2, 3, 4):
        remove(table, lookup_id, CLOCK)
    assert rows(table) == {}


def test_a_removal_is_recorded_and_alerts_nobody(table: QueueTable) -> None:
    remove(table, 2, CLOCK)
    [event] = table.events()
    assert (event.type.value, event.lookup_id, event.details["by"]) == ("DROPPED", 2, "hand")
    assert send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK) == []


def test_a_message_that_is_not_there_cannot_be_removed(table: QueueTable) -> None:
    remove(table, 2, CLOCK)
    for lookup_id in (2, 99):
        with pytest.raises(MessageNotFoundError, match=f"Message {lookup_id} is not in queue 'orders'"):
            remove(table, lookup_id, CLOCK)


def test_a_claimed_message_cannot_be_removed(table: QueueTable) -> None:
    claim(table, SubQueue.MAIN)
    with pytest.raises(MessageClaimedError, match="Message 2 of queue 'orders' is being received"):
        remove(table, 2, CLOCK)
    assert rows(table) == {("main", 0): [1, 2, 3, 4]}


def test_a_file_that_was_claimed_meanwhile_is_not_replaced(table: QueueTable) -> None:
    [file] = table.snapshot().files
    content = table.read(file)
    claim(table, SubQueue.MAIN)
    with pytest.raises(TableChangedError, match="cannot be changed"):
        table.replace_file(file, content.slice(0, 1), [])
    assert rows(table) == {("main", 0): [1, 2, 3, 4]}


def test_messages_put_back_from_poison_have_one_more_move(poison: QueueTable) -> None:
    assert put_back(poison, CLOCK) == 4
    assert rows(poison) == {("main", 2): [1, 2, 3, 4]}


def test_chosen_messages_are_put_back_and_the_others_stay(poison: QueueTable) -> None:
    assert put_back(poison, CLOCK, [4, 2]) == 2
    assert rows(poison) == {("main", 2): [2, 4], ("poison", 1): [1, 3]}


def test_a_message_that_was_tried_in_poison_comes_back_with_abort_count_0(poison: QueueTable) -> None:
    import pyarrow as pa

    [file] = poison.snapshot().files
    content = poison.read(file)
    place = content.schema.get_field_index("abort_count")
    tried = content.set_column(place, content.schema.field("abort_count"), pa.array([0, 3, 0, 0], pa.int32()))
    poison.replace_file(file, tried, [])
    put_back(poison, CLOCK)
    counts = [count for file in poison.snapshot().files for count in poison.read(file).column("abort_count").to_pylist()]
    assert counts == [0, 0, 0, 0]  # spec WCF-28


def test_putting_back_what_is_not_in_poison_moves_nothing(poison: QueueTable) -> None:
    with pytest.raises(MessageNotFoundError, match=r"Message 77 is not in 'orders;poison'"):
        put_back(poison, CLOCK, [1, 77])
    assert rows(poison) == {("poison", 1): [1, 2, 3, 4]}


def test_claimed_messages_stay_in_poison(poison: QueueTable) -> None:
    claim(poison, SubQueue.POISON)
    assert put_back(poison, CLOCK) == 0
    with pytest.raises(MessageClaimedError, match="is being received"):
        put_back(poison, CLOCK, [1])
