"""A pass in this process keeps its claim however long a handler takes, and ends when its claim is lost."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine, SupervisedEngine
from airflow_poison.passes.receive import LEASE, ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ClaimLostError, ReceiveStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_poison.outputs.output import Output
    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock()
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
begun, go_on = threading.Event(), threading.Event()


def wait(message: Message) -> None:
    begun.set()
    assert go_on.wait(300)
    if message.body == b"bad":
        raise LookupError("bad")


@pytest.fixture
def receiving() -> Iterator[ReceivePass]:
    begun.clear()
    go_on.clear()
    store = MemoryStore()
    table = declare(store, "orders", POLICY, CLOCK)
    send(table, messages_to_batches([b"one", b"bad"]), key="first", clock=CLOCK)
    yield ReceivePass(
        table=table, policy=POLICY, handler=wait, engine=lambda: SupervisedEngine(seconds=0.01), clock=VirtualClock(), isolation="none", store=store
    )
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "poison-deliver":  # a pass that was given up goes on to its next message, and would begin in the next test
            thread.join(30)


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
    clock = receiving.clock
    assert isinstance(clock, VirtualClock)
    for _ in range(5):
        clock.advance(LEASE / 2)
        until = time.monotonic() + 30
        while receiving.table.snapshot().claims[0].expires_at < clock.now() + LEASE and time.monotonic() < until:
            time.sleep(0.01)
        assert receiving.table.snapshot().claims[0].expires_at == clock.now() + LEASE
    go_on.set()
    thread.join(30)
    [result] = ends
    assert (result.settled, result.poisoned) == (1, 1)  # type: ignore[attr-defined]  # a result


def test_a_lost_claim_ends_the_pass_at_once(receiving: ReceivePass) -> None:
    ends: list[object] = []
    thread = in_background(receiving, ends)
    assert begun.wait(30)
    [claim] = receiving.table.snapshot().claims
    clock = receiving.clock
    assert isinstance(clock, VirtualClock)
    assert receiving.table.take_over(claim, lease=LEASE, now=clock.now() + LEASE) is not None
    clock.advance(LEASE)
    thread.join(30)
    assert isinstance(ends[0], ClaimLostError)
    go_on.set()


def test_what_an_engine_raises_is_raised(receiving: ReceivePass) -> None:
    class Broken(LocalEngine):
        def run(self, *_: object, **_more: object) -> None:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        ReceivePass(
            table=receiving.table, policy=POLICY, handler=wait, engine=lambda: SupervisedEngine(Broken, seconds=0.01), clock=CLOCK, isolation="none"
        ).run("run")


class Interrupting:
    """A claim's heart whose third beat is an interrupt."""

    def __init__(self) -> None:
        self.beats = 0

    def __call__(self) -> None:
        self.beats += 1
        if self.beats == 3:
            raise KeyboardInterrupt


def test_an_interrupted_caller_tells_the_engine_and_waits_for_its_end(receiving: ReceivePass) -> None:
    ended = threading.Event()

    class Watched(LocalEngine):
        def run(self, _table: object, _claim: object, _job: object, *, keep_alive: Callable[[], None]) -> None:
            try:
                while True:
                    time.sleep(0.01)
                    keep_alive()
            except ReceiveStoppedError:
                ended.set()

    engine = SupervisedEngine(Watched, seconds=0.01, patience=30)
    with pytest.raises(KeyboardInterrupt):
        engine.run(receiving.table, SimpleNamespace(key="run"), None, keep_alive=Interrupting())  # type: ignore[arg-type]  # nothing is looked at
    assert ended.is_set()


def test_the_engine_is_made_once_and_asked_before_anything_is_claimed(receiving: ReceivePass) -> None:
    made: list[str] = []

    class Asked(LocalEngine):
        def __init__(self) -> None:
            made.append(threading.current_thread().name)

        def prepare(self, table: QueueTable, handler: object, outputs: Sequence[Output] = ()) -> None:
            del handler, outputs
            made.append(f"prepared with {len(table.snapshot().claims)} claims")

    engine = SupervisedEngine(Asked, seconds=0.01)
    go_on.set()
    assert (
        ReceivePass(table=receiving.table, policy=POLICY, handler=wait, engine=lambda: engine, clock=CLOCK, isolation="none").run("run").settled == 1
    )
    assert made == ["poison-deliver", "prepared with 0 claims"]


@pytest.mark.parametrize("local", [True, False])
def test_an_engine_whose_processes_are_all_here_is_known_as_one_so_that_who_is_to_blame_is_known(*, local: bool) -> None:
    class Placed(LocalEngine): ...

    Placed.local = local

    assert SupervisedEngine(Placed).local is local
