"""Real deaths of real processes: the message in flight is charged, its neighbours never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_poison.delivery import wire, zygote
from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.wire import Task
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import FailureKind
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, told
from tests.sessions.conftest import policy
from tests.sessions.zygotes import living_sessions, zygotes

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.sessions.conftest import Opener

QUICK = timedelta(milliseconds=300)


@pytest.mark.parametrize(("body", "how"), [("exit", "exit code 3"), ("kill", "signal SIGKILL"), ("segfault", "signal SIGSEGV")])
def test_a_death_costs_its_message_one_crash_each_time(session: Opener, body: str, how: str) -> None:
    report = session().deliver(batch_of(["ok", body, "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 3), COMMITTED]
    assert (report.failures[1].kind, report.failures[1].type) == (FailureKind.CRASH, how)
    assert (report.restarts, report.crashes, report.timeouts) == (3, 3, 0)


def test_a_segfault_leaves_its_traceback(session: Opener) -> None:
    report = session(policy=policy(receive_retry_count=0)).deliver(batch_of(["segfault"]))

    assert "Segmentation fault" in report.failures[0].trace
    assert "in string_at" in report.failures[0].trace


def test_a_hang_ends_with_the_transaction_timeout(session: Opener) -> None:
    report = session(policy=policy(transaction_timeout=QUICK)).deliver(batch_of(["ok", "hang", "ok"]))

    assert told(report.words) == [COMMITTED, (MessageState.ENDED, 3, 3), COMMITTED]
    assert report.failures[1].kind is FailureKind.TIMEOUT
    assert (report.crashes, report.timeouts) == (0, 3)


def test_a_message_that_crashes_once_commits_with_its_crash(session: Opener) -> None:
    assert told(session().deliver(batch_of(["crash-until 1"])).words) == [(MessageState.COMMITTED, 1, 1)]


def test_among_ten_thousand_exactly_the_culprits_are_charged(session: Opener) -> None:
    bodies: list[bytes | str | None] = ["ok"] * 10_000
    culprits = {17: "exit", 18: "kill", 4_000: "segfault", 5_555: "hang", 9_998: "raise", 9_999: "exit"}
    for row, body in culprits.items():
        bodies[row] = body

    report = session(policy=policy(transaction_timeout=QUICK, receive_retry_count=1)).deliver(batch_of(bodies))

    charged = {row: word for row, word in enumerate(told(report.words)) if word != COMMITTED}
    assert charged == {row: (MessageState.ENDED, 2, 0 if body == "raise" else 2) for row, body in culprits.items()}
    assert set(report.failures) == set(culprits)


def test_a_session_goes_on_with_a_new_child_in_the_next_batch(session: Opener) -> None:
    opened = session()
    opened.deliver(batch_of(["ok"]))
    _kill_children()

    report = opened.deliver(batch_of(["ok"] * 3, first_id=1))

    assert told(report.words) == [COMMITTED] * 3
    assert (report.crashes, report.restarts) == (0, 1)


def test_the_loss_of_the_zygote_is_overcome(session: Opener) -> None:
    opened = session()
    opened.deliver(batch_of(["ok"]))
    ended = [each for zygote_ in zygotes() for each in (*zygote_.children(recursive=True), zygote_)]
    for zygote_ in zygotes():
        zygote_.kill()
    psutil.wait_procs(ended, 10)  # its children end with it: one that dies later would do so with a message in its handler

    assert told(opened.deliver(batch_of(["ok"] * 3, first_id=1)).words) == [COMMITTED] * 3


def test_a_child_that_dies_before_any_message_is_not_restarted_for_ever(session: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = session()
    opened.deliver(batch_of(["ok"]))
    send = wire.send

    def send_to_the_dead(sock: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
        if isinstance(message, Task):
            _kill_children()
            raise wire.PeerGoneError
        send(sock, message, descriptors)

    monkeypatch.setattr(wire, "send", send_to_the_dead)

    with pytest.raises(ServerSessionError, match="3 times in a row"):
        opened.deliver(batch_of(["hang"]))


@pytest.mark.parametrize("body", ["fork-return", "fork-exit", "fork-stay", "subprocess"])
def test_what_a_handler_forks_neither_counts_nor_delivers_nor_stays(session: Opener, body: str) -> None:
    began = time.monotonic()
    opened = session()

    report = opened.deliver(batch_of(["ok", body, "ok", "ok"]))
    opened.close()

    assert told(report.words) == [COMMITTED] * 4
    assert time.monotonic() - began < 20
    assert not [child for child in psutil.Process().children(recursive=True) if child.ppid() != os.getpid() and child.status() != "zombie"]


def test_the_end_of_the_worker_ends_the_zygote(session: Opener) -> None:
    session().deliver(batch_of(["ok"]))
    ours = zygotes()
    assert len(ours) == 1

    zygote.end_zygote()

    assert not [one for one in ours if one.is_running()]


def _kill_children() -> None:
    """Kill the children of the zygote, not the zygote."""
    for child in living_sessions():
        child.kill()


def test_a_fork_that_returns_from_the_handler_delivers_nothing(session: Opener, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    session().deliver(batch_of(["fork-return", *[f"count {calls}"] * 200]))

    assert len(calls.read_text().splitlines()) == 200


_INLINE = """
import sys
from pathlib import Path
from tests.given.messages import batch_of
from tests.sessions.conftest import opened_session, policy

folder = Path(sys.argv[1])
session = opened_session("tests.sessions.sample_handlers:script", journal_folder=folder, policy=policy(), isolation="none")
report = session.deliver(batch_of(["fork-return", *[f"count {folder / 'calls'}"] * 2000]))
with (folder / "ends").open("a") as file:
    print(len(report.words), file=file)
"""


def test_a_fork_that_returns_from_a_handler_in_the_worker_itself_is_no_second_worker(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _INLINE, str(tmp_path)], check=True, timeout=60)
    time.sleep(0.5)
    assert len((tmp_path / "calls").read_text().splitlines()) == 2_000
    assert (tmp_path / "ends").read_text() == "2001\n"
