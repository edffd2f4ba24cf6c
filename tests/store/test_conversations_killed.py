"""Acts in conversations killed with kill -9 at every point, and many of them at once in processes of their own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from airflow_poison.fsck.check import check
from airflow_poison.fsck.files import Severity
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import VirtualClock
from tests.given import children
from tests.given.dialogs import act, endpoint, endpoints, letter, letters
from tests.given.tables import NOW, ids, send

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from airflow_poison.fsck.files import Finding
    from airflow_poison.store.queue_table import QueueTable

POINTS = [
    *(("transact", f"store.transact.{point}") for point in ("before_files", "after_files", "before_commit", "after_commit")),
    *(("merge", f"store.merge.{point}") for point in ("after_files", "before_commit", "after_commit")),
    *(("send on", f"store.remove_transmissions.{point}") for point in ("before_commit", "after_commit")),
    *(("answer", f"store.outcomes.{point}") for point in ("before_names", "after_name")),
    *(("answer", f"store.seal.{point}") for point in ("before_listing", "before_rename", "after_rename")),
    *(("answer", f"store.finish.{point}") for point in ("before_links", "after_links", "before_commit", "after_commit", "before_clearing")),
]
AFTER = {
    "transact": ({"a": 3}, ["a 1", "a 2", "a 3"], [2, 3]),
    "merge": ({"a": 2}, ["a 1", "a 2"], [1, 2, 3]),
    "send on": ({"a": 2}, [], [1, 2, 3]),
    "answer": ({"a": 3}, ["a 1", "a 2", "a 3"], []),
}


@pytest.mark.parametrize(("verb", "point"), POINTS)
def test_what_is_killed_and_run_again_is_done_once(delta_root: str, delta_queue: QueueTable, verb: str, point: str) -> None:
    send(delta_queue, 3)
    for version in (1, 2):
        act(delta_queue, str(version), endpoint("a", version), letter(f"a {version}"))
    assert _ended(children.start(children.work, delta_root, verb, point)) == -signal.SIGKILL
    assert (endpoints(delta_queue)["a"], len(letters(delta_queue)), len(ids(delta_queue))) in {
        (2, 2, 3),
        (AFTER[verb][0]["a"], len(AFTER[verb][1]), len(AFTER[verb][2])),
    }

    children.VERBS[verb](delta_queue)

    assert (endpoints(delta_queue), letters(delta_queue), ids(delta_queue)) == AFTER[verb]
    assert errors(delta_queue) == []
    assert DeltaStore(delta_root).open("orders").snapshot() == delta_queue.snapshot()


def test_the_same_keys_in_several_processes_beside_merges_are_done_once_each(delta_root: str, delta_queue: QueueTable) -> None:
    """Each act rests on the version before it: one that was made on an older one would leave a gap or a double."""
    actors = [children.start(children.act_many, delta_root, 25) for _ in range(3)]
    others = [children.start(children.merge_many, delta_root, 25), children.start(children.send_many, delta_root, "s", 15)]
    assert [_ended(child) for child in (*actors, *others)] == [0] * 5
    assert endpoints(delta_queue) == {"a": 25}
    assert letters(delta_queue) == [f"a {version}" for version in range(1, 26)]
    assert ids(delta_queue) == list(range(1, 15 * 7 + 1))
    assert errors(delta_queue) == []


def errors(queue: QueueTable) -> list[Finding]:
    return [finding for finding in check(queue, VirtualClock(NOW)).findings if finding.severity is Severity.ERROR]


def _ended(child: ForkServerProcess) -> int | None:
    child.join(120)
    return child.exitcode
