"""The actors: each run does one task of one actor in a process of its own, as an Airflow task does one verb."""

from __future__ import annotations

import os
import random
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.core.errors import PoisonError, QueueHaltedError
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alerts import send_alerts
from airflow_poison.core.passes.alter import alter, disable, enable
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.engine import LocalEngine
from airflow_poison.core.passes.move import move, put_back
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.recover import recover
from airflow_poison.core.passes.relay import dead_letter_queue
from airflow_poison.core.passes.remove import remove_messages
from airflow_poison.core.passes.restart import restart
from airflow_poison.core.passes.return_due import return_due
from airflow_poison.core.passes.send import send
from airflow_poison.core.passes.send_to import send_to
from airflow_poison.core.policies.restarts import Restart
from airflow_poison.core.store.delta.store import DeltaStore
from airflow_poison.core.store.seam import QueueState
from airflow_poison.core.store.table import queue as tables
from airflow_poison.core.store.table import stage
from tests.faults.handler import ORIGIN
from tests.faults.ledger import FOLDER, QUEUE, RUN, note
from tests.faults.maintainers import maintain_one
from tests.faults.planted import replace
from tests.faults.world import DELAY, LEASE, FastClock, bodies, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.core.passes.alerts import Alert
    from airflow_poison.core.store.seam import Claim, QueueTable

HANDLER = "tests.faults.handler:handle"
SUBSCRIBER = "people"


@dataclass(frozen=True, slots=True)
class Task:
    """What Airflow would run again under the same key.

    :param seed: decides what it does; the same for every try.
    """

    role: str
    queue: str
    key: str
    seed: int
    isolation: str = "none"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode takes place: its folder, and when its clock began."""

    folder: str
    origin: float

    @property
    def clock(self) -> FastClock:
        return FastClock(self.origin)

    @property
    def store(self) -> DeltaStore:
        return DeltaStore(f"{self.folder}/store")


@dataclass(frozen=True, slots=True)
class Actor:
    """A task in the hands of a process."""

    task: Task
    store: DeltaStore
    table: QueueTable
    clock: FastClock
    chance: random.Random


def prepare(place: Place) -> None:
    """Make the queues of an episode."""
    for name, rules in queues().items():
        declare(place.store, name, rules.policy, place.clock)
        for number in range(2):
            act_quietly(Task("send", name, f"send-{name}-{number}", number), place)


def enter(place: Place, run: int, queue: str) -> None:
    """Tell this process, and the children of its sessions, whose run it is."""
    os.environ.update({FOLDER: place.folder, RUN: str(run), QUEUE: queue, ORIGIN: repr(place.origin)})


def act(task: Task, place: Place) -> None:
    """Do a task."""
    watch_claims()
    store = place.store
    actor = Actor(task, store, store.open(task.queue), place.clock, random.Random(task.seed))
    ROLES[task.role](actor)


def watch_claims() -> None:
    """Note which claims this process makes and holds: the controller sees whose claim has been taken over."""
    claim, take_over, made = tables.Queue.claim, tables.Queue.take_over, stage.Attempt.made

    def noted(held: Claim | None) -> Claim | None:
        if held is not None:
            note("held", key=held.key, epoch=held.epoch, attempt=held.attempt, earlier=held.earlier)
        return held

    def noted_made(attempt: stage.Attempt) -> str:
        name = made(attempt)
        note("made", key=attempt.key, attempt=name)
        return name

    replace(tables.Queue, "claim", lambda *given, **named: noted(claim(*given, **named)))
    replace(tables.Queue, "take_over", lambda *given, **named: noted(take_over(*given, **named)))
    replace(stage.Attempt, "made", noted_made)


# What they do ---------------------------------------------------------------------------------------------------------


def sends(actor: Actor) -> None:
    key, found = actor.task.key, bodies(actor.chance, actor.task.queue)
    batch = pa.record_batch({"body": found, "message_id": [f"{key}/{number}" for number in range(len(found))]})
    sent = send(actor.table, [batch], key=key, clock=actor.clock)
    note("sent", queue=actor.task.queue, key=key, first=sent.first_lookup_id, count=sent.sent)


class Lingering(LocalEngine):
    """Takes its time, and renews its claim as Spark's driver does."""

    def run(self, table: QueueTable, claim: Claim, job: object, *, keep_alive: Callable[[], None]) -> None:
        time.sleep(LEASE.total_seconds() / 60 / 2)
        keep_alive()
        super().run(table, claim, job, keep_alive=keep_alive)  # type: ignore[arg-type]


def receives(actor: Actor) -> None:
    engine = Lingering if actor.chance.random() < 0.1 else LocalEngine
    ReceivePass(
        actor.table,
        queues()[actor.task.queue].policy,
        HANDLER,
        engine,
        actor.clock,
        max_messages=actor.chance.choice([5, 20, 1_000]),
        isolation=actor.task.isolation,
        lease=LEASE,
        record_all=True,
        store=actor.store,
    ).run(actor.task.key)


def returns(actor: Actor) -> None:
    return_due(actor.table, actor.clock)


def alerts(actor: Actor) -> None:
    def tell(alert: Alert) -> None:
        note("told", queue=alert.queue, key=alert.key, event=alert.event, count=alert.count, ids=alert.lookup_ids)

    send_alerts(actor.table, SUBSCRIBER, tell, actor.clock)


def declares(actor: Actor) -> None:
    declare(actor.store, f"made-{actor.task.key}", queues()[actor.task.queue].policy, actor.clock)


def gives_up(actor: Actor) -> None:
    """Claim a little and release it."""
    held = actor.table.claim(actor.task.key, lease=LEASE, now=actor.clock.now(), max_messages=5, exclusive=actor.task.queue != "move")
    if held is not None:
        actor.table.release(held)


def administers(actor: Actor) -> None:
    actor.chance.choice(ADMINISTRATION)(actor)


def _some(actor: Actor, place: SubQueue, most: int = 2) -> list[int]:
    files = [file for file in actor.table.snapshot().files if file.sub_queue == place]
    ids = [number for file in files[:5] for number in actor.table.read(file, ["lookup_id"])["lookup_id"].to_pylist() if number is not None]
    return sorted(actor.chance.sample(ids, min(len(ids), most)))


def _enables(actor: Actor) -> None:
    enable(actor.table, actor.clock)


def _disables(actor: Actor) -> None:
    disable(actor.table, actor.clock, "for a test")


def _recovers(actor: Actor) -> None:
    if actor.table.snapshot().control.state is not QueueState.ENABLED:
        recover(actor.table, actor.clock)


def _puts_back(actor: Actor) -> None:
    put_back(actor.table, actor.clock)


def _puts_some_back(actor: Actor) -> None:
    put_back(actor.table, actor.clock, _some(actor, SubQueue.POISON))


def _moves(actor: Actor) -> None:
    if actor.task.queue == "move":
        move(actor.table, actor.clock, _some(actor, SubQueue.MAIN), SubQueue.POISON)


def _removes(actor: Actor) -> None:
    remove_messages(actor.table, actor.clock, _some(actor, SubQueue.MAIN, 1))


def _alters(actor: Actor) -> None:
    settings: Mapping[str, object] = {"retry_cycle_delay": DELAY.total_seconds() + actor.chance.randint(0, 9)}
    alter(actor.store.open("move"), actor.clock, settings=settings)


def _restarts(actor: Actor) -> None:
    restart(actor.table, actor.clock, actor.chance.choice([*Restart]))


def _sends_on(actor: Actor) -> None:
    name = dead_letter_queue("reject")
    if name in actor.store.names():
        letters = actor.store.open(name)
        ids = _some(Actor(actor.task, actor.store, letters, actor.clock, actor.chance), SubQueue.MAIN)
        send_to(letters, actor.store, actor.clock, ids)


def _gives_up(actor: Actor) -> None:
    gives_up(actor)


ADMINISTRATION = (
    *(_enables, _enables, _recovers, _recovers, _recovers),
    *(_disables, _puts_back, _puts_back, _puts_some_back, _moves, _removes, _removes, _alters, _restarts, _sends_on, _gives_up),
)


def _recovers_or_enables(actor: Actor) -> None:
    control = actor.table.snapshot().control
    if control.state is QueueState.ENABLED:
        return
    try:
        recover(actor.table, actor.clock)
    except PoisonError:
        enable(actor.table, actor.clock)


def maintains(actor: Actor) -> None:
    """Join small files."""
    assert isinstance(actor.table, tables.Queue)
    maintain_one(actor.table._table)


ROLES: Mapping[str, Callable[[Actor], None]] = {
    "send": sends,
    "receive": receives,
    "return": returns,
    "alert": alerts,
    "declare": declares,
    "administer": administers,
    "recover": _recovers_or_enables,
    "maintain": maintains,
}


# The end of an episode ------------------------------------------------------------------------------------------------


def drain(place: Place, queue: str, unsent: list[Task], patience: float = 60.0) -> None:
    """Do, without any fault, what is left to do in a queue, until nothing waits any more. Raises TimeoutError when that takes too long."""
    watch_claims()
    until, ordinal = time.monotonic() + patience, 0
    for task in unsent:
        act_quietly(task, place)
    while not _quiet(place, queue):
        if time.monotonic() > until:
            snapshot = place.store.open(queue).snapshot()
            message = f"{queue} did not become quiet: {[asdict(file) for file in snapshot.files]}, {snapshot.claims}, {snapshot.control}"
            raise TimeoutError(message)
        ordinal += 1
        _receive_all(place, queue, ordinal)
    act_quietly(Task("alert", queue, "last", 0), place)


def act_quietly(task: Task, place: Place) -> None:
    store = place.store
    ROLES[task.role](Actor(task, store, store.open(task.queue), place.clock, random.Random(task.seed)))


def _receive_all(place: Place, name: str, ordinal: int) -> None:
    actor = Actor(Task("receive", name, f"drain-{name}-{ordinal}", ordinal), place.store, place.store.open(name), place.clock, random.Random(ordinal))
    _recovers_or_enables(actor)
    returns(actor)
    try:
        receives(actor)
    except QueueHaltedError:
        return
    time.sleep(0.05)


def _quiet(place: Place, name: str) -> bool:
    snapshot = place.store.open(name).snapshot()
    waits = {SubQueue.MAIN, SubQueue.RETRY, SubQueue.POSTPONED, SubQueue.TRANSMISSION}
    return not snapshot.claims and not snapshot.outbox and not any(file.sub_queue in waits for file in snapshot.files)
