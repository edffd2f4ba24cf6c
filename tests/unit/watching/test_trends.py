"""Trends of a queue: what events and passes of the last day say, read once, within a given time."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.move import put_back, remove
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import row_groups
from airflow_poison.values.clock import VirtualClock
from airflow_poison.watching.poller import QueueReader, Reading
from airflow_poison.watching.trends import HOURS, Trend, Trends
from tests.given.tables import NOW, send

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.disk import Folder
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
CYCLE = Msmq4(receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=timedelta(minutes=5), receive_error_handling="Move")
HOUR = timedelta(hours=1)


class Watch:
    """A queue that time passes over, and somebody who looks at it."""

    def __init__(self, store: QueueStore, queue: QueueTable) -> None:
        self.store, self.queue, self.clock = store, queue, VirtualClock(NOW)
        self.reader, self.trends, self.runs = QueueReader(store), Trends(), 0

    def receive(self, messages: int, poison: int = 0, policy: Msmq4 = MOVE) -> None:
        """Send so many and receive what is there; the first so many are poison."""
        if messages:
            send(self.queue, messages, key=f"sent {self.runs}")
        self.runs += 1
        left = [poison]

        def handler(_message: Message) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise ValueError("no such order")

        ReceivePass(table=self.queue, policy=policy, handler=handler, engine=LocalEngine, clock=self.clock, isolation="none", store=self.store).run(
            f"{self.runs:040x}"
        )

    def look(self, seconds: float = 60) -> Trend | None:
        sight = self.reader.at([self.queue.name])[self.queue.name]
        assert isinstance(sight, Reading)
        return self.trends.of(sight, self.clock.now(), time.monotonic() + seconds)

    def anew(self) -> Watch:
        """Return somebody who looks for the first time."""
        other = Watch(self.store, self.queue)
        other.clock = self.clock
        return other

    def seen(self) -> Trend:
        found = self.look()
        assert found is not None
        return found


@pytest.fixture
def watch(store: QueueStore, queue: QueueTable) -> Watch:
    return Watch(store, queue)


def hourly(**counts: int) -> tuple[int, ...]:
    """Return 24 hours; ``h1=2``: two in the last hour, ``h24=2``: in the first one."""
    return tuple(counts.get(f"h{HOURS - hour}", 0) for hour in range(HOURS))


def test_a_queue_in_which_nothing_has_happened(watch: Watch) -> None:
    assert watch.seen() == Trend(hourly(), hourly(), 0)
    send(watch.queue, 2)
    assert watch.seen() == Trend(hourly(), hourly(), 0)


def test_each_hour_has_what_became_poison_and_what_was_settled(watch: Watch) -> None:
    watch.receive(5, poison=2)
    watch.clock.advance(3 * HOUR)
    watch.receive(4, poison=1)
    assert watch.seen() == Trend(hourly(h4=2, h1=1), hourly(h4=3, h1=3), 1)
    assert watch.seen().to_dict() == {"hours": 24, "poison": list(hourly(h4=2, h1=1)), "settled": list(hourly(h4=3, h1=3))}


def test_what_is_older_than_a_day_is_forgotten_also_while_nothing_happens(watch: Watch) -> None:
    watch.receive(3, poison=1)
    watch.clock.advance(23 * HOUR)
    assert watch.seen() == Trend(hourly(h24=1), hourly(h24=2), 0)
    watch.clock.advance(HOUR)
    assert watch.seen() == Trend(hourly(), hourly(), 0)
    watch.receive(2)
    assert watch.seen() == Trend(hourly(), hourly(h1=2), 0)
    assert watch.seen() == watch.anew().seen()


def test_who_looks_late_sees_the_same_as_who_has_looked_all_the_time(watch: Watch) -> None:
    for hour in range(30):
        watch.receive(hour % 3 + 1, poison=hour % 2)
        watch.seen()
        watch.clock.advance(HOUR)
    late = watch.anew()
    assert late.seen() == watch.seen()
    assert sum(watch.seen().poison) == 12  # of the passes in odd hours, the last 23 hours


def test_growth_is_what_came_in_the_last_hour_less_what_people_took_out(watch: Watch) -> None:
    watch.receive(8, poison=4)
    assert watch.seen().growth == 4
    remove(watch.queue, 1, watch.clock)
    put_back(watch.queue, watch.clock, [2])
    assert watch.seen().growth == 2
    put_back(watch.queue, watch.clock)
    assert watch.seen().growth == 0
    watch.clock.advance(2 * HOUR)
    watch.receive(1, poison=1)
    assert watch.seen().growth == 1
    watch.clock.advance(HOUR)
    assert watch.seen().growth == 0


def test_what_returns_from_retry_has_not_left_poison(watch: Watch) -> None:
    watch.receive(3, poison=3, policy=CYCLE)
    watch.clock.advance(timedelta(minutes=6))
    return_due(watch.queue, watch.clock)
    watch.receive(0, poison=3, policy=CYCLE)
    watch.clock.advance(timedelta(minutes=6))
    return_due(watch.queue, watch.clock)
    watch.receive(0, poison=3, policy=CYCLE)
    assert watch.seen() == Trend(hourly(h1=3), hourly(), 3)


def test_what_maintenance_has_joined_counts_once(watch: Watch) -> None:
    for _ in range(20):
        watch.receive(2, poison=1)
        watch.clock.advance(timedelta(minutes=90))
    before = watch.seen()
    maintain(watch.queue, watch.clock, store=watch.store, min_files=2)
    assert watch.seen() == before == watch.anew().seen()


def test_a_look_without_time_says_nothing_and_the_next_ones_go_on(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        watch.receive(2, poison=1)
    whole = watch.anew().seen()
    steps = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(steps))
    looks = 0
    while (found := watch.look(seconds=3)) is None:
        looks += 1
        assert looks < 100
    assert (found, looks > 1) == (whole, True)


def test_a_look_at_what_has_not_changed_reads_nothing(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.receive(4, poison=2)
    before = watch.seen()

    def read(*_: object, **__: object) -> Any:
        pytest.fail("something was read")

    monkeypatch.setattr(row_groups, "open_row_groups", read)
    monkeypatch.setattr(type(watch.queue.log), "details", read)
    monkeypatch.setattr(type(watch.queue.log), "load", read)
    assert watch.seen() == before


def test_a_change_reads_what_is_new_alone(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        watch.receive(2, poison=1)
    watch.seen()
    opened, looked = list[str](), list[int]()
    inner, details = row_groups.open_row_groups, watch.queue.log.details

    def opening(folder: Folder, path: str) -> Any:
        opened.append(path)
        return inner(folder, path)

    def looking(_: object, version: int) -> Any:
        looked.append(version)
        return details(version)

    monkeypatch.setattr(row_groups, "open_row_groups", opening)
    monkeypatch.setattr(type(watch.queue.log), "details", looking)
    before = watch.queue.snapshot().version
    watch.receive(2, poison=1)
    assert watch.seen().poison == hourly(h1=4)
    assert len(opened) == 1
    assert looked == list(range(before + 1, watch.queue.snapshot().version + 1))


def test_a_queue_that_was_made_anew_begins_anew(watch: Watch) -> None:
    watch.receive(2, poison=1)
    watch.seen()
    watch.trends.forget_others([])
    assert watch.seen() == Trend(hourly(h1=1), hourly(h1=1), 1)
