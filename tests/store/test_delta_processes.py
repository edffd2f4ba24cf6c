"""Several processes on one table: races, and kill -9 at every point where something could be half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.schema import SubQueue
from tests.given import children
from tests.given.tables import CONTROL, ids, park_all, send

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from airflow_poison.store.queue_table import QueueTable


def test_processes_that_create_one_queue_at_once_all_succeed(delta_root: str) -> None:
    started = [children.start(children.create_one, delta_root) for _ in range(4)]
    assert [_ended(child) for child in started] == [0, 0, 0, 0]
    assert DeltaStore(delta_root).open("orders").snapshot().control == CONTROL
    assert [path.name for path in Path(delta_root).iterdir()] == ["orders"]


def test_ids_of_processes_that_send_at_once_are_gapless(delta_root: str, delta_queue: QueueTable) -> None:
    started = [children.start(children.send_many, delta_root, str(sender), 8) for sender in range(3)]
    assert [_ended(child) for child in started] == [0, 0, 0]
    assert ids(delta_queue) == list(range(1, 3 * 8 * 7 + 1))
    ranges = [(file.min_lookup_id, file.max_lookup_id) for file in delta_queue.snapshot().files]
    assert ranges == [(first, first + 6) for first in range(1, 3 * 8 * 7, 7)]


def test_claims_of_processes_at_once_are_disjoint(delta_root: str, delta_queue: QueueTable) -> None:
    children.send_many(delta_root, "sender", 12)
    started = [children.start(children.claim_many, delta_root, str(consumer), 4) for consumer in range(3)]
    assert [_ended(child) for child in started] == [0, 0, 0]
    claims = delta_queue.snapshot().claims
    paths = [file.path for claim in claims for file in claim.files]
    assert len(claims) == len(paths) == len(set(paths)) == 12


POINTS = [
    ("append", "store.append.after_files"),
    ("append", "store.append.before_commit"),
    ("append", "store.append.after_commit"),
    ("append", "store.log.before_mark_is_synced"),
    ("receive", "store.split.before_commit"),
    ("receive", "store.claim.before_commit"),
    ("receive", "store.claim.after_commit"),
    ("receive", "store.claim.before_fence"),
    ("receive", "store.seal.before_rename"),
    ("receive", "store.seal.after_rename"),
    ("receive", "store.finish.before_links"),
    ("receive", "store.finish.after_links"),
    ("receive", "store.finish.before_commit"),
    ("receive", "store.finish.after_commit"),
    ("receive", "store.finish.before_clearing"),
    ("move", "store.move.after_links"),
    ("move", "store.move.before_commit"),
    ("move", "store.move.after_commit"),
    ("replace", "store.replace.after_files"),
    ("replace", "store.replace.before_commit"),
    ("replace", "store.replace.after_commit"),
]


@pytest.mark.parametrize(("verb", "point"), POINTS)
def test_a_verb_that_is_killed_and_run_again_loses_and_doubles_nothing(delta_root: str, delta_queue: QueueTable, verb: str, point: str) -> None:
    send(delta_queue, 60)
    if verb == "move":
        park_all(delta_queue)
    assert _ended(children.start(children.work, delta_root, verb, point)) == -signal.SIGKILL

    children.VERBS[verb](delta_queue)

    in_main, in_retry = ids(delta_queue, SubQueue.MAIN), ids(delta_queue, SubQueue.RETRY)
    match verb:
        case "append":
            assert (in_main, in_retry) == (list(range(1, 91)), [])
        case "receive":
            assert (in_main, in_retry) == (list(range(41, 61)), list(range(3, 41, 3)))
            assert delta_queue.snapshot().claims == ()
            assert delta_queue.result("run") == {"settled": 27}
        case "replace":
            assert (in_main, ids(delta_queue, SubQueue.POISON)) == (list(range(3, 61)), [1])
            assert [event.lookup_id for event in delta_queue.events()] == [2]
        case _:
            assert (in_main, in_retry) == (list(range(1, 61)), [])
            assert [event.lookup_id for event in delta_queue.events()] == list(range(1, 61))


def test_a_holder_killed_twice_in_a_row_is_followed_by_a_third(delta_root: str, delta_queue: QueueTable) -> None:
    send(delta_queue, 60)
    for point in ("store.claim.before_fence", "store.seal.after_rename", "store.finish.before_commit"):
        assert _ended(children.start(children.work, delta_root, "receive", point)) == -signal.SIGKILL
    (held,) = delta_queue.snapshot().claims
    assert held.epoch == 3
    children.receive(delta_queue)
    assert ids(delta_queue) == [*range(3, 41, 3), *range(41, 61)]


def test_a_creation_that_is_killed_leaves_no_half_queue(delta_root: str) -> None:
    child = children.start(children.work, delta_root, "create", "store.create.before_rename")
    assert _ended(child) == -signal.SIGKILL
    store = DeltaStore(delta_root)
    assert list(store.names()) == ["orders"]
    assert store.create("another", CONTROL).snapshot().control == CONTROL


def test_the_environment_names_a_fault_at_process_start(delta_root: str, delta_queue: QueueTable) -> None:
    script = f"""
from tests.given.tables import send
from airflow_poison.store import open_store
send(open_store({delta_root!r}).open("orders"), 3)
"""
    environment = os.environ | {"AIRFLOW_POISON_FAULT": "store.append.before_commit:kill", "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert delta_queue.snapshot().files == ()


def test_a_fault_that_cannot_be_understood_is_told() -> None:
    environment = os.environ | {"AIRFLOW_POISON_FAULT": "store.append.before_commit:explode"}
    ended = subprocess.run(
        [sys.executable, "-c", "import airflow_poison.values.fault_points"], env=environment, check=False, capture_output=True, text=True
    )
    assert "kill, stop" in ended.stderr


def _ended(child: ForkServerProcess) -> int | None:
    child.join(60)
    return child.exitcode
