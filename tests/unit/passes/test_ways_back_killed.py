"""The ways back from damage, killed at each point and gone again: nothing more is lost than people gave up, and what is left of that is kept."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.maintain import repair
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.events import EventType
from tests.faults.test_damage import KilledError
from tests.given.broken_queues import DAMAGE, NOW, a_file, path_of
from tests.unit.passes.test_accepted_loss import lose_newest

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.passes.maintain import RepairResult
    from tests.given.passes import Queue

_OF_WAYS_BACK = ("store.repair.", "store.lose.", "store.log.before_mark")


def lose_commits(queue: Queue) -> None:
    lose_newest(queue.sent("ok 16", "ok 17").sent("ok 18"), 2)


def lose_claimed(queue: Queue) -> None:
    claim = queue.table.claim("dead", lease=timedelta(minutes=2), now=queue.clock.now(), max_messages=10)
    assert claim is not None
    os.truncate(Path(queue.table.uri, claim.files[0].path), 9)


WAYS: dict[str, tuple[Callable[[Queue], object], set[str], int]] = {
    "entries are put back": (DAMAGE["acknowledged commits removed"][0], {"store.repair.before_put_back"}, 0),
    "an entry is put back over a cut one": (
        DAMAGE["acknowledged commit cut"][0],
        {"store.repair.before_aside", "store.repair.before_put_back"},
        0,
    ),
    "a cut entry is set aside": (DAMAGE["last commit cut at the end of a line"][0], {"store.repair.before_aside"}, 0),
    "covered entries are set aside": (DAMAGE["old commits gone"][0], {"store.repair.before_aside"}, 0),
    "commits are given up": (lose_commits, {"store.repair.before_put_back", "store.log.before_mark_is_synced"}, 2),
    "a file is given up": (
        lambda queue: os.truncate(Path(queue.table.uri, a_file(queue).path), 9),
        {"store.lose.before_commit", "store.log.before_mark_is_synced", "store.lose.after_commit"},
        1,
    ),
    "a claimed file is given up": (lose_claimed, {"store.lose.before_commit", "store.lose.after_commit", "store.repair.before_aside"}, 1),
    "events are given up": (lambda queue: path_of(queue, "_event").unlink(), {"store.lose.before_commit", "store.lose.after_commit"}, 0),
}


def _mended(queue: Queue, folder: Path, die_at: int | None = None) -> tuple[RepairResult | None, list[str]]:
    """Repair with consent; None: killed at the how many-th visit of a point."""
    met: list[str] = []

    def reached(point: str) -> None:
        if point.startswith(_OF_WAYS_BACK):
            met.append(point)
            if len(met) - 1 == die_at:
                raise KilledError

    fault_points.install(reached)
    try:
        return repair(DeltaStore(str(folder), durable=False), "orders", queue.clock, accept_loss=True, safe_age=NOW), met
    except KilledError:
        return None, met
    finally:
        fault_points.install(None)


def _told(queue: Queue, folder: Path) -> tuple[list[int], object]:
    """The messages that are there, and the lost ones that events tell of."""
    table = DeltaStore(str(folder), durable=False).open("orders")
    lost = [(event.lookup_id, *event.details.items()) for event in table.events(types={EventType.LOST})]
    return sorted(queue.having(table=table).rows()), lost


def _remains(folder: Path) -> set[str]:
    """Files of messages that were given up, without what makes the names of copies unique."""
    return {path.name.split("-", 2)[2] for path in Path(folder, "orders", "_repaired").glob("*.parquet")}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_way_back_that_is_killed_anywhere_is_gone_again(worked: Queue, tmp_path: Path, way: str) -> None:
    damage, points, files = WAYS[way]
    damage(worked)
    broken, whole = Path(worked.store.uri), tmp_path / "whole"
    shutil.copytree(broken, whole)
    result, met = _mended(worked, whole)
    assert result is not None
    assert (result.failed, result.after.findings) == ((), ())
    assert set(met) >= points
    assert len(_remains(whole)) == files
    for number in range(len(met)):
        folder = Path(shutil.copytree(broken, tmp_path / str(number)))
        assert _mended(worked, folder, number)[0] is None
        again, _ = _mended(worked, folder)
        assert again is not None
        assert (again.failed, again.after.findings) == ((), ()), met[number]
        assert _told(worked, folder) == _told(worked, whole), met[number]
        assert _remains(folder) >= _remains(whole), met[number]
        table = DeltaStore(str(folder), durable=False).open("orders")
        before = table.snapshot().version
        ids = worked.having(table=table).sent("ok 99").rows().keys()
        assert max(ids) > max([15, *(18 for _ in range(way == "commits are given up"))]), met[number]
        assert table.snapshot().version == before + 1
