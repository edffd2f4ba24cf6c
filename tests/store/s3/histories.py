"""Queues with a history: thousands of commits, made in memory, which is faster, and put into a bucket whole.

Every history ends the same way, whatever its length: with messages in ``main``, ``retry`` (due) and ``poison``, and with a subscriber who was told of
all. So what a verb costs may differ by the length alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore.store
import pyarrow as pa

from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import alter
from airflow_poison.passes.maintain import maintain
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import data_files
from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.store.control import Control
from airflow_poison.store.files import SEQUENCE, Commit
from airflow_poison.store.memory import MemoryState
from airflow_poison.store.objects import Objects, side_by_side
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue, table_schema
from tests.given.tables import LATER, NOW, claim, put, rows_of, seal, send

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store.files import LogState
    from airflow_poison.store.queue_table import QueueTable
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
    """Make a queue with so many commits, some more where maintenance makes its own.

    :param node: a new folder.
    :param maintained: with a maintenance now and then, and one before the end; each by another node.
    """
    source = Objects("s3://memory/queues", obstore.store.MemoryStore())
    queue = BucketStore("", node=node / "first", objects=source).create("orders", Control(policy=POLICY.to_dict()))
    number, last = 0, commits - _LAST_COMMITS
    while (version := queue.log.load().version) < last:
        for at in range(version, min(version + MAINTAINED_EVERY, last), 2):
            _round(queue, MemoryState(at), number)
            number += 1
        if maintained:
            keeper = BucketStore("", node=node / str(number), objects=source)
            queue = keeper.open("orders")
            maintain(queue, VirtualClock(NOW), store=keeper, retention=timedelta(0), safe_age=timedelta(0))
    _end(queue)
    objects = {each.path: source.get(each.path) or b"" for each in source.list("")}
    return History(objects, queue.log.load().version)


def _round(queue: QueueTable, at: LogState, number: int) -> None:
    """A send of two messages, and the end of a pass that settles them and tells something: their commits, without the looks that each takes."""
    first, version = 2 * number + 1, at.version
    cells = {"priority": 5, "enqueued_at": NOW, "abort_count": 0}
    rows = [{"lookup_id": first + each, "message_id": f"{number}-{each}", "body": b"settled", **cells} for each in range(2)]
    sent = data_files.write_new(queue.folder, SubQueue.MAIN, 0, pa.Table.from_pylist(rows, schema=table_schema()))
    numbers = {f"send:{number}": 2, f"first:{number}": first}
    assert queue.log.commit(at, Commit("append", [sent], numbers=numbers, lasting={SEQUENCE: first + 1}, details={"key": str(number)}))
    told = data_files.write_events(queue.folder, version + 2, [Event(EventType.MOVED_RETRY, NOW, first), Event(EventType.RETURNED, NOW, first)])
    details = {"key": f"pass {number}", "epoch": 1, "result": {"settled": 2}}
    assert queue.log.commit(MemoryState(version + 1), Commit("finish", told, [sent], {f"run:pass {number}": version + 2}, details=details))


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
    send_alerts(queue, SUBSCRIBER, {"notes": lambda _alert: None}, VirtualClock(NOW))
    alter(queue, VirtualClock(NOW), settings={"retry_cycle_delay": 900})
