"""Dirt that handlers leave: what they raise cannot be named, printed or pickled; what they do to their process outlives their call.

Every message ends, those beside it are delivered, and no pass stops.
"""

from __future__ import annotations

import locale
import os
import sys
import time
import unicodedata
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery import verdicts
from airflow_poison.delivery.journal import MessageState, attempts_of, crashes_of, state_of
from airflow_poison.outputs.output import outputs_of
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.rules.settings import LONGEST
from airflow_poison.values.failures import FailureKind
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, told
from tests.sessions.conftest import policy
from tests.sessions.dirty_handlers import ERRORS, recurse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.delivery.session import ServerSession
    from tests.sessions.conftest import Opener

HANDLER = "tests.sessions.dirty_handlers:script"


def opened(session: Opener, isolation: str, kind: str = "batches", seconds: float = 20) -> ServerSession:
    """A session that is handed whole batches, or one that is called for each message."""
    timeout = timedelta(seconds=seconds)
    if kind == "calls":
        return session(HANDLER, isolation, policy=ServiceBroker(transaction_timeout=timeout))
    return session(HANDLER, isolation, policy=policy(transaction_timeout=timeout))


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_is_raised_is_a_rollback_of_its_message_alone(session: Opener, isolation: str, name: str) -> None:
    report = opened(session, isolation).deliver(batch_of(["ok", f"raise {name}", "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 0), COMMITTED]
    failure = report.failures[1]
    assert failure.kind is FailureKind.EXCEPTION
    assert 0 < len(failure.type) <= 500
    for text, most in ((failure.type, 500), (failure.text, 4_096), (failure.trace, 8_192)):
        assert type(text) is str
        assert len(text) <= most
        text.encode()


def test_no_text_of_a_failure_has_what_a_terminal_obeys(session: Opener, isolation: str) -> None:
    names = ["odd-text", "odd-cause", "name-with-a-line-break"]
    report = opened(session, isolation).deliver(batch_of([f"raise {name}" for name in names]))

    for failure in report.failures.values():
        for text in (failure.type, failure.text, failure.trace):
            assert not [letter for letter in text if unicodedata.category(letter) == "Cc" and letter not in "\n\t"]
    odd, cause, named = (report.failures[row] for row in range(len(names)))
    assert odd.text == "\\x00\\x1b[31m\u202e\U0001f4a9?\n\\x7f"
    assert "ValueError: \\x1b]0;owned\\x07\\x9b2J\n" in cause.trace
    assert named.type == "tests.sessions.dirty_handlers. Broken\\x00Error"


@pytest.mark.parametrize("isolated", ["process"])
@pytest.mark.parametrize("kind", ["batches", "calls"])
def test_what_a_crash_printed_has_nothing_that_a_terminal_obeys(session: Opener, isolated: str, kind: str) -> None:
    report = opened(session, isolated, kind).deliver(batch_of(["ok", "print-and-exit", "ok"]))

    assert report.failures[1].type == "exit code 3"
    assert report.failures[1].trace == "\\x1b[2Jcleared\\x0d\\x08\n\ttab é\n"


@pytest.mark.parametrize("cut", [verdicts.cut, verdicts.cut_front])
@pytest.mark.parametrize("letter", ["x", "\x1b", "\r\n", "ü", "\ud800"])
@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 102, 1_000])
def test_a_text_is_cut_to_its_limit_whatever_its_letters_become(cut: Callable[[str, int], str], letter: str, size: int) -> None:
    shown = {"\x1b": "\\x1b", "\r\n": "\n", "\ud800": "?"}.get(letter, letter)
    found = cut(letter * size, 100)

    assert len(found) <= 100
    assert ("…" in found) == (size * len(shown) > 100)
    assert cut(found, 100) == found, "a text that is read and stored again stays as it is"
    if "…" not in found:
        assert found == shown * size


def test_a_stack_of_a_hundred_thousand_frames_is_cut(session: Opener, isolation: str) -> None:
    report = opened(session, isolation, seconds=60).deliver(batch_of(["deep", "ok"]))

    assert told(report.words) == [(MessageState.ENDED, 3, 0), COMMITTED]
    assert report.failures[0].text == "at the bottom"
    assert len(report.failures[0].trace) <= 8_192


@pytest.mark.parametrize(
    ("word", "delay"),
    [("postpone-huge", LONGEST), ("postpone-negative", timedelta(0)), ("postpone-text", timedelta(0)), ("postpone-raising", timedelta(0))],
)
def test_a_delay_that_no_clock_can_tell_is_cut(session: Opener, isolation: str, word: str, delay: timedelta) -> None:
    report = opened(session, isolation).deliver(batch_of([word, "ok"]))

    assert told(report.words) == [(MessageState.ENDED, 0, 0), COMMITTED]
    assert (report.failures[0].kind, report.failures[0].delay) == (FailureKind.POSTPONED, delay)


HARMLESS = ["chdir", "close-standard", "no-stdout", "odd-stdout", "closed-stdout", "locale", "timezone", "umask", "threads", "fork", "forged-output"]


@pytest.mark.parametrize("kind", ["batches", "calls"])
@pytest.mark.parametrize("word", HARMLESS)
def test_what_a_handler_does_to_its_process_hurts_no_message(session: Opener, kind: str, word: str) -> None:
    child = opened(session, "process", kind)

    first, second = child.deliver(batch_of(["ok", word, "ok"])), child.deliver(batch_of(["ok"], first_id=3))

    assert told(first.words) + told(second.words) == [COMMITTED] * 4


@pytest.mark.parametrize("word", ["chdir", "no-stdout", "odd-stdout", "locale", "timezone"])
def test_what_a_handler_does_to_the_worker_itself_hurts_no_message(session: Opener, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir("/tmp")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setenv("TZ", os.environ.get("TZ", "UTC"))
    monkeypatch.setenv("LC_ALL", os.environ.get("LC_ALL", "C.UTF-8"))

    before = locale.setlocale(locale.LC_ALL)
    report = opened(session, "none").deliver(batch_of(["ok", word, "ok"]))

    locale.setlocale(locale.LC_ALL, before)
    monkeypatch.undo()
    time.tzset()
    assert told(report.words) == [COMMITTED] * 3


@pytest.mark.parametrize("word", ["files", "memory", "recursion-limit"])
def test_a_process_whose_limits_are_spoiled_still_tells_what_failed(session: Opener, word: str) -> None:
    report = opened(session, "process").deliver(batch_of(["ok", word, "raise odd-text", "ok"]))

    assert told(report.words) == [COMMITTED, COMMITTED, (MessageState.ENDED, 3, 0), COMMITTED]
    assert report.failures[2].type == "ValueError"


def test_a_process_that_has_closed_every_descriptor_loses_nothing_that_it_did(session: Opener) -> None:
    """It can answer nobody any more; the words are in memory that it shares with its parent."""
    report = opened(session, "process").deliver(batch_of(["ok", "close-all", "ok"]))

    assert told(report.words) == [COMMITTED] * 3
    assert report.restarts == 1


@pytest.mark.parametrize("breaks", ["file-size", "take-log"])
def test_a_process_that_can_record_nothing_more_is_started_anew_and_no_other_message_is_charged(session: Opener, breaks: str) -> None:
    """The next message that fails had its deliveries; only their text is lost, and the error says so. A later one has its own text."""
    report = opened(session, "process").deliver(batch_of(["ok", breaks, "raise odd-text", "ok", "raise memory", "ok"]))

    ended = (MessageState.ENDED, 3, 0)
    assert told(report.words) == [COMMITTED, COMMITTED, ended, COMMITTED, ended, COMMITTED]
    assert [report.failures[row].type for row in (2, 4)] == ["unknown", "MemoryError"]
    assert "before the error of the last delivery was recorded" in report.failures[2].text


def test_rows_that_cannot_be_recorded_charge_the_message_that_has_broken_its_process(session: Opener, tmp_path: Path) -> None:
    """No file of the process can grow; where there is room for the rows of others, they are recorded."""
    settings: Any = {
        "policy": policy(transaction_timeout=timedelta(seconds=20)),
        "outputs": outputs_of(str(tmp_path / "out"), schema="n long, text string"),
    }
    opened = session("tests.sessions.dirty_handlers:row_of", **settings)
    report = opened.deliver(batch_of(["file-size", "ok", "file-size", "ok"]))

    assert told(report.words) == [(MessageState.ENDED, 3, 3), COMMITTED, COMMITTED, COMMITTED]
    assert "A handler has limited or closed the files of its process" in report.failures[0].trace
    assert len(report.returned) == 3

    report = opened.deliver(batch_of(["ok", "large", "ok"], 4))
    assert told(report.words) == [COMMITTED, COMMITTED, COMMITTED]
    assert (len(report.returned), report.restarts) == (3, 1)


@pytest.mark.parametrize("kind", ["batches", "calls"])
@pytest.mark.parametrize(("word", "how"), [("real-time-signal", "signal 40"), ("abort", "signal SIGABRT"), ("alarm", "signal SIGALRM")])
def test_a_signal_of_any_number_is_a_crash_of_its_message(session: Opener, kind: str, word: str, how: str) -> None:
    report = opened(session, "process", kind).deliver(batch_of(["ok", word]))

    assert state_of(int(report.words[0])) is MessageState.COMMITTED
    assert crashes_of(int(report.words[1])) == attempts_of(int(report.words[1])) > 0
    assert (report.failures[1].kind, report.failures[1].type) == (FailureKind.CRASH, how)


def test_stacks_of_different_depths_that_end_alike_are_remembered_once() -> None:
    """What is remembered of a stack is its end: a hundred thousand frames of a thousand messages would fill the memory."""
    verdicts._stacks.clear()

    for depth in range(1_000, 1_100):
        with pytest.raises(ValueError, match="at the bottom") as raised:
            _deeper(depth)
        verdicts.failure_of(raised.value)

    assert len(verdicts._stacks) == 1
    (codes,) = [codes for _, codes in verdicts._stacks.values()]
    assert len(codes) == 25


def _deeper(depth: int) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5_000)
    try:
        recurse(depth)
    finally:
        sys.setrecursionlimit(before)
