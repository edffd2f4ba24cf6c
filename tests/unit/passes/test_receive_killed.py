"""A pass without child processes is killed, for good, by the message that it delivers; the next run goes on behind it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from tests.given.endpoints import broker, specification
from tests.given.passes import Queue, a_queue, calls, one_each, rows_of

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy

RETRIES = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move")
BATCHES = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3)
_CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, RETRIES)


def under(queue: Queue, policy: Policy) -> Queue:
    """The queue with the rules of another system."""
    rules = policy.to_dict()
    queue.table.alter(lambda control: replace(control, policy=rules))
    return queue.having(policy=policy)


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


@pytest.mark.parametrize("sessions", [1, 3])
def test_wmq_9_with_an_endpoint_too_the_message_that_kills_the_pass_pays_for_it_alone(queue: Queue, sessions: int) -> None:
    """Without child processes one handler runs at a time, however many messages are handed out."""
    queue = under(queue, specification(sessions)).sent("good", "kill", "good", "good")

    ends = [receive_and_be_killed(queue) for _ in range(4)]

    assert ends == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert calls(queue.handler) == one_each(1, 4) + Counter({2: 2})
    assert sorted(queue.rows()) == []
    sent_on = queue.store.open("SYSTEM.DEAD.LETTER.QUEUE")
    assert [row["crash_count"] for row in rows_of(sent_on).values()] == [3]


@pytest.mark.parametrize("run", ["lost", "other"])
def test_a_claim_whose_folder_went_with_the_power_is_delivered_by_the_next_pass(queue: Queue, run: str) -> None:
    queue.sent("good", "bad")
    held = queue.table.claim(f"{run}-0", lease=timedelta(minutes=2), now=queue.clock.now(), max_messages=9)
    assert held is not None
    shutil.rmtree(Path(queue.table.uri, "_stage", held.key, held.attempt))
    if run == "other":
        queue.clock.advance(timedelta(minutes=3))

    result = queue.receive("lost")

    assert (result.received, result.settled) == (2, 1)


def test_sb_7_a_killed_pass_forgets_the_rollbacks_in_a_row_but_not_those_of_a_message(queue: Queue) -> None:
    queue = under(queue, broker(1, rollback_limit=3)).sent("kill", "good")

    ends = [receive_and_be_killed(queue) for _ in range(4)]
    result = queue.receive(handler=replace(queue.handler, deadly=False))

    assert ends == [-signal.SIGKILL] * 4, "four rollbacks, each the first that its endpoint knew of"
    assert (result.settled, result.crashes, result.halted) == (2, 4, None)
    assert calls(queue.handler) == Counter({1: 5, 2: 1})


def test_a_killed_batch_counts_one_attempt_of_each_member_that_was_delivered(queue: Queue) -> None:
    """Spec WCF-41: the transaction is aborted as a whole. The endpoint starts again in batch mode, as the specification's does."""
    queue = queue.having(policy=BATCHES).sent("good", "kill", "good")
    assert receive_and_be_killed(queue) == -signal.SIGKILL

    result = queue.receive(handler=replace(queue.handler, deadly=False))

    assert (result.settled, result.rollbacks, result.crashes) == (3, 2, 1)
    assert calls(queue.handler, "done") == Counter({1: 2, 2: 1, 3: 1})
