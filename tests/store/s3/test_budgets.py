"""What looks and verbs cost in requests and in time, however long the history of a queue is."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import alter, disable, enable, restart
from airflow_poison.passes.browse import browse, overview
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.history import recorded_events
from airflow_poison.passes.move import move, put_back, remove_messages
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.relay import send_to
from airflow_poison.passes.runs import ReceiveResult
from airflow_poison.passes.send import send
from airflow_poison.rules.policy import Restart
from airflow_poison.store import bucket_store
from airflow_poison.store.control import Control
from airflow_poison.store.objects import side_by_side
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import EVENT, SubQueue
from airflow_poison.watching.poller import QueueReader
from tests.given.tables import CONTROL, LATER, LEASE, NOW, numbered
from tests.store.s3 import histories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_poison.store.bucket_store import BucketStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from tests.store.s3.conftest import Bucket

pytestmark = pytest.mark.long

DELAY = 0.05  # seconds that each request takes longer
CLOCK = VirtualClock(LATER + timedelta(minutes=1))
SUB_QUEUES = frozenset(SubQueue)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], histories.History]:
    """Make a history, once."""
    return cache(lambda commits, maintained: histories.made(tmp_path_factory.mktemp("maker"), commits, maintained=maintained))


FEW, MANY = pytest.param((10, False), id="10"), pytest.param((1_000, True), id="1000")
VERY_MANY = pytest.param((10_000, True), id="10000", marks=[pytest.mark.campaign, pytest.mark.timeout(1_200)])
NEVER_MAINTAINED = pytest.param((1_000, False), id="1000 and no maintenance", marks=pytest.mark.campaign)
"""How many commits, and whether there was maintenance in between."""


@pytest.fixture(params=[FEW, MANY, VERY_MANY, NEVER_MAINTAINED])
def old(request: pytest.FixtureRequest, bucket: Bucket, history: Callable[[int, bool], histories.History]) -> Bucket:
    """A bucket with a queue of so many commits."""
    commits, maintained = request.param
    made = history(commits, maintained)
    assert made.versions >= commits - 1
    made.put_into(bucket)
    return bucket


def cost(bucket: Bucket, act: Callable[[], object]) -> dict[str, int]:
    with bucket.proxy.counted() as counted:
        act()
    return dict(counted)


def seconds(bucket: Bucket, act: Callable[[], object]) -> float:
    """Return how long something takes that has the machine for itself: what it waits for requests, and what it computes."""
    bucket.proxy.delay = DELAY
    rounds, begun = bucket.proxy.rounds, time.thread_time()
    act()
    bucket.proxy.delay = 0.0
    return (bucket.proxy.rounds - rounds) * DELAY + time.thread_time() - begun


def look(queue: QueueTable) -> None:
    """What a task does that finds nothing."""
    assert queue.claim("none", lease=LEASE, now=NOW, max_messages=100, sub_queue=SubQueue.POSTPONED) is None


def receive(queue: QueueTable, store: BucketStore, key: str) -> ReceiveResult:
    """A pass in the task, in which a third of the messages fails."""
    return ReceivePass(
        table=queue, policy=histories.POLICY, handler=_fails_for_a_third, engine=LocalEngine, clock=CLOCK, isolation="none", store=store
    ).run(key)


def _fails_for_a_third(message: Message) -> None:
    if message.lookup_id % 3 == 0:
        raise ValueError(message.lookup_id)


def _first(queue: QueueTable, place: SubQueue, count: int = 2) -> list[int]:
    return [message.lookup_id for message in browse(queue, [place], count).messages]


COSTS: dict[str, dict[str, int]] = {
    "look": {"get": 1},
    "overview": {"get": 1},
    "browse": {"get": 4},
    "alert look": {"get": 3},
    "send": {"get": 2, "put": 1, "create": 1},
    "receive": {"get": 12, "list": 1, "put": 9, "create": 3, "remove": 1},
    "return": {"get": 3, "put": 1, "create": 1, "copy": 1},
    "put some back": {"get": 2, "put": 3, "create": 1},
    "move": {"get": 2, "put": 3, "create": 1},
    "remove": {"get": 4, "put": 2, "create": 1},  # with a look whether partners wait for answers
    "put all back": {"get": 3, "put": 1, "create": 1, "copy": 2},
    "alter": {"get": 2, "put": 2, "create": 1},
    "disable": {"get": 2, "put": 1, "create": 1},
    "enable": {"get": 2, "put": 2, "create": 1},
    "alert": {"get": 4, "put": 2, "create": 2},
    "send on": {"get": 14, "put": 4, "create": 3, "head": 1},
}
"""The requests of each verb. A process does one after the other, so each finds the log as the one before it has left it."""


def verbs(queue: QueueTable, store: BucketStore) -> Iterable[tuple[str, Callable[[], object]]]:
    """Yield all verbs but those of maintenance and checks, which list and copy."""
    yield "look", partial(look, queue)
    yield "overview", lambda: overview(queue, CLOCK)
    yield "browse", lambda: browse(queue, SUB_QUEUES, 10)
    yield "alert look", lambda: send_alerts(queue, histories.SUBSCRIBER, {"notes": lambda _alert: None}, CLOCK)
    yield "send", lambda: send(queue, [numbered(10)], key="ten", clock=CLOCK)
    yield "receive", lambda: receive(queue, store, "mine")
    yield "return", lambda: return_due(queue, CLOCK)
    poison, main = _first(queue, SubQueue.POISON), _first(queue, SubQueue.MAIN, 6)
    yield "put some back", lambda: put_back(queue, CLOCK, poison)
    yield "move", lambda: move(queue, CLOCK, main[:2], SubQueue.POISON)
    yield "remove", lambda: remove_messages(queue, CLOCK, main[2:4])
    yield "put all back", lambda: put_back(queue, CLOCK)
    yield "alter", lambda: alter(queue, CLOCK, settings={"retry_cycle_delay": 77})
    yield "disable", lambda: disable(queue, CLOCK, "for a test")
    yield "enable", lambda: enable(queue, CLOCK)
    yield "alert", lambda: send_alerts(queue, histories.SUBSCRIBER, {"notes": lambda _alert: None}, CLOCK)
    store.create("others", CONTROL)
    yield "send on", lambda: send_to(queue, store, CLOCK, main[4:6], "others")


@pytest.mark.long
def test_what_a_verb_costs_does_not_grow_with_the_log(old: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "CHECKPOINT_INTERVAL", 10**9)  # none falls due while requests are counted
    queue, store = old.queue("new"), old.store("new")
    queue.snapshot()
    assert {name: cost(old, act) for name, act in verbs(queue, store)} == COSTS


def test_what_the_first_look_of_a_node_costs_does_not_grow_with_the_log(old: Bucket) -> None:
    first = Counter(cost(old, lambda: look(old.queue("new"))))
    assert first["list"] <= 2
    assert first.total() <= 8 + 20, "behind a checkpoint are no more than 20 entries"
    assert cost(old, lambda: look(old.queue("new"))) == {"get": 4}
    assert seconds(old, lambda: look(old.queue("another"))) <= 1.0
    assert seconds(old, lambda: look(old.queue("new"))) <= 0.3


@pytest.mark.parametrize("old", [FEW, MANY, VERY_MANY], indirect=True)
def test_what_the_first_history_of_a_node_costs_does_not_grow_where_there_is_maintenance(old: Bucket) -> None:
    """Maintenance joins files of events; each is twice as large as the next one, or there is only one."""
    queue = old.queue("new")
    queue.snapshot()
    assert cost(old, lambda: recorded_events(queue, limit=10))["get"] <= 10
    assert cost(old, lambda: recorded_events(queue, limit=10)) == {"get": 1}


@pytest.mark.parametrize("old", [NEVER_MAINTAINED], indirect=True)
def test_where_there_is_none_history_costs_a_request_for_each_file_of_events_once(old: Bucket) -> None:
    queue, another = old.queue("new"), old.queue("another")
    recorded = len([file for file in queue.log.load().files if file.sub_queue == EVENT])
    assert cost(old, lambda: recorded_events(queue, limit=10)) == {"get": 1 + recorded}
    assert cost(old, lambda: recorded_events(queue, limit=10)) == {"get": 1}
    assert seconds(old, lambda: recorded_events(another, limit=10)) <= 5.0


READERS: dict[str, Callable[[QueueTable], object]] = {
    "history": lambda queue: recorded_events(queue, limit=10),
    "events": lambda queue: list(queue.events()),
    "browse": lambda queue: browse(queue, SUB_QUEUES, 30),
    "join": lambda queue: queue.compact(min_files=2),
    "remove": lambda queue: remove_messages(queue, CLOCK, range(1, 31)),
    "restart": lambda queue: restart(queue, CLOCK, Restart.BROKER),
}


@pytest.mark.parametrize("name", READERS)
def test_many_files_are_fetched_side_by_side(bucket: Bucket, name: str) -> None:
    queue = bucket.store("maker").create("orders", Control(histories.POLICY.to_dict()))
    for number in range(30):
        send(queue, [numbered(1)], key=str(number), clock=CLOCK)
        alter(queue, CLOCK, settings={"retry_cycle_delay": number})
    new = bucket.queue("new")
    new.snapshot()
    assert seconds(bucket, lambda: READERS[name](new)) <= 1.0


def test_the_commit_that_makes_a_checkpoint_costs_three_requests_more(old: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "CHECKPOINT_INTERVAL", 1)
    queue = old.queue("new")
    assert cost(old, lambda: send(queue, [numbered(1)], key="one", clock=CLOCK)) == {"get": 3, "put": 2, "create": 2}


def test_a_send_of_ten_messages_takes_a_second_and_a_half_at_most(old: Bucket) -> None:
    queue = old.queue("new")
    assert seconds(old, lambda: send(queue, [numbered(10)], key="ten", clock=CLOCK)) <= 1.5


@pytest.mark.long
@pytest.mark.parametrize(("sends", "messages"), [(1, 1_000), (100, 10)])
def test_a_pass_over_a_thousand_messages_takes_five_seconds_at_most(bucket: Bucket, sends: int, messages: int) -> None:
    queue = bucket.made("sender")
    for number in range(sends):
        send(queue, [numbered(messages)], key=str(number), clock=CLOCK)
    receiver, store, passes = bucket.queue("receiver"), bucket.store("receiver"), list[ReceiveResult]()
    assert seconds(bucket, lambda: passes.append(receive(receiver, store, "mine"))) <= 5.0
    assert [(done.received, done.parked) for done in passes] == [(1_000, 333)]


@pytest.mark.long
def test_a_hundred_queues_are_watched_with_a_request_for_each_in_a_minute(bucket: Bucket) -> None:
    names = [f"queue-{number}" for number in range(100)]
    store = bucket.store("sender")
    side_by_side(lambda name: store.create(name, CONTROL), names)
    watched = bucket.store("watcher")
    reader = QueueReader(watched)
    reader.at(names)
    assert watched.requests_a_minute == 100
    assert cost(bucket, lambda: reader.at(names)) == {"head": 100}
    assert seconds(bucket, lambda: reader.at(names)) <= 1.0
    send(store.open(names[0]), [numbered(1)], key="one", clock=CLOCK)
    assert cost(bucket, lambda: reader.at(names)) == {"head": 101, "get": 2}
