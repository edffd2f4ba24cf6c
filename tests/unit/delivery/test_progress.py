"""How far a pass is, read from its journals."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_poison.delivery.journal import Journal, MessageState, word
from airflow_poison.delivery.progress import JournalProgress, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.delivery.journal import Section


def begun(journal: Journal, first: int, messages: int) -> Section:
    return journal.append(np.arange(first, first + messages, dtype=np.int64), np.zeros(messages, np.int32))


@pytest.mark.parametrize("keeps_rows", [False, True])
def test_every_state_counts_as_what_it_is(tmp_path: Path, keeps_rows: bool) -> None:  # noqa: FBT001
    look = JournalProgress(tmp_path)
    assert look.look() == Progress()
    with Journal(tmp_path, "0", keeps_rows=keeps_rows) as journal:
        section = begun(journal, 1, 9)
        for row, value in enumerate(
            [
                word(MessageState.COMMITTED),
                word(MessageState.COMMITTED, 2),
                word(MessageState.CARRIED),
                word(MessageState.ENDED, 3),
                word(MessageState.HALTED, 1),
                word(MessageState.IN_FLIGHT),
                word(MessageState.HELD),
                word(MessageState.CRASHED, 1, 1),
                word(MessageState.UNTOUCHED),
            ]
        ):
            section.words[row] = value
        assert look.look() == Progress(settled=3, ended=2, rollbacks=7)
        assert look.look().done == 5


def test_sections_that_are_over_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    pread = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(descriptor, size, offset)

    look = JournalProgress(tmp_path)
    with Journal(tmp_path, "0") as journal:
        for number in range(3):
            section = begun(journal, 1 + 1000 * number, 1000)
            section.as_array()[:] = word(MessageState.COMMITTED)
        last = begun(journal, 3001, 1000)
        last.words[0] = word(MessageState.COMMITTED)
        assert look.look() == Progress(settled=3001)
        monkeypatch.setattr(os, "pread", counting)
        last.words[1] = word(MessageState.COMMITTED)
        assert look.look() == Progress(settled=3002)
    assert sum(read) < 5_000, "only the batch under way"


def test_an_unfinished_section_before_finished_ones_is_read_on(tmp_path: Path) -> None:
    look = JournalProgress(tmp_path)
    with Journal(tmp_path, "0") as journal:
        first, second = begun(journal, 1, 3), begun(journal, 4, 2)
        second.as_array()[:] = word(MessageState.COMMITTED)
        assert look.look() == Progress(settled=2)
        first.as_array()[:] = word(MessageState.ENDED, 1)
        assert look.look() == Progress(settled=2, ended=3, rollbacks=3)
        assert look.look() == Progress(settled=2, ended=3, rollbacks=3)


def test_tasks_add_up_and_of_a_task_started_again_the_newest_attempt_counts(tmp_path: Path) -> None:
    look = JournalProgress(tmp_path)
    with Journal(tmp_path, "0") as one, Journal(tmp_path, "1") as other:
        begun(one, 1, 2).as_array()[:] = word(MessageState.COMMITTED)
        begun(other, 3, 3).as_array()[:] = word(MessageState.COMMITTED)
        assert look.look().settled == 5
    with Journal(tmp_path, "1") as again:
        begun(again, 3, 3).as_array()[:] = word(MessageState.CARRIED)
        assert look.look().settled == 5


def test_messages_delivered_alone_are_counted_with_the_others(tmp_path: Path) -> None:
    with Journal(tmp_path, "alone") as alone, Journal(tmp_path, "0") as rest:
        begun(alone, 1, 1).as_array()[:] = word(MessageState.COMMITTED)
        begun(rest, 1, 2).as_array()[:] = [word(MessageState.CARRIED), word(MessageState.UNTOUCHED)]
        assert JournalProgress(tmp_path).look() == Progress(settled=1)


@pytest.mark.parametrize("content", [b"", b"x", b"\x00" * 64, b"\xff" * 65_536])
def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0-1-a.journal").write_bytes(content)
    assert JournalProgress(tmp_path).look() == Progress()


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert JournalProgress(tmp_path / "gone").look() == Progress()
