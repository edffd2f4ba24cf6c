"""`park_group`: a message that failed has later ones of its group wait behind it, uncharged; others go on, and they follow in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.passes.alter import alter, set_park_group
from airflow_poison.passes.due import return_due
from airflow_poison.passes.move import put_back, remove
from airflow_poison.passes.send import send
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.store.parking import first_of_groups, waiting, waves
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import DiedError, DyingEngine, Handler, Queue, a_queue, needs_processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.store import QueueStore
    from tests.given.points import AtPoint


def a_group_queue(store: QueueStore, folder: Path) -> Queue:
    """A queue whose messages wait behind others of their groups."""
    queue = a_queue(store, folder)
    set_park_group(queue.table, queue.clock, park_group=True)
    return queue


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    return a_group_queue(store, tmp_path)


def sent(queue: Queue, *messages: str, priority: Sequence[int] = ()) -> Queue:
    """Send messages: ``a:ok`` is one of group a, ``:ok`` one without a group."""
    groups, bodies = zip(*(message.split(":") for message in messages), strict=True)
    columns: dict[str, pa.Array[Any]] = {
        "body": pa.array([body.encode() for body in bodies], pa.binary()),
        "group_id": pa.array([group or None for group in groups], pa.string()),
    }
    if priority:
        columns["priority"] = pa.array(priority, pa.int32())
    send(queue.table, [pa.RecordBatch.from_pydict(columns)], key=f"send-{queue.table.snapshot().version}", clock=queue.clock)
    return queue


def settled(queue: Queue) -> list[int]:
    """The lookup ids of settled messages, in the order of their deliveries."""
    path = Path(queue.handler.calls)
    return [int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("done")] if path.exists() else []


def test_the_rule() -> None:
    ids, groups = np.array([3, 1, 2, 4, 5]), pa.array(["a", "a", None, "", "b"])
    assert waiting(ids, groups, {"a": 1}).tolist() == [True, False, False, False, False]
    assert waiting(ids, groups, {"a": 3, "b": 4, "": 0}).tolist() == [False, False, False, False, True]
    assert first_of_groups(ids, groups) == {"a": 1, "b": 5}
    assert [sorted(ids[rows].tolist()) for rows in waves(ids, groups)] == [[1, 2, 4, 5], [3]]


def test_later_ones_of_a_poisoned_messages_group_wait_and_others_go_on(queue: Queue) -> None:
    sent(queue, "a:bad", "b:ok", "a:ok", ":ok", "a:ok", "b:ok")
    result = queue.receive()
    assert (result.settled, result.poisoned, result.untouched) == (3, 1, 2)
    assert (result.behind, result.behind_groups) == (2, 1)
    assert sorted(settled(queue)) == [2, 4, 6]
    assert [queue.counts(number) for number in (3, 5)] == [(0, 0), (0, 0)]
    assert sorted(queue.rows(SubQueue.MAIN)) == [3, 5]


def test_what_waits_is_not_claimed_nor_written_again(queue: Queue) -> None:
    sent(queue, "a:bad", "a:ok", "b:ok").receive("one")
    before = [file.path for file in queue.table.snapshot().files if file.sub_queue == SubQueue.MAIN]
    result = sent(queue, "b:ok", "a:ok").receive("two")
    assert (result.received, result.settled, result.untouched, result.behind) == (1, 1, 0, 2)
    assert set(before) <= {file.path for file in queue.table.snapshot().files}
    version = queue.table.snapshot().version
    assert queue.receive("three").received == 0
    assert queue.table.snapshot().version == version


def test_nothing_to_deliver_starts_no_engine(queue: Queue) -> None:
    from tests.given.passes import NoEngine

    sent(queue, "a:bad", "a:ok").receive("one")
    assert queue.having(engine=NoEngine()).receive("two").behind == 1


def test_a_message_that_is_put_back_comes_before_those_that_wait(queue: Queue) -> None:
    sent(queue, "a:bad", "a:ok", "a:ok").receive("one")
    put_back(queue.table, queue.clock)
    queue.having(handler=Handler(queue.handler.calls)).receive("two", handler=Succeeds(queue.handler.calls))
    assert settled(queue) == [1, 2, 3]


def test_when_it_is_removed_the_others_follow_in_order(queue: Queue) -> None:
    sent(queue, "a:bad", "a:ok", "a:bad", "a:ok").receive("one")
    remove(queue.table, 1, queue.clock)
    result = queue.receive("two")
    assert (result.settled, result.poisoned, result.behind) == (1, 1, 1)
    assert settled(queue) == [2]
    remove(queue.table, 3, queue.clock)
    queue.receive("three")
    assert settled(queue) == [2, 4]


@dataclass(frozen=True)
class Succeeds(Handler):
    """Takes everything."""

    def __call__(self, message: object) -> None:
        """Be called with a message."""
        self._write("done", message)  # type: ignore[arg-type]  # a message


def test_a_message_in_retry_has_others_wait_and_so_has_one_that_was_given_back(store: QueueStore, tmp_path: Path) -> None:
    from datetime import timedelta

    from airflow_poison.rules.msmq4 import Msmq4

    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=1), receive_error_handling="Move")
    queue = a_queue(store, tmp_path, policy)
    set_park_group(queue.table, queue.clock, park_group=True)
    sent(queue, "a:bad", "a:ok", "b:later", "b:ok")
    result = queue.receive("one")
    assert (result.parked, result.postponed, result.settled, result.behind, result.behind_groups) == (1, 1, 0, 2, 2)
    queue.clock.advance(timedelta(minutes=2))
    return_due(queue.table, queue.clock)
    queue.receive("two", handler=Succeeds(queue.handler.calls))
    assert sorted(settled(queue)) == [1, 2, 3, 4]
    assert settled(queue).index(1) < settled(queue).index(2)
    assert settled(queue).index(3) < settled(queue).index(4)


def test_within_a_group_the_lookup_id_counts_and_not_the_priority(queue: Queue) -> None:
    sent(queue, "a:bad", "a:ok", priority=[0, 9])
    assert queue.receive().poisoned == 1
    assert settled(queue) == []


def test_the_priority_does_not_count_either_where_a_claim_has_several_batches(tmp_path: Path) -> None:
    queue = a_group_queue(MemoryStore(), tmp_path)
    sent(queue, "a:bad", *[":ok"] * 4_100, "a:ok", priority=[0, *[5] * 4_100, 9])
    result = queue.receive()
    assert (result.poisoned, result.settled, result.behind) == (1, 4_100, 1)


def test_a_claim_of_few_messages_takes_the_first_by_lookup_id(queue: Queue) -> None:
    sent(queue, "a:ok", "b:ok", "a:ok", priority=[0, 0, 1])
    sent(queue, "b:ok", "a:ok", priority=[9, 9])
    assert [queue.receive(f"run-{number}", max_messages=2).received for number in range(3)] == [2, 2, 1]
    assert settled(queue) == [1, 2, 3, 4, 5]


def test_two_passes_have_never_messages_of_a_queue_at_the_same_time(queue: Queue) -> None:
    sent(queue, "a:ok")
    claim = queue.table.claim("other", lease=queue.a_pass().lease, now=queue.clock.now(), max_messages=10)
    assert claim is not None
    assert claim.exclusive
    sent(queue, "a:ok", "b:ok")
    assert queue.receive("one").received == 0
    queue.table.release(claim)
    queue.receive("two")
    assert [number for number in settled(queue) if number != 3] == [1, 2]


def test_it_is_off_unless_a_queue_is_set_so(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path)
    assert sent(queue, "a:bad", "a:ok").receive().settled == 1
    set_park_group(queue.table, queue.clock, park_group=True)
    assert sent(queue, "a:ok").receive("two").behind == 1
    set_park_group(queue.table, queue.clock, park_group=False)
    assert queue.receive("three").settled == 1


def test_policies_with_locks_or_an_order_of_their_own_are_refused(store: QueueStore, tmp_path: Path) -> None:
    from airflow_poison.rules.default_messaging import DefaultMessaging
    from airflow_poison.rules.msmq4 import Msmq4
    from airflow_poison.rules.service_broker import ServiceBroker

    refused = {
        ServiceBroker(): "locks",
        DefaultMessaging(strict_message_ordering=True): "order of their own",
        Msmq4(receive_error_handling="Fault"): "order of their own",
        Msmq4(receive_error_handling="Move", max_batch_size=5): "remembers more",
    }
    for number, (policy, why) in enumerate(refused.items()):
        (tmp_path / str(number)).mkdir()
        from airflow_poison.passes.alter import declare

        table = declare(store, f"queue-{number}", policy, a_queue(store, tmp_path).clock)
        with pytest.raises(SettingError, match=f"park_group=True is not allowed; allowed: off for queue 'queue-{number}': .*{policy.system}.*{why}"):
            set_park_group(table, a_queue(store, tmp_path).clock, park_group=True)
        assert table.snapshot().control.desk == {}


def test_a_pass_with_another_policy_than_the_recorded_is_refused_before_it_claims(queue: Queue) -> None:
    from airflow_poison.rules.msmq4 import Msmq4

    sent(queue, "a:ok")
    with pytest.raises(SettingError, match="park_group"):
        queue.receive(policy=Msmq4(receive_error_handling="Fault"))
    assert queue.table.snapshot().claims == ()
    assert queue.table.snapshot().control.state is QueueState.ENABLED


def test_what_a_dead_pass_had_begun_goes_on_in_order(queue: Queue) -> None:
    sent(queue, "a:ok", "b:bad", "a:ok", "b:ok", "a:ok")
    with pytest.raises(DiedError):
        queue.receive(engine=DyingEngine)
    result = queue.receive()
    assert (result.settled, result.poisoned, result.untouched) == (3, 1, 1)
    assert settled(queue) == [1, 3, 5]
    assert sorted(queue.rows()) == [2, 4]


@pytest.mark.parametrize(
    "point",
    ["store.split.after_files", "store.split.before_commit", "store.split.after_commit", "store.claim.after_fence", "delivery.stage.after_batch"],
)
def test_killed_anywhere_it_goes_on_with_nothing_lost(queue: Queue, at_point: AtPoint, point: str) -> None:
    sent(queue, "a:bad", "a:ok", "b:ok").receive("one")
    sent(queue, "a:ok", "b:ok", "c:bad", "c:ok")

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        queue.receive("two")
    result = queue.receive("two")
    assert sorted(queue.rows()) == [1, 2, 4, 6, 7]
    assert sorted(queue.rows(SubQueue.MAIN)) == [2, 4, 7]
    assert (result.behind, result.behind_groups) == (3, 2)
    assert settled(queue) == [3, 5]
    assert all(queue.counts(number) == (0, 0) for number in (2, 4, 7))


def test_a_policy_is_not_altered_to_one_that_cannot_park_while_groups_are_parked(queue: Queue) -> None:
    with pytest.raises(SettingError, match=r"park_group=True is not allowed; allowed: off for queue 'orders'.*Nothing was changed"):
        alter(queue.table, queue.clock, settings={"receive_error_handling": "Fault"})
    assert queue.table.snapshot().control.policy["receive_error_handling"] == "Move"
    done = alter(queue.table, queue.clock, settings={"receive_error_handling": "Fault"}, park_group=False)
    assert done.changed == {"receive_error_handling": ("Move", "Fault"), "park_group": (True, False)}
    with pytest.raises(SettingError, match="park_group='yes' is not allowed; allowed: True or False"):
        alter(queue.table, queue.clock, settings={}, park_group="yes")  # type: ignore[arg-type]  # what people give


def test_a_transformation_is_refused_before_anything_is_claimed(queue: Queue) -> None:
    sent(queue, "a:ok")
    with pytest.raises(SettingError, match="a transformation settles the good rows of a group at once"):
        queue.receive(handler=Transformation(f"{__name__}:as_it_is", schema="x string"), isolation="process")
    assert queue.table.snapshot().claims == ()


def as_it_is(frame: object) -> object:
    return frame


def test_children_of_their_own_keep_the_order_too(queue: Queue) -> None:
    needs_processes(queue.store)
    sent(queue, *["a:ok", "b:ok"] * 3, "a:kill", *["a:ok", "b:ok"] * 3)
    result = queue.receive(isolation="process")
    assert (result.poisoned, result.crashes, result.untouched) == (1, 1, 3)
    order = settled(queue)
    assert [number for number in order if number in {1, 3, 5}] == [1, 3, 5]
    assert [number for number in order if number in {2, 4, 6, 9, 11, 13}] == [2, 4, 6, 9, 11, 13]
    assert [queue.counts(number) for number in (8, 10, 12)] == [(0, 0)] * 3


def test_a_pass_does_not_write_200_000_that_wait_again(tmp_path: Path) -> None:
    queue = a_group_queue(MemoryStore(), tmp_path)
    sent(queue, "a:bad", "b:ok").receive("one")
    waiting: set[str] = set()
    for number in range(2):
        sent(queue, *["a:ok"] * 100_000, *["c:ok"] * 5)
        result = queue.receive(f"two-{number}")
        assert (result.received, result.settled, result.behind) == (5, 5, (number + 1) * 100_000)
        main = {file.path: file.rows for file in queue.table.snapshot().files if file.sub_queue == SubQueue.MAIN}
        assert list(main.values()) == [100_000] * (number + 1)
        assert waiting <= main.keys()
        waiting = {*main}
    sent(queue, *["c:ok"] * 10)
    assert queue.receive("three").settled == 10
    assert waiting == {file.path for file in queue.table.snapshot().files if file.sub_queue == SubQueue.MAIN}
