"""How much of a queue's files a look at it reads: statistics and the row groups that hold what is wanted, never a whole file."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.browse import browse, look_up
from airflow_poison.passes.history import recorded_events
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.move import move
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import data_files
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.row_groups import PORTION_ROWS
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import MessageNotFoundError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock()
MESSAGES, EVENTS = 60_000, 40_000
LARGE = ("body", "last_error")


class Meter(pq.ParquetFile):
    """Counts the rows that are read of files."""

    rows = 0
    large_rows = 0
    """Those with a body or an error: columns of any size."""

    @classmethod
    def count(cls, rows: int, columns: Any) -> None:
        Meter.rows += rows
        Meter.large_rows += rows if columns is None or set(columns) & set(LARGE) else 0

    def read(self, columns: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.count(self.metadata.num_rows, columns)
        return super().read(columns, *args, **kwargs)

    def read_row_group(self, i: int, columns: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.count(self.metadata.row_group(i).num_rows, columns)
        return super().read_row_group(i, columns, *args, **kwargs)

    def iter_batches(
        self, batch_size: int = 65_536, row_groups: Any = None, columns: Any = None, *args: Any, **kwargs: Any
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().iter_batches(batch_size, row_groups, columns, *args, **kwargs):
            self.count(batch.num_rows, columns)
            yield batch


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> type[Meter]:
    monkeypatch.setattr(pq, "ParquetFile", Meter)
    Meter.rows = Meter.large_rows = 0
    return Meter


@pytest.fixture(scope="module")
def long_queue(tmp_path_factory: pytest.TempPathFactory) -> QueueTable:
    """A queue with many messages in ``main``, and many events in one file."""
    queue = declare(DeltaStore(str(tmp_path_factory.mktemp("store")), durable=False), "orders", Msmq4(), CLOCK)
    send(queue, [pa.record_batch({"body": [b"order"] * MESSAGES})], key="first", clock=CLOCK)
    record(queue, [poisoned(number) for number in range(1, EVENTS + 1)])
    return queue


def poisoned(lookup_id: int) -> Event:
    return Event(EventType.MOVED_POISON, CLOCK.now(), lookup_id, 6, 1, {"place": "poison", "error": "ValueError: no"})


def record(queue: QueueTable, events: list[Event]) -> None:
    queue.alter(lambda control: control, lambda _before, _after: events)


def test_the_newest_events_are_read_and_the_others_counted_by_statistics(long_queue: QueueTable, meter: type[Meter]) -> None:
    seen = recorded_events(long_queue, limit=100)
    assert [event.lookup_id for event in seen.events] == list(range(EVENTS - 99, EVENTS + 1))
    assert seen.earlier == EVENTS - 100
    assert meter.large_rows <= data_files.GROUP_ROWS
    assert meter.rows <= 2 * data_files.GROUP_ROWS + 100


def test_the_events_of_a_message_are_looked_for_where_statistics_allow_it(long_queue: QueueTable, meter: type[Meter]) -> None:
    seen = recorded_events(long_queue, lookup_ids=[EVENTS // 2], limit=100)
    assert ([event.lookup_id for event in seen.events], seen.earlier) == ([EVENTS // 2], 0)
    assert meter.rows <= 2 * data_files.GROUP_ROWS + 100


def test_the_first_messages_are_read_without_those_behind_them(long_queue: QueueTable, meter: type[Meter]) -> None:
    seen = browse(long_queue, [SubQueue.MAIN], 50, bodies=True)
    assert [message.lookup_id for message in seen.messages] == list(range(1, 51))
    assert seen.more == {SubQueue.MAIN: MESSAGES - 50}
    assert meter.large_rows <= PORTION_ROWS
    assert meter.rows < MESSAGES


@pytest.mark.parametrize("lookup_id", [1, MESSAGES // 2, MESSAGES])
def test_a_message_is_looked_up_in_its_row_group(long_queue: QueueTable, meter: type[Meter], lookup_id: int) -> None:
    assert [message.body for message in look_up(long_queue, Chosen.ids([lookup_id]))] == [b"order"]
    assert meter.large_rows <= 25_000  # the row groups of a send
    assert meter.rows < 2 * MESSAGES


def test_the_head_of_a_queue_is_seen_without_what_is_behind_it(long_queue: QueueTable, meter: type[Meter]) -> None:
    assert [message.lookup_id for message in inspect(long_queue, CLOCK).messages] == [1]
    assert meter.large_rows <= PORTION_ROWS


# The same as reading everything ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_newest_events_are_the_end_of_all_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 3)
    draw = random.Random(seed)
    queue = declare(DeltaStore(str(tmp_path), durable=False), "orders", Msmq4(), CLOCK)
    for step in range(10):
        acts(queue, draw, step)
    everything = list(queue.events())
    assert everything
    ids = [event.lookup_id for event in everything if event.lookup_id is not None]
    for _ in range(40):
        wanted = None if draw.random() < 0.4 else {draw.choice(ids), draw.randint(1, 40), 2**70}
        types = None if draw.random() < 0.5 else {draw.choice(everything).type, draw.choice(list(EventType))}
        since = None if draw.random() < 0.6 else draw.choice(everything).at
        limit = draw.choice([0, 1, 2, 5, 17, 1_000])
        found = [
            event
            for event in everything
            if (wanted is None or event.lookup_id in wanted) and (types is None or event.type in types) and (since is None or event.at >= since)
        ]
        newest, earlier = queue.newest_events(limit, lookup_ids=wanted, types=types, since=since)
        assert list(newest) == found[max(0, len(found) - limit) :]
        assert earlier == len(found) - len(newest)


def acts(queue: QueueTable, draw: random.Random, step: int) -> None:
    """Do something that leaves events: of messages, of the queue, of whole files; or join the files of events."""
    clock = VirtualClock(CLOCK.now() + timedelta(minutes=step))
    send(queue, [pa.record_batch({"body": [b"order"] * draw.randint(1, 4)})], key=f"send {step}", clock=clock)
    match draw.choice(["messages", "messages", "queue", "file", "file", "move", "join"]):
        case "messages":
            some = [draw.randint(1, 40) for _ in range(draw.randint(1, 8))]
            events = [Event(draw.choice(list(EventType)), clock.now(), number, draw.randint(0, 6), 1, {"place": "poison"}) for number in some]
            queue.alter(lambda control: control, lambda _before, _after: events)
        case "queue":
            events = [Event(EventType.QUEUE_DISABLED, clock.now(), details={"count": "no file"})]
            queue.alter(lambda control: control, lambda _before, _after: events)
        case "file":
            place = draw.choice([SubQueue.POISON, SubQueue.MAIN])
            queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue != place], place, clock.now())
        case "move":
            with suppress(MessageNotFoundError):  # it is there already
                move(queue, clock, [draw.choice(queue.snapshot().files).min_lookup_id], "poison")
        case _:
            queue.compact(min_files=2)
