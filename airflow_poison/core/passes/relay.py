"""Relay: send on what a pass left in the outbox, once, and then remove it there.

The final commit of a pass wrote these messages into the queue's own table; sending them is keyed by the outbox file, so a relay that
died between the two steps is finished by the next one without a second copy.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.core.errors import QueueNameError, SettingError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import DESTINATION, message_schema
from airflow_poison.core.policies import policy_class
from airflow_poison.core.store import MAX_NAME, check_name
from airflow_poison.core.store.control import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

DEAD_LETTER_PROPERTY = "dead_letter_queue"
"""The property by which a sender names its own dead-letter queue; without it ``<queue>.dead-letter``."""
ORIGIN_QUEUE, ORIGIN_LOOKUP_ID, REASON = "poison.origin_queue", "poison.origin_lookup_id", "poison.reason"
"""The properties that say where a message that was sent on comes from, and why."""
_SUFFIX = ".dead-letter"
_ROWS = 10_000


def relay(store: QueueStore, table: QueueTable, clock: Clock, told: Callable[[str, int], object] = lambda _queue, _messages: None) -> int:
    """Send every outbox message to its queue (made when missing); return how many.

    A queue that is disabled holds them (spec SB-19), so nothing that its people have done stops the relay.

    :param told: called with each queue, and how many messages it was sent.
    """
    sent = 0
    snapshot = table.snapshot()
    for file in snapshot.outbox:
        rows = table.read(file)
        targets = _targets(rows, table.name)
        for target in dict.fromkeys(targets):
            here = pa.array([each == target for each in targets], pa.bool_())
            queue = _made(store, target, table.name, snapshot.control, clock)
            reach("pass.relay.before_send")
            messages = queue.append(_letters(rows.filter(here), table.name), f"relay:{table.name}:{file.path}:{target}", clock.now()).messages
            told(queue.name, messages)
            sent += messages
        reach("pass.relay.before_removal")
        table.remove_outbox([file], clock.now())
    return sent


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

    Its own settings would be wrong there: a backout queue whose messages go to itself, a dead-letter queue that rejects.
    """
    try:
        return Control(policy_class(str(control.policy.get("system"))).from_dict({}).to_dict())
    except SettingError:  # a policy that this version does not know: no message may stop the relay
        return Control(control.policy)


def _targets(rows: pa.Table, queue: str) -> list[str]:
    """Return each message's queue."""
    return [_target(dict(cell or ()), queue) for cell in rows.column("properties").to_pylist()]


def _target(properties: Mapping[str, str], queue: str) -> str:
    """Return where a message goes; the dead-letter queue when that is no name of another queue: no message may stop the relay, or go round in it."""
    wished = properties.get(DESTINATION, properties.get(DEAD_LETTER_PROPERTY))
    if wished and wished != queue:
        with suppress(QueueNameError):
            return check_name(wished)
    return dead_letter_queue(queue)


def _letters(rows: pa.Table, queue: str) -> Iterator[pa.RecordBatch]:
    """Yield messages as they are sent on: body and properties unchanged, counts 0, with properties that say where they come from."""
    for start in range(0, rows.num_rows, _ROWS):
        part = rows.slice(start, _ROWS)
        origins = zip(*(part.column(name).to_pylist() for name in ("properties", "lookup_id", "reason")), strict=True)
        properties = [_with_origin(dict(cell or ()), queue, lookup_id, reason) for cell, lookup_id, reason in origins]
        changed: dict[str, pa.Array[Any]] = {
            "properties": pa.array(properties, message_schema().field("properties").type),
            "abort_count": pa.repeat(pa.scalar(0, pa.int32()), part.num_rows),
            "due_at": pa.nulls(part.num_rows, message_schema().field("due_at").type),
        }
        columns = [changed.get(name, part.column(name)) for name in message_schema().names]
        yield from pa.table(columns, schema=message_schema()).combine_chunks().to_batches()


def _with_origin(properties: dict[str, str], queue: str, lookup_id: int, reason: str | None) -> list[tuple[str, str]]:
    properties.pop(DESTINATION, None)
    properties |= {ORIGIN_QUEUE: queue, ORIGIN_LOOKUP_ID: str(lookup_id), REASON: reason or ""}
    return list(properties.items())
