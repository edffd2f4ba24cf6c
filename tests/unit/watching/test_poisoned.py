"""Which messages happenings tell of, and in which files of poison they still are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.passes.move import move, put_back, remove
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.conditions import FilesGone, condition_from_dict
from airflow_poison.watching.queue_events import Happening, poison_files, poisoned
from tests.given.tables import NOW, send
from tests.unit.watching.test_news import MOVE, Reader, receive

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock(NOW)


def test_all_messages_of_a_happening_are_found_and_no_others(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 2)
    receive(store, queue, "before", MOVE)
    reader = Reader(Happening.POISONED, queue)
    send(queue, 30, key="many")
    receive(store, queue, "many", MOVE)
    [told] = reader.told()
    send(queue, 3, key="later")
    move(queue, CLOCK, [33], "poison")  # by hand: nobody is told
    receive(store, queue, "later", MOVE)
    [later] = reader.told()

    assert len(told["lookup_ids"]) == 20
    assert poisoned(queue, [told]) == frozenset(range(3, 33))
    assert poisoned(queue, [later]) == {34, 35}
    assert poisoned(queue, [told, later]) == frozenset(range(3, 33)) | {34, 35}
    assert poisoned(queue, [told | {"queue": "bills"}, told | {"event": "disabled"}]) == frozenset()


def test_messages_are_looked_for_again_when_a_file_of_theirs_is_gone(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 3)
    receive(store, queue, "one", MOVE)
    files = poison_files(queue, queue.snapshot(), [1, 2])
    condition = condition_from_dict(FilesGone(paths=tuple(file.path for file in files)).to_dict())
    assert not condition.met(queue.snapshot(), NOW).met

    remove(queue, 3, CLOCK)  # of the same file, and not waited for
    assert condition.met(queue.snapshot(), NOW).met
    assert len(poison_files(queue, queue.snapshot(), [1, 2])) == 1
    put_back(queue, CLOCK, [1])
    assert len(poison_files(queue, queue.snapshot(), [1, 2])) == 1
    remove(queue, 2, CLOCK)
    assert poison_files(queue, queue.snapshot(), [1, 2]) == []
    assert poison_files(queue, queue.snapshot(), None) == []


def test_without_numbers_every_file_of_poison_counts(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 1)
    receive(store, queue, "one", MOVE)
    send(queue, 1, key="two")
    assert [file.sub_queue for file in poison_files(queue, queue.snapshot(), None)] == [SubQueue.POISON]
