"""Triggers with Airflow's own shared stream: one look for all, nothing lost or told twice over restarts, the loop never blocked."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store import open_store
from airflow_poison.triggers import QueueEventTrigger, QueueTrigger, poller_at
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError
from airflow_poison.watching.conditions import Halted, MessagesAvailable
from airflow_poison.watching.poller import poller_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from airflow.triggers.base import BaseTrigger, TriggerEvent

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
FAST = 0.05


def never(message: Message) -> None:
    raise ValueError(message.text)


def put(queue: QueueTable, key: str, number: int = 1) -> None:
    send(queue, messages_to_batches([b"x"] * number), key=key, clock=CLOCK)


def poison(store: QueueStore, queue: QueueTable, key: str) -> None:
    put(queue, key)
    ReceivePass(table=queue, policy=MOVE, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)


def within(seconds: float, waiting: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(seconds):
            return await waiting()

    return asyncio.run(run())


async def first(trigger: BaseTrigger) -> TriggerEvent:
    """Return a trigger's first event."""
    events: Any = trigger.run()  # Airflow says "async def" of an async generator
    event: TriggerEvent = await anext(events)
    return event


class State:
    """An asset's state store: JSON by key, as in Airflow's database."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    @property
    def is_settled(self) -> bool:
        """Whether the watcher has begun and knows that all it has told is recorded."""
        return bool(self.rows) and not any(json.loads(row)["outstanding"] for row in self.rows.values())

    async def aget(self, key: str, default: Any = None) -> Any:
        await asyncio.sleep(0)
        return json.loads(self.rows[key]) if key in self.rows else default

    async def aset(self, key: str, value: Any) -> None:
        await asyncio.sleep(0)
        self.rows[key] = json.dumps(value)


@dataclass
class Triggerer:
    """What Airflow's triggerer does with event triggers: its own shared streams, and events that are recorded a while later.

    :param recorded: what is in the database; it outlives the triggerer.
    :param stops_before: how many events are recorded before the triggerer is killed.
    """

    recorded: list[Any]
    sent: list[tuple[int, Any, int | None]] = field(default_factory=list)
    confirms: bool = True

    def __post_init__(self) -> None:
        self.streams = SharedStreamManager(log=structlog.get_logger(), max_subscriber_queue=1024, ack_timeout=300, cohort_grace_period=0)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, *triggers: QueueEventTrigger) -> None:
        self.tasks += [asyncio.create_task(self._run(number, trigger)) for number, trigger in enumerate(triggers)]
        self.tasks.append(asyncio.create_task(self._sync()))

    async def _run(self, number: int, trigger: QueueEventTrigger) -> None:
        key = trigger.shared_stream_key()
        stream = self.streams.subscribe(trigger_id=number, trigger=trigger, key=key)
        async for event in trigger.filter_shared_stream(stream):
            seq = self.streams.bind_pending_event(trigger_id=number, key=key)
            self.sent.append((number, event.payload, seq))

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(FAST)
            entries, self.sent = self.sent, []
            self.recorded += [payload for _, payload, _ in entries]
            if self.confirms:
                self.streams.confirm_persisted([seq for _, _, seq in entries if seq is not None])

    async def kill(self) -> None:
        """End without any clean-up of ours: what was sent and is not recorded is gone."""
        self.sent = []
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.streams.stop_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(FAST / 2)


def watcher(state: State | None, event: str = "poisoned", queue_name: str = "orders") -> QueueEventTrigger:
    trigger = QueueEventTrigger(queue_name, event, poll_interval=FAST, asset="orders")
    again = QueueEventTrigger(**trigger.serialize()[1])
    again.asset_state_store = state  # type: ignore[assignment]  # what is used of it
    return again


@asynccontextmanager
async def a_triggerer(recorded: list[Any], *triggers: QueueEventTrigger, confirms: bool = True) -> AsyncIterator[Triggerer]:
    triggerer = Triggerer(recorded, confirms=confirms)
    triggerer.start(*triggers)
    try:
        yield triggerer
    finally:
        await triggerer.kill()


@pytest.fixture
def orders(store: QueueStore) -> QueueTable:
    return declare(store, "orders", MOVE, CLOCK)


def ids(recorded: list[Any]) -> list[int]:
    return [number for payload in recorded for number in payload["lookup_ids"]]


# QueueTrigger -------------------------------------------------------------------------------------------------------------


def test_a_trigger_comes_back_from_its_serialized_form_and_fires_when_the_condition_holds(store: QueueStore, orders: QueueTable) -> None:
    path, arguments = QueueTrigger(["orders"], MessagesAvailable(count=2).to_dict(), poll_interval=FAST).serialize()
    assert path == "airflow_poison.triggers.QueueTrigger"
    trigger = QueueTrigger(**json.loads(json.dumps(arguments)))
    put(orders, "one")

    async def scenario() -> Any:
        event = asyncio.create_task(first(trigger))
        await asyncio.sleep(5 * FAST)
        assert not event.done()
        put(orders, "two")
        return (await event).payload

    [met] = within(20, scenario)["met"]
    assert (met["queue"], met["messages"]) == ("orders", 2)


def test_a_queue_that_is_missing_is_told_as_an_error(store: QueueStore, orders: QueueTable) -> None:
    event = within(20, lambda: first(QueueTrigger(["missing"], Halted().to_dict())))
    assert event.payload["error"] == "QueueNotFoundError"
    assert "no queue 'missing'" in event.payload["message"]


@pytest.mark.long
def test_the_triggerers_loop_is_never_blocked_while_a_thousand_wait(store: QueueStore, orders: QueueTable) -> None:
    triggers = [QueueTrigger(["orders"], Halted().to_dict(), poll_interval=0.5) for _ in range(1_000)]

    async def longest_block() -> float:
        longest, began = 0.0, time.monotonic()
        while time.monotonic() - began < 3:
            asked = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - asked - 0.01)
        return longest

    async def scenario() -> tuple[float, int, int]:
        waiting = [asyncio.create_task(first(trigger)) for trigger in triggers]
        poller = await poller_at("poison_default")
        blocks = [await longest_block()]
        looks = poller.looks
        blocks += [await longest_block() for _ in range(2)]
        for task in waiting:
            task.cancel()
        assert poller is poller_of(store)
        return min(blocks), looks, poller.reads

    longest, looks, reads = within(60, scenario)
    assert looks <= 8
    assert reads == 1
    assert longest < 0.2  # Airflow warns of more; what blocks because of us does so in each of three spans, other processes of the machine do not


# QueueEventTrigger --------------------------------------------------------------------------------------------------------


def test_the_triggers_of_a_connection_share_one_stream_and_each_hears_of_its_own(store: QueueStore, orders: QueueTable) -> None:
    bills = declare(store, "bills", MOVE, CLOCK)
    recorded: list[Any] = []
    states = [State() for _ in range(4)]
    kinds = itertools.product(["orders", "bills"], ["messages", "poisoned"])
    triggers = [watcher(state, event, name) for state, (name, event) in zip(states, kinds, strict=True)]
    assert len({trigger.shared_stream_key() for trigger in triggers}) == 1

    async def scenario() -> int:
        async with a_triggerer(recorded, *triggers) as triggerer:
            await triggerer.until(lambda: all(state.rows for state in states))
            poison(store, orders, "one")
            put(bills, "two")
            await triggerer.until(lambda: len(recorded) >= 2)
            await asyncio.sleep(5 * FAST)
            return len(triggerer.streams._groups)

    assert within(60, scenario) == 1
    assert {("bills", "messages"), ("orders", "poisoned")} <= {(told["queue"], told["event"]) for told in recorded}
    assert ("bills", "poisoned") not in {(told["queue"], told["event"]) for told in recorded}
    assert len({told["key"] for told in recorded}) == len(recorded)


def test_nothing_is_lost_and_nothing_repeated_when_the_triggerer_is_killed_between_events(store: QueueStore, orders: QueueTable) -> None:
    recorded, state = list[Any](), State()

    async def told(number: int) -> None:
        async with a_triggerer(recorded, watcher(state)) as triggerer:
            await triggerer.until(lambda: len(ids(recorded)) >= number and state.is_settled)

    within(20, lambda: told(0))
    for number in range(1, 4):
        poison(store, orders, str(number))  # while no triggerer runs
        within(20, lambda number=number: told(number))  # type: ignore[misc]  # the loop's number
    assert ids(recorded) == [1, 2, 3]


def test_what_airflow_had_not_recorded_is_told_again_word_for_word(store: QueueStore, orders: QueueTable) -> None:
    lost, recorded, state = list[Any](), list[Any](), State()

    async def told(into: list[Any], *, confirms: bool) -> None:
        async with a_triggerer(into, watcher(state), confirms=confirms) as triggerer:
            await triggerer.until(lambda: bool(state.rows))
            if not confirms:
                poison(store, orders, "one")
            await triggerer.until(lambda: bool(into))

    within(20, lambda: told(lost, confirms=False))  # it dies before it hears that the event is recorded
    poison(store, orders, "two")
    within(20, lambda: told(recorded, confirms=True))
    assert recorded[0] == lost[0]
    assert ids(recorded) == [1, 2]


def test_retries_that_fall_due_are_told_once_each_over_restarts(store: QueueStore) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(seconds=1), receive_error_handling="Move")
    queue = declare(store, "orders", policy, CLOCK)
    recorded, state = list[Any](), State()

    def park(key: str) -> None:
        put(queue, key)
        ReceivePass(table=queue, policy=policy, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)

    async def scenario() -> datetime:
        async with a_triggerer(recorded, watcher(state, "retry_due")) as triggerer:
            await triggerer.until(lambda: bool(state.rows))
            park("one")
            await triggerer.until(lambda: len(recorded) == 1)
            told_at = datetime.now(UTC)
            await triggerer.until(lambda: state.is_settled)
        park("two")
        async with a_triggerer(recorded, watcher(state, "retry_due")) as triggerer:
            await triggerer.until(lambda: len(recorded) == 2)
            await asyncio.sleep(10 * FAST)
        return told_at

    assert within(60, scenario) >= datetime.fromisoformat(recorded[0]["due_at"])
    assert [(told["count"], told["new"]) for told in recorded] == [(1, 1), (2, 1)]


def test_a_queue_that_is_made_later_is_watched_from_its_first_version(store: QueueStore) -> None:
    recorded, state = list[Any](), State()

    async def scenario() -> None:
        async with a_triggerer(recorded, watcher(state)) as triggerer:
            await triggerer.until(lambda: bool(state.rows))
        poison(store, declare(store, "orders", MOVE, CLOCK), "one")
        async with a_triggerer(recorded, watcher(state)) as triggerer:
            await triggerer.until(lambda: bool(recorded))

    within(60, scenario)
    assert ids(recorded) == [1]


def test_a_queue_that_is_made_anew_while_it_is_watched_is_watched_from_its_first_version(
    store: QueueStore, orders: QueueTable, tmp_path: Path
) -> None:
    """It has as many versions as the one before when the watcher looks again."""
    recorded, state = list[Any](), State()
    beside = open_store(str(tmp_path / "beside"))
    poison(store, orders, "one")
    anew = declare(beside, "orders", MOVE, CLOCK)
    poison(beside, anew, "one")
    poison(store, orders, "two")
    poison(beside, anew, "two")
    assert anew.snapshot().version == orders.snapshot().version

    async def scenario() -> None:
        async with a_triggerer(recorded, watcher(state)) as triggerer:
            await triggerer.until(lambda: state.is_settled)
            (tmp_path / "store" / "orders").rename(tmp_path / "gone")
            (tmp_path / "beside" / "orders").rename(tmp_path / "store" / "orders")
            await triggerer.until(lambda: bool(recorded))

    within(20, scenario)
    assert ids(recorded) == [1, 2]


def test_without_a_state_store_it_watches_what_happens_from_now_on(store: QueueStore, orders: QueueTable) -> None:
    poison(store, orders, "before")

    async def scenario() -> Any:
        event = asyncio.create_task(first(watcher(None)))
        while not event.done():  # it may begin to watch at any moment from now on
            poison(store, orders, f"after {len(keys)}")
            keys.append(len(keys))
            await asyncio.sleep(5 * FAST)
        return (await event).payload

    keys: list[int] = []
    assert 1 not in within(60, scenario)["lookup_ids"]


def test_a_watcher_of_several_assets_says_what_to_do() -> None:
    from airflow.sdk import Asset
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    both = AssetStateStoreAccessors(inlets=[Asset("one"), Asset("two")])
    with pytest.raises(SettingError, match="queue_asset gives it"):
        within(20, lambda: first(watcher(both)))  # type: ignore[arg-type]  # Airflow's own


def test_an_event_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="event='full' is not allowed; allowed: messages, retry_due, poisoned, blocked, outage, disabled, enabled"):
        QueueEventTrigger("orders", "full")
