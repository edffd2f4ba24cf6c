"""The journal's file and log: what a reader sees whatever the writer had reached."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from airflow_poison.delivery import platform
from airflow_poison.delivery.failurelog import FailureLog, FailureReader, Rollback
from airflow_poison.delivery.journal import Journal, MessageState, word
from airflow_poison.delivery.recovered import RecoveredAttempts, read_journals
from airflow_poison.values.errors import ClaimLostError, ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind


def ids(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def words(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


def descriptors() -> int:
    """Return how many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_sections_are_read_back_and_the_file_grows_in_steps(tmp_path: Path) -> None:
    with Journal(tmp_path, "0") as journal:
        first = journal.append(ids(1, 2, 3), words(0, 0, 0))
        first.words[1] = word(MessageState.COMMITTED, 1)
        journal.append(np.arange(10, 6_010, dtype=np.int64), np.zeros(6_000, np.int32))
        assert journal.path.stat().st_size == 128 * 1024

    recovered = read_journals([tmp_path])

    assert len(recovered.lookup_ids) == 6_003
    assert recovered.words_for(ids(2, 99)).tolist() == [word(MessageState.CARRIED, 1), 0]


def test_more_settled_and_then_more_attempts_win_when_journals_meet(tmp_path: Path) -> None:
    for values in (
        [word(MessageState.COMMITTED), word(MessageState.ENDED, 1), word(MessageState.UNTOUCHED, 1)],
        [word(MessageState.ENDED, 6), word(MessageState.CRASHED, 9, 1), word(MessageState.IN_FLIGHT, 1)],
    ):
        with Journal(tmp_path, "0") as journal:
            journal.append(ids(30, 10, 20), words(*values))

    recovered = read_journals([tmp_path])

    assert recovered.lookup_ids.tolist() == [10, 20, 30]
    assert recovered.words.tolist() == [word(MessageState.ENDED, 1), word(MessageState.CRASHED, 2, 1), word(MessageState.COMMITTED)]


@pytest.mark.parametrize("rows", [1, 5_000, 20_000])
def test_what_others_are_told_piece_by_piece_is_the_journal(tmp_path: Path, rows: int) -> None:
    """The section that is open is among it before anybody works on it; what became of the earlier ones, too."""
    told = dict[str, bytearray]()

    def share(name: str, offset: int, content: bytes) -> None:
        file = told.setdefault(name, bytearray())
        file.extend(bytes(max(0, offset + len(content) - len(file))))
        file[offset : offset + len(content)] = content

    (tmp_path / "there").mkdir()
    (tmp_path / "lost").mkdir()
    with Journal(tmp_path / "lost", "0", share=share) as journal:
        first = journal.append(np.arange(rows, dtype=np.int64), np.zeros(rows, np.int32))
        first.as_array()[:] = word(MessageState.ENDED, 1)
        FailureLog(journal.log_descriptor).append(Rollback(0, 0, 0, 0, Failure(FailureKind.EXCEPTION, "ValueError", "no")))
        journal.append(ids(rows, rows + 1), words(0, 0))
        assert len(told[journal.path.name]) % (64 * 1024) == 0
        for name, content in told.items():
            (tmp_path / "there" / name).write_bytes(content)

    recovered = read_journals([tmp_path / "there"])

    assert recovered.lookup_ids.tolist() == [*range(rows + 2)]
    assert recovered.words_for(ids(0, rows)).tolist() == [word(MessageState.ENDED, 1), 0]
    assert recovered.failures[0].text == "no"


def test_no_journal_is_an_empty_carry_that_can_be_saved(tmp_path: Path) -> None:
    read_journals([]).save(tmp_path / "carry")

    assert RecoveredAttempts.load(tmp_path / "carry").words_for(ids(1)).tolist() == [0]


def test_a_journal_cannot_begin_in_a_folder_that_was_taken_away(tmp_path: Path) -> None:
    with pytest.raises(ClaimLostError, match="given up"):
        Journal(tmp_path / "gone", "0")


@pytest.mark.parametrize("fails", ["the file", "its lock", "its name", "the names on disk"])
def test_a_journal_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    real = os.open
    match fails:
        case "the file":
            monkeypatch.setattr(os, "open", lambda path, *given: broken() if str(path).endswith(".new") else real(path, *given))
        case "its lock":
            monkeypatch.setattr(fcntl, "flock", broken)
        case "its name":
            monkeypatch.setattr(type(tmp_path), "rename", broken)
        case _:
            monkeypatch.setattr(platform, "force_names", broken)
    before = descriptors()

    with pytest.raises(ServerSessionError, match="cannot be made"):
        Journal(tmp_path, "0", forced=True)

    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_a_journal_that_cannot_be_forced_is_closed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = descriptors()
    journal = Journal(tmp_path, "0", forced=True)
    monkeypatch.setattr(platform, "force", broken)
    with pytest.raises(ServerSessionError, match="cannot be forced"):
        journal.close()
    assert descriptors() == before


def test_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(platform, "reserve", full)

    with Journal(tmp_path, "0") as journal, pytest.raises(ServerSessionError, match=r"cannot grow: the disk is full\. .* free some space"):
        journal.append(ids(1), words(0))


def test_torn_lines_are_skipped_and_equal_traces_written_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    log = FailureLog(descriptor)
    for row in range(3):
        log.append(Rollback(0, row, row + 40, 0, Failure(FailureKind.EXCEPTION, "ValueError", f"bad {row}", "deep\n" * 500)))
        os.write(descriptor, b'\n{"at":[0,')

    found = list(FailureReader(descriptor).news())
    os.close(descriptor)

    assert [(entry.lookup_id, entry.failure.text, len(entry.failure.trace)) for entry in found] == [
        (40, "bad 0", 2_500),
        (41, "bad 1", 2_500),
        (42, "bad 2", 2_500),
    ]
    assert path.stat().st_size < 5_000


def test_equal_failures_are_written_whole_once_by_each_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    failure = Failure(FailureKind.EXCEPTION, "ValueError", "this order can never be processed", "deep\n" * 50)
    given = [Rollback(0, row, row + 40, 5, failure) for row in range(100)]
    logs = [FailureLog(descriptor), FailureLog(descriptor)]
    for rollback in given:
        logs[rollback.row % 2].append(rollback)

    found = list(FailureReader(descriptor).news())
    os.close(descriptor)

    assert found == given
    assert path.read_text().count("can never be processed") == len(logs)


def test_many_failures_at_once_are_the_lines_of_each_and_few_calls_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = tmp_path / "log", list[int]()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    written = platform.write_all

    def counting(where: int, content: bytes) -> None:
        calls.append(len(content))
        written(where, content)

    monkeypatch.setattr(platform, "write_all", counting)
    kinds = FailureKind.EXCEPTION, FailureKind.CRASH
    failures = [Failure(kinds[number == 3], "ValueError", f"bad {number}", "deep\n" * number) for number in range(4)]
    given = [Rollback(2, row, row + 40, row % 7, failures[0 if row % 1_000 else row // 1_000 % 4]) for row in range(25_000)]
    log = FailureLog(descriptor)
    log.extend(given[:1])
    log.extend(given[1:])

    found = list(FailureReader(descriptor).news())
    os.close(descriptor)

    assert found == given
    assert len(calls) < 60, "those like earlier ones are written together"


def test_who_failed_like_a_message_whose_line_is_lost_is_known_to_have_failed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    log = FailureLog(descriptor)
    for row in range(2):
        log.append(Rollback(0, row, row + 40, 5, Failure(FailureKind.EXCEPTION, "ValueError", "bad")))
    path.write_bytes(path.read_bytes().replace(b'"kind":', b"\0" * 7, 1))

    reader = FailureReader(descriptor)
    (found,) = reader.news()
    os.close(descriptor)

    assert (found.lookup_id, found.failure.kind, found.failure.type) == (41, FailureKind.EXCEPTION, "unknown")
    assert reader.unreadable == 1
