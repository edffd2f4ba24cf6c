"""The poller: one look for all who wait; each told exactly when it is so, and of its own errors only."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import QueueNotFoundError
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.conditions import Enabled, Halted, MessagesAvailable, RetryDue
from airflow_poison.watching.poller import Poller, QueueReader, Until, poller_of
from tests.given.tables import CONTROL, park_all, send

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

SOON = 0.05
log = logging.getLogger(__name__)


def halt(queue: QueueTable) -> None:
    queue.alter(lambda control: control.halted(SubQueue.MAIN, QueueState.FAULTED, "five rollbacks"))


def within(seconds: float, waiting: Coroutine[Any, Any, Any]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(seconds):
            return await waiting

    return asyncio.run(run())


def test_a_waiter_is_told_when_its_condition_holds(store: QueueStore, queue: QueueTable) -> None:
    async def scenario() -> list[dict[str, object]]:
        waiting = asyncio.create_task(Poller(store).wait(Until(("orders",), Halted()), SOON))
        await asyncio.sleep(4 * SOON)
        assert not waiting.done()
        halt(queue)
        return await waiting

    assert within(10, scenario()) == [{"queue": "orders", "sub_queue": "main", "state": "faulted", "reason": "five rollbacks"}]


def test_a_waiter_of_several_queues_is_told_of_any_or_of_all(store: QueueStore, queue: QueueTable) -> None:
    other = store.create("bills", CONTROL)

    async def scenario() -> tuple[int, bool, int]:
        poller, names = Poller(store), ("orders", "bills")
        every = asyncio.create_task(poller.wait(Until(names, MessagesAvailable(), every=True), SOON))
        send(queue, 1)
        any_of_them = await poller.wait(Until(names, MessagesAvailable()), SOON)
        not_yet = every.done()
        send(other, 1)
        return len(any_of_them), not_yet, len(await every)

    assert within(10, scenario()) == (1, False, 2)


def test_a_retry_is_told_at_the_instant_at_which_it_is_due_whatever_the_interval(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 1)
    due_at = datetime.now(UTC) + timedelta(seconds=1.5)
    park_all(queue, due_at=due_at)

    async def scenario() -> datetime:
        await Poller(store).wait(Until(("orders",), RetryDue()), interval=3600)
        return datetime.now(UTC)

    told_at = within(30, scenario())
    assert timedelta(0) <= told_at - due_at < timedelta(seconds=1)


def test_an_error_goes_to_those_whom_it_concerns_and_the_others_go_on(store: QueueStore, queue: QueueTable) -> None:
    async def scenario() -> tuple[object, bool, object]:
        poller = Poller(store)
        waiting = asyncio.create_task(poller.wait(Until(("orders",), Halted()), SOON))
        with pytest.raises(QueueNotFoundError, match="no queue 'missing'"):
            await poller.wait(Until(("missing", "orders"), Enabled()), SOON)
        not_yet = waiting.done()
        halt(queue)
        return None, not_yet, (await waiting)[0]["state"]

    assert within(10, scenario()) == (None, False, "faulted")


def test_it_stops_when_nobody_waits_and_starts_again(store: QueueStore, queue: QueueTable) -> None:
    async def scenario() -> tuple[int, int]:
        poller = Poller(store)
        waiting = asyncio.create_task(poller.wait(Until(("orders",), Halted()), SOON))
        await asyncio.sleep(4 * SOON)
        waiting.cancel()
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "poison-poller"])
        looks = poller.looks
        await asyncio.sleep(6 * SOON)
        idle = poller.looks - looks
        met = await poller.wait(Until(("orders",), Enabled()), SOON)
        return idle, len(met)

    assert within(10, scenario()) == (0, 1)


def test_nobody_is_told_what_was_true_before_it_came(store: QueueStore, queue: QueueTable) -> None:
    """A look that was made before a waiter came may be older than what the waiter has seen itself."""

    async def scenario() -> bool:
        poller = Poller(store)
        first = asyncio.create_task(poller.wait(Until(("orders",), Halted()), 1.0))
        await asyncio.sleep(0.3)
        late = asyncio.create_task(poller.wait(Until(("orders",), Enabled()), 1.0))
        halt(queue)
        await first
        await asyncio.sleep(0.1)
        told = late.done()
        late.cancel()
        return told

    assert within(10, scenario()) is False


def test_one_loop_has_one_poller_for_a_store(store: QueueStore) -> None:
    async def scenario() -> bool:
        return poller_of(store) is poller_of(store)

    assert within(10, scenario())


def test_waiters_that_come_one_by_one_cause_no_look_of_their_own(store: QueueStore, queue: QueueTable) -> None:
    async def scenario() -> int:
        poller = Poller(store)
        waiting = []
        for _ in range(40):
            waiting.append(asyncio.create_task(poller.wait(Until(("orders",), Halted()), 0.5)))
            await asyncio.sleep(0.025)
        for task in waiting:
            task.cancel()
        return poller.looks

    assert within(10, scenario()) <= 4


@pytest.mark.long
def test_a_thousand_waiters_cost_one_look_an_interval(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path), durable=False)
    queues = [store.create(f"queue-{number}", CONTROL) for number in range(20)]
    interval, intervals = 0.5, 6

    async def scenario() -> tuple[int, int, float, int]:
        poller = Poller(store)
        waiting = [asyncio.create_task(poller.wait(Until((f"queue-{number % 20}",), Halted()), interval)) for number in range(1_000)]
        while poller.reads < len(queues):  # noqa: ASYNC110  (the first look reads every queue; nobody else is told of it)
            await asyncio.sleep(0.01)
        looks, reads, cpu, began = poller.looks, poller.reads, time.process_time(), time.monotonic()
        await asyncio.sleep(interval * intervals)
        cost, span = time.process_time() - cpu, time.monotonic() - began
        made, read = poller.looks - looks, poller.reads - reads
        for queue in queues:
            halt(queue)
        told = await asyncio.gather(*waiting)
        log.info("%s looks, %s reads, %.1f ms of CPU a look", made, read, 1_000 * cost / made)
        assert made <= span / interval + 1
        return read, len(told), cost / made, made

    read, told, cost, made = within(60, scenario())
    assert (read, told) == (0, 1_000)
    assert made >= intervals - 2
    assert cost < 0.25, f"{cost:.3f} s of CPU a look"


class Paid(MemoryStore):
    """A store whose looks cost requests."""

    requests_a_minute = 3_000  # ten queues are looked at five times a second


def test_where_looks_cost_requests_many_queues_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    store, names = Paid("paid"), tuple(f"queue{number}" for number in range(10))
    for name in names:
        store.create(name, CONTROL)
    asked = list[float]()
    real = QueueReader.at

    def at(self: QueueReader, wanted: Collection[str]) -> object:
        asked.append(time.monotonic())
        return real(self, wanted)

    monkeypatch.setattr(QueueReader, "at", at)

    async def scenario() -> None:
        waiting = asyncio.create_task(Poller(store).wait(Until(names, Halted()), 0.001))
        await asyncio.sleep(1.1)
        waiting.cancel()

    within(60, scenario())

    assert 2 <= len(asked) <= 7  # in 1.1 s, each 0.2 s; one that begins late is nearer to the next one
