"""Administrators: what people and their tasks do to queues that need them, and what strangers do to tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.passes.alter import alter, disable, enable, restart
from airflow_poison.passes.move import move, put_back, remove_messages
from airflow_poison.passes.recovery import recover
from airflow_poison.passes.relay import dead_letter_queue, send_to
from airflow_poison.rules.policy import Restart
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import PoisonError
from airflow_poison.values.schema import SubQueue
from tests.faults import maintainers
from tests.faults.workers import gives_up, send_as
from tests.faults.world import DELAY, Strangers
from tests.given.waiting import happened

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from airflow_poison.store.queue_table import QueueTable
    from tests.faults.actor import Actor

_PATIENCE = 1.5
"""Seconds that an administrator waits for the state of a queue that a verb needs."""


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
    wait_for(lambda: not actor.table.snapshot().claims)
    restart(actor.table, actor.clock, Restart.BROKER)


def _sends_on(actor: Actor) -> None:
    """Send letters back to where they came from, as soon as there are any."""
    name = dead_letter_queue("reject")
    if name in actor.store.names():
        letters = actor.store.open(name)
        wait_for(lambda: bool(letters.snapshot().files))
        if ids := _some(letters, actor.chance, SubQueue.MAIN):
            send_to(letters, actor.store, actor.clock, ids)


def _holds_sends(actor: Actor) -> None:
    """Disable a queue, send to it, enable it: what was held then arrives."""
    disable(actor.table, actor.clock, "for a send")
    send_as(actor, f"send-{actor.task.run_key}", f"send-{actor.task.name}")
    enable(actor.table, actor.clock)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait a while for what a verb needs."""
    happened(condition, _PATIENCE)


def recovers_or_enables(actor: Actor) -> None:
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


ADMINISTRATION = (
    *(_enables, _enables, _recovers, _recovers, _recovers),
    *(_disables, _puts_back, _puts_back, _puts_some_back, _moves, _removes, _removes, _alters, _restarts, gives_up),
    *(_restarts_the_broker, _restarts_the_broker, _sends_on, _sends_on, _holds_sends, _holds_sends, repairs),
)


def administers(actor: Actor) -> None:
    actor.chance.choice(ADMINISTRATION)(actor)
