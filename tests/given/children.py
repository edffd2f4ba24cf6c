"""What child processes of the store tests do; killed at a fault point when told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import deltalake  # noqa: F401  (imported, never used, before the fork: a child starts in milliseconds)
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  (pyarrow would import it in every child)
import pyarrow as pa
import pyarrow.parquet

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.files import Replacement
from airflow_poison.values import fault_points
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue
from tests.given import dialogs
from tests.given.tables import CONTROL, LATER, NOW, claim, numbered, outcome_of_a_third, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess

    from airflow_poison.store.files import Snapshot, Transaction
    from airflow_poison.store.queue_table import QueueTable

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.given.children"])


def start(act: Callable[..., None], *arguments: object) -> ForkServerProcess:
    process = _CONTEXT.Process(target=_run, args=(act, arguments))
    process.start()
    return process


def _run(act: Callable[..., None], arguments: tuple[object, ...]) -> None:
    act(*arguments)
    os._exit(0)  # delta-rs has threads that do not like to be ended


def kill_at(point: str) -> None:
    """Be killed when the point is reached."""

    def act(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install(act)


def work(root: str, verb: str, point: str) -> None:
    """Do a verb, and die at the point."""
    store = DeltaStore(root)
    queue = store.create("orders", CONTROL) if verb == "create" else store.open("orders")
    kill_at(point)
    if verb == "create":
        store.create("another", CONTROL)
    else:
        VERBS[verb](queue)


def receive(queue: QueueTable) -> None:
    """A pass: what an earlier holder sealed is finished; a third of the messages fails."""
    held = queue.claim("run", lease=LATER - NOW, now=NOW, max_messages=40)
    if held is None:
        return
    if queue.manifest(held) is None:
        queue.stage_table(held, outcome_of_a_third(rows_of(queue, held)))
    queue.finish(held, seal(queue, held, {"settled": held.messages - held.messages // 3}), now=NOW)


def give_back(queue: QueueTable) -> None:
    queue.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, LATER)


def take_away(queue: QueueTable) -> None:
    """Move the first message to poison and take the second one out, unless that has been done."""
    for file in queue.snapshot().files:
        rows = queue.read(file)
        if file.sub_queue == SubQueue.MAIN and file.min_lookup_id == 1:
            left = pa.concat_tables([put(rows.slice(0, 1), "poison"), rows.slice(2)])
            queue.replace_files([Replacement(file, left, removed=1)], [Event(EventType.DROPPED, NOW, 2)])


def keep_tidy(queue: QueueTable) -> None:
    """All of maintenance, with nothing kept for readers of older versions."""
    queue.compact(min_files=2)
    queue.clean(retention=timedelta(0), safe_age=timedelta(0))
    queue.shorten_log(retention=timedelta(0))


def converse(queue: QueueTable) -> None:
    """Act in a conversation: raise its endpoint's version, tell the partner, take the first message out."""

    def plan(snapshot: Snapshot) -> Transaction:
        [first] = [file for file in snapshot.files if file.min_lookup_id == 1]
        wanted = dialogs.next_version(queue)(snapshot)
        less = Replacement(first, queue.read(first).slice(1), removed=1)
        return replace(wanted, replacements=(less,), events=(Event(EventType.DROPPED, NOW, 1),), alone=True)

    queue.transact(plan, "act", NOW)


def receive_and_answer(queue: QueueTable) -> None:
    """A pass that settles every message, and answers once."""
    held = queue.claim("run", lease=LATER - NOW, now=NOW, max_messages=100)
    if held is None:
        return
    if queue.manifest(held) is None:
        version = dialogs.endpoints(queue).get("a", 0) + 1
        queue.stage_table(held, dialogs.rows(dialogs.endpoint("a", version), dialogs.letter(f"a {version}")))
    queue.finish(held, seal(queue, held), now=NOW)


def send_on(queue: QueueTable) -> None:
    """What waits for the partner has been taken."""
    queue.remove_transmissions(queue.snapshot().transmissions)


VERBS: dict[str, Callable[[QueueTable], object]] = {
    "transact": converse,
    "answer": receive_and_answer,
    "merge": lambda queue: queue.merge_conversations(lambda rows: rows, min_files=2),
    "send on": send_on,
    "append": lambda queue: send(queue, 30, "second"),
    "receive": receive,
    "move": give_back,
    "replace": take_away,
    "maintain": keep_tidy,
}


def send_many(root: str, sender: str, sends: int) -> None:
    queue = DeltaStore(root, durable=False).open("orders")
    for number in range(sends):
        queue.append([numbered(7)], f"{sender}-{number}", NOW)


def claim_many(root: str, consumer: str, claims: int) -> None:
    queue = DeltaStore(root, durable=False).open("orders")
    for number in range(claims):
        claim(queue, f"{consumer}-{number}", 7)


def create_one(root: str) -> None:
    DeltaStore(root, durable=False).create("orders", CONTROL)


def send_patiently(root: str, sender: str, sends: int) -> None:
    """Send again with the same key whenever a maintainer that keeps nothing has removed the files before they were committed."""
    queue = DeltaStore(root, durable=False).open("orders")
    for number in range(sends):
        while True:
            with suppress(TableChangedError):
                queue.append([numbered(3)], f"{sender}-{number}", NOW)
                break


def park_many(root: str, consumer: str, passes: int) -> None:
    """Passes in which every message fails and is parked."""
    queue = DeltaStore(root, durable=False).open("orders")
    for number in range(passes):
        held = queue.claim(f"{consumer}-{number}", lease=LATER - NOW, now=NOW, max_messages=6)
        if held is not None:
            queue.stage_table(held, put(rows_of(queue, held), "retry", due_at=LATER))
            queue.finish(held, seal(queue, held), now=NOW)


def act_many(root: str, keys: int) -> None:
    """Each key raises the version of one endpoint by one; others use the same keys."""
    queue = DeltaStore(root, durable=False).open("orders")
    for key in range(keys):
        queue.transact(dialogs.next_version(queue), str(key), NOW)


def merge_many(root: str, times: int) -> None:
    queue = DeltaStore(root, durable=False).open("orders")
    for _ in range(times):
        queue.merge_conversations(lambda rows: rows, min_files=2)


def keep_tidy_often(root: str, times: int) -> None:
    queue = DeltaStore(root, durable=False).open("orders")
    for _ in range(times):
        queue.compact(min_files=2)
        queue.clean(retention=timedelta(seconds=5), safe_age=timedelta(0))
        queue.shorten_log(retention=timedelta(seconds=1))
