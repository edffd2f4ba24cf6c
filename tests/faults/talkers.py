"""Talkers: what tasks and people do with queues whose services converse."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.dialogs.acts import Dialog
from airflow_poison.passes import conversations as endpoints
from airflow_poison.passes.alter import declare, disable, enable, restart
from airflow_poison.passes.conversations import conversations, declare_services
from airflow_poison.passes.dialogs import begin_dialogs, send_on, set_timer
from airflow_poison.passes.recovery import Ending, recover
from airflow_poison.passes.relay import transmit
from airflow_poison.rules.policy import Restart
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import ConversationError, ConversationLockedError
from tests.faults.ledger import note
from tests.faults.talks import CONTRACT, GIVEN_UP, TALKERS, partner_of, services, words
from tests.faults.workers import gives_up
from tests.faults.world import queues

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from airflow_poison.passes.recovery import ConversationEnded
    from tests.faults.actor import Actor, Place

Messages = list[tuple[str, bytes]]
"""Types and bodies."""
_WAIT = timedelta(seconds=0.2)
_LIFETIME, _TIMER = timedelta(seconds=120), timedelta(seconds=20)
_NEVER = timedelta(days=1_000)


def prepare_talkers(place: Place) -> None:
    for name in TALKERS:
        table = declare(place.store, name, queues()[name].policy, place.clock)
        declare_services(place.store, table, services(name))


def talks(actor: Actor) -> None:
    """Begin dialogs, or say something in one that is there; what was said leaves at once, or with the next pass."""
    if actor.chance.random() < 0.5:
        _says(actor)
    else:
        begins(actor)
    if actor.chance.random() < 0.7:
        transmit(actor.store, actor.table, actor.clock)
    note("talked", queue=actor.task.queue, key=actor.task.name)


def begins(actor: Actor, said: Sequence[Messages] = ()) -> None:
    """Begin dialogs.

    :param said: the first messages of each; none: what comes to mind.
    """
    chance, queue = actor.chance, actor.task.queue
    dialogs = [
        _dialog(chance, messages) for messages in said or [words(chance, f"{actor.task.name}/{number}", 3) for number in range(chance.randint(1, 3))]
    ]
    names = {"service": TALKERS[queue], "far_service": TALKERS[partner_of(queue)], "contract": CONTRACT.name}
    begin_dialogs(actor.table, **names, dialogs=dialogs, key=actor.task.run_key, clock=actor.clock)


def _dialog(chance: random.Random, messages: Messages) -> Dialog:
    lifetime, timer = chance.choice([None, None, None, _LIFETIME]), chance.choice([None, None, None, _TIMER])
    return Dialog(messages=messages, priority=chance.choice([5, 5, 5, 1, 10]), lifetime=lifetime, timer=timer)


def _says(actor: Actor) -> None:
    said = words(actor.chance, actor.task.name, 3)
    if handles := _open(actor):
        with _where_allowed():
            send_on(actor.table, _chosen(actor, handles), said, key=actor.task.run_key, clock=actor.clock, wait=_WAIT)


@contextmanager
def _where_allowed() -> Iterator[None]:
    """Leave out what the state of a conversation does not allow any more; what a pass locks out is tried again."""
    try:
        yield
    except ConversationLockedError:
        raise
    except ConversationError:
        return


def _open(actor: Actor) -> list[str]:
    return [row.handle for row in conversations(actor.table) if row.state in {"SO", "CO"}]


def _chosen(actor: Actor, handles: list[str]) -> str:
    """Return the same for each try of a task, as Airflow gives it the same arguments."""
    path = Path(actor.place.folder, "chosen", actor.task.name)
    if path.exists():
        return path.read_text()
    handle = actor.chance.choice(handles)
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(handle)
    beside.replace(path)
    return handle


# Administrators -------------------------------------------------------------------------------------------------------


def _ended(ended: ConversationEnded) -> None:
    note("told_of_end", queue=ended.queue, dialog=ended.conversation_id)


def _ending(actor: Actor) -> Ending:
    how = actor.chance.choice(["end", "end", "error", "error", "cleanup"])
    return Ending(
        actor.table,
        actor.clock,
        actor.chance.choice([actor.store, actor.store, None]),
        error=GIVEN_UP if how == "error" else None,
        description=actor.task.name if how == "error" else "",
        cleanup=how == "cleanup",
        on_ended=_ended,
        wait=_WAIT,
    )


def _ends(actor: Actor, end: Callable[[Ending, str], object]) -> None:
    ending = _ending(actor)
    if handles := _open(actor):
        handle = _chosen(actor, handles)
        note("ends", queue=actor.task.queue, handle=handle, key=actor.task.name)
        with _where_allowed():
            end(ending, handle)


def _hangs_up(actor: Actor) -> None:
    _ends(actor, lambda ending, handle: ending.end(handle, actor.task.run_key))


def _hangs_up_and_enables(actor: Actor) -> None:
    _ends(actor, lambda ending, handle: ending.end_and_enable(handle, actor.task.run_key))


def _sets_a_timer(actor: Actor) -> None:
    if handles := _open(actor):
        with _where_allowed():
            set_timer(actor.table, _chosen(actor, handles), _TIMER, key=actor.task.run_key, clock=actor.clock, wait=_WAIT)


def _enables(actor: Actor) -> None:
    enable(actor.table, actor.clock)


def _disables(actor: Actor) -> None:
    disable(actor.table, actor.clock, "for a test")


def _restarts(actor: Actor) -> None:
    restart(actor.table, actor.clock, actor.chance.choice([Restart.SERVER, *Restart]))


def mends(actor: Actor) -> None:
    """End the conversation that has halted the queue, and enable it; enable it when none has."""
    control = actor.table.snapshot().control
    if control.state is QueueState.ENABLED:
        return
    if control.halted_by is not None:
        recover(actor.table, actor.clock, store=actor.store, on_ended=_ended)
    else:
        enable(actor.table, actor.clock)


ADMINISTRATION = (_hangs_up, _hangs_up, _hangs_up_and_enables, _hangs_up_and_enables, _sets_a_timer, _enables, _disables, _restarts, gives_up)


def administers_talks(actor: Actor) -> None:
    actor.chance.choice([*ADMINISTRATION, mends, mends])(actor)


def is_quiet(place: Place) -> bool:
    """Whether nothing waits at either side, and no timer runs."""
    versions = [_quiet_version(place, name) for name in TALKERS]
    return None not in versions and versions == [_quiet_version(place, name) for name in TALKERS]


def _quiet_version(place: Place, name: str) -> int | None:
    table = place.store.open(name)
    snapshot = table.snapshot()
    waits = snapshot.files or snapshot.claims or snapshot.outbox or snapshot.transmissions
    return None if waits or endpoints.due(table, snapshot, place.clock.now() + _NEVER) else snapshot.version
