"""Browse and recall: what people see of a queue."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.browse import browse, look_up, overview
from airflow_poison.passes.history import recorded_events
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.move import move
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.stores import STORES, local_store

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock()


@pytest.fixture(params=STORES)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> QueueTable:
    return declare(local_store(request.param, tmp_path), "orders", Msmq4(), CLOCK)


def put(queue: QueueTable, key: str, *priorities: int) -> None:
    rows = pa.record_batch({"body": [f"{key}{number}".encode() for number in range(len(priorities))], "priority": pa.array(priorities, pa.int32())})
    send(queue, [rows], key=key, clock=CLOCK)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_messages_are_those_that_would_be_received_first(queue: QueueTable, limit: int, seed: int) -> None:
    draw = random.Random(seed)
    for key in "abcd":
        put(queue, key, *(draw.randint(0, 3) for _ in range(4)))
    everything = [row for file in queue.snapshot().files for row in queue.read(file).to_pylist()]
    wanted = sorted(everything, key=lambda row: (-row["priority"], row["lookup_id"]))
    seen = browse(queue, list(SubQueue), limit)
    assert [message.lookup_id for message in seen.messages] == [row["lookup_id"] for row in wanted[:limit]]
    assert seen.more.get(SubQueue.MAIN, 0) == max(0, 16 - limit)


def test_bodies_are_read_only_when_asked_and_places_are_told(queue: QueueTable) -> None:
    put(queue, "a", 5, 5)
    move(queue, CLOCK, [2], "poison")
    assert [(seen.sub_queue, seen.move_count, seen.body) for seen in browse(queue, list(SubQueue), 5).messages] == [
        ("main", 0, b""),
        ("poison", 1, b""),
    ]
    assert [seen.body for seen in browse(queue, [SubQueue.POISON], 5, bodies=True).messages] == [b"a1"]
    assert [(seen.lookup_id, seen.body) for seen in look_up(queue, Chosen.ids([2, 1, 7]))] == [(1, b"a0"), (2, b"a1")]


def test_an_overview_counts_without_reading_messages(queue: QueueTable) -> None:
    put(queue, "a", 5, 5, 5)
    move(queue, CLOCK, [3], "poison")
    queue.claim("run", lease=timedelta(minutes=1), now=CLOCK.now(), max_messages=10)
    seen = overview(queue, CLOCK)
    assert {place: depth.messages for place, depth in seen.sub_queues.items() if depth.messages} == {"main": 2, "poison": 1}
    assert (seen.halted, seen.oldest_at, seen.next_due_at, seen.expired_claims) == (False, CLOCK.now(), None, 0)
    assert overview(queue, VirtualClock(CLOCK.now() + timedelta(minutes=1))).expired_claims == 1
    disable(queue, CLOCK)
    assert overview(queue, CLOCK).halted


def test_events_are_recalled_by_message_type_and_time(queue: QueueTable) -> None:
    put(queue, "a", 5, 5)
    move(queue, CLOCK, [1, 2], "poison")
    later = VirtualClock(CLOCK.now() + timedelta(hours=1))
    disable(queue, later)
    enable(queue, later)
    assert [event.type for event in recorded_events(queue).events] == [EventType.MOVED_POISON, EventType.MOVED_POISON, EventType.QUEUE_ENABLED]
    assert [event.lookup_id for event in recorded_events(queue, lookup_ids=[2]).events] == [2]
    assert [event.type for event in recorded_events(queue, since=later.now()).events] == [EventType.QUEUE_ENABLED]
    newest = recorded_events(queue, types=[EventType.MOVED_POISON], limit=1)
    assert ([event.lookup_id for event in newest.events], newest.earlier) == ([2], 1)
