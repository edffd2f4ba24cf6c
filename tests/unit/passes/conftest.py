"""Queues: a new one in each store, and one with a history."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare, disable, enable, restart
from airflow_poison.passes.due import return_due
from airflow_poison.passes.move import move, put_back, remove
from airflow_poison.passes.relay import send_to
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.policy import Restart
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import SubQueue
from tests.given.passes import Handler, Queue, a_queue
from tests.given.points import AtPoint
from tests.given.stores import STORES, local_store
from tests.store.conftest import bucket_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store import QueueStore

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Reject")
AN_HOUR = timedelta(hours=1)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return bucket_store(tmp_path) if request.param == "bucket" else local_store(request.param, tmp_path)


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    return a_queue(store, tmp_path)


@pytest.fixture
def at_point() -> Iterator[AtPoint]:
    """Calls something when a pass reaches a point, once."""
    hook = AtPoint()
    fault_points.install(hook)
    yield hook
    fault_points.install(None)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A queue with a history: every verb was used, and messages are in main, retry, postponed and poison."""
    folder = tmp_path_factory.mktemp("history")
    store = DeltaStore(str(folder / "store"), durable=False)
    queue = a_queue(store, folder, POLICY)
    queue.sent("ok 1", "bad 2", "later 3", "never 4").receive("one")
    queue.clock.advance(AN_HOUR)
    return_due(queue.table, queue.clock)
    queue.receive("two")
    disable(queue.table, queue.clock)
    queue.sent("ok 5", "bad 6", "bad 7")
    enable(queue.table, queue.clock)
    queue.receive("three")
    move(queue.table, queue.clock, [6], SubQueue.POISON)
    put_back(queue.table, queue.clock, [6])
    move(queue.table, queue.clock, [6], SubQueue.POISON)
    queue.sent("ok 8", "ok 9", "ok 10", "ok 11", "ok 12")
    remove(queue.table, 8, queue.clock)
    declare(store, "elsewhere", POLICY, queue.clock)
    send_to(queue.table, store, queue.clock, [9], "elsewhere")
    restart(queue.table, queue.clock, Restart.BROKER)
    queue.receive("four", max_messages=2)
    queue.sent("ok 13", "ok 14", "ok 15")
    return queue


@pytest.fixture
def worked(history: Queue, tmp_path: Path) -> Queue:
    """A copy of it."""
    shutil.copytree(history.store.uri, tmp_path / "store")
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    clock = VirtualClock()
    clock.advance(history.clock.now() - clock.now())
    return history.having(store=store, table=store.open("orders"), clock=clock, handler=Handler(str(tmp_path / "calls")))
