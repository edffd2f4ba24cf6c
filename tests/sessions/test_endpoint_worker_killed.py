"""kill -9 of the worker with several messages in flight: nothing committed is repeated, and what was in flight has one attempt more."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.rules.default_messaging import DefaultMessaging
from tests.given import forked
from tests.given.endpoints import NEVER, deliveries, specification
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions import endpoint_worker
from tests.sessions.conftest import policy as msmq4

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy

CRASHED = (MessageState.CRASHED, 1, 1)


@dataclass(frozen=True)
class Worked:
    """How a worker ended and what it told last."""

    code: int
    said: dict[str, Any]

    @property
    def told(self) -> list[tuple[MessageState, int, int]]:
        return told(self.said["words"])


def work(folder: Path, policy: Policy, words: list[str], isolation: str = "process") -> Worked:
    done = forked.run(endpoint_worker.main, folder, isolation, policy, words)
    lines = done.printed.splitlines()
    return Worked(done.code, json.loads(lines[-1]) if lines else {})


def journaled(journals: Path) -> list[tuple[MessageState, int, int]]:
    return told(read_journals([journals], timedelta(seconds=20)).words)


@pytest.mark.parametrize("word", ["worker", "all"])
def test_of_several_messages_in_flight_nobody_is_charged(journals: Path, word: str) -> None:
    """Two rounds of three; the worker is killed in the second, when all three are with their handlers. They are delivered one by one then."""
    folder = journals.parent
    words = ["ok", "raise-once", "ok", "hang-once", f"{word} 6", "hang-once", "ok", "ok"]
    policy = specification(3)

    assert work(folder, policy, words).code == -signal.SIGKILL
    assert journaled(journals) == [COMMITTED, (MessageState.UNTOUCHED, 1, 0), COMMITTED, *[UNTOUCHED] * 5]
    killed = len((folder / "calls").read_text().splitlines())

    resumed = work(folder, policy, words)

    assert resumed.told == [COMMITTED, (MessageState.COMMITTED, 1, 0), *[COMMITTED] * 6]
    children = {line.split()[3] for line in (folder / "calls").read_text().splitlines()[killed:]}
    assert len(children) == 1, "one session, so never two at once"
    assert deliveries(folder) == Counter({0: 1, 1: 2, 2: 1, 3: 2, 4: 2, 5: 2, 6: 1, 7: 1})


def test_verdicts_hold_and_the_endpoints_memory_is_lost(journals: Path) -> None:
    """Two failures in a row were counted; the resumed endpoint counts from 0, as after a restart of the application server (spec 11.1)."""
    folder = journals.parent
    words = ["unprocessable", "postpone", "raise-once", "raise-once"]
    policy = specification(1, failures=3, next_message="sweep")

    assert work(folder, policy, [*words, "worker 5"]).code == -signal.SIGKILL
    assert journaled(journals) == [(MessageState.ENDED, 1, 0), (MessageState.ENDED, 0, 0), *[(MessageState.UNTOUCHED, 1, 0)] * 2, CRASHED]

    resumed = work(folder, policy, [*words, "raise"])

    assert resumed.said["ends"] == {"0": "Dispose", "1": "GiveBack", "4": "Dispose"}
    assert resumed.told[2:4] == [(MessageState.COMMITTED, 1, 0)] * 2
    assert not resumed.said["halted"]
    assert deliveries(folder) == Counter({0: 1, 1: 1, 2: 2, 3: 2, 4: 3})


def test_wmq_20_a_recorded_halt_holds(journals: Path) -> None:
    """The second of three stops the endpoint; the third, in flight beside it, kills the worker when it is waited for."""
    folder = journals.parent
    words = ["ok", "raise", "worker-after-halt", "ok", "ok"]
    policy = specification(3, failures=1)

    assert work(folder, policy, words).code == -signal.SIGKILL
    assert journaled(journals) == [COMMITTED, (MessageState.HALTED, 1, 0), CRASHED, UNTOUCHED, UNTOUCHED]  # one in flight

    resumed = work(folder, policy, words)

    assert resumed.said["halted"]
    assert resumed.told == [COMMITTED, (MessageState.HALTED, 1, 0), (MessageState.UNTOUCHED, 1, 1), UNTOUCHED, UNTOUCHED]
    assert resumed.said["ends"] == {"1": "Halt", "2": "Stay"}
    assert deliveries(folder) == Counter([0, 1, 2])


def test_dmp_7_a_message_that_has_used_its_deliveries_has_no_other_one(journals: Path) -> None:
    folder = journals.parent
    policy = DefaultMessaging(max_failed_deliveries=1, max_concurrency=1, auto_stop_sequential_message_failure=NEVER)

    assert work(folder, policy, ["ok", "worker 2", "ok"]).code == -signal.SIGKILL
    resumed = work(folder, policy, ["ok", "worker 2", "ok"])

    assert resumed.told == [COMMITTED, (MessageState.ENDED, 1, 1), COMMITTED]
    assert deliveries(folder) == Counter([0, 1, 2])


def test_wcf_41_an_open_batch_counts_for_each_of_its_messages(journals: Path) -> None:
    folder = journals.parent
    policy = msmq4(max_batch_size=3, transaction_timeout=timedelta(seconds=60))
    words = ["ok", "ok", "ok", "ok", "worker 5", "ok"]

    assert work(folder, policy, words).code == -signal.SIGKILL
    assert journaled(journals) == [COMMITTED] * 3 + [(MessageState.UNTOUCHED, 1, 0), CRASHED, UNTOUCHED]

    assert work(folder, policy, words).code == 0
    assert deliveries(folder) == Counter({0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 1})


def test_inline_only_the_message_whose_handler_was_called_is_charged(journals: Path) -> None:
    """Three were handed out, but their handlers are called one after the other."""
    folder = journals.parent
    words = ["ok", "worker 2", "ok", "ok"]

    assert work(folder, specification(3), words, "none").code == -signal.SIGKILL
    assert journaled(journals) == [COMMITTED, CRASHED, UNTOUCHED, UNTOUCHED]

    resumed = work(folder, specification(3), words, "none")
    assert resumed.told == [COMMITTED, (MessageState.COMMITTED, 1, 1), COMMITTED, COMMITTED]
    assert deliveries(folder) == Counter({0: 1, 1: 2, 2: 1, 3: 1})


def test_killed_again_and_again_it_ends(journals: Path) -> None:
    """A message that kills everything each time becomes poison by its own count; its neighbours in flight pay for being beside it."""
    folder = journals.parent
    words = ["everything", "ok", "ok", "ok"]
    policy = specification(1, failures=2)

    codes = [work(folder, policy, words).code for _ in range(4)]

    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert deliveries(folder) == Counter({0: 3, 1: 1, 2: 1, 3: 1})
    assert journaled(journals) == [(MessageState.ENDED, 3, 3), *[COMMITTED] * 3]
