"""Old poison of a queue in a bucket is written into a bucket and then removed: once, whoever dies, and not at all where it cannot be written."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_poison.desk.rule_runs import RuleResult, run_rules
from airflow_poison.desk.rules import Rule, RuleVerb, declare_rules
from airflow_poison.passes.alter import declare
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.files import Replacement
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import StoreUnreachableError
from tests.given.passes import DiedError
from tests.given.tables import NOW

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint
    from tests.store.s3.conftest import Bucket

MONTH = timedelta(days=30)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


@pytest.fixture
def queue(bucket: Bucket, clock: VirtualClock) -> QueueTable:
    """A queue with three messages that became poison a month ago."""
    table = declare(bucket.store(), "orders", Msmq4(receive_error_handling="Move"), clock)
    send(table, messages_to_batches([b"1", b"2", b"3"]), key="all", clock=clock)
    for file in table.snapshot().files:
        table.replace_files([Replacement(file, with_columns(table.read(file), sub_queue="poison", move_count=1))], [])
    clock.advance(MONTH + timedelta(days=1))
    return table


def retained(queue: QueueTable, bucket: Bucket, clock: VirtualClock, where: str = "") -> RuleResult:
    rule = Rule(name="old", verb=RuleVerb.REMOVE, after=MONTH, export_to=f"s3://{where or bucket.name}/old/poison")
    declare_rules(queue, [rule], clock)
    [found] = run_rules(queue, clock, who="shell:ann@here", store=bucket.store()).rules
    return found


def written(bucket: Bucket) -> list[bytes]:
    """The bodies of all that was exported."""
    found = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="old/").get("Contents", [])
    contents: list[Any] = [bucket.client.get_object(Bucket=bucket.name, Key=each["Key"])["Body"].read() for each in found]
    return sorted(row["body"] for content in contents for row in pq.read_table(io.BytesIO(content)).to_pylist())


def left(queue: QueueTable) -> int:
    return sum(file.rows for file in queue.snapshot().files)


def test_it_is_written_then_removed(queue: QueueTable, bucket: Bucket, clock: VirtualClock) -> None:
    done = retained(queue, bucket, clock)
    assert (done.messages, done.done, len(done.files)) == (3, 3, 1)
    assert done.files[0].startswith(f"s3://{bucket.name}/old/poison/orders-")
    assert (written(bucket), left(queue)) == ([b"1", b"2", b"3"], 0)
    assert retained(queue, bucket, clock).messages == 0


@pytest.mark.parametrize("point", ["store.plan.after_commit", "desk.export.after_file", "store.replace.before_commit", "store.replace.after_commit"])
def test_killed_anywhere_and_run_again_it_writes_and_removes_each_once(
    queue: QueueTable, bucket: Bucket, clock: VirtualClock, at_point: AtPoint, point: str
) -> None:
    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        retained(queue, bucket, clock)
    retained(bucket.queue("another"), bucket, clock)
    assert (written(bucket), left(bucket.queue())) == ([b"1", b"2", b"3"], 0)


def test_where_it_cannot_be_written_nothing_is_removed(queue: QueueTable, bucket: Bucket, clock: VirtualClock) -> None:
    with pytest.raises(StoreUnreachableError, match=r"(?s)s3://nowhere/old/poison.*there is no such bucket"):
        retained(queue, bucket, clock, "nowhere")
    assert (left(bucket.queue()), written(bucket)) == (3, [])
    assert retained(bucket.queue(), bucket, clock).done == 3, "with the place corrected"
    assert (left(bucket.queue()), written(bucket)) == (0, [b"1", b"2", b"3"])
