"""The actors: each run does one task of one actor in a process of its own, as an Airflow task does one verb."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from airflow_poison.passes.alter import declare
from airflow_poison.passes.relay import dead_letter_queue
from airflow_poison.store import bucket_store
from airflow_poison.values.errors import ConversationLockedError, QueueHaltedError
from airflow_poison.values.schema import SubQueue
from tests.faults import maintainers
from tests.faults.actor import Actor, Place, Task
from tests.faults.administrators import administers, intrudes, maintains, recovers_or_enables, repairs
from tests.faults.damagers import damages, mends
from tests.faults.handler import ORIGIN
from tests.faults.keeping import keep
from tests.faults.ledger import FOLDER, PARENT, QUEUE, RUN, note
from tests.faults.redrivers import redrives
from tests.faults.takers import takes_the_rest
from tests.faults.talkers import administers_talks, is_quiet, prepare_talkers, talks
from tests.faults.talkers import mends as ends_conversations
from tests.faults.talks import TALKERS
from tests.faults.watches import watch_bucket_commits, watch_claims, watch_commits
from tests.faults.workers import alerts, declares, receives, returns, sends
from tests.faults.world import LONGEST_STOP_IN_A_BUCKET, calm, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def prepare(place: Place) -> None:
    """Make the queues of an episode."""
    _watch_commits(place)
    if TALKERS.keys() & place.queues:
        prepare_talkers(place)
    for name, rules in queues().items():
        if name in place.queues:
            declare(place.store, name, rules.policy, place.clock)
            for number in range(2):
                act_quietly(Task("send", name, f"send-{name}-{number}", number), place)


def enter(place: Place, run: int, queue: str, node: str = "") -> None:
    """Tell this process, and the children of its sessions, whose run it is; keep for the checker what it removes.

    :param node: on which node of a store in a bucket it runs.
    """
    os.environ.update({FOLDER: place.folder, RUN: str(run), QUEUE: queue, ORIGIN: repr(place.origin), PARENT: str(os.getpid())})
    if place.bucket:
        _enter_node(place, node)
        return
    keep(place.folder)
    if place.power:
        place.disk.watch()


def _enter_node(place: Place, node: str) -> None:
    """Let this process see nothing but its node and the bucket; logs are shortened soon here, so what is known of one is trusted less long."""
    folder = place.node(node)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    bucket_store.TRUSTED_SECONDS = LONGEST_STOP_IN_A_BUCKET / 2
    note("entered", node=node)


def _watch_commits(place: Place) -> None:
    watch = watch_bucket_commits if place.bucket else watch_commits
    watch()


def act(task: Task, place: Place) -> None:
    """Do a task."""
    watch_claims()
    _watch_commits(place)
    act_quietly(task, place)


ROLES: Mapping[str, Callable[[Actor], None]] = {
    "send": sends,
    "receive": receives,
    "return": returns,
    "alert": alerts,
    "declare": declares,
    "administer": administers,
    "recover": recovers_or_enables,
    "redrive": redrives,
    "maintain": maintains,
    "repair": repairs,
    "intrude": intrudes,
    "damage": damages,
}


_OF_TALKERS: Mapping[str, Callable[[Actor], None]] = {"send": talks, "administer": administers_talks, "recover": ends_conversations}


def drain(place: Place, group: tuple[str, ...], unsent: list[Task], patience: float) -> None:
    """Do, without any fault, what is left to do in queues, until nothing waits any more. Raises TimeoutError when that takes too long."""
    watch_claims()
    _watch_commits(place)
    until, ordinal = time.monotonic() + patience, 0
    calm(place.folder).touch()
    for name in (*group, *map(dead_letter_queue, group)):
        if name in place.store.names():  # a letter that somebody sent back may wait in the outbox of its dead-letter queue
            mends(Actor.of(Task("damage", name, "last", 0), place))
            repairs(Actor.of(Task("repair", name, "last", 0), place))
    for task in unsent:
        _do_patiently(task, place, until)
    for name in group:
        takes_the_rest(Actor.of(Task("send", name, f"rest-{name}-{time.monotonic_ns()}", 0), place))
    while not _quiet(place, group):
        if time.monotonic() > until:
            snapshots = [place.store.open(name).snapshot() for name in group]
            found = [([asdict(file) for file in each.files], each.claims, each.control, each.transmissions) for each in snapshots]
            message = f"{group} did not become quiet: {found}"
            raise TimeoutError(message)
        ordinal += 1
        for name in group:
            _receive_all(place, name, ordinal)
    for name in group:
        act_quietly(Task("alert", name, "last", 0), place)
        maintainers.look(place.store.open(name), place.store, place.clock)


def act_quietly(task: Task, place: Place) -> None:
    role = _OF_TALKERS.get(task.role) if task.queue in TALKERS else None
    (role or ROLES[task.role])(Actor.of(task, place))


def _do_patiently(task: Task, place: Place, until: float) -> None:
    """Do a task; a claim that its pass has left behind locks conversations until somebody takes it over."""
    while True:
        try:
            return act_quietly(task, place)
        except ConversationLockedError:
            if time.monotonic() > until:
                raise
            _receive_all(place, task.queue, int(time.monotonic() * 1_000))


def _receive_all(place: Place, name: str, ordinal: int) -> None:
    os.environ[QUEUE] = name
    actor = Actor.of(Task("receive", name, f"drain-{name}-{ordinal}", ordinal), place)
    act_quietly(replace(actor.task, role="recover"), place)
    returns(actor)
    try:
        receives(actor)
    except QueueHaltedError:
        return
    time.sleep(0.05)


def _quiet(place: Place, group: tuple[str, ...]) -> bool:
    return is_quiet(place) if TALKERS.keys() & group else all(_is_quiet(place, name) for name in group)


def _is_quiet(place: Place, name: str) -> bool:
    snapshot = place.store.open(name).snapshot()
    waits = {SubQueue.MAIN, SubQueue.RETRY, SubQueue.POSTPONED, SubQueue.TRANSMISSION}
    return not snapshot.claims and not snapshot.outbox and not snapshot.landings and not any(file.sub_queue in waits for file in snapshot.files)
