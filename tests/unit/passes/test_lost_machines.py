"""A message that kills its whole machine each time: the journals go with it, and yet the culprit alone pays."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.stage import FORCED_ROWS
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from tests.given.endpoints import specification
from tests.given.passes import Queue, a_queue, calls, rows_of
from tests.sessions.platter import lose, watch

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy

ATTEMPTS = 3
MOVE = Msmq4(receive_retry_count=ATTEMPTS - 1, max_retry_cycles=0, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=ATTEMPTS - 1, max_retry_cycles=0, receive_error_handling="Fault")
BATCHES = Msmq4(receive_retry_count=ATTEMPTS - 1, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3)
VANISHED = 2
"""Tries of which nothing is known; then journals are forced to disk."""
_CONTEXT = multiprocessing.get_context("forkserver")


def queue_at(tmp_path: Path, policy: Policy, messages: int, *culprits: int) -> Queue:
    (tmp_path / "platter").mkdir()
    bodies = ["kill" if number in culprits else "good" for number in range(1, messages + 1)]
    return a_queue(DeltaStore(str(tmp_path / "store")), tmp_path, policy).sent(*bodies)


def receive_until_it_ends(queue: Queue) -> list[int]:
    """Run the pass on one machine after the other; return how each ended."""
    folder, ends = Path(queue.handler.calls).parent, list[int]()
    for number in itertools.count():
        process = _CONTEXT.Process(target=_receive, args=(queue.store.uri, queue.policy, str(folder), f"machine {number}"))
        process.start()
        process.join()
        assert process.exitcode is not None
        ends.append(process.exitcode)
        if process.exitcode == 0 or len(ends) > 12:
            return ends
        lose(Path(queue.table.uri), folder / "platter")
    raise AssertionError


def _receive(root: str, policy: Policy, folder: str, machine: str) -> None:
    watch(Path(folder, "platter"), machine)
    result = a_queue(DeltaStore(root), Path(folder), policy).receive()
    Path(folder, "result").write_text(f"{result.received} {result.settled} {result.rollbacks} {result.crashes}")
    os._exit(0)  # delta-rs has threads that do not like to be ended


def result_of(tmp_path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in (tmp_path / "result").read_text().split())


def killed(times: int) -> list[int]:
    return [-signal.SIGKILL] * times + [0]


@pytest.mark.parametrize("messages", [pytest.param(1_000, id="1,000"), pytest.param(10_000, id="10,000", marks=pytest.mark.campaign)])
def test_the_claim_narrows_down_to_the_culprit_and_nobody_else_is_charged(tmp_path: Path, messages: int) -> None:
    culprit = messages // 2 + 7
    queue = queue_at(tmp_path, MOVE, messages, culprit)

    ends = receive_until_it_ends(queue)

    assert ends == killed(VANISHED + ATTEMPTS)
    assert [(number, row["sub_queue"], row["crash_count"]) for number, row in queue.rows().items()] == [(culprit, "poison", ATTEMPTS)]
    assert result_of(tmp_path) == (messages, messages - 1, ATTEMPTS, ATTEMPTS)
    done, innocents = calls(queue.handler, "done"), set(range(1, messages + 1)) - {culprit}
    assert set(done) == innocents
    assert calls(queue.handler)[culprit] == VANISHED + ATTEMPTS
    assert Counter(done.values())[1] >= messages - culprit, "behind the culprit nobody was delivered twice"
    assert sum(times > 1 + VANISHED for times in done.values()) <= FORCED_ROWS
    assert set(done.values()) <= set(range(1, 3 + VANISHED))


@pytest.mark.long
def test_two_culprits_side_by_side_are_both_found(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, MOVE, 300, 150, 151)

    receive_until_it_ends(queue)

    assert {number: row["crash_count"] for number, row in queue.rows().items()} == {150: ATTEMPTS, 151: ATTEMPTS}
    assert result_of(tmp_path) == (300, 298, 2 * ATTEMPTS, 2 * ATTEMPTS)


def test_where_order_is_promised_it_is_kept_while_the_culprit_is_looked_for(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, FAULT, 300, 150)

    ends = receive_until_it_ends(queue)

    assert ends == killed(VANISHED + ATTEMPTS)
    assert set(calls(queue.handler, "done")) == set(range(1, 150)), "it halts at the culprit, which nobody overtakes"
    assert {number: row["crash_count"] for number, row in queue.rows().items() if row["crash_count"]} == {150: ATTEMPTS}
    assert queue.table.snapshot().control.halted_by == 150


def test_an_endpoint_with_several_sessions_forces_each_mark_of_one_session(tmp_path: Path) -> None:
    """Without child processes one handler is called at a time; what its endpoint counts in a row dies with it."""
    queue = queue_at(tmp_path, specification(3), 300, 150)

    ends = receive_until_it_ends(queue)

    assert ends == killed(VANISHED + ATTEMPTS)
    assert queue.rows() == {}
    dead = rows_of(queue.store.open("SYSTEM.DEAD.LETTER.QUEUE"))
    assert [row["crash_count"] for row in dead.values()] == [ATTEMPTS]
    assert set(calls(queue.handler, "done")) == set(range(1, 301)) - {150}
    assert result_of(tmp_path)[2:] == (ATTEMPTS, ATTEMPTS)


def test_wcf_41_a_batch_that_is_lost_with_its_machine_counts_for_its_members_once_they_are_known(tmp_path: Path) -> None:
    """Its marks are forced to disk, too: one open batch is charged, then the culprit alone."""
    queue = queue_at(tmp_path, BATCHES, 60, 32)

    receive_until_it_ends(queue)

    assert [(number, row["crash_count"]) for number, row in queue.rows().items()] == [(32, ATTEMPTS)]
    assert set(calls(queue.handler, "done")) == set(range(1, 61)) - {32}
    assert result_of(tmp_path)[3] == ATTEMPTS
