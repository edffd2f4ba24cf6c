"""Recovery ends the conversation of the message that halted a queue, and enables the queue, in either order (spec SB-24 to SB-34)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes import recovery as module
from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.recovery import recover
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import MessageNotFoundError
from airflow_poison.values.events import EventType
from tests.given.passes import a_queue
from tests.unit.passes.test_inspect import sent

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    """A queue that its first message has disabled: d1 holds messages 1 and 3, d2 message 2."""
    queue = sent(a_queue(store, tmp_path, ServiceBroker()), ("d1", b"bad"), ("d2", b"good"), ("d1", b"good"))
    queue.receive(policy=ServiceBroker())
    assert queue.table.snapshot().control.state is QueueState.DISABLED
    return queue


def kept(queue: Queue) -> list[int]:
    return sorted(row["lookup_id"] for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist())


def test_sb_30_all_messages_of_the_conversation_go_and_the_others_stay(queue: Queue) -> None:
    result = recover(queue.table, queue.clock)

    assert [message.lookup_id for message in result.removed] == [1, 3]
    assert (kept(queue), queue.table.snapshot().control.state) == ([2], QueueState.ENABLED)


def test_sb_31_nothing_tells_the_local_application(queue: Queue) -> None:
    recover(queue.table, queue.clock)

    result = queue.receive(policy=ServiceBroker())

    assert (result.received, result.settled) == (1, 1)


@pytest.mark.parametrize(
    ("order", "steps"), [("end_then_enable", ("end_conversation", "enable")), ("enable_then_end", ("enable", "end_conversation"))]
)
def test_sb_34_both_orders_end_in_the_same_state(queue: Queue, order: str, steps: tuple[str, ...]) -> None:
    policy = ServiceBroker(recovery_order=order).to_dict()
    queue.table.alter(lambda control: replace(control, policy=policy))

    result = recover(queue.table, queue.clock)

    assert result.steps == steps
    assert (kept(queue), queue.table.snapshot().control.state) == ([2], QueueState.ENABLED)


def test_sb_24_enabling_alone_brings_the_poison_message_back(queue: Queue) -> None:
    enable(queue.table, queue.clock)

    again = queue.receive(policy=ServiceBroker())

    assert (again.deliveries, again.halted and again.halted["lookup_id"]) == (5, 1)
    assert [event.type for event in queue.table.events()].count(EventType.QUEUE_DISABLED) == 2


def test_a_recovery_that_was_killed_between_its_steps_is_finished_by_the_next(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "enable", killed)
        with pytest.raises(KeyboardInterrupt):
            recover(queue.table, queue.clock)

    result = recover(queue.table, queue.clock)

    assert result.removed == ()
    assert (kept(queue), queue.table.snapshot().control.state) == ([2], QueueState.ENABLED)


def test_a_queue_that_no_message_halted_is_left_alone(queue: Queue) -> None:
    recover(queue.table, queue.clock)

    with pytest.raises(MessageNotFoundError, match="No message halted"):
        recover(queue.table, queue.clock)
    with pytest.raises(MessageNotFoundError):
        recover(queue.table, queue.clock, lookup_id=77)
    assert kept(queue) == [2]


def test_a_message_that_people_name_in_their_reason_is_not_the_one_that_halted_the_queue(queue: Queue) -> None:
    recover(queue.table, queue.clock)
    disable(queue.table, queue.clock, "message 2 of queue 'orders' looks strange")

    with pytest.raises(MessageNotFoundError, match="No message halted"):
        recover(queue.table, queue.clock)
    assert kept(queue) == [2]
