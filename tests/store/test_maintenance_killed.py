"""Maintenance killed with kill -9 at every point, and beside senders and receivers of other processes."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.schema import SubQueue
from tests.given import children
from tests.given.tables import CONTROL, NOW, all_rows, claim, copied, ids, put, rows_of, seal, send

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from airflow_poison.store.queue_table import QueueTable

NONE = timedelta(0)
POINTS = [
    "store.compact.after_files",
    "store.compact.before_commit",
    "store.compact.after_commit",
    "store.clean.after_listing",
    "store.clean.before_fence",
    "store.fence.before_commit",
    "store.fence.after_commit",
    "store.clean.before_remove",
    "store.clean.after_aside",
    "store.clean.after_removes",
    "store.log.before_checkpoint",
    "store.log.after_checkpoint",
    "store.log.before_remove",
]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> QueueTable:
    """A queue with a history of 45 versions, of events, a living claim with outcomes, and the stage of a pass that has ended."""
    queue = DeltaStore(str(tmp_path_factory.mktemp("history")), durable=False).create("orders", CONTROL)
    for number in range(28):
        send(queue, 1, str(number))
    for number in range(4):
        held = claim(queue, f"p{number}", 1)
        queue.stage_table(held, put(rows_of(queue, held), "retry", due_at=NOW))
        queue.finish(held, seal(queue, held), now=NOW)
    queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, NOW)
    queue.alter(lambda control: control, lambda _, __: [])
    held = claim(queue, "living", 3)
    queue.stage_table(held, put(rows_of(queue, held), "poison"))
    seal(queue, held)
    Path(queue.root, "_stage", "ended", "0123", "journal").mkdir(parents=True)
    for number in range(10):
        send(queue, 1, f"more-{number}")
    return queue


@pytest.fixture
def used(history: QueueTable, delta_root: str) -> QueueTable:
    return copied(history, delta_root)


@pytest.mark.parametrize("point", POINTS)
def test_maintenance_that_is_killed_and_run_again_changes_nothing_that_is_read(delta_root: str, used: QueueTable, point: str) -> None:
    rows, events, [held] = all_rows(used), list(used.events()), used.snapshot().claims
    assert _ended(children.start(children.work, delta_root, "maintain", point)) == -signal.SIGKILL
    assert (all_rows(used), list(used.events()), used.snapshot().claims) == (rows, events, (held,))

    children.keep_tidy(used)

    assert (all_rows(used), list(used.events())) == (rows, events)
    live = {file.path for file in used.log.load().files}
    manifest = used.manifest(held)
    assert manifest is not None
    assert {str(path.relative_to(used.uri)) for path in Path(used.uri).glob("sub_queue=*/*/*")} == live
    assert [path.name for path in Path(used.uri, "_stage").iterdir()] == ["living"]
    assert used.finish(held, manifest, now=NOW)
    assert [row["lookup_id"] for row in all_rows(used)] == [row["lookup_id"] for row in rows]
    assert DeltaStore(delta_root).open("orders").snapshot() == used.snapshot()
    assert send(used, 1, "after").first_lookup_id == 39


def test_senders_receivers_and_maintainers_at_once_lose_and_double_nothing(delta_root: str, delta_queue: QueueTable) -> None:
    """Each of three maintainers keeps nothing: whatever a verb makes and does not commit at once may be removed under it."""
    sends = [children.start(children.send_patiently, delta_root, str(sender), 12) for sender in range(2)]
    passes = [children.start(children.park_many, delta_root, str(consumer), 10) for consumer in range(2)]
    tidy = [children.start(children.keep_tidy_often, delta_root, 8) for _ in range(2)]
    assert [_ended(child) for child in (*sends, *passes, *tidy)] == [0] * 6
    children.keep_tidy(delta_queue)
    assert ids(delta_queue) == list(range(1, 2 * 12 * 3 + 1))
    for row in all_rows(delta_queue):
        assert row["move_count"] in {0, 1}, json.dumps(row, default=str)
    assert delta_queue.snapshot().control == CONTROL


def _ended(child: ForkServerProcess) -> int | None:
    child.join(120)
    return child.exitcode
