"""Queues with a history: thousands of real commits, made in memory, which is faster, and put into a bucket whole.

Every history ends the same way, whatever its length: with messages in ``main``, ``retry`` (due) and ``poison``, and with a subscriber who was told of
all. So what a verb costs may differ by the length alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore.store

from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.events import Event, EventType
from airflow_poison.core.passes.alerts import send_alerts
from airflow_poison.core.passes.alter import alter
from airflow_poison.core.passes.maintain import maintain
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.bucket.objects import Objects, side_by_side
from airflow_poison.core.store.bucket.store import BucketStore
from airflow_poison.core.store.control import Control
from tests.store.given import LATER, NOW, claim, put, rows_of, seal, send

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.core.store.queue_table import QueueTable
    from tests.store.s3.conftest import Bucket

MAINTAINED_EVERY = 250
"""Commits between two maintenances of a queue that has any."""
SUBSCRIBER = "people"
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")


@dataclass(frozen=True, slots=True)
class History:
    """The objects of a store with the queue ``orders``.

    :param versions: commits in its log, as versions count them.
    """

    objects: dict[str, bytes]
    versions: int

    def put_into(self, bucket: Bucket) -> None:
        """Put it into a bucket; past the proxy, which would be slower."""
        target = Objects.at(f"s3://{bucket.name}/queues", bucket.direct)
        side_by_side(lambda path: target.put(path, self.objects[path]), self.objects)


def made(node: Path, commits: int, *, maintained: bool) -> History:
    """Make a queue with so many commits, some more where rounds and maintenances do not fit.

    :param node: a new folder.
    :param maintained: with a maintenance now and then, and one before the end.
    """
    source = Objects("s3://memory/queues", obstore.store.MemoryStore())
    store = BucketStore("", node=node, objects=source)
    queue = store.create("orders", Control(policy=POLICY.to_dict()), NOW)
    number, due = 0, MAINTAINED_EVERY
    while (version := queue.log.load().version) < commits - _LAST_COMMITS:
        if maintained and version >= due:
            _maintain(queue, store)
            due += MAINTAINED_EVERY
        _round(queue, number)
        number += 1
    if maintained:
        _maintain(queue, store)
    _end(queue)
    objects = {each.path: source.get(each.path) or b"" for each in source.list("")}
    return History(objects, queue.log.load().version)


def _round(queue: QueueTable, number: int) -> None:
    """A send, and a pass that settles all messages but the last one, which comes back and is settled by the next pass: four commits."""
    send(queue, 2, f"send {number}")
    _pass(queue, f"pass {number}", SubQueue.RETRY, EventType.MOVED_RETRY)
    queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == SubQueue.RETRY], SubQueue.MAIN, LATER)


def _pass(queue: QueueTable, key: str, place: SubQueue, event: EventType, leaves: int = 1) -> None:
    held = claim(queue, key)
    rows = rows_of(queue, held)
    left = rows.slice(rows.num_rows - leaves)
    queue.stage_table(held, put(left, place, due_at=LATER if place is SubQueue.RETRY else None))
    happened = [Event(event, NOW, lookup_id) for lookup_id in left["lookup_id"].to_pylist()]
    assert queue.finish(held, seal(queue, held), now=NOW, events=happened)


_LAST_COMMITS = 10


def _end(queue: QueueTable) -> None:
    """Ten commits."""
    send(queue, 10, "for poison")
    _pass(queue, "into poison", SubQueue.POISON, EventType.MOVED_POISON, 10)  # with the last message of the rounds
    send(queue, 10, "for retry")
    _pass(queue, "into retry", SubQueue.RETRY, EventType.MOVED_RETRY, 10)
    send(queue, 10, "waits")
    send_alerts(queue, SUBSCRIBER, lambda _alert: None, VirtualClock(NOW))
    alter(queue, VirtualClock(NOW), settings={"retry_cycle_delay": 900})


def _maintain(queue: QueueTable, store: BucketStore) -> None:
    nothing = timedelta(0)
    maintain(queue, VirtualClock(NOW), store=store, retention=nothing, safe_age=nothing)
