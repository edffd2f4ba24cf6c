"""A pass in this process keeps its claim however long a handler takes, and ends when its claim is lost."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import ClaimLostError
from airflow_poison.core.passes.attended import AttendedEngine
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.send import messages_to_batches, send
from airflow_poison.core.store.memory import MemoryStore

CLOCK = SystemClock()
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
begun, go_on = threading.Event(), threading.Event()


def wait(message: Message) -> None:
    begun.set()
    assert go_on.wait(30)
    if message.body == b"bad":
        raise LookupError("bad")


@pytest.fixture
def receiving() -> ReceivePass:
    begun.clear()
    go_on.clear()
    store = MemoryStore()
    table = declare(store, "orders", POLICY, CLOCK)
    send(table, messages_to_batches([b"one", b"bad"]), key="first", clock=CLOCK)
    engine = AttendedEngine(seconds=0.01)
    lease = timedelta(milliseconds=300)
    return ReceivePass(table, POLICY, wait, lambda: engine, CLOCK, isolation="none", store=store, lease=lease)


def in_background(receiving: ReceivePass, ends: list[object]) -> threading.Thread:
    def run() -> None:
        try:
            ends.append(receiving.run("run"))
        except Exception as error:  # noqa: BLE001  (looked at below)
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_claim_is_renewed_while_a_handler_takes_longer_than_its_lease(receiving: ReceivePass) -> None:
    ends: list[object] = []
    thread = in_background(receiving, ends)
    assert begun.wait(30)
    [first] = receiving.table.snapshot().claims
    until = first.expires_at + timedelta(milliseconds=200)
    while CLOCK.now() < until:
        [claim] = receiving.table.snapshot().claims
        assert claim.expires_at > CLOCK.now()
    go_on.set()
    thread.join(30)
    [result] = ends
    assert (result.settled, result.poisoned) == (1, 1)  # type: ignore[attr-defined]  # a result


def test_a_lost_claim_ends_the_pass_at_once(receiving: ReceivePass) -> None:
    ends: list[object] = []
    thread = in_background(receiving, ends)
    assert begun.wait(30)
    [claim] = receiving.table.snapshot().claims
    receiving.table.take_over(claim, lease=timedelta(minutes=1), now=CLOCK.now() + timedelta(minutes=1))
    thread.join(30)
    assert isinstance(ends[0], ClaimLostError)
    go_on.set()


def test_what_an_engine_raises_is_raised(receiving: ReceivePass) -> None:
    class Broken:
        def run(self, *_: object, **_more: object) -> None:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        ReceivePass(receiving.table, POLICY, wait, lambda: AttendedEngine(Broken(), 0.01), CLOCK, isolation="none").run("run")
