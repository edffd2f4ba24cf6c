"""The actors: each run does one task of one actor in a process of its own, as an Airflow task does one verb."""

from __future__ import annotations

import os
import random
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
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
from airflow_poison.core.store.delta.log import DeltaLog
from airflow_poison.core.store.delta.store import DeltaStore
from airflow_poison.core.store.seam import QueueState
from airflow_poison.core.store.table import queue as tables
from airflow_poison.core.store.table import stage
from tests.faults import maintainers
from tests.faults.handler import ORIGIN
from tests.faults.keeping import keep
from tests.faults.ledger import FOLDER, PARENT, QUEUE, RUN, note
from tests.faults.planted import replace
from tests.faults.powerloss import Disk
from tests.faults.world import DELAY, LEASE, FastClock, Strangers, bodies, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.core.passes.alerts import Alert
    from airflow_poison.core.store.log import Commit, State
    from airflow_poison.core.store.seam import Claim, QueueTable
    from airflow_poison.core.store.table.queue import Queue

HANDLER = "tests.faults.handler:handle"
SUBSCRIBER = "people"
_PATIENCE = 1.5
"""Seconds that an administrator waits for the state of a queue that a verb needs."""


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
    """Where an episode takes place.

    :param origin: when its clock began.
    :param old: whether its tables are made in format 1, and upgraded by whoever opens them first.
    :param power: whether the power will fail.
    :param strangers: what writers that are not ours do.
    """

    folder: str
    origin: float
    old: bool = False
    power: bool = False
    strangers: Strangers = Strangers.NONE

    @property
    def clock(self) -> FastClock:
        return FastClock(self.origin)

    @property
    def store(self) -> DeltaStore:
        return DeltaStore(f"{self.folder}/store")

    @property
    def disk(self) -> Disk:
        return Disk(Path(self.folder, "store"), Path(self.folder, "memory"))


@dataclass(frozen=True)
class Actor:
    """A task in the hands of a process."""

    task: Task
    place: Place
    chance: random.Random

    @classmethod
    def of(cls, task: Task, place: Place) -> Actor:
        return cls(task, place, random.Random(task.seed))

    @property
    def clock(self) -> FastClock:
        return self.place.clock

    @cached_property
    def store(self) -> DeltaStore:
        return self.place.store

    @cached_property
    def table(self) -> Queue:
        """The queue, opened when it is first asked for: a repair must not open what is refused."""
        return self.store.open(self.task.queue)


def prepare(place: Place) -> None:
    """Make the queues of an episode."""
    watch_commits()
    if place.old:
        maintainers.write_format_1()
    for name, rules in queues().items():
        declare(place.store, name, rules.policy, place.clock)
        for number in range(2):
            act_quietly(Task("send", name, f"send-{name}-{number}", number), place)


def enter(place: Place, run: int, queue: str) -> None:
    """Tell this process, and the children of its sessions, whose run it is; keep for the checker what it removes."""
    os.environ.update({FOLDER: place.folder, RUN: str(run), QUEUE: queue, ORIGIN: repr(place.origin), PARENT: str(os.getpid())})
    keep(place.folder)
    if place.power:
        place.disk.watch()


def act(task: Task, place: Place) -> None:
    """Do a task."""
    watch_claims()
    watch_commits()
    act_quietly(task, place)


def watch_commits() -> None:
    """Note each commit that this process makes, when it has been acknowledged: whatever happens then, the log has it."""
    commit = DeltaLog.commit

    def noted(log: DeltaLog, base: State, made: Commit) -> bool:
        done = commit(log, base, made)
        if done and (details := log.details(base.version + 1)) is not None:
            note("committed", queue=Path(log._root).name, version=base.version + 1, mark=details["mark"])
        return done

    replace(DeltaLog, "commit", noted)


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
    _send(actor, actor.task.key)


def _send(actor: Actor, key: str) -> None:
    found = bodies(actor.chance, actor.task.queue)
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
    note("received", queue=actor.task.queue)


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


def _some(table: QueueTable, chance: random.Random, place: SubQueue, most: int = 2) -> list[int]:
    files = [file for file in table.snapshot().files if file.sub_queue == place]
    ids = [number for file in files[:5] for number in table.read(file, ["lookup_id"])["lookup_id"].to_pylist() if number is not None]
    return sorted(chance.sample(ids, min(len(ids), most)))


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
    put_back(actor.table, actor.clock, _some(actor.table, actor.chance, SubQueue.POISON))


def _moves(actor: Actor) -> None:
    if actor.task.queue == "move":
        move(actor.table, actor.clock, _some(actor.table, actor.chance, SubQueue.MAIN), SubQueue.POISON)


def _removes(actor: Actor) -> None:
    remove_messages(actor.table, actor.clock, _some(actor.table, actor.chance, SubQueue.MAIN, 1))


def _alters(actor: Actor) -> None:
    settings: Mapping[str, object] = {"retry_cycle_delay": DELAY.total_seconds() + actor.chance.randint(0, 9)}
    alter(actor.store.open("move"), actor.clock, settings=settings)


def _restarts(actor: Actor) -> None:
    restart(actor.table, actor.clock, actor.chance.choice([*Restart]))


def _restarts_the_broker(actor: Actor) -> None:
    """Restart it while nobody receives: the product refuses otherwise."""
    _wait(lambda: not actor.table.snapshot().claims)
    restart(actor.table, actor.clock, Restart.BROKER)


def _sends_on(actor: Actor) -> None:
    """Send letters back to where they came from, as soon as there are any."""
    name = dead_letter_queue("reject")
    if name in actor.store.names():
        letters = actor.store.open(name)
        _wait(lambda: bool(letters.snapshot().files))
        if ids := _some(letters, actor.chance, SubQueue.MAIN):
            send_to(letters, actor.store, actor.clock, ids)


def _holds_sends(actor: Actor) -> None:
    """Disable a queue, send to it, enable it: what was held then arrives."""
    disable(actor.table, actor.clock, "for a send")
    _send(actor, f"send-{actor.task.key}")
    enable(actor.table, actor.clock)


def _repairs(actor: Actor) -> None:
    repairs(actor)


def _wait(until: Callable[[], bool]) -> None:
    latest = time.monotonic() + _PATIENCE
    while not until() and time.monotonic() < latest:
        time.sleep(0.01)


def _gives_up(actor: Actor) -> None:
    gives_up(actor)


ADMINISTRATION = (
    *(_enables, _enables, _recovers, _recovers, _recovers),
    *(_disables, _puts_back, _puts_back, _puts_some_back, _moves, _removes, _removes, _alters, _restarts, _gives_up),
    *(_restarts_the_broker, _restarts_the_broker, _sends_on, _sends_on, _holds_sends, _holds_sends, _repairs),
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
    maintainers.maintain_one(actor.table, actor.store, actor.clock)


def repairs(actor: Actor) -> None:
    """Mend what strangers and killed verbs have left; what strangers have changed without touching a message may stand."""
    accept = actor.place.strangers is Strangers.CHANGE_PROPERTIES and actor.chance.random() < 0.6
    maintainers.repair_one(actor.store, actor.task.queue, actor.clock, accept=accept)


def intrudes(actor: Actor) -> None:
    maintainers.intrude(f"{actor.store.uri}/{actor.task.queue}", actor.place.strangers, actor.chance)


ROLES: Mapping[str, Callable[[Actor], None]] = {
    "send": sends,
    "receive": receives,
    "return": returns,
    "alert": alerts,
    "declare": declares,
    "administer": administers,
    "recover": _recovers_or_enables,
    "maintain": maintains,
    "repair": repairs,
    "intrude": intrudes,
}


# The end of an episode ------------------------------------------------------------------------------------------------


def drain(place: Place, queue: str, unsent: list[Task], patience: float = 60.0) -> None:
    """Do, without any fault, what is left to do in a queue, until nothing waits any more. Raises TimeoutError when that takes too long."""
    watch_claims()
    watch_commits()
    until, ordinal = time.monotonic() + patience, 0
    for name in (queue, dead_letter_queue(queue)):
        if name in place.store.names():  # a letter that somebody sent back may wait in the outbox of its dead-letter queue
            repairs(Actor.of(Task("repair", name, "last", 0), place))
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
    maintainers.look(place.store.open(queue), place.clock)


def act_quietly(task: Task, place: Place) -> None:
    ROLES[task.role](Actor.of(task, place))


def _receive_all(place: Place, name: str, ordinal: int) -> None:
    actor = Actor.of(Task("receive", name, f"drain-{name}-{ordinal}", ordinal), place)
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
