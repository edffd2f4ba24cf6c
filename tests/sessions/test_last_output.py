"""What a message printed last outlives every process of its task: with it dies whoever reads the pipe."""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery import platform, printed
from airflow_poison.delivery.printed import LastOutput, last_output
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.delivery.verdicts import MAX_TRACE
from airflow_poison.values.failures import Failure, FailureKind
from tests.given import forked
from tests.given.messages import batch_of
from tests.sessions import speaking_worker
from tests.sessions.conftest import policy
from tests.sessions.speaking_worker import LINES, THREADS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sessions.conftest import Opener

KILLED = Failure(FailureKind.CRASH, "killed", "Every process of the task ended while this message was with the handler.")
FIRST = 100
"""The first message's lookup id."""


@pytest.fixture(params=["batches", "calls"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whether the session is handed whole batches or called for each message."""
    return str(request.param)


def killed(journals: Path, kind: str, *words: str, isolation: str = "process") -> dict[int, Failure]:
    """Return the failures that the journals of a killed worker tell."""
    assert forked.run(speaking_worker.main, journals.parent, isolation, kind, words).code == -signal.SIGKILL
    return read_journals([journals], timedelta(seconds=30)).failures


SPOKEN = {
    "line": "a line\n",
    "half": "half a li",
    "stdout": "printed\n",
    "log": "shop: logged\n",
    "fork": "the handler\n",
    "closed": "shop: still logged\n",
    "none": "shop: still logged\n",
    "odd": "shop: still logged\n",
    "no-files": "no file may grow\n",
    "control": "\\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\x7f\n\ttab \\ é\\x00",
}


@pytest.mark.parametrize(
    ("kind", "speech"), [*(("batches", speech) for speech in SPOKEN), *(("calls", speech) for speech in ("half", "log", "fork", "none"))]
)
def test_what_the_culprit_printed_is_its_trace_when_everything_is_killed(journals: Path, kind: str, speech: str) -> None:
    failures = killed(journals, kind, "stdout", f"{speech}+die", "line")

    assert failures == {FIRST + 1: replace(KILLED, trace=SPOKEN[speech])}


ENDINGS = {
    "warning": "UserWarning: warned\n",
    "umlauts": "ü" * 1_000,
    "long": "99998\n99999\n",
    "pieces": "9998\n9999\n",
    "flood": "xxx\nthe end\n",
    "threads": ">\nthe threads have ended\n",
    "fork-in-thread": "\nthe handler\n",
    "signal": "\nthe end\n",
    "recursion": "back again\n",
}


@pytest.mark.parametrize("speech", ENDINGS)
def test_of_whatever_it_printed_the_end_is_kept(journals: Path, speech: str) -> None:
    (failure,) = killed(journals, "batches", f"{speech}+die").values()

    assert ENDINGS[speech] in failure.trace[-2_000:]
    assert len(failure.trace) <= MAX_TRACE
    assert "\ufffd" not in failure.trace, "a cut tears no character"


def test_lines_that_threads_print_at_the_same_time_are_all_there_and_whole(journals: Path) -> None:
    (failure,) = killed(journals, "batches", "threads+die").values()

    beginning, *lines, last, after = failure.trace.split("\n")
    assert beginning.startswith("…")
    assert (last, after) == ("the threads have ended", "")
    assert all(re.fullmatch(r"<\d \d{3}>", line) for line in lines if line), lines
    assert len(set(lines)) > MAX_TRACE // len("<0 000>\n") - THREADS
    assert len(set(lines)) < THREADS * LINES


def test_who_printed_nothing_has_not_what_its_neighbours_printed(journals: Path, kind: str) -> None:
    (failure,) = killed(journals, kind, "line", "stdout", "nothing+die", "line").values()

    assert failure == KILLED


def test_a_delivery_that_printed_nothing_has_not_what_an_earlier_one_printed(journals: Path, kind: str) -> None:
    (failure,) = killed(journals, kind, "line+raise-then-die").values()

    assert failure == KILLED


def test_who_dies_alone_has_not_what_its_neighbours_printed(session: Opener) -> None:
    """Here the parent lives, and reads the pipe."""
    opened = session("tests.sessions.speaking_worker:die_alone", policy=policy(receive_retry_count=0))

    report = opened.deliver(batch_of(["line", "stdout", "nothing exit", "stdout", "line exit"]))

    assert {row: failure.trace for row, failure in report.failures.items()} == {2: "", 4: "a line\n"}


def test_a_fork_that_prints_on_disturbs_no_later_message(journals: Path, kind: str) -> None:
    (failure,) = killed(journals, kind, "fork", "stdout", "line+die").values()

    assert failure.trace == "a line\n"


# The file ------------------------------------------------------------------------------------------------------------


def spoken(journal: Path, *texts: bytes) -> Path:
    """Write what a message with the lookup id 7 prints."""
    descriptor = printed.create(printed.path_beside(journal))
    writer = LastOutput(descriptor, [0])
    os.close(descriptor)
    writer.begin_batch(batch_of(["body"], first_id=7))
    for text in texts:
        writer.add(text)
    return journal


@pytest.mark.parametrize("piece", [1, 7, 100, 4_096, 5_000, 12_264, 12_265, 16_360, 16_361, 40_000])
def test_the_end_is_told_whatever_the_size_of_the_pieces(tmp_path: Path, piece: int) -> None:
    whole = "".join(f"{number:x}ü€💩\n" for number in range(10_000)).encode()
    journal = spoken(tmp_path / "0.journal", *(whole[start : start + piece] for start in range(0, len(whole), piece)))

    told = last_output(journal, 7)

    assert told.startswith("…")
    assert whole.decode().endswith(told[1:])
    assert len(told) > 4_000


@pytest.mark.parametrize("printed", [0, 1, 8_192, 12_264])
def test_what_is_short_is_told_whole(tmp_path: Path, printed: int) -> None:
    journal = spoken(tmp_path / "0.journal", b"\n" * printed)

    assert last_output(journal, 7) == "\n" * printed if printed <= MAX_TRACE else "…" + "\n" * (MAX_TRACE - 1)


def test_a_piece_that_a_kill_has_cut_off_is_not_told(tmp_path: Path) -> None:
    """Killed while a piece was being copied over the oldest bytes: what is told is as it was before."""
    lines = [f"{number:03}{'💩' * 5}\n".encode() for number in range(700)]
    journal = spoken(tmp_path / "0.journal", *lines)
    before = last_output(journal, 7)
    (path,) = tmp_path.iterdir()
    with path.open("r+b") as file:
        file.seek(24 + len(b"".join(lines)) % (printed.SIZE - 24))
        file.write(b"?" * 4_096)

    assert last_output(journal, 7) == before
    assert before.endswith(f"699{'💩' * 5}\n")


@pytest.mark.parametrize("shift", range(4))
def test_no_cut_tears_a_character(tmp_path: Path, shift: int) -> None:
    told = last_output(spoken(tmp_path / "0.journal", "💩".encode() * 10_000, b"x" * shift), 7)

    assert set(told) == {"…", "💩", *"x" * shift}


def test_of_several_sessions_the_one_that_had_the_message_last_is_believed(tmp_path: Path) -> None:
    journal = tmp_path / "0.journal"
    spoken(spoken(journal, b"first"), b"second")

    assert last_output(journal, 7) == "second"
    assert last_output(journal, 8) == ""
    assert last_output(tmp_path / "1.journal", 7) == ""


def test_damage_costs_the_trace_and_nothing_else(tmp_path: Path) -> None:
    journal = tmp_path / "0.journal"
    (tmp_path / "0.a.output").mkdir()
    (tmp_path / "0.b.output").write_bytes(b"short")
    (tmp_path / "0.c.output").write_bytes(os.urandom(printed.SIZE))
    assert last_output(journal, 7) == ""
    assert last_output(tmp_path / "gone" / "0.journal", 7) == ""

    assert last_output(spoken(journal, b"whole"), 7) == "whole"


def test_on_a_full_disk_it_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(platform, "reserve", full)

    assert last_output(spoken(tmp_path / "0.journal", b"text"), 7) == ""
    assert list(tmp_path.iterdir()) == []


def test_in_a_folder_that_has_gone_it_is_kept_in_memory(tmp_path: Path) -> None:
    assert last_output(spoken(tmp_path / "gone" / "0.journal", b"text"), 7) == ""


def test_all_its_blocks_are_allocated(tmp_path: Path) -> None:
    """A store into a hole of a file ends the process when the disk is full."""
    os.close(printed.create(tmp_path / "0.output"))

    found = (tmp_path / "0.output").stat()
    assert found.st_blocks * 512 >= found.st_size == printed.SIZE
