"""A pass resumes from damaged journals: no message is lost, no message is charged who did nothing, and what is wrong is told."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.fsck.check import check_folder
from airflow_poison.fsck.files import Kind
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.schema import SubQueue
from tests.given.endpoints import broker, specification
from tests.given.passes import LEASE, NO_RETRY, DiedError, DyingEngine, Handler, Queue, a_queue, calls
from tests.unit.passes.damages import JOURNAL, LEFT_FOR_THE_NEXT, LOG, overwritten

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.rules.policy import Policy

SIX = ("good", "bad", "good", "good", "bad", "good")
GOOD, BAD = {1, 3, 4, 6}, {2, 5}


def dead(folder: Path, policy: Policy = NO_RETRY) -> Queue:
    """A queue whose pass has delivered all and died before anything was staged; nobody holds its claim any more."""
    queue = a_queue(DeltaStore(str(folder / "store"), durable=False), folder, policy).sent(*SIX)
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive()
    queue.clock.advance(LEASE * 2)
    return queue


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return dead(tmp_path_factory.mktemp("left"))


def copied(queue: Queue, folder: Path) -> Queue:
    shutil.copytree(queue.store.uri, folder / "store")
    store = DeltaStore(str(folder / "store"), durable=False)
    return queue.having(store=store, table=store.open("orders"), handler=Handler(str(folder / "calls")))


def only(queue: Queue, pattern: str) -> Path:
    [path] = Path(queue.table.uri).glob(pattern)
    return path


def assert_finished(queue: Queue, known: set[int] = frozenset()) -> None:  # type: ignore[assignment]  # empty
    """Every message is where it belongs; the dead pass had settled all good ones, so they may be delivered once more.

    :param known: messages that were not delivered again.
    """
    queue.receive()
    assert sorted(queue.rows(SubQueue.POISON)) == sorted(queue.rows()) == sorted(BAD)
    again = calls(queue.handler)
    assert all(times == 1 for times in again.values())
    assert not known & again.keys()
    assert queue.table.snapshot().claims == ()
    assert check_folder("orders", queue.table.uri, queue.clock).findings == ()


@pytest.mark.parametrize("name", LEFT_FOR_THE_NEXT)
def test_the_next_pass_ends_what_a_dead_one_has_left(left: Queue, tmp_path: Path, name: str) -> None:
    queue = copied(left, tmp_path)
    pattern, damage = LEFT_FOR_THE_NEXT[name]
    damage(only(queue, pattern))
    assert_finished(queue, GOOD | BAD if pattern == LOG else set())


@pytest.mark.parametrize("name", sorted(LEFT_FOR_THE_NEXT))
def test_the_check_finds_it(left: Queue, tmp_path: Path, name: str) -> None:
    queue = copied(left, tmp_path)
    pattern, damage = LEFT_FOR_THE_NEXT[name]
    path = only(queue, pattern)
    damage(path)
    found = [finding for finding in check_folder("orders", queue.table.uri, queue.clock).findings if finding.kind is not Kind.CLAIM_EXPIRED]
    assert {finding.kind for finding in found} == {Kind.JOURNAL_DAMAGED}
    assert {Path(finding.where).stem for finding in found} == {path.stem}


def test_whole_journals_are_no_finding(left: Queue) -> None:
    assert [finding.kind for finding in check_folder("orders", left.table.uri, left.clock).findings] == [Kind.CLAIM_EXPIRED]


@pytest.mark.parametrize("end", [0, 1, 7, 8, 15, 16, 24, 63, 64, 65, 67, 68, 72, 79, 84, 87, 88, 89, 500])
def test_a_journal_cut_at_a_byte(left: Queue, tmp_path: Path, end: int) -> None:
    """Its section has a header of 16 bytes, six ids of 8 and six words of 4."""
    queue = copied(left, tmp_path)
    os.truncate(only(queue, JOURNAL), end)
    assert_finished(queue, set(range(1, 1 + max(0, min(6, (end - 64) // 4)))))


def test_damage_is_told(left: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = copied(left, tmp_path)
    overwritten(0, 8)(only(queue, JOURNAL))
    with caplog.at_level(logging.WARNING):
        queue.receive()
    assert "the section at byte 0 cannot be read" in caplog.text


ENDPOINTS: dict[str, Policy] = {
    "ActivationSpecification": specification(1, failures=9),
    "ServiceBroker": broker(1, rollback_limit=9),  # disabled by message 2
}


@pytest.mark.parametrize("damage", [pytest.param(overwritten(16, 60), id="ids"), pytest.param(overwritten(64, 24), id="words")])
@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_endpoint_goes_on_from_a_damaged_journal(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    queue = dead(tmp_path, ENDPOINTS[name])
    damage(only(queue, JOURNAL))
    queue.receive()
    assert calls(queue.handler, "done").keys() | queue.rows().keys() >= GOOD
    assert not any(queue.counts(number)[0] for number in queue.rows().keys() & GOOD)
