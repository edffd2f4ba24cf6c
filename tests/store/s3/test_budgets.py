"""What looks and verbs cost in requests and in time, however long the history of a queue is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import obstore.store
import pytest

from airflow_poison.core.store.bucket.objects import Objects, side_by_side
from airflow_poison.core.store.bucket.store import BucketStore
from tests.store.given import CONTROL, LEASE, NOW, claim, outcome_of_a_third, rows_of, seal, send

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from airflow_poison.core.store.queue_table import QueueTable
    from tests.store.s3.conftest import Bucket

DELAY = 0.05  # seconds that each request takes longer
COMMITS = 10, 200


@pytest.fixture(params=COMMITS)
def old(request: pytest.FixtureRequest, bucket: Bucket) -> Bucket:
    """A bucket with a queue of so many commits, all tiny sends that one pass has settled; made in memory, which is faster."""
    source = Objects(f"s3://{bucket.name}/queues", obstore.store.MemoryStore())
    queue = BucketStore("", node=bucket.folder / "maker", objects=source).create("orders", CONTROL, NOW)
    for number in range(request.param - 2):
        send(queue, 1, str(number))
    held = claim(queue, "first")
    assert queue.finish(held, seal(queue, held), now=NOW)
    target = Objects.at(source.uri, bucket.options)
    needed = {file.path for file in queue.log.load().files}
    paths = [each.path for each in source.list("") if not each.path.startswith("orders/sub") or each.path.removeprefix("orders/") in needed]
    side_by_side(lambda path: target.put(path, source.get(path) or b""), paths)
    assert bucket.versions()[-1] >= request.param
    return bucket


def cost(bucket: Bucket, act: Callable[[], object]) -> Counter[str]:
    with bucket.proxy.counted() as counted:
        act()
    return counted


def look(queue: QueueTable) -> None:
    """What a task does that finds nothing."""
    assert queue.claim("none", lease=LEASE, now=NOW, max_messages=100) is None


def receive(queue: QueueTable) -> None:
    """A pass in which a third of ten messages fails."""
    held = claim(queue, "run", 10)
    queue.stage_table(held, outcome_of_a_third(rows_of(queue, held)))
    assert queue.finish(held, seal(queue, held), now=NOW)


def seconds(bucket: Bucket, act: Callable[[], object]) -> float:
    """Return how long something takes that has the machine for itself: what it waits for requests, and what it computes."""
    bucket.proxy.delay = DELAY
    rounds, begun = bucket.proxy.rounds, time.thread_time()
    act()
    bucket.proxy.delay = 0.0
    return (bucket.proxy.rounds - rounds) * DELAY + time.thread_time() - begun


def test_what_a_look_a_send_and_a_pass_cost_does_not_grow_with_the_log(old: Bucket) -> None:
    new_node = cost(old, lambda: look(old.queue("new")))
    assert new_node["list"] <= 2
    assert new_node.total() <= 8 + 20, "behind a checkpoint are no more than 20 entries"
    assert cost(old, lambda: look(old.queue("new"))) == {"get": 4}
    queue = old.queue("new")
    assert cost(old, lambda: look(queue)) == {"get": 1}
    assert seconds(old, lambda: look(old.queue("another"))) <= 1.0
    assert seconds(old, lambda: look(old.queue("new"))) <= 0.3
    assert cost(old, lambda: send(queue, 10, "ten")) == {"get": 2, "put": 1, "create": 1}
    assert cost(old, lambda: receive(queue)) == {"get": 2, "put": 3, "create": 3, "list": 1, "remove": 1}
    assert seconds(old, lambda: send(queue, 10, "ten more")) <= 1.5
