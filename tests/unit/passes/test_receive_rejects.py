"""Rejected messages reach their dead-letter queue exactly once, whoever dies between the two tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.control import QueueState
from tests.given.passes import DiedError, bodies, rows_of

if TYPE_CHECKING:
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

REJECT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")


def die() -> None:
    raise DiedError


@pytest.fixture
def queue(queue: Queue) -> Queue:
    return queue.having(policy=REJECT)


def letters(queue: Queue, name: str = "orders.dead-letter") -> list[str]:
    return bodies(queue.store.open(name))


def test_a_rejected_message_goes_to_the_dead_letter_queue(queue: Queue) -> None:
    result = queue.sent("bad", "good", "bad too").receive()

    assert result.rejected == 2
    assert letters(queue) == ["bad", "bad too"]
    assert queue.table.snapshot().outbox == ()
    assert queue.rows() == {}


def test_a_letter_says_where_it_comes_from(queue: Queue) -> None:
    queue.sent("good", "bad", properties={"kind": "order"}).receive()

    (letter,) = rows_of(queue.store.open("orders.dead-letter")).values()
    properties = dict(letter["properties"])  # type: ignore[call-overload]  # a map
    assert properties["poison.origin_queue"] == "orders"
    assert properties["poison.origin_lookup_id"] == "2"
    assert properties["kind"] == "order"


def test_the_sender_names_its_own_dead_letter_queue(queue: Queue) -> None:
    queue.sent("bad", properties={"dead_letter_queue": "lost"}).receive()

    assert letters(queue, "lost") == ["bad"]


@pytest.mark.parametrize("wish", ["../up", "a;poison", "x" * 200, "", "orders"])
def test_a_wish_that_names_no_other_queue_does_not_stop_the_relay(queue: Queue, wish: str) -> None:
    queue.sent("bad", properties={"dead_letter_queue": wish}).receive()

    assert letters(queue) == ["bad"]
    assert queue.table.snapshot().outbox == ()


@pytest.mark.parametrize("point", ["store.append.before_commit", "store.append.after_commit", "store.remove_outbox.before_commit"])
def test_a_relay_that_dies_is_finished_once_by_the_next_pass(queue: Queue, at_point: AtPoint, point: str) -> None:
    queue.sent("bad", "bad too")
    at_point.do(point, die)

    with pytest.raises(DiedError):
        queue.receive("first")
    queue.receive("second")

    assert letters(queue) == ["bad", "bad too"]
    assert queue.table.snapshot().outbox == ()


def test_dead_letters_can_be_received_although_their_queue_had_halted(queue: Queue) -> None:
    faulting = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")
    queue.sent("bad").receive("first", store=None)
    queue.sent("bad too").receive("second", policy=faulting)

    assert queue.table.snapshot().control.state is QueueState.FAULTED
    assert queue.store.open("orders.dead-letter").snapshot().control.state is QueueState.ENABLED


def test_where_a_rejected_message_goes_is_not_for_the_property_of_the_outbox_to_say(queue: Queue) -> None:
    columns = {"body": pa.array([b"bad"]), "properties": pa.array([[("poison.destination", "elsewhere")]], pa.map_(pa.string(), pa.string()))}
    queue.table.append([pa.RecordBatch.from_pydict(columns)], "of an older version, which let it pass", queue.clock.now())
    queue.receive()

    assert "elsewhere" not in queue.store.names()
    assert bodies(queue.store.open("orders.dead-letter")) == ["bad"]
