"""Transmission: the messages of dialogs on their way from the sender's side into the partner's queue, and those that the local broker makes.

A message leaves the sender's table when the partner's queue has it. Nothing is carried into a disabled queue (spec SB-19). Each step may be
repeated, by any pass and at the same time: what is put into a queue has a key, and files are carried in the order in which they were committed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING

from airflow_poison.dialogs import acts, arrivals
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, arriving, endpoints_to_table, table_to_messages
from airflow_poison.dialogs.endpoint import Final, Outgoing
from airflow_poison.dialogs.services import EVENT_NOTIFIER
from airflow_poison.dialogs.system_messages import BOTH_ENDED, END_DIALOG, ERROR, BrokerError, is_system
from airflow_poison.passes import conversations
from airflow_poison.passes.conversations import found_queue
from airflow_poison.passes.due import ended_times
from airflow_poison.passes.event_notifications import notifications, notify
from airflow_poison.store.files import Transaction
from airflow_poison.values.errors import PoisonError, QueueNotFoundError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


log = logging.getLogger(__name__)


def transmit(store: QueueStore, table: QueueTable, clock: Clock, told: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Carry what waits at this side to the queues of the partners; return how many messages arrived there.

    What a later END WITH ERROR or WITH CLEANUP of the same side has overtaken is dropped (spec SB-54). A service that does not exist answers with
    an Error message, -8490; one that has gone since the dialog began with -8470 (spec SB-57).

    :param told: called with each queue, and how many messages it was sent.
    """
    files = table.snapshot().transmissions
    if not files:
        return 0
    contents = [(file, list(_messages(table, file))) for file in files]
    ends = _ends(message for _, messages in contents for message in messages)
    find, held, sent = cache(partial(found_queue, store)), set[str](), 0
    for file, messages in contents:
        leaving = [message for message in messages if not _is_dropped(message, ends)]
        away = True
        for (target, what), group in _addressed(table, leaving, find).items():
            if group[0].message_type == BOTH_ENDED:
                away &= _acknowledge(target, group, f"transmit:{table.name}:{file.path}:{what}", clock)
                continue
            if target.name in held or _holds(target, table, group):
                held.add(target.name)
                away = False
                continue
            reach("pass.transmit.before_send")
            arrived = target.append(arriving(group, clock.now()), f"transmit:{table.name}:{file.path}:{what}", clock.now())
            sent += arrived.messages
            told(target.name, arrived.messages)
        if away:
            reach("pass.transmit.before_removal")
            table.remove_transmissions([file], clock.now())
    return sent


def pull(store: QueueStore, table: QueueTable, clock: Clock) -> None:
    """Have every other queue with services carry what it holds, so that a queue that is ON again waits for no schedule.

    What another queue cannot send or carry now, its own next pass does: no queue waits for another one to be mended.
    """
    for name in store.names():
        if name != table.name:
            try:
                other = store.open(name, read_only=True)
                snapshot = other.snapshot()
                if notifications(snapshot.control):
                    notify(store, other, clock)
                if snapshot.transmissions:
                    transmit(store, other, clock)
            except QueueNotFoundError:  # removed meanwhile
                continue
            except PoisonError as error:
                log.warning("What queue %r holds for queue %r was not carried: %s", name, table.name, error)


def tick(table: QueueTable, clock: Clock) -> int:
    """Put the messages of expired timers and ended lifetimes into the queue (spec SB-22, SB-45, SB-56, SB-57); return how many.

    In a disabled queue they are held back, in front of what partners send afterwards (section 11.1).
    """
    snapshot, now = table.snapshot(), clock.now()
    endpoints = conversations.due(table, snapshot, now)
    if not endpoints:
        return 0
    known = _local_keys(table, set(endpoints))
    made = [message for endpoint in endpoints.values() for message in arrivals.due(endpoint, now) if arrivals.local_key(message) not in known]
    if not made:
        return 0
    keys = "\n".join(sorted(arrivals.local_key(message) for message in made))
    reach("pass.tick.before_append")
    return table.append(arriving(made, now), f"tick:{sha256(keys.encode()).hexdigest()}", now).messages


def _messages(table: QueueTable, file: DataFile) -> Iterable[Outgoing]:
    return (message for message in table_to_messages(table.read(file, list(MESSAGE_COLUMNS))) if message is not None)


def _ends(messages: Iterable[Outgoing]) -> dict[tuple[str, bool], int]:
    """Return which message of each side drops those before it."""
    found: dict[tuple[str, bool], int] = {}
    for message in messages:
        envelope = message.envelope
        if envelope.final is not Final.NO:
            found[envelope.conversation_id, envelope.from_initiator] = envelope.sequence
    return found


def _is_dropped(message: Outgoing, ends: dict[tuple[str, bool], int]) -> bool:
    envelope = message.envelope
    if envelope.final is Final.CLEANUP:
        return True
    return not envelope.is_local and envelope.sequence < ends.get((envelope.conversation_id, envelope.from_initiator), 0)


def _addressed(
    table: QueueTable, messages: Sequence[Outgoing], find: Callable[[str], QueueTable | None]
) -> dict[tuple[QueueTable, str], list[Outgoing]]:
    """Return the messages by the queue that they go to, in order; what cannot be delivered becomes an Error in this side's own queue.

    What one service gets, or what comes back because it is missing, is a group of its own, which its name distinguishes from all others: services of
    one commit may be found missing, and disabled, at different times, and each group is put into its queue once.
    """
    found: dict[tuple[QueueTable, str], list[Outgoing]] = defaultdict(list)
    for message in messages:
        service, target = message.envelope.to_service, table
        if message.envelope.is_local:
            what, arriving_here = f"at:{service}", message
        elif (far := find(service)) is not None:
            ends = message.message_type == BOTH_ENDED
            what, arriving_here, target = f"{'ended' if ends else 'to'}:{service}", message, far
        elif service == EVENT_NOTIFIER and is_system(message.message_type) == END_DIALOG:  # its dialogs end when the subscriber ends them
            what, arriving_here = f"ended:{service}", Outgoing(message.envelope.turned(), BOTH_ENDED)
        elif service == EVENT_NOTIFIER or is_system(message.message_type) == ERROR or message.message_type == BOTH_ENDED:
            continue  # there is no partner left
        else:
            begins = message.envelope.from_initiator and message.envelope.sequence == 1
            problem = BrokerError.SERVICE_UNKNOWN if begins else BrokerError.SERVICE_DROPPED
            what, arriving_here = f"back:{service}", acts.undeliverable(message, problem)
        found[target, what].append(arriving_here)
    return found


def _acknowledge(target: QueueTable, messages: Sequence[Outgoing], key: str, clock: Clock) -> bool:
    """Close the endpoints whose partners have ended their dialogs, too. False: a pass has their locks (spec SB-53), so this is for later."""
    handles, locked = {message.envelope.to_handle for message in messages}, False

    def plan(snapshot: Snapshot) -> Transaction | None:
        nonlocal locked
        locked = bool(snapshot.claims)
        known = {} if locked else conversations.stored(target, snapshot, handles)
        over = [after for endpoint in known.values() if (after := arrivals.acknowledged(endpoint)) is not None]
        return Transaction(endpoints_to_table(over), alone=True) if over else None

    reach("pass.transmit.before_acknowledgement")
    target.transact(plan, key, clock.now())
    return not locked


def _holds(target: QueueTable, table: QueueTable, messages: Sequence[Outgoing]) -> bool:
    """Whether a queue takes nothing from partners now (spec SB-18). What the local broker makes is held back at its own side."""
    own = target.name == table.name and all(message.envelope.is_local for message in messages)
    return not own and target.snapshot().control.holds_sends


def _local_keys(table: QueueTable, handles: set[str]) -> set[str]:
    """Return the keys of what the local broker has made for these endpoints and is in the queue, wherever a handler or people have put it."""
    found = set[str]()
    for file in table.snapshot().files:
        if handles & set(conversations.members(table, file)["conversation_id"].to_pylist()):
            rows = table.read(file, [*MESSAGE_COLUMNS, "conversation_id"])
            for message in table_to_messages(rows):
                if message is not None and message.envelope.is_local:
                    found.add(arrivals.local_key(message))
    return found


MANY = 32
"""Files of endpoints; each pass adds one, and a look at a conversation reads all of them."""


def refresh(table: QueueTable, clock: Clock) -> None:
    """Join files that name times in the past, so that their statistics show the coming ones; and files that have become many."""
    snapshot = table.snapshot()
    if ended_times(snapshot, clock.now()) or len(snapshot.conversations) >= MANY:
        table.merge_conversations(lambda endpoints: endpoints, min_files=2)
