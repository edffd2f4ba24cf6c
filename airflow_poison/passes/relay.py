"""Relay: send on what a pass left in the outbox, once, and then remove it there; and carry messages of dialogs to their partners.

The final commit of a pass wrote these messages into the queue's own table; sending them is keyed by the outbox file, so a relay that died between the
two steps is finished by the next one without a second copy.

A message of a dialog leaves the sender's table when the partner's queue has it. Nothing is carried into a disabled queue (spec SB-19). Each step may
be repeated, by any pass and at the same time: what is put into a queue has a key, and files are carried in the order in which they were committed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.dialogs import acts, arrivals
from airflow_poison.dialogs.acts import Final, Outgoing
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, arriving, endpoints_to_table, table_to_messages
from airflow_poison.dialogs.services import EVENT_NOTIFIER
from airflow_poison.dialogs.system_messages import BOTH_ENDED, END_DIALOG, ERROR, BrokerError, is_system
from airflow_poison.passes import conversations
from airflow_poison.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.passes.conversations import found_queue
from airflow_poison.passes.dialogs import notify
from airflow_poison.passes.due import ended_times
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import ByHand, Chosen, with_columns
from airflow_poison.rules import policy_class
from airflow_poison.store import MAX_NAME, QueueStore, check_name
from airflow_poison.store.control import Control
from airflow_poison.store.files import DataFile, Snapshot, Transaction
from airflow_poison.values.errors import InputError, PoisonError, QueueNameError, QueueNotFoundError, SettingError, StoreUnreachableError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import PART, SINCE, Masking
from airflow_poison.values.schema import DESTINATION, OUTBOX, TO_TOPIC, SubQueue, message_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)


def transmit(store: QueueStore, table: QueueTable, clock: Clock, on_sent: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Carry what waits at this side to the queues of the partners; return how many messages arrived there.

    What a later END WITH ERROR or WITH CLEANUP of the same side has overtaken is dropped (spec SB-54). A service that does not exist answers with
    an Error message, -8490; one that has gone since the dialog began with -8470 (spec SB-57).

    :param on_sent: a callback with each queue, and how many messages it was sent.
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
            on_sent(target.name, arrived.messages)
        if away:
            reach("pass.transmit.before_removal")
            table.remove_transmissions([file])
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
                if snapshot.control.event_notifications:
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
    """Return the keys of messages that the local broker has made for these endpoints and are in the queue, wherever a handler or people put it."""
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


DEAD_LETTER_PROPERTY = "dead_letter_queue"
"""The property by which a sender names its own dead-letter queue; without it ``<queue>.dead-letter``."""
ORIGIN_QUEUE, ORIGIN_LOOKUP_ID, REASON = "poison.origin_queue", "poison.origin_lookup_id", "poison.reason"
"""The properties that say where a message that was sent on comes from, and why."""
_SUFFIX = ".dead-letter"
_ROWS = 10_000


def relay(store: QueueStore, table: QueueTable, clock: Clock, on_sent: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send every outbox message to its queue (made when missing); return how many.

    A queue that is disabled holds them (spec SB-19), so nothing that its people have done stops the relay. A queue that fails keeps no message from
    another one: its error is raised after the others, and what is for it waits.

    :param on_sent: a callback with each queue, and how many messages it was sent.
    """
    sent, failed = 0, dict[str, Exception]()
    snapshot = table.snapshot()
    for file in snapshot.outbox:
        rows = table.read(file)
        if to_topic(rows) is not None:
            continue  # sent by passes.to_kafka, which knows the brokers
        targets = [_target(dict(cell or ()), table.name) for cell in rows.column("properties").to_pylist()]
        for target in dict.fromkeys(targets):
            if target in failed:
                continue  # its messages stay in their order
            here = pa.array([each == target for each in targets], pa.bool_())
            try:
                queue = _made(store, target, table.name, snapshot.control)
                reach("pass.relay.before_send")
                letters = _letters(rows.filter(here), table.name, recorded_mask(queue))
                messages = queue.append(letters, f"relay:{table.name}:{file.path}:{target}", clock.now()).messages
                on_sent(queue.name, messages)
                sent += messages
            except StoreUnreachableError:  # the other queues are there, too
                raise
            except Exception as error:  # noqa: BLE001  (of whatever type, it is raised after the other queues)
                failed[target] = error
        if not failed.keys() & {*targets}:
            reach("pass.relay.before_removal")
            table.remove_outbox([file])
    if failed:
        raise next(iter(failed.values()))
    return sent


def to_topic(rows: pa.Table) -> str | None:
    """Return the Kafka topic that the messages of an outbox file go to; None for those that go to queues. No file has both."""
    found = {dict(cell or ()).get(DESTINATION, "") for cell in rows.column("properties").to_pylist()}
    target = found.pop() if len(found) == 1 else ""
    return target.removeprefix(TO_TOPIC) if target.startswith(TO_TOPIC) else None


def dead_letter_queue(queue: str) -> str:
    """Return the name of a queue's own dead-letter queue, cut where it would be too long for a name, and never the queue's."""
    name = f"{queue[: MAX_NAME - len(_SUFFIX)]}{_SUFFIX}"
    return name if name != queue else f"{queue[: MAX_NAME - len(_SUFFIX) - 1]}{_SUFFIX}"


def _made(store: QueueStore, target: str, origin: str, control: Control) -> QueueTable:
    """Return the queue; the dead-letter queue where the file system takes its name for another queue's (``Orders`` for ``orders``)."""
    row = _neutral(control)
    try:
        return store.create(target, row)
    except QueueNameError:
        return store.create(dead_letter_queue(origin), row)


def _neutral(control: Control) -> Control:
    """Return the row of a queue that is made on the way: it receives, by the same system's rules with their default settings.

    Its own settings would be wrong there: a backout queue whose messages go to itself, a dead-letter queue that rejects. What is hidden of the
    messages is hidden there, too.
    """
    desk = {name: control.desk[name] for name in (PART, SINCE) if name in control.desk}
    try:
        return Control(policy_class(str(control.policy.get("system"))).from_dict({}).to_dict(), desk=desk)
    except SettingError:  # a policy that this version does not know: no message may stop the relay
        return Control(control.policy, desk=desk)


def _target(properties: Mapping[str, str], queue: str) -> str:
    """Return where a message goes; the dead-letter queue when that is no name of another queue: no message may stop the relay, or go round in it."""
    wished = properties.get(DESTINATION, properties.get(DEAD_LETTER_PROPERTY))
    if wished and wished != queue:
        with suppress(QueueNameError):
            return check_name(wished)
    return dead_letter_queue(queue)


def _letters(rows: pa.Table, queue: str, masking: Masking | None) -> Iterator[pa.RecordBatch]:
    """Yield messages as they are sent on: body and properties unchanged, counts 0, with properties that say where they come from.

    :param masking: what their new queue hides: the texts of their failures have none of it.
    """
    if masking is not None:
        rows = _without_values(rows, masking)
    for start in range(0, rows.num_rows, _ROWS):
        part = rows.slice(start, _ROWS)
        origins = zip(*(part.column(name).to_pylist() for name in ("properties", "lookup_id", "reason")), strict=True)
        properties = []
        for cell, lookup_id, reason in origins:
            kept = {name: value for name, value in cell or () if name != DESTINATION}
            properties.append(list((kept | {ORIGIN_QUEUE: queue, ORIGIN_LOOKUP_ID: str(lookup_id), REASON: reason or ""}).items()))
        changed: dict[str, pa.Array[Any]] = {
            "properties": pa.array(properties, message_schema().field("properties").type),
            "abort_count": pa.repeat(pa.scalar(0, pa.int32()), part.num_rows),
            "due_at": pa.nulls(part.num_rows, message_schema().field("due_at").type),
        }
        columns = [changed.get(name, part.column(name)) for name in message_schema().names]
        yield from pa.table(columns, schema=message_schema()).combine_chunks().to_batches()


def _without_values(rows: pa.Table, masking: Masking) -> pa.Table:
    shown = [masked(row, masking) for row in MessageRow.of(rows)]
    return with_columns(rows, last_error=[row.last_error for row in shown], reason=[row.reason for row in shown])


# By hand ---------------------------------------------------------------------------------------------------------------


FROM = frozenset(SubQueue) - {SubQueue.TRANSMISSION}
"""Where messages that people send elsewhere can be."""


@dataclass(frozen=True, slots=True)
class SendToResult(Plain):
    """What was sent to other queues."""

    queue: str
    sent: int
    to: Mapping[str, int] = field(default_factory=dict)


def send_to(
    table: QueueTable, store: QueueStore, clock: Clock, lookup_ids: Collection[int], queue: str | None = None, *, run: str | None = None
) -> SendToResult:
    """Move messages to another queue of the store, each exactly once, with abort count 0.

    One commit puts them into the queue's outbox, from where they are sent on at once; when this run dies in between, the next one or the next
    pass over the queue does that.

    :param queue: where to; it must exist. None: to the queue that each came from, as its property ``poison.origin_queue`` says.
    :param run: a key: what a call with the same key has sent before, and is not there now, is no error.
    Raises QueueNotFoundError, QueueNameError, SettingError for the queue itself, InputError for messages that do not say where they came
    from, MessageNotFoundError, MessageClaimedError; then nothing was moved.
    """
    relay(store, table, clock)
    now = clock.now()

    @cache
    def check(name: str) -> None:
        if name == table.name:
            raise SettingError("queue", name, "another queue than the one that the messages are in")
        store.open(name)  # a typing error must not make one

    def targets(rows: pa.Table) -> list[str]:
        wished = [queue or dict(cell or ()).get(ORIGIN_QUEUE) or "" for cell in rows["properties"].to_pylist()]
        lost = [number for number, name in zip(rows["lookup_id"].to_pylist(), wished, strict=True) if not name]
        if lost:
            raise InputError(
                f"Messages {lost[:20]} of queue {table.name!r} have no property {ORIGIN_QUEUE!r}: say which queue they go to. Nothing was moved."
            )
        for name in set(wished):
            check(name)
        return wished

    change = ByHand(
        Chosen.ids(lookup_ids), lambda rows: addressed(rows, targets(rows)), lambda rows: sent_events(rows, targets(rows), now), FROM, run
    )
    sent = targets(change.commit(table))
    reach("pass.send_to.before_relay")
    relay(store, table, clock)
    return SendToResult(table.name, len(sent), dict(sorted(Counter(sent).items())))


def addressed(rows: pa.Table, targets: Iterable[str]) -> pa.Table:
    """Return messages as they are in the outbox, each on its way to a queue."""
    cells = zip(rows["properties"].to_pylist(), targets, strict=True)
    return with_columns(rows, sub_queue=OUTBOX, properties=[list({**dict(cell or ()), DESTINATION: target}.items()) for cell, target in cells])


def sent_events(rows: pa.Table, targets: Iterable[str], now: datetime) -> Iterator[Event]:
    """Yield the events of messages that people send to other queues."""
    numbers = (rows[name].to_pylist() for name in ("lookup_id", "abort_count", "move_count"))
    for lookup_id, abort_count, move_count, target in zip(*numbers, targets, strict=True):
        yield Event(EventType.REQUEUED, now, lookup_id, abort_count or 0, move_count or 0, {"place": target, "by": BY_HAND})
