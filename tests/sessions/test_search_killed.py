"""kill -9 of the worker in the middle of a search: no message is charged who was not alone, no success is repeated, and the search goes on."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery.journal import Journal, MessageState, doubt_batches, left_open, settle, word
from airflow_poison.delivery.recovered import TryNote, read_history, read_journals
from tests.given import forked
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions import frame_worker

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.delivery.recovered import RecoveredAttempts

MOST_TRIES = 12


def run(folder: Path, isolation: str, words: list[str], fault: str = "") -> int:
    return forked.run(frame_worker.main, folder, isolation, words, fault).code


def read(folder: Path) -> RecoveredAttempts:
    return read_journals(sorted(folder.glob("journal*")), timedelta(seconds=20))


def calls(folder: Path) -> list[list[int]]:
    return [[int(number) for number in line.split()] for line in (folder / "calls").read_text().splitlines()]


def test_a_killer_is_found_though_each_of_its_deliveries_ends_the_worker(tmp_path: Path) -> None:
    words = ["ok"] * 300
    words[123] = "kill"
    tries = 0
    while run(tmp_path, "none", words) != 0:
        tries += 1
        assert tries < MOST_TRIES

    found = told(read(tmp_path).words)
    assert found[123] == (MessageState.ENDED, 3, 3)
    assert found[:123] + found[124:] == [COMMITTED] * 299
    assert tries == 1 + 1 + 3  # all of them, a piece of 100, then three times alone
    assert Counter(number for call in calls(tmp_path) if 123 not in call for number in call) == dict.fromkeys({*range(300)} - {123}, 1)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_worker_that_is_killed_charges_nobody(tmp_path: Path, isolation: str) -> None:
    words = ["ok"] * 300
    words[299] = "worker"

    assert run(tmp_path, isolation, words) == -signal.SIGKILL
    assert told(read(tmp_path).words) == [(MessageState.SUSPECTED, 0, 0)] * 300
    assert run(tmp_path, isolation, words) == 0
    assert told(read(tmp_path).words) == [COMMITTED] * 300
    assert [len(call) for call in calls(tmp_path)] == [300, 100, 100, 100]


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_what_a_search_has_found_outlives_its_worker(tmp_path: Path, isolation: str) -> None:
    words = ["ok"] * 300
    words[5], words[250] = "raise", "worker"

    assert run(tmp_path, isolation, words) == -signal.SIGKILL
    assert run(tmp_path, isolation, words) == 0
    found = told(read(tmp_path).words)
    assert found[5] == (MessageState.ENDED, 3, 0)
    assert found[:5] + found[6:] == [COMMITTED] * 299


@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("delivery.batch.in_hand", [(MessageState.SUSPECTED_ALONE, 0, 0)] * 50),
        ("delivery.batch.before_word", [(MessageState.SUSPECTED_ALONE, 0, 0)] * 50),
        ("delivery.batch.after_word", [COMMITTED] * 50),
        ("delivery.batch.before_last", [COMMITTED] * 50),
    ],
)
def test_one_store_decides(tmp_path: Path, point: str, after: list[tuple[MessageState, int, int]]) -> None:
    assert run(tmp_path, "none", ["ok"] * 50, point) == -signal.SIGKILL

    assert told(read(tmp_path).words) == after
    assert run(tmp_path, "none", ["ok"] * 50) == 0
    assert told(read(tmp_path).words) == [COMMITTED] * 50


# Words --------------------------------------------------------------------------------------------------------------


def words_of(*states: MessageState) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([word(state) for state in states], np.int32)


def test_a_decision_holds_for_rows_before_and_behind_it() -> None:
    words = words_of(MessageState.IN_BATCH, MessageState.COMMITTED, MessageState.DECIDED, MessageState.UNTOUCHED, MessageState.IN_BATCH)
    found = left_open(words)

    assert (found.batch, found.decided, found.open_batch) == ((0, 4, 2), True, ())
    settle(words)
    assert told(words) == [COMMITTED, COMMITTED, COMMITTED, UNTOUCHED, COMMITTED]


def test_a_batch_in_front_of_a_commit_is_not_committed() -> None:
    words = words_of(MessageState.IN_BATCH, MessageState.IN_BATCH, MessageState.COMMITTED)
    settle(words)

    assert told(words) == [(MessageState.SUSPECTED_ALONE, 0, 0)] * 2 + [COMMITTED]


def test_a_settlement_may_be_interrupted_at_each_store() -> None:
    whole = words_of(*[MessageState.IN_BATCH] * 4, MessageState.DECIDED)
    for stores in range(6):
        words = whole.copy()
        for row in left_open(words).batch[:stores]:
            words[row] = word(MessageState.COMMITTED)
        settle(words)
        assert told(words) == [COMMITTED] * 5


def test_a_lost_machine_leaves_a_decision_for_its_own_word_alone() -> None:
    decided = words_of(MessageState.IN_BATCH, MessageState.IN_BATCH, MessageState.DECIDED)
    doubt_batches(decided)
    assert told(decided) == [UNTOUCHED, UNTOUCHED, COMMITTED]

    open_ = words_of(MessageState.IN_BATCH, MessageState.IN_BATCH)
    doubt_batches(open_)
    assert told(open_) == [(MessageState.SUSPECTED_ALONE, 0, 0)] * 2


@pytest.mark.parametrize("here", [True, False])
def test_two_tasks_that_die_together_charge_nobody_when_one_has_a_batch(tmp_path: Path, here: bool) -> None:  # noqa: FBT001  (a parameter of pytest)
    from airflow_poison.delivery import platform

    folder = tmp_path / "journal"
    folder.mkdir()
    for partition, states in (("0", [MessageState.IN_BATCH] * 3), ("1", [MessageState.IN_FLIGHT])):
        with Journal(folder, partition) as journal:
            first = 10 * int(partition)
            section = journal.append(np.arange(first, first + len(states)), np.zeros(len(states), np.int32))
            section.as_array()[:] = states
            del section
    (tmp_path / "begun").write_text(TryNote(platform.machine() if here else "another").to_json())

    found = read_history([folder], timedelta(seconds=5))

    assert {state for state, attempts, crashes in told(found.recovered.words) if attempts or crashes} == set()
    assert told(found.recovered.words)[:3] == [(MessageState.SUSPECTED_ALONE, 0, 0)] * 3
    assert found.alone == (10,)
