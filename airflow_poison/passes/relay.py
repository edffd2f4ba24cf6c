"""Relay: send on what a pass left in the outbox, once, and then remove it there.

The final commit of a pass wrote these messages into the queue's own table; sending them is keyed by the outbox file, so a relay that
died between the two steps is finished by the next one without a second copy.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.passes.browse import MessageRow, masked, recorded_mask
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import ByHand, Chosen, with_columns
from airflow_poison.rules import policy_class
from airflow_poison.store import MAX_NAME, check_name
from airflow_poison.store.control import Control
from airflow_poison.values.errors import InputError, QueueNameError, SettingError, StoreUnreachableError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import PART, SINCE
from airflow_poison.values.schema import DESTINATION, OUTBOX, TO_TOPIC, SubQueue, message_schema
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.masking import Masking


DEAD_LETTER_PROPERTY = "dead_letter_queue"
"""The property by which a sender names its own dead-letter queue; without it ``<queue>.dead-letter``."""
ORIGIN_QUEUE, ORIGIN_LOOKUP_ID, REASON = "poison.origin_queue", "poison.origin_lookup_id", "poison.reason"
"""The properties that say where a message that was sent on comes from, and why."""
_SUFFIX = ".dead-letter"
_ROWS = 10_000


def relay(store: QueueStore, table: QueueTable, clock: Clock, told: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send every outbox message to its queue (made when missing); return how many.

    A queue that is disabled holds them (spec SB-19), so nothing that its people have done stops the relay. A queue that fails keeps no message from
    another one: its error is raised after the others, and what is for it waits.

    :param told: called with each queue, and how many messages it was sent.
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
                queue = _made(store, target, table.name, snapshot.control, clock)
                reach("pass.relay.before_send")
                letters = _letters(rows.filter(here), table.name, recorded_mask(queue))
                messages = queue.append(letters, f"relay:{table.name}:{file.path}:{target}", clock.now()).messages
                told(queue.name, messages)
                sent += messages
            except StoreUnreachableError:  # the other queues are there, too
                raise
            except Exception as error:  # noqa: BLE001  (of whatever type, it is raised after the other queues)
                failed[target] = error
        if not failed.keys() & {*targets}:
            reach("pass.relay.before_removal")
            table.remove_outbox([file], clock.now())
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


def _made(store: QueueStore, target: str, origin: str, control: Control, clock: Clock) -> QueueTable:
    """Return the queue; the dead-letter queue where the file system takes its name for another queue's (``Orders`` for ``orders``)."""
    row, now = _neutral(control), clock.now()
    try:
        return store.create(target, row, now)
    except QueueNameError:
        return store.create(dead_letter_queue(origin), row, now)


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
    sent = targets(change.commit(table, now))
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
