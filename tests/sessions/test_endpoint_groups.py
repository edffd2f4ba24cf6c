"""Conversation groups in the sessions of one endpoint, and endpoints of the same queue in several tasks that tell each other of a halt."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.rules.decisions import Halt
from tests.given.endpoints import broker, deliveries, in_groups, saying, specification, written
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sessions.conftest import Opener

RECORDED = "tests.sessions.endpoint_handlers:recorded"


def spans(folder: Path) -> list[tuple[str, int]]:
    """Return what was begun and ended, in order."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    return [(what, int(number)) for what, number, *_ in lines]


def test_sb_47_a_group_is_with_one_session_at_a_time(session: Opener, tmp_path: Path) -> None:
    """Groups a and b side by side: their first messages wait for each other; the others of a never overlap."""
    bodies = saying(tmp_path, "meet 2", "ok", "meet 2", "ok", "ok", "ok")

    report = session(RECORDED, policy=broker(3)).deliver(in_groups("aabbaa", bodies))

    assert told(report.words) == [COMMITTED] * 6
    for group in ({0, 1, 4, 5}, {2, 3}):
        mine = [(what, number) for what, number in spans(tmp_path) if number in group]
        assert mine == [(what, number) for number in sorted(group) for what in ("call", "done")]


def test_sb_47_a_message_that_is_rolled_back_keeps_its_place_in_its_group(session: Opener, tmp_path: Path) -> None:
    bodies = saying(tmp_path, "raise-until 2", "ok", "ok", "raise-until 1", "ok")

    report = session("tests.sessions.endpoint_handlers:recorded", policy=broker(4)).deliver(in_groups("aa bb", bodies))

    assert told(report.words) == [(MessageState.COMMITTED, 2, 0), COMMITTED, COMMITTED, (MessageState.COMMITTED, 1, 0), COMMITTED]
    assert [number for number in written(tmp_path) if number in {0, 1}] == [0, 0, 0, 1]
    assert [number for number in written(tmp_path) if number in {3, 4}] == [3, 3, 4]


@pytest.mark.parametrize("word", ["exit", "kill"])
def test_sb_47_also_when_its_session_died(session: Opener, tmp_path: Path, word: str) -> None:
    bodies = saying(tmp_path, word, "ok", "ok", "ok")

    report = session(RECORDED, policy=broker(2, rollback_limit=100_000)).deliver(in_groups("aabb", bodies)[1:])
    assert told(report.words) == [COMMITTED] * 3

    stopped = session(RECORDED, policy=broker(2, rollback_limit=3), partition="4").deliver(in_groups("aa", bodies[:2], first_id=10))

    assert told(stopped.words) == [(MessageState.HALTED, 3, 3), UNTOUCHED]
    assert Counter(written(tmp_path)) == Counter({1: 1, 2: 1, 3: 1, 10: 3})


def test_a_group_in_several_batches_keeps_its_order(session: Opener, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=broker(3))

    for first_id in range(0, 9, 3):
        opened.deliver(in_groups("aab", saying(tmp_path, "ok", "ok", "ok"), first_id))

    assert [number for number in written(tmp_path) if number % 3 != 2] == [0, 1, 3, 4, 6, 7]


def test_the_halt_of_another_task_is_seen_before_the_next_receive(session: Opener, isolation: str, tmp_path: Path) -> None:
    """The first task's endpoint halts while the second has one message with its handler."""
    stop = tmp_path / "halted"
    policy = broker(1, scope="conversation_group", rollback_limit=1)
    first, second = (session(RECORDED, isolation, policy=policy, partition=partition, stop_file=str(stop)) for partition in ("0", "1"))

    report = first.deliver(in_groups("aa", saying(tmp_path, "raise", "ok")))
    others = [second.deliver(in_groups("bb", saying(tmp_path, "ok", "ok"), first_id)) for first_id in (10, 20)]

    assert stop.exists()
    assert report.halted
    assert [told(other.words) for other in others] == [[UNTOUCHED] * 2] * 2
    assert [other.halted for other in others] == [False, False], "it is not this endpoint that has halted"
    assert written(tmp_path) == [0]


@pytest.mark.parametrize("readers", [1, 3])
def test_what_is_delivered_after_the_halt_of_another_task_is_bounded(session: Opener, tmp_path: Path, readers: int) -> None:
    """At most what the endpoint's sessions have just then: the handlers of the first round make the file."""
    stop = tmp_path / "halted"
    policy = broker(readers, scope="conversation_group")

    report = session(RECORDED, policy=policy, stop_file=str(stop)).deliver(batch_of(saying(tmp_path, *[f"create {stop}"] * 20)))

    assert told(report.words) == [COMMITTED] * readers + [UNTOUCHED] * (20 - readers)
    assert deliveries(tmp_path) == Counter(range(readers))


def test_a_task_that_runs_again_tells_of_its_halt_again(session: Opener, journals: Path, tmp_path: Path) -> None:
    from airflow_poison.delivery.recovered import read_journals

    stop = tmp_path / "halted"
    policy = broker(1, scope="conversation_group", rollback_limit=1)
    batch = in_groups("aa", saying(tmp_path, "raise", "ok"))
    dead = session(RECORDED, policy=policy, stop_file=str(stop))
    dead.deliver(batch)
    dead.close()
    stop.unlink()

    report = session(RECORDED, policy=policy, stop_file=str(stop), carry=read_journals([journals])).deliver(batch)

    assert stop.exists()
    assert report.decided is not None
    assert isinstance(report.decided.halt, Halt)
    assert deliveries(tmp_path) == Counter([0])


def test_sweeping_endpoints_ignore_groups(session: Opener, tmp_path: Path) -> None:
    report = session(RECORDED, policy=specification(2)).deliver(in_groups("aa", saying(tmp_path, "meet 2", "meet 2")))

    assert told(report.words) == [COMMITTED] * 2
