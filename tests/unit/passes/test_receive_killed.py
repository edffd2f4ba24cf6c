"""A pass without child processes is killed, for good, by the message that it delivers; the next run goes on behind it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.store.delta.store import DeltaStore
from tests.unit.passes.given import Queue, a_queue, calls, one_each

if TYPE_CHECKING:
    from pathlib import Path

RETRIES = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move")
BATCHES = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3)
_CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, RETRIES)


def receive_and_be_killed(queue: Queue) -> int | None:
    """Receive in a process of its own; return how that ended."""
    process = _CONTEXT.Process(target=_receive, args=(queue.store.uri, queue.policy, queue.handler.calls))
    process.start()
    process.join()
    return process.exitcode


def _receive(root: str, policy: Msmq4, calls_file: str) -> None:
    from pathlib import Path

    store = DeltaStore(root, durable=False)
    queue = a_queue(store, Path(calls_file).parent, policy)
    queue.receive()
    os._exit(0)  # delta-rs has threads that do not like to be ended


def test_a_message_that_kills_the_pass_each_time_becomes_poison_and_no_other_is_charged(queue: Queue) -> None:
    queue.sent("good", "bad", "kill", "bad", "good")

    ends = [receive_and_be_killed(queue) for _ in range(4)]

    assert ends == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert calls(queue.handler) == one_each(1, 5) + Counter({2: 2, 3: 2, 4: 2})
    assert sorted(queue.rows()) == [2, 3, 4]
    assert [queue.rows()[number]["crash_count"] for number in (2, 3, 4)] == [0, 3, 0]


def test_a_killed_batch_counts_one_attempt_of_each_member_that_was_delivered(queue: Queue) -> None:
    """Spec WCF-41: the transaction is aborted as a whole. The endpoint starts again in batch mode, as the specification's does."""
    queue = queue.having(policy=BATCHES).sent("good", "kill", "good")
    assert receive_and_be_killed(queue) == -signal.SIGKILL

    result = queue.receive(handler=replace(queue.handler, deadly=False))

    assert (result.settled, result.rollbacks, result.crashes) == (3, 2, 1)
    assert calls(queue.handler, "done") == Counter({1: 2, 2: 1, 3: 1})
