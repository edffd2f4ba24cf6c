"""kill -9 of the worker (and of everything) in the middle of a batch: no attempt is forgotten, no success repeated."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.values.failures import FailureKind
from tests.given import forked
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions import worker
from tests.sessions.sample_handlers import nothing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sessions.conftest import Opener


def run_worker(folder: Path, isolation: str, batch_size: int, words: list[str]) -> int:
    return forked.run(worker.main, folder, isolation, batch_size, words).code


def calls(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in (folder / "calls").read_text().split())


@pytest.mark.parametrize("word", ["worker", "all"])
def test_everything_killed_in_mid_batch(journals: Path, word: str) -> None:
    folder = journals.parent
    words = ["ok", "raise", "ok", word, "raise", "ok"]

    assert run_worker(folder, "process", 0, words) == -signal.SIGKILL
    carry = read_journals([journals], timedelta(seconds=20))

    assert carry.lookup_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert told(carry.words) == [COMMITTED, (MessageState.ENDED, 3, 0), COMMITTED, (MessageState.CRASHED, 1, 1), UNTOUCHED, UNTOUCHED]
    assert {row: failure.kind for row, failure in carry.failures.items()} == {1: FailureKind.EXCEPTION, 3: FailureKind.CRASH}

    assert run_worker(folder, "process", 0, words) == 0
    assert calls(folder) == {0: 1, 1: 3, 2: 1, 3: 2, 4: 3, 5: 1}
    after = read_journals([journals])
    assert told(after.words) == [
        COMMITTED,
        (MessageState.ENDED, 3, 0),
        COMMITTED,
        (MessageState.COMMITTED, 1, 1),
        (MessageState.ENDED, 3, 0),
        COMMITTED,
    ]


def test_inline_a_kill_is_remembered_too(journals: Path) -> None:
    assert run_worker(journals.parent, "none", 0, ["ok", "worker", "ok"]) == -signal.SIGKILL

    assert told(read_journals([journals]).words) == [COMMITTED, (MessageState.CRASHED, 1, 1), UNTOUCHED]


def test_an_open_transaction_counts_for_each_of_its_messages(journals: Path) -> None:
    folder = journals.parent
    words = ["ok", "ok", "ok", "ok", "worker", "ok"]

    assert run_worker(folder, "process", 3, words) == -signal.SIGKILL

    assert told(read_journals([journals], timedelta(seconds=20)).words) == [COMMITTED] * 3 + [
        (MessageState.UNTOUCHED, 1, 0),
        (MessageState.CRASHED, 1, 1),
        UNTOUCHED,
    ]
    assert run_worker(folder, "process", 3, words) == 0
    assert calls(folder) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 1}


def test_a_saved_carry_is_mapped_and_obeyed(session: Opener, journals: Path, tmp_path: Path) -> None:
    first = session(partition="0")
    first.deliver(batch_of(["ok", "raise", "unprocessable", "postpone"]))
    first.close()
    carry = read_journals([journals])
    carry.save(tmp_path / "carry")

    report = session("tests.sessions.sample_handlers:script", carry=tmp_path / "carry").deliver(batch_of(["exit", "exit", "exit", "exit", "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 0), (MessageState.ENDED, 1, 0), (MessageState.ENDED, 0, 0), COMMITTED]
    assert report.failures == carry.failures
    assert report.restarts == 0


def test_a_living_writer_is_waited_for_and_then_named(session: Opener, journals: Path) -> None:
    from airflow_poison.values.errors import ServerSessionError

    opened = session(nothing)
    opened.deliver(batch_of(["ok"]))

    with pytest.raises(ServerSessionError, match="still has a living writer"):
        read_journals([journals], timedelta(0))

    opened.close()
    assert told(read_journals([journals]).words) == [COMMITTED]
