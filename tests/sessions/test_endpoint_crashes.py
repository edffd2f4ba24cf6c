"""One session of several dies, hangs or floods: only its message is charged, and the deliveries of the others go on."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_poison.delivery import wire, zygote
from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.values.errors import HandlerNotFoundError, ServerSessionError
from airflow_poison.values.failures import FailureKind
from tests.given.endpoints import deliveries, saying, specification, written
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.zygotes import living_sessions, zygotes

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.sessions.conftest import Opener

RECORDED = "tests.sessions.endpoint_handlers:recorded"
SCRIPT = "tests.sessions.sample_handlers:script"
QUICK = timedelta(milliseconds=500)


def kill_and_wait(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        _gone(process)


def _gone(process: psutil.Process) -> None:
    overdue = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < overdue
        time.sleep(0.01)


@pytest.mark.parametrize(("word", "how"), [("exit", "exit code 3"), ("kill", "signal SIGKILL"), ("segfault", "signal SIGSEGV")])
def test_a_death_in_one_session_charges_its_message_alone(session: Opener, tmp_path: Path, word: str, how: str) -> None:
    """The neighbours are still with their handlers when it happens: each waits for two others."""
    bodies = saying(tmp_path, "meet 2", word, "meet 2")

    report = session(RECORDED, policy=specification(3)).deliver(batch_of(bodies))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 3), COMMITTED]
    assert deliveries(tmp_path) == Counter({0: 1, 1: 3, 2: 1})
    assert (report.failures[1].kind, report.failures[1].type) == (FailureKind.CRASH, how)
    assert (report.crashes, report.timeouts) == (3, 0)


def test_a_hang_is_ended_after_the_transaction_timeout_and_its_neighbours_are_not(session: Opener, tmp_path: Path) -> None:
    policy = specification(3, backout_threshold=2, transaction_timeout=QUICK)

    report = session(RECORDED, policy=policy).deliver(batch_of(saying(tmp_path, "ok", "hang", *["ok"] * 7)))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 2, 2), *[COMMITTED] * 7]
    assert deliveries(tmp_path) == Counter(range(9)) + Counter([1])
    assert report.failures[1].kind is FailureKind.TIMEOUT
    assert (report.crashes, report.timeouts) == (0, 2)


def test_two_hangs_at_the_same_time_last_one_timeout(session: Opener, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=specification(2, backout_threshold=1, transaction_timeout=timedelta(seconds=2)))
    opened.deliver(batch_of(saying(tmp_path, "meet 2", "meet 2")))
    began = time.monotonic()

    report = opened.deliver(batch_of(saying(tmp_path, "hang", "hang"), first_id=2))

    assert told(report.words) == [(MessageState.ENDED, 1, 1)] * 2
    assert time.monotonic() - began < 3.9


def test_megabytes_of_output_beside_a_session_that_is_waited_for(session: Opener, tmp_path: Path) -> None:
    """The first session returns when the second has printed eight megabytes: nobody may stop reading those while waiting for the first."""
    policy = specification(2, transaction_timeout=timedelta(seconds=20))

    report = session(RECORDED, policy=policy).deliver(batch_of(saying(tmp_path, "after-flood 1", "flood-beside")))

    assert told(report.words) == [COMMITTED] * 2
    assert deliveries(tmp_path) == Counter([0, 1])


@pytest.mark.parametrize("word", ["fork-return", "fork-exit", "fork-stay", "subprocess"])
def test_what_a_handler_forks_in_one_of_several_sessions_neither_answers_nor_stays(session: Opener, tmp_path: Path, word: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    opened = session(RECORDED, policy=specification(3))

    report = opened.deliver(batch_of(saying(tmp_path, "ok", word, *["ok"] * 30)))
    opened.close()

    assert told(report.words) == [COMMITTED] * 32
    assert deliveries(tmp_path) == Counter(range(32))
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if process.ppid() != os.getpid() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_session_that_was_killed_between_two_messages_charges_nobody(session: Opener) -> None:
    opened = session(SCRIPT, policy=specification(3))
    opened.deliver(batch_of(["ok"] * 6))
    kill_and_wait(living_sessions())

    report = opened.deliver(batch_of(["ok"] * 6, first_id=6))

    assert told(report.words) == [COMMITTED] * 6
    assert (report.crashes, report.failures) == (0, {})


def test_the_loss_of_the_zygote_between_two_messages_charges_nobody(session: Opener) -> None:
    opened = session(SCRIPT, policy=specification(3))
    opened.deliver(batch_of(["ok"] * 6))
    kill_and_wait(zygotes())

    assert told(opened.deliver(batch_of(["ok"] * 6, first_id=6)).words) == [COMMITTED] * 6


def test_a_session_that_was_stopped_and_then_killed_while_idle_charges_nobody(session: Opener) -> None:
    """A stopped process does not read what it is sent: the message is on its way, but with no handler."""
    opened = session(SCRIPT, policy=specification(1, backout_threshold=1, transaction_timeout=QUICK))
    opened.deliver(batch_of(["ok"]))
    (idle,) = living_sessions()
    idle.suspend()

    report = opened.deliver(batch_of(["ok"], first_id=1))

    assert told(report.words) == [COMMITTED]
    assert (report.crashes, report.timeouts) == (0, 0)


def test_sessions_that_cannot_be_started_charge_nobody(session: Opener, journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = session(SCRIPT, policy=specification(2))

    def refuse(*_: int) -> zygote.ChildProcess:
        raise ServerSessionError("no process can be forked")

    monkeypatch.setattr(zygote, "start_child", refuse)
    with pytest.raises(ServerSessionError, match="forked"):
        opened.deliver(batch_of(["ok"] * 3))
    opened.close()

    assert told(read_journals([journals]).words) == [UNTOUCHED] * 3


def test_a_handler_that_is_not_found_where_it_runs_charges_nobody(
    session: Opener, journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "vanishing.py"
    module.write_text("def handle(message):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    opened = session("vanishing:handle", policy=specification(2))
    module.unlink()

    with pytest.raises(HandlerNotFoundError, match="vanishing"):
        opened.deliver(batch_of(["ok"] * 3))
    opened.close()

    assert told(read_journals([journals]).words) == [UNTOUCHED] * 3


def test_a_child_that_cannot_be_kept_running_is_not_restarted_for_ever(session: Opener, journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = session(SCRIPT, policy=specification(1))
    opened.deliver(batch_of(["ok"]))
    start = zygote.start_child

    def start_dying(*descriptors: int) -> zygote.ChildProcess:
        child = start(*descriptors)
        os.kill(child.pid, signal.SIGKILL)
        return child

    kill_and_wait(living_sessions())
    monkeypatch.setattr(zygote, "start_child", start_dying)
    with pytest.raises(ServerSessionError, match="nothing was delivered by it"):
        opened.deliver(batch_of(["ok"], first_id=1))
    opened.close()

    assert told(read_journals([journals]).words) == [COMMITTED, UNTOUCHED]


def test_a_child_that_dies_whenever_it_is_handed_a_message_charges_nobody(session: Opener, journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = session(SCRIPT, policy=specification(2))
    opened.deliver(batch_of(["ok"]))

    def send_to_the_dead(sock: socket.socket, *numbers: int) -> None:
        kill_and_wait(living_sessions())
        raise wire.PeerGoneError

    monkeypatch.setattr(wire, "send_numbers", send_to_the_dead)
    with pytest.raises(ServerSessionError, match="before it had taken a message"):
        opened.deliver(batch_of(["ok"] * 2, first_id=1))
    opened.close()

    assert told(read_journals([journals]).words) == [COMMITTED, UNTOUCHED, UNTOUCHED]


def test_a_child_that_dies_with_a_message_on_its_way_charges_nobody(session: Opener, journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is in its socket when it dies: no handler was called with it."""
    opened = session(SCRIPT, policy=specification(1))
    opened.deliver(batch_of(["ok"]))
    send = wire.send_numbers

    def send_to_the_dying(sock: socket.socket, *numbers: int) -> None:
        for child in living_sessions():
            child.suspend()
        send(sock, *numbers)
        for child in living_sessions():
            child.kill()

    monkeypatch.setattr(wire, "send_numbers", send_to_the_dying)
    with pytest.raises(ServerSessionError, match="before it had taken a message"):
        opened.deliver(batch_of(["ok"], first_id=1))
    opened.close()

    assert told(read_journals([journals]).words) == [COMMITTED, UNTOUCHED]


def test_a_start_that_takes_longer_than_the_timeout_is_not_held_against_a_neighbour(
    session: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the second session imports its handler for a second, the first prints more than a pipe holds."""
    module = tmp_path / "slow_to_import.py"
    module.write_text(
        "import os, pathlib, time\n"
        f"started = pathlib.Path({str(tmp_path / 'started')!r})\n"
        "if started.exists() and os.getppid() != int(started.read_text()):\n"
        "    time.sleep(1.5)\n"
        "from tests.sessions.sample_handlers import script\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    policy = specification(2, backout_threshold=1, transaction_timeout=timedelta(seconds=1))
    opened = session("slow_to_import:script", policy=policy)
    (tmp_path / "started").write_text(str(os.getpid()))

    report = opened.deliver(batch_of(["flood 1", "ok"]))

    assert told(report.words) == [COMMITTED] * 2


@pytest.mark.long
def test_a_death_that_takes_long_is_not_held_against_a_neighbour(session: Opener, tmp_path: Path) -> None:
    """The second handler closes every descriptor and lives on: its parent waits for its end, while the first prints more than a pipe holds."""
    policy = specification(2, backout_threshold=1, transaction_timeout=timedelta(seconds=2))

    report = session(RECORDED, policy=policy).deliver(batch_of(saying(tmp_path, "flood-after 1", "close-all")))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 1, 1)]


def test_a_segfault_of_a_neighbour_leaves_its_traceback_with_it(session: Opener, tmp_path: Path) -> None:
    report = session(RECORDED, policy=specification(2, backout_threshold=1)).deliver(batch_of(saying(tmp_path, "raise", "segfault")))

    assert "in string_at" in report.failures[1].trace
    assert "string_at" not in report.failures[0].trace
    assert written(tmp_path, "done") == []
