"""Transactions of several messages (spec WCF-40 to WCF-42): one failing member rolls all of them back, and each counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.values.failures import FailureKind
from tests.given.messages import batch_of
from tests.given.reading import told
from tests.sessions.conftest import policy

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.msmq4 import Msmq4
    from tests.sessions.conftest import Opener


def batching() -> Msmq4:
    return policy(max_batch_size=4, transaction_timeout=timedelta(seconds=30))


def committed(attempts: int) -> tuple[MessageState, int, int]:
    return (MessageState.COMMITTED, attempts, 0)


def test_wcf_40_a_failing_member_rolls_the_whole_batch_back_and_is_then_alone(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation, policy=batching()).deliver(batch_of(["ok"] * 4 + ["ok", "ok", "raise", "ok"]))

    expected = [committed(0)] * 4 + [committed(1)] * 2 + [(MessageState.ENDED, 3, 0), committed(0)]
    assert told(report.words) == expected
    assert list(report.failures) == [6]


@pytest.mark.parametrize("body", ["exit", "kill"])
def test_wcf_41_a_crash_inside_a_batch_counts_for_the_innocents_but_as_no_crash_of_theirs(session: Opener, body: str) -> None:
    report = session(policy=batching()).deliver(batch_of(["ok", "ok", body, "ok"]))

    assert told(report.words) == [committed(1), committed(1), (MessageState.ENDED, 3, 3), committed(0)]
    assert report.failures[2].kind is FailureKind.CRASH


def test_a_new_child_knows_that_the_endpoint_reads_one_at_a_time_since_the_abort(session: Opener, tmp_path: Path) -> None:
    """The receiver's memory survives the crash by replay: the second crash finds no innocents to charge."""
    report = session(policy=batching()).deliver(batch_of(["ok", "exit", "ok", "exit", "ok"]))

    assert told(report.words) == [committed(1), (MessageState.ENDED, 3, 3), committed(0), (MessageState.ENDED, 3, 3), committed(0)]


def test_the_endpoint_remembers_from_batch_to_batch(session: Opener, isolation: str) -> None:
    opened = session(isolation=isolation, policy=batching())
    opened.deliver(batch_of(["ok", "raise"]))

    report = opened.deliver(batch_of(["ok", "raise"], first_id=2))

    assert told(report.words) == [committed(0), (MessageState.ENDED, 3, 0)]


def test_a_postponed_member_leaves_the_others_uncounted(session: Opener, isolation: str) -> None:
    report = session(isolation=isolation, policy=batching()).deliver(batch_of(["ok", "postpone", "ok"]))

    assert told(report.words) == [committed(0), (MessageState.ENDED, 0, 0), committed(0)]


def test_handlers_run_once_for_each_attempt(session: Opener, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    report = session(policy=batching()).deliver(batch_of([f"count {calls}", f"count {calls}", "exit", f"count {calls}"]))

    assert told(report.words) == [committed(1), committed(1), (MessageState.ENDED, 3, 3), committed(0)]
    assert calls.read_text().split("\n")[:-1] == ["0 0", "1 0", "0 1", "1 1", "3 0"]
